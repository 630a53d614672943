//! Posts messages and receives through the raw API, and handles reports.

#![expect(unsafe_code, reason = "posts operations on memory that it keeps until they have ended")]

use percale::{
    CompletionFlags, CompletionQueue, Entry, ErrorCode, ErrorEntry, OpFlags, PeerAddress, PostError, ReceiveWork,
    Segment, Segments, SendWork,
};

use super::{Place, World, on};
use crate::search::ledger::{Criteria, Fault, Home, Message, Operation, Receive, Report, Verdict};
use crate::search::payload;
use crate::search::step::{Level, Look, ReceiveBy, SendBy};

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

/// The report of a receive, and the ledger's record of the receive.
struct ReceiveReport<'a> {
    report: Result<&'a Entry, &'a ErrorEntry>,
    /// The entry of a success, or of an error.
    entry: Entry,
    result: Result<(), (ErrorCode, &'a str)>,
    operation: &'a Operation,
    receive: Receive,
}

impl ReceiveReport<'_> {
    /// Returns whether the receive accepts several messages.
    fn is_multi(&self) -> bool {
        self.operation.what.ends_with("multi-receive")
    }

    /// Returns whether a buffer for several messages is released.
    fn is_released(&self) -> bool {
        self.entry.flags.contains(CompletionFlags::MULTI_RECEIVE)
    }

    /// Returns whether a message arrived.
    fn has_message(&self) -> bool {
        match self.report {
            Ok(entry) => !self.is_multi() || entry.len > 0 || entry.flags.contains(CompletionFlags::REMOTE_DATA),
            Err(error) => error.error == ErrorCode::Truncated,
        }
    }

    /// Returns the number of bytes of the message that did not fit.
    fn overflow(&self) -> u64 {
        self.report.map_or_else(|error| error.overflow, |_| 0)
    }

    /// Returns the length of the message, including the bytes that did not fit.
    fn came(&self) -> u64 {
        self.entry.len + self.overflow()
    }
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
            peer: peer.map(|peer| Place(peer as u32)),
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
            from_place: Place(at as u32),
            to: Place(to as u32),
            len,
            tag,
            has_data,
            is_ordered,
            is_fenced,
            arrivals: 0,
            may_be_lost: harmed,
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
        Criteria { from: from.map(|from| Place(from as u32)), tag }
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
        self.ledger.receive(id, Receive { home: Home::Own(life), criteria, capacity: len, is_ordered: true });
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
        if !self.settings.seats.iter().any(|seat| seat.pool) {
            return Ok(());
        }
        let id = self.ledger.number();
        let lent = self.lender.lend(len)?;
        self.enter_pooled(id, if multi { "shared multi-receive" } else { "shared receive" }, from);
        self.ledger.receive(id, Receive { home: Home::Pool(0), criteria, capacity: len, is_ordered: true });
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

    pub(super) fn look(&mut self, at: usize, from: Option<usize>, tag: Option<(u8, u8)>, what: Look) -> Verdict {
        let Some((life, port)) = self.port(at) else { return Ok(()) };
        let criteria = Self::criteria(from, tag);
        let id = self.ledger.number();
        let (name, flags) = match what {
            Look::Peek => ("peek", OpFlags::PEEK),
            Look::Claim => ("claim", OpFlags::PEEK | OpFlags::CLAIM),
            Look::Discard => ("discard", OpFlags::PEEK | OpFlags::DISCARD),
        };
        self.enter(id, name, at, from, true);
        self.ledger.receive(id, Receive { home: Home::Own(life), criteria, capacity: 0, is_ordered: false });
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
        let fits = |message: &Message| message.to == Place(at as u32) && receive.criteria.fits(message);
        let harmed =
            self.ledger.messages().any(|(_, message)| message.may_be_lost && message.arrivals == 0 && fits(message));
        // The receive has the same context. In the ledger, it continues the claim.
        if let Some(operation) = self.ledger.operation_mut(id) {
            (operation.is_over, operation.what) = (false, if discard { "claimed discard" } else { "claimed receive" });
            // The sender may have been closed since the claim.
            operation.may_fail |= harmed;
        }
        self.ledger.receive(id, Receive { capacity: len, ..receive });
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

    pub(super) fn poll(&mut self, at: usize, count: usize) -> Verdict {
        let Some((_, port)) = self.port(at) else { return Ok(()) };
        let mut entries = [Entry::default(); 16];
        let count = count.clamp(1, 16);
        match on!(port, endpoint => endpoint.poll(&mut entries[..count])) {
            Ok(count) => entries[..count].iter().try_for_each(|entry| self.reported(Some(at), Ok(entry))),
            Err(_) => match on!(port, endpoint => endpoint.read_error()) {
                Some(error) => self.reported(Some(at), Err(&error)),
                None => Err(Fault::new("no error", "a poll said that an error is next, and there is none")),
            },
        }
    }

    pub(super) fn read(&mut self, queue: usize, count: usize) -> Verdict {
        let queue: CompletionQueue = self.queues[queue].clone();
        let mut entries = [Entry::default(); 16];
        let count = count.clamp(1, 16);
        match queue.read(&mut entries[..count]) {
            Ok(count) => entries[..count].iter().try_for_each(|entry| self.reported(None, Ok(entry))),
            Err(_) => match queue.read_error() {
                Some(error) => self.reported(None, Err(&error)),
                None => Err(Fault::new("no error", "a reading said that an error is next, and there is none")),
            },
        }
    }

    /// Handles a report of an endpoint, or of a queue that several endpoints use.
    fn reported(&mut self, at: Option<usize>, report: Result<&Entry, &ErrorEntry>) -> Verdict {
        self.results += 1;
        let entry = report.map_or_else(|error| error.entry, |entry| *entry);
        let id = entry.context;
        if id == 0 && report.is_err() {
            return Ok(()); // The error of an injected message.
        }
        let Some(operation) = self.ledger.operation(id).cloned() else {
            return Err(Fault::new(
                "unknown context",
                format!("{report:?} is reported, and nothing of the kind was posted"),
            ));
        };
        let result = report.map(|_| ()).map_err(|error| (error.error, error.text.as_ref()));
        if operation.is_closed && operation.what.contains("receive") {
            // The operation was reported before its endpoint was closed, and the report is read only now. Its memory
            // belongs to the application again.
            let is_released =
                !operation.what.ends_with("multi-receive") || entry.flags.contains(CompletionFlags::MULTI_RECEIVE);
            return if is_released { self.ledger.end(id, result) } else { Ok(()) };
        }
        let Some(receive) = self.ledger.received_by(id).copied() else {
            return self.over(id, result);
        };
        self.receive_reported(at, &ReceiveReport { report, entry, result, operation: &operation, receive })
    }

    /// Handles the report of a receive.
    fn receive_reported(&mut self, at: Option<usize>, report: &ReceiveReport<'_>) -> Verdict {
        let ReceiveReport { entry, operation, receive, .. } = report;
        if !report.has_message() || operation.what.ends_with("discard") {
            if operation.what.ends_with("discard") && report.result.is_ok() {
                // The report does not always identify the message. Any matching message may have been discarded.
                self.discarded(at, entry, &receive.criteria);
            }
            if report.is_multi() && !report.is_released() && report.result.is_err() {
                return Ok(()); // A message failed. The buffer stays in use.
            }
            return self.receive_over(report);
        }
        let Some(place) = self.receiver(at, operation, entry)? else {
            let came = report.came() as usize;
            self.ledger.arrived_nameless(None, &receive.criteria, came);
            let stays = report.is_multi() && !report.is_released();
            return if stays { Ok(()) } else { self.over(entry.context, report.result) };
        };
        match operation.what {
            "peek" | "claim" => self.message_seen(place, report),
            _ => self.message_received(place, report),
        }
    }

    /// Handles a message that a peek or a claim has found.
    fn message_seen(&mut self, place: usize, report: &ReceiveReport<'_>) -> Verdict {
        let (entry, id) = (&report.entry, report.entry.context);
        if entry.flags.contains(CompletionFlags::REMOTE_DATA) {
            self.ledger.seen(Place(place as u32), entry.data, &report.receive.criteria, false)?;
        }
        if report.operation.what == "claim"
            && let Some(open) = &mut self.seats[place].open
        {
            open.claimed.push(id);
        }
        self.over(id, report.result)
    }

    /// Handles a message that arrived at a place. Checks it, and ends the receive unless its buffer has room for more
    /// messages.
    fn message_received(&mut self, place: usize, report: &ReceiveReport<'_>) -> Verdict {
        let ReceiveReport { entry, operation, receive, .. } = report;
        let id = entry.context;
        let source = self.source(entry.source)?;
        let (len, overflow) = (entry.len as usize, report.overflow() as usize);
        let (offset, bytes) = self.received_bytes(report, len)?;
        let data = entry.flags.contains(CompletionFlags::REMOTE_DATA).then_some(entry.data);
        let tag = entry.flags.contains(CompletionFlags::TAGGED).then_some(entry.tag);
        let message = Report { len, tag, data, source, bytes: &bytes, overflow, offset };
        let life = self.seats[place].open.as_ref().map(|open| open.life);
        let life = operation.at.or(life).unwrap_or(crate::search::ledger::Life(u32::MAX));
        if report.is_multi() || data.is_some() || len >= 8 {
            self.ledger.arrive((life, Place(place as u32)), id, &message)?;
        } else {
            self.ledger.arrived_nameless(Some(Place(place as u32)), &receive.criteria, len + overflow);
        }
        if report.is_multi() && !report.is_released() {
            return Ok(());
        }
        self.receive_over(report)
    }

    /// Returns the offset of a received message in the buffer of its receive, and its bytes.
    fn received_bytes(&self, report: &ReceiveReport<'_>, len: usize) -> Verdict<(usize, Vec<u8>)> {
        let ReceiveReport { entry, operation, receive, .. } = report;
        let id = entry.context;
        // The queue of another member may already have reported the release of the buffer. Its contents at that time
        // are used then.
        let (address, whole) = match (self.lent.get(&id).and_then(|lent| lent.first()), self.released.get(&id)) {
            (Some(lent), _) => (lent.address(), None),
            (None, Some((address, whole))) => (*address, Some(whole)),
            (None, None) => {
                let text = format!("{} {id} had ended, and got a message: {entry:?}", operation.what);
                return Err(Fault::new("ended twice", text));
            }
        };
        let room = receive.capacity;
        let offset = if report.is_multi() { entry.buffer.wrapping_sub(address) as usize } else { 0 };
        if offset.checked_add(len).is_none_or(|end| end > room) {
            let text = format!("{} {id}: {len} bytes at offset {offset} of {room}: {entry:?}", operation.what);
            return Err(Fault::new("wrong length", text));
        }
        let bytes = match (whole, self.lent.get(&id).and_then(|lent| lent.first())) {
            (Some(whole), _) => whole[offset..offset + len].to_vec(),
            (None, Some(lent)) => lent.read(offset, len),
            (None, None) => Vec::new(),
        };
        Ok((offset, bytes))
    }

    /// Ends a receive and releases its buffer.
    fn receive_over(&mut self, report: &ReceiveReport<'_>) -> Verdict {
        let id = report.entry.context;
        self.release(id, report.is_multi() && report.operation.at.is_none());
        self.over(id, report.result)
    }

    /// Releases a shared buffer. Its contents are kept for reports in other queues.
    fn release(&mut self, id: u64, is_shared: bool) {
        if is_shared && let Some(lent) = self.lent.get(&id).and_then(|lent| lent.first()) {
            self.released.insert(id, (lent.address(), lent.read(0, lent.len())));
        }
    }

    /// Returns the place at which the message of an operation arrived. This is the place of the operation or, for a
    /// shared receive, the target of the message.
    fn receiver(&self, at: Option<usize>, operation: &Operation, entry: &Entry) -> Verdict<Option<usize>> {
        if let Some(life) = operation.at {
            let place = self.seats.iter().position(|seat| seat.open.as_ref().is_some_and(|open| open.life == life));
            if let (Some(at), Some(place)) = (at, place)
                && at != place
            {
                let text = format!("{entry:?} of an operation at place {place} is reported at place {at}");
                return Err(Fault::new("reported elsewhere", text));
            }
            return Ok(place);
        }
        if at.is_some() {
            return Ok(at);
        }
        let id = entry.context;
        let bytes = self.lent.get(&id).and_then(|lent| lent.first()).map(|lent| {
            let offset = entry.buffer.checked_sub(lent.address()).filter(|_| entry.buffer != 0).unwrap_or(0) as usize;
            lent.read(offset.min(lent.len()), 8.min(lent.len().saturating_sub(offset)))
        });
        let number = entry.flags.contains(CompletionFlags::REMOTE_DATA).then_some(entry.data);
        let number = number.or_else(|| bytes.as_deref().and_then(payload::name_of));
        Ok(number.and_then(|number| self.ledger.message(number)).map(|message| message.to.0 as usize))
    }

    fn discarded(&mut self, at: Option<usize>, entry: &Entry, criteria: &Criteria) {
        let number = entry.flags.contains(CompletionFlags::REMOTE_DATA).then_some(entry.data);
        for (id, message) in self.ledger.messages_mut() {
            let here = at.is_none_or(|at| message.to.0 as usize == at);
            if here && message.arrivals == 0 && criteria.fits(message) && number.is_none_or(|number| number == id) {
                message.may_be_lost = true;
            }
        }
    }

    /// Handles the end of an operation. Its memory belongs to the application again.
    pub(super) fn over(&mut self, id: u64, result: Result<(), (ErrorCode, &str)>) -> Verdict {
        if let Err((code, _)) = result
            && let Some(message) = self.ledger.message_mut(id)
            && code != ErrorCode::Truncated
        {
            message.may_be_lost = true;
        }
        self.ledger.end(id, result)?;
        self.accessed(id, result.is_ok(), None)?;
        self.summed(id, result.is_ok())?;
        self.give_back(id)
    }
}

fn segments_of_none() -> Segments {
    // SAFETY: the segment is empty.
    Segments::one(unsafe { Segment::new(std::ptr::NonNull::<u8>::dangling().as_ptr(), 0) })
}
