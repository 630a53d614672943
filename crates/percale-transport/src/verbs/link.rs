//! A link over queue pairs. It carries the frames of a byte stream over a [`Wire`], and makes `direct` accesses to
//! regions.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Wire;
use super::direct::{Direct, Pins, PostFailure, WireParts};
use crate::local_memory::volatile::{Segments, View};
use crate::region::lease::Lease;
use crate::region::{AccessOrigin, Keys, RemoteMemory};
use crate::system::process_socket::ProcessSocket;
use crate::tcp::{Socket, Stream, StreamLink, TcpOptions};
use crate::wire::head::{Head, Offer};
use crate::{Broken, ConnectionId, Landing, Link, PullError, Refused, Sink};

/// One end of a connection over queue pairs.
#[derive(Debug)]
pub struct VerbsLink {
    // Must be the first field: its queue pairs use the completion queue of the frames' queue pair.
    direct: Direct,
    frames: StreamLink<Wire>,
    parts: WireParts,
}

/// The interval between two checks for data that has not been acknowledged yet.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

impl VerbsLink {
    /// Creates a link from a connected wire and the TCP connection. When the TCP connection ends, the peer has ended.
    /// `keys` are the keys of the local regions, if the peer may access them directly. The peer's accesses have the
    /// origin `via`. The memory of local operations is registered with `pins`.
    ///
    /// # Errors
    /// The kernel's error for the connection's options, or an error if there are no descriptors left.
    pub fn new(
        mut wire: Wire,
        connection: ProcessSocket,
        options: TcpOptions,
        keys: Option<Arc<Keys>>,
        via: AccessOrigin,
        pins: Pins,
    ) -> io::Result<Self> {
        wire.watch(Socket::new(connection, &options)?)?;
        let parts =
            WireParts { adapter: Arc::clone(wire.adapter()), queue: Arc::clone(wire.queue()), peer: wire.peer() };
        Ok(Self { direct: Direct::new(keys, via, pins), frames: StreamLink::of(wire), parts })
    }

    /// Returns whether an access to this memory can be posted. Sends a request to the peer if none was sent for the
    /// region.
    pub fn reaches(&mut self, remote: &RemoteMemory, writes: bool) -> bool {
        self.direct.reaches(&self.parts, remote, writes)
    }

    /// Returns the maximum number of bytes of such an access.
    pub fn longest_access(&self) -> u64 {
        self.direct.longest()
    }

    /// Posts an access to memory for which [`reaches`](Self::reaches) returned true. The local memory is lent until the
    /// end of the access, which is reported by [`Sink::assisted`] or [`Sink::undone`].
    ///
    /// # Errors
    /// See [`PostFailure`]. After an error nothing was posted.
    pub fn post_access(
        &mut self,
        writes: bool,
        remote: &RemoteMemory,
        local: &Segments,
        token: u32,
    ) -> Result<(), PostFailure> {
        self.direct.post(writes, remote, local, token)
    }

    /// Returns whether there is work that only continues when the link is polled.
    #[inline]
    pub fn has_background_work(&self) -> bool {
        self.direct.has_background_work()
    }

    /// Sends queued data now; see [`StreamLink::flush_queued`].
    #[inline]
    pub fn flush_queued(&mut self) {
        self.frames.flush_queued();
    }

    fn stream(&self) -> &Wire {
        self.frames.stream()
    }

    fn stream_mut(&mut self) -> &mut Wire {
        self.frames.stream_mut()
    }

    /// Returns the range of bytes that the peer's device may not have acknowledged, or `None` if there are none. Until
    /// these bytes have arrived, this side has to continue to make progress.
    #[inline]
    pub(crate) fn unacknowledged(&self) -> Option<(u64, u64)> {
        let (sent, acknowledged) = self.stream().progress();
        let waiting = self.frames.outbound().ahead_of_last();
        (sent > acknowledged || waiting > 0).then_some((acknowledged, sent + waiting))
    }

    /// Returns a descriptor that is readable when something has completed after [`arm`](Self::arm).
    #[must_use]
    pub fn completions(&self) -> BorrowedFd<'_> {
        self.stream().completions()
    }

    /// Returns the descriptors that become readable when [`look`](Self::look) should be called.
    pub fn watches(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.stream().watches()
    }

    /// Requests a wake-up of a thread that sleeps on the descriptor for the next completion. Completions that have
    /// already arrived do not cause a wake-up.
    pub fn arm(&mut self) {
        self.stream_mut().arm();
    }

    /// Checks whether the end of the peer or of the device was reported. Returns true if the stream has failed or the
    /// peer has ended.
    pub fn look(&mut self) -> bool {
        self.stream_mut().look();
        self.stream().is_over()
    }

    /// Sets the queue pair to the error state, as a device may do.
    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub fn fail(&self) {
        self.stream().fail_pair();
    }

    /// Like [`fail`](Self::fail), but for the queue pair of this side's accesses.
    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub fn fail_accesses(&self) {
        self.direct.fail_lane();
    }

    /// Like [`fail`](Self::fail), but for the queue pair of the peer's accesses.
    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub fn fail_granted(&self) {
        self.direct.fail_granted();
    }

    /// Describes the device, the port and the address, and how accesses are made, as text.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{}; {}", self.stream().describe(), self.direct.describe())
    }

    /// Closes the connection after everything that is queued (including a `Bye` frame) has reached the peer's device,
    /// or after `at_most`. This blocks. Bytes that arrive in the meantime are discarded. Returns whether everything
    /// reached the peer's device.
    pub fn linger(mut self, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        let mut scrap = [0; 4096];
        loop {
            let flushed = self.frames.flush();
            let (sent, acknowledged) = self.stream().progress();
            if flushed && sent == acknowledged {
                return true;
            }
            self.stream_mut().look();
            // Reading processes completions and returns credits, so that both sides make progress.
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

impl Link for VerbsLink {
    #[inline]
    fn frame_limit(&self) -> usize {
        self.frames.frame_limit()
    }

    #[inline]
    fn is_stream(&self) -> bool {
        self.frames.is_stream()
    }

    #[inline]
    fn send(&mut self, head: &Head, payload: &Segments, more: bool) -> Result<(), Refused> {
        self.frames.send(head, payload, more)
    }

    #[inline]
    fn poll(&mut self, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken> {
        let mut filter = Filter { direct: &mut self.direct, parts: &self.parts, sink, wrong: None };
        let polled = self.frames.poll(me, &mut filter);
        if let Some(why) = filter.wrong {
            return Err(Broken::Protocol(why.into()));
        }
        // Also called for a broken link, so that completed accesses are reported.
        let any = self.direct.progress(&self.parts, me, &mut self.frames, sink)?;
        polled.map(|polled| polled | any)
    }

    fn pull(&mut self, id: u32, offer: &Offer, into: &Lease, token: u32) -> Result<(), Refused> {
        self.frames.pull(id, offer, into, token)
    }

    fn expect(&mut self, into: &Lease, token: u32) {
        self.frames.expect(into, token);
    }

    fn push(&mut self, id: u32, token: u64, request: View<'_>, source: &Lease) -> Result<(), Refused> {
        self.frames.push(id, token, request, source)
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.frames.is_idle() && self.direct.is_idle()
    }
}

/// A sink that handles the frames of direct accesses and passes on all others.
struct Filter<'a, S> {
    direct: &'a mut Direct,
    parts: &'a WireParts,
    sink: &'a mut S,
    /// The protocol violation of the peer, if any.
    wrong: Option<&'static str>,
}

impl<S: Sink> Sink for Filter<'_, S> {
    #[inline]
    fn takes(&self, from: ConnectionId) -> bool {
        self.sink.takes(from)
    }

    #[inline]
    fn frame(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        if !Direct::takes(head.kind) {
            return self.sink.frame(from, head, payload);
        }
        if let Err(why) = self.direct.frame(self.parts, head, payload) {
            self.wrong.get_or_insert(why);
        }
    }

    fn begin(&mut self, from: ConnectionId, head: Head) -> Landing {
        self.sink.begin(from, head)
    }

    fn landed(&mut self, from: ConnectionId, token: u32) {
        self.sink.landed(from, token);
    }

    fn pulled(&mut self, from: ConnectionId, token: u32, result: Result<u64, PullError>) {
        self.sink.pulled(from, token, result);
    }

    fn assisted(&mut self, from: ConnectionId, token: u32, result: Result<(), PullError>) {
        self.sink.assisted(from, token, result);
    }

    fn undone(&mut self, from: ConnectionId, token: u32) {
        self.sink.undone(from, token);
    }

    fn pushed(&mut self, from: ConnectionId, id: u32, result: Result<(), PullError>) {
        self.sink.pushed(from, id, result);
    }
}
