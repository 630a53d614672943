//! Descriptors that the rest of the process cannot close.
//!
//! A monitor depends on descriptors: the kernel programs stay attached while one is open, and a thread that changes
//! memory waits for the thread that reads a userfaultfd. A program may close descriptors that it did not open itself
//! (`close_range` in a daemon, or a sandbox), and the library is not notified. So the descriptors that must stay open
//! are held by a thread that has its own descriptor table, which contains only these.
//!
//! A forked child has neither this thread nor the descriptors.

#![expect(unsafe_code, reason = "close_range(2) has no safe wrapper; the block states its own reason")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use super::thread;
use crate::journal::ForkToken;

/// Gives the calling thread its own descriptor table, which contains only these descriptors. Allocates no memory.
///
/// # Errors
/// Errors of close_range(2): it requires Linux 5.9, and a sandbox may forbid it.
pub(super) fn keep_only(kept: &mut [RawFd]) -> io::Result<()> {
    const UNSHARE: libc::c_uint = 2;
    kept.sort_unstable();
    // First close all descriptors above the highest one that is kept: the kernel then copies only the rest of the
    // table.
    let mut next = kept.last().map_or(0, |last| last.cast_unsigned() + 1);
    close(next, libc::c_uint::MAX, UNSHARE)?;
    for number in kept.iter().rev().map(|number| number.cast_unsigned()) {
        if number + 1 < next {
            close(number + 1, next - 1, 0)?;
        }
        next = number;
    }
    if next > 0 { close(0, next - 1, 0) } else { Ok(()) }
}

fn close(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: the first call of `keep_only` gives the thread its own table, so descriptors in the rest of the process
    // stay open. The other calls are made only if it succeeded.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done == 0 { Ok(()) } else { Err(crate::calls::last("close_range")) }
}

/// A thread that holds descriptors until the value is dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    home: ForkToken,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Moves the descriptors out of this process's table. The kernel's objects stay open.
    ///
    /// # Errors
    /// The thread cannot be started, there is not enough memory, or close_range(2) fails.
    pub(super) fn hold(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let home = ForkToken::here()?;
        let mut numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let ended = Arc::new(AtomicBool::new(false));
        let (held, answer) = mpsc::sync_channel(1);
        let seen = Arc::clone(&ended);
        let keep = move || {
            let kept = keep_only(&mut numbers);
            let failed = kept.is_err();
            held.send(kept).ok();
            while !failed && !seen.load(Ordering::Acquire) {
                std::thread::park();
            }
            // The descriptors are closed before a thread that joins this one continues.
            if !failed {
                keep_only(&mut []).ok();
            }
        };
        let thread = thread::start("pindown-keeper", keep)?;
        answer.recv().map_err(|_| io::ErrorKind::Other)??;
        Ok(Self { home, ended, thread: Some(thread) })
    }

    /// Returns whether this is the address space in which the value was made, and not a forked child's.
    pub(super) fn is_here(&self) -> bool {
        self.home.is_here()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.home.is_here() {
            // The thread does not exist in a child.
            std::mem::forget(thread);
            return;
        }
        self.ended.store(true, Ordering::Release);
        thread.thread().unpark();
        // The thread cannot panic.
        thread.join().ok();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn held_descriptors_stay_open_until_the_keeper_is_dropped() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let number = writer.as_raw_fd();
        let pipe = rustix::fs::fstat(&writer).expect("a pipe").st_ino;
        let keeper = Keeper::hold(vec![writer.into()]).expect("a thread");
        // Another thread may have opened a file, which then has this number.
        let link = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
        assert_ne!(link.to_str(), Some(&*format!("pipe:[{pipe}]")), "the descriptor is not in this table");
        rustix::io::ioctl_fionbio(&reader, true).expect("a pipe");
        let mut byte = [0];
        let error = reader.read(&mut byte).expect_err("the other end is open");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(keeper);
        assert_eq!(reader.read(&mut byte).expect("the other end is closed"), 0);
    }

    #[test]
    fn keep_only_closes_descriptors_of_one_thread_only() {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let (kept, gone) = (reader.as_raw_fd(), writer.as_raw_fd());
        let open = |number: RawFd| {
            // SAFETY: the call only queries a number.
            unsafe { libc::fcntl(number, libc::F_GETFD) != -1 }
        };
        let seen = std::thread::spawn(move || {
            keep_only(&mut [kept]).expect("Linux 5.9");
            [kept, gone, 0, 1].map(open)
        });
        assert_eq!(seen.join().expect("the thread ends"), [true, false, false, false]);
        writer.write_all(b"x").expect("both ends are open here");
        reader.read_exact(&mut [0]).expect("the byte was written");
    }
}
