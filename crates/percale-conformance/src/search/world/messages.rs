//! Posts messages and receives through the raw API.

#![expect(unsafe_code, reason = "posts operations on memory that it keeps until they have ended")]

use percale::{OpFlags, PeerAddress, PostError, ReceiveWork, Segment, Segments, SendWork};

use super::{EndpointAddress, World, on};
use crate::search::ledger::{Criteria, Fault, LedgerReceive, Message, Operation, ReceiveHome, Verdict};
use crate::search::payload;
use crate::search::step::{Level, PollKind, ReceiveBy, SendBy};

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) len: usize,
    pub(super) tag: Option<u8>,
    pub(super) data: bool,
    pub(super) by: SendBy,
    pub(super) level: Level,
    pub(super) slot: usize,
}

/// Splits memory into up to three segments.
pub(super) fn segments(whole: Segment, pieces: usize) -> Segments {
    let (len, pieces) = (whole.len(), pieces.max(1));
    let list: Vec<Segment> = (0..pieces)
        .map(|piece| {
            let (begin, end) = (len * piece / pieces, len * (piece + 1) / pieces);
            whole.slice(begin, end - begin)
        })
        .collect();
    Segments::new(&list).expect("few segments")
}

fn flags_of(level: Level) -> OpFlags {
    let mut flags = OpFlags::empty();
    flags.set(OpFlags::COMPLETION, level.reported);
    flags.set(OpFlags::FENCE, level.fenced);
    flags.set(OpFlags::MORE, level.more);
    flags.set(OpFlags::TRANSMIT_COMPLETE, level.level == 1);
    flags.set(OpFlags::DELIVERY_COMPLETE, level.level == 2);
    flags.set(OpFlags::MATCH_COMPLETE, level.level == 3);
    flags
}

impl World {
    /// Records an operation in the ledger before it is posted.
    pub(super) fn enter(&mut self, id: u64, what: &'static str, place: usize, peer: Option<usize>, is_reported: bool) {
        let peers = peer.map_or_else(|| (0..self.seats.len()).collect(), |peer| vec![peer]);
        let harmed = peers.iter().any(|peer| self.seats[*peer].was_closed || self.seats[*peer].open.is_none());
        let operation = Operation {
            at: self.seats[place].open.as_ref().map(|open| open.life),
            peer: peer.map(|peer| EndpointAddress(peer as u32)),
            what,
            is_reported,
            is_cancelled: false,
            is_over: false,
            is_closed: false,
            may_vanish: false,
            may_be_denied: false,
            must_be_denied: false,
            may_fail: harmed || self.settings.breaks || self.seats[place].was_closed,
            step: self.step,
        };
        self.ledger.post(id, operation);
        if let Some(open) = &mut self.seats[place].open {
            open.posted.push(id);
            if open.posted.len() > 64 {
                let ledger = &self.ledger;
                open.posted.retain(|id| ledger.operation(*id).is_some_and(|operation| !operation.is_over));
            }
        }
    }

    /// Records a message in the ledger before it is posted.
    pub(super) fn enter_message(
        &mut self,
        id: u64,
        at: usize,
        to: usize,
        message: (usize, Option<u64>, bool),
        (is_ordered, is_fenced): (bool, bool),
    ) {
        let Some(life) = self.seats[at].open.as_ref().map(|open| open.life) else { return };
        let (len, tag, has_data) = message;
        let harmed = self.seats[to].was_closed || self.seats[to].open.is_none() || self.settings.breaks;
        let message = Message {
            from: life,
            from_place: EndpointAddress(at as u32),
            to: EndpointAddress(to as u32),
            len,
            tag,
            has_data,
            is_ordered,
            is_fenced,
            arrivals: 0,
            may_be_lost: harmed,
            is_cancelled: false,
        };
        let may_be_lost = message.may_be_lost || self.forgotten.iter().any(|forgotten| forgotten.fits(&message));
        self.ledger.send(id, Message { may_be_lost, ..message });
    }

    /// Records that an operation was rejected.
    pub(super) fn refused(&mut self, id: u64, error: &PostError) -> Verdict {
        self.ledger.refuse(id);
        self.give_back(id)?;
        match error {
            PostError::Again => Ok(()),
            other => Err(Fault::new("refused without a cause", format!("operation {id}: {other}"))),
        }
    }

    pub(super) fn send(&mut self, at: usize, to: usize, sent: Sent) -> Verdict {
        let Some((_, port)) = self.port(at) else { return Ok(()) };
        let Sent { len, tag, data, by, level, slot } = sent;
        let tag = tag.map(u64::from);
        if by == SendBy::Safe {
            return self.send_safe(at, to, (len, tag, data), level, slot);
        }
        let id = self.ledger.number();
        let peer = self.name(to);
        let carried = data.then_some(id);
        let lent = self.lender.lend(len)?;
        lent.write(&payload::of(id, len));
        let (is_inject, is_reported) = match by {
            SendBy::Inject => (true, false),
            SendBy::RawInject => (true, level.reported),
            _ => (false, level.reported),
        };
        self.enter(id, if is_inject { "inject" } else { "send" }, at, Some(to), is_reported);
        self.enter_message(id, at, to, (len, tag, data), (true, level.fenced));
        let mut flags = flags_of(level);
        flags.set(OpFlags::INJECT, is_inject);
        let pieces = 1 + (id % 3) as usize;
        let context = id;
        let posted = match by {
            SendBy::Inject => {
                let bytes = payload::of(id, len);
                on!(port, endpoint => endpoint.inject_with(peer, &bytes, tag, carried))
            }
            SendBy::One => {
                let segment = lent.segment();
                // SAFETY: the buffer is kept in `lent` until the operation has ended.
                on!(port, endpoint => unsafe { endpoint.post_send_one(peer, segment, tag, carried, context, flags) })
            }
            _ => {
                let segments = segments(lent.segment(), pieces);
                let work = SendWork { peer, segments, tag, data: carried, context, flags };
                // SAFETY: as above.
                on!(port, endpoint => unsafe { endpoint.post_send(&work) })
            }
        };
        self.lent.insert(id, vec![lent]);
        match posted {
            Ok(()) if is_inject => self.give_back(id),
            Ok(()) => Ok(()),
            Err(error) => self.refused(id, &error),
        }
    }

    pub(super) fn criteria(from: Option<usize>, tag: Option<(u8, u8)>) -> Criteria {
        let mask = |ignore: u8| if ignore == 255 { u64::MAX } else { u64::from(ignore) };
        let tag = tag.map(|(tag, ignore)| (u64::from(tag), mask(ignore)));
        Criteria { from: from.map(|from| EndpointAddress(from as u32)), tag }
    }

    pub(super) fn receive(
        &mut self,
        at: usize,
        from: Option<usize>,
        tag: Option<(u8, u8)>,
        len: usize,
        by: ReceiveBy,
        slot: usize,
    ) -> Verdict {
        let criteria = Self::criteria(from, tag);
        match by {
            ReceiveBy::Safe => return self.receive_safe(at, from, criteria, len, slot),
            ReceiveBy::SafeMany => return self.receive_many(at, from, criteria, len, slot),
            ReceiveBy::PoolSafe => return self.receive_pooled(from, criteria, len, slot),
            ReceiveBy::Pool | ReceiveBy::PoolMulti => {
                return self.receive_pool(from, criteria, len, by == ReceiveBy::PoolMulti);
            }
            _ => {}
        }
        let Some((life, port)) = self.port(at) else { return Ok(()) };
        let id = self.ledger.number();
        let lent = self.lender.lend(len)?;
        let from_peer = from.map_or(PeerAddress::UNSPECIFIED, |from| self.name(from));
        self.enter(id, if by == ReceiveBy::Multi { "multi-receive" } else { "receive" }, at, from, true);
        self.ledger
            .receive(id, LedgerReceive { home: ReceiveHome::Own(life), criteria, capacity: len, is_ordered: true });
        let mut flags = OpFlags::COMPLETION;
        flags.set(OpFlags::MULTI_RECEIVE, by == ReceiveBy::Multi);
        let posted = if by == ReceiveBy::One {
            let segment = lent.segment();
            // SAFETY: the buffer is kept in `lent` until the operation has ended.
            on!(port, endpoint => unsafe { endpoint.post_recv_one(from_peer, segment, criteria.tag, id, flags) })
        } else {
            let pieces = if by == ReceiveBy::Multi { 1 } else { 1 + (id % 3) as usize };
            let segments = segments(lent.segment(), pieces);
            let work = ReceiveWork { from: from_peer, segments, tag: criteria.tag, context: id, flags };
            // SAFETY: as above.
            on!(port, endpoint => unsafe { endpoint.post_recv(&work) })
        };
        self.lent.insert(id, vec![lent]);
        posted.or_else(|error| self.refused(id, &error))
    }

    fn receive_pool(&mut self, from: Option<usize>, criteria: Criteria, len: usize, multi: bool) -> Verdict {
        if !self.settings.seats.iter().any(|opened_endpoint| opened_endpoint.pool) {
            return Ok(());
        }
        let id = self.ledger.number();
        let lent = self.lender.lend(len)?;
        self.enter_pooled(id, if multi { "shared multi-receive" } else { "shared receive" }, from);
        self.ledger
            .receive(id, LedgerReceive { home: ReceiveHome::Pool(0), criteria, capacity: len, is_ordered: true });
        let mut flags = OpFlags::COMPLETION;
        flags.set(OpFlags::MULTI_RECEIVE, multi);
        let from = from.map_or(PeerAddress::UNSPECIFIED, |from| self.name(from));
        let work = ReceiveWork { from, segments: Segments::one(lent.segment()), tag: criteria.tag, context: id, flags };
        self.lent.insert(id, vec![lent]);
        // SAFETY: as above.
        let posted = unsafe { self.pool.post_recv(&work) };
        if posted.is_ok() {
            self.pool_posted.push(id);
        }
        posted.or_else(|error| self.refused(id, &error))
    }

    /// Records an operation of the shared context in the ledger.
    pub(super) fn enter_pooled(&mut self, id: u64, what: &'static str, from: Option<usize>) {
        self.enter(id, what, 0, from, true);
        if let Some(open) = &mut self.seats[0].open {
            open.posted.pop_if(|last| *last == id);
        }
        if let Some(operation) = self.ledger.operation_mut(id) {
            operation.at = None;
            // The member that receives the message may have been closed.
            operation.may_fail = true;
        }
    }

    pub(super) fn look(&mut self, at: usize, from: Option<usize>, tag: Option<(u8, u8)>, what: PollKind) -> Verdict {
        let Some((life, port)) = self.port(at) else { return Ok(()) };
        let criteria = Self::criteria(from, tag);
        let id = self.ledger.number();
        let (name, flags) = match what {
            PollKind::Peek => ("peek", OpFlags::PEEK),
            PollKind::Claim => ("claim", OpFlags::PEEK | OpFlags::CLAIM),
            PollKind::Discard => ("discard", OpFlags::PEEK | OpFlags::DISCARD),
        };
        self.enter(id, name, at, from, true);
        self.ledger
            .receive(id, LedgerReceive { home: ReceiveHome::Own(life), criteria, capacity: 0, is_ordered: false });
        let from = from.map_or(PeerAddress::UNSPECIFIED, |from| self.name(from));
        let flags = flags | OpFlags::COMPLETION;
        let work = ReceiveWork { from, segments: segments_of_none(), tag: criteria.tag, context: id, flags };
        // SAFETY: the operation uses no memory.
        let posted = on!(port, endpoint => unsafe { endpoint.post_recv(&work) });
        posted.or_else(|error| self.refused(id, &error))
    }

    /// Receives or discards a claimed message.
    pub(super) fn claimed(&mut self, at: usize, nth: usize, discard: bool) -> Verdict {
        let Some(open) = &mut self.seats[at].open else { return Ok(()) };
        if open.claimed.is_empty() {
            return Ok(());
        }
        let index = nth % open.claimed.len();
        let (claim, port) = (open.claimed[index], open.port);
        let Some(receive) = self.ledger.received_by(claim).copied() else { return Ok(()) };
        let len = if discard { 0 } else { 2_048 };
        let lent = self.lender.lend(len)?;
        let id = claim;
        let operation = self.ledger.operation(id).cloned();
        let fits = |message: &Message| message.to == EndpointAddress(at as u32) && receive.criteria.fits(message);
        let harmed =
            self.ledger.messages().any(|(_, message)| message.may_be_lost && message.arrivals == 0 && fits(message));
        // The receive has the same context as the claim. In the ledger, both are one operation.
        if let Some(operation) = self.ledger.operation_mut(id) {
            (operation.is_over, operation.what) = (false, if discard { "claimed discard" } else { "claimed receive" });
            // The sender may have been closed since the claim.
            operation.may_fail |= harmed;
        }
        self.ledger.receive(id, LedgerReceive { capacity: len, ..receive });
        let mut flags = OpFlags::CLAIM | OpFlags::COMPLETION;
        flags.set(OpFlags::DISCARD, discard);
        let segments = Segments::one(lent.segment());
        let tag = receive.criteria.tag;
        let work = ReceiveWork { from: PeerAddress::UNSPECIFIED, segments, tag, context: claim, flags };
        // SAFETY: the buffer is kept in `lent` until the operation has ended.
        let posted = on!(port, endpoint => unsafe { endpoint.post_recv(&work) });
        self.lent.insert(id, vec![lent]);
        match posted {
            Ok(()) => {
                if let Some(open) = &mut self.seats[at].open {
                    open.claimed.remove(index);
                    open.posted.push(id);
                }
                Ok(())
            }
            Err(error) => {
                if let (Some(before), Some(now)) = (operation, self.ledger.operation_mut(id)) {
                    *now = before;
                }
                self.give_back(id)?;
                match error {
                    PostError::Again => Ok(()),
                    // The sender may have been closed. Its message is then discarded.
                    PostError::NotClaimed => {
                        if let Some(open) = &mut self.seats[at].open {
                            open.claimed.remove(index);
                        }
                        Ok(())
                    }
                    other => Err(Fault::new("refused without a cause", format!("operation {id}: {other}"))),
                }
            }
        }
    }

    pub(super) fn cancel(&mut self, at: usize, nth: usize) {
        let Some(open) = &self.seats[at].open else { return };
        let Some(index) = open.posted.len().checked_sub(1 + nth) else { return };
        let (id, port) = (open.posted[index], open.port);
        self.cancel_one(id, |id| on!(port, endpoint => endpoint.cancel(id)));
    }

    pub(super) fn cancel_pool(&mut self, nth: usize) {
        let ledger = &self.ledger;
        self.pool_posted.retain(|id| ledger.operation(*id).is_some_and(|operation| !operation.is_over));
        let Some(index) = self.pool_posted.len().checked_sub(1 + nth) else { return };
        let (id, pool) = (self.pool_posted[index], self.pool.clone());
        self.cancel_one(id, |id| pool.cancel(id));
    }

    pub(super) fn cancel_one(&mut self, id: u64, cancel: impl FnOnce(u64) -> bool) {
        if cancel(id)
            && let Some(operation) = self.ledger.operation_mut(id)
        {
            operation.is_cancelled = true;
            let message = self.ledger.message_mut(id);
            if let Some(message) = message {
                message.may_be_lost = true;
            }
        }
    }
}

fn segments_of_none() -> Segments {
    // SAFETY: the segment is empty.
    Segments::one(unsafe { Segment::new(std::ptr::NonNull::<u8>::dangling().as_ptr(), 0) })
}
