//! An internal crate of [percale](https://docs.rs/percale). Its API is not stable: programs use `percale`.
//!
//! The transports, which carry frames and payloads between the two ends of a connection.
//!
//! A `Link` is one end of an established connection. It carries frames in order in both directions, and moves the
//! payloads of offers with the mechanism of its transport. It does not handle matching, completions or addresses: it
//! reports what arrived to a [`Sink`] (the endpoint's engine). A link is owned by one endpoint and used by one thread
//! at a time.
//!
//! Rules for every transport (tested by the conformance suite):
//! * Each frame arrives whole and exactly once, and frames arrive in the order in which they were sent. Otherwise the
//!   link reports [`Broken`], after it has passed everything that did arrive to the sink.
//! * `send` never blocks. A frame that does not fit is refused with [`Refused::Full`], and no part of it is sent.
//! * Data from a peer is never trusted: malformed input is reported as [`Broken::Protocol`].
//! * The memory of a pull or a push is a [`Lease`]. The copying code enters the lease around one bounded copy or one
//!   system call that does not block, and has left it when the call into the link returns. If the memory is revoked in
//!   the meantime, only this transfer fails, and it fails at both ends.

// Labels on docs.rs the items that need a feature.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(all(any(test, feature = "sim"), feature = "verbs")))]
mod absent;
pub mod any;
pub mod background;
pub mod connect;
pub mod doorbell_allocator;
pub mod host;
pub mod kind;
mod links;
pub mod loopback;
#[cfg(all(test, not(loom)))]
mod owner;
pub mod peer_process;
pub mod shm;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
#[cfg(not(any(test, feature = "sim")))]
#[path = "sim/absent.rs"]
pub mod sim;
mod stream;
pub mod tcp;
#[cfg(any(test, fuzzing, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(feature = "verbs")]
pub mod verbs;
#[cfg(not(feature = "verbs"))]
#[path = "verbs/absent.rs"]
pub mod verbs;

// Modules of the crates below are re-exported under their names.
#[cfg(feature = "verbs")]
use percale_memory::table;
use percale_memory::{later, local_memory, sync, system, types};
use percale_region as region;
use percale_wire as wire;

pub use self::stream::{expected_pull, refused_pull};
use crate::local_memory::volatile::{Segments, View};
use crate::region::Refusal;
use crate::region::lease::Lease;
pub use crate::types::ConnectionId;
use crate::wire::head::Head;

/// The reason why a frame was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room at the moment. There will be room once the peer has made progress.
    Full,
    /// The link is broken; `poll` returns the reason.
    Broken,
}

/// The reason why a link cannot carry anything any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// The peer closed the connection normally.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer's process ended, or its socket was reset.
    #[error("the peer process exited or its connection was lost: {0}")]
    Died(String),
    /// Nothing arrived for longer than the timeout.
    #[error("the peer did not answer in time: {0}")]
    Timeout(String),
    /// The peer sent something that violates the protocol.
    #[error("the peer violated the protocol: {0}")]
    Protocol(String),
    /// This process cannot allocate memory that the connection needs.
    #[error("out of memory {0}")]
    NoMemory(String),
    /// A system call that the connection needs failed with this error number.
    #[error("the connection failed in this process: {0}")]
    System(String, i32),
}

impl Broken {
    /// Returns the libfabric error code (positive) that operations on the link return.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Closed => libc::ESHUTDOWN,
            Self::Died(_) => libc::ECONNRESET,
            Self::Timeout(_) => libc::ETIMEDOUT,
            Self::Protocol(_) => libc::EPROTO,
            Self::NoMemory(_) => libc::ENOMEM,
            Self::System(_, errno) => *errno,
        }
    }
}

/// The destination of a payload that is still arriving.
#[derive(Clone, Debug)]
pub struct Landing {
    /// The token to pass to [`Sink::landed`].
    pub token: u32,
    /// The destination memory. If it is shorter than the payload, the remaining bytes are discarded. Once the lease is
    /// revoked, everything that arrives is discarded.
    pub into: Lease,
}

/// The interface of the endpoint's engine to its links.
pub trait Sink {
    /// Returns whether frames of this connection can be accepted now. If not, the link does not read the frames that
    /// have arrived, but it continues to send.
    #[inline]
    fn takes(&self, _from: ConnectionId) -> bool {
        true
    }

    /// Handles a whole frame.
    fn frame(&mut self, from: ConnectionId, head: &Head, payload: View<'_>);

    /// Handles the head of a frame with a payload that is still arriving, and returns the destination of the payload.
    /// Called only for payloads that the link did not receive at once (byte streams), including those of
    /// [`FrameKind::Data`](crate::wire::head::FrameKind::Data) frames.
    fn begin(&mut self, from: ConnectionId, head: Head) -> Landing;

    /// Handles the arrival of the complete payload that was begun as `token`.
    fn landed(&mut self, from: ConnectionId, token: u32);

    /// Handles the end of the pull that was started as `token`. The result is the number of bytes that arrived, or the
    /// reason why the pull failed.
    fn pulled(&mut self, from: ConnectionId, token: u32, result: Result<u64, PullError>);

    /// Handles the end of a direct access to the peer's region, or of a part of it. Called only for accesses that had
    /// not ended when the call that began them returned.
    fn assisted(&mut self, from: ConnectionId, token: u32, result: Result<(), PullError>);

    /// Handles a direct access that was begun and cannot be completed: the target has to execute it instead. If there
    /// are several, the most recently begun one is reported first.
    fn undone(&mut self, from: ConnectionId, token: u32);

    /// Handles the end of the push of operation `id`: the peer has received the payload, or it no longer needs it.
    fn pushed(&mut self, from: ConnectionId, id: u32, result: Result<(), PullError>);
}

/// The reason why the payload of an offer did not arrive although the connection works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullError {
    /// The source or destination is not memory that can be read or written (EFAULT).
    Fault,
    /// The other end has withdrawn from the transfer: the sender has cancelled the operation, the operation never
    /// existed, or the memory at that end was revoked.
    Gone,
    /// The memory at this end was revoked: its region is closed. Some of the bytes may have been copied before.
    Revoked,
    /// The peer refused the read that expected these bytes.
    Refused(Refusal),
    /// The transport of a direct access by this side failed, and it is unknown whether the access took place.
    Unknown,
}

/// One end of an established connection.
pub trait Link {
    /// Returns the longest payload that `send` accepts now. It is at least 2,048.
    fn frame_limit(&self) -> usize;

    /// Returns whether this is a stream. In a stream, payloads that arrive in pieces are written directly to their
    /// destination ([`Sink::begin`]), and the data of a pull may arrive without a `Pull` frame
    /// ([`expect`](Self::expect)).
    fn is_stream(&self) -> bool;

    /// Sends one frame with the whole of `payload` (`head.len` is its length). The caller may reuse the memory of the
    /// payload when this returns. `more` means that another frame follows at once.
    ///
    /// # Errors
    /// [`Refused::Full`] if there is no room at the moment, [`Refused::Broken`] if the link is broken.
    fn send(&mut self, head: &Head, payload: &Segments, more: bool) -> Result<(), Refused>;

    /// Makes progress: sends queued frames, receives, performs pending copies, and reports to `sink`. Returns whether
    /// anything happened.
    ///
    /// # Errors
    /// If the link is broken. In this case all later calls fail as well.
    fn poll(&mut self, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken>;

    /// Starts fetching the payload of an offer into `into`, which may be shorter than the payload. `id` is the peer's
    /// operation, from the frame of the offer. If the memory of `into` is revocable, its address is not sent to the
    /// peer. Ends with [`Sink::pulled`].
    ///
    /// # Errors
    /// Like [`send`](Self::send).
    fn pull(&mut self, id: u32, offer: &crate::wire::head::Offer, into: &Lease, token: u32) -> Result<(), Refused>;

    /// Begins a pull into `into` over a stream. The frame that was sent last has announced this pull to the peer. The
    /// peer answers that frame without a `Pull` frame. Ends with [`Sink::pulled`].
    fn expect(&mut self, into: &Lease, token: u32);

    /// Serves a pull of operation `id` of this side from `source`. Called when the peer's `Pull` frame has arrived,
    /// with the transport's own payload of that frame as `request`. If `source` is revocable, the offer must not have
    /// contained its address. Ends with [`Sink::pushed`]. This function also serves a pull that the peer expects
    /// without a `Pull` frame. In this case `token` and `request` are those of `expected_pull`.
    ///
    /// # Errors
    /// Like [`send`](Self::send).
    fn push(&mut self, id: u32, token: u64, request: View<'_>, source: &Lease) -> Result<(), Refused>;

    /// Returns whether the link has nothing to send or copy, so that its owner may sleep.
    fn is_idle(&self) -> bool;
}
