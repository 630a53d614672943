//! Messages: posted receives, messages that wait for a receive, payloads that arrive or are fetched, and sends that
//! wait for their peer.
//!
//! This module only keeps records: it sends nothing and reports nothing. `arrive`, `receive` and `send` use it to
//! handle frames and calls. The messages of groups have a separate table (`collective`).
//!
//! * `memory`: the memory of receives
//! * `sends`: sends that wait for their peer; `unsent`: sends with bytes that have yet to leave
//!
//! Invariants:
//! 1. A receive that this module keeps is in exactly one of these: a matching table, an arrival, a pull. The function
//!    that removes it there ends it, or passes it to another module.
//! 2. A message without a receive is held in a matching table; while its payload arrives, it is in `arrivals` too.
//! 3. A message that an operation has claimed is held, and only that operation finds it.
//! 4. Messages of one peer are matched in the order in which they were sent.
//! 5. Numbers that peers and links return are [`Id`]s of these tables. The number of an entry that no longer exists is
//!    stale, and no entry is found for it.

mod memory;
mod sends;
#[cfg(all(test, not(loom)))]
mod tests;
mod unsent;

use std::collections::HashMap;

pub(crate) use self::memory::MultiReceive;
pub(super) use self::memory::ReceiveMemory;
pub(super) use self::sends::{SendAsked, SendEnd, Sends, refusal_of};
use self::unsent::UnsentSends;
use super::kinds::{envelope, is_tagged};
use super::types::{Notify, OperationIdentity, PayloadPull, Receive, ReceiveDestination, StreamArrival, Unexpected};
use crate::endpoint::matching::{AfterMatch, Envelope, HeldMessage, Matching};
use crate::local_memory::volatile::{View, ViewExt as _};
use crate::table::{Id, Table};
use crate::transport::ConnectionId;
use crate::wire::head::Head;

/// The messages of an endpoint.
#[derive(Debug)]
pub(crate) struct Messages {
    /// Posted receives and unexpected messages that are untagged.
    untagged: Matching<Receive, Unexpected>,
    /// Posted receives and unexpected messages that are tagged.
    tagged: Matching<Receive, Unexpected>,
    /// Messages that a peek has claimed, by the operation that claimed them. Each value contains whether the message is
    /// tagged, and where it is held.
    claims: HashMap<OperationIdentity, (bool, HeldMessage)>,
    memory: ReceiveMemory,
    /// Payloads arriving over streams.
    arrivals: Table<StreamArrival>,
    /// Payloads being fetched.
    pulls: Table<PayloadPull>,
    sends: Sends,
    unsent: UnsentSends,
}

impl Messages {
    /// Creates the state of an endpoint without messages. A multi-receive buffer with less than `multi_minimum` bytes
    /// left takes no further messages.
    pub(crate) fn new(multi_minimum: usize) -> Self {
        Self {
            untagged: Matching::new(),
            tagged: Matching::new(),
            claims: HashMap::new(),
            memory: ReceiveMemory::new(multi_minimum),
            arrivals: Table::new(),
            pulls: Table::new(),
            sends: Sends::default(),
            unsent: UnsentSends::default(),
        }
    }

    /// Returns the table of tagged or of untagged messages.
    #[inline]
    pub(super) const fn table(&mut self, tagged: bool) -> &mut Matching<Receive, Unexpected> {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }

    /// Like [`table`](Self::table), but read-only.
    #[inline]
    pub(super) const fn table_ref(&self, tagged: bool) -> &Matching<Receive, Unexpected> {
        if tagged { &self.tagged } else { &self.untagged }
    }

    /// Returns whether receives are posted.
    pub(crate) fn has_receives(&self) -> bool {
        self.tagged.posted_len() + self.untagged.posted_len() > 0
    }

    /// Returns the memory of receives.
    #[inline]
    pub(super) const fn memory(&self) -> &ReceiveMemory {
        &self.memory
    }

    /// Like [`memory`](Self::memory), but mutable.
    #[inline]
    pub(super) const fn memory_mut(&mut self) -> &mut ReceiveMemory {
        &mut self.memory
    }

    /// Returns the number of bytes below which a multi-receive buffer takes no more messages.
    pub(crate) const fn multi_minimum(&self) -> usize {
        self.memory.minimum()
    }

    /// Sets the number of bytes below which a multi-receive buffer takes no more messages.
    pub(crate) const fn set_multi_minimum(&mut self, minimum: usize) {
        self.memory.set_minimum(minimum);
    }

    /// Returns the sends that wait for their peer.
    #[inline]
    pub(super) const fn sends(&self) -> &Sends {
        &self.sends
    }

    /// Like [`sends`](Self::sends), but mutable.
    #[inline]
    pub(super) const fn sends_mut(&mut self) -> &mut Sends {
        &mut self.sends
    }

    /// Returns the sends with bytes that have yet to leave.
    #[inline]
    pub(super) const fn unsent(&mut self) -> &mut UnsentSends {
        &mut self.unsent
    }

    /// Delivers a message on the fast path, which handles messages that fit a receive of one segment that is reported
    /// to the endpoint's own queue. Returns the receive's context. Returns `None`, and does nothing, for any other
    /// message.
    #[inline(always)]
    pub(super) fn deliver(
        &mut self,
        tagged: bool,
        envelope: Envelope,
        payload: View<'_>,
        takes: impl FnOnce(Notify) -> bool,
    ) -> Option<(u64, Notify)> {
        let table = if tagged { &mut self.tagged } else { &mut self.untagged };
        let met = table.meet(envelope)?;
        let Receive { place: ReceiveDestination::One(segment), context, notify, multi: None } = *table.met(met) else {
            return None;
        };
        if !takes(notify) || payload.len() > segment.len() {
            return None;
        }
        payload.copy_to_one(segment);
        table.use_up(met);
        Some((context, notify))
    }

    /// Returns the receive for a message, if one is posted. The receive is removed from its table. For a multi-receive
    /// buffer, a part of the buffer is returned.
    #[inline]
    pub(super) fn match_posted(&mut self, from: ConnectionId, head: &Head, len: u64) -> Option<Receive> {
        let Self { untagged, tagged, memory, .. } = self;
        let table = if is_tagged(head.kind) { tagged } else { untagged };
        let (part, taken) = table.arrive_with(envelope(from, head), |_, receive| {
            let Some(multi) = receive.multi else { return (AfterMatch::Remove, None) };
            let (part, closed) = memory.take_part(multi, len);
            (if closed { AfterMatch::Remove } else { AfterMatch::Stay }, Some(part))
        })?;
        part.or(taken)
    }

    /// Takes the held messages of this kind for which `unwanted` returns true.
    pub(super) fn take_held(
        &mut self,
        tagged: bool,
        unwanted: impl Fn(Envelope, &Unexpected) -> bool,
    ) -> Vec<Unexpected> {
        let held = self.table(tagged).extract_held(|envelope, _, message| unwanted(envelope, message));
        held.map(|(_, message)| message).collect()
    }

    /// Calls `change` with each held message, claimed or not.
    pub(super) fn change_held(&mut self, change: impl Fn(&mut Unexpected) + Copy) {
        self.untagged.change_held(change);
        self.tagged.change_held(change);
    }

    /// Claims a held message for an operation. Returns false, and does nothing, if the operation has claimed one.
    pub(super) fn claim(&mut self, by: OperationIdentity, tagged: bool, held: HeldMessage) -> bool {
        if self.claims.contains_key(&by) {
            return false;
        }
        self.table(tagged).claim(held);
        self.claims.insert(by, (tagged, held));
        true
    }

    /// Returns the message that an operation has claimed, if that is a message of this kind, and ends the claim.
    pub(super) fn take_claim(&mut self, by: OperationIdentity, tagged: bool) -> Option<HeldMessage> {
        let (table, held) = self.claims.remove(&by)?;
        if table != tagged {
            self.claims.insert(by, (table, held));
            return None;
        }
        Some(held)
    }

    /// Transfers the claim on a message from one operation to another.
    pub(super) fn rename_claim(&mut self, from: OperationIdentity, to: OperationIdentity) {
        if let Some(claim) = self.claims.remove(&from) {
            self.claims.insert(to, claim);
        }
    }

    /// Ends all claims, because the endpoint closes.
    pub(super) fn drop_claims(&mut self) {
        self.claims.clear();
    }

    /// Adds a payload that arrives over a stream.
    pub(super) fn begin_arrival(&mut self, arrival: StreamArrival) -> Id<StreamArrival> {
        self.arrivals.insert(arrival)
    }

    /// Records where the message of an arrival is held until there is a receive.
    pub(super) fn hold_arrival(&mut self, id: Id<StreamArrival>, held: HeldMessage) {
        self.arrivals[id].held = Some(held);
    }

    /// Assigns a payload that is arriving to its receive.
    pub(super) fn give_arrival(&mut self, id: Id<StreamArrival>, receive: Receive) {
        self.arrivals[id].receive = Some(receive);
    }

    /// Records that the message of an arrival is no longer held. Its bytes are discarded.
    pub(super) fn forget_arrival(&mut self, id: Id<StreamArrival>) {
        if let Some(arrival) = self.arrivals.get_mut(id) {
            arrival.held = None;
        }
    }

    /// Takes the arrival with this number of a link. The payload has arrived completely.
    pub(super) fn take_arrival(&mut self, token: u32) -> Option<StreamArrival> {
        let id = self.arrivals.find_wire(token)?;
        self.arrivals.remove(id)
    }

    /// Takes the arrivals from a disconnected peer.
    pub(super) fn take_arrivals_of(&mut self, from: ConnectionId) -> Vec<StreamArrival> {
        let gone: Vec<_> = self.arrivals.iter().filter(|(_, a)| a.from == from).map(|(id, _)| id).collect();
        gone.into_iter().filter_map(|id| self.arrivals.remove(id)).collect()
    }

    /// Returns the number that the next pull gets.
    pub(super) fn next_pull(&self) -> u32 {
        self.pulls.next_id().to_wire()
    }

    /// Adds a payload that is fetched. Returns its number, which the link uses.
    pub(super) fn begin_pull(&mut self, pull: PayloadPull) -> u32 {
        self.pulls.insert(pull).to_wire()
    }

    /// Takes the pull with this number of a link, if the pull is from this peer.
    pub(super) fn take_pull(&mut self, from: ConnectionId, token: u32) -> Option<PayloadPull> {
        let id = self.pulls.find_wire(token).filter(|id| self.pulls[*id].from() == from)?;
        self.pulls.remove(id)
    }

    /// Takes those pulls from a peer for which `wanted(number)` returns true.
    pub(super) fn take_pulls_of(&mut self, from: ConnectionId, wanted: impl Fn(u32) -> bool) -> Vec<PayloadPull> {
        let ours =
            |(id, pull): (Id<PayloadPull>, &PayloadPull)| (pull.from() == from && wanted(id.to_wire())).then_some(id);
        let taken: Vec<_> = self.pulls.iter().filter_map(ours).collect();
        taken.into_iter().filter_map(|id| self.pulls.remove(id)).collect()
    }

    /// Returns the numbers of records (see `remains`).
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn remains(&self) -> [(&'static str, usize); 9] {
        let [vectors, multis] = self.memory.remains();
        [
            ("posted receives", self.untagged.posted_len() + self.tagged.posted_len()),
            ("held messages", self.untagged.unexpected_len() + self.tagged.unexpected_len()),
            ("claims", self.claims.len()),
            ("lists of segments", vectors),
            ("multi-receive buffers", multis),
            ("arrivals", self.arrivals.len()),
            ("pulls", self.pulls.len()),
            ("sends that wait for their peer", self.sends.len()),
            ("sends that have yet to leave", self.unsent.len()),
        ]
    }

    /// Returns the number of payloads that arrive, and of those that are fetched.
    #[cfg(all(test, not(loom)))]
    pub(super) fn under_way(&self) -> [usize; 2] {
        [self.arrivals.len(), self.pulls.len()]
    }
}
