//! The orderly close of a connection.
//!
//! Closing a socket with unread bytes in it resets the connection and drops unsent data. So this module writes
//! everything that is queued, shuts down the sending direction, and waits until the peer's kernel has acknowledged
//! everything. In the meantime it discards received data.

#![expect(unsafe_code, reason = "an ioctl that rustix does not wrap; the block states its own reason")]

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::buffers::with_scratch;
use super::outbound::Outbound;
use super::socket::Socket;
use crate::system::interrupted::uninterrupted;

/// The interval between two checks for unacknowledged bytes. The kernel has no event for this.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Writes the queued bytes, ends the stream, and waits until all bytes are acknowledged. Returns false if the
/// connection fails, or if the deadline passes before that.
pub(super) fn linger(socket: &mut Socket, outbound: &mut Outbound, at_most: Duration) -> bool {
    let deadline = Instant::now() + at_most;
    while !outbound.is_empty() {
        outbound.poll(socket);
        if outbound.failed.is_some() || discard(socket).is_err() {
            return false;
        }
        if !outbound.is_empty() && !wait(socket, PollFlags::IN | PollFlags::OUT, deadline, at_most) {
            return false;
        }
    }
    if rustix::net::shutdown(&*socket, Shutdown::Write).is_err() {
        return false;
    }
    loop {
        match unacknowledged(socket) {
            Ok(0) => return true,
            Err(_) => return false,
            Ok(_) if discard(socket).is_err() => return unacknowledged(socket) == Ok(0),
            Ok(_) => {}
        }
        if !wait(socket, PollFlags::IN, deadline, LOOK_AGAIN) {
            return false;
        }
    }
}

/// Sleeps until the socket is ready, for at most `at_most`, or until the deadline. Returns false if the deadline had
/// already passed.
fn wait(socket: &Socket, flags: PollFlags, deadline: Instant, at_most: Duration) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return false;
    }
    let timeout = Timespec::try_from(left.min(at_most)).ok();
    // After an interrupted or failed wait, the caller checks again.
    rustix::event::poll(&mut [PollFd::new(socket, flags)], timeout.as_ref()).ok();
    true
}

/// Discards received data. Returns an error at the end of the stream.
fn discard(socket: &Socket) -> Result<(), Errno> {
    with_scratch(|scratch| {
        loop {
            match uninterrupted(|| rustix::net::recv(socket, &mut scratch[..], rustix::net::RecvFlags::DONTWAIT)) {
                Ok((0, _)) => return Err(Errno::PIPE),
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    })
}

/// Returns the number of written bytes that the peer's kernel has not acknowledged.
fn unacknowledged(socket: &Socket) -> Result<i32, Errno> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (SIOCOUTQ for a socket) writes one int, to `bytes`, and keeps no pointer.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 {
        Ok(bytes)
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}
