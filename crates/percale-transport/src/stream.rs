//! Pulls and pushes over a transport that only carries frames in order (tcp, sim).
//!
//! The receiver of an offer sends `Pull { id, tag = token << 32, payload = bytes wanted }`; the sender answers with
//! `Data { id = token, tag = offset }` frames, in order and without gaps, at least one (of no bytes, if none are wanted). One empty `Data` frame
//! with the offset [`GONE`], in place of any of them, ends the pull: the offer is void, and the bytes that it delivered before are worthless. A pull
//! may also be announced by the frame of a read ([`Pulls::expect`], [`expected_pull`]): then no `Pull` frame is sent, and an empty `Data` frame may
//! carry the reason why the read is refused. Each end keeps a table: [`Pulls`] of what it asked for, [`Pushes`] of what it has yet to send. What the
//! peer sends is checked against these tables and against nothing else: a frame that does not fit them breaks the connection.
//!
//! Both tables give back their memory when they are empty, so that an idle connection costs next to nothing.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::{HashMap, VecDeque};

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::{Broken, PullError};
use crate::local_memory::access::RefusalExt as _;
use crate::local_memory::volatile::{Segments, View, ViewExt as _};
use crate::region::Refusal;
use crate::region::lease::Lease;
use crate::wire::head::{Flags, GONE, HEAD_BYTES, Head, Kind, Offer};

/// Bytes of a whole `Pull` frame.
pub(super) const PULL_BYTES: usize = HEAD_BYTES + size_of::<U64>();

/// What we asked our peer for and do not have yet.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    table: HashMap<u32, Pull>,
}

#[derive(Debug)]
struct Pull {
    into: Lease,
    received: u64,
    wanted: u64,
    /// Some of it could not be put there.
    revoked: bool,
}

/// The outcome of a pull: its token, and its result.
pub(super) type Pulled = (u32, Result<u64, PullError>);

/// What a `Data` frame means.
#[derive(Debug)]
pub(super) enum Data {
    /// Its payload goes here, or is discarded if that was revoked ([`Pulls::revoked`]); [`Pulls::arrived`] is called when all of it came.
    Bytes(Lease),
    /// A pull has ended, without more bytes.
    Ended(Pulled),
}

impl Pulls {
    /// Notes a pull; [`pull_frame`] makes the frame that asks for it.
    pub(super) fn start(&mut self, offer: &Offer, into: &Lease, token: u32) {
        self.insert(into, wanted(offer, into), token);
    }

    /// Notes a pull that fills `into` and that is announced to the peer by another frame.
    #[inline]
    pub(super) fn expect(&mut self, into: &Lease, token: u32) {
        self.insert(into, into.len() as u64, token);
    }

    #[inline]
    fn insert(&mut self, into: &Lease, wanted: u64, token: u32) {
        let pull = Pull { into: into.clone(), received: 0, wanted, revoked: false };
        let before = self.table.insert(token, pull);
        debug_assert!(before.is_none(), "a token names one pull at a time");
    }

    /// Checks the head of a `Data` frame and returns where its payload goes.
    pub(super) fn data(&mut self, head: &Head) -> Result<Data, Broken> {
        let Some(pull) = self.table.get(&head.id) else {
            return Err(Broken::Protocol(format!("data for pull {}, which nobody started", head.id)));
        };
        if head.tag == GONE && head.len == 0 {
            let error = match (head.data, Refusal::from_number(head.data)) {
                _ if pull.revoked => PullError::Revoked,
                (0, _) => PullError::Gone,
                (_, Some(refusal)) => PullError::Refused(refusal),
                (_, None) => return Err(Broken::Protocol("a refusal that does not exist".into())),
            };
            self.remove(head.id);
            return Ok(Data::Ended((head.id, Err(error))));
        }
        let rest = pull.wanted.saturating_sub(pull.received);
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

    /// The destination of a pull was revoked: its remaining bytes are discarded, and then the pull has failed.
    pub(super) fn revoked(&mut self, token: u32) {
        if let Some(pull) = self.table.get_mut(&token) {
            pull.revoked = true;
        }
    }

    /// The payload of a `Data` frame, `len` bytes, has arrived in full. Returns the token and the result of the pull if it ended with this frame.
    pub(super) fn arrived(&mut self, token: u32, len: u32) -> Option<Pulled> {
        let pull = self.table.get_mut(&token)?;
        pull.received = pull.received.saturating_add(len.into());
        if pull.received < pull.wanted {
            return None;
        }
        let result = if pull.revoked { Err(PullError::Revoked) } else { Ok(pull.received) };
        self.remove(token);
        Some((token, result))
    }

    /// Returns whether nothing is being waited for.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    #[inline]
    fn remove(&mut self, token: u32) {
        self.table.remove(&token);
        if self.table.is_empty() && self.table.capacity() > 3 {
            self.table = HashMap::new();
        }
    }
}

/// How many bytes of an offer fit where they shall go.
#[inline]
fn wanted(offer: &Offer, into: &Lease) -> u64 {
    offer.len.get().min(into.len() as u64)
}

/// The `Pull` frame for an offer: its head and its payload.
pub(super) fn pull_frame(id: u32, offer: &Offer, into: &Lease, token: u32) -> (Head, U64) {
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

/// Makes the frame of [`pull_frame`] as bytes for a stream.
pub(super) fn pull_bytes(id: u32, offer: &Offer, into: &Lease, token: u32) -> [u8; PULL_BYTES] {
    let (head, wanted) = pull_frame(id, offer, into, token);
    let mut bytes = [0; PULL_BYTES];
    bytes[..HEAD_BYTES].copy_from_slice(head.to_bytes().as_bytes());
    bytes[HEAD_BYTES..].copy_from_slice(wanted.as_bytes());
    bytes
}

/// What to hand to [`Link::push`](super::Link::push), as token and request, to serve a pull of `len` bytes that the peer
/// expects as `token`.
#[inline]
pub fn expected_pull(len: u64, token: u32) -> (u64, U64) {
    (u64::from(token) << 32, U64::new(len))
}

/// The frame that answers such a pull with a refusal instead.
#[inline]
pub fn refused_pull(token: u32, refusal: Refusal) -> Head {
    Head { kind: Kind::Data, flags: Flags::ID | Flags::DATA, len: 0, tag: GONE, data: refusal.number(), id: token }
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
    source: Lease,
    sent: usize,
    /// Nothing more of it will be sent, and this is why.
    void: Option<PullError>,
}

impl Pushes {
    /// Accepts a `Pull` frame's request. An empty `source` where bytes are wanted answers that the offer is void.
    pub(super) fn start(&mut self, id: u32, token: u64, request: View<'_>, source: &Lease) -> Result<(), Broken> {
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
        self.waiting.push_back(Push {
            id,
            token: (token >> 32) as u32,
            source,
            sent: 0,
            void: gone.then_some(PullError::Gone),
        });
        Ok(())
    }

    /// The next `Data` frame, with at most `limit` bytes, and of a source that can be revoked at most `last` of its last
    /// ones. Once all of it is on its way, call [`advance`](Self::advance); if its bytes cannot be had,
    /// [`revoked`](Self::revoked).
    pub(super) fn next(&self, limit: usize, last: usize) -> Option<(Head, Lease)> {
        let push = self.waiting.front()?;
        let (tag, payload) = if push.void.is_some() {
            (GONE, Lease::own(&Segments::EMPTY))
        } else {
            let rest = push.source.len().saturating_sub(push.sent);
            let limit = match rest.checked_sub(last) {
                Some(first @ 1..) if push.source.is_revocable() => limit.min(first),
                _ => limit,
            };
            (push.sent as u64, push.source.slice(push.sent, limit))
        };
        let head = Head { kind: Kind::Data, flags: Flags::ID, len: payload.len() as u32, tag, data: 0, id: push.token };
        Some((head, payload))
    }

    /// The source of the frame that [`next`](Self::next) described was revoked: the next frame reports that. If some of that frame was sent already,
    /// the rest of it must be sent as well, with any bytes, and [`advance`](Self::advance) be called; and it must not have been the last.
    pub(super) fn revoked(&mut self) {
        if let Some(push) = self.waiting.front_mut() {
            push.void = Some(PullError::Revoked);
        }
    }

    /// The frame that [`next`](Self::next) described, with `len` bytes, was sent.
    pub(super) fn advance(&mut self, len: usize) {
        let Some(push) = self.waiting.front_mut() else { return };
        push.sent = push.sent.saturating_add(len);
        let result = match push.void {
            // That frame was the one that reports the revocation.
            Some(error) if len == 0 => Some(Err(error)),
            Some(_) => None,
            None => (push.sent == push.source.len()).then_some(Ok(())),
        };
        if let Some(result) = result {
            self.ended.push_back((push.id, result));
            self.waiting.pop_front();
            if self.waiting.is_empty() && self.waiting.capacity() > 4 {
                self.waiting = VecDeque::new();
            }
        }
    }

    /// Takes the next push that ended and was not reported yet.
    pub(super) fn next_ended(&mut self) -> Option<(u32, Result<(), PullError>)> {
        let ended = self.ended.pop_front();
        if ended.is_none() && self.ended.capacity() > 8 {
            self.ended = VecDeque::new();
        }
        ended
    }

    /// Bytes that are to be sent yet, with room for the heads of their frames.
    #[cfg(feature = "verbs")]
    pub(super) fn remaining(&self) -> u64 {
        let bytes = |push: &Push| push.source.len().saturating_sub(push.sent).saturating_add(2 * HEAD_BYTES) as u64;
        self.waiting.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Returns whether there is nothing left to send.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether there is nothing left to send or to report.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.ended.is_empty()
    }
}
