//! Forks of this process while its memory is registered.

#![expect(unsafe_code, reason = "forks, and waits for its children; each block states why it is sound")]

use std::io;

use pindown::Range;

/// A fork of this process. It is killed when this is dropped.
pub(super) struct Fork(libc::pid_t);

impl Fork {
    /// Forks. If a range and its page size are given, the child writes to each page of the range and exits. Otherwise
    /// the child waits.
    pub(super) fn of(written: Option<(Range, u64)>) -> io::Result<Self> {
        // SAFETY: the call returns a number and accesses no memory.
        let parent = unsafe { libc::getpid() };
        // SAFETY: the child makes system calls and writes to memory that contains no Rust value. It does not allocate,
        // and takes no lock that a thread of its parent may have held.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // A waiting child is killed when its parent ends, for any reason. SAFETY: the call requests a signal
                // and accesses no memory.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                // SAFETY: the call returns a number and accesses no memory.
                let orphaned = unsafe { libc::getppid() } != parent;
                if let Some((range, unit)) = written {
                    // In a race another thread may have unmapped the range. The child then ends without a report of a
                    // handler that it inherited. SAFETY: the call sets a default action, and accesses no memory.
                    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
                    for page in (range.start()..range.end()).step_by(unit as usize) {
                        let word = std::ptr::without_provenance_mut::<u64>(page as usize);
                        // SAFETY: the word is in the range, which contains no Rust value. If it is not mapped, the
                        // write ends the child.
                        unsafe { word.write_volatile(!0) };
                    }
                } else if !orphaned {
                    // SAFETY: the call waits for a signal.
                    unsafe { libc::pause() };
                }
                // SAFETY: the call ends the child, and runs no code of its parent.
                unsafe { libc::_exit(0) }
            }
            child => Ok(Self(child)),
        }
    }

    /// Makes a child that waits until it is killed.
    pub(super) fn that_waits() -> io::Result<Self> {
        Self::of(None)
    }

    /// Waits until the child has ended. Fails if its exit status is not 0.
    pub(super) fn wait(self) -> io::Result<()> {
        let mut status = 0;
        // SAFETY: the kernel may write the status to the given variable.
        let ended = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        let whole = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        std::mem::forget(self);
        match (ended, whole) {
            (-1, _) => Err(io::Error::last_os_error()),
            (_, true) => Ok(()),
            (_, false) => Err(io::Error::other(format!("the child ended with status {status:#x}"))),
        }
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        // SAFETY: the child has not been waited for, so the process ID is still its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: with a null pointer, the kernel does not write the status.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}
