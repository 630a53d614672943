//! The receiving side of a transfer.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::time::Instant;

use zerocopy::IntoBytes;

use super::claim::TransferEnd;
use super::request::{NO_SLOT, PullRequest};
use super::route::{CopyFailure, ReportedLocation, TransferRoute};
use super::{
    CHUNK_LEAST, CMA_CHUNK, CMA_SHARED, End, FINE, FINE_CHUNK, HELP_AFTER, MAPPED_CHUNK, MAPPED_SHARED, PairMemory,
    PullError, RingSender, StepResult, TransferError, TransferSlot, Transfers, puller, pusher,
};
use crate::Refused;
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::shm::pair::StoppedMark;
use crate::shm::sender::SendError;
use crate::shm::sync::Ordering;
use crate::wire::head::{Flags, FrameKind, GONE, Head, Offer};

/// A pull that has no slot yet, or that could not send its frame yet because there was no room.
#[derive(Debug)]
pub(super) struct PendingPull {
    id: u32,
    offer: Offer,
    into: Lease,
    token: u32,
}

/// A pull in progress.
#[derive(Debug)]
pub(super) struct Pull {
    token: u32,
    slot: u8,
    into: Lease,
    wanted: u64,
    chunk: u64,
    way: TransferRoute,
    /// The number of bytes that this side copied, and the number of claims that it made.
    copied: u64,
    claims: u64,
    /// Whether there is nothing left to claim.
    exhausted: bool,
    /// The time before which this side does not copy. `None` if it copies from the start.
    help_at: Option<Instant>,
    phase: PullPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PullPhase {
    Copying,
    /// This side cannot continue. It waits until the pusher has released the transfer.
    Failed(PullError),
    /// The payload has to be sent as frames, but the pusher has not stopped copying yet.
    Asked,
    /// The payload arrives as frames; this many bytes have arrived.
    Bounce(u64),
    /// Like `Bounce`, but the destination was revoked and the bytes are discarded.
    Discard(u64),
    /// The payload arrived as frames, but the pull has failed; no more frames will arrive.
    Void(PullError),
    Over,
}

/// Returns whether the pusher has finished with this slot.
pub(super) fn is_closed(slot: &TransferSlot) -> bool {
    is_closing(slot.pusher.0.state.load(Ordering::Acquire))
}

/// Returns whether the pusher cannot have a copy for this slot of `side` in progress, after the puller wrote that it
/// has failed. Once the result is true it stays true, because the puller does not open the slot again.
pub(in super::super) fn has_released(pair: &PairMemory, side: usize, slot: u8) -> bool {
    pair.slot(side, usize::from(slot)).is_none_or(|slot| is_released(slot, pair.gone(side ^ 1)))
}

/// Like [`has_released`], for a slot and the pusher's [`StoppedMark`] word. The word is set after the pusher's last
/// copy, and also covers slots that were opened later.
pub(super) fn is_released(slot: &TransferSlot, gone: &StoppedMark) -> bool {
    gone.is_set() || has_stopped(slot.pusher.0.state.load(Ordering::SeqCst))
}

const fn is_closing(state: u32) -> bool {
    matches!(state, pusher::CLOSED | pusher::GONE | pusher::BOUNCE)
}

/// Returns whether the pusher cannot have a copy in progress: it has closed the slot, or it waits for the end of the
/// puller.
const fn has_stopped(state: u32) -> bool {
    is_closing(state) || matches!(state, pusher::FAULT | pusher::REVOKED | pusher::UNABLE)
}

impl Transfers {
    /// Starts a pull. This never fails, but the pull may have to wait for a slot.
    pub(in super::super) fn pull(&mut self, id: u32, offer: &Offer, into: &Lease, token: u32) {
        self.waiting.push_back(PendingPull { id, offer: *offer, into: into.clone(), token });
    }

    /// Starts waiting pulls while there are slots and room. Returns whether any was started.
    pub(in super::super) fn start_waiting(&mut self, sender: &mut RingSender) -> Result<bool, TransferError> {
        let mut started = false;
        while let Some(waiting) = self.waiting.pop_front() {
            match self.start(&waiting, sender) {
                Ok(()) => started = true,
                Err(TransferError::Send(SendError::Refused(_))) => {
                    self.waiting.push_front(waiting);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(started)
    }

    fn start(&mut self, waiting: &PendingPull, sender: &mut RingSender) -> Result<(), TransferError> {
        let PendingPull { id, offer, into, token } = waiting;
        let wanted = offer.len.get().min(into.len() as u64);
        // Only this side writes to revocable memory, so the request does not name its location.
        let ours = into.is_revocable();
        let place = if ours { Segments::EMPTY } else { into.place().slice(0, wanted as usize) };
        let mut request = PullRequest {
            slot: NO_SLOT,
            puller_copies: 0,
            pieces: place.as_slice().len() as u8,
            reserved: 0,
            chunk: CMA_CHUNK.into(),
            wanted: wanted.into(),
            address: 0.into(),
            arena: 0.into(),
            reserved2: 0.into(),
            offset: 0.into(),
        };
        let head = Head { kind: FrameKind::Pull, flags: Flags::ID, len: 40, tag: u64::from(*token), data: 0, id: *id };
        if wanted == 0 {
            send(sender, &head, &request)?;
            self.ended.push(End::Pulled(*token, Ok(0)));
            return Ok(());
        }
        let reported = ReportedLocation {
            pieces: offer.pieces.get(),
            arena: offer.arena.get(),
            offset: offer.offset.get(),
            address: offer.address.get(),
        };
        let way = TransferRoute::to(&reported, wanted, &mut self.arenas, self.cma.as_ref())?;
        let (arena, offset) = self.arenas.name(&place);
        let mapped = way.is_mapped() || arena != 0;
        if let [only] = place.as_slice() {
            request.address = (only.as_ptr().expose_provenance() as u64).into();
        }
        let chunk = chunk_of(wanted, mapped);
        (request.chunk, request.arena, request.offset) = (chunk.into(), arena.into(), offset.into());
        request.puller_copies = u8::from(way.exists());
        let Some((index, slot)) = self.take_slot() else {
            return Err(TransferError::Send(SendError::Refused(Refused::Full)));
        };
        request.slot = index;
        if let Err(error) = open(slot, || send(sender, &head, &request)) {
            self.free |= 1 << index;
            return Err(error);
        }
        let at_once = ours || wanted > if way.is_mapped() { MAPPED_SHARED } else { CMA_SHARED };
        self.pulls.push(Pull {
            token: *token,
            slot: index,
            into: into.slice(0, wanted as usize),
            wanted,
            chunk: u64::from(chunk),
            copied: 0,
            claims: 0,
            exhausted: !way.exists(),
            help_at: (!at_once).then(Instant::now).and_then(|now| now.checked_add(HELP_AFTER)),
            way,
            phase: PullPhase::Copying,
        });
        Ok(())
    }
}

/// Returns the length of a chunk. It is large enough to be worth a system call or a claim, and small enough that both
/// sides get chunks.
fn chunk_of(wanted: u64, mapped: bool) -> u32 {
    let most = if mapped { MAPPED_CHUNK } else { CMA_CHUNK };
    let (parts, least) = if wanted > FINE { (16, FINE_CHUNK) } else { (4, CHUNK_LEAST) };
    most.min(u32::try_from(wanted.div_ceil(parts)).map_or(most, |part| part.next_multiple_of(4096))).max(least)
}

/// Clears a slot and sends its request. The pusher may claim and copy as soon as the request is in the ring.
pub(super) fn open<E>(slot: &TransferSlot, send: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    slot.claimed.store(0, Ordering::Relaxed);
    slot.puller.done.store(0, Ordering::Relaxed);
    slot.puller.state.store(puller::OPEN, Ordering::Relaxed);
    slot.pusher.0.done.store(0, Ordering::Relaxed);
    slot.pusher.0.state.store(pusher::OPEN, Ordering::Relaxed);
    send()
}

/// Reads memory of the other side. Returns `None` if the operation has ended there, so that the memory may have been
/// reused or unmapped when it was read.
pub(super) fn while_offered<T>(theirs: &StoppedMark, read: impl FnOnce() -> T) -> Option<T> {
    let result = read();
    (!theirs.was_set()).then_some(result)
}

fn send(sender: &mut RingSender, head: &Head, request: &PullRequest) -> Result<(), TransferError> {
    Segments::lend(request.as_bytes(), |payload| sender.send(head, payload, false)).map_err(TransferError::Send)
}

impl Pull {
    pub(super) const fn token(&self) -> u32 {
        self.token
    }

    pub(super) const fn slot_bit(&self) -> u32 {
        1 << self.slot
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase == PullPhase::Over
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.exhausted || self.phase != PullPhase::Copying
    }

    fn slot<'a>(&self, pair: &'a PairMemory, side: usize) -> Result<&'a TransferSlot, TransferError> {
        pair.slot(side, usize::from(self.slot)).ok_or(TransferError::Protocol("no such slot"))
    }

    fn ends(&mut self, result: Result<u64, PullError>) -> StepResult {
        self.phase = PullPhase::Over;
        StepResult::Ends(End::Pulled(self.token, result))
    }

    pub(super) fn step(
        &mut self,
        pair: &PairMemory,
        side: usize,
        sender: &mut RingSender,
        may_copy: &mut bool,
    ) -> Result<StepResult, TransferError> {
        match self.phase {
            PullPhase::Bounce(arrived) if arrived == self.wanted => return Ok(self.ends(Ok(arrived))),
            PullPhase::Discard(arrived) if arrived == self.wanted => return Ok(self.ends(Err(PullError::Revoked))),
            PullPhase::Bounce(_) | PullPhase::Discard(_) => return Ok(StepResult::Waits),
            PullPhase::Void(error) => return Ok(self.ends(Err(error))),
            PullPhase::Copying | PullPhase::Asked | PullPhase::Failed(_) | PullPhase::Over => {}
        }
        let slot = self.slot(pair, side)?;
        let state = slot.pusher.0.state.load(Ordering::Acquire);
        let theirs = slot.pusher.0.reported();
        if let PullPhase::Failed(error) = self.phase {
            return Ok(if has_stopped(state) { self.ends(Err(error)) } else { StepResult::Waits });
        }
        match state {
            pusher::OPEN | pusher::ACCEPTED | pusher::CLOSED => {}
            pusher::YOURS => self.help_at = None,
            pusher::GONE => return Ok(self.ends(Err(PullError::Gone))),
            pusher::FAULT | pusher::REVOKED => {
                slot.puller.state.store(puller::FAILED, Ordering::Release);
                sender.wake_peer();
                let error = if state == pusher::FAULT { PullError::Fault } else { PullError::Gone };
                return Ok(self.ends(Err(error)));
            }
            pusher::BOUNCE if self.phase == PullPhase::Asked || !self.way.exists() => {
                self.phase = PullPhase::Bounce(0);
                return Ok(StepResult::Moved);
            }
            pusher::UNABLE if self.phase == PullPhase::Asked => {}
            pusher::UNABLE => {
                self.request_frames(slot, sender);
                return Ok(StepResult::Moved);
            }
            _ => return Err("unknown transfer state".into()),
        }
        if self.phase == PullPhase::Asked {
            return Ok(StepResult::Waits);
        }
        if state != pusher::OPEN && self.copied.saturating_add(theirs) >= self.wanted {
            slot.puller.state.store(puller::FINISHED, Ordering::Release);
            sender.wake_peer();
            return Ok(self.ends(Ok(self.wanted)));
        }
        if self.exhausted || !*may_copy || self.help_at.is_some_and(|at| Instant::now() < at) {
            return Ok(StepResult::Waits);
        }
        self.copy(slot, pair.gone(side ^ 1), sender, may_copy);
        Ok(StepResult::Moved)
    }

    /// Claims chunks and copies them.
    fn copy(&mut self, slot: &TransferSlot, theirs: &StoppedMark, sender: &mut RingSender, may_copy: &mut bool) {
        let total = self.wanted.div_ceil(self.chunk);
        let claim = TransferEnd::Front.claim(&slot.claimed, total, self.claims == 0);
        self.claims = self.claims.saturating_add(1);
        let Some(chunks) = claim.filter(|_| self.claims <= total) else {
            self.exhausted = true;
            return;
        };
        let offset = chunks.start.saturating_mul(self.chunk);
        *may_copy = false;
        let len = chunks.end.saturating_mul(self.chunk).min(self.wanted).saturating_sub(offset);
        let Some(fetched) = while_offered(theirs, || self.way.fetch(&self.into, offset as usize, len as usize)) else {
            // Nothing that is read from now on counts. The operation of this side gets its result when the end of the
            // connection is detected.
            self.exhausted = true;
            return;
        };
        match fetched {
            Ok(()) => {
                self.copied = self.copied.saturating_add(len);
                slot.puller.report(self.copied);
            }
            Err(CopyFailure::Closed) => return self.request_frames(slot, sender),
            Err(CopyFailure::Failed(error)) => {
                self.phase = PullPhase::Failed(error);
                let state = if error == PullError::Revoked { puller::REVOKED } else { puller::FAILED };
                slot.puller.state.store(state, Ordering::SeqCst);
            }
        }
        sender.wake_peer();
    }

    /// Requests the whole payload as frames, because one of the sides cannot copy.
    #[cold]
    fn request_frames(&mut self, slot: &TransferSlot, sender: &mut RingSender) {
        self.phase = PullPhase::Asked;
        slot.puller.state.store(puller::FRAMES, Ordering::SeqCst);
        sender.wake_peer();
    }

    /// Handles the bytes at `offset` that arrived in a frame.
    pub(super) fn data(
        &mut self,
        pair: &PairMemory,
        side: usize,
        offset: u64,
        payload: View<'_>,
    ) -> Result<(), TransferError> {
        let (arrived, discard) = match self.phase {
            PullPhase::Bounce(arrived) => (arrived, false),
            PullPhase::Discard(arrived) => (arrived, true),
            // A frame may be handled before the state is read. But a pusher that has not written this state may still
            // be copying.
            PullPhase::Copying | PullPhase::Asked
                if self.slot(pair, side)?.pusher.0.state.load(Ordering::SeqCst) == pusher::BOUNCE =>
            {
                (0, false)
            }
            _ => return Err("data frame for a transfer that expects none".into()),
        };
        let len = payload.len() as u64;
        if offset == GONE && len == 0 && arrived < self.wanted {
            self.phase = PullPhase::Void(if discard { PullError::Revoked } else { PullError::Gone });
            return Ok(());
        }
        if offset != arrived || len == 0 || len > self.wanted.saturating_sub(arrived) {
            return Err("data at a wrong offset".into());
        }
        let arrived = arrived.saturating_add(len);
        self.phase = match self.into.enter() {
            Some((into, _held)) if !discard => {
                payload.copy_into(into, offset as usize);
                PullPhase::Bounce(arrived)
            }
            _ => PullPhase::Discard(arrived),
        };
        Ok(())
    }

    /// Stops the pull because the link ends. Returns the token and slot if the pusher may be copying into local memory.
    pub(super) fn abandon(&mut self, pair: &PairMemory, side: usize) -> Option<(u32, u8)> {
        let slot = self.slot(pair, side).ok()?;
        if !matches!(self.phase, PullPhase::Failed(_)) {
            // A failed pull keeps its state, which contains the reason.
            slot.puller.state.store(puller::LEFT, Ordering::SeqCst);
        }
        let copies = matches!(self.phase, PullPhase::Copying | PullPhase::Asked | PullPhase::Failed(_))
            && !self.into.is_revocable();
        (copies && !is_released(slot, pair.gone(side ^ 1))).then_some((self.token, self.slot))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shm::pair::{PusherHalf, TransferHalf};
    use crate::shm::sync::{AtomicU32, AtomicU64};

    /// Returns the number of claimed chunks, and the numbers of copied bytes and the states of the two sides.
    fn words(slot: &TransferSlot) -> (u64, [u64; 2], [u32; 2]) {
        let sides = [&slot.puller, &slot.pusher.0];
        let (done, states) =
            (sides.map(|side| side.done.load(Ordering::Relaxed)), sides.map(|side| side.state.load(Ordering::Relaxed)));
        (slot.claimed.load(Ordering::Relaxed), done, states)
    }

    /// A pusher that runs on another processor may have claimed and copied chunks before the request's sender returns.
    #[test]
    fn slot_is_not_changed_after_its_request_was_sent() {
        let half = || TransferHalf { done: AtomicU64::new(5), state: AtomicU32::new(pusher::CLOSED) };
        let slot = TransferSlot { claimed: AtomicU64::new(9), puller: half(), pusher: PusherHalf(half()) };
        let mut sent = None;
        open(&slot, || {
            assert_eq!(words(&slot), (0, [0; 2], [puller::OPEN, pusher::OPEN]));
            assert_eq!(TransferEnd::Back.claim(&slot.claimed, 4, true), Some(1..4));
            slot.pusher.0.done.store(3, Ordering::Relaxed);
            slot.pusher.0.state.store(pusher::ACCEPTED, Ordering::Relaxed);
            slot.puller.done.store(1, Ordering::Relaxed);
            slot.puller.state.store(puller::FINISHED, Ordering::Relaxed);
            sent = Some(words(&slot));
            Ok::<(), ()>(())
        })
        .unwrap();
        assert_eq!(Some(words(&slot)), sent);
    }
}
