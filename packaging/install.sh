#!/bin/sh
# Installs percale from this folder, or removes it. It needs a POSIX shell with the usual utilities (cksum, find, grep,
# readlink, sed).
#
# The manifest has these lines:
#   file PATH               a file that this script installed
#   sum PATH CRC SIZE       its checksum, of each version that was installed there
#   sum PATH link TARGET    the same for a link
#   folder PATH             a folder that this script made
#
# 1. A line `sum` is written before its line `file`, and both before the file or its temporary file exists. A folder is
#    recorded before it is made, except that of the manifest. So an installation that was killed can be continued or
#    removed.
# 2. A file with another checksum is not the one that was installed. It is neither replaced nor removed.
# 3. A file without lines `sum` was installed by an older version of this script.
set -eu
umask 022
# ldconfig and the tools of systemd may be missing in the PATH of su(1) and of ordinary users.
PATH=$PATH:/usr/sbin:/sbin
# The range A-Z means these 26 letters, and messages of other programs are in English.
export LC_ALL=C

usage() {
	cat <<'END'
Usage: ./install.sh [--prefix DIR] [--providers DIR] [--destdir DIR] [--no-service] [--uninstall]

Installs percale, libpindown, pindown-helper and the provider for libfabric.

  --prefix DIR     the folder for bin, lib, include and share (/usr/local)
  --providers DIR  the folder in which libfabric looks for providers (what fi_info -e prints, otherwise PREFIX/lib/libfabric)
  --destdir DIR    a folder that takes the place of / (for packages)
  --no-service     leaves out pindown-helper and its systemd units
  --uninstall      removes what this script installed with the same --prefix and --destdir
  --help           prints this text

The script neither replaces nor removes files that it has not installed, files that were changed since, and files of
Debian packages. PREFIX/share/percale/manifest lists those that it has installed, and the folders that it has made.
END
}

fail() {
	printf 'install.sh: %s\n' "$1" >&2
	exit "${2:-1}"
}

# Units, pkg-config, sed and the manifest have different rules for other characters.
valid() {
	case $2 in
	*[!A-Za-z0-9/._+~@:,-]*)
		fail "$1 $2: the folder may contain only letters, digits and the characters / . _ + ~ @ : , -" 2
		;;
	*/./* | */../* | */. | */..) fail "$1 $2: the folder may not contain . or .. as a component" 2 ;;
	esac
}

prefix=/usr/local destdir= providers= service=yes action=install
while [ $# -gt 0 ]; do
	case $1 in
	--prefix | --providers | --destdir)
		[ $# -gt 1 ] || fail "$1 needs a folder; see --help" 2
		case $2 in
		/*) ;;
		*) fail "$1 $2: the folder must begin with /" 2 ;;
		esac
		case $1 in
		--prefix) prefix=$2 ;;
		--providers) providers=$2 ;;
		--destdir) destdir=${2%/} ;;
		esac
		shift
		;;
	--no-service) service=no ;;
	--uninstall) action=uninstall ;;
	--help | -h)
		usage
		exit 0
		;;
	*) fail "unknown option $1; see --help" 2 ;;
	esac
	shift
done
valid --prefix "$prefix"
valid --providers "$providers"
# One name for each folder: without // and a final /.
prefix=$(printf '%s\n' "$prefix" | sed 's|//*|/|g; s|/$||')
case $providers in
*[!/]* | '') ;;
*) fail "--providers $providers: the folder of providers cannot be /" 2 ;;
esac
providers=$(printf '%s\n' "$providers" | sed 's|//*|/|g; s|/$||')

# With CDPATH, cd(1) can print the folder, or choose another one.
from=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
manifest=$prefix/share/percale/manifest

# Returns whether the manifest has this line.
recorded() {
	[ -f "$destdir$manifest" ] && grep -qxF -e "$1" "$destdir$manifest"
}

record() {
	recorded "$1" || printf '%s\n' "$1" >>"$destdir$manifest"
}

recorded_files() {
	[ ! -f "$destdir$manifest" ] || sed -n 's/^file //p' "$destdir$manifest"
}

exists() {
	[ -e "$1" ] || [ -L "$1" ]
}

# The temporary file from which a file is made. libfabric, ldconfig and systemd do not read files of such names.
temporary() {
	printf '%s\n' "$destdir${1%/*}/.${1##*/}.percale-new"
}

# Removes the temporary files of an installation that was killed.
remove_temporary() {
	recorded_files | while read -r path; do
		rm -f "$(temporary "$path")"
	done
}

# The end of the line `sum` for a file.
fingerprint() {
	if [ -L "$1" ]; then
		printf 'link %s\n' "$(readlink "$1")"
	else
		cksum <"$1"
	fi
}

has_sum() {
	grep -qF -e "sum $1 " "$destdir$manifest"
}

# Returns whether the file that exists at this path is one that this script installed.
unchanged() {
	has_sum "$1" || return 0
	found=$(fingerprint "$destdir$1" 2>/dev/null) && recorded "sum $1 $found"
}

# The names under which a Debian package may have the file: without links in the name of the folder, and without /usr if
# /lib is a link to /usr/lib.
package_names() {
	printf '%s\n' "$1"
	folder=$(CDPATH= cd -P -- "$destdir${1%/*}/" 2>/dev/null && pwd -P) || return 0
	root=$(CDPATH= cd -P -- "$destdir/" && pwd -P)
	folder=${folder#"${root%/}"}
	name=${folder%/}/${1##*/}
	printf '%s\n' "$name"
	case $name in
	/usr/*) printf '%s\n' "${name#/usr}" ;;
	esac
}

# Finds those files of Debian packages that have one of these paths.
find_packaged() {
	packaged=
	[ -d "$destdir/var/lib/dpkg/info" ] && command -v dpkg-query >/dev/null || return 0
	names=$(printf '%s\n' "$1" | while read -r path; do package_names "$path"; done)
	# One argument for each line.
	set -f
	IFS='
'
	# The status is that of the files that no package has.
	packaged=$(dpkg-query --admindir="$destdir/var/lib/dpkg" --search -- $names 2>/dev/null | sed 's|^[^/]*: /|/|') || true
	unset IFS
	set +f
}

is_packaged() {
	[ -n "$packaged" ] || return 1
	package_names "$1" | (
		while read -r name; do
			! printf '%s\n' "$packaged" | grep -qxF -e "$name" || exit 0
		done
		exit 1
	)
}

# Prints why the file of this path must be kept, or nothing if this script can remove it.
foreign() {
	if is_packaged "$1"; then
		echo "it belongs to a Debian package"
	elif [ -d "$destdir$1" ] && [ ! -L "$destdir$1" ]; then
		echo "it is a folder now"
	elif exists "$destdir$1" && ! unchanged "$1"; then
		echo "it was changed or replaced since this script installed it"
	fi
}

# Returns whether commands concern the running system. With --destdir they do not.
concerns_system() {
	[ -z "$destdir" ] && [ "$(id -u)" = 0 ]
}

# Runs a command that concerns the running system.
system() {
	concerns_system || return 0
	if ! command -v "$1" >/dev/null; then
		printf 'install.sh: %s is not found in %s; run `%s` when it is installed\n' "$1" "$PATH" "$*" >&2
	else
		"$@" || printf 'install.sh: `%s` failed; run it again when the cause is mended\n' "$*" >&2
	fi
}

# Returns whether systemd runs the program of this prefix, under this or another unit file.
runs_service() {
	concerns_system && [ -d /run/systemd/system ] &&
		systemctl show --property=ExecStart pindown-helper.service 2>/dev/null | grep -qF -e "path=$prefix/sbin/pindown-helper "
}

uninstall() {
	[ -f "$destdir$manifest" ] || fail "nothing is installed in $destdir${prefix:-/}: $destdir$manifest is missing"
	find_packaged "$(recorded_files)"
	unit=$(recorded_files | sed -n '/\/pindown-helper\.service$/p')
	# If the unit and the program are kept, the service is that of another installation.
	if [ -n "$unit" ] && runs_service &&
		{ [ -z "$(foreign "$unit")" ] || [ -z "$(foreign "$prefix/sbin/pindown-helper")" ]; }; then
		system systemctl disable --now pindown-helper.socket pindown-helper.service
	fi
	remove_temporary
	folders= complete=yes
	while read -r kind path rest; do
		case $kind in
		file)
			# The manifest is needed until everything else is removed.
			[ "$path" != "$manifest" ] || continue
			reason=$(foreign "$path")
			if [ -n "$reason" ]; then
				echo "$destdir$path is kept: $reason"
			else
				rm -f "$destdir$path" || complete=no
			fi
			;;
		# The last folder that was made is the first that is removed.
		folder) folders="$path
$folders" ;;
		esac
	done <"$destdir$manifest"
	[ $complete = yes ] || fail "percale is not removed completely: run this again when the cause is mended"
	rm -f "$destdir$manifest"
	while read -r folder; do
		# Other files may be there now.
		[ -z "$folder" ] || rmdir "$destdir$folder" 2>/dev/null || true
	done <<END
$folders
END
	system ldconfig
	[ -z "$unit" ] || [ ! -d /run/systemd/system ] || system systemctl daemon-reload
	echo "percale is removed from $destdir${prefix:-/}"
}

if [ $action = uninstall ]; then
	uninstall
	exit 0
fi

[ -x "$from/bin/percale" ] || fail "$from is not an unpacked archive of percale: bin/percale is missing"

# libfabric's folder of providers: the default that fi_info prints.
if [ -z "$providers" ] && command -v fi_info >/dev/null; then
	providers=$(fi_info -e 2>/dev/null | sed -n 's/.*(default: \(\/[^:)]*\)).*/\1/p' | sed -n '/libfabric$/{p;q;}')
	valid "the folder that fi_info names, which --providers replaces:" "$providers"
fi
providers=${providers:-$prefix/lib/libfabric}
units=/etc/systemd/system
[ "$prefix" = /usr ] && units=/usr/lib/systemd/system

# Each line: the mode, the file in this folder, the installed file. The mode `link` is that of a link to the file.
files() {
	(cd "$from" && find bin lib/libpindown.* include share -type f) | while read -r file; do
		case $file in
		bin/*) mode=755 ;;
		*) mode=644 ;;
		esac
		case $file in
		*/pindown-helper.8) [ $service = yes ] || continue ;;
		esac
		printf '%s %s %s\n' $mode "$file" "$prefix/$file"
	done
	printf '%s %s %s\n' link libpindown.so.0 "$prefix/lib/libpindown.so"
	printf '%s %s %s\n' 644 pindown.pc.in "$prefix/lib/pkgconfig/pindown.pc"
	printf '%s %s %s\n' 644 lib/libfabric/libpercale-fi.so "$providers/libpercale-fi.so"
	[ $service = yes ] || return 0
	printf '%s %s %s\n' 755 sbin/pindown-helper "$prefix/sbin/pindown-helper"
	printf '%s %s %s\n' 644 service/pindown-helper.service "$units/pindown-helper.service"
	printf '%s %s %s\n' 644 service/pindown-helper.socket "$units/pindown-helper.socket"
	printf '%s %s %s\n' 644 service/pindown-helper.sysusers "$prefix/lib/sysusers.d/pindown-helper.conf"
	printf '%s %s %s\n' 644 service/pindown-helper.tmpfiles "$prefix/lib/tmpfiles.d/pindown-helper.conf"
}

# Fails if another installation has units of the same names: systemd knows one unit of each name.
check_units() {
	for folder in /etc/systemd/system /usr/local/lib/systemd/system /usr/lib/systemd/system /lib/systemd/system; do
		# /lib is a link to /usr/lib on most systems.
		[ "$folder" != /lib/systemd/system ] || [ ! -L "$destdir/lib" ] || continue
		for unit in pindown-helper.service pindown-helper.socket; do
			[ -e "$destdir$folder/$unit" ] || [ -L "$destdir$folder/$unit" ] || continue
			recorded "file $folder/$unit" ||
				fail "$destdir$folder/$unit belongs to another installation of pindown-helper: remove that one, or use --no-service"
		done
	done
}

# Prints the contents of an installed file.
contents() {
	case $1:$2 in
	# The units name the folder of the program.
	*:service/*.service) sed "s|/usr/sbin/|$prefix/sbin/|g" "$from/$2" ;;
	*:*.in) sed "s|@prefix@|$prefix|g" "$from/$2" ;;
	*) cat "$from/$2" ;;
	esac
}

# The end of the line `sum` for a file that is to be installed.
new_fingerprint() {
	case $1 in
	link) printf 'link %s\n' "$2" ;;
	*) contents "$1" "$2" | cksum ;;
	esac
}

# Fails if a file cannot be installed at this path.
check_path() {
	! is_packaged "$1" || fail "$destdir$1 belongs to a Debian package: remove the package, or use another folder (--prefix, --providers)"
	[ ! -d "$destdir$1" ] || fail "$destdir$1 is a folder, and a file must be installed there"
	! exists "$destdir$1" || recorded "file $1" ||
		fail "$destdir$1 exists, and this script did not install it: remove it (perhaps it belongs to a package), or use another folder"
	for above in "$prefix" "$providers" "$units"; do
		case $above/ in
		"$1"/*) fail "$destdir$above cannot be a folder, because the file $destdir$1 must be installed there" ;;
		esac
	done
	folder=$(dirname "$destdir$1")
	until exists "$folder"; do
		folder=$(dirname "$folder")
	done
	[ -e "$folder" ] || fail "$folder is a link to something that does not exist, so $destdir$1 cannot be installed"
	[ -d "$folder" ] || fail "$folder is no folder, so $destdir$1 cannot be installed"
	[ -w "$folder" ] && [ -x "$folder" ] ||
		fail "$destdir$1 cannot be installed, because $folder is not writable: run as root, or use other folders (--prefix, --providers) and --no-service"
}

# Fails if the file of the archive cannot be installed at this path.
check_file() {
	check_path "$3"
	! exists "$destdir$3" || unchanged "$3" || [ "$(fingerprint "$destdir$3")" = "$(new_fingerprint "$1" "$2")" ] ||
		fail "$destdir$3 was changed or replaced since this script installed it: move it to another folder, or remove it"
}

# Prints the lines of the manifest for the folders that do not exist yet, the outermost first.
missing_folders() {
	[ -d "$destdir$1" ] || {
		missing_folders "$(dirname "$1")"
		printf 'folder %s\n' "$1"
	}
}

make_folder() {
	made=$(missing_folders "$1")
	[ -n "$made" ] || return 0
	new_folders="$new_folders
$(printf '%s\n' "$made" | sed 's/^folder //')"
	[ "$1" != "${manifest%/*}" ] || mkdir -p "$destdir$1" || fail "the folder $destdir$1 cannot be made"
	printf '%s\n' "$made" >>"$destdir$manifest"
	mkdir -p "$destdir$1" || fail "the folder $destdir$1 cannot be made"
}

# Reports an installation that has ended early, and removes its temporary files.
ended_early() {
	remove_temporary || true
	[ $renaming = no ] || {
		echo "install.sh: the installation is incomplete: run it again, or remove it (--uninstall)" >&2
		return
	}
	[ $first = no ] || rm -f "$destdir$manifest"
	# The last folder that was made is the first that is removed.
	printf '%s\n' "$new_folders" | sed '1!G;h;$!d' | while read -r folder; do
		[ -z "$folder" ] || rmdir "$destdir$folder" 2>/dev/null || true
	done
	echo "install.sh: nothing was changed" >&2
}

list=$(files)
find_packaged "$(printf '%s\n' "$list" | sed 's/.* //'; recorded_files)"
# Nothing is installed unless everything can be installed.
[ $service = no ] || check_units
while read -r mode file to; do
	case $mode in
	link) ;;
	*) [ -f "$from/$file" ] || fail "$from is incomplete: $file is missing" ;;
	esac
	check_file "$mode" "$file" "$to"
done <<END
$list
END
check_path "$manifest"

mkdir -p "$destdir/"
first=no renaming=no new_folders=
[ -f "$destdir$manifest" ] || first=yes
trap ended_early EXIT
trap 'exit 1' HUP INT TERM
make_folder "$(dirname "$manifest")"
record "file $manifest"
remove_temporary
# All files are written before the first one is renamed, so that a full disk changes nothing.
while read -r mode file to; do
	make_folder "$(dirname "$to")"
	# An older version of this script did not record what it installed.
	! recorded "file $to" || has_sum "$to" || ! exists "$destdir$to" || record "sum $to $(fingerprint "$destdir$to")"
	record "sum $to $(new_fingerprint "$mode" "$file")"
	record "file $to"
	new=$(temporary "$to")
	# A link that exists there would be followed.
	rm -f "$new"
	case $mode in
	link) ln -s "$file" "$new" ;;
	*)
		contents "$mode" "$file" >"$new"
		chmod "$mode" "$new"
		;;
	esac
done <<END
$list
END
renaming=yes
while read -r mode file to; do
	# A running program keeps the old file, because the new one is another file.
	mv -f "$(temporary "$to")" "$destdir$to"
done <<END
$list
END
trap - EXIT HUP INT TERM
system ldconfig
if [ $service = yes ]; then
	# A machine without systemd has no use for these.
	if [ -d /run/systemd/system ] || command -v systemd-sysusers >/dev/null; then
		system systemd-sysusers "$prefix/lib/sysusers.d/pindown-helper.conf"
	fi
	if [ -d /run/systemd/system ] || command -v systemd-tmpfiles >/dev/null; then
		! concerns_system || [ -d /run/pindown ] || record "folder /run/pindown"
		system systemd-tmpfiles --create "$prefix/lib/tmpfiles.d/pindown-helper.conf"
	fi
	if [ -d /run/systemd/system ]; then
		system systemctl daemon-reload
		system systemctl enable --now pindown-helper.socket
	fi
fi
echo "percale is installed in $destdir${prefix:-/}, and its provider for libfabric in $destdir$providers"
if [ -z "$destdir" ] && command -v fi_info >/dev/null && ! fi_info -p percale >/dev/null 2>&1; then
	echo "libfabric does not find the provider there. Set FI_PROVIDER_PATH=$providers, or install it with --providers"
fi
