#!/bin/sh
# Installs percale from this folder, or removes it. It needs a POSIX shell with the usual utilities (cp, find, grep, sed).
set -eu
umask 022
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

The script does not replace files that it has not installed. PREFIX/share/percale/manifest lists those that it has
installed, and the folders that it has made.
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

# Runs a command that concerns the running system, which --destdir does not.
system() {
	concerns_system "$1" || return 0
	"$@" || printf 'install.sh: `%s` failed; run it again when the cause is mended\n' "$*" >&2
}

concerns_system() {
	[ -z "$destdir" ] && [ "$(id -u)" = 0 ] && command -v "$1" >/dev/null
}

uninstall() {
	[ -f "$destdir$manifest" ] || fail "nothing is installed in $destdir${prefix:-/}: $destdir$manifest is missing"
	installed_units=$(sed -n 's|^file \(.*\)/pindown-helper\.service$|\1|p' "$destdir$manifest")
	# The units of another installation have the same names.
	if [ -n "$installed_units" ] && [ -d /run/systemd/system ] &&
		grep -qF -e "=$prefix/sbin/pindown-helper " "$destdir$installed_units/pindown-helper.service" 2>/dev/null; then
		system systemctl disable --now pindown-helper.socket pindown-helper.service
	fi
	folders=
	while read -r kind path; do
		case $kind in
		# The manifest is needed until everything else is removed.
		file) [ "$path" = "$manifest" ] || rm -f "$destdir$path" ;;
		# The last folder that was made is the first that is removed.
		folder) folders="$path
$folders" ;;
		esac
	done <"$destdir$manifest"
	rm -f "$destdir$manifest"
	while read -r folder; do
		# Other files may be there now.
		[ -z "$folder" ] || rmdir "$destdir$folder" 2>/dev/null || true
	done <<END
$folders
END
	system ldconfig
	[ -z "$installed_units" ] || [ ! -d /run/systemd/system ] || system systemctl daemon-reload
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

# Fails if the file cannot be installed.
check_file() {
	[ ! -d "$destdir$1" ] || fail "$destdir$1 is a folder, and a file must be installed there"
	if [ -e "$destdir$1" ] || [ -L "$destdir$1" ]; then
		recorded "file $1" ||
			fail "$destdir$1 exists, and this script did not install it: remove it (perhaps it belongs to a package), or use another folder"
	fi
	folder=$(dirname "$destdir$1")
	while [ ! -e "$folder" ]; do
		folder=$(dirname "$folder")
	done
	[ -d "$folder" ] || fail "$folder is no folder, so $destdir$1 cannot be installed"
	[ -w "$folder" ] && [ -x "$folder" ] ||
		fail "$destdir$1 cannot be installed, because $folder is not writable: run as root, or use other folders (--prefix, --providers) and --no-service"
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
	mkdir -p "$destdir$1"
	[ -z "$made" ] || printf '%s\n' "$made" >>"$destdir$manifest"
}

list=$(files)
# Nothing is installed unless everything can be installed.
[ $service = no ] || check_units
while read -r mode file to; do
	case $mode in
	link) ;;
	*) [ -f "$from/$file" ] || fail "$from is incomplete: $file is missing" ;;
	esac
	check_file "$to"
done <<END
$list
END
recorded "file $manifest" || check_file "$manifest"

mkdir -p "$destdir/"
make_folder "$(dirname "$manifest")"
record "file $manifest"
new=
trap '[ -z "$new" ] || rm -f "$new"' EXIT
trap 'exit 1' HUP INT TERM
while read -r mode file to; do
	make_folder "$(dirname "$to")"
	record "file $to"
	new=$destdir$to.new.$$
	# A link that exists there would be followed.
	rm -f "$new"
	case $mode:$file in
	link:*) ln -s "$file" "$new" ;;
	# The units name the folder of the program.
	*:service/*.service) sed "s|/usr/sbin/|$prefix/sbin/|g" "$from/$file" >"$new" ;;
	*:*.in) sed "s|@prefix@|$prefix|g" "$from/$file" >"$new" ;;
	*) cp "$from/$file" "$new" ;;
	esac
	[ "$mode" = link ] || chmod "$mode" "$new"
	# A running program keeps the old file, because the new one is another file.
	mv -f "$new" "$destdir$to"
	new=
done <<END
$list
END
system ldconfig
if [ $service = yes ]; then
	system systemd-sysusers "$prefix/lib/sysusers.d/pindown-helper.conf"
	! concerns_system systemd-tmpfiles || [ -d /run/pindown ] || record "folder /run/pindown"
	system systemd-tmpfiles --create "$prefix/lib/tmpfiles.d/pindown-helper.conf"
	if [ -d /run/systemd/system ]; then
		system systemctl daemon-reload
		system systemctl enable --now pindown-helper.socket
	fi
fi
echo "percale is installed in $destdir${prefix:-/}, and its provider for libfabric in $destdir$providers"
if [ -z "$destdir" ] && command -v fi_info >/dev/null && ! fi_info -p percale >/dev/null 2>&1; then
	echo "libfabric does not find the provider there. Set FI_PROVIDER_PATH=$providers, or install it with --providers"
fi
