//! Sockets that a forked child does not keep.
//!
//! A child inherits descriptors. A connection would therefore stay open after its process has exited or executed another program, as long as
//! any child of that process lives, and its peer would wait; a listener would keep its port. So each child, before `fork` returns in it, has
//! the descriptors of these sockets replaced by that of an unconnected socket. Their numbers stay taken: a value that the child drops closes
//! nothing that the child opened.
//!
//! Invariants:
//! 1. The table holds the open descriptors of [`ProcessSocket`]s, and no other: a socket is opened and entered, and taken out and closed,
//!    under the lock of the table.
//! 2. A fork takes that lock before the child is made (`pthread_atfork`), so the child finds the table as invariant 1 states.
//!
//! No user code runs under the lock, and no call that blocks. `posix_spawn` and `vfork` run no such handlers and need none: what they
//! make executes another program, which closes these sockets. A child that the `clone` system call makes keeps them.

#![expect(unsafe_code, reason = "handlers of fork, and descriptors by number; each block states its own reason")]

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// A socket whose descriptor a forked child does not keep.
#[derive(Debug)]
pub struct ProcessSocket(ManuallyDrop<OwnedFd>);

impl ProcessSocket {
    /// Calls `open`, which makes a socket and does not block.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn open<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        Self::accept(|| open().map(|socket| (socket, ()))).map(|(socket, ())| socket)
    }

    /// As [`open`](Self::open), for a call that returns a socket and something else.
    ///
    /// # Errors
    /// Those of `accept`.
    pub(crate) fn accept<T, E>(accept: impl FnOnce() -> Result<(OwnedFd, T), E>) -> Result<(Self, T), E> {
        let mut table = TABLE.lock();
        let (socket, other) = accept()?;
        table.enter(socket.as_raw_fd());
        Ok((Self(ManuallyDrop::new(socket)), other))
    }

    /// A second descriptor of the same socket.
    ///
    /// # Errors
    /// Those of `fcntl`.
    pub(crate) fn try_clone(&self) -> std::io::Result<Self> {
        Self::open(|| self.0.try_clone())
    }
}

impl From<OwnedFd> for ProcessSocket {
    fn from(socket: OwnedFd) -> Self {
        TABLE.lock().enter(socket.as_raw_fd());
        Self(ManuallyDrop::new(socket))
    }
}

impl Drop for ProcessSocket {
    fn drop(&mut self) {
        let mut table = TABLE.lock();
        table.leave(self.0.as_raw_fd());
        // SAFETY: the value is being dropped, so this is the last use of the field. It is closed under the lock: a fork in between would
        // replace a descriptor that another thread has opened with this number.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl AsFd for ProcessSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for ProcessSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The sockets of this process.
static TABLE: Shared = Shared { table: Mutex::new(Table::new()), forking: UnsafeCell::new(None) };

struct Shared {
    table: Mutex<Table>,
    /// The lock, while the thread that holds it forks.
    forking: UnsafeCell<Option<MutexGuard<'static, Table>>>,
}

// SAFETY: `forking` is used by the handlers of fork alone, in the thread that holds the lock of `table`.
unsafe impl Sync for Shared {}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A set of descriptors, one bit each.
struct Table {
    words: Vec<u64>,
    /// Forks are prepared for.
    is_watched: bool,
}

impl Table {
    const fn new() -> Self {
        Self { words: Vec::new(), is_watched: false }
    }

    fn enter(&mut self, socket: RawFd) {
        if !std::mem::replace(&mut self.is_watched, true) {
            // Without memory for the handlers, children keep the sockets.
            // SAFETY: the functions may be called at any fork, for as long as this library is loaded; glibc forgets them after that.
            unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        }
        let (word, bit) = place(socket);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    fn leave(&mut self, socket: RawFd) {
        let (word, bit) = place(socket);
        if let Some(word) = self.words.get_mut(word) {
            *word &= !bit;
        }
    }

    /// Replaces the sockets of the table in this process, a forked child, and empties the table. Allocates and frees nothing.
    fn replace(&mut self) {
        let mut replacement = None;
        for (index, word) in self.words.iter_mut().enumerate() {
            let mut bits = std::mem::take(word);
            while bits != 0 {
                let socket = RawFd::try_from(index * 64).unwrap_or(RawFd::MAX) | bits.trailing_zeros().cast_signed();
                bits &= bits - 1;
                replace(socket, &mut replacement);
            }
        }
    }
}

/// Where the table keeps a descriptor.
fn place(socket: RawFd) -> (usize, u64) {
    let number = socket.unsigned_abs() as usize;
    (number / 64, 1 << (number % 64))
}

/// Has the descriptor `socket` name `replacement`, which is made first if there is none. Where no socket can be made, nothing is changed.
fn replace(socket: RawFd, replacement: &mut Option<OwnedFd>) {
    let unconnected = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    if replacement.is_none() {
        match unconnected() {
            Ok(made) => *replacement = Some(made),
            Err(Errno::MFILE | Errno::NFILE) => {
                // There is room once this one is closed. The child has no other thread that could take its number.
                // SAFETY: a descriptor of the table, whose owner in this process finds another open one of this number below.
                unsafe { libc::close(socket) };
                *replacement = unconnected().ok();
            }
            Err(_) => {}
        }
    }
    match replacement.take() {
        // It is its own replacement, and no longer this function's to close.
        Some(made) if made.as_raw_fd() == socket => drop(made.into_raw_fd()),
        Some(made) => {
            // SAFETY: closes a descriptor of the table, and opens another one under its number.
            unsafe { libc::dup3(made.as_raw_fd(), socket, libc::O_CLOEXEC) };
            *replacement = Some(made);
        }
        None => {}
    }
}

extern "C" fn before_fork() {
    let held = TABLE.lock();
    // SAFETY: this thread holds the lock.
    unsafe { *TABLE.forking.get() = Some(held) };
}

extern "C" fn in_parent() {
    // SAFETY: this thread took the lock in `before_fork`.
    drop(unsafe { (*TABLE.forking.get()).take() });
}

extern "C" fn in_child() {
    // SAFETY: the child's only thread is a copy of the one that took the lock in `before_fork`.
    let held = unsafe { (*TABLE.forking.get()).take() };
    if let Some(mut table) = held {
        table.replace();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::forked::in_a_child;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::net::socketpair;

    fn pair() -> (ProcessSocket, OwnedFd) {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        (a.into(), b)
    }

    fn is_connected(socket: BorrowedFd<'_>) -> bool {
        rustix::net::getpeername(socket).is_ok()
    }

    /// Whether the other end of it is closed now or soon: children of other tests may be about to replace it.
    fn ends_soon(socket: &OwnedFd) -> bool {
        let soon = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
        poll(&mut [PollFd::new(socket, PollFlags::RDHUP)], Some(&soon)).unwrap() == 1
    }

    #[test]
    fn flt_002_a_forked_child_does_not_keep_a_connection_open() {
        let (ours, theirs) = pair();
        let (start, started) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child waits for the end of the pipe, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(started);
            rustix::io::read(&start, &mut [0; 1]).ok();
            // SAFETY: ends this process and nothing else.
            unsafe { libc::_exit(0) };
        }
        assert!(is_connected(ours.as_fd()));
        drop(ours);
        assert!(ends_soon(&theirs), "the child keeps it");
        drop(started);
        // SAFETY: the child is this test's own; the null pointer asks for no status.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    }

    #[test]
    fn flt_010_what_a_child_drops_closes_nothing_of_its_own() {
        let (ours, _theirs) = pair();
        let (second, _) = pair();
        let mut inherited = Some(ours);
        assert!(in_a_child(|| {
            let number = inherited.as_ref().unwrap().as_raw_fd();
            let replaced = !is_connected(inherited.as_ref().unwrap().as_fd()) && !is_connected(second.as_fd());
            let (own, _other) = pair();
            let is_other = own.as_raw_fd() != number;
            drop(inherited.take());
            let in_grandchild = in_a_child(|| !is_connected(own.as_fd()));
            replaced && is_other && is_connected(own.as_fd()) && in_grandchild
        }));
        assert!(is_connected(inherited.unwrap().as_fd()));
    }

    #[test]
    fn flt_010_a_child_without_free_descriptors_keeps_no_connection_either() {
        let (ours, _theirs) = pair();
        let (second, _others) = pair();
        assert!(in_a_child(|| {
            // Those of this process are known only at the fork below.
            let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
            let (own, other) = (ours.as_raw_fd(), second.as_raw_fd());
            TABLE.lock().enter(own);
            TABLE.lock().enter(other);
            in_a_child(|| !is_connected(ours.as_fd()) && !is_connected(second.as_fd()))
        }));
    }

    #[test]
    fn forks_and_openings_of_many_threads_do_not_meet() {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let (ours, theirs) = pair();
                        assert!(is_connected(ours.as_fd()));
                        drop(ours);
                        assert!(ends_soon(&theirs), "a child keeps it");
                    }
                });
            }
            for _ in 0..20 {
                let (ours, _theirs) = pair();
                assert!(in_a_child(|| !is_connected(ours.as_fd())));
            }
        });
    }
}
