//! The state that the engine keeps for operations under way.

use std::sync::Arc;

use super::core::{send_flags, sent_entry};
use super::messages::MultiReceive;
use super::remote::PendingAccess;
use crate::completion::entry::Entry;
use crate::endpoint::posted::Posted;
use crate::endpoint::work::{OpFlags, SendWork};
use crate::local_memory::buffer::Buffer;
use crate::local_memory::short_bytes::ShortBytes;
use crate::local_memory::volatile::{IOV_LIMIT, Segment, Segments, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::region::{Refusal, Registered};
use crate::table::Id;
use crate::transport::ConnectionId;
use crate::types::PeerAddress;
use crate::wire::head::{Head, Offer, WriteNotice};

use super::super::matching::HeldMessage;

/// Where the end of an operation is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notify {
    /// The completion queue, with the context.
    Queue,
    /// The completion queue, without reserved room: for an operation that may have many results, or that may wait for
    /// long before it begins.
    Event,
    /// Success is not reported. A failure goes to the completion queue.
    Silent,
    /// Like [`Event`](Self::Event), but for a receive of a shared receive context: if this endpoint closes before the
    /// receive ends, and its queue with it, another endpoint of the context reports it.
    Shared,
    /// Like [`Silent`](Self::Silent), but for a receive of a shared receive context.
    SharedSilent,
    /// A safe operation. The context is its ID.
    Operation,
    /// An operation that a counter started. The context is its number. See [`Triggered`](super::triggered::Triggered).
    Triggered,
    /// A transfer of a group's operation: see [`Groups`](super::groups::Groups). The context is the group and the
    /// operation.
    Collective,
}

impl Notify {
    /// Returns the class of operations to which the context belongs: raw operations, safe operations, operations that a
    /// counter began, or transfers of groups.
    #[inline]
    pub(crate) const fn class(self) -> u8 {
        match self {
            Self::Queue | Self::Event | Self::Silent | Self::Shared | Self::SharedSilent => 0,
            Self::Operation => 1,
            Self::Triggered => 2,
            Self::Collective => 3,
        }
    }

    /// Returns whether operations that are reported in this way may wait without limit: they were queued before, or own
    /// their buffers.
    #[inline]
    pub(crate) const fn may_wait(self) -> bool {
        matches!(self, Self::Operation | Self::Triggered | Self::Collective)
    }

    /// Returns the kind of report that the flags of a posted operation request.
    #[inline]
    pub(crate) fn from_flags(flags: OpFlags) -> Self {
        if flags.contains(OpFlags::COMPLETION) { Self::Queue } else { Self::Silent }
    }
}

/// The identity of an operation. Contexts of different classes are never confused: a context that the application chose
/// is not a number that the engine assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OperationIdentity {
    /// The class of the operation ([`Notify::class`]).
    class: u8,
    context: u64,
}

impl OperationIdentity {
    /// Returns the identity of the operation with this context that is reported in this way.
    #[inline]
    pub(crate) const fn of(notify: Notify, context: u64) -> Self {
        Self { class: notify.class(), context }
    }
}

/// The direction of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// All operations that the endpoint begins, except receives.
    Transmit,
    /// Receives.
    Receive,
}

/// An operation that its link has not taken: the connection is being established, a fence holds the operation, or the
/// link had no room.
#[derive(Debug)]
pub(crate) struct PendingOperation {
    /// The operation.
    pub(crate) work: QueuedWork,
    /// Where the completion of the operation is reported.
    pub(crate) notify: Notify,
}

/// An operation that can wait for its turn.
#[derive(Debug)]
pub(crate) enum QueuedWork {
    /// A message.
    Send(Posted<SendWork>),
    /// A message between members of a group.
    Collective(GroupMessage),
    /// An access to the peer's memory.
    Access(PendingAccess),
    /// Binds or invalidates a local window.
    Window(Box<crate::endpoint::window_work::WindowWork>),
}

/// A message between members of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupMessage {
    pub(crate) segments: Segments,
    pub(crate) tag: u64,
    pub(crate) data: u64,
    pub(crate) context: u64,
}

impl GroupMessage {
    /// Returns a message without elements.
    pub(crate) const fn bare(tag: u64, data: u64, context: u64) -> Self {
        Self { segments: Segments::EMPTY, tag, data, context }
    }

    /// Returns the completion of the message.
    #[inline]
    pub(crate) fn entry(&self) -> Entry {
        sent_entry(self.context, send_flags(true), self.segments.len())
    }

    /// Returns the message in the form of an ordinary send.
    pub(crate) fn to_send(self) -> SendWork {
        let Self { segments, tag, data, context } = self;
        let (peer, flags) = (PeerAddress::UNSPECIFIED, OpFlags::empty());
        SendWork { peer, segments, tag: Some(tag), data: Some(data), context, flags }
    }
}

impl PendingOperation {
    /// Returns the flags of the operation.
    pub(crate) fn flags(&self) -> OpFlags {
        match &self.work {
            QueuedWork::Send(posted) => posted.work().flags,
            QueuedWork::Collective(_) => OpFlags::empty(),
            QueuedWork::Access(access) => access.flags(),
            QueuedWork::Window(window) => window.flags,
        }
    }

    /// Returns the completion of the operation. Returns `None` if a part of the operation was sent: the operation then
    /// ends like an executed access.
    pub(crate) fn entry(&self) -> Option<Entry> {
        Some(match &self.work {
            QueuedWork::Send(posted) => {
                let work = posted.work();
                sent_entry(work.context, send_flags(work.tag.is_some()), work.segments.len())
            }
            QueuedWork::Collective(message) => message.entry(),
            QueuedWork::Access(access) => access.entry()?,
            QueuedWork::Window(window) => window.post().entry(),
        })
    }
}

/// The destination of a received message. The type is small, since receives are often moved: the rare lists of several
/// segments are kept elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReceiveDestination {
    /// In one segment.
    One(Segment),
    /// In the segments of this entry of [`ReceiveMemory`](super::messages::ReceiveMemory), with the total number of
    /// bytes.
    Several(Id<Segments>, usize),
}

impl ReceiveDestination {
    /// Returns the total number of bytes.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::One(segment) => segment.len(),
            Self::Several(_, len) => *len,
        }
    }
}

/// A posted receive.
#[derive(Debug)]
pub(crate) struct Receive {
    /// Where the message goes.
    pub(crate) place: ReceiveDestination,
    /// The context that the completion returns.
    pub(crate) context: u64,
    /// Where the completion of the operation is reported.
    pub(crate) notify: Notify,
    /// The multi-receive buffer, if this receive is one, or if `place` is a part of one.
    pub(crate) multi: Option<Id<MultiReceive>>,
}

/// A message for which no receive was posted yet.
#[derive(Debug)]
pub(crate) struct Unexpected {
    /// The peer that sent the message.
    pub(crate) from: ConnectionId,
    /// The message's head.
    pub(crate) head: Head,
    /// The message's length (not the frame's: an offer's frame is short).
    pub(crate) len: u64,
    /// Where the message's payload is.
    pub(crate) body: UnexpectedPayload,
}

/// Where the payload of an unexpected message is.
#[derive(Debug)]
pub(crate) enum UnexpectedPayload {
    /// In this entry: the payload is short enough to need no allocation.
    Short(Short),
    /// In this buffer.
    Whole(Vec<u8>),
    /// Still arriving, into the buffer of this landing.
    Arriving(Id<StreamArrival>),
    /// Still at its sender.
    Offered(Offer),
}

/// The payload of a short unexpected message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    bytes: [u8; Short::MAX],
    len: u8,
}

impl Short {
    /// The maximum length of a short payload, in bytes.
    pub(crate) const MAX: usize = 48;

    /// Copies a payload of at most [`MAX`](Self::MAX) bytes.
    pub(crate) fn of(payload: View<'_>) -> Self {
        let mut bytes = [0; Self::MAX];
        let len = payload.read_into(&mut bytes);
        Self { bytes, len: len as u8 }
    }

    /// Returns the payload.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// A payload that is arriving over a byte stream.
#[derive(Debug)]
pub(crate) struct StreamArrival {
    /// The peer that sends the payload.
    pub(crate) from: ConnectionId,
    /// The message's head.
    pub(crate) head: Head,
    /// The receive of the message, once there is one.
    pub(crate) receive: Option<Receive>,
    /// The buffer into which the payload arrives while there is no receive.
    pub(crate) heap: Option<Buffer>,
    /// Where the message is held while there is no receive.
    pub(crate) held: Option<HeldMessage>,
    /// For a write: the region into which its bytes arrive directly, or the reason for refusing the write. The bytes
    /// of a refused write are dropped.
    pub(crate) region: Option<Result<Arc<Registered>, Refusal>>,
}

/// A payload that is being fetched.
#[derive(Debug)]
pub(crate) enum PayloadPull {
    /// The payload of an offered message.
    Message {
        /// The peer that offered the message.
        from: ConnectionId,
        /// The offer's head.
        head: Head,
        /// The message's length.
        len: u64,
        /// The receive that gets the message.
        receive: Receive,
    },
    /// The payload of a long write to a local region.
    Store(super::target::FetchedWrite),
    /// The bytes that this part of a local read fetches.
    Fetch {
        /// The peer that owns the memory.
        from: ConnectionId,
        /// The part of the read.
        part: Id<super::remote::AccessPart>,
    },
}

impl PayloadPull {
    /// Returns the peer from which the payload comes.
    pub(crate) const fn from(&self) -> ConnectionId {
        match self {
            Self::Message { from, .. } | Self::Fetch { from, .. } => *from,
            Self::Store(store) => store.from(),
        }
    }
}

/// The result of a pull request.
pub(super) enum PullAnswer {
    /// The bytes of a local operation.
    Source(Lease),
    /// The operation no longer exists: the request is late.
    Gone,
    /// The operation offers nothing, or its payload was requested before.
    Nothing,
}

/// An action for a link. It was requested while the link was borrowed to pass frames.
#[derive(Clone, Debug)]
pub(crate) enum LinkAction {
    /// Send this frame, which has no payload.
    Frame(Head),
    /// Advance the groups that can continue. This action uses no link.
    Advance,
    /// Send this frame and its payload.
    Bytes(Head, ShortBytes),
    /// Send this [`FrameKind::Wrote`](crate::wire::head::FrameKind::Wrote) and its payload.
    Notice(Head, WriteNotice),
    /// Fetch the payload of an offer.
    Pull {
        /// The sender's operation.
        id: u32,
        /// The bytes that the sender offers.
        offer: Offer,
        /// Where the payload goes.
        into: Lease,
        /// The number of the local pull.
        token: u32,
    },
    /// Serve an offer that this endpoint made.
    Push {
        /// The number of the local send, or of the part or transfer of an access.
        id: u32,
        /// The receiver's token.
        token: u64,
        /// The receiver's request, copied out of the transport's memory.
        request: PullFrame,
        /// The bytes that the receiver gets.
        source: Lease,
    },
}

/// The payload of a pull frame, at most [`MAX`](Self::MAX) bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PullFrame {
    /// The bytes, of which the first `len` are valid.
    pub(crate) bytes: [u8; PullFrame::MAX],
    /// The number of valid bytes.
    pub(crate) len: u8,
}

impl PullFrame {
    /// The maximum length of a pull request, in bytes. Longer requests are refused.
    pub(crate) const MAX: usize = 64;

    /// Copies a request of at most [`MAX`](Self::MAX) bytes.
    pub(crate) fn of(payload: View<'_>) -> Self {
        let mut request = Self { bytes: [0; Self::MAX], len: payload.len() as u8 };
        payload.read_into(&mut request.bytes);
        request
    }
}

/// Reads and checks an offer. `longest` is the largest number of bytes that may be offered in such a frame.
///
/// # Errors
/// Returns the peer's violation of the protocol.
pub(in crate::endpoint::engine) fn checked_offer(payload: View<'_>, longest: u64) -> Result<Offer, &'static str> {
    let offer = payload.read::<Offer>(0).ok_or("offer frame too short")?;
    offer.check(longest, IOV_LIMIT as u32)?;
    Ok(offer)
}
