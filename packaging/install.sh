#!/bin/sh
# Installs percale from this folder, or removes it. It needs a POSIX shell, install(1) and sed(1).
set -eu
umask 022

usage() {
	cat <<'END'
Usage: ./install.sh [--prefix DIR] [--providers DIR] [--destdir DIR] [--no-service] [--uninstall]

Installs percale, libpindown, pindown-helper and the provider for libfabric.

  --prefix DIR     the folder for bin, lib, include and share (/usr/local)
  --providers DIR  the folder in which libfabric looks for providers (what fi_info -e prints, otherwise PREFIX/lib/libfabric)
  --destdir DIR    a folder that takes the place of / (for packages)
  --no-service     leaves out pindown-helper and its systemd units
  --uninstall      removes what an earlier run with the same options installed
  --help           prints this text
END
}

fail() {
	printf 'install.sh: %s\n' "$1" >&2
	exit "${2:-1}"
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
		--prefix) prefix=${2%/} ;;
		--providers) providers=${2%/} ;;
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

from=$(cd "$(dirname "$0")" && pwd)
[ -x "$from/bin/percale" ] || fail "$from is not an unpacked archive of percale: bin/percale is missing"

# libfabric's folder of providers: the default that fi_info prints.
if [ -z "$providers" ] && command -v fi_info >/dev/null; then
	providers=$(fi_info -e 2>/dev/null | sed -n 's/.*(default: \(\/[^:)]*\)).*/\1/p' | sed -n '/libfabric$/{p;q;}')
fi
providers=${providers:-$prefix/lib/libfabric}
units=/etc/systemd/system
[ "$prefix" = /usr ] && units=/usr/lib/systemd/system

# Each line: the mode, the file in this folder, the installed file.
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
	printf '%s %s %s\n' 644 lib/libfabric/libpercale-fi.so "$providers/libpercale-fi.so"
	[ $service = yes ] || return 0
	printf '%s %s %s\n' 755 sbin/pindown-helper "$prefix/sbin/pindown-helper"
	printf '%s %s %s\n' 644 service/pindown-helper.service "$units/pindown-helper.service"
	printf '%s %s %s\n' 644 service/pindown-helper.socket "$units/pindown-helper.socket"
	printf '%s %s %s\n' 644 service/pindown-helper.sysusers "$prefix/lib/sysusers.d/pindown-helper.conf"
	printf '%s %s %s\n' 644 service/pindown-helper.tmpfiles "$prefix/lib/tmpfiles.d/pindown-helper.conf"
}

link=$prefix/lib/libpindown.so description=$prefix/lib/pkgconfig/pindown.pc

# Runs a command that concerns the running system, which --destdir does not.
system() {
	[ -z "$destdir" ] && [ "$(id -u)" = 0 ] && command -v "$1" >/dev/null || return 0
	"$@" || printf 'install.sh: `%s` failed; run it again when the cause is mended\n' "$*" >&2
}

if [ $action = uninstall ]; then
	[ $service = no ] || [ ! -d /run/systemd/system ] || system systemctl disable --now pindown-helper.socket pindown-helper.service
	files | while read -r _ _ to; do
		rm -f "$destdir$to"
	done
	rm -f "$destdir$link" "$destdir$description"
	# Folders that only percale used: rmdir(1) leaves the others.
	for folder in share/doc/percale/examples share/doc/percale share/doc share/bash-completion/completions \
		share/bash-completion share/zsh/site-functions share/zsh share/fish/vendor_completions.d share/fish \
		share/man/man1 share/man/man7 share/man/man8 lib/pkgconfig lib/sysusers.d lib/tmpfiles.d; do
		rmdir "$destdir$prefix/$folder" 2>/dev/null || true
	done
	rmdir "$destdir$providers" 2>/dev/null || true
	system ldconfig
	[ $service = no ] || [ ! -d /run/systemd/system ] || system systemctl daemon-reload
	echo "percale is removed from $destdir$prefix"
	exit 0
fi

files | while read -r mode file to; do
	mkdir -p "$(dirname "$destdir$to")"
	case $file in
	# The units name the folder of the program.
	service/*.service) sed "s|/usr/sbin/|$prefix/sbin/|g" "$from/$file" >"$destdir$to.new" ;;
	*) cp "$from/$file" "$destdir$to.new" ;;
	esac
	chmod "$mode" "$destdir$to.new"
	# A running program keeps the old file, because the new one is another file.
	mv "$destdir$to.new" "$destdir$to"
done
ln -sf libpindown.so.0 "$destdir$link"
mkdir -p "$(dirname "$destdir$description")"
sed "s|@prefix@|$prefix|g" "$from/pindown.pc.in" >"$destdir$description"
chmod 644 "$destdir$description"
system ldconfig
if [ $service = yes ]; then
	system systemd-sysusers "$prefix/lib/sysusers.d/pindown-helper.conf"
	system systemd-tmpfiles --create "$prefix/lib/tmpfiles.d/pindown-helper.conf"
	if [ -d /run/systemd/system ]; then
		system systemctl daemon-reload
		system systemctl enable --now pindown-helper.socket
	fi
fi
echo "percale is installed in $destdir$prefix, and its provider for libfabric in $destdir$providers"
if [ -z "$destdir" ] && command -v fi_info >/dev/null && ! fi_info -p percale >/dev/null 2>&1; then
	echo "libfabric does not find the provider there. Set FI_PROVIDER_PATH=$providers, or install it with --providers"
fi
