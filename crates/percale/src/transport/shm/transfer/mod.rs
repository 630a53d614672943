//! Large payloads: copied once, from the sender's memory to the receiver's, by whoever can.
//!
//! The receiver (the *puller*) takes a slot in the pair's control page and sends a `Pull` frame ([`Request`]) that names
//! it. Both sides then [claim](claim) chunks and copy them: either can finish alone, so a side that is
//! not running costs nothing. How each copies is a [`Way`]: through a mapping of the peer's sealed arena, or by CMA. If
//! neither can, the sender (the *pusher*) sends `Data` frames.
//!
//! Which of them starts depends on where the source is warm. A source that was just written lies in the pusher's cache,
//! so short transfers are the pusher's alone and the puller helps only after [`HELP_AFTER`]; long ones are shared from
//! the start.
//!
//! # The slot's life
//! ```text
//! puller: clears the slot, sends Pull       OPEN
//! pusher: engine calls push                 ACCEPTED | YOURS (I cannot copy) | BOUNCE* | GONE*
//! either: claims, copies, adds to its done  (pusher may say FAULT or REVOKED, puller FAILED or REVOKED)
//! pusher: may copy no more                  UNABLE
//! puller: may copy no more, or saw UNABLE   FRAMES
//! pusher: the puller said FRAMES            BOUNCE*
//! puller: its link is over                  LEFT
//! pusher: all done, or the puller FINISHED, FAILED, REVOKED or LEFT   CLOSED*
//! ```
//! After a state marked * the pusher never touches slot, source or destination for this transfer, and the puller may use
//! the slot again. The puller reports success when the pusher accepted (so the operation was not cancelled) and the two
//! counts reach what is wanted, among which is no chunk that it read when the pusher's link was over; it reports failure only when the
//! pusher can have no copy under way. The pusher reports
//! when the counts are full or the puller is done. For a puller that LEFT it reports nothing: how the operation ends is known
//! when the end of the connection is noticed, and nothing is wrong with anybody's memory.
//!
//! The kernel may forbid at any time what it allowed when the connection was made (a seccomp filter, a change of credentials). Then
//! the whole payload goes as frames, from its beginning: the puller decides so (FRAMES), so that no frame arrives for a pull that has
//! failed meanwhile, and the pusher sends the first frame after its last copy (BOUNCE).
//!
//! A peer that lies in a slot harms its own transfer: chunks are checked against our own segments, each side's claims
//! are bounded, and its own count is its own memory. If a connection ends while the
//! peer holds a chunk, the transfer ends when the peer lets go of it or its process ends (see `residue`).
//!
//! # Letting go
//! A side whose link is over writes its [`Gone`](super::pair::Gone) word, once and for good, after its last copy. It covers all slots,
//! also those that are opened later by a puller that has not noticed yet: opening a slot never takes the word back.
//!
//! Its operations end then, and the memory that they sent from is used for something else, or is gone, while the puller may still read
//! it. So the puller looks at the word after each chunk that it read: once it is set the chunk is not counted, and a copy that failed is
//! no fault of memory.
//!
//! # Memory that can be revoked
//! Its owner alone copies: a destination is then not named in the request, nor a source in the offer, so the other side has
//! no way to it. Each copy of a chunk enters the lease. If that fails, the side says REVOKED in the slot; in frames, the
//! puller throws away what comes, and the pusher sends one empty `Data` frame at the offset
//! [`GONE`](crate::wire::head::GONE).

mod arenas;
mod claim;
mod cma;
#[cfg(all(test, loom))]
mod gone_model;
mod pull;
mod push;
mod request;
mod way;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use zerocopy::IntoBytes;

pub(super) use self::arenas::{Arenas, Given, Remote, Sharing};
pub(super) use self::cma::{Cma, NoCopy};
pub(super) use self::pull::has_let_go;
use self::pull::{Pull, Waiting};
use self::push::Push;
pub(super) use self::way::{NoWay, Told, Way};
use super::pair::{Pair, Slot};
use super::sender::{SendError, Sender};
use crate::memory::volatile::{Segments, View};
use crate::transport::process_socket::ProcessSocket;
use crate::transport::{Connection, PullError, Sink};
use crate::wire::head::{Head, Offer};

/// The longest chunks, where one side copies through a mapping, and where both use the kernel.
const MAPPED_CHUNK: u32 = 64 << 10;
const CMA_CHUNK: u32 = 128 << 10;
/// A payload that is longer has shorter chunks than that, so that the sides end together.
const FINE: u64 = 512 << 10;
const FINE_CHUNK: u32 = 64 << 10;
/// No chunk is shorter, but the last.
const CHUNK_LEAST: u32 = 16 << 10;
/// The puller copies from the start if there is more than this.
const MAPPED_SHARED: u64 = 32 << 10;
const CMA_SHARED: u64 = 32 << 10;
/// Otherwise it helps when the pusher has not finished after this.
const HELP_AFTER: Duration = Duration::from_micros(30);

/// What the pusher says in a slot.
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

/// What the puller says in a slot.
mod puller {
    pub(super) const OPEN: u32 = 0;
    pub(super) const FINISHED: u32 = 1;
    pub(super) const FAILED: u32 = 2;
    pub(super) const REVOKED: u32 = 3;
    pub(super) const FRAMES: u32 = 4;
    pub(super) const LEFT: u32 = 5;
}

/// A transfer's end, to be reported.
#[derive(Clone, Copy, Debug)]
enum End {
    Pulled(u32, Result<u64, PullError>),
    Pushed(u32, Result<(), PullError>),
}

/// What a transfer did when it was its turn.
enum Step {
    /// Nothing.
    Waits,
    /// Something, and it goes on.
    Moved,
    /// Its last.
    Ends(End),
}

/// Everything a link's transfers need.
#[derive(Debug)]
pub(super) struct Transfers {
    pair: Arc<Pair>,
    side: usize,
    cma: Option<Cma>,
    arenas: Arenas,
    /// Our slots that are free, and those whose pusher has still to close them: a bit each.
    free: u32,
    closing: u32,
    pulls: Vec<Pull>,
    pushes: Vec<Push>,
    waiting: VecDeque<Waiting>,
    ended: Vec<End>,
}

impl Transfers {
    pub(super) fn new(pair: Arc<Pair>, side: usize, cma: Option<Cma>, control: ProcessSocket) -> Self {
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

    /// By what the peer's memory is reached: the peer, if the kernel copies, and the arenas of both sides.
    pub(super) const fn reach(&mut self) -> (Option<&Cma>, &mut Arenas) {
        (self.cma.as_ref(), &mut self.arenas)
    }

    /// For tests: the peer, if the kernel copies.
    #[cfg(all(test, not(loom)))]
    pub(super) fn cma_of_peer(&self) -> Cma {
        self.cma.clone().expect("the kernel copies")
    }

    /// Whether there is nothing to do at all.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.pulls.is_empty() & self.pushes.is_empty() & self.waiting.is_empty() & self.ended.is_empty()
    }

    /// Whether nothing can be done before the peer does something (and rings).
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.ended.is_empty()
            && self.pulls.iter().all(Pull::only_waits)
            && self.pushes.iter().all(Push::only_waits)
    }

    /// Fills in where the offer's source lies, for peers that can map it.
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

    /// Moves everything one step, and copies at most one chunk. Whether anything happened.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub(super) fn step(
        &mut self,
        sender: &mut Sender,
        me: Connection,
        sink: &mut impl Sink,
    ) -> Result<bool, TransferError> {
        let mut moved = self.start_waiting(sender)?;
        let mut may_copy = true;
        for index in (0..self.pushes.len()).rev() {
            let source = &mut self.pushes[index];
            match source.step(&self.pair, 1 - self.side, sender, &mut may_copy)? {
                Step::Waits => continue,
                Step::Moved => {}
                Step::Ends(end) => {
                    self.pushes.remove(index);
                    self.ended.push(end);
                }
            }
            moved = true;
        }
        for index in 0..self.pulls.len() {
            // The oldest first; what ended is taken out below, so that indices stand.
            match self.pulls[index].step(&self.pair, self.side, sender, &mut may_copy)? {
                Step::Waits => continue,
                Step::Moved => {}
                Step::Ends(end) => self.ended.push(end),
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

    /// A slot of ours that nobody uses any more.
    fn take_slot(&mut self) -> Option<(u8, &Slot)> {
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

    /// A `Data` frame.
    ///
    /// # Errors
    /// If it fits no pull of ours.
    pub(super) fn data(&mut self, head: &Head, payload: View<'_>) -> Result<(), TransferError> {
        let pull = self.pulls.iter_mut().find(|pull| pull.token() == head.id);
        let pull = pull.ok_or(TransferError::Protocol("data that nobody asked for"))?;
        pull.data(&self.pair, self.side, head.tag, payload)
    }

    /// Stops all transfers, and lets go of what is the peer's. True once the peer can have no copy into our memory under way.
    pub(super) fn quiesce(&mut self, sender: &mut Sender) -> bool {
        self.waiting.clear();
        for mut push in self.pushes.drain(..) {
            push.abandon(&self.pair, 1 - self.side);
        }
        let quiet = self.held().is_empty();
        sender.poke();
        quiet
    }

    /// The link is over, and nothing of the peer's is copied to any more: neither for a pull that was being served, nor for one
    /// whose request nobody will read.
    pub(super) fn let_go(&self) {
        self.pair.gone(self.side).set();
    }

    /// After [`quiesce`](Self::quiesce): token and slot of each pull into our memory that the peer may be copying for.
    pub(super) fn held(&mut self) -> Vec<(u32, u8)> {
        let Self { pulls, pair, side, .. } = self;
        pulls.iter_mut().filter_map(|pull| pull.abandon(pair, *side)).collect()
    }
}

/// Why a transfer cannot go on, and the link with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferError {
    /// The peer did wrong.
    Protocol(&'static str),
    /// A frame could not be sent, and not for want of room.
    Send(SendError),
}

impl From<&'static str> for TransferError {
    fn from(why: &'static str) -> Self {
        Self::Protocol(why)
    }
}
