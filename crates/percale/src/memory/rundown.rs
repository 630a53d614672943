//! Rundown: how an access to a target's memory is announced, and how its right is taken back so that none comes late.
//!
//! A peer that reads or writes our memory directly (by its own loads and stores) asks nobody at that moment. So it
//! announces each access in a [`Line`] of the memory that the pair shares, and then looks whether the [`Entry`] of the
//! region in our key page still holds:
//!
//! ```text
//! initiator (Announcer)                  revoker
//!   enter:  line := odd, fence             entries := 0
//!   holds:  entry == generation?           fence_after_revoking
//!   copy                                   snapshot of each line
//!   leave:  line := even                   wait until has_retired: even then, or changed since
//!                                          the memory is ours again
//! ```
//!
//! Each side writes, fences and reads what the other wrote (Dekker's pattern). So either the initiator sees that its
//! entry is gone and touches nothing, or the revoker sees its announcement and waits for it. The line counts and is no
//! flag, because a busy initiator's flag might be set whenever the revoker looks: a change is enough, since whatever is
//! announced after the snapshot sees the entry gone. Leaving releases and the revoker's look acquires: after it retired,
//! what the initiator wrote is there, and what it read was read before the memory had another use.
//!
//! # Without the initiator's fence
//! The fence is most of what a short access costs. So an initiator that has made [`PATIENCE`] accesses does without it: it
//! says so in its line ([`UNFENCED`]), fences once, and from then on orders only its compiler. A revoker that finds this
//! said after its own fence makes every processor fence ([`barrier::everywhere`]) before it takes the snapshot: an access
//! announced before that moment is seen, and one announced later sees its entry gone. A revoker that does not find it
//! said fenced before the initiator did, whose later looks therefore see the entry gone. Back to fences: the initiator
//! takes its word back after an announcement (Release), and whoever reads that sees all that was announced before.
//!
//! A revoker that had to pay for the initiator says so in the line ([`ASKED`]), and the initiator's next access is fenced
//! again: one such barrier (16 µs) for at least [`PATIENCE`] accesses, however often rights are taken back. Where the
//! system lets the revoker make no barrier, initiators always fence.
//!
//! # Long accesses, and dead peers
//! A copy that takes long renews its announcement now and then ([`Announcer::renew`]) and looks at the entry again, so
//! that a revoker waits for no more than a piece of it.
//!
//! An initiator that is stopped inside retires when it goes on, or never: the revoker must have a deadline, and keep
//! the memory from any other use until the line retires or the peer is known to be dead. A line belongs to one
//! announcer at a time. A peer that writes nonsense into its line can make the revoker wait, or not wait for that
//! peer's own accesses, and nothing else: a line's content is compared, never followed.
//!
//! Accesses that the target's own threads make on behalf of a peer go through a [`Pin`], which is one word of this
//! process's private memory.

use super::barrier;
use crate::sync::{AtomicU32, AtomicU64, Ordering, compiler_barrier, fence, publish_fenced};

/// Accesses that an initiator announces with a fence each before it tries to go without.
const PATIENCE: u32 = 16_384;

/// How an initiator announces: each access with a fence.
const FENCED: u32 = 0;
/// Without.
const UNFENCED: u32 = 1;
/// Without, and a revoker asks it to fence again.
const ASKED: u32 = 2;

/// Where one initiator announces its accesses to one target's memory: odd while it is inside. In memory that the pair
/// shares, zero at first.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Line {
    /// Written by the initiator's [`Announcer`] alone.
    sequence: AtomicU64,
    /// [`FENCED`], [`UNFENCED`] or [`ASKED`]; the last is written by revokers.
    manner: AtomicU32,
    /// Written by the target: whether it can fence for the initiator.
    can_fence: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64 && size_of::<Entry>() == 8);

impl Line {
    /// The target lets the initiator go without fences, if the system lets the target fence for others.
    pub(crate) fn allow_unfenced(&self) {
        self.can_fence.store(u32::from(barrier::available()), Ordering::Release);
    }

    /// Whether the initiator announces without fences. Asked after [`fence_after_revoking`]; if so, a snapshot is worth
    /// something only after [`fence_initiators`].
    #[inline]
    pub(crate) fn is_unfenced(&self) -> bool {
        self.manner.load(Ordering::SeqCst) != FENCED
    }

    /// Tells an initiator that goes without fences that it had to be fenced.
    pub(crate) fn ask_to_fence(&self) {
        // Fails if it fences by now, or was asked before.
        let _was: Result<u32, u32> = self.manner.compare_exchange(UNFENCED, ASKED, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// What the line says now. Taken after entries were revoked and [`fence_after_revoking`] was called, and after
    /// [`fence_initiators`] if the line [is unfenced](Self::is_unfenced).
    #[inline]
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot { sequence: self.sequence.load(Ordering::Acquire) }
    }

    /// Whether every access that was under way at the snapshot, and may have seen an entry that was revoked before
    /// it, has ended. One "yes" is final.
    #[inline]
    pub(crate) fn has_retired(&self, then: Snapshot) -> bool {
        then.sequence & 1 == 0 || self.sequence.load(Ordering::Acquire) != then.sequence
    }
}

/// What a line said when its revoker looked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    sequence: u64,
}

/// Between revoking any number of entries and taking the snapshots of any number of lines: no snapshot is older than
/// the revocations are seen by all.
#[inline]
pub(crate) fn fence_after_revoking() {
    fence(Ordering::SeqCst);
}

/// Makes every initiator fence that announces without. False if the system refused: nothing is known of them then.
#[must_use]
pub(crate) fn fence_initiators() -> bool {
    barrier::everywhere()
}

/// The initiator's side of a [`Line`], with its own count, which no peer can write. It names no line: whoever owns it
/// passes the same one each time. Nothing between [`enter`](Self::enter) and [`leave`](Self::leave) may wait or panic.
#[derive(Debug, Default)]
pub(crate) struct Announcer {
    sequence: u64,
    /// Announces without fences, and the line says so.
    unfenced: bool,
    /// Accesses announced with a fence since it last thought of going without.
    fenced: u32,
}

impl Announcer {
    /// Announces an access. After it, and not before, entries tell whether the access is allowed.
    #[inline]
    pub(crate) fn enter(&mut self, line: &Line) {
        // Odd also after an access that unwound, and so never left.
        self.sequence = self.sequence.wrapping_add(1) | 1;
        self.announce(line);
    }

    /// Ends the access: nothing is read or written after it. (Streaming stores, which the processor does not order,
    /// are the copier's to fence before.)
    #[inline]
    pub(crate) fn leave(&mut self, line: &Line) {
        debug_assert!(self.is_inside(), "left without having entered");
        self.sequence = self.sequence.wrapping_add(1);
        line.sequence.store(self.sequence, Ordering::Release);
    }

    /// Ends the access and announces another, at the cost of one: what was learnt from an entry before is void, and
    /// the entry must be looked at again. A long copy does so every 64 KiB.
    #[inline]
    pub(crate) fn renew(&mut self, line: &Line) {
        debug_assert!(self.is_inside(), "renewed without having entered");
        self.sequence = self.sequence.wrapping_add(2);
        self.announce(line);
    }

    /// Writes the sequence, in order before any look at an entry.
    #[inline(always)]
    fn announce(&mut self, line: &Line) {
        if self.unfenced {
            line.sequence.store(self.sequence, Ordering::Release);
            compiler_barrier();
            if line.manner.load(Ordering::Relaxed) != UNFENCED {
                self.fence_again(line);
            }
            return;
        }
        publish_fenced(&line.sequence, self.sequence);
        self.fenced += 1;
        if self.fenced == PATIENCE {
            self.consider(line);
        }
    }

    /// Goes without fences from now on, if both sides can.
    #[cold]
    fn consider(&mut self, line: &Line) {
        self.fenced = 0;
        if line.can_fence.load(Ordering::Acquire) != 0 && barrier::is_registered() {
            self.stop_fencing(line);
        }
    }

    fn stop_fencing(&mut self, line: &Line) {
        line.manner.store(UNFENCED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.unfenced = true;
    }

    /// Fences what will be announced. Who finds that said sees what was just announced.
    #[cold]
    fn fence_again(&mut self, line: &Line) {
        line.manner.store(FENCED, Ordering::Release);
        (self.unfenced, self.fenced) = (false, 0);
    }

    /// Whether an access is announced.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        self.sequence & 1 == 1
    }
}

/// What one peer is granted under one key, in the page that the target shows this peer: the generation of the grant,
/// or 0. No generation is used twice for one entry, so an initiator that knows an old one finds it gone.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Entry {
    generation: AtomicU64,
}

impl Entry {
    /// Whether the grant of that generation (not 0) still stands. The initiator asks between
    /// [`Announcer::enter`] or [`renew`](Announcer::renew) and the access; the answer is good until it leaves.
    /// No more than a load, for the initiator cannot write the page: and not a relaxed one behind a fence, for where the announcement is an
    /// exchange, or has no fence, the order of this load is what counts.
    #[inline]
    pub(crate) fn holds(&self, generation: u64) -> bool {
        self.generation.load(Ordering::SeqCst) == generation
    }

    /// Grants. The generation is not 0 and was never granted by this entry before.
    #[inline]
    pub(crate) fn grant(&self, generation: u64) {
        debug_assert_ne!(generation, 0, "0 means revoked");
        self.generation.store(generation, Ordering::SeqCst);
    }

    /// Takes the grant back. Accesses under way end later: see [`fence_after_revoking`].
    #[inline]
    pub(crate) fn revoke(&self) {
        self.generation.store(0, Ordering::SeqCst);
    }
}

/// Set in a pin's word when it is revoked; the bits below count the threads inside.
const REVOKED: u64 = 1 << 63;

/// How accesses of this process's own threads to one region are counted, and ended: after [`revoke`](Self::revoke) no
/// thread enters, and once [`is_quiet`](Self::is_quiet) none is inside or will be. One word, so that its modification
/// order decides between entering and revoking and no fence is needed. A revoked pin stays revoked.
#[derive(Debug, Default)]
pub(crate) struct Pin {
    state: AtomicU64,
}

impl Pin {
    /// Enters for the length of one bounded call; `None` once revoked.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        // Looking first keeps those who come late from disturbing the count that the revoker waits for.
        if self.is_revoked() {
            return None;
        }
        let inside = Inside { pin: self };
        let before = self.state.fetch_add(1, Ordering::Acquire);
        (before & REVOKED == 0).then_some(inside)
    }

    /// Lets nobody in any more. True for the one call that did it.
    #[inline]
    pub(crate) fn revoke(&self) -> bool {
        self.state.fetch_or(REVOKED, Ordering::AcqRel) & REVOKED == 0
    }

    /// Whether no thread is inside. On a revoked pin one "yes" is final, and all that the threads did is visible.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.state.load(Ordering::Acquire) & !REVOKED == 0
    }

    /// Whether the pin was revoked.
    #[inline]
    pub(crate) fn is_revoked(&self) -> bool {
        self.state.load(Ordering::Acquire) & REVOKED != 0
    }
}

/// A thread is inside a [`Pin`]; it leaves when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it leaves at once"]
pub(crate) struct Inside<'a> {
    pin: &'a Pin,
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.pin.state.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
#[path = "rundown_model.rs"]
mod model;

#[cfg(all(test, not(loom)))]
#[path = "rundown_tests.rs"]
mod tests;
