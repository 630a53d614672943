//! An internal crate of [percale](https://docs.rs/percale), without any promise of stability: programs use `percale`.
//!
//! Transports: how the two ends of one connection reach each other.
//!
//! A `Link` is one end of an established connection. It carries frames in order, both ways, and moves the payloads of offers by whatever means it
//! has. It knows nothing of matching, completions or addresses: it reports to a [`Sink`] (the endpoint's engine) what arrived. Links are owned by one
//! endpoint and used by one thread at a time.
//!
//! Rules every transport keeps (the conformance suite tests them):
//! * Frames arrive whole, once, in the order sent, or not at all: then the link reports [`Broken`], after
//!   everything that did arrive was given to the sink.
//! * `send` never blocks. What does not fit is refused with [`Refused::Full`] and nothing of it was sent.
//! * What a peer wrote is never trusted: anything malformed is [`Broken::Protocol`].
//! * The memory of a pull or a push is a [`Lease`]: the code that copies enters it around one bounded copy or system call that does not block, and
//!   has left it when the call into the link returns. If the memory is revoked meanwhile, the transfer fails at both ends and nothing else does.

#[cfg(not(all(any(test, feature = "sim"), feature = "verbs")))]
mod absent;
pub mod any;
pub mod background;
pub mod connect;
pub mod doorbell;
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

// The modules of the crates below keep their paths.
#[cfg(feature = "verbs")]
use percale_memory::table;
use percale_memory::{later, local_memory, sync, system, types};
use percale_region as region;
use percale_wire as wire;

pub use self::stream::{expected_pull, refused_pull};
use crate::local_memory::volatile::{Segments, View};
use crate::region::Refusal;
use crate::region::lease::Lease;
pub use crate::types::Connection;
use crate::wire::head::Head;

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No room now; there will be, once the peer has made progress.
    Full,
    /// The link is broken; `poll` returns the reason.
    Broken,
}

/// Why a link can carry nothing any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// The peer closed the connection in good order.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer's process ended, or its socket was reset.
    #[error("the peer died: {0}")]
    Died(String),
    /// Nothing arrived for longer than the timeout.
    #[error("the peer did not answer in time: {0}")]
    Timeout(String),
    /// The peer sent what no percale sends.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// This process has no memory that the connection needs.
    #[error("there is no memory {0}")]
    NoMemory(String),
    /// The system refused a call that the connection needs, with this number.
    #[error("the connection failed in this process: {0}")]
    System(String, i32),
}

impl Broken {
    /// The code that libfabric has for this error (positive), which operations on the link end with.
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

/// Where a payload that is still arriving goes.
#[derive(Clone, Debug)]
pub struct Landing {
    /// What to hand to [`Sink::landed`].
    pub token: u32,
    /// Where the payload goes. It may be shorter than the payload: the rest is discarded (truncation, or a discard). So is everything that arrives
    /// once it is revoked.
    pub into: Lease,
}

/// The endpoint's engine, as its links see it.
pub trait Sink {
    /// Returns whether frames of this connection are to be taken now. If not, a link leaves them where they are; it still sends.
    #[inline]
    fn takes(&self, _from: Connection) -> bool {
        true
    }

    /// A whole frame.
    fn frame(&mut self, from: Connection, head: &Head, payload: View<'_>);

    /// Handles the head of a frame with a payload that is still coming: returns where the payload goes. Called only for payloads that the link did
    /// not receive at once (byte streams). For [`Kind::Data`](crate::wire::head::Kind::Data) as well.
    fn begin(&mut self, from: Connection, head: Head) -> Landing;

    /// The payload begun as `token` has arrived.
    fn landed(&mut self, from: Connection, token: u32);

    /// A pull that was started as `token` is over: the bytes that arrived, or why not all did.
    fn pulled(&mut self, from: Connection, token: u32, result: Result<u64, PullError>);

    /// An access of ours to the peer's region that we make by ourselves is over, or a part of one, which had not ended in the call that
    /// began it.
    fn assisted(&mut self, from: Connection, token: u32, result: Result<(), PullError>);

    /// Such an access was begun and can not be ended: the target is to execute it. Of several the one that was begun last comes first.
    fn undone(&mut self, from: Connection, token: u32);

    /// The payload of the sender's operation `id` has left: the peer has it or holds no claim on it any more.
    fn pushed(&mut self, from: Connection, id: u32, result: Result<(), PullError>);
}

/// Why the payload of an offer did not arrive although the connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullError {
    /// The source or destination is not memory that can be read or written (EFAULT).
    Fault,
    /// The other end has given it up: the sender cancelled the operation meanwhile, or it never existed, or the memory of
    /// that end was revoked.
    Gone,
    /// The memory of our end was revoked: its region is closed. A part of the bytes may have been copied before.
    Revoked,
    /// The peer refuses the read that expected these bytes.
    Refused(Refusal),
    /// An access that this side makes itself: what carried it failed, and it is unknown whether it was made.
    Unknown,
}

/// One end of an established connection.
pub trait Link {
    /// The longest payload that `send` takes now. At least 2,048.
    fn frame_limit(&self) -> usize;

    /// Returns whether this is a stream: payloads that arrive in pieces go straight to their place ([`Sink::begin`]), and the data of a
    /// pull may come without a `Pull` frame ([`expect`](Self::expect)).
    fn is_stream(&self) -> bool;

    /// Sends one frame: its payload is `payload`, whole (`head.len` is its length). When this returns the memory may be reused. `more` announces that
    /// another frame follows at once.
    ///
    /// # Errors
    /// [`Refused::Full`] if there is no room now, [`Refused::Broken`] if there never will be.
    fn send(&mut self, head: &Head, payload: &Segments, more: bool) -> Result<(), Refused>;

    /// Makes progress: sends what waits, receives what came, copies what is due, and reports to `sink`. Returns whether anything happened.
    ///
    /// # Errors
    /// Once the link is broken, and ever after.
    fn poll(&mut self, me: Connection, sink: &mut impl Sink) -> Result<bool, Broken>;

    /// Starts fetching an offer (the payload of a `MessageOffer` or `TaggedOffer` frame, operation `id` of the peer) into `into`, which may be
    /// shorter than what is offered. If that memory can be revoked, its location is not sent to the peer. Ends with [`Sink::pulled`].
    ///
    /// # Errors
    /// As `send`.
    fn pull(&mut self, id: u32, offer: &crate::wire::head::Offer, into: &Lease, token: u32) -> Result<(), Refused>;

    /// For streams: begins a pull that a frame just sent has announced to the peer, which answers it without a `Pull` frame. It fills `into`. Ends
    /// with [`Sink::pulled`].
    fn expect(&mut self, into: &Lease, token: u32);

    /// The peer's `Pull` frame for our operation `id` arrived, with the transport's own payload: serves it from `source`. If that can be revoked, the
    /// offer must not have contained its location. Ends with [`Sink::pushed`]. Also serves what the peer expects: then `token` and `request` are
    /// those of `expected_pull`.
    ///
    /// # Errors
    /// As `send`.
    fn push(&mut self, id: u32, token: u64, request: View<'_>, source: &Lease) -> Result<(), Refused>;

    /// Returns whether the link holds nothing that waits to be sent or copied, so that its owner may sleep.
    fn is_idle(&self) -> bool;
}
