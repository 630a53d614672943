//! A link of an endpoint to itself.
//!
//! Frames wait in one byte queue until the next poll, so that an operation never completes inside the call that posts
//! it. A pull uses the same calls as between two processes (the engine answers it with `push` on the same link), but
//! the data is copied once, from the source to the destination. The queue is bounded: messages beyond `QUEUE_LIMIT` are
//! refused until the endpoint makes progress. Frames that the protocol needs to make progress may exceed this limit.

use std::collections::VecDeque;

use zerocopy::IntoBytes;

use super::stream::{Data, Pulled, Pulls, Pushes, pull_frame};
use super::{Broken, ConnectionId, Link, Refused, Sink};
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::wire::head::{FrameKind, Head, Offer};

/// Payloads up to this length are copied twice. For longer payloads the second copy would cost more than an offer.
const EAGER_LIMIT: usize = 8 << 10;

/// The number of queued bytes, including heads, beyond which messages are refused.
const QUEUE_LIMIT: usize = 256 << 10;

/// The number of bytes by which frames other than messages may exceed that limit.
const RESERVE: usize = 64 << 10;

/// The capacity in bytes up to which the buffers of the queue are kept while the link is idle. It is twice the longest
/// payload, so that an exchange of single messages allocates no memory.
const KEPT_BYTES: usize = 2 * EAGER_LIMIT;

/// The number of bytes that are copied between two checks of the tables. A thread that revokes the memory of a transfer
/// waits for the copy of at most this many bytes.
const PIECE_BYTES: usize = 256 << 10;

/// An endpoint's link to itself.
#[derive(Debug, Default)]
pub struct LoopbackLink {
    heads: VecDeque<Head>,
    payloads: Vec<u8>,
    pulls: Pulls,
    pushes: Pushes,
    pulled: VecDeque<Pulled>,
    said_bye: bool,
    broken: Option<Broken>,
}

impl LoopbackLink {
    /// Creates a link.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    fn admit(&self, kind: FrameKind) -> Result<(), Refused> {
        if self.broken.is_some() || self.said_bye {
            return Err(Refused::Broken);
        }
        let limit = match kind {
            kind if kind.begins() => QUEUE_LIMIT,
            _ => QUEUE_LIMIT + RESERVE,
        };
        let waiting = self.payloads.len() + self.heads.len() * size_of::<Head>();
        if waiting >= limit { Err(Refused::Full) } else { Ok(()) }
    }

    /// Copies the data of pulls. The next poll reports the end of these pulls to the sink.
    fn serve(&mut self) -> Result<(), Broken> {
        while let Some((head, source)) = self.pushes.next(PIECE_BYTES, 0) {
            let Some((from, _from_held)) = source.enter() else {
                self.pushes.revoked();
                continue;
            };
            let ended = match self.pulls.data(&head)? {
                Data::Bytes(into) => {
                    match into.enter() {
                        Some((into, _into_held)) => drop(into.copy_from(from)),
                        None => self.pulls.revoked(head.id),
                    }
                    self.pulls.arrived(head.id, head.len)
                }
                Data::Ended(ended) => Some(ended),
            };
            self.pulled.extend(ended);
            self.pushes.advance(source.len());
        }
        Ok(())
    }
}

#[doc(hidden)]
impl Link for LoopbackLink {
    #[inline]
    fn frame_limit(&self) -> usize {
        EAGER_LIMIT
    }

    #[inline]
    fn is_stream(&self) -> bool {
        true
    }

    #[inline]
    fn send(&mut self, head: &Head, payload: &Segments, _more: bool) -> Result<(), Refused> {
        debug_assert_eq!(head.len as usize, payload.len());
        self.admit(head.kind)?;
        self.said_bye = head.kind == FrameKind::Bye;
        let at = self.payloads.len();
        self.payloads.resize(at + payload.len(), 0);
        payload.copy_to(0, &mut self.payloads[at..]);
        self.heads.push_back(*head);
        Ok(())
    }

    fn poll(&mut self, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let moved = !self.is_idle();
        while let Some((token, result)) = self.pulled.pop_front() {
            sink.pulled(me, token, result);
        }
        while let Some((id, result)) = self.pushes.next_ended() {
            sink.pushed(me, id, result);
        }
        let mut at = 0;
        while let Some(head) = self.heads.pop_front() {
            let end = at + head.len as usize;
            if head.kind == FrameKind::Data {
                // This is the only `Data` frame that is queued as a frame. It ends an expected pull.
                match self.pulls.data(&head) {
                    Ok(Data::Ended((token, result))) => sink.pulled(me, token, result),
                    Ok(Data::Bytes(_)) | Err(_) => debug_assert!(false, "unexpected data for a pull"),
                }
            } else if head.kind != FrameKind::Nothing {
                sink.frame(me, &head, View::of(&self.payloads[at..end]));
            }
            at = end;
        }
        self.payloads.clear();
        if self.payloads.capacity() + self.heads.capacity() * size_of::<Head>() > KEPT_BYTES && !moved {
            // The link is idle: release the memory that a burst needed.
            self.payloads = Vec::new();
            self.heads = VecDeque::new();
        }
        if self.said_bye {
            self.broken = Some(Broken::Closed);
            return Err(Broken::Closed);
        }
        Ok(moved)
    }

    fn pull(&mut self, id: u32, offer: &Offer, into: &Lease, token: u32) -> Result<(), Refused> {
        self.admit(FrameKind::Pull)?;
        let (head, wanted) = pull_frame(id, offer, into, token);
        self.payloads.extend_from_slice(wanted.as_bytes());
        self.heads.push_back(head);
        self.pulls.start(offer, into, token);
        Ok(())
    }

    #[inline]
    fn expect(&mut self, into: &Lease, token: u32) {
        self.pulls.expect(into, token);
    }

    fn push(&mut self, id: u32, token: u64, request: View<'_>, source: &Lease) -> Result<(), Refused> {
        if self.broken.is_some() {
            return Err(Refused::Broken);
        }
        let served = self.pushes.start(id, token, request, source).and_then(|()| self.serve());
        served.map_err(|broken| {
            self.broken = Some(broken);
            Refused::Broken
        })
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.heads.is_empty() && self.pulled.is_empty() && self.pushes.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PullError;
    use crate::region::Refusal;
    use crate::stream::{expected_pull, refused_pull};
    use crate::testing::{Lent, Notes, Revocable, SinkReport};
    use crate::wire::head::Flags;

    fn message(len: usize, tag: u64) -> Head {
        Head { kind: FrameKind::Tagged, len: len as u32, tag, ..Head::default() }
    }

    #[test]
    fn frames_come_back_whole_and_in_order() {
        let (mut link, mut notes) = (LoopbackLink::new(), Notes::keeping(usize::MAX));
        let memory = Lent::new((0..100).collect());
        for n in 0..40 {
            link.send(&message(n, n as u64), &memory.cut(&[7]).slice(n, n), false).unwrap();
        }
        assert!(notes.reported.is_empty(), "an operation completed within its call");
        assert_eq!(link.poll(0, &mut notes), Ok(true));
        let sent: Vec<_> =
            (0..40).map(|n| SinkReport::Frame(message(n, n as u64), (n as u8..2 * n as u8).collect())).collect();
        assert_eq!(notes.reported, sent);
        assert_eq!(link.poll(0, &mut notes), Ok(false));
    }

    #[test]
    fn full_loopback_refuses_messages_but_not_answers() {
        let (mut link, mut notes) = (LoopbackLink::new(), Notes::keeping(usize::MAX));
        let memory = Lent::new(vec![1; 8 << 10]);
        let mut count = 0;
        while link.send(&message(8 << 10, 0), &memory.whole(), false).is_ok() {
            count += 1;
        }
        assert!((16..64).contains(&count), "{count}");
        assert_eq!(link.send(&message(0, 0), &Segments::EMPTY, false), Err(Refused::Full));
        assert_eq!(link.send(&Head { kind: FrameKind::Ack, ..Head::default() }, &Segments::EMPTY, false), Ok(()));
        assert_eq!(link.poll(0, &mut notes), Ok(true));
        assert_eq!(notes.reported.len(), count + 1);
        assert_eq!(link.send(&message(0, 0), &Segments::EMPTY, false), Ok(()));
    }

    #[test]
    fn a_pull_is_served_by_one_copy_and_truncates() {
        let (mut link, mut notes) = (LoopbackLink::new(), Notes::keeping(usize::MAX));
        let source = Lent::new((0..=255).collect());
        let target = Lent::new(vec![0; 100]);
        let offer = Offer { len: 256.into(), ..Offer::default() };
        link.pull(7, &offer, &target.lease(&[33]), 9).unwrap();
        link.poll(0, &mut notes).unwrap();
        let Some(SinkReport::Frame(head, request)) = notes.reported.pop() else {
            panic!("no pull: {:?}", notes.reported)
        };
        assert_eq!((head.kind, head.id, head.flags), (FrameKind::Pull, 7, Flags::ID));
        link.push(7, head.tag, View::of(&request), &source.lease(&[3, 50])).unwrap();
        assert!(!link.is_idle());
        link.poll(0, &mut notes).unwrap();
        assert_eq!(notes.reported, [SinkReport::Pulled(9, Ok(100)), SinkReport::Pushed(7, Ok(()))]);
        assert_eq!(target.bytes(), (0..100).collect::<Vec<u8>>());
        assert!(link.is_idle());
    }

    #[test]
    fn expected_transfer_is_pushed_or_refused() {
        let (mut link, mut notes) = (LoopbackLink::new(), Notes::keeping(usize::MAX));
        let (source, target) = (Lent::new((0..=255).collect()), Lent::new(vec![0; 256]));
        link.expect(&target.lease(&[33]), 0);
        let (token, request) = expected_pull(256, 0);
        link.push(7, token, View::of(request.as_bytes()), &source.lease(&[3])).unwrap();
        link.poll(0, &mut notes).unwrap();
        assert_eq!(
            std::mem::take(&mut notes.reported),
            [SinkReport::Pulled(0, Ok(256)), SinkReport::Pushed(7, Ok(()))]
        );
        assert_eq!(target.bytes(), source.bytes());
        link.expect(&target.lease(&[]), 0);
        link.send(&refused_pull(0, Refusal::Right), &Segments::EMPTY, false).unwrap();
        link.poll(0, &mut notes).unwrap();
        assert_eq!(notes.reported, [SinkReport::Pulled(0, Err(PullError::Refused(Refusal::Right)))]);
        assert!(link.is_idle());
    }

    /// Requirements: MR-069.
    #[test]
    fn revoked_memory_fails_its_transfer_and_no_other() {
        let (mut link, mut notes) = (LoopbackLink::new(), Notes::keeping(usize::MAX));
        let (source, target) = (Lent::new(vec![1; 600_000]), Lent::new(vec![0; 600_000]));
        let offer = Offer { len: 600_000.into(), ..Offer::default() };
        for (revoke_source, revoke_target) in [(true, false), (false, true), (true, true), (false, false)] {
            let (from, into) = (Revocable::new(source.cut(&[9])), Revocable::new(target.cut(&[300_000])));
            link.pull(7, &offer, &into.lease(), 9).unwrap();
            link.poll(0, &mut notes).unwrap();
            let Some(SinkReport::Frame(head, request)) = notes.reported.pop() else {
                panic!("no pull: {:?}", notes.reported)
            };
            if revoke_source {
                from.revoke();
            }
            if revoke_target {
                into.revoke();
            }
            link.push(7, head.tag, View::of(&request), &from.lease()).unwrap();
            link.send(&message(3, 5), &source.whole().slice(0, 3), false).unwrap();
            link.poll(0, &mut notes).unwrap();
            let pulled = match (revoke_source, revoke_target) {
                (true, _) => Err(PullError::Gone),
                (false, true) => Err(PullError::Revoked),
                (false, false) => Ok(600_000),
            };
            let pushed = if revoke_source { Err(PullError::Revoked) } else { Ok(()) };
            let expected = [
                SinkReport::Pulled(9, pulled),
                SinkReport::Pushed(7, pushed),
                SinkReport::Frame(message(3, 5), vec![1; 3]),
            ];
            assert_eq!(std::mem::take(&mut notes.reported), expected);
            let filled = if pulled.is_ok() { 1 } else { 0 };
            assert!(target.bytes() == vec![filled; 600_000]);
            assert!(link.is_idle());
        }
    }

    #[test]
    fn goodbye_closes_the_link() {
        let (mut link, mut notes) = (LoopbackLink::new(), Notes::keeping(usize::MAX));
        link.send(&Head { kind: FrameKind::Bye, ..Head::default() }, &Segments::EMPTY, false).unwrap();
        assert_eq!(link.send(&message(0, 0), &Segments::EMPTY, false), Err(Refused::Broken));
        assert_eq!(link.poll(0, &mut notes), Err(Broken::Closed));
        assert_eq!(notes.reported.len(), 1);
        assert_eq!(link.poll(0, &mut notes), Err(Broken::Closed));
    }
}
