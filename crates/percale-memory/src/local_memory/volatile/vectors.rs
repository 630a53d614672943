//! Segments that the kernel reads and writes for a socket. The kernel gets their addresses, so no slice of them is ever
//! created.

#![expect(unsafe_code, reason = "system calls on memory that operations were lent; each block states its own reason")]

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::segment::{IOV_LIMIT, Segment, Segments};

/// The vectors for the kernel: the segments, and private bytes before or after them.
struct Vectors {
    list: [libc::iovec; IOV_LIMIT + 1],
    count: usize,
}

impl Vectors {
    const fn new() -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { list: [none; IOV_LIMIT + 1], count: 0 }
    }

    /// Adds a vector, unless it is empty, because the address of an empty vector may be invalid.
    #[inline]
    fn add(&mut self, first: *mut u8, len: usize) {
        if len > 0 {
            self.list[self.count] = libc::iovec { iov_base: first.cast(), iov_len: len };
            self.count += 1;
        }
    }

    #[inline]
    fn add_all(&mut self, segments: &[Segment]) {
        segments.iter().for_each(|segment| self.add(segment.as_ptr(), segment.len()));
    }
}

#[inline]
fn counted(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

/// Transfers [`Segments`] over a socket. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait SegmentsSocketExt: Sized {
    /// Sends `prefix` and then these segments over a socket, as many bytes as there is room for, without waiting. Uses
    /// sendmsg(2) and not writev(2), because the SIGPIPE of writev(2) may terminate a program that does not handle it.
    ///
    /// # Errors
    /// The errors of sendmsg(2).
    fn send(&self, socket: BorrowedFd<'_>, prefix: &[u8]) -> Result<usize, Errno>;

    /// Receives the available bytes from a non-blocking socket, into these segments and then into `tail`.
    ///
    /// # Errors
    /// The errors of readv(2).
    fn receive(&self, socket: BorrowedFd<'_>, tail: &mut [u8]) -> Result<usize, Errno>;
}

impl SegmentsSocketExt for Segments {
    #[inline]
    fn send(&self, socket: BorrowedFd<'_>, prefix: &[u8]) -> Result<usize, Errno> {
        let mut vectors = Vectors::new();
        vectors.add(prefix.as_ptr().cast_mut(), prefix.len());
        vectors.add_all(self.as_slice());
        // SAFETY: all fields are numbers and pointers, for which zero is valid: no name, no control data, no flags.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = vectors.list.as_mut_ptr();
        message.msg_iovlen = vectors.count as _;
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message has this many vectors. Each refers to memory that is borrowed, or that was lent to an
        // operation for reading.
        counted(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
    }

    #[inline]
    fn receive(&self, socket: BorrowedFd<'_>, tail: &mut [u8]) -> Result<usize, Errno> {
        let mut vectors = Vectors::new();
        vectors.add_all(self.as_slice());
        vectors.add(tail.as_mut_ptr(), tail.len());
        let count = vectors.count as libc::c_int;
        // SAFETY: there are this many vectors. Each refers to memory that was lent to an operation for writing, or that
        // is borrowed for it.
        counted(unsafe { libc::readv(socket.as_raw_fd(), vectors.list.as_ptr(), count) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn segments_are_sent_together_with_library_bytes() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let ends = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let (mut a, mut b) = ([3_u8, 4], [5_u8, 6, 7]);
        // SAFETY: the bytes have no other user while the segments are in use.
        let lend = |bytes: &mut [u8]| unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) };
        let from = Segments::new(&[lend(&mut a), Segment::EMPTY, lend(&mut b)]).unwrap();
        assert_eq!(from.send(ends.0.as_fd(), &[1, 2]), Ok(7));
        let (mut head, mut tail) = ([0_u8; 4], [0_u8; 9]);
        assert_eq!(Segments::one(lend(&mut head)).receive(ends.1.as_fd(), &mut tail), Ok(7));
        assert_eq!((head, &tail[..4]), ([1, 2, 3, 4], &[5, 6, 7, 0][..]));
        assert_eq!(Segments::EMPTY.receive(ends.1.as_fd(), &mut tail), Err(Errno::AGAIN));
        drop(ends.1);
        assert_eq!(Segments::EMPTY.send(ends.0.as_fd(), &[1]), Err(Errno::PIPE));
    }
}
