//! The sending side of a transfer.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::claim::TransferEnd;
use super::request::{NO_SLOT, PullRequest};
use super::route::{CopyFailure, ReportedLocation, TransferRoute};
use super::{
    CMA_CHUNK, End, PairMemory, PullError, RingSender, StepResult, TransferError, TransferSlot, Transfers, puller,
    pusher,
};
use crate::Refused;
use crate::local_memory::volatile::{Segments, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::shm::sender::SendError;
use crate::shm::sync::Ordering;
use crate::wire::head::{Flags, FrameKind, GONE, Head};

/// The smallest chunk size that a peer may request. It prevents a peer from causing excessive work.
const CHUNK_MIN: u32 = 4096;

/// A push in progress.
#[derive(Debug)]
pub(super) struct Push {
    id: u32,
    /// The puller's token of the transfer, which frames carry.
    token: u32,
    slot: u8,
    source: Lease,
    wanted: u64,
    chunk: u64,
    way: TransferRoute,
    copied: u64,
    claims: u64,
    exhausted: bool,
    phase: PushPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PushPhase {
    Copying,
    /// This side cannot continue. It waits until the puller has read the state that reports this.
    Failed(PullError),
    /// The payload is sent as frames with this id; this many bytes have been sent.
    Bounce(u32, u64),
    /// The payload was sent as frames with this id, the rest was revoked, and the puller has not been notified yet.
    Void(u32),
}

impl Transfers {
    /// Serves the peer's pull of operation `id` of this side from `source`. If the source is empty, the operation no
    /// longer exists. In this case no end is reported.
    ///
    /// # Errors
    /// If the request is invalid.
    pub(in super::super) fn push(
        &mut self,
        id: u32,
        token: u32,
        request: View<'_>,
        source: &Lease,
        sender: &mut RingSender,
    ) -> Result<(), TransferError> {
        let short = TransferError::Protocol("a pull without its request");
        let request: PullRequest = request.read(0).ok_or(short)?;
        let (wanted, chunk) = (request.wanted.get(), request.chunk.get());
        if !request.is_sound() {
            return Err("a malformed pull".into());
        }
        if request.slot == NO_SLOT {
            if wanted != 0 {
                return Err("a pull without a slot".into());
            }
            self.ended.push(End::Pushed(id, Ok(())));
            return Ok(());
        }
        let theirs = self.side ^ 1;
        let slot = self.pair.slot(theirs, usize::from(request.slot)).ok_or("invalid slot")?;
        let sound = wanted > 0 && (CHUNK_MIN..=CMA_CHUNK).contains(&chunk);
        if !sound || self.pushes.iter().any(|push| push.holds_slot(request.slot)) {
            return Err("a malformed pull".into());
        }
        if source.is_revocable() && request.puller_copies != 0 {
            return Err("direct pull of a message that was not offered for direct pulls".into());
        }
        if wanted > source.len() as u64 && !source.is_empty() {
            return Err("a pull of more bytes than were offered".into());
        }
        if source.is_empty() {
            slot.pusher.0.state.store(pusher::GONE, Ordering::Release);
            sender.wake_peer();
            return Ok(());
        }
        let reported = ReportedLocation {
            pieces: request.pieces.into(),
            arena: request.arena.get(),
            offset: request.offset.get(),
            address: request.address.get(),
        };
        let way = TransferRoute::to(&reported, wanted, &mut self.arenas, self.cma.as_ref())?;
        let (state, phase) = match (way.exists(), request.puller_copies != 0) {
            (true, _) => (pusher::ACCEPTED, PushPhase::Copying),
            (false, true) => (pusher::YOURS, PushPhase::Copying),
            (false, false) => (pusher::BOUNCE, PushPhase::Bounce(token, 0)),
        };
        slot.pusher.0.state.store(state, Ordering::SeqCst);
        let mut push = Push {
            id,
            token,
            slot: request.slot,
            source: source.slice(0, wanted as usize),
            wanted,
            chunk: u64::from(chunk),
            exhausted: !way.exists(),
            way,
            copied: 0,
            claims: 0,
            phase,
        };
        if !push.exhausted {
            // The peer waits, so the first chunk is copied at once. (If there is a chunk, this step notifies the peer.)
            match push.step(&self.pair, theirs, sender, &mut true)? {
                StepResult::Ends(end) => {
                    self.ended.push(end);
                    return Ok(());
                }
                StepResult::Moved => {}
                // The peer may already have copied everything. It then waits until the pull is accepted.
                StepResult::Waits => sender.wake_peer(),
            }
        } else {
            sender.wake_peer();
        }
        self.pushes.push(push);
        Ok(())
    }
}

impl Push {
    fn holds_slot(&self, slot: u8) -> bool {
        self.slot == slot && matches!(self.phase, PushPhase::Copying | PushPhase::Failed(_))
    }

    pub(super) fn is_waiting(&self) -> bool {
        match self.phase {
            PushPhase::Copying => self.exhausted,
            PushPhase::Failed(_) => true,
            PushPhase::Bounce(..) | PushPhase::Void(_) => false,
        }
    }

    pub(super) fn step(
        &mut self,
        pair: &PairMemory,
        theirs: usize,
        sender: &mut RingSender,
        may_copy: &mut bool,
    ) -> Result<StepResult, TransferError> {
        match self.phase {
            PushPhase::Bounce(token, gone) => return self.bounce(token, gone, sender),
            PushPhase::Void(token) => return self.give_up(token, sender),
            PushPhase::Copying | PushPhase::Failed(_) => {}
        }
        let slot = pair.slot(theirs, usize::from(self.slot)).ok_or("no such slot")?;
        if self.phase == PushPhase::Copying && slot.puller.state.load(Ordering::SeqCst) == puller::FRAMES {
            slot.pusher.0.state.store(pusher::BOUNCE, Ordering::SeqCst);
            self.phase = PushPhase::Bounce(self.token, 0);
            sender.wake_peer();
            return Ok(StepResult::Moved);
        }
        let copied = self.copy(slot, may_copy);
        if let Some(result) = self.close(slot) {
            sender.wake_peer();
            return Ok(StepResult::Ends(End::Pushed(self.id, result)));
        }
        if !copied {
            return Ok(StepResult::Waits);
        }
        sender.wake_peer();
        Ok(StepResult::Moved)
    }

    /// Claims chunks and copies them, if possible. Returns false if no chunk was claimed.
    fn copy(&mut self, slot: &TransferSlot, may_copy: &mut bool) -> bool {
        if self.exhausted
            || self.phase != PushPhase::Copying
            || !*may_copy
            || slot.puller.state.load(Ordering::SeqCst) != puller::OPEN
        {
            return false;
        }
        let total = self.wanted.div_ceil(self.chunk);
        let claim = TransferEnd::Back.claim(&slot.claimed, total, self.claims == 0);
        self.claims = self.claims.saturating_add(1);
        let Some(chunks) = claim.filter(|_| self.claims <= total) else {
            self.exhausted = true;
            return false;
        };
        let offset = chunks.start.saturating_mul(self.chunk);
        *may_copy = false;
        let len = chunks.end.saturating_mul(self.chunk).min(self.wanted).saturating_sub(offset);
        match self.way.store(&self.source, offset as usize, len as usize) {
            Ok(()) => {
                self.copied = self.copied.saturating_add(len);
                slot.pusher.0.report(self.copied);
            }
            Err(CopyFailure::Closed) => {
                self.exhausted = true;
                slot.pusher.0.state.store(pusher::UNABLE, Ordering::SeqCst);
            }
            Err(CopyFailure::Failed(error)) => {
                self.phase = PushPhase::Failed(error);
                let state = if error == PullError::Revoked { pusher::REVOKED } else { pusher::FAULT };
                slot.pusher.0.state.store(state, Ordering::Release);
            }
        }
        true
    }

    /// Closes the slot if the transfer has ended. Returns the result, unless the puller wrote LEFT.
    fn close(&mut self, slot: &TransferSlot) -> Option<Result<(), PullError>> {
        let result = match (slot.puller.state.load(Ordering::Acquire), self.phase) {
            (puller::LEFT, _) => {
                // Stops permanently. The operation ends with the connection.
                self.exhausted = true;
                slot.pusher.0.state.store(pusher::CLOSED, Ordering::Release);
                return None;
            }
            (puller::OPEN | puller::FRAMES, PushPhase::Failed(_)) => return None,
            (_, PushPhase::Failed(error)) => Err(error),
            (puller::FAILED, _) => Err(PullError::Fault),
            (puller::REVOKED, _) => Err(PullError::Gone),
            (puller::FINISHED, _) => Ok(()),
            _ if self.copied.saturating_add(slot.puller.reported()) >= self.wanted => Ok(()),
            _ => return None,
        };
        slot.pusher.0.state.store(pusher::CLOSED, Ordering::Release);
        Some(result)
    }

    /// Stops the push because the link ends. Closes its slot if the transfer has ended; [`let_go`](Transfers::let_go)
    /// covers the other slots.
    pub(super) fn abandon(&mut self, pair: &PairMemory, theirs: usize) {
        if self.holds_slot(self.slot)
            && let Some(slot) = pair.slot(theirs, usize::from(self.slot))
        {
            self.close(slot);
        }
    }

    /// Sends frames while there is room.
    fn bounce(&mut self, token: u32, from: u64, sender: &mut RingSender) -> Result<StepResult, TransferError> {
        let mut gone = from;
        while gone < self.wanted {
            let len = self.wanted.saturating_sub(gone).min(sender.limit() as u64);
            let head = Head { kind: FrameKind::Data, flags: Flags::ID, len: len as u32, tag: gone, data: 0, id: token };
            let Some((source, _held)) = self.source.enter_part(gone as usize, len as usize) else {
                self.phase = PushPhase::Void(token);
                return self.give_up(token, sender);
            };
            match sender.send(&head, &source.slice(gone as usize, len as usize), gone.saturating_add(len) < self.wanted)
            {
                Ok(()) => gone = gone.saturating_add(len),
                Err(SendError::Refused(Refused::Full)) => break,
                Err(error) => return Err(TransferError::Send(error)),
            }
            // Send only a few frames at a time, because other transfers have to be served as well.
            if gone.saturating_sub(from) >= self.chunk {
                break;
            }
        }
        self.phase = PushPhase::Bounce(token, gone);
        Ok(match gone {
            gone if gone == self.wanted => StepResult::Ends(End::Pushed(self.id, Ok(()))),
            gone if gone == from => StepResult::Waits,
            _ => StepResult::Moved,
        })
    }

    /// Notifies the puller, once there is room for the frame, that no more data follows.
    fn give_up(&self, token: u32, sender: &mut RingSender) -> Result<StepResult, TransferError> {
        let head = Head { kind: FrameKind::Data, flags: Flags::ID, len: 0, tag: GONE, data: 0, id: token };
        match sender.send(&head, &Segments::EMPTY, false) {
            Ok(()) => Ok(StepResult::Ends(End::Pushed(self.id, Err(PullError::Revoked)))),
            Err(SendError::Refused(Refused::Full)) => Ok(StepResult::Waits),
            Err(error) => Err(TransferError::Send(error)),
        }
    }
}
