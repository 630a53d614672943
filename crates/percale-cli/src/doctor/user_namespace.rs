//! Check of user namespaces. percale does not need them, but rootless containers (Podman, Apptainer) do.

#![expect(unsafe_code, reason = "unshare(2) has no safe wrapper; the block states its own reason")]

use std::fs;

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use super::finding::{Finding, Remedy};
use super::surroundings::Surroundings;

const CHECK: &str = "user-namespaces";

/// Makes a user namespace for this process, which ends after the check.
pub(super) fn finding(surroundings: &Surroundings) -> Finding {
    // SAFETY: the flag changes no table of descriptors, and this process has one thread.
    match unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) } {
        Ok(()) => Finding::works(CHECK, "a process may create one"),
        Err(error) => {
            let setting = fs::read_to_string("/proc/sys/kernel/unprivileged_userns_clone").unwrap_or_default();
            refused(error, setting.trim() == "0", surroundings)
        }
    }
}

fn refused(error: Errno, is_turned_off: bool, surroundings: &Surroundings) -> Finding {
    let detail = format!(
        "unshare failed: {}; rootless containers (Podman, Apptainer) do not start; percale does not need them",
        std::io::Error::from(error)
    );
    let remedy = match error {
        Errno::NOSPC => Remedy::new(
            "Permit more user namespaces (each level of containers has its own limit):",
            [surroundings.as_root("sysctl user.max_user_namespaces=16384")],
        ),
        Errno::INVAL | Errno::NOSYS => {
            Remedy::new("Install a kernel with CONFIG_USER_NS (of Debian):", [surroundings.install_kernel()])
        }
        _ if is_turned_off => Remedy::new(
            "Permit user namespaces of ordinary users:",
            [surroundings.as_root("sysctl kernel.unprivileged_userns_clone=1")],
        ),
        _ => surroundings.allow_calls("unshare"),
    };
    Finding::limited(CHECK, detail, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_command() {
        let user = Surroundings::example();
        let command = |error, off| refused(error, off, &user).remedy.unwrap().commands[0].clone();
        assert_eq!(command(Errno::NOSPC, false), "sudo sysctl user.max_user_namespaces=16384");
        assert_eq!(command(Errno::PERM, true), "sudo sysctl kernel.unprivileged_userns_clone=1");
        assert!(command(Errno::PERM, false).contains("systemctl edit"));
        assert!(command(Errno::INVAL, false).contains("linux-image"));
    }
}
