//! Posts one-sided operations. They are made within the call if the peer's memory can be reached. Otherwise they are
//! queued after the waiting operations.

use super::Engine;
use super::access::{RdmaOutcome, by_rdma, execute, refused_code};
use super::core::Core;
use super::counting::counts_of_atomic;
use super::peers::{OutgoingKind, QueuingKind};
use super::receive::unresolved;
use super::remote::{AccessOperation, PendingAccess, RemoteWriteData, atomic_entry, atomic_kind, record, rma_entry};
use super::types::{Notify, PendingOperation, QueuedWork, Side};
use crate::completion::entry::{Entry, ErrorEntry};
use crate::endpoint::posted::Posted;
use crate::endpoint::remote_work::{ATOMIC_LIMIT, AtomicWork, RmaWork};
use crate::endpoint::work::{INJECT_LIMIT, MESSAGE_LIMIT, OpFlags, PostError};
use crate::local_memory::atomic::{AtomicKind, AtomicOp, Datatype, Operands, Word, is_valid};
use crate::local_memory::volatile::{IOV_LIMIT, Segment, Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::{MappedKeys, Refusal, RemoteMemory};
use crate::transport::ConnectionId;
use crate::transport::any::AnyLink;
use crate::transport::shm::{ASSISTED, DirectError, GrantIndex, LongAccess, Lookup, ShmLink};
use crate::wire::head::Counts;

/// The result of an attempt to make an access now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectOutcome {
    /// The access has ended: it was reported, and nothing remains to do.
    Over,
    /// The device makes the access.
    Posted,
    /// The access waits, because the key was requested from the peer, or another operation comes first.
    Asked,
    /// The target executes the access.
    Executed,
}

impl Engine {
    /// Posts a read or a write.
    #[inline]
    pub(crate) fn post_rma(&mut self, write: bool, work: &RmaWork, notify: Notify) -> Result<(), PostError> {
        if work.local.len() as u64 != work.remote.len() {
            return Err(PostError::Lengths { local: work.local.len() as u64, remote: work.remote.len() });
        }
        if !write && work.data.is_some() {
            return Err(PostError::Flags("a read cannot carry remote data; only writes can"));
        }
        let slot = self.access_slot(work.peer)?;
        let long = work.flags.contains(OpFlags::INJECT) && work.local.len() > INJECT_LIMIT;
        if !long
            && work.local.len() <= ASSISTED
            && let Some((link, counts, mapped)) = self.direct_link(slot, work.flags)
            && let [piece] = work.remote.as_slice()
            && !mapped.covers(piece.key)
            && let Lookup::Ready(grant) = link.look_up(piece.key)
        {
            let result = if write {
                link.direct_write(grant, piece.address, &work.local)
            } else {
                link.direct_read(grant, piece.address, &work.local)
            };
            if result.is_ok() {
                let counts_it = if write { Counts::REGION | Counts::WRITES } else { Counts::READS };
                let counted = counts.intersects(counts_it - Counts::REGION);
                let notice = counted || write && (work.data.is_some() || link.grant_notifies(grant));
                let completion_data = work.data.map(|data| RemoteWriteData { data, len: piece.len });
                let notice = notice.then(|| ((piece.key, link.grant_generation(grant)), counts_it, completion_data));
                self.over(slot, rma_entry(write, work.context, piece.len), notify, notice);
                return Ok(());
            }
        }
        self.post_access_slow(
            slot,
            if write { AccessOperation::Write(*work) } else { AccessOperation::Read(*work) },
            notify,
        )
    }

    /// Posts an atomic operation.
    #[inline]
    pub(crate) fn post_atomic(&mut self, work: &AtomicWork, notify: Notify) -> Result<(), PostError> {
        let word = word_of(work);
        if word.is_none() {
            check_atomic(work)?;
        }
        let slot = self.access_slot(work.peer)?;
        if let Some((link, counts, mapped)) = self.direct_link(slot, work.flags)
            && !mapped.covers(work.remote.key)
            && let Lookup::Ready(grant) = link.look_up(work.remote.key)
            && link.grant_can_atomic(grant)
            && match &word {
                Some(word) => link.direct_atomic(grant, work.remote.address, word),
                None => atomically(link, grant, work),
            }
            .is_ok()
        {
            let counts_it = counts_of_atomic(work.op, atomic_kind(work));
            let notice = counts.intersects(counts_it)
                || work.op != AtomicOp::Read && (work.data.is_some() || link.grant_notifies(grant));
            let completion_data = work.data.map(|data| RemoteWriteData { data, len: work.remote.len });
            let notice = notice.then(|| ((work.remote.key, link.grant_generation(grant)), counts_it, completion_data));
            self.over(slot, atomic_entry(work), notify, notice);
            return Ok(());
        }
        self.post_access_slow(slot, AccessOperation::Atomic(*work), notify)
    }

    #[inline]
    fn access_slot(&mut self, peer: crate::types::PeerAddress) -> Result<ConnectionId, PostError> {
        if !self.process.is_here() {
            return Err(self.refusal());
        }
        self.core.peers.resolve(peer).map_err(|error| unresolved(error, peer))
    }

    /// Returns the link over which an access that is posted now may be made directly, the kinds of accesses that the
    /// peer counts, and the mapped keys.
    #[inline]
    fn direct_link(&mut self, slot: ConnectionId, flags: OpFlags) -> Option<(&mut ShmLink, Counts, &MappedKeys)> {
        let peer = self.core.peers.get(slot);
        let may_send = match flags.intersects(OpFlags::FENCE | OpFlags::DEVICE) {
            false => peer.may_send(OutgoingKind::Access { fenced: false }),
            true => self.may_bypass_queue(slot, flags),
        };
        if !may_send {
            return None;
        }
        let counts = peer.counts();
        match &mut self.links[slot as usize] {
            // The memory of a dead peer can still be written, but no process uses it. The next progress ends the
            // connection.
            Some(AnyLink::Shm(link)) if !link.has_ended() => Some((link, counts, self.core.local.mapped())),
            _ => None,
        }
    }

    /// Returns whether an access with FENCE or DEVICE may be made at once.
    #[cold]
    fn may_bypass_queue(&self, slot: ConnectionId, flags: OpFlags) -> bool {
        !flags.contains(OpFlags::DEVICE) && self.core.peers.get(slot).may_send(OutgoingKind::Access { fenced: true })
    }

    /// Completes an access that was made directly. `notice` is the notice for the target, if there is one. It contains
    /// the region (key and generation), the counters that count the access there, and the events that the target
    /// reports.
    #[inline]
    fn over(
        &mut self,
        slot: ConnectionId,
        entry: Entry,
        notify: Notify,
        notice: Option<((u64, u64), Counts, Option<RemoteWriteData>)>,
    ) {
        if let Some((region, counts, completion_data)) = notice {
            self.core.wrote(slot, region, counts, completion_data);
            self.act();
        }
        self.core.complete(Side::Transmit, notify, entry);
    }

    /// Posts an access that cannot be made directly: the peer is not connected, other operations wait for it already,
    /// or its memory is not reachable.
    #[cold]
    fn post_access_slow(&mut self, slot: ConnectionId, what: AccessOperation, notify: Notify) -> Result<(), PostError> {
        if self.core.peers.is_single() && !self.core.peers.get(slot).is_up() {
            return Err(PostError::NotConnected);
        }
        if what.pieces().iter().any(|piece| self.core.local.mapped().gave(piece.key)) {
            return match what.translated(self.core.local.mapped())? {
                AccessOperation::Write(work) => self.post_rma(true, &work, notify),
                AccessOperation::Read(work) => self.post_rma(false, &work, notify),
                AccessOperation::Atomic(work) => self.post_atomic(&work, notify),
            };
        }
        let len = what.pieces().iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.len));
        if len > MESSAGE_LIMIT as u64 {
            return Err(PostError::TooLong(usize::try_from(len).unwrap_or(usize::MAX)));
        }
        if what.flags().contains(OpFlags::DEVICE) {
            return self.post_located(what.into(), notify);
        }
        let flags = what.flags();
        let posted = match flags.contains(OpFlags::INJECT) {
            true => Posted::injected(what).map_err(PostError::InjectTooLong)?,
            false => Posted::lent(what),
        };
        let peer = self.core.peers.get(slot);
        if !peer.may_queue(QueuingKind::Access, notify, flags.contains(OpFlags::FENCE)) {
            return Err(PostError::Again);
        }
        let idle = peer.is_idle();
        let record = record(posted);
        let pending = PendingOperation { work: QueuedWork::Access(PendingAccess::new(record)), notify };
        self.core.peers.get_mut(slot).queue(pending);
        if idle {
            self.start_connecting(slot);
        }
        self.drain(slot);
        Ok(())
    }

    /// Starts the access at the head of the queue, or continues it. Returns false if it has to wait.
    pub(super) fn start_access(&mut self, slot: ConnectionId) -> bool {
        let Some(link) = &mut self.links[slot as usize] else { return false };
        let peer = self.core.peers.get_mut(slot);
        let Some(mut pending) = peer.take_first() else { return false };
        let QueuedWork::Access(waiting) = &mut pending.work else {
            peer.put_back(pending);
            return false;
        };
        let executed = waiting.what().is_none() || !peer.may_send(OutgoingKind::DirectAccess);
        let attempt = match link {
            AnyLink::Shm(link) if link.has_ended() => DirectOutcome::Asked,
            AnyLink::Shm(link) if !executed => directly(link, &mut self.core, slot, waiting, pending.notify),
            AnyLink::Verbs(link) => match by_rdma(link, &mut self.core, slot, waiting, pending.notify) {
                RdmaOutcome::Posted => DirectOutcome::Posted,
                RdmaOutcome::Waits => DirectOutcome::Asked,
                RdmaOutcome::Executed => DirectOutcome::Executed,
            },
            _ => DirectOutcome::Executed,
        };
        let over = match attempt {
            DirectOutcome::Over | DirectOutcome::Posted => true,
            DirectOutcome::Asked => false,
            DirectOutcome::Executed => execute(link, &mut self.core, slot, waiting, pending.notify).is_ok(),
        };
        if !over {
            self.core.peers.get_mut(slot).put_back(pending);
        }
        over
    }
}

/// Converts an atomic operation to one on a single word. Returns `None` if that is not possible or the operation is
/// invalid; the caller then determines whether it is valid.
#[inline]
fn word_of(work: &AtomicWork) -> Option<Word> {
    if work.remote.len != Word::LEN as u64
        || !matches!(work.datatype, Datatype::U64 | Datatype::I64)
        || work.flags.contains(OpFlags::DEVICE)
    {
        return None; // It may be device memory, which must not be read here.
    }
    let compare = match (work.op, &work.compare) {
        (AtomicOp::Sum, None) => None,
        (AtomicOp::Cswap, Some(compare)) => Some(only(compare)?),
        _ => return None,
    };
    Word::new(only(&work.operand)?, compare, only(work.result.as_ref()?)?)
}

/// Returns the segment if the memory consists of exactly one.
#[inline]
fn only(segments: &Segments) -> Option<Segment> {
    match segments.as_slice() {
        [only] => Some(*only),
        _ => None,
    }
}

/// Checks whether an atomic operation is valid.
#[inline]
fn check_atomic(work: &AtomicWork) -> Result<(), PostError> {
    let len = work.remote.len;
    if !is_valid(atomic_kind(work), work.op, work.datatype) {
        return Err(PostError::NoSuchAtomic(work.op, work.datatype));
    }
    if work.op == AtomicOp::Read && work.data.is_some() {
        return Err(PostError::Flags("a read cannot carry remote data; only writes can"));
    }
    if len as usize > ATOMIC_LIMIT {
        return Err(PostError::TooLong(len as usize));
    }
    let reads = work.op == AtomicOp::Read;
    let lists = [(!reads).then_some(&work.operand), work.compare.as_ref(), work.result.as_ref()];
    for local in lists.into_iter().flatten() {
        if local.len() as u64 != len {
            return Err(PostError::Lengths { local: local.len() as u64, remote: len });
        }
    }
    if !len.is_multiple_of(work.datatype.size() as u64) {
        return Err(PostError::Flags("the length must be a multiple of the size of an element"));
    }
    if atomic_kind(work) == AtomicKind::Compare && work.result.is_none() {
        return Err(PostError::Flags("an operation that compares needs memory for its result"));
    }
    Ok(())
}

/// Makes an access directly if the peer's memory is reachable. Otherwise determines how to make it.
fn directly(
    link: &mut ShmLink,
    core: &mut Core,
    slot: ConnectionId,
    waiting: &mut PendingAccess,
    notify: Notify,
) -> DirectOutcome {
    let Some(what) = waiting.what() else { return DirectOutcome::Executed };
    let mut grants = [None; IOV_LIMIT];
    for (grant, piece) in grants.iter_mut().zip(what.pieces()) {
        match link.look_up(piece.key) {
            Lookup::Ready(ready) => *grant = Some(ready),
            Lookup::Unknown => return DirectOutcome::Asked,
            Lookup::Executed => return DirectOutcome::Executed,
            Lookup::NoKey => {
                // The next access requests the key from the target again, because the key may be registered by then.
                link.forget(piece.key);
                return refuse(core, what, notify, Refusal::Key);
            }
        }
    }
    if let (Some(grant), [piece], AccessOperation::Write(work) | AccessOperation::Read(work)) =
        (grants[0], what.pieces(), what)
        && work.local.len() > ASSISTED
        && !link.is_assisted()
    {
        let (piece, local) = (*piece, work.local);
        return assisted(link, core, slot, grant, piece, &local, waiting, notify);
    }
    let mut offset = 0;
    for (grant, piece) in grants.into_iter().flatten().zip(what.pieces()) {
        let result = match what {
            AccessOperation::Write(work) => {
                link.direct_write(grant, piece.address, &work.local.slice(offset, piece.len as usize))
            }
            AccessOperation::Read(work) => {
                link.direct_read(grant, piece.address, &work.local.slice(offset, piece.len as usize))
            }
            AccessOperation::Atomic(_) if !link.grant_can_atomic(grant) => return DirectOutcome::Executed,
            AccessOperation::Atomic(work) => atomically(link, grant, work),
        };
        offset += piece.len as usize;
        if let Err(error) = result {
            return failed(link, core, what, notify, piece.key, error);
        }
    }
    // Each region counts the access once, by its first piece. The counts of the endpoint and the data are sent once,
    // with the last piece.
    let (last, counted) = (what.pieces().len() - 1, core.peers.get(slot).counts() & what.counts());
    for (at, (grant, piece)) in grants.into_iter().flatten().zip(what.pieces()).enumerate() {
        let first = what.pieces()[..at].iter().all(|other| other.key != piece.key);
        let mut counts = if at == last { counted } else { Counts::empty() };
        counts.set(Counts::REGION, first && what.changes() && link.grant_notifies(grant));
        let region = (piece.key, link.grant_generation(grant));
        core.wrote(slot, region, counts, what.completion_data().filter(|_| at == last));
    }
    core.complete(Side::Transmit, notify, what.entry());
    DirectOutcome::Over
}

/// Makes a long access, in which the target may help to copy.
#[expect(clippy::too_many_arguments, reason = "all of these values are separate variables of the caller")]
fn assisted(
    link: &mut ShmLink,
    core: &mut Core,
    slot: ConnectionId,
    grant: GrantIndex,
    piece: RemoteMemory,
    local: &Segments,
    waiting: &mut PendingAccess,
    notify: Notify,
) -> DirectOutcome {
    let Some(what) = waiting.what() else { return DirectOutcome::Executed };
    let writes = what.changes();
    let mut counts = core.peers.get(slot).counts() & what.counts();
    counts.set(Counts::REGION, writes && link.grant_notifies(grant));
    let generation = link.grant_generation(grant);
    let Some(id) = core.start_assisted(slot, waiting, notify, (generation, counts)) else {
        return DirectOutcome::Executed;
    };
    let token = id.to_wire();
    let long = LongAccess { grant, key: piece.key, address: piece.address, local, writes, token };
    let result = link.direct_long(&long);
    if matches!(result, Ok(false)) {
        return DirectOutcome::Over; // The access is reported when it ends.
    }
    core.withdraw_assisted(slot, waiting, id);
    let Some(what) = waiting.what() else { return DirectOutcome::Over };
    if let Err(error) = result {
        return failed(link, core, what, notify, piece.key, error);
    }
    core.wrote(slot, (piece.key, generation), counts, what.completion_data());
    core.complete(Side::Transmit, notify, what.entry());
    DirectOutcome::Over
}

/// Handles an access that failed, or that was made only in part.
fn failed(
    link: &mut ShmLink,
    core: &mut Core,
    what: &AccessOperation,
    notify: Notify,
    key: u64,
    error: DirectError,
) -> DirectOutcome {
    let refusal = match error {
        DirectError::Stale => {
            // The region was closed, and perhaps another one was registered with the same key, so the key is resolved
            // once more. Bytes that were copied are copied again.
            link.forget(key);
            return match link.look_up(key) {
                Lookup::Executed => DirectOutcome::Executed,
                _ => DirectOutcome::Asked,
            };
        }
        DirectError::Right => Refusal::Right,
        DirectError::Range => Refusal::Range,
        DirectError::Fault => Refusal::Fault,
        DirectError::Misaligned => Refusal::Misaligned,
    };
    refuse(core, what, notify, refusal)
}

fn refuse(core: &mut Core, what: &AccessOperation, notify: Notify, refusal: Refusal) -> DirectOutcome {
    let failure = ErrorEntry::new(what.entry(), refused_code(refusal)).with_text(refusal.to_string());
    core.fail(Side::Transmit, notify, failure.with_peer(what.peer()));
    DirectOutcome::Over
}

/// Makes an atomic operation on reachable memory.
#[inline]
fn atomically(link: &mut ShmLink, grant: GrantIndex, work: &AtomicWork) -> Result<(), DirectError> {
    let one = |segments: &Segments| if segments.is_empty() { Some(Segment::EMPTY) } else { only(segments) };
    let compare = work.compare.unwrap_or(Segments::EMPTY);
    let result = work.result.unwrap_or(Segments::EMPTY);
    match (one(&work.operand), one(&compare), one(&result)) {
        (Some(operand), Some(compare), Some(result)) => operate(link, grant, work, operand, compare, result),
        _ => {
            // Memory in several pieces is gathered first.
            let (operand, compare, mut before) = (work.operand.to_vec(), compare.to_vec(), vec![0; result.len()]);
            let whole = |segments: &Segments| one(segments).unwrap_or(Segment::EMPTY);
            Segments::lend(&operand, |operand| {
                Segments::lend(&compare, |compare| {
                    Segments::lend_mut(&mut before, |into| {
                        operate(link, grant, work, whole(operand), whole(compare), whole(into))
                    })
                })
            })?;
            View::of(&before).copy_into(&result, 0);
            Ok(())
        }
    }
}

#[inline]
fn operate(
    link: &mut ShmLink,
    grant: GrantIndex,
    work: &AtomicWork,
    operand: Segment,
    compare: Segment,
    result: Segment,
) -> Result<(), DirectError> {
    let operands = Operands::new(
        (work.op, work.datatype, atomic_kind(work)),
        work.remote.len as usize,
        [operand, compare, result],
    );
    link.direct_atomic(grant, work.remote.address, &operands)
}
