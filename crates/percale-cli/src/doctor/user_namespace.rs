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
        Err(error) => {
            let setting = fs::read_to_string("/proc/sys/kernel/unprivileged_userns_clone").unwrap_or_default();
            refused(error, setting.trim() == "0", surroundings)
        }
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
