//! Pulls and pushes over a transport that only carries frames in order (tcp, sim).
//!
//! The receiver of an offer sends `Pull { id, tag = token << 32, payload = number of bytes wanted }`. The sender
//! answers with `Data { id = token, tag = offset }` frames, in order and without gaps. It sends at least one frame,
//! which is empty if no bytes are wanted. An empty `Data` frame with the offset [`GONE`], in place of any of them, ends
//! the pull: the offer is void, and the bytes that arrived before are invalid. A pull may also be announced by the
//! frame of a read ([`Pulls::expect`], [`expected_pull`]). In this case no `Pull` frame is sent, and an empty `Data`
//! frame may carry the reason why the read is refused. Each end keeps a table: [`Pulls`] contains the pulls that it
//! requested, [`Pushes`] the data that it has not sent yet. Frames from the peer are checked only against these tables.
//! A frame that does not match them breaks the connection.
//!
//! Both tables release their memory when they are empty, so that an idle connection uses almost none.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::{HashMap, VecDeque};

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::{Broken, PullError};
use crate::local_memory::access::RefusalExt as _;
use crate::local_memory::volatile::{Segments, View, ViewExt as _};
use crate::region::Refusal;
use crate::region::lease::Lease;
use crate::wire::head::{Flags, FrameKind, GONE, HEAD_BYTES, Head, Offer};

/// The size of a `Pull` frame in bytes.
pub(super) const PULL_BYTES: usize = HEAD_BYTES + size_of::<U64>();

/// The pulls of this side that have not ended.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    table: HashMap<u32, Pull>,
}

#[derive(Debug)]
struct Pull {
    into: Lease,
    received: u64,
    wanted: u64,
    /// Some bytes could not be written because the destination was revoked.
    revoked: bool,
}

/// The token and the result of a pull that ended.
pub(super) type Pulled = (u32, Result<u64, PullError>);

/// The kinds of `Data` frames.
#[derive(Debug)]
pub(super) enum Data {
    /// The payload goes to this lease, or is discarded if the lease was revoked ([`Pulls::revoked`]). The caller calls
    /// [`Pulls::arrived`] when all of it has arrived.
    Bytes(Lease),
    /// A pull has ended; no more bytes follow.
    Ended(Pulled),
}

impl Pulls {
    /// Records a pull. [`pull_frame`] creates the frame that requests it.
    pub(super) fn start(&mut self, offer: &Offer, into: &Lease, token: u32) {
        self.insert(into, wanted(offer, into), token);
    }

    /// Records a pull into `into` that another frame announces to the peer.
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
            return Err(Broken::Protocol(format!("data for unknown pull {}", head.id)));
        };
        if head.tag == GONE && head.len == 0 {
            let error = match (head.data, Refusal::from_number(head.data)) {
                _ if pull.revoked => PullError::Revoked,
                (0, _) => PullError::Gone,
                (_, Some(refusal)) => PullError::Refused(refusal),
                (_, None) => return Err(Broken::Protocol("unknown error code in a reply".into())),
            };
            self.remove(head.id);
            return Ok(Data::Ended((head.id, Err(error))));
        }
        if head.flags.contains(Flags::DATA) {
            return Err(Broken::Protocol("data with an error code".into()));
        }
        let rest = pull.wanted.saturating_sub(pull.received);
        if head.tag != pull.received || u64::from(head.len) > rest || (head.len == 0 && rest != 0) {
            return Err(Broken::Protocol(format!(
                "{} bytes of data at offset {} of a pull that expects {rest} at {}",
                head.len, head.tag, pull.received
            )));
        }
        // `received` is less than the length of `into`, so it fits.
        let offset = usize::try_from(pull.received).unwrap_or(usize::MAX);
        Ok(Data::Bytes(pull.into.slice(offset, head.len as usize)))
    }

    /// Records that the destination of a pull was revoked: its remaining bytes are discarded, and then the pull fails.
    pub(super) fn revoked(&mut self, token: u32) {
        if let Some(pull) = self.table.get_mut(&token) {
            pull.revoked = true;
        }
    }

    /// Handles the complete arrival of the payload (`len` bytes) of a `Data` frame. Returns the token and the result of
    /// the pull if it ended with this frame.
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

    /// Returns whether there are no pulls.
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

/// Returns the number of bytes of an offer that fit into the destination.
#[inline]
fn wanted(offer: &Offer, into: &Lease) -> u64 {
    offer.len.get().min(into.len() as u64)
}

/// Returns the head and the payload of the `Pull` frame for an offer.
pub(super) fn pull_frame(id: u32, offer: &Offer, into: &Lease, token: u32) -> (Head, U64) {
    let head = Head {
        kind: FrameKind::Pull,
        flags: Flags::ID,
        len: size_of::<U64>() as u32,
        tag: u64::from(token) << 32,
        data: 0,
        id,
    };
    (head, U64::new(wanted(offer, into)))
}

/// Returns the frame of [`pull_frame`] as bytes for a stream.
pub(super) fn pull_bytes(id: u32, offer: &Offer, into: &Lease, token: u32) -> [u8; PULL_BYTES] {
    let (head, wanted) = pull_frame(id, offer, into, token);
    let mut bytes = [0; PULL_BYTES];
    bytes[..HEAD_BYTES].copy_from_slice(head.to_bytes().as_bytes());
    bytes[HEAD_BYTES..].copy_from_slice(wanted.as_bytes());
    bytes
}

/// Returns the token and the request for [`Link::push`](super::Link::push) that serve a pull of `len` bytes. The peer
/// expects the pull as `token`.
#[inline]
pub fn expected_pull(len: u64, token: u32) -> (u64, U64) {
    (u64::from(token) << 32, U64::new(len))
}

/// Returns the frame that refuses a pull that the peer expects as `token`.
#[inline]
pub fn refused_pull(token: u32, refusal: Refusal) -> Head {
    Head { kind: FrameKind::Data, flags: Flags::ID | Flags::DATA, len: 0, tag: GONE, data: refusal.number(), id: token }
}

/// The data that the peer pulls from this side and that was not sent yet. It is served in the order of the requests.
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
    /// The reason why no more data of this push will be sent, if any.
    void: Option<PullError>,
}

impl Pushes {
    /// Handles the request of a `Pull` frame. If `source` is empty although bytes are wanted, the answer states that
    /// the offer is void.
    pub(super) fn start(&mut self, id: u32, token: u64, request: View<'_>, source: &Lease) -> Result<(), Broken> {
        let wanted = match request.read::<U64>(0) {
            Some(wanted) if request.len() == size_of::<U64>() && token as u32 == 0 => wanted.get(),
            _ => return Err(Broken::Protocol(format!("a malformed pull of operation {id}"))),
        };
        let gone = source.is_empty() && wanted > 0;
        if !gone && wanted > source.len() as u64 {
            return Err(Broken::Protocol(format!("pull of {wanted} bytes of operation {id}, which is shorter")));
        }
        // `wanted` is at most the length of `source`, unless the offer is void.
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

    /// Returns the next `Data` frame, with at most `limit` bytes. If the source is revocable, a frame that contains any
    /// of its last `last` bytes does not contain earlier bytes. The caller calls [`advance`](Self::advance) once the
    /// whole frame is sent, or [`revoked`](Self::revoked) if the source was revoked.
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
        let head =
            Head { kind: FrameKind::Data, flags: Flags::ID, len: payload.len() as u32, tag, data: 0, id: push.token };
        Some((head, payload))
    }

    /// Records that the source of the frame returned by [`next`](Self::next) was revoked: the next frame reports that.
    /// If a part of the frame was already sent, the caller has to send the rest of it as well, with arbitrary bytes,
    /// and call [`advance`](Self::advance). Such a frame must not have been the last one of the push.
    pub(super) fn revoked(&mut self) {
        if let Some(push) = self.waiting.front_mut() {
            push.void = Some(PullError::Revoked);
        }
    }

    /// Records that the frame returned by [`next`](Self::next), with `len` bytes, was sent.
    pub(super) fn advance(&mut self, len: usize) {
        let Some(push) = self.waiting.front_mut() else { return };
        push.sent = push.sent.saturating_add(len);
        let result = match push.void {
            // This frame was the one that reports the revocation.
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

    /// Removes and returns the next push that ended and was not reported yet.
    pub(super) fn next_ended(&mut self) -> Option<(u32, Result<(), PullError>)> {
        let ended = self.ended.pop_front();
        if ended.is_none() && self.ended.capacity() > 8 {
            self.ended = VecDeque::new();
        }
        ended
    }

    /// Returns the number of bytes that are still to be sent, including an allowance for the heads of their frames.
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
