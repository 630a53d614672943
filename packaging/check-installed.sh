#!/bin/bash
# Installs percale's Debian packages on a bare Debian machine as root, uses them, upgrades them and removes them.
#
#   check-installed.sh DIR [MPICH]
#
# DIR has the packages, the archive, and the sources of the C programs below c/. MPICH is a copy of an MPICH that uses libfabric (lib and
# bin), with a program `ring` that was compiled with it; without it the checks of MPICH are reported as skipped.
#
# Each check prints a line. The last line has the counts. The exit status is 1 if a check failed. The script changes the
# machine: run it in a chroot or a container that is thrown away (`cargo xtask package --check`).
set -u -o pipefail

packages=$1
mpich=${2:-}
names="percale libpercale-fi1 libpindown0 libpindown-dev pindown-helper"
passed=0 failed=0 skipped=0
work=$(mktemp -d)
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# No setting of the caller.
unset FI_PROVIDER FI_PROVIDER_PATH LD_LIBRARY_PATH

# check NAME COMMAND...: the command must succeed.
check() {
	local name=$1
	shift
	if "$@" >"$work/output" 2>&1; then
		printf '  ok      %s\n' "$name"
		passed=$((passed + 1))
	else
		printf '  FAILED  %s\n' "$name"
		tail -n 15 "$work/output" | sed 's/^/            /'
		failed=$((failed + 1))
	fi
}

fails() {
	! "$@"
}

skip() {
	printf '  skipped %s: %s\n' "$1" "$2"
	skipped=$((skipped + 1))
}

apt() {
	apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 "$@"
}

# The files that no installed package owns, except those that record what was installed.
unowned() {
	find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /var/lib/dpkg -o -path /var/lib/apt \
		-o -path /var/cache -o -path /var/log -o -path /root -o -path "$packages" \) -prune -o -print | sort >"$work/all"
	cat /var/lib/dpkg/info/*.list | sort -u >"$work/owned"
	comm -23 "$work/all" "$work/owned"
}

# No file of the removed packages is left, and no file that nobody owns was added since `before` was written.
nothing_left() {
	local left name
	left=$(comm -13 "$1" <(unowned))
	if [ -n "$left" ]; then
		printf 'these files are left:\n%s\n' "$left"
		return 1
	fi
	for name in $names; do
		if dpkg-query --show --showformat='${db:Status-Abbrev}\n' "$name" 2>/dev/null | grep -qv '^un'; then
			dpkg-query --list "$name"
			return 1
		fi
	done
}

contains() {
	local text=$1
	shift
	"$@" >"$work/contains" 2>&1
	cat "$work/contains"
	grep -q -e "$text" "$work/contains"
}

perf() {
	percale perf --seconds 0.05 --json >"$work/perf" || return
	grep -q '"transport":"shm"' "$work/perf" && grep -q '"transport":"tcp"' "$work/perf"
}

# pretend_systemd: from now on there is a systemd, with a systemctl that only records its arguments. For `show` it prints
# the program that the file exec-start names.
pretend_systemd() {
	mkdir -p "$work/pretended" /run/systemd/system
	cat >"$work/pretended/systemctl" <<-END
		#!/bin/sh
		echo "systemctl \$*" >>$work/calls
		[ "\$1" != show ] || echo "ExecStart={ path=\$(cat $work/exec-start) ; argv[]= }"
	END
	cat >"$work/pretended/deb-systemd-invoke" <<-END
		#!/bin/sh
		echo "deb-systemd-invoke \$*" >>$work/calls
	END
	chmod +x "$work"/pretended/*
	: >"$work/calls"
	own_path=$PATH PATH=$work/pretended:$PATH
}

end_systemd() {
	PATH=$own_path
	rmdir /run/systemd/system
	rmdir /run/systemd 2>/dev/null || true
}

# called PATTERN: the recorded calls have such a line.
called() {
	cat "$work/calls"
	grep -q -e "$1" "$work/calls"
}

# without_calls: the recorded calls change no unit.
without_calls() {
	cat "$work/calls"
	! grep -qv -e '^systemctl show ' -e '^systemctl --system daemon-reload$' "$work/calls"
}

# with_program PROGRAM COMMAND...: runs the command while systemd runs this program as pindown-helper.service.
with_program() {
	echo "$1" >"$work/exec-start"
	: >"$work/calls"
	shift
	"$@"
}

# stopped_for PROGRAM: the script prerm of the package stops the service, which runs this program, and its socket.
stopped_for() {
	with_program "$1" /var/lib/dpkg/info/pindown-helper.prerm remove || return
	called '^deb-systemd-invoke stop .*pindown-helper.service' && called '^deb-systemd-invoke stop .*pindown-helper.socket'
}

# restarted_by_upgrade: the upgrade of the package stops nothing, and restarts the running service.
restarted_by_upgrade() {
	with_program /usr/sbin/pindown-helper dpkg --install "$work"/newer/pindown-helper_*.deb || return
	called '^deb-systemd-invoke restart .*pindown-helper.service' && ! called 'stop'
}

# left_alone COMMAND...: the command calls nothing that changes the units, which belong to another installation.
left_alone() {
	with_program /usr/local/sbin/pindown-helper "$@" && without_calls
}

# kept TEXT FILE COMMAND...: the command succeeds, prints a line with this text about the file, and leaves the file.
kept() {
	local text=$1 file=$2 before
	shift 2
	before=$(stat -c '%F %s %Y' "$file")
	"$@" >"$work/kept" 2>&1 || return
	cat "$work/kept"
	grep -F -e "$file" "$work/kept" | grep -qF -e "$text" && [ "$(stat -c '%F %s %Y' "$file")" = "$before" ]
}

# cut_off COMMAND...: the installation is killed as soon as it has written the first file.
cut_off() {
	local process
	# With a process group of its own, so that no child survives.
	setsid "$@" &
	process=$!
	until [ -n "$(find /opt/cut -name '.*.percale-new')" ] || ! kill -0 $process; do :; done
	kill -KILL -- -$process
	wait $process
	find /opt/cut -name '.*.percale-new' | grep .
}

# without_ldconfig COMMAND...: runs the command on a machine that has no ldconfig.
without_ldconfig() {
	local program status
	program=$(readlink -f /sbin/ldconfig)
	mv "$program" "$work/ldconfig"
	"$@"
	status=$?
	mv "$work/ldconfig" "$program"
	return $status
}

# files_of FOLDER...: the names, kinds and sizes of everything there.
files_of() {
	find "$@" ! -type d -printf '%p %y %s\n' -o -printf '%p %y\n' 2>/dev/null | sort
}

# rejected STATUS TEXT COMMAND...: the command fails with this status and this message, and changes no file.
rejected() {
	local status=$1 text=$2
	shift 2
	files_of /opt /usr/local /etc/systemd >"$work/files"
	"$@" >"$work/rejected" 2>&1
	local found=$?
	cat "$work/rejected"
	files_of /opt /usr/local /etc/systemd | diff "$work/files" - || return
	[ $found = "$status" ] && grep -qF -e "$text" "$work/rejected"
}

echo "on a bare machine:"
check "apt-get update" apt update
check "apt install" apt install -y "$packages"/*.deb
check "percale info" percale info
check "percale perf over shared memory and TCP" perf
check "percale generate" percale generate "$work/share"
check "user of pindown-helper" getent passwd pindown
check "pindown-helper --help" contains Usage pindown-helper --help
check "shared library in the linker's cache" contains libpindown.so.0 ldconfig -p
check "installed files are those of the packages" sh -c "dpkg --verify $names | tee /dev/stderr | wc -l | grep -qx 0"
check "apt purge" apt purge -y $names

echo "with compilers and MPI libraries:"
tools="gcc libc6-dev pkg-config man-db systemd libfabric-bin libfabric1 openmpi-bin libopenmpi-dev fish zsh bash-completion"
check "apt install of the tools" apt install -y --no-install-recommends $tools
unowned >"$work/before"
check "apt install" apt install -y "$packages"/*.deb

folder=/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || gcc -print-multiarch)
check "fi_info finds the provider" contains 'provider: percale' fi_info -p percale
check "fi_info names the folder of the provider" contains "default: $folder/libfabric" fi_info -e
as_root="OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 HOME=$work"
run="env $as_root timeout 120 mpirun.openmpi --oversubscribe -n 2"
check "compile the MPI program with Open MPI" mpicc.openmpi -O1 -o "$work/ring" "$packages/c/ring.c"
check "Open MPI over percale" contains ' 0 wrong' \
	$run --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include percale "$work/ring"
mkdir -p "$work/.openmpi"
cp /usr/share/doc/libpercale-fi1/examples/mca-params.conf "$work/.openmpi/"
check "Open MPI over percale, by the user's settings" contains ' 0 wrong' $run "$work/ring"
check "Open MPI selects percale by these settings" contains 'mtl:ofi:prov: percale' \
	$run --mca opal_common_ofi_verbose 100 --mca mtl_ofi_verbose 100 "$work/ring"
if [ -n "$mpich" ]; then
	# This MPICH comes with its own libfabric, which was built for another prefix.
	mkdir -p /opt/mpich/lib
	ln -s "$folder/libfabric" /opt/mpich/lib/libfabric
	check "MPICH over percale" contains ' 0 wrong' \
		env HOME="$work" LD_LIBRARY_PATH="$mpich/lib" FI_PROVIDER=percale MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 \
		timeout 120 "$mpich/bin/mpiexec" -n 2 "$mpich/ring"
	rm -r /opt/mpich
else
	skip "MPICH over percale" "there is no MPICH that uses libfabric; Debian's was built with UCX alone"
fi

for page in 'percale' 'percale-perf' 'fi_percale' 'pindown-helper'; do
	check "man $page" sh -c "MANPAGER=cat man --warnings '$page' 2>'$work/warnings' | grep -q . && ! grep . '$work/warnings'"
done
check "completion of bash" bash -n /usr/share/bash-completion/completions/percale
check "completion of bash is loaded" contains _percale \
	bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader percale; complete -p percale'
check "completion of zsh" zsh -n /usr/share/zsh/vendor-completions/_percale
check "completion of fish" contains torture fish -c 'complete -C "percale tor"'

check "pkg-config" contains -lpindown pkg-config --cflags --libs pindown
example=/usr/share/doc/libpindown-dev/examples/verbs.c
check "C example with the shared library" \
	sh -c "cc -Wall -Werror $example \$(pkg-config --cflags --libs pindown) -o '$work/verbs' && '$work/verbs'"
check "it is linked with libpindown.so.0" contains 'libpindown.so.0 => /' ldd "$work/verbs"
check "C example with the static library" sh -c "
	cc -Wall -Werror $example \$(pkg-config --cflags --static --libs pindown | sed 's/-lpindown/-l:libpindown.a/') \
		-o '$work/verbs-static' && '$work/verbs-static' && ! ldd '$work/verbs-static' | grep pindown"

units=$(dirname "$(dpkg -L pindown-helper | grep 'pindown-helper.socket$')")
check "units" systemd-analyze verify "$units/pindown-helper.socket" "$units/pindown-helper.service"
check "socket is enabled" sh -c "systemctl is-enabled pindown-helper.socket | grep -qx enabled"

echo "upgrade and removal:"
mkdir "$work/newer"
newer() {
	local package
	for package in "$packages"/*.deb; do
		rm -rf "$work/unpacked"
		dpkg-deb --raw-extract "$package" "$work/unpacked" || return
		# A later revision, also in the dependencies of the packages on each other.
		sed -i 's/\(Version: .*\|(= [^)]*\)-1\()\?\)$/\1-2\2/; s/(= \([^)]*\)-1)/(= \1-2)/g' "$work/unpacked/DEBIAN/control"
		dpkg-deb --root-owner-group --build "$work/unpacked" "$work/newer/$(basename "$package")" || return
	done
}
check "make a later revision" newer
check "apt upgrades the packages" apt install -y "$work"/newer/*.deb
check "the later revision is installed" contains '-2$' dpkg-query --show --showformat='${Version}\n' percale
check "files are those of the later revision" sh -c "dpkg --verify $names | tee /dev/stderr | wc -l | grep -qx 0"
check "percale after the upgrade" percale info
pretend_systemd
check "removal stops the service" stopped_for /usr/sbin/pindown-helper
check "removal does not stop another installation's service" \
	left_alone /var/lib/dpkg/info/pindown-helper.prerm remove
check "an upgrade restarts the service, and does not stop it before" restarted_by_upgrade
end_systemd
check "apt remove" apt remove -y $names
check "libfabric without the provider" sh -c '! fi_info -p percale'
# apt does not know packages that are neither installed nor in an archive.
check "dpkg purge" dpkg --purge $names
check "no file is left" nothing_left "$work/before"

echo "the archive:"
check "unpack" sh -c "tar -C '$work' -xzf '$packages'/percale-*.tar.gz"
installer=$(echo "$work"/percale-*/install.sh)
check "a wrong option is rejected" rejected 2 "unknown option --perfix" "$installer" --perfix /opt
for invalid in '/opt/R&D' '/opt/a b' '/opt/x|y' '/opt/a\nb' '/opt/50%h' '/opt/$x' "/opt/it's" $'/opt/two\nlines'; do
	check "prefix $(printf %q "$invalid") is rejected" rejected 2 "may contain only" "$installer" --prefix "$invalid"
	check "providers $(printf %q "$invalid") are rejected" rejected 2 "may contain only" "$installer" --providers "$invalid"
done
check "/ as the folder of providers is rejected" rejected 2 "cannot be /" "$installer" --prefix /opt/other --providers //
check "a prefix with .. is rejected" rejected 2 "may not contain . or .." "$installer" --prefix /opt/../usr
check "uninstalling what was not installed is rejected" rejected 1 "nothing is installed in /opt/other" \
	"$installer" --prefix /opt/other --uninstall
chmod a+rx "$work"
mkdir -m 777 /opt/open
check "without permission nothing is installed" rejected 1 "is not writable: run as root" \
	setpriv --reuid 65534 --regid 65534 --clear-groups "$installer" --prefix /opt/open --providers /opt/open/lib
rmdir /opt/open
mkdir -p /opt/taken/bin/percale
check "a folder in the place of a file is rejected" rejected 1 "/opt/taken/bin/percale is a folder" \
	"$installer" --prefix /opt/taken --no-service
rmdir /opt/taken/bin/percale
echo mine >/opt/taken/bin/percale
check "another's file is not replaced" rejected 1 "/opt/taken/bin/percale exists" "$installer" --prefix /opt/taken --no-service
rm -r /opt/taken
mkdir /opt/linked
ln -s /opt/nowhere /opt/linked/lib
check "a link to a missing folder is rejected" rejected 1 "/opt/linked/lib is a link to something that does not exist" \
	"$installer" --prefix /opt/linked --no-service
rm -r /opt/linked
check "a program as the folder of providers is rejected" rejected 1 "/opt/other/bin/percale cannot be a folder" \
	"$installer" --prefix /opt/other --no-service --providers /opt/other/bin/percale
touch /opt/file
check "a file as the folder of providers is rejected" rejected 1 "/opt/file is no folder" \
	"$installer" --prefix /opt/other --no-service --providers /opt/file
rm /opt/file
mkdir /opt/small
if mount -t tmpfs -o size=4m tmpfs /opt/small 2>"$work/mount"; then
	check "on a full disk nothing is installed" rejected 1 "nothing was changed" "$installer" --prefix /opt/small --no-service
	umount /opt/small
else
	skip "on a full disk nothing is installed" "no file system can be mounted: $(cat "$work/mount")"
fi
rmdir /opt/small
mkdir /opt/cut
check "an installation is killed" cut_off "$installer" --prefix /opt/cut --providers /opt/cut/lib --no-service
check "the next one succeeds" "$installer" --prefix /opt/cut --providers /opt/cut/lib --no-service
check "it leaves no temporary file" sh -c "! find /opt/cut -name '*.percale-new' | grep ."
check "its removal" "$installer" --prefix /opt/cut --uninstall
check "an installation is killed again" cut_off "$installer" --prefix /opt/cut --providers /opt/cut/lib --no-service
check "removal of what it has written" "$installer" --prefix /opt/cut --uninstall
check "nothing is left of it" rmdir /opt/cut
mkdir -p "$work/dest dir & more/usr/share/doc"
check "install.sh with CDPATH below another folder" sh -c "cd '$work' && CDPATH='/:$work' sh percale-*/install.sh \
	--prefix //usr/ --destdir '$work/dest dir & more' && '$work/dest dir & more/usr/bin/percale' --version"
check "its removal leaves what was there before" sh -c "
	'$installer' --prefix /usr --destdir '$work/dest dir & more' --uninstall &&
	cd '$work/dest dir & more' && find . | sort | tr '\n' ' ' | grep -qx '. ./usr ./usr/share ./usr/share/doc '"

pretend_systemd
check "install.sh with the PATH of su" env PATH="$work/pretended:/usr/bin:/bin" "$installer"
check "shared library in the linker's cache" contains /usr/local/lib/libpindown.so.0 ldconfig -p
check "it starts the socket" grep -qx 'systemctl enable --now pindown-helper.socket' "$work/calls"
check "install.sh again" "$installer"
check "install.sh without ldconfig" contains 'ldconfig is not found' without_ldconfig "$installer"
sed -i '/^sum /d' /usr/local/share/percale/manifest
check "install.sh over an installation without checksums" "$installer"
check "it records them" grep -q '^sum /usr/local/bin/percale ' /usr/local/share/percale/manifest
echo >>/usr/local/include/pindown.h
check "a changed file is not replaced" rejected 1 "/usr/local/include/pindown.h was changed" "$installer"
cp "$work"/percale-*/include/pindown.h /usr/local/include/pindown.h
check "a file with the contents of the new one is replaced" "$installer"
check "percale info" /usr/local/bin/percale info
check "fi_info finds the provider" contains 'provider: percale' fi_info -p percale
check "C example" sh -c "cc '$work'/percale-*/share/doc/percale/examples/verbs.c \
	\$(pkg-config --cflags --libs pindown) -o '$work/verbs' && '$work/verbs'"
: >"$work/calls"
check "a second service is rejected" rejected 1 "/etc/systemd/system/pindown-helper.service belongs to another" \
	"$installer" --prefix /opt/other --providers /opt/other/lib
check "removal of another prefix changes nothing" rejected 1 "nothing is installed in /opt/other" \
	"$installer" --prefix /opt/other --uninstall
files_of /usr/local /etc/systemd >"$work/first"
check "install.sh with another prefix, without the service" \
	"$installer" --prefix /opt/other --providers /opt/other/lib --no-service
check "its removal" "$installer" --prefix /opt/other --uninstall
check "it leaves the first installation" sh -c "[ ! -e /opt/other ] && [ ! -s '$work/calls' ]"
check "it leaves the first installation's files" diff "$work/first" <(files_of /usr/local /etc/systemd)
# As after systemctl enable.
wanted=/etc/systemd/system/sockets.target.wants/pindown-helper.socket
mkdir -p "${wanted%/*}"
ln -s /etc/systemd/system/pindown-helper.socket $wanted
check "dpkg installs a package beside it" left_alone dpkg --install "$packages"/pindown-helper_*.deb
check "it is upgraded" left_alone dpkg --install "$work"/newer/pindown-helper_*.deb
check "it is purged" left_alone dpkg --purge pindown-helper
check "it leaves the archive's socket enabled" sh -c "[ \$(readlink $wanted) = /etc/systemd/system/pindown-helper.socket ]"
rm $wanted
rmdir --ignore-fail-on-non-empty "${wanted%/*}"
provider=$folder/libfabric/libpercale-fi.so
check "a package replaces the provider" dpkg --install "$packages"/libpercale-fi1_*.deb
check "install.sh does not replace the package's file" rejected 1 "$provider belongs to a Debian package" "$installer"
: >"$work/calls"
# systemd reads the command also without options.
sed -i 's/^\(ExecStart=[^ ]*\).*/\1/' /etc/systemd/system/pindown-helper.service
echo >>/usr/local/share/doc/percale/README.md
rm /usr/local/bin/percale
mkdir /usr/local/bin/percale
check "install.sh --uninstall leaves the package's file" kept "belongs to a Debian package" $provider "$installer" --uninstall
check "it stops the socket and the service" \
	called '^systemctl disable --now pindown-helper.socket pindown-helper.service$'
check "the package's files are unchanged" sh -c "! dpkg --verify libpercale-fi1 | grep ."
check "apt removes the package" dpkg --purge libpercale-fi1
readme=/usr/local/share/doc/percale/README.md unit=/etc/systemd/system/pindown-helper.service
check "changed files are kept" \
	sh -c "grep -q '^$readme is kept: it was changed' '$work/kept' && grep -q '^$unit is kept: it was changed' '$work/kept'"
check "a folder in the place of a file is kept" grep -qx "/usr/local/bin/percale is kept: it is a folder now" "$work/kept"
rm $readme $unit
rmdir /usr/local/bin/percale ${readme%/*} /usr/local/share/doc
: >"$work/calls"
mkdir -p /usr/lib/systemd/system
touch /usr/lib/systemd/system/pindown-helper.socket
check "the service of a package is not replaced" rejected 1 "/pindown-helper.socket belongs to another" "$installer"
check "nor stopped" sh -c "! '$installer' --uninstall && [ ! -s '$work/calls' ]"
rm /usr/lib/systemd/system/pindown-helper.socket
end_systemd
check "no file is left" nothing_left "$work/before"

printf '%s passed, %s failed, %s skipped\n' $passed $failed $skipped
rm -rf "$work"
[ $failed = 0 ]
