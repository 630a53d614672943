//! Requests as received by the helper: a message, and the process that sent it.
//!
//! The kernel identifies the sender of each message by a pidfd (SO_PASSPIDFD, Linux 6.5), which can never refer to a
//! later process. A socket outlives exec and fork and can be passed on, so the identity of the peer when it connected
//! does not identify the sender of a request.
//!
//! # Unwanted descriptors
//! Closing the last copy of a descriptor may take as long as its creator chooses (a socket with SO_LINGER, a file of
//! FUSE). This also holds if the receiver has no room for the descriptor, or leaves it in the queue, because then it is
//! closed in the receiver's context as well. So the helper makes the kernel reject such messages at their sender
//! (SO_PASSRIGHTS, Linux 6.16). On older kernels, and from clients that connected before the helper set this option, it
//! receives all descriptors, and closes them and these connections on separate threads ([`CloseThreads`]).
#![expect(
    unsafe_code,
    reason = "socket options and ancillary messages that rustix lacks; each block states its own reason"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread;

use super::quota::{Charge, Quota};
use super::wire::{self, HelperMessage};
use crate::monitor::thread::room;

/// asm-generic/socket.h
const SO_PASSPIDFD: libc::c_int = 76;
const SO_PASSRIGHTS: libc::c_int = 83;
/// linux/socket.h
const SCM_PIDFD: libc::c_int = 4;
/// The maximum number of descriptors in one message: the kernel's SCM_MAX_FD.
pub(super) const STRANGERS: usize = 253;

/// A received request.
#[derive(Debug)]
pub(super) struct Request {
    /// `None` if the bytes are not a message of the protocol.
    pub(super) message: Option<HelperMessage>,
    /// The process that sent the message; `None` if the kernel cannot identify it, or the process has been reaped.
    pub(super) sender: Option<OwnedFd>,
    /// Descriptors that the client sent, although messages to the helper have none.
    pub(super) strangers: Vec<OwnedFd>,
}

/// Sets a socket option, if the kernel has it.
fn set(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` lives through the call and has `len` bytes.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), len) };
}

/// Returns the value of a socket option; `None` if the kernel does not have the option.
fn get(socket: BorrowedFd<'_>, option: libc::c_int) -> Option<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` is valid for `len` bytes, and every bit pattern is a number.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut len)
    };
    (result == 0).then_some(value)
}

/// Makes the kernel identify each sender on this connection, or on connections of this listener. Before Linux 6.5 this
/// is not possible, and each client is rejected.
pub(super) fn name_senders(socket: BorrowedFd<'_>) {
    set(socket, SO_PASSPIDFD, 1);
}

/// Returns whether the kernel keeps the sender of each message that arrives before [`name_senders`] was called. Since
/// Linux 6.16 it does so only if the listener has the option SO_PASSCRED.
pub(super) fn keeps_early_senders(listener: BorrowedFd<'_>) -> bool {
    get(listener, libc::SO_PASSCRED) == Some(1) || get(listener, SO_PASSRIGHTS).is_none()
}

/// Makes the kernel reject descriptors on connections of this listener, or accept them again, if it supports this.
pub(super) fn accept_descriptors(listener: BorrowedFd<'_>, wanted: bool) {
    set(listener, SO_PASSRIGHTS, wanted.into());
}

/// Returns whether the kernel has rejected descriptors on this connection from its beginning. This is not the case
/// before Linux 6.16, and for a client that connected to the socket of a service manager before the helper started.
pub(super) fn rejects_descriptors(connection: BorrowedFd<'_>) -> bool {
    get(connection, SO_PASSRIGHTS) == Some(0)
}

/// Reads one request, without waiting.
///
/// # Errors
/// `UnexpectedEof` if the peer has closed the connection; `WouldBlock` if there is no request; otherwise errors of
/// recvmsg(2).
pub(super) fn receive(from: BorrowedFd<'_>) -> io::Result<Request> {
    /// Ancillary space for unwanted descriptors, and for one pidfd.
    #[repr(C, align(8))]
    struct AncillarySpace([MaybeUninit<u8>; 2048]);
    let mut bytes = [0_u8; wire::LEN];
    let mut space = AncillarySpace([MaybeUninit::uninit(); 2048]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero header has no buffers.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = space.0.as_mut_ptr().cast();
    header.msg_controllen = size_of::<AncillarySpace>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header describes buffers of this function, with their sizes.
    let got = unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut header, flags) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    let (sender, strangers) = descriptors(&header);
    // A message without bytes cannot be distinguished from the end of the connection by its length, but has a sender.
    if got == 0 && sender.is_none() && strangers.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let whole = got as usize == wire::LEN && header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
    let message = if whole && strangers.is_empty() { HelperMessage::from_bytes(&bytes) } else { None };
    Ok(Request { message, sender, strangers })
}

/// Takes every descriptor out of a received header.
fn descriptors(header: &libc::msghdr) -> (Option<OwnedFd>, Vec<OwnedFd>) {
    let (mut sender, mut strangers) = (None, Vec::new());
    // SAFETY: the kernel has filled the header and its control buffer, which belong to the caller.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: a pointer that is not null refers to a whole header in the control buffer.
    while let Some(control) = unsafe { next.as_ref() } {
        // SAFETY: as above; the address is only computed.
        let data = unsafe { libc::CMSG_DATA(control) }.cast::<libc::c_int>();
        // SAFETY: the call only computes a length.
        let empty = unsafe { libc::CMSG_LEN(0) } as usize;
        let count = control.cmsg_len.saturating_sub(empty) / size_of::<libc::c_int>();
        for index in 0..count {
            // SAFETY: the kernel wrote `count` numbers after the header.
            let fd = unsafe { data.wrapping_add(index).read_unaligned() };
            let is = (control.cmsg_level, control.cmsg_type);
            if fd < 0 || !matches!(is, (libc::SOL_SOCKET, libc::SCM_RIGHTS | SCM_PIDFD)) {
                continue;
            }
            // SAFETY: the kernel has made the descriptor for this message, for this process.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            if control.cmsg_type == SCM_PIDFD { sender = Some(fd) } else { strangers.push(fd) }
        }
        // SAFETY: as for the first header.
        next = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
    (sender, strangers)
}

/// The maximum number of closing threads for rejected connections, of one user and of all users.
const REFUSALS: (usize, usize) = (32, 512);
/// The number of connections that wait for a thread at which no more are accepted.
pub(super) const LEFT: usize = 256;

/// Descriptors that may take a long time to close, and the charge of their user until they are closed.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) user: u32,
    pub(super) descriptors: Vec<OwnedFd>,
    /// `None` for a connection that was rejected.
    pub(super) charge: Option<Charge>,
    /// Whether closing the connection does not block: see [`rejects_descriptors`].
    pub(super) is_prompt: bool,
}

/// Closes connections that may take a long time to close, on separate threads. Each thread keeps the charge of its
/// connection until it is done, so the quotas limit the number of threads.
#[derive(Debug)]
pub(super) struct CloseThreads {
    /// Connections for which there is no thread yet.
    left: Vec<Closing>,
    refusals: Quota<u32>,
}

impl CloseThreads {
    pub(super) fn new() -> Self {
        Self { left: Vec::new(), refusals: Quota::new(REFUSALS.0, REFUSALS.1) }
    }

    pub(super) fn close(&mut self, closing: Closing) {
        if closing.is_prompt && closing.descriptors.len() <= 1 {
            return drop(closing);
        }
        self.left.push(closing);
        self.retry();
    }

    /// Returns whether no more connections should be accepted until some are closed.
    pub(super) fn is_full(&self) -> bool {
        self.left.len() >= LEFT
    }

    /// Tries again to start threads for the connections that have none.
    pub(super) fn retry(&mut self) {
        for mut closing in std::mem::take(&mut self.left) {
            if closing.charge.is_none() {
                closing.charge = self.refusals.take(closing.user).ok();
            }
            if closing.charge.is_none() {
                self.left.push(closing);
                continue;
            }
            let (give, take) = mpsc::channel::<Closing>();
            let builder = thread::Builder::new().name("pindown-close".into()).stack_size(64 << 10);
            // The thread is started first: if this fails, a closure with the descriptors would be dropped here, which
            // closes them.
            let unsent = match room().and_then(|()| builder.spawn(move || drop(take.recv()))) {
                Ok(_) => give.send(closing).err().map(|mpsc::SendError(closing)| closing),
                Err(_) => Some(closing),
            };
            self.left.extend(unsent);
        }
    }
}
