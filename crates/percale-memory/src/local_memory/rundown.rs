//! Rundown: the announcement of accesses to a target's memory, and the revocation of the right to access it, so that no
//! access takes place after the revocation has completed.
//!
//! A peer that reads or writes the target's memory directly (with its own loads and stores) does not request permission
//! at that time. Instead it announces each access in an [`AnnouncementLine`] of the memory that the pair shares, and
//! then checks whether the [`KeyPageEntry`] of the region in the target's key page is still valid:
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
//! Each side writes, fences, and reads what the other side wrote (Dekker's pattern). So either the initiator finds that
//! its entry was revoked and does not access anything, or the revoker finds the announcement and waits for it. The line
//! is a counter and not a flag, because the flag of a busy initiator might be set whenever the revoker reads it. With a
//! counter any change is enough, because an access that is announced after the snapshot finds the entry revoked.
//! Leaving is a Release store, and the revoker's read is an Acquire load. So once the line has retired, the initiator's
//! writes are visible, and its reads were done before the memory is used for another purpose.
//!
//! # Without the initiator's fence
//! The fence is most of the cost of a short access. So an initiator that has made `FENCED_ACCESSES` accesses stops
//! fencing: it sets `UNFENCED` in its line, fences once, and from then on uses only compiler fences. A revoker that
//! finds the mark set after its own fence makes every processor fence ([`barrier::everywhere`]) before it takes the
//! snapshot. The snapshot then includes each access announced before that moment, and each access announced later finds
//! its entry revoked. If a revoker does not find the mark set, its fence came before the initiator's, so the
//! initiator's later checks find the entry revoked. To return to fences, the initiator clears the mark after an
//! announcement (Release), so a revoker that reads the mark as cleared sees all earlier announcements.
//!
//! A revoker that had to make every processor fence sets `REQUESTED` in the line. From its next access on, the
//! initiator fences again. Revokers then do not need such a barrier (16 µs) for at least `FENCED_ACCESSES` accesses, no
//! matter how often rights are revoked. If the system does not permit the revoker such a barrier, initiators always
//! fence.
//!
//! # Long accesses, and peers that exit
//! A long copy renews its announcement from time to time ([`Announcer::renew`]) and checks the entry again, so that a
//! revoker waits only for a part of it.
//!
//! An initiator that is stopped during an access retires when it continues, or never. So the revoker must have a
//! deadline, and must not use the memory for another purpose until the line retires or the peer process is known to
//! have exited. A line belongs to one announcer at a time. A peer that writes arbitrary values into its line can only
//! make the revoker wait, or make it not wait for that peer's own accesses. The content of a line is only compared, and
//! never used as an address.
//!
//! Accesses that the target's own threads make on behalf of a peer go through a [`Pin`], which is one word of this
//! process's private memory.

use super::barrier;
use crate::sync::{AtomicU32, AtomicU64, Ordering, compiler_barrier, fence, publish_fenced};

/// The number of accesses that an initiator announces with a fence before it tries to stop fencing.
const FENCED_ACCESSES: u32 = 16_384;

/// The initiator announces each access with a fence.
const FENCED: u32 = 0;
/// The initiator announces without fences.
const UNFENCED: u32 = 1;
/// The initiator announces without fences, and a revoker has requested that it fence again.
const REQUESTED: u32 = 2;

/// The word in which one initiator announces its accesses to one target's memory. The sequence is odd while the
/// initiator is inside an access. The line is in memory that the pair shares, and is zero at first.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct AnnouncementLine {
    /// Written only by the initiator's [`Announcer`].
    sequence: AtomicU64,
    /// [`FENCED`], [`UNFENCED`] or [`REQUESTED`]. Revokers write only the last of these.
    manner: AtomicU32,
    /// Whether the target can fence on behalf of the initiator. Written by the target.
    can_fence: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<AnnouncementLine>() == 64 && size_of::<KeyPageEntry>() == 8);

impl AnnouncementLine {
    /// Allows the initiator to announce without fences, if the system allows the target to fence for other processes.
    /// Called by the target.
    #[inline]
    pub fn allow_unfenced(&self) {
        self.can_fence.store(u32::from(barrier::available()), Ordering::Release);
    }

    /// Returns whether the initiator announces without fences. Called after [`fence_after_revoking`]. If it returns
    /// true, a snapshot is valid only after [`fence_initiators`].
    #[inline]
    pub fn is_unfenced(&self) -> bool {
        self.manner.load(Ordering::SeqCst) != FENCED
    }

    /// Signals an initiator that announces without fences to use fences again, because the revoker had to fence for it.
    #[inline]
    pub fn ask_to_fence(&self) {
        // This fails if the initiator fences now, or if the request was made before.
        let _was: Result<u32, u32> =
            self.manner.compare_exchange(UNFENCED, REQUESTED, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Takes a snapshot of the line, after entries were revoked and [`fence_after_revoking`] was called, and after
    /// [`fence_initiators`] if the line [is unfenced](Self::is_unfenced).
    #[inline]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { sequence: self.sequence.load(Ordering::Acquire) }
    }

    /// Returns whether the accesses that were in progress at the snapshot have ended. Later accesses cannot use an
    /// entry that was revoked before the snapshot. Once the result is true, it stays true.
    #[inline]
    pub fn has_retired(&self, then: Snapshot) -> bool {
        then.sequence & 1 == 0 || self.sequence.load(Ordering::Acquire) != then.sequence
    }
}

/// The sequence of a line when the revoker read it.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    sequence: u64,
}

/// Ensures that every snapshot is taken after the revocations have become visible to all processors. Called after
/// revoking any number of entries and before taking the snapshots of any number of lines.
#[inline]
pub fn fence_after_revoking() {
    fence(Ordering::SeqCst);
}

/// Executes a fence in every initiator that announces without fences. Returns false if the system refused. In this case
/// nothing is known about their accesses.
#[must_use]
#[inline]
pub fn fence_initiators() -> bool {
    barrier::everywhere()
}

/// The initiator's side of an [`AnnouncementLine`], with its own count, which no peer can write. It does not refer to
/// its line: the caller passes the same line each time. Code between [`enter`](Self::enter) and [`leave`](Self::leave)
/// must not wait or panic.
#[derive(Debug, Default)]
pub struct Announcer {
    sequence: u64,
    /// Whether this side announces without fences, and has marked the line accordingly.
    unfenced: bool,
    /// The number of accesses announced with a fence since the announcer last tried to stop fencing.
    fenced: u32,
}

impl Announcer {
    /// Makes an access if the grant with this generation is valid. The access must not wait or panic.
    #[inline(always)]
    pub fn access<R>(
        &mut self,
        line: &AnnouncementLine,
        entry: &KeyPageEntry,
        generation: u64,
        access: impl FnOnce() -> R,
    ) -> Option<R> {
        self.enter(line);
        let result = if entry.holds(generation) { Some(access()) } else { None };
        self.leave(line);
        result
    }

    /// Announces an access. Entries must be checked after this call, not before, to determine whether the access is
    /// allowed.
    #[inline]
    pub fn enter(&mut self, line: &AnnouncementLine) {
        // The result is also odd after an access that unwound and so never left.
        self.sequence = self.sequence.wrapping_add(1) | 1;
        self.announce(line);
    }

    /// Ends the access. The initiator must not read or write anything after this call. (The processor does not order
    /// streaming stores, so copying code that uses them must fence after them.)
    #[inline]
    pub fn leave(&mut self, line: &AnnouncementLine) {
        debug_assert!(self.is_inside(), "left without having entered");
        self.sequence = self.sequence.wrapping_add(1);
        line.sequence.store(self.sequence, Ordering::Release);
    }

    /// Ends the access and announces another, at the cost of one announcement. Earlier checks of an entry are no longer
    /// valid, and the entry must be checked again. A long copy does this every 64 KiB.
    #[inline]
    pub fn renew(&mut self, line: &AnnouncementLine) {
        debug_assert!(self.is_inside(), "renewed without having entered");
        self.sequence = self.sequence.wrapping_add(2);
        self.announce(line);
    }

    /// Writes the sequence, ordered before any later load of an entry.
    #[inline(always)]
    fn announce(&mut self, line: &AnnouncementLine) {
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
        if self.fenced == FENCED_ACCESSES {
            self.try_stop_fencing(line);
        }
    }

    /// Stops fencing, if both sides support that.
    #[cold]
    fn try_stop_fencing(&mut self, line: &AnnouncementLine) {
        self.fenced = 0;
        if line.can_fence.load(Ordering::Acquire) != 0 && barrier::is_registered() {
            self.stop_fencing(line);
        }
    }

    fn stop_fencing(&mut self, line: &AnnouncementLine) {
        line.manner.store(UNFENCED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.unfenced = true;
    }

    /// Fences from the next announcement on. The access that was just announced is visible to a revoker that reads the
    /// mark as cleared (Release).
    #[cold]
    fn fence_again(&mut self, line: &AnnouncementLine) {
        line.manner.store(FENCED, Ordering::Release);
        (self.unfenced, self.fenced) = (false, 0);
    }

    /// Returns whether an access is announced.
    #[inline]
    pub fn is_inside(&self) -> bool {
        self.sequence & 1 == 1
    }
}

/// The grant of one key to one peer, in the page that the target shares with this peer. It contains the generation of
/// the grant, or 0. No generation is used twice for one entry, so an initiator that uses an old generation finds the
/// entry revoked.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct KeyPageEntry {
    generation: AtomicU64,
}

impl KeyPageEntry {
    /// Returns whether the grant of that generation (not 0) is still valid. The initiator calls this between
    /// [`Announcer::enter`] or [`renew`](Announcer::renew) and the access. The result is valid until it leaves. This is
    /// only a load, because the initiator cannot write the page. It is not a relaxed load after a fence, because the
    /// order of this load matters if the announcement is an exchange, or has no fence.
    #[inline]
    pub fn holds(&self, generation: u64) -> bool {
        self.generation.load(Ordering::SeqCst) == generation
    }

    /// Grants access. The generation must not be 0, and must not have been granted by this entry before.
    #[inline]
    pub fn grant(&self, generation: u64) {
        debug_assert_ne!(generation, 0, "0 means revoked");
        self.generation.store(generation, Ordering::SeqCst);
    }

    /// Revokes the grant. Accesses that are in progress end later (see [`fence_after_revoking`]).
    #[inline]
    pub fn revoke(&self) {
        self.generation.store(0, Ordering::SeqCst);
    }
}

/// The bit that is set in a pin's word when the pin is revoked. The bits below count the threads inside.
const REVOKED: u64 = 1 << 63;

/// Counts the accesses of this process's own threads to one region, and ends them. After [`revoke`](Self::revoke) no
/// thread enters, and once [`is_quiet`](Self::is_quiet) returns true no thread is inside or will be. The pin is one
/// word, so its modification order decides between entering and revoking, and no fence is needed. A revoked pin stays
/// revoked.
#[derive(Debug, Default)]
pub struct Pin {
    state: AtomicU64,
}

impl Pin {
    /// Enters for the duration of one bounded call. Returns `None` once the pin is revoked.
    #[inline]
    pub fn enter(&self) -> Option<Inside<'_>> {
        // This check prevents late threads from changing the count for which the revoker waits.
        if self.is_revoked() {
            return None;
        }
        let inside = Inside { pin: self };
        let before = self.state.fetch_add(1, Ordering::Acquire);
        (before & REVOKED == 0).then_some(inside)
    }

    /// Revokes the pin, so that no thread enters from now on. Only the call that revoked it returns true.
    #[inline]
    pub fn revoke(&self) -> bool {
        self.state.fetch_or(REVOKED, Ordering::AcqRel) & REVOKED == 0
    }

    /// Returns whether no thread is inside. If the pin is revoked and the result is true, it stays true, and all
    /// accesses of the threads are visible to the caller.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.state.load(Ordering::Acquire) & !REVOKED == 0
    }

    /// Returns whether the pin was revoked.
    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.state.load(Ordering::Acquire) & REVOKED != 0
    }
}

/// The right of a thread to be inside a [`Pin`]. The thread leaves when this value is dropped.
#[derive(Debug)]
#[must_use = "dropping it leaves at once"]
pub struct Inside<'a> {
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
