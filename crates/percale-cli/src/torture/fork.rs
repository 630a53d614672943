//! Forks of this process, while memory of it is registered.

#![expect(unsafe_code, reason = "forks, and waits for its children; each block states why it is sound")]

use std::io;

use pindown::Range;

/// A fork of this process, which ends with its owner.
pub(super) struct Fork(libc::pid_t);

impl Fork {
    /// Forks. The child writes to each page, of so many bytes, of these addresses in a lot, and ends; without addresses it waits.
    pub(super) fn of(written: Option<(Range, u64)>) -> io::Result<Self> {
        // SAFETY: asks for a number.
        let parent = unsafe { libc::getpid() };
        // SAFETY: the child makes system calls and writes to memory in which no value lies, and nothing else: it neither
        // allocates nor takes a lock that a thread of its parent may have held.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // A waiting child ends with its parent, for whatever reason the parent ends.
                // SAFETY: asks for a signal; touches no memory.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                // SAFETY: asks for a number.
                let orphaned = unsafe { libc::getppid() } != parent;
                if let Some((range, unit)) = written {
                    for page in (range.start()..range.end()).step_by(unit as usize) {
                        let word = std::ptr::without_provenance_mut::<u64>(page as usize);
                        // SAFETY: the word is of a lot: mapped, writable, and no value lies there.
                        unsafe { word.write_volatile(!0) };
                    }
                } else if !orphaned {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                }
                // SAFETY: ends the child and runs nothing of its parent's.
                unsafe { libc::_exit(0) }
            }
            child => Ok(Self(child)),
        }
    }

    /// The child waits until it is ended.
    pub(super) fn that_waits() -> io::Result<Self> {
        Self::of(None)
    }

    /// Waits for its end, which must be a good one.
    pub(super) fn wait(self) -> io::Result<()> {
        let mut status = 0;
        // SAFETY: the status is where the kernel may write it.
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
        // SAFETY: the child was not waited for yet, so the number is its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: nothing is asked of its status.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}
