//! A link over a connected TCP socket.
//!
//! The stream is a sequence of frames. Each frame is a head of 32 bytes and a payload. `TcpLink` joins its two halves:
//! `outbound` decides which bytes are written and when, and `inbound` parses the received bytes. `stream`, shared with
//! the simulated network, keeps the tables of pulls and pushes. Large payloads are sent from the user's memory and
//! received into it. An idle link owns no buffer. Another byte stream (`verbs`) carries the same frames in its own
//! `StreamLink`.
//!
//! The endpoint decides when a link is polled. A poll costs one `recv` if nothing has arrived.
//!
//! **Liveness.** A reset, or an end of the stream without a `Bye` frame, is [`Broken::Died`]. An end after a `Bye`
//! frame is [`Broken::Closed`]. A silent peer or network is [`Broken::Timeout`], detected by keepalive probes and
//! `unanswered` ([`TcpOptions::timeout`]). Data that arrived before the end is delivered first.

mod buffers;
#[cfg(any(test, fuzzing))]
mod fuzz;
mod inbound;
mod linger;
mod outbound;
#[cfg(test)]
mod revoked_tests;
mod socket;
#[cfg(test)]
mod tests;
mod unanswered;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

#[cfg(any(test, fuzzing))]
pub use fuzz::fuzz_stream;
use inbound::Inbound;
pub(super) use outbound::Outbound;
pub use socket::{Socket, Stream};
use unanswered::unanswered;

use super::stream::{Pulls, pull_bytes};
use super::{Broken, ConnectionId, Link, Refused, Sink};
use crate::local_memory::volatile::{Segments, View};
use crate::region::lease::Lease;
use crate::system::process_socket::ProcessSocket;
use crate::wire::form::{STREAM_DATA, STREAM_EAGER};
use crate::wire::head::{FrameKind, Head, Offer};

/// The longest payload of one `Data` frame. Other frames may be sent between two of them.
const DATA_LIMIT: usize = STREAM_DATA;

/// The options of a link's socket.
#[derive(Clone, Copy, Debug)]
pub struct TcpOptions {
    /// The size of the kernel's send buffer in bytes. If it is `None`, the kernel chooses the size and grows the
    /// buffer.
    pub send_buffer: Option<usize>,
    /// The size of the kernel's receive buffer in bytes. If it is `None`, the kernel chooses the size and grows the
    /// buffer.
    pub receive_buffer: Option<usize>,
    /// The time after which a peer is considered dead if its kernel does not acknowledge bytes or does not answer the
    /// probes of an idle connection (in whole seconds). A live peer that does not receive is not considered dead: its
    /// host accepts connections, although its kernel may drop data for which it has no room. (So this is not
    /// TCP_USER_TIMEOUT, which does not make this distinction.) Zero selects the kernel's defaults.
    pub timeout: Duration,
}

impl Default for TcpOptions {
    /// Returns options with buffers for long messages between two nearby processes, and a timeout of two minutes.
    fn default() -> Self {
        Self { send_buffer: Some(512 << 10), receive_buffer: Some(512 << 10), timeout: Duration::from_secs(120) }
    }
}

/// One end of a connection over a byte stream.
#[derive(Debug)]
pub struct StreamLink<S> {
    socket: S,
    outbound: Outbound,
    inbound: Inbound,
    pulls: Pulls,
    broken: Option<Broken>,
}

/// One end of a connection over TCP.
pub type TcpLink = StreamLink<Socket>;

impl<S> StreamLink<S> {
    /// The longest payload that is sent eagerly with its message. It is about the size of a socket's buffers. For
    /// longer payloads the round trip of an offer and its pull costs little, and only the kernel copies, even if the
    /// receive is posted late.
    pub(crate) const EAGER_LIMIT: usize = STREAM_EAGER;

    /// Creates a link over a connected stream.
    pub(super) fn of(stream: S) -> Self {
        Self {
            socket: stream,
            outbound: Outbound::new(),
            inbound: Inbound::new(),
            pulls: Pulls::default(),
            broken: None,
        }
    }

    /// Returns the stream.
    #[cfg(feature = "verbs")]
    pub(super) const fn stream(&self) -> &S {
        &self.socket
    }

    /// Returns the stream for changes.
    #[cfg(feature = "verbs")]
    pub(super) const fn stream_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// Writes queued data. Returns whether everything was written.
    #[cfg(feature = "verbs")]
    pub(super) fn flush(&mut self) -> bool
    where
        S: Stream,
    {
        self.outbound.poll(&mut self.socket);
        self.outbound.is_empty()
    }

    /// Returns the sending half.
    #[cfg(feature = "verbs")]
    pub(super) const fn outbound(&self) -> &Outbound {
        &self.outbound
    }
}

impl TcpLink {
    /// Creates a link over a connected socket.
    ///
    /// # Errors
    /// The kernel's error for a socket option.
    pub fn new(socket: impl Into<ProcessSocket>, options: TcpOptions) -> std::io::Result<Self> {
        Ok(Self::of(Socket::new(socket.into(), &options)?))
    }

    /// Returns whether the peer's host has not answered for longer than the timeout, both now and at the previous call
    /// of this function. An answer is an acknowledgement of data on this connection, or a reaction to a connection
    /// attempt to the remote address of this connection or to `address`, at which the peer listens. This function
    /// should be called regularly, for example a few times within the timeout. A call costs one system call, and some
    /// more while bytes are unacknowledged.
    #[must_use]
    pub fn is_unanswered(&mut self, address: SocketAddr) -> bool {
        if self.socket.answer_timer.timeout().is_zero() {
            return false;
        }
        let silence = unanswered(&self.socket);
        let remote = self.socket.remote();
        self.socket.answer_timer.ends(silence, || remote.into_iter().chain([address]).collect())
    }

    /// Breaks the link because the peer did not answer in time.
    pub fn give_up(&mut self) -> Broken {
        let why = Broken::Timeout(format!("no data was acknowledged for {:?}", self.socket.answer_timer.timeout()));
        self.broken.get_or_insert(why).clone()
    }

    /// Returns the positions of the queued bytes, counted from the first byte that was ever queued.
    #[inline]
    pub fn unsent(&self) -> Option<(u64, u64)> {
        self.outbound.unsent()
    }

    /// Closes the connection after everything that is queued (including a `Bye` frame) has reached the peer's kernel,
    /// or after `at_most`. This blocks. Bytes that arrive in the meantime are discarded. Returns whether everything
    /// reached the peer's kernel.
    pub fn linger(mut self, at_most: Duration) -> bool {
        self.broken.is_none() && linger::linger(&mut self.socket, &mut self.outbound, at_most)
    }
}

impl AsFd for TcpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<S: Stream> StreamLink<S> {
    /// Sends queued frames while there is room.
    #[inline]
    pub fn flush_queued(&mut self) {
        if self.broken.is_none() {
            self.outbound.flush_queued(&mut self.socket);
        }
    }
}

impl<S: Stream> Link for StreamLink<S> {
    #[inline]
    fn frame_limit(&self) -> usize {
        Self::EAGER_LIMIT
    }

    #[inline]
    fn is_stream(&self) -> bool {
        true
    }

    #[inline]
    fn send(&mut self, head: &Head, payload: &Segments, more: bool) -> Result<(), Refused> {
        if self.broken.is_some() {
            return Err(Refused::Broken);
        }
        self.outbound.send(&mut self.socket, head, payload, more)
    }

    #[inline]
    fn poll(&mut self, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let sent = self.outbound.poll(&mut self.socket);
        while let Some((id, result)) = self.outbound.pushes.next_ended() {
            sink.pushed(me, id, result);
        }
        // Data that arrived before the end is received in any case. The kernel's buffer bounds its amount.
        if !sink.takes(me) && self.outbound.failed.is_none() && !self.socket.has_ended() {
            return Ok(sent);
        }
        let received =
            buffers::with_scratch(|scratch| self.inbound.poll(&mut self.socket, scratch, &mut self.pulls, me, sink));
        let broken = match (received, &self.outbound.failed) {
            (Ok(received), None) => return Ok(sent | received),
            // There may be more to deliver.
            (Ok(true), Some(_)) => return Ok(true),
            // Once a write has returned an error, a read returns only the end of the stream.
            (Ok(false) | Err(Broken::Died(_)), Some(failed)) => failed.clone(),
            (Err(broken), _) => broken,
        };
        let broken = self.socket.failure().cloned().unwrap_or(broken);
        self.broken = Some(broken.clone());
        Err(broken)
    }

    fn pull(&mut self, id: u32, offer: &Offer, into: &Lease, token: u32) -> Result<(), Refused> {
        if self.broken.is_some() {
            return Err(Refused::Broken);
        }
        let frame = pull_bytes(id, offer, into, token);
        self.outbound.send_small(&mut self.socket, FrameKind::Pull, &frame, false)?;
        self.pulls.start(offer, into, token);
        Ok(())
    }

    fn expect(&mut self, into: &Lease, token: u32) {
        self.pulls.expect(into, token);
    }

    fn push(&mut self, id: u32, token: u64, request: View<'_>, source: &Lease) -> Result<(), Refused> {
        if self.broken.is_some() || self.outbound.failed.is_some() {
            return Err(Refused::Broken);
        }
        if let Err(broken) = self.outbound.pushes.start(id, token, request, source) {
            self.broken = Some(broken);
            return Err(Refused::Broken);
        }
        self.outbound.push_started(&mut self.socket);
        Ok(())
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.outbound.is_idle() && self.outbound.pushes.is_idle() && self.socket.is_calm()
    }
}
