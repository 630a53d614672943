//! How long the peer's kernel has left bytes unacknowledged.
//!
//! TCP_USER_TIMEOUT would kill a peer that is alive but does not receive for a while (its window is full, its kernel answers the
//! probes), so the question is asked of TCP_INFO instead: bytes are out, and no acknowledgement of anything came lately.

#![expect(unsafe_code, reason = "TCP_INFO has no safe wrapper; the block states its own reason")]

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// When a peer that leaves bytes unacknowledged counts as gone.
#[derive(Debug)]
pub(super) struct Patience {
    timeout: Duration,
    /// The last look found it silent for too long.
    suspect: bool,
}

impl Patience {
    /// It is gone after this; zero: never.
    pub(super) const fn new(timeout: Duration) -> Self {
        Self { timeout, suspect: false }
    }

    /// How long it lasts.
    pub(super) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether it is at its end, now that a look found this silence ([`unanswered`]). One look is not enough: after a pause
    /// the first bytes are for a moment unanswered too, and the last answer is old.
    pub(super) fn ends(&mut self, silence: Option<Duration>) -> bool {
        let silent = !self.timeout.is_zero() && silence.is_some_and(|silence| silence > self.timeout);
        std::mem::replace(&mut self.suspect, silent) && silent
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_gone_when_two_looks_in_a_row_find_it_silent() {
        let (short, long) = (Some(Duration::from_secs(3)), Some(Duration::from_secs(4)));
        let mut patience = Patience::new(Duration::from_secs(3));
        let looks = [short, long, None, long, short, long, long, long, None, long];
        let ends = looks.map(|silence| patience.ends(silence));
        assert_eq!(ends, [false, false, false, false, false, false, true, true, false, false]);
        let mut endless = Patience::new(Duration::ZERO);
        assert!(!endless.ends(long) && !endless.ends(long));
    }

    #[test]
    fn a_peer_that_acknowledges_owes_nothing() {
        use std::io::Write;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(unanswered(&socket), None);
        socket.write_all(b"answered by the kernel, though nobody reads").unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while unanswered(&socket).is_some() {
            assert!(std::time::Instant::now() < until, "the kernel did not acknowledge");
        }
    }
}
