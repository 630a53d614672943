//! How long the peer's kernel has left bytes unacknowledged.
//!
//! TCP_USER_TIMEOUT would kill a peer that is alive but does not receive for a while (its window is full, its kernel answers the
//! probes), so the question is asked of TCP_INFO instead: bytes are out, and no acknowledgement of anything came lately.

#![expect(unsafe_code, reason = "TCP_INFO has no safe wrapper; the block states its own reason")]

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// How long ago the peer's kernel last acknowledged anything, if it owes an acknowledgement; `None` if it owes none, or if the
/// kernel does not say.
pub(super) fn unanswered(socket: &impl AsFd) -> Option<Duration> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes into `info`, which has that many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return None;
    }
    // SAFETY: it was zeroed, and all its fields are plain integers.
    let info = unsafe { info.assume_init() };
    // Unacknowledged segments, or probes of a closed window that were not answered.
    (info.tcpi_unacked > 0 || info.tcpi_probes > 0).then(|| Duration::from_millis(info.tcpi_last_ack_recv.into()))
}
