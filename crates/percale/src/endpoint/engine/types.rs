//! What the engine keeps about operations under way.

use std::sync::Arc;

use super::access::Waiting;
use super::core::{send_flags, sent_entry};
use crate::address::PeerAddress;
use crate::completion::entry::Entry;
use crate::endpoint::pool::Many;
use crate::endpoint::posted::Posted;
use crate::endpoint::work::{OpFlags, SendWork};
use crate::memory::buffer::Buffer;
use crate::memory::lease::Lease;
use crate::memory::region::{Refusal, Registered};
use crate::memory::volatile::{Segment, Segments, View};
use crate::table::Id;
use crate::transport::Connection;
use crate::wire::head::{Head, Notice, Offer};

use super::super::matching::Held;

/// Who learns of an operation's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notify {
    /// The completion queue, with the context.
    Queue,
    /// The completion queue, where no room was reserved: one of many results of a multi-receive.
    Event,
    /// Nobody, unless it fails; then the completion queue.
    Silent,
    /// As [`Event`](Self::Event), of a receive of a shared receive context: should this endpoint close before it ends, and its queue with it,
    /// another endpoint of the context reports it.
    Shared,
    /// As [`Silent`](Self::Silent), of such a receive.
    SharedSilent,
    /// The safe operation whose number is the context.
    Operation,
    /// The operation, begun by a counter, whose number is the context: see [`Triggered`](super::triggered::Triggered).
    Triggered,
    /// A transfer of a group's operation: see [`Collectives`](super::collective::Collectives). The context is the group and the operation.
    Collective,
}

impl Notify {
    /// What contexts name: operations of the raw face, of the safe one, or of counters.
    #[inline]
    pub(crate) const fn class(self) -> u8 {
        match self {
            Self::Queue | Self::Event | Self::Silent | Self::Shared | Self::SharedSilent => 0,
            Self::Operation => 1,
            Self::Triggered => 2,
            Self::Collective => 3,
        }
    }

    /// Whether such operations may wait without limit: they were queued before, or own their buffers.
    #[inline]
    pub(crate) const fn may_wait(self) -> bool {
        matches!(self, Self::Operation | Self::Triggered | Self::Collective)
    }

    /// What a posted operation's flags ask for.
    #[inline]
    pub(crate) fn from_flags(flags: OpFlags) -> Self {
        if flags.contains(OpFlags::COMPLETION) { Self::Queue } else { Self::Silent }
    }
}

/// An operation as its owner names it. Contexts of different owners never meet: what the application chose is not a number of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// [`Notify::class`].
    class: u8,
    context: u64,
}

impl Identity {
    /// The operation with this context that is reported so.
    #[inline]
    pub(crate) const fn of(notify: Notify, context: u64) -> Self {
        Self { class: notify.class(), context }
    }
}

/// Which of an endpoint's two directions an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Sends.
    Transmit,
    /// Receives.
    Receive,
}

/// A send whose number the peer knows, until its last word about it.
#[derive(Debug)]
pub(crate) struct Send {
    /// The peer.
    pub(crate) to: Connection,
    /// How far it is.
    pub(crate) state: SendState,
}

/// How far a send is.
#[derive(Debug)]
pub(crate) enum SendState {
    /// It has not ended.
    Open(OpenSend),
    /// It was reported as failed, and its memory given back; the peer has yet to answer with an [`Kind::Ack`](crate::wire::head::Kind::Ack).
    Failed,
}

/// A send that has not ended.
#[derive(Debug)]
pub(crate) struct OpenSend {
    /// What is sent, with its memory: a transport may read it until the payload is [`Over`](Payload::Over).
    pub(crate) posted: Posted<SendWork>,
    /// How its end is reported.
    pub(crate) notify: Notify,
    /// Where the payload is.
    pub(crate) payload: Payload,
    /// The peer has yet to answer that it delivered the message.
    pub(crate) ack: bool,
}

/// Where the payload of a send is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// Here, offered to the peer.
    Offered,
    /// A transport reads it to serve the peer's pull: the send cannot end before that.
    Leaving,
    /// The same, and the peer has answered that it cannot take the message.
    LeavingRefused,
    /// It left with the message, or nothing needs it any more.
    Over,
}

impl OpenSend {
    /// What its completion says.
    pub(crate) fn entry(&self) -> Entry {
        let work = self.posted.work();
        sent_entry(work.context, send_flags(work.tag.is_some()), work.segments.len())
    }
}

/// An operation that its link has not taken: the connection is being made, a fence holds it, or there was no room.
#[derive(Debug)]
pub(crate) struct Pending {
    /// What to do.
    pub(crate) work: Work,
    /// Who is told.
    pub(crate) notify: Notify,
}

/// What can wait for its turn.
#[derive(Debug)]
pub(crate) enum Work {
    /// A message.
    Send(Posted<SendWork>),
    /// A message of a group.
    Collective(GroupMessage),
    /// An access to the peer's memory.
    Access(Waiting),
    /// Something with a window of ours.
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
    /// One without elements.
    pub(crate) const fn bare(tag: u64, data: u64, context: u64) -> Self {
        Self { segments: Segments::EMPTY, tag, data, context }
    }

    /// What a completion would say.
    #[inline]
    pub(crate) fn entry(&self) -> Entry {
        sent_entry(self.context, send_flags(true), self.segments.len())
    }

    /// The same as any send.
    pub(crate) fn to_send(self) -> SendWork {
        let Self { segments, tag, data, context } = self;
        let (peer, flags) = (PeerAddress::UNSPECIFIED, OpFlags::empty());
        SendWork { peer, segments, tag: Some(tag), data: Some(data), context, flags }
    }
}

impl Pending {
    /// How.
    pub(crate) fn flags(&self) -> OpFlags {
        match &self.work {
            Work::Send(posted) => posted.work().flags,
            Work::Collective(_) => OpFlags::empty(),
            Work::Access(access) => access.flags(),
            Work::Window(window) => window.flags,
        }
    }

    /// What a completion would say. `None` once some part of it has left: then it ends as an access that is executed.
    pub(crate) fn entry(&self) -> Option<Entry> {
        Some(match &self.work {
            Work::Send(posted) => {
                let work = posted.work();
                sent_entry(work.context, send_flags(work.tag.is_some()), work.segments.len())
            }
            Work::Collective(message) => message.entry(),
            Work::Access(access) => access.entry()?,
            Work::Window(window) => window.post().entry(),
        })
    }
}

/// Where a receive puts its message. Small, since receives are moved about: the rare several segments lie elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// In one segment.
    One(Segment),
    /// In the several of this entry of the core's `vectors`, so many bytes in all.
    Several(Id<Segments>, usize),
}

impl Place {
    /// Bytes in all.
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
    /// Where to.
    pub(crate) place: Place,
    /// Comes back in the completion.
    pub(crate) context: u64,
    /// Who is told.
    pub(crate) notify: Notify,
    /// The multi-receive buffer that this is, or that `place` is a part of.
    pub(crate) multi: Option<Id<Multi>>,
}

/// A buffer that takes many messages.
#[derive(Debug)]
pub(crate) struct Multi {
    /// The whole buffer.
    pub(crate) segments: Segments,
    /// Bytes given to messages so far.
    pub(crate) used: usize,
    /// Messages that were given a part and are not complete.
    pub(crate) in_flight: usize,
    /// It takes no more messages; when the last in flight completes, the buffer is released.
    pub(crate) closed: bool,
    /// It is a part of a buffer of a shared receive context, for one message.
    pub(crate) pooled: Option<Arc<Many>>,
    /// Context of all its completions.
    pub(crate) context: u64,
    /// Who is told.
    pub(crate) notify: Notify,
}

/// A message for which no receive was posted yet.
#[derive(Debug)]
pub(crate) struct Unexpected {
    /// Who sent it.
    pub(crate) from: Connection,
    /// Its head.
    pub(crate) head: Head,
    /// The message's length (not the frame's: an offer's frame is short).
    pub(crate) len: u64,
    /// Where its payload is.
    pub(crate) body: Body,
}

/// Where the payload of an unexpected message is.
#[derive(Debug)]
pub(crate) enum Body {
    /// Here, and short: no allocation.
    Short(Short),
    /// Here.
    Whole(Vec<u8>),
    /// Still arriving, into the buffer of this landing.
    Arriving(Id<Arrival>),
    /// At its sender.
    Offered(Offer),
}

/// The payload of a short unexpected message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    bytes: [u8; Short::MAX],
    len: u8,
}

impl Short {
    /// Longer payloads are not short.
    pub(crate) const MAX: usize = 48;

    /// Copies a payload of at most [`MAX`](Self::MAX) bytes.
    pub(crate) fn of(payload: View<'_>) -> Self {
        let mut bytes = [0; Self::MAX];
        let len = payload.read_into(&mut bytes);
        Self { bytes, len: len as u8 }
    }

    /// The payload.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// A payload that is arriving over a byte stream.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// Who sends it.
    pub(crate) from: Connection,
    /// The message's head.
    pub(crate) head: Head,
    /// The receive that it goes to, once there is one.
    pub(crate) receive: Option<Receive>,
    /// Where it lands while there is none.
    pub(crate) heap: Option<Buffer>,
    /// Where the message is held while there is none.
    pub(crate) held: Option<Held>,
    /// It is a write that goes straight to this region, or nowhere, because it is refused.
    pub(crate) region: Option<Result<Arc<Registered>, Refusal>>,
}

/// A payload that is being fetched.
#[derive(Debug)]
pub(crate) enum Pull {
    /// That of an offered message.
    Message {
        /// Who offered it.
        from: Connection,
        /// The offer's head.
        head: Head,
        /// The message's length.
        len: u64,
        /// The receive that it goes to.
        receive: Receive,
    },
    /// That of a long write to a region of ours.
    Store(super::target::Store),
    /// What this part of ours reads.
    Fetch {
        /// Whose memory it is.
        from: Connection,
        /// Our part.
        part: Id<super::access::Part>,
    },
}

impl Pull {
    /// Whose payload it is.
    pub(crate) const fn from(&self) -> Connection {
        match self {
            Self::Message { from, .. } | Self::Fetch { from, .. } => *from,
            Self::Store(store) => store.from(),
        }
    }
}

/// Bytes of a region that a peer is about to fetch.
#[derive(Debug)]
pub(crate) struct Serve {
    /// Who asked.
    pub(crate) to: Connection,
    /// What it gets.
    pub(crate) source: Lease,
    /// The copy that `source` names, if the region's own memory is not ours to touch.
    pub(crate) staged: Option<Buffer>,
    /// It is being fetched.
    pub(crate) asked: bool,
    /// The peer expected it: it counts as an answer until it has left.
    pub(crate) expected: bool,
    /// It is all of a read, which is counted when it is over.
    pub(crate) counted: bool,
}

/// Something to do on a link, decided while the link was busy handing us frames.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Send this frame, which has no payload.
    Frame(Head),
    /// No link's business: groups that can go on do.
    Advance,
    /// Send this frame and its payload.
    Bytes(Head, Vec<u8>),
    /// Send this [`Kind::Wrote`](crate::wire::head::Kind::Wrote) and its payload.
    Notice(Head, Notice),
    /// Fetch an offer.
    Pull {
        /// The sender's operation.
        id: u32,
        /// What it offers.
        offer: Offer,
        /// Where to.
        into: Lease,
        /// Our pull.
        token: u32,
    },
    /// Serve our own offer.
    Push {
        /// Our send.
        id: u32,
        /// The receiver's token.
        token: u64,
        /// The receiver's request, copied out of the transport's memory.
        request: Request,
        /// What it gets.
        source: Lease,
    },
}

/// The payload of a pull frame: at most what one line and its continuation hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The bytes; the first `len` count.
    pub(crate) bytes: [u8; Request::MAX],
    /// How many.
    pub(crate) len: u8,
}

impl Request {
    /// Longer pull requests are refused.
    pub(crate) const MAX: usize = 64;

    /// Copies a request of at most [`MAX`](Self::MAX) bytes.
    pub(crate) fn of(payload: View<'_>) -> Self {
        let mut request = Self { bytes: [0; Self::MAX], len: payload.len() as u8 };
        payload.read_into(&mut request.bytes);
        request
    }
}
