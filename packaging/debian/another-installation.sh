# Returns whether the units pindown-helper.* belong to another installation (./install.sh): their program is another one.
# systemd prefers units in /etc/systemd/system to those of the package.
another_installation() {
	if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
		program=$(systemctl show --property=ExecStart pindown-helper.service 2>/dev/null |
			sed -n 's/.*path=\([^ ;]*\).*/\1/p')
	else
		program=$(cat "${DPKG_ROOT:-}/etc/systemd/system/pindown-helper.service" 2>/dev/null |
			sed -n 's/^ExecStart=[-@:+!]*\([^[:blank:]]*\).*/\1/p')
	fi
	[ -n "$program" ] && [ "$program" != /usr/sbin/pindown-helper ]
}
