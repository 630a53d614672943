//! Check of user namespaces. percale does not need them, but rootless containers (Podman, Apptainer) do.

#![expect(unsafe_code, reason = "unshare(2) and fork(2) have no safe wrappers; each block states its own reason")]

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use super::finding::{Finding, Remedy};
use super::surroundings::Surroundings;

const CHECK: &str = "user-namespaces";

/// Makes a user namespace for a child process.
///
/// # Errors
/// Fails if the child cannot be made.
pub(super) fn finding(surroundings: &Surroundings) -> io::Result<Finding> {
    Ok(match unshare_in_child()? {
        Ok(()) => Finding::works(CHECK, "a process may create one"),
        Err(error) => refused(error, Obstacle::find(), surroundings),
    })
}

/// Makes the call in a child, because the kernel permits it only to a process with one thread. This process has
/// another one if its stack is small. Ends this process if the call ends the child.
fn unshare_in_child() -> io::Result<Result<(), Errno>> {
    // SAFETY: the child makes two system calls. It does not allocate, and takes no lock that a thread of its parent may
    // have held.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: the flag changes no table of descriptors, and the child has one thread.
            let made = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) };
            // SAFETY: the call ends the child, and runs no code of its parent. Error numbers are below 256.
            unsafe { libc::_exit(made.map_or_else(Errno::raw_os_error, |()| 0)) }
        }
        child => child,
    };
    let mut status = 0;
    // SAFETY: the kernel may write the status to the given variable.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    if libc::WIFSIGNALED(status) {
        // The parent of this process finds out that a filter ends processes by this signal. SAFETY: the call sends a
        // signal to this thread.
        unsafe { libc::raise(libc::WTERMSIG(status)) };
    }
    Ok(match libc::WEXITSTATUS(status) {
        0 => Ok(()),
        error => Err(Errno::from_raw_os_error(error)),
    })
}

/// What makes the kernel return EPERM, besides a system call filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Obstacle {
    /// A setting of kernels of Debian and others.
    TurnedOff,
    /// A setting of AppArmor. It does not apply to root.
    Restricted,
    /// The root directory of this process is not that of its mounts.
    Chroot,
}

impl Obstacle {
    fn find() -> Option<Self> {
        let setting = |name: &str| fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        let is_root = rustix::process::geteuid().is_root();
        if is_chroot() {
            Some(Self::Chroot)
        } else if setting("unprivileged_userns_clone").trim() == "0" {
            Some(Self::TurnedOff)
        } else if !is_root && setting("apparmor_restrict_unprivileged_userns").trim() == "1" {
            Some(Self::Restricted)
        } else {
            None
        }
    }
}

/// Returns whether this process runs in a chroot: nothing is mounted at its root directory. (A chroot whose directory is
/// a mount is not recognized.)
fn is_chroot() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    !mounts.is_empty() && !mounts.lines().any(|line| line.split(' ').nth(4) == Some("/"))
}

fn refused(error: Errno, obstacle: Option<Obstacle>, surroundings: &Surroundings) -> Finding {
    let reason = match (error, obstacle) {
        (Errno::PERM, Some(Obstacle::Chroot)) => ", because this is a chroot",
        (Errno::PERM, None) => " (by a filter, a security module, or because this is a chroot)",
        _ => "",
    };
    let detail = format!(
        "unshare failed: {}{reason}; rootless containers (Podman, Apptainer) do not start; percale does not need them",
        std::io::Error::from(error)
    );
    let remedy = match (error, obstacle) {
        (Errno::NOSPC, _) => Remedy::new(
            "Permit more user namespaces (each level of containers has its own limit):",
            [surroundings.as_root("sysctl user.max_user_namespaces=16384")],
        ),
        (Errno::INVAL | Errno::NOSYS, _) => {
            Remedy::new("Install a kernel with CONFIG_USER_NS (of Debian):", [surroundings.install_kernel()])
        }
        (Errno::PERM, Some(Obstacle::Chroot)) => Remedy::new(
            "Start programs in DIRECTORY as in a container, instead of by chroot:",
            [surroundings.as_root("systemd-nspawn --directory=DIRECTORY PROGRAM")],
        ),
        (_, Some(Obstacle::TurnedOff)) => Remedy::new(
            "Permit user namespaces of ordinary users:",
            [surroundings.as_root("sysctl kernel.unprivileged_userns_clone=1")],
        ),
        (_, Some(Obstacle::Restricted)) => Remedy::new(
            "Permit user namespaces of ordinary users:",
            [surroundings.as_root("sysctl kernel.apparmor_restrict_unprivileged_userns=0")],
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
        let command = |error, obstacle| refused(error, obstacle, &user).remedy.unwrap().commands[0].clone();
        assert_eq!(command(Errno::NOSPC, None), "sudo sysctl user.max_user_namespaces=16384");
        let turned_off = command(Errno::PERM, Some(Obstacle::TurnedOff));
        assert_eq!(turned_off, "sudo sysctl kernel.unprivileged_userns_clone=1");
        let restricted = command(Errno::ACCESS, Some(Obstacle::Restricted));
        assert_eq!(restricted, "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0");
        assert!(command(Errno::PERM, Some(Obstacle::Chroot)).contains("systemd-nspawn"));
        assert!(command(Errno::PERM, None).contains("systemctl edit"));
        assert!(command(Errno::INVAL, None).contains("linux-image"));
    }
}
