//! Large payloads. They are copied once, from the sender's memory to the receiver's, by either side or by both.
//!
//! The receiver (the *puller*) takes a slot in the pair's control page and sends a `Pull` frame ([`PullRequest`]) that
//! names it. Both sides then [claim](claim) chunks and copy them. Either side can finish alone, so a side that is not
//! running does not delay the transfer. The copy method of a side is a [`TransferRoute`]: a mapping of the peer's
//! sealed arena, or CMA. If neither side can copy, the sender (the *pusher*) sends `Data` frames.
//!
//! Which side starts depends on the cache that contains the source. A source that was just written is in the pusher's
//! cache, so the pusher copies short transfers alone, and the puller helps only after [`HELP_AFTER`]. Both sides copy
//! long transfers from the start.
//!
//! # Life cycle of a slot
//! ```text
//! puller: clears the slot, sends Pull              OPEN
//! pusher: its engine calls push                    ACCEPTED | YOURS (it cannot copy) | BOUNCE* | GONE*
//! either: claims, copies, adds to its done count   (pusher may write FAULT or REVOKED, puller FAILED or REVOKED)
//! pusher: may not copy any more                    UNABLE
//! puller: may not copy any more, or read UNABLE    FRAMES
//! pusher: read FRAMES                              BOUNCE*
//! puller: its link has ended                       LEFT
//! pusher: everything is done, or it read FINISHED, FAILED, REVOKED or LEFT   CLOSED*
//! ```
//! After a state marked * the pusher never touches slot or destination for this transfer, and the puller may use the
//! slot again. (After BOUNCE the pusher still reads the source, to send the frames.) The puller reports success when
//! the pusher has accepted (so the operation was not cancelled) and the two counts add up to the requested length.
//! Chunks that the puller read after the pusher's link had ended are not counted. The puller reports failure only when
//! the pusher cannot have a copy in progress. The pusher reports the end when the counts add up or the puller has
//! finished. After LEFT the pusher reports nothing: the operation gets its result when the end of the connection is
//! detected, and this result is not a memory fault.
//!
//! The kernel may at any time forbid what it allowed when the connection was set up (a seccomp filter, a change of
//! credentials). In this case the whole payload is sent as frames, from its beginning. The puller decides this
//! (FRAMES), so that no frame arrives for a pull that has failed in the meantime, and the pusher sends the first frame
//! after its last copy (BOUNCE).
//!
//! A peer that writes wrong values to a slot harms only its own transfer: chunks are checked against this side's own
//! segments, each side's claims are bounded, and each side keeps its own count in private memory. If a connection ends
//! while the peer holds a chunk, the transfer ends when the peer releases the chunk or its process ends (see
//! `draining`).
//!
//! # The end of a side's link
//! When the link of a side has ended, the side permanently sets its [`StoppedMark`](super::pair::StoppedMark) word,
//! after its last copy. The word covers all slots, including slots that are opened later by a puller that has not
//! detected the end yet: opening a slot never clears the word.
//!
//! The operations of that side end at this point, and their source memory may be reused or unmapped while the puller
//! still reads it. So the puller checks the word after each chunk that it has read. Once the word is set, the chunk is
//! not counted, and a failed copy is not a memory fault.
//!
//! # Memory that can be revoked
//! Only the owner of revocable memory copies it. A revocable destination is not named in the request, and a revocable
//! source is not named in the offer, so the other side cannot reach it. Each copy of a chunk enters the lease. If that
//! fails, the side writes REVOKED to the slot. If the payload is sent as frames, a puller with a revoked destination
//! discards what arrives, and a pusher with a revoked source sends one empty `Data` frame at the offset
//! [`GONE`](crate::wire::head::GONE).

mod arenas;
mod claim;
mod cma;
#[cfg(all(test, loom))]
mod gone_model;
mod pull;
mod push;
mod request;
mod route;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use zerocopy::IntoBytes;

pub(super) use self::arenas::{ArenaAccess, Arenas, RemoteRange, Sharing};
pub(super) use self::cma::{Cma, NoCopy};
pub(super) use self::pull::has_released;
use self::pull::{PendingPull, Pull};
use self::push::Push;
pub(super) use self::route::{CopyFailure, ReportedLocation, TransferRoute};
use super::pair::{PairMemory, TransferSlot};
use super::sender::{RingSender, SendError};
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View};
use crate::system::process_socket::ProcessSocket;
use crate::wire::head::{Head, Offer};
use crate::{ConnectionId, PullError, Sink};

/// The largest chunk size if a side copies through a mapping. `CMA_CHUNK` applies if both sides use the kernel.
const MAPPED_CHUNK: u32 = 64 << 10;
const CMA_CHUNK: u32 = 128 << 10;
/// Payloads longer than this have shorter chunks, so that both sides finish at the same time.
const FINE: u64 = 512 << 10;
const FINE_CHUNK: u32 = 64 << 10;
/// The length of the shortest chunk, except for the last one.
const CHUNK_LEAST: u32 = 16 << 10;
/// The puller copies from the start if more than this is requested. `CMA_SHARED` applies if the kernel copies for it.
const MAPPED_SHARED: u64 = 32 << 10;
const CMA_SHARED: u64 = 32 << 10;
/// The time after which the puller helps with a shorter transfer, if the pusher has not finished.
const HELP_AFTER: Duration = Duration::from_micros(30);

/// The states that the pusher writes to a slot.
mod pusher {
    pub(super) const OPEN: u32 = 0;
    pub(super) const ACCEPTED: u32 = 1;
    pub(super) const YOURS: u32 = 2;
    pub(super) const FAULT: u32 = 3;
    pub(super) const BOUNCE: u32 = 4;
    pub(super) const GONE: u32 = 5;
    pub(super) const CLOSED: u32 = 6;
    pub(super) const REVOKED: u32 = 7;
    pub(super) const UNABLE: u32 = 8;
}

/// The states that the puller writes to a slot.
mod puller {
    pub(super) const OPEN: u32 = 0;
    pub(super) const FINISHED: u32 = 1;
    pub(super) const FAILED: u32 = 2;
    pub(super) const REVOKED: u32 = 3;
    pub(super) const FRAMES: u32 = 4;
    pub(super) const LEFT: u32 = 5;
}

/// The end of a transfer, to be reported.
#[derive(Clone, Copy, Debug)]
enum End {
    Pulled(u32, Result<u64, PullError>),
    Pushed(u32, Result<(), PullError>),
}

/// The result of one step of a transfer.
enum StepResult {
    /// There is nothing to do at the moment.
    Waits,
    /// Progress was made and more work remains.
    Moved,
    /// The transfer has ended.
    Ends(End),
}

/// The state of all transfers of a link.
#[derive(Debug)]
pub(super) struct Transfers {
    pair: Arc<PairMemory>,
    side: usize,
    cma: Option<Cma>,
    arenas: Arenas,
    /// Bit masks of this side's slots: the free ones, and those that their pusher has not closed yet.
    free: u32,
    closing: u32,
    pulls: Vec<Pull>,
    pushes: Vec<Push>,
    waiting: VecDeque<PendingPull>,
    ended: Vec<End>,
}

impl Transfers {
    pub(super) fn new(pair: Arc<PairMemory>, side: usize, cma: Option<Cma>, control: ProcessSocket) -> Self {
        Self {
            pair,
            side,
            cma,
            arenas: Arenas::new(control),
            free: (1 << super::pair::SLOTS) - 1,
            closing: 0,
            pulls: Vec::new(),
            pushes: Vec::new(),
            waiting: VecDeque::new(),
            ended: Vec::new(),
        }
    }

    /// Returns the objects through which the peer's memory is reached: the peer process, if the kernel copies, and the
    /// arenas of both sides.
    pub(super) const fn reach(&mut self) -> (Option<&Cma>, &mut Arenas) {
        (self.cma.as_ref(), &mut self.arenas)
    }

    /// Returns the peer process for tests, if the kernel copies.
    #[cfg(all(test, not(loom)))]
    pub(super) fn cma_of_peer(&self) -> Cma {
        self.cma.clone().expect("the kernel copies")
    }

    /// Returns the socket over which descriptors are passed.
    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn control(&self) -> std::os::fd::BorrowedFd<'_> {
        self.arenas.control()
    }

    /// Returns whether there are no transfers.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.pulls.is_empty() & self.pushes.is_empty() & self.waiting.is_empty() & self.ended.is_empty()
    }

    /// Returns whether nothing can be done before the peer acts and rings the doorbell.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.ended.is_empty()
            && self.pulls.iter().all(Pull::is_waiting)
            && self.pushes.iter().all(Push::is_waiting)
    }

    /// Fills in the arena and offset of the offer's source, for peers that can map it.
    pub(super) fn complete_offer(&mut self, payload: &Segments) -> Option<Offer> {
        let mut offer = Offer::default();
        if payload.len() != size_of::<Offer>() || payload.copy_to(0, offer.as_mut_bytes()) != size_of::<Offer>() {
            return None;
        }
        let (mut arena, mut offset) = (0, 0);
        if offer.pieces.get() == 1 && offer.address.get() != 0 {
            let source = std::ptr::without_provenance(offer.address.get() as usize);
            (arena, offset) = self.arenas.name_range(source, usize::try_from(offer.len.get()).ok()?);
        }
        (offer.arena, offer.offset) = (arena.into(), offset.into());
        Some(offer)
    }

    /// Advances each transfer by one step, and makes at most one copy. Returns whether anything happened.
    ///
    /// # Errors
    /// If the peer violated the protocol, or a frame could not be sent.
    pub(super) fn step(
        &mut self,
        sender: &mut RingSender,
        me: ConnectionId,
        sink: &mut impl Sink,
    ) -> Result<bool, TransferError> {
        let mut moved = self.start_waiting(sender)?;
        let mut may_copy = true;
        for index in (0..self.pushes.len()).rev() {
            let source = &mut self.pushes[index];
            match source.step(&self.pair, 1 - self.side, sender, &mut may_copy)? {
                StepResult::Waits => continue,
                StepResult::Moved => {}
                StepResult::Ends(end) => {
                    self.pushes.remove(index);
                    self.ended.push(end);
                }
            }
            moved = true;
        }
        for index in 0..self.pulls.len() {
            // Start with the oldest transfer. Pulls that have ended are removed below, so that indices stay valid.
            match self.pulls[index].step(&self.pair, self.side, sender, &mut may_copy)? {
                StepResult::Waits => continue,
                StepResult::Moved => {}
                StepResult::Ends(end) => self.ended.push(end),
            }
            moved = true;
        }
        self.pulls.retain(|pull| {
            if pull.is_over() {
                self.closing |= pull.slot_bit();
            }
            !pull.is_over()
        });
        for end in self.ended.drain(..) {
            moved = true;
            match end {
                End::Pulled(token, result) => sink.pulled(me, token, result),
                End::Pushed(id, result) => sink.pushed(me, id, result),
            }
        }
        Ok(moved)
    }

    /// Takes a slot of this side that is no longer in use.
    fn take_slot(&mut self) -> Option<(u8, &TransferSlot)> {
        if self.free == 0 {
            let mut closing = self.closing;
            while closing != 0 {
                let index = closing.trailing_zeros();
                closing &= closing - 1;
                let slot = self.pair.slot(self.side, index as usize)?;
                if pull::is_closed(slot) {
                    self.closing &= !(1 << index);
                    self.free |= 1 << index;
                }
            }
        }
        let index = self.free.trailing_zeros();
        let slot = self.pair.slot(self.side, index as usize)?;
        self.free &= !(1 << index);
        Some((index as u8, slot))
    }

    /// Handles a `Data` frame.
    ///
    /// # Errors
    /// If the frame matches no pull of this side.
    pub(super) fn data(&mut self, head: &Head, payload: View<'_>) -> Result<(), TransferError> {
        let pull = self.pulls.iter_mut().find(|pull| pull.token() == head.id);
        let pull = pull.ok_or(TransferError::Protocol("unrequested data"))?;
        pull.data(&self.pair, self.side, head.tag, payload)
    }

    /// Stops all transfers, and closes the peer's slots of transfers that have ended. Returns true once the peer cannot
    /// have a copy into local memory in progress.
    pub(super) fn quiesce(&mut self, sender: &mut RingSender) -> bool {
        self.waiting.clear();
        for mut push in self.pushes.drain(..) {
            push.abandon(&self.pair, 1 - self.side);
        }
        let quiet = self.held().is_empty();
        sender.wake_peer();
        quiet
    }

    /// Sets this side's mark, because the link has ended. After that this side does not copy to the peer's memory any
    /// more: neither for a pull that was being served, nor for one with a request that is never read.
    pub(super) fn let_go(&self) {
        self.pair.gone(self.side).set();
    }

    /// Returns, after [`quiesce`](Self::quiesce), the token and slot of each pull into local memory for which the peer
    /// may be copying.
    pub(super) fn held(&mut self) -> Vec<(u32, u8)> {
        let Self { pulls, pair, side, .. } = self;
        pulls.iter_mut().filter_map(|pull| pull.abandon(pair, *side)).collect()
    }
}

/// The reason why neither a transfer nor its link can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferError {
    /// The peer violated the protocol.
    Protocol(&'static str),
    /// A frame could not be sent, for a reason other than lack of room.
    Send(SendError),
}

impl From<&'static str> for TransferError {
    fn from(why: &'static str) -> Self {
        Self::Protocol(why)
    }
}
