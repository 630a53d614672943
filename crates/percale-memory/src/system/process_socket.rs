//! Sockets that a forked child does not keep.
//!
//! A child inherits descriptors. So a connection would stay open after its process has exited or executed another
//! program, as long as any child of that process lives. Its peer would wait, and a listener would keep its port.
//! Therefore, before `fork` returns in a child, the descriptors of these sockets are replaced by that of an unconnected
//! socket. Their numbers stay in use, so when the child drops such a value, it does not close a descriptor that the
//! child has opened.
//!
//! Invariants:
//! 1. The table of a process contains the open descriptors of its [`ProcessSocket`]s and no others. A socket is opened
//!    and added, and removed and closed, under the lock of the table.
//! 2. A fork takes that lock before the child is created (`pthread_atfork`), so the child finds the table as described
//!    in invariant 1. The handlers are registered before the first socket is opened, without the lock.
//! 3. A child has a table of its own. It never waits for the lock of its parent's table, which another thread may have
//!    held.
//!
//! Neither user code nor a call that blocks runs under the lock. `posix_spawn` and `vfork` do not run such handlers and
//! do not need them: their children execute another program, which closes these sockets. A child created by the `clone`
//! system call keeps the sockets. A signal handler must not fork, because it may have interrupted a thread that holds
//! the lock. The same applies to the C library's own locks.

#![expect(unsafe_code, reason = "handlers of fork, and descriptors by number; each block states its own reason")]

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::system::forked::PerProcess;

/// A socket with a descriptor that a forked child does not keep.
#[derive(Debug)]
pub struct ProcessSocket(ManuallyDrop<OwnedFd>);

impl ProcessSocket {
    /// Calls `open`, which must create a socket and must not block.
    ///
    /// # Errors
    /// The errors of `open`.
    #[inline]
    pub fn open<E>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        Self::accept(|| open().map(|socket| (socket, ()))).map(|(socket, ())| socket)
    }

    /// Like [`open`](Self::open), for a call that returns a socket and another value.
    ///
    /// # Errors
    /// The errors of `accept`.
    #[inline]
    pub fn accept<T, E>(accept: impl FnOnce() -> Result<(OwnedFd, T), E>) -> Result<(Self, T), E> {
        let mut table = table();
        let (socket, other) = accept()?;
        if let Some(table) = &mut table {
            table.enter(socket.as_raw_fd());
        }
        Ok((Self(ManuallyDrop::new(socket)), other))
    }

    /// Returns a second descriptor of the same socket.
    ///
    /// # Errors
    /// The errors of `fcntl`.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Self::open(|| self.0.try_clone())
    }
}

#[cfg(any(test, fuzzing, feature = "testing"))]
impl From<OwnedFd> for ProcessSocket {
    #[inline]
    fn from(socket: OwnedFd) -> Self {
        let opened = Self::open(|| Ok::<_, std::convert::Infallible>(socket));
        opened.unwrap_or_else(|never| match never {})
    }
}

impl Drop for ProcessSocket {
    fn drop(&mut self) {
        let mut table = TABLE.get().map(lock);
        if let Some(table) = &mut table {
            table.leave(self.0.as_raw_fd());
        }
        // SAFETY: the value is being dropped, so this is the last use of the field. The descriptor is closed under the
        // lock. Otherwise a fork in between would replace a descriptor that another thread has opened with this number.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl AsFd for ProcessSocket {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for ProcessSocket {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The sockets of this process.
static TABLE: PerProcess<Mutex<Table>> = PerProcess::new();

/// Whether the fork handlers are registered.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// The lock of a thread that forks.
static FORKING: Forking = Forking { thread: AtomicI32::new(0), held: UnsafeCell::new(None) };

struct Forking {
    /// The thread that holds the lock below, or 0 if no thread holds it.
    thread: AtomicI32,
    held: UnsafeCell<Option<MutexGuard<'static, Table>>>,
}

// SAFETY: `held` is used only by the fork handlers, in the thread that holds the lock of the table.
unsafe impl Sync for Forking {}

fn lock(table: &'static Mutex<Table>) -> MutexGuard<'static, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the table of this process. Returns `None` if there is no memory. In that case children keep sockets that are
/// opened from now on.
fn table() -> Option<MutexGuard<'static, Table>> {
    if !WATCHED.load(Ordering::Acquire) {
        // SAFETY: the functions may be called at any fork, as long as this library is loaded. glibc removes them after
        // that. Threads that reach this point at the same time may register them twice, which the handlers allow for.
        let error = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        WATCHED.store(error == 0, Ordering::Release);
    }
    TABLE.get_or_make().ok().map(lock)
}

/// A set of descriptors, one bit each.
#[derive(Default)]
struct Table {
    words: Vec<u64>,
    /// The number of descriptors in the set.
    count: usize,
    /// An unconnected socket, which exists while the set is not empty. In a child the descriptors of the set are made
    /// to refer to it. In a child it might be too late to open one.
    spare: Option<OwnedFd>,
}

impl Table {
    fn enter(&mut self, socket: RawFd) {
        if self.spare.is_none() {
            self.spare =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok();
        }
        let (word, bit) = place(socket);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
        self.count += 1;
    }

    fn leave(&mut self, socket: RawFd) {
        let (word, bit) = place(socket);
        // In a child, the dropped socket may be missing from the child's table.
        if let Some(word) = self.words.get_mut(word).filter(|word| **word & bit != 0) {
            *word &= !bit;
            self.count -= 1;
            if self.count == 0 {
                self.spare = None;
            }
        }
    }

    /// Replaces the sockets of the table in this process, a forked child. Allocates and frees nothing.
    fn replace(&self) {
        let Some(spare) = &self.spare else { return };
        for (index, word) in self.words.iter().enumerate() {
            let mut bits = *word;
            while bits != 0 {
                let socket = RawFd::try_from(index * 64).unwrap_or(RawFd::MAX) | bits.trailing_zeros().cast_signed();
                bits &= bits - 1;
                // SAFETY: the call closes a descriptor of the table, and opens another one under its number.
                let replaced = unsafe { libc::dup3(spare.as_raw_fd(), socket, libc::O_CLOEXEC) };
                if replaced < 0 {
                    // The number is beyond a limit that was lowered in the meantime, so no other descriptor gets the
                    // number while that limit applies.
                    // SAFETY: this is a descriptor of the table. Its owner in this process ignores that it is closed.
                    unsafe { libc::close(socket) };
                }
            }
        }
    }
}

/// Returns the position of a descriptor in the table.
fn place(socket: RawFd) -> (usize, u64) {
    let number = socket.unsigned_abs() as usize;
    (number / 64, 1 << (number % 64))
}

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

extern "C" fn before_fork() {
    if FORKING.thread.load(Ordering::Relaxed) == this_thread() {
        return; // The handlers may be registered twice.
    }
    let Some(table) = TABLE.get() else { return };
    let held = lock(table);
    FORKING.thread.store(this_thread(), Ordering::Relaxed);
    // SAFETY: this thread holds the lock, and no other thread uses the field.
    unsafe { *FORKING.held.get() = Some(held) };
}

/// Takes the lock that `thread` took in [`before_fork`]. In the child it is the lock of the parent's table.
fn taken(thread: i32) -> Option<MutexGuard<'static, Table>> {
    if FORKING.thread.load(Ordering::Relaxed) != thread {
        return None;
    }
    // SAFETY: the thread took the lock, and no other thread uses the field.
    let held = unsafe { (*FORKING.held.get()).take() };
    FORKING.thread.store(0, Ordering::Relaxed);
    held
}

extern "C" fn in_parent() {
    drop(taken(this_thread()));
}

extern "C" fn in_child() {
    // The child's only thread is a copy of the thread that forked, with another id.
    if let Some(table) = taken(FORKING.thread.load(Ordering::Relaxed)) {
        table.replace();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::forked::in_a_child;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::net::socketpair;

    fn pair() -> (ProcessSocket, OwnedFd) {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        (a.into(), b)
    }

    fn is_connected(socket: BorrowedFd<'_>) -> bool {
        rustix::net::getpeername(socket).is_ok()
    }

    /// Returns whether the other end of the socket is closed now or soon. Children of other tests may be about to
    /// replace their copies.
    fn ends_soon(socket: &OwnedFd) -> bool {
        let soon = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
        poll(&mut [PollFd::new(socket, PollFlags::RDHUP)], Some(&soon)).unwrap() == 1
    }

    /// Requirements: FLT-002.
    #[test]
    fn a_forked_child_does_not_keep_a_connection_open() {
        let (ours, theirs) = pair();
        let (start, started) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child waits for the end of the pipe, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(started);
            rustix::io::read(&start, &mut [0; 1]).ok();
            // SAFETY: the call ends this process and has no other effect.
            unsafe { libc::_exit(0) };
        }
        assert!(is_connected(ours.as_fd()));
        drop(ours);
        assert!(ends_soon(&theirs), "the child keeps the socket open");
        drop(started);
        // SAFETY: the child belongs to this test; the null pointer means that no status is written.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    }

    /// Requirements: FLT-010.
    #[test]
    fn child_dropping_inherited_socket_closes_no_other_descriptor() {
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

    /// Requirements: FLT-010.
    #[test]
    fn child_keeps_the_descriptor_that_has_the_number_of_a_closed_socket() {
        // The number is too high for descriptors of other tests.
        const NUMBER: RawFd = 900;
        let (kept, _theirs) = pair();
        let (own, _others) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let copy = || rustix::io::fcntl_dupfd_cloexec(&own, NUMBER).unwrap();
        let closed = ProcessSocket::from(copy());
        let number = closed.as_raw_fd();
        drop(closed);
        let copy = copy();
        assert_eq!(copy.as_raw_fd(), number);
        assert!(in_a_child(|| is_connected(copy.as_fd()) && !is_connected(kept.as_fd())));
    }

    /// Requirements: FLT-010.
    #[test]
    fn child_without_free_descriptors_keeps_no_connection() {
        let (ours, _theirs) = pair();
        let (second, _others) = pair();
        let is_open = |socket: &ProcessSocket| rustix::io::fcntl_getfd(socket).is_ok();
        assert!(in_a_child(|| {
            let (own, _other) = pair();
            let maximum = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
            let full = rustix::process::Rlimit { current: Some(own.as_raw_fd() as u64 + 1), maximum };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, full).unwrap();
            while rustix::io::dup(&own).map(std::mem::forget).is_ok() {}
            in_a_child(|| is_open(&own) && !is_connected(own.as_fd()))
        }));
        assert!(is_open(&ours) && is_connected(second.as_fd()));
    }

    /// Requirements: FLT-010.
    #[test]
    fn child_of_raw_clone_does_not_wait_for_parent_locks() {
        let (ours, _theirs) = pair();
        let held = table().unwrap();
        // SAFETY: like fork, without the handlers; the child opens and closes sockets, and exits.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
        if child == 0 {
            let (own, _others) = pair();
            let is_good = is_connected(own.as_fd());
            drop((own, ours));
            // SAFETY: the call ends this process and has no other effect.
            unsafe { libc::_exit(i32::from(!is_good)) };
        }
        drop(held);
        let mut status = 0;
        // SAFETY: the child belongs to this test; the call writes one integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn concurrent_forks_and_socket_opens_are_serialized() {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let (ours, theirs) = pair();
                        assert!(is_connected(ours.as_fd()));
                        drop(ours);
                        assert!(ends_soon(&theirs), "a child keeps the socket open");
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
