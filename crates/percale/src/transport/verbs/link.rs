//! A link over a queue pair: the frames of a byte stream, over a [`Wire`].

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::Wire;
use crate::transport::tcp::{Socket, Stream, StreamLink, TcpOptions};

/// One end of a connection over a queue pair.
pub(crate) type VerbsLink = StreamLink<Wire>;

/// How long to sleep between two looks at what is not acknowledged yet.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

impl VerbsLink {
    /// Makes a link of a connected wire and of the connection whose end is the peer's.
    ///
    /// # Errors
    /// What the kernel says to the connection's options; if there are no descriptors left.
    pub(crate) fn new(mut wire: Wire, connection: OwnedFd, options: TcpOptions) -> io::Result<Self> {
        wire.watch(Socket::new(connection, &options)?)?;
        Ok(Self::of(wire))
    }

    /// Where the bytes are that the peer's device has not acknowledged, from there to there at most; `None` if there are none.
    /// Until then they need this side to arrive.
    #[inline]
    pub(crate) fn unacknowledged(&self) -> Option<(u64, u64)> {
        let (sent, acknowledged) = self.stream().progress();
        let waiting = self.outbound().ahead_of_last();
        (sent > acknowledged || waiting > 0).then_some((acknowledged, sent + waiting))
    }

    /// Readable when something completed after [`arm`](Self::arm).
    #[must_use]
    pub(crate) fn completions(&self) -> BorrowedFd<'_> {
        self.stream().completions()
    }

    /// Each is readable when [`look`](Self::look) should be called.
    pub(crate) fn watches(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.stream().watches()
    }

    /// Makes the next completion wake whoever sleeps on the descriptor; what is there already does not.
    pub(crate) fn arm(&mut self) {
        self.stream_mut().arm();
    }

    /// Looks whether the peer's end or the device's was told; whether either was.
    pub(crate) fn look(&mut self) -> bool {
        self.stream_mut().look();
        self.stream().is_over()
    }

    /// Puts the queue pair in error, as a device does of itself.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn fail(&self) {
        self.stream().fail_pair();
    }

    /// Device, port and address, for people.
    #[must_use]
    pub(crate) fn describe(&self) -> String {
        self.stream().describe()
    }

    /// Closes the connection, after everything that waits (a goodbye, say) has reached the peer's device, or after `at_most`,
    /// whichever comes first. Blocks. What arrives meanwhile is thrown away. Returns whether all left.
    pub(crate) fn linger(mut self, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        let mut scrap = [0; 4096];
        loop {
            let flushed = self.flush();
            let (sent, acknowledged) = self.stream().progress();
            if flushed && sent == acknowledged {
                return true;
            }
            self.stream_mut().look();
            // Reading takes completions and gives credits back, so that both sides get on.
            let read = self.stream_mut().read_one(&mut scrap);
            match read {
                Err(rustix::io::Errno::AGAIN) if self.stream().is_over() => return false,
                Err(rustix::io::Errno::AGAIN) => std::thread::sleep(LOOK_AGAIN),
                Ok(1..) => {}
                Ok(0) | Err(_) => return false,
            }
            if Instant::now() >= deadline {
                return false;
            }
        }
    }
}
