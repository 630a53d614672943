//! Operations with a userfaultfd(2) that the program opens itself.
#![expect(unsafe_code, reason = "ioctls of userfaultfd; each block states why it is sound")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use pindown::Range;

use super::{ExecutionMode, Operation, Tools};
use crate::memory_range::READ_WRITE;
use crate::torture::kinds::Trait;
use crate::torture::memory::Memory;

const fn own(name: &'static str, apply: fn(&mut Memory, &mut Tools) -> io::Result<()>) -> Operation {
    Operation { name, needs: &[Trait::Own], apply, way: ExecutionMode::Once }
}

pub(super) const ALL: &[Operation] = &[
    own("madvise DONTNEED and UFFDIO_ZEROPAGE", |memory, _| {
        let handler = Handler::of(memory.registered)?;
        memory.memory_range.advise(memory.registered, libc::MADV_DONTNEED)?;
        handler.zero(memory.registered)
    }),
    own("UFFDIO_MOVE away", |memory, _| {
        let to = crate::memory_range::range(memory.spare()?[1].start(), memory.registered.len())?;
        memory.memory_range.map(to, READ_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None)?;
        Handler::of(to)?.bring(memory.registered, to)
    }),
];

/// ioctls of <linux/userfaultfd.h>.
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const UFFDIO_MOVE: libc::c_ulong = 0xc028_aa05;
const UFFD_API: u64 = 0xaa;
const REGISTER_MODE_MISSING: u64 = 1;

/// Provides the missing pages of a range until it is dropped.
struct Handler {
    descriptor: OwnedFd,
    range: Range,
}

impl Handler {
    fn of(range: Range) -> io::Result<Self> {
        // SAFETY: the call returns a new descriptor and accesses no memory.
        let number = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and has no other owner.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number as i32) };
        let handler = Self { descriptor, range };
        handler.ask(UFFDIO_API, &mut [UFFD_API, 0, 0])?;
        handler.ask(UFFDIO_REGISTER, &mut [range.start(), range.len(), REGISTER_MODE_MISSING, 0])?;
        Ok(handler)
    }

    fn zero(&self, range: Range) -> io::Result<()> {
        self.ask(UFFDIO_ZEROPAGE, &mut [range.start(), range.len(), 0, 0])
    }

    /// Moves pages to addresses where they are missing.
    fn bring(&self, from: Range, to: Range) -> io::Result<()> {
        self.ask(UFFDIO_MOVE, &mut [to.start(), from.start(), from.len(), 0, 0])
    }

    /// Calls an ioctl with an argument of `WORDS` words.
    fn ask<const WORDS: usize>(&self, which: libc::c_ulong, argument: &mut [u64; WORDS]) -> io::Result<()> {
        // SAFETY: the argument is at least as long as the ioctl requires. The addresses in it are in memory ranges,
        // which contain no Rust value.
        let answer = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), which, argument.as_mut_ptr()) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // Closing the descriptor is not sufficient: while a fork has a copy of it, threads still wait for missing
        // pages, which no process provides. The call fails if the range was not registered.
        self.ask(UFFDIO_UNREGISTER, &mut [self.range.start(), self.range.len()]).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::limits::kernel::Foreign;
    use crate::torture::fork::Fork;
    use crate::torture::kinds::MemoryKind;

    #[test]
    fn missing_pages_are_supplied_after_handler_drop_despite_fork() {
        let memory = (MemoryKind::named("private anonymous").unwrap().make)().unwrap();
        let handler = match Handler::of(memory.registered) {
            Ok(handler) => handler,
            Err(why) => return println!("skipped (userfaultfd): {why}"),
        };
        let child = Fork::that_waits().unwrap();
        drop(handler);
        memory.memory_range.advise(memory.registered, libc::MADV_DONTNEED).unwrap();
        let (read, received) = channel();
        let (process, address) = (rustix::process::getpid().as_raw_pid(), memory.registered.start());
        // Reads in a thread, because the read may block until the fork has ended.
        let reader = std::thread::spawn(move || read.send(Foreign { process, address }.read(0, &mut [0; 8]).is_ok()));
        let received = received.recv_timeout(Duration::from_secs(20));
        drop(child);
        reader.join().unwrap().ok();
        assert_eq!(received, Ok(true), "the page did not become present");
    }
}
