//! Pulls and pushes over a transport that only carries frames in order (tcp, sim).
//!
//! The receiver of an offer sends `Pull { id, tag = token << 32, payload = bytes wanted }`; the sender answers with
//! `Data { id = token, tag = offset }` frames, in order and without gaps, at least one (of no bytes, if none are
//! wanted), or with one empty `Data` frame whose offset is [`GONE`]. Each end keeps a table: [`Pulls`] of what it asked
//! for, [`Pushes`] of what it has yet to send. What the peer says is checked against these tables and against nothing
//! else: a frame that does not fit them breaks the connection.
//!
//! Both tables give back their memory when they are empty, so that an idle connection costs next to nothing.

use std::collections::{HashMap, VecDeque};

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::{Broken, PullError};
use crate::memory::volatile::{Segments, View};
use crate::wire::head::{Flags, HEAD_BYTES, Head, Kind, Offer};

/// The offset of a `Data` frame that says that the offer is void.
const GONE: u64 = u64::MAX;

/// Bytes of a whole `Pull` frame.
pub(super) const PULL_BYTES: usize = HEAD_BYTES + size_of::<U64>();

/// What we asked our peer for and do not have yet.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    table: HashMap<u32, Pull>,
}

#[derive(Debug)]
struct Pull {
    into: Segments,
    received: u64,
    wanted: u64,
}

/// What became of a pull: its token, and its result.
pub(super) type Pulled = (u32, Result<u64, PullError>);

/// What a `Data` frame means.
#[derive(Debug)]
pub(super) enum Data {
    /// Its payload goes here; [`Pulls::arrived`] is told when it has.
    Bytes(Segments),
    /// A pull has ended, without more bytes.
    Ended(Pulled),
}

impl Pulls {
    /// Notes a pull and returns how many bytes to ask for; [`pull_head`] and this number make the frame.
    pub(super) fn start(&mut self, offer: &Offer, into: &Segments, token: u32) {
        let pull = Pull { into: *into, received: 0, wanted: wanted(offer, into) };
        let before = self.table.insert(token, pull);
        debug_assert!(before.is_none(), "a token names one pull at a time");
    }

    /// Checks the head of a `Data` frame and says where its payload goes.
    pub(super) fn data(&mut self, head: &Head) -> Result<Data, Broken> {
        let Some(pull) = self.table.get(&head.id) else {
            return Err(Broken::Protocol(format!("data for pull {}, which nobody started", head.id)));
        };
        if head.tag == GONE && head.len == 0 {
            self.remove(head.id);
            return Ok(Data::Ended((head.id, Err(PullError::Gone))));
        }
        let rest = pull.wanted - pull.received;
        if head.tag != pull.received || u64::from(head.len) > rest || (head.len == 0 && rest != 0) {
            return Err(Broken::Protocol(format!(
                "{} bytes of data at offset {} of a pull that wants {rest} at {}",
                head.len, head.tag, pull.received
            )));
        }
        // `received` is less than the length of `into`, so it fits.
        let offset = usize::try_from(pull.received).unwrap_or(usize::MAX);
        Ok(Data::Bytes(pull.into.slice(offset, head.len as usize)))
    }

    /// The payload of a `Data` frame, `len` bytes, has arrived in full; tells whether the pull ended with it.
    pub(super) fn arrived(&mut self, token: u32, len: u32) -> Option<Pulled> {
        let pull = self.table.get_mut(&token)?;
        pull.received += u64::from(len);
        if pull.received < pull.wanted {
            return None;
        }
        let received = pull.received;
        self.remove(token);
        Some((token, Ok(received)))
    }

    /// Whether nothing is being waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    fn remove(&mut self, token: u32) {
        self.table.remove(&token);
        if self.table.is_empty() && self.table.capacity() > 3 {
            self.table = HashMap::new();
        }
    }
}

/// How many bytes of an offer fit where they shall go.
fn wanted(offer: &Offer, into: &Segments) -> u64 {
    offer.len.get().min(into.len() as u64)
}

/// The `Pull` frame for an offer: its head and its payload.
pub(super) fn pull_frame(id: u32, offer: &Offer, into: &Segments, token: u32) -> (Head, U64) {
    let head = Head {
        kind: Kind::Pull,
        flags: Flags::ID,
        len: size_of::<U64>() as u32,
        tag: u64::from(token) << 32,
        data: 0,
        id,
    };
    (head, U64::new(wanted(offer, into)))
}

/// The same as bytes for a stream.
pub(super) fn pull_bytes(id: u32, offer: &Offer, into: &Segments, token: u32) -> [u8; PULL_BYTES] {
    let (head, wanted) = pull_frame(id, offer, into, token);
    let mut bytes = [0; PULL_BYTES];
    bytes[..HEAD_BYTES].copy_from_slice(head.to_bytes().as_bytes());
    bytes[HEAD_BYTES..].copy_from_slice(wanted.as_bytes());
    bytes
}

/// What our peer pulls from us and has not been sent yet; served first come, first served.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    waiting: VecDeque<Push>,
    ended: VecDeque<(u32, Result<(), PullError>)>,
}

#[derive(Debug)]
struct Push {
    id: u32,
    token: u32,
    source: Segments,
    sent: usize,
    gone: bool,
}

impl Pushes {
    /// Accepts a `Pull` frame's request. An empty `source` where bytes are wanted answers that the offer is void.
    pub(super) fn start(&mut self, id: u32, token: u64, request: View<'_>, source: &Segments) -> Result<(), Broken> {
        let wanted = match request.read::<U64>(0) {
            Some(wanted) if request.len() == size_of::<U64>() && token as u32 == 0 => wanted.get(),
            _ => return Err(Broken::Protocol(format!("a malformed pull of operation {id}"))),
        };
        let gone = source.is_empty() && wanted > 0;
        if !gone && wanted > source.len() as u64 {
            return Err(Broken::Protocol(format!("a pull of {wanted} bytes of operation {id}, which has fewer")));
        }
        // `wanted` is at most the length of `source`, or not used.
        let source = source.slice(0, usize::try_from(wanted).unwrap_or(0));
        self.waiting.push_back(Push { id, token: (token >> 32) as u32, source, sent: 0, gone });
        Ok(())
    }

    /// The next `Data` frame, with at most `limit` bytes. Once all of it is on its way, call [`advance`](Self::advance).
    pub(super) fn next(&self, limit: usize) -> Option<(Head, Segments)> {
        let push = self.waiting.front()?;
        let (tag, payload) =
            if push.gone { (GONE, Segments::EMPTY) } else { (push.sent as u64, push.source.slice(push.sent, limit)) };
        let head = Head { kind: Kind::Data, flags: Flags::ID, len: payload.len() as u32, tag, data: 0, id: push.token };
        Some((head, payload))
    }

    /// The frame that [`next`](Self::next) described, with `len` bytes, was sent.
    pub(super) fn advance(&mut self, len: usize) {
        let Some(push) = self.waiting.front_mut() else { return };
        push.sent += len;
        if push.gone || push.sent == push.source.len() {
            let result = if push.gone { Err(PullError::Gone) } else { Ok(()) };
            self.ended.push_back((push.id, result));
            self.waiting.pop_front();
            if self.waiting.is_empty() && self.waiting.capacity() > 4 {
                self.waiting = VecDeque::new();
            }
        }
    }

    /// The next push that ended and was not told yet.
    pub(super) fn next_ended(&mut self) -> Option<(u32, Result<(), PullError>)> {
        let ended = self.ended.pop_front();
        if ended.is_none() && self.ended.capacity() > 8 {
            self.ended = VecDeque::new();
        }
        ended
    }

    /// Whether there is nothing left to send.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether there is nothing left to send or to tell.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.ended.is_empty()
    }
}
