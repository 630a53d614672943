//! Accesses in progress to the memory of peers, and bytes of local regions that peers fetch.
//!
//! This module only keeps records: it sends nothing and reports nothing. `access` makes the accesses and handles their
//! answers, `target` handles the requests of peers.
//!
//! * `operation`: the operation of an access, and an access that waits for its turn
//! * `records`: the records of accesses that have ended, which the next ones use
//! * `serves`: bytes of local regions that peers fetch
//!
//! Invariants:
//! 1. An access that was started is in `accesses` until its last part has ended. A part is in `parts` until it has been
//!    answered and no transport reads its memory any more. The access owns the memory that its parts use.
//! 2. Parts, accesses and transfers with a number that a peer sent are checked to belong to that peer. The number of an
//!    entry that no longer exists is stale, which is not an error.
//! 3. After the first refusal no further part of an access leaves. The access ends when the parts that had left are
//!    answered.
//! 4. A long part is in `long` exactly while it is in `parts`.
//! 5. A spare record (`records`) owns no memory, and nothing reads its operation.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod operation;
mod records;
mod serves;
#[cfg(all(test, not(loom)))]
mod tests;

use std::borrow::Cow;

pub(super) use self::operation::{AccessNotice, RemoteWriteData, atomic_entry, atomic_kind, rma_entry, word_entry};
pub(crate) use self::operation::{AccessOperation, PendingAccess};
pub(super) use self::records::record;
pub(super) use self::serves::{Serve, ServeMode};
use super::types::{Notify, PullAnswer, checked_offer};
use crate::completion::entry::{Entry, ErrorCode};
use crate::endpoint::posted::Posted;
use crate::local_memory::volatile::{Segments, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::region::{Refusal, RemoteMemory};
use crate::table::{Id, Table};
use crate::transport::ConnectionId;
use crate::wire::head::{Flags, Head, Offer};

/// The maximum length of a part, in bytes: the number of bytes that a target may have to hold for it.
pub(crate) const PART_LIMIT: u64 = 32 << 20;

/// Bits in the numbers that peers use for operations other than sends. They select the table.
pub(crate) const PART: u32 = 1 << 31;
pub(crate) const SERVE: u32 = 1 << 30;

/// The error of a failed access.
pub(super) type AccessError = (ErrorCode, Cow<'static, str>);

/// An access in progress.
#[derive(Debug)]
pub(crate) struct Execution {
    to: ConnectionId,
    notify: Notify,
    /// The operation, with the memory that it uses. Transports use that memory until the last part has ended.
    posted: Box<Posted<AccessOperation>>,
    /// The number of parts that have left and have not ended, plus 1 until all parts have left.
    left: u32,
    error: Option<AccessError>,
    /// The notice that the target gets when all parts have arrived.
    notice: Option<AccessNotice>,
    /// Whether messages wait for the access, because some part is a long write, or it is a write by RDMA.
    long: bool,
    /// Whether the access is made by RDMA.
    direct: bool,
}

impl Execution {
    /// Creates the state of an access before its first part has left.
    const fn new(to: ConnectionId, notify: Notify, posted: Box<Posted<AccessOperation>>) -> Self {
        Self { to, notify, posted, left: 1, error: None, notice: None, long: false, direct: false }
    }

    /// Returns the target.
    pub(super) const fn to(&self) -> ConnectionId {
        self.to
    }

    /// Returns the completion.
    pub(super) fn entry(&self) -> Entry {
        self.posted.work().entry()
    }

    /// Returns where the end of the access is reported.
    pub(super) const fn notify(&self) -> Notify {
        self.notify
    }

    /// Returns whether messages wait for the access.
    pub(super) const fn is_long(&self) -> bool {
        self.long
    }

    /// Returns whether the access is made by RDMA.
    pub(super) const fn is_by_rdma(&self) -> bool {
        self.direct
    }

    /// Takes the error of the access, if it failed.
    pub(super) const fn take_error(&mut self) -> Option<AccessError> {
        self.error.take()
    }

    /// Returns the notice that the target gets now, after all parts have arrived.
    pub(super) const fn notice(&self) -> Option<&AccessNotice> {
        self.notice.as_ref()
    }

    /// Releases the memory of the access, which has ended and was reported, and keeps its record.
    pub(super) fn recycle(self) {
        records::keep(self.posted);
    }

    /// Returns the operation with its memory, so that it can be restarted.
    pub(super) fn into_posted(self) -> Box<Posted<AccessOperation>> {
        self.posted
    }
}

/// A part that the target performs some time after it handled the frame. Accesses that overlap it have to wait, unless
/// both read.
#[derive(Clone, Copy, Debug)]
struct Long {
    peer: ConnectionId,
    /// The entry of the part in `parts`.
    part: Id<AccessPart>,
    remote: RemoteMemory,
    writes: bool,
}

impl Long {
    /// Returns whether an access to `other` must not overtake this one.
    fn conflicts_with(&self, other: &RemoteMemory, writes: bool) -> bool {
        let (ours, theirs) = (&self.remote, other);
        // This does not add address and length, because the sums may wrap.
        let overlap = ours.address.wrapping_sub(theirs.address) < theirs.len
            || theirs.address.wrapping_sub(ours.address) < ours.len;
        ours.key == theirs.key && overlap && (writes || self.writes)
    }
}

/// One request to the target.
#[derive(Debug)]
pub(crate) struct AccessPart {
    access: Id<Execution>,
    to: ConnectionId,
    /// The local memory: the bytes that are written, or the place for results.
    local: Segments,
    /// The key of the region.
    key: u64,
    /// Whether a transport uses `local`: it reads from it to serve a pull, or fetches into it.
    pushing: bool,
    /// Whether the target has requested the bytes of a long write. It may do so once.
    requested: bool,
    /// The answer of the target, if a transport still reads `local`.
    answered: Option<Result<(), Refusal>>,
    takes_data: bool,
}

impl AccessPart {
    /// Creates a part that is about to leave. `takes_data` states whether the answer carries bytes for `local`.
    pub(super) const fn new(
        access: Id<Execution>,
        to: ConnectionId,
        local: Segments,
        key: u64,
        takes_data: bool,
    ) -> Self {
        Self { access, to, local, key, pushing: false, requested: false, answered: None, takes_data }
    }

    /// Returns the access of the part.
    pub(super) const fn access(&self) -> Id<Execution> {
        self.access
    }

    /// Returns the target of the part.
    pub(super) const fn to(&self) -> ConnectionId {
        self.to
    }
}

/// The bytes of a read that this endpoint fetches.
#[derive(Debug)]
pub(super) struct OfferedRead {
    pub(super) part: Id<AccessPart>,
    pub(super) offer: Offer,
    /// The place for the bytes.
    pub(super) into: Lease,
}

/// The result of looking up a part by a number that a peer sent.
enum NamedPart {
    /// A part of an access to that peer.
    Here(Id<AccessPart>),
    /// A part that has ended, or that belongs to another peer.
    Gone,
    /// The number is not that of a part.
    None,
}

/// Accesses in progress to the memory of peers, and transfers from local regions.
#[derive(Debug, Default)]
pub(crate) struct RemoteAccesses {
    /// Accesses to peers' memory.
    accesses: Table<Execution>,
    /// The parts of the accesses that peers execute.
    parts: Table<AccessPart>,
    /// The parts that are long.
    long: Vec<Long>,
    /// Bytes of local regions that peers fetch.
    serves: Table<Serve>,
}

impl RemoteAccesses {
    /// Returns whether no further part can be added.
    pub(super) fn is_full(&self) -> bool {
        self.parts.is_full()
    }

    /// Returns the number of bytes of long parts that a peer has yet to transfer.
    pub(super) fn long_bytes(&self, slot: ConnectionId) -> u64 {
        self.long.iter().filter(|long| long.peer == slot).map(|long| long.remote.len).sum()
    }

    /// Returns whether an access has to wait for a long part of an access that was posted before it.
    pub(super) fn conflicts_with_long(&self, slot: ConnectionId, what: &AccessOperation) -> bool {
        let writes = what.changes();
        self.long
            .iter()
            .any(|long| long.peer == slot && what.pieces().iter().any(|piece| long.conflicts_with(piece, writes)))
    }

    /// Starts an access before any of its parts has left. `notice` is the notice that the target gets when all parts
    /// have arrived. Returns `None` if the access was started before.
    pub(super) fn start(
        &mut self,
        slot: ConnectionId,
        waiting: &mut PendingAccess,
        notify: Notify,
        notice: Option<AccessNotice>,
    ) -> Option<Id<Execution>> {
        let posted = waiting.start(self.accesses.next_id())?;
        Some(self.accesses.insert(Execution { notice, ..Execution::new(slot, notify, posted) }))
    }

    /// Returns the number that the next access gets.
    pub(super) fn next_access(&self) -> Id<Execution> {
        self.accesses.next_id()
    }

    /// Starts an access by RDMA after its first part was posted, with the number [`next_access`](Self::next_access).
    /// Returns `None` if the access was started before.
    pub(super) fn start_by_rdma(
        &mut self,
        slot: ConnectionId,
        waiting: &mut PendingAccess,
        notify: Notify,
    ) -> Option<()> {
        let posted = waiting.start(self.accesses.next_id())?;
        let long = posted.work().changes();
        // The posted part, plus 1 until all parts have left.
        self.accesses.insert(Execution { direct: true, long, left: 2, ..Execution::new(slot, notify, posted) });
        Some(())
    }

    /// Returns the started access that waits to continue, unless it has ended.
    pub(super) fn started(&self, waiting: &PendingAccess) -> Option<(Id<Execution>, &AccessOperation, bool)> {
        let id = waiting.started()?;
        let access = self.accesses.get(id)?;
        Some((id, access.posted.work(), access.direct))
    }

    /// Returns whether a part of an access was refused, so that no further part leaves.
    pub(super) fn has_failed(&self, access: Id<Execution>) -> bool {
        self.accesses.get(access).is_some_and(|access| access.error.is_some())
    }

    /// Returns the numbers of records (see `remains`).
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn remains(&self) -> [(&'static str, usize); 4] {
        [
            ("accesses", self.accesses.len()),
            ("parts of accesses", self.parts.len()),
            ("long parts", self.long.len()),
            ("transfers from local regions", self.serves.len()),
        ]
    }

    /// Returns whether parts of an access have left and have not ended.
    pub(super) fn has_parts_under_way(&self, access: Id<Execution>) -> bool {
        self.accesses.get(access).is_some_and(|access| access.left > 1)
    }

    /// Counts a part of an access that has left.
    pub(super) fn count_part(&mut self, access: Id<Execution>) {
        let access = &mut self.accesses[access];
        access.left = access.left.saturating_add(1); // There are fewer parts than the table of parts has entries.
    }

    /// Sets the notice that the target gets when all parts of an access have arrived, unless there is one already.
    pub(super) fn notify_at_end(&mut self, access: Id<Execution>, notice: impl FnOnce() -> AccessNotice) {
        self.accesses[access].notice.get_or_insert_with(notice);
    }

    /// Adds a part that is about to leave. If it does not leave, [`withdraw_part`](Self::withdraw_part) removes it.
    pub(super) fn add_part(&mut self, part: AccessPart) -> Id<AccessPart> {
        self.parts.insert(part)
    }

    /// Removes a part that did not leave.
    pub(super) fn withdraw_part(&mut self, part: Id<AccessPart>) {
        self.parts.remove(part);
    }

    /// Records that a part is long.
    pub(super) fn note_long_part(&mut self, part: Id<AccessPart>, remote: RemoteMemory, writes: bool) {
        self.long.push(Long { peer: self.parts[part].to, part, remote, writes });
    }

    /// Records that an access has a long write, for which messages wait. Returns false if that was recorded before.
    pub(super) fn note_long_write(&mut self, access: Id<Execution>) -> bool {
        !std::mem::replace(&mut self.accesses[access].long, true)
    }

    /// Records that a transport expects the bytes of a read, which the target sends without an offer. Returns the part
    /// and its target.
    pub(super) fn expect(&mut self, wire: u32) -> Option<(Id<AccessPart>, ConnectionId)> {
        let id = self.parts.find_wire(wire & !PART)?;
        let part = &mut self.parts[id];
        part.pushing = true; // A transport uses the memory of the part.
        Some((id, part.to))
    }

    /// Returns the access with this number, which a link reported.
    pub(super) fn access_of(&self, from: ConnectionId, wire: u32) -> Option<Id<Execution>> {
        let id = self.accesses.find_wire(wire)?;
        (self.accesses[id].to == from).then_some(id)
    }

    /// Like [`access_of`](Self::access_of), but only for accesses by RDMA.
    pub(super) fn rdma_access_of(&self, from: ConnectionId, wire: u32) -> Option<Id<Execution>> {
        self.access_of(from, wire).filter(|id| self.accesses[*id].direct)
    }

    /// Returns the part with this number, which a peer sent.
    fn part_of(&self, from: ConnectionId, wire: u32) -> NamedPart {
        if wire & PART == 0 {
            return NamedPart::None;
        }
        match self.parts.find_wire(wire & !PART) {
            Some(id) if self.parts[id].to == from => NamedPart::Here(id),
            _ => NamedPart::Gone,
        }
    }

    /// Records the generation of the region that the answer to a part carries, if the target gets a notice of the
    /// access later.
    fn learn(&mut self, id: Id<AccessPart>, answer: &Head) {
        let AccessPart { access, key, .. } = self.parts[id];
        if answer.flags.contains(Flags::DATA)
            && let Some(notice) = self.accesses.get_mut(access).and_then(|access| access.notice.as_mut())
        {
            notice.learn(key, answer.data);
        }
    }

    /// Handles an answer to a part that carries no bytes. Returns the part if it ends with this answer.
    ///
    /// # Errors
    /// Returns the peer's violation of the protocol.
    pub(super) fn answered(
        &mut self,
        from: ConnectionId,
        head: &Head,
        result: Result<(), Refusal>,
    ) -> Result<Option<Id<AccessPart>>, &'static str> {
        let id = match self.part_of(from, head.id) {
            NamedPart::Here(id) => id,
            NamedPart::Gone => return Ok(None),
            NamedPart::None => return Err("reply to an access that was not requested"),
        };
        self.learn(id, head);
        let part = &mut self.parts[id];
        if result.is_ok() && part.takes_data {
            return Err("end of a read without data");
        }
        if part.takes_data && part.pushing {
            return Err("unexpected reply to a read in progress");
        }
        if part.pushing {
            part.answered = Some(result);
            return Ok(None);
        }
        Ok(Some(id))
    }

    /// Copies the bytes that a part reads to its local memory. Returns the part, which then ends, or `None` if
    /// it no longer exists.
    ///
    /// # Errors
    /// Returns the peer's violation of the protocol.
    pub(super) fn read_data(
        &mut self,
        from: ConnectionId,
        head: &Head,
        payload: View<'_>,
    ) -> Result<Option<Id<AccessPart>>, &'static str> {
        let id = match self.part_of(from, head.id) {
            NamedPart::Here(id) if self.parts[id].takes_data && !self.parts[id].pushing => id,
            NamedPart::Gone => return Ok(None),
            _ => return Err("data for an unknown read"),
        };
        let part = &self.parts[id];
        if payload.len() != part.local.len() {
            return Err("data for a read has the wrong length");
        }
        payload.copy_into(&part.local, 0);
        self.learn(id, head);
        Ok(Some(id))
    }

    /// Handles the offer of the bytes that a part reads. Returns the bytes to fetch, unless the part no longer exists.
    ///
    /// # Errors
    /// Returns the peer's violation of the protocol.
    pub(super) fn read_offered(
        &mut self,
        from: ConnectionId,
        head: &Head,
        payload: View<'_>,
    ) -> Result<Option<OfferedRead>, &'static str> {
        let id = match self.part_of(from, head.id) {
            NamedPart::Here(id) if self.parts[id].takes_data && !self.parts[id].pushing => id,
            // A part that has ended does not need the offered bytes.
            NamedPart::Gone => return Ok(None),
            _ => return Err("offer for an unknown read"),
        };
        let part = &mut self.parts[id];
        let offer = checked_offer(payload, u64::MAX)?;
        if offer.len.get() != part.local.len() as u64 {
            return Err("offer with a wrong length for a read");
        }
        part.pushing = true; // A transport uses the memory of the part.
        Ok(Some(OfferedRead { part: id, offer, into: Lease::own(&part.local) }))
    }

    /// Handles the target's request for the bytes of a long write.
    pub(super) fn write_asked(&mut self, from: ConnectionId, wire: u32) -> PullAnswer {
        let NamedPart::Here(id) = self.part_of(from, wire) else { return PullAnswer::Gone };
        let part = &mut self.parts[id];
        if part.takes_data || part.requested {
            return PullAnswer::Nothing;
        }
        (part.requested, part.pushing) = (true, true);
        PullAnswer::Source(Lease::own(&part.local))
    }

    /// Records that no transport reads the bytes of a long write any more. Returns the part and its result if it was
    /// answered before.
    pub(super) fn write_pushed(
        &mut self,
        from: ConnectionId,
        wire: u32,
    ) -> Option<(Id<AccessPart>, Result<(), Refusal>)> {
        let NamedPart::Here(id) = self.part_of(from, wire) else { return None };
        let part = &mut self.parts[id];
        part.pushing = false;
        Some((id, part.answered?))
    }

    /// Removes a part that has ended. The caller then counts the end of the part for its access with
    /// [`step`](Self::step).
    pub(super) fn end_part(&mut self, id: Id<AccessPart>) -> Option<AccessPart> {
        let part = self.parts.remove(id)?;
        self.long.retain(|long| long.part != id); // Other parts may wait for this one, so it is removed now.
        Some(part)
    }

    /// Counts one of the events for which an access waits. Returns the access if that was the last event: it has ended.
    pub(super) fn step(&mut self, id: Id<Execution>, result: Result<(), AccessError>) -> Option<Execution> {
        let access = self.accesses.get_mut(id)?;
        access.left = access.left.saturating_sub(1);
        if let Err(error) = result {
            access.error.get_or_insert(error);
        }
        if access.left > 0 { None } else { self.accesses.remove(id) }
    }

    /// Removes an access that does not end with its last part: it is restarted, or a peer may still be using its
    /// memory.
    pub(super) fn remove(&mut self, id: Id<Execution>) -> Option<Execution> {
        self.accesses.remove(id)
    }

    /// Gives an access back to the waiting operation. No part of the access has left.
    pub(super) fn withdraw(&mut self, waiting: &mut PendingAccess, id: Id<Execution>) {
        if let Some(access) = self.accesses.remove(id) {
            waiting.restart(access.posted);
        }
    }

    /// Returns the access with this number, for any target.
    pub(super) fn find(&self, wire: u32) -> Option<Id<Execution>> {
        self.accesses.find_wire(wire)
    }

    /// Returns the access of a part.
    pub(super) fn access_of_part(&self, part: Id<AccessPart>) -> Option<Id<Execution>> {
        Some(self.parts.get(part)?.access)
    }

    /// Drops the parts of a closed connection, and takes the accesses that were in progress over it.
    pub(super) fn take_of(&mut self, peer: ConnectionId) -> Vec<Execution> {
        self.parts.retain(|_, part| part.to != peer);
        self.long.retain(|long| long.peer != peer);
        let gone: Vec<_> = self.accesses.iter().filter(|(_, access)| access.to == peer).map(|(id, _)| id).collect();
        gone.into_iter().filter_map(|id| self.accesses.remove(id)).collect()
    }

    /// Returns the number that the target uses for a part.
    #[cfg(all(test, not(loom)))]
    pub(super) fn first_part(&self) -> Option<u32> {
        self.parts.iter().next().map(|(id, _)| id.to_wire() | PART)
    }

    /// Returns the number of accesses, parts and long parts.
    #[cfg(all(test, not(loom)))]
    pub(super) fn counts(&self) -> [usize; 3] {
        [self.accesses.len(), self.parts.len(), self.long.len()]
    }
}
