//! A lane: one user of the cache, with its uses.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entries::EntryPosition;
use super::entry::Entry;
use super::grace::{LaneUses, Parity};
use super::{FoundRegistration, LookupError, Shared};
use crate::access::Access;
use crate::range::Range;
use crate::registrar::{Pinned, Registrar};

/// One user of a cache: a thread, or an endpoint that one thread at a time drives. A lane may move to another thread.
///
/// End every [`Use`] before the lane is dropped. Otherwise the registrations that were removed from the cache since
/// these uses began, or are removed later, are never unpinned; a [held](Self::hold) use keeps only its own registration
/// pinned. Hold long uses.
pub struct Lane<R: Registrar> {
    shared: Arc<Shared<R>>,
    counts: Arc<LaneUses>,
    /// The lane's name, which is a multiple of `BY + 1`.
    name: u64,
    /// Prevents `Sync`: the counts are updated by plain stores, so two threads must not use the lane at once.
    alone: PhantomData<Cell<()>>,
}

/// A look-up that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    /// The parity under which the look-up was announced.
    parity: Parity,
    /// The cache's position in the journal at that time, so that it need not be read again.
    seen: u64,
}

/// The number of bits of a use's ticket.
#[cfg(not(loom))]
pub(crate) const TICKET_BITS: u32 = 35;

/// The number of lanes made so far. The name of a lane is never reused in the process.
static MADE: AtomicU64 = AtomicU64::new(0);

/// The lowest bits of a use's owner. They indicate what keeps its pages pinned. With neither [`ALONE`] nor [`HELD`],
/// its lane counts the use under this parity.
const PARITY: u64 = 1;
/// The registration was made only for this use.
const ALONE: u64 = 2;
/// The entry counts the use.
const HELD: u64 = 4;
/// All of these bits. A lane's name has none of them.
const BY: u64 = PARITY | ALONE | HELD;

/// A registration while an operation uses it. The pages stay pinned until [`Lane::end`], even if the process changes
/// its address space meanwhile.
#[must_use = "a use that is never ended keeps memory pinned"]
#[derive(Debug)]
pub struct Use {
    /// The place of the entry; the number of the entry, if the use is held; or the number of the registration, if it
    /// was made only for this use.
    entry: u32,
    /// The name of the lane, and the bits that indicate what keeps the pages pinned.
    owner: u64,
    local_key: u64,
    remote_key: u64,
}

impl Use {
    /// Returns the local key, for work requests of this process.
    #[inline]
    #[must_use]
    pub fn local_key(&self) -> u64 {
        self.local_key
    }

    /// Returns the remote key, for peers.
    #[inline]
    #[must_use]
    pub fn remote_key(&self) -> u64 {
        self.remote_key
    }

    /// Returns whether the registration was made only for this use.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.owner & ALONE != 0
    }

    /// Returns whether the use is [held](Lane::hold).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.owner & HELD != 0
    }

    /// Converts the use to a number of [`TICKET_BITS`] bits with which it can be ended, for the C interface.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn into_ticket(self) -> u64 {
        u64::from(self.entry) | (self.owner & BY) << 32
    }

    /// Restores a use of the lane with this name from its ticket. The keys are not restored.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn from_ticket(ticket: u64, lane: u64) -> Self {
        Self { entry: ticket as u32, owner: lane | ticket >> 32 & BY, local_key: 0, remote_key: 0 }
    }
}

/// The error for a use that was passed to a lane that did not return it.
#[derive(Debug, thiserror::Error)]
#[error("the use belongs to another lane: end it there")]
#[non_exhaustive]
pub struct WrongLane {
    /// The use, unchanged.
    pub used: Use,
}

impl<R: Registrar> Lane<R> {
    pub(super) fn new(shared: Arc<Shared<R>>) -> Self {
        // In a forked child, the lock may be held by a thread that does not exist there. Lanes return no registrations
        // there, so no grace period needs their counts.
        let counts = if shared.journal.forked() { Arc::new(LaneUses::default()) } else { shared.table().grace.join() };
        let name = MADE.fetch_add(1, Ordering::Relaxed) * (BY + 1);
        Self { shared, counts, name, alone: PhantomData }
    }

    #[inline(always)]
    fn used(&self, place: EntryPosition, entry: &Entry, parity: Parity) -> Use {
        let (local_key, remote_key) = entry.keys();
        Use { entry: place.to_u32(), owner: self.name | parity.index() as u64, local_key, remote_key }
    }

    /// Returns a registration of these bytes with at least these rights: a kept one, or a new one of their pages.
    ///
    /// The caller ends it with [`Self::end`] when the operation that uses it has completed, and [holds](Self::hold) it
    /// if that may take a long time. Until it ends or is held, registrations that were removed from the cache since it
    /// began are not unpinned.
    ///
    /// # Errors
    /// [`LookupError::Registrar`] with the registrar's error; nothing remains pinned then. [`LookupError::Forked`] if
    /// this process is a fork of the one that opened the cache.
    #[inline(always)]
    pub fn get(&self, range: Range, access: Access) -> Result<Use, LookupError> {
        match self.hit(range, access) {
            Ok(used) => Ok(used),
            Err(begun) => self.get_slowly(range, access, begun),
        }
    }

    /// The fast path of [`Self::get`]. If it finds nothing, returns the state that [`Self::get_slowly`] continues with.
    #[inline(always)]
    pub(crate) fn hit(&self, range: Range, access: Access) -> Result<Use, Begun> {
        let parity = self.shared.parity();
        self.counts.begin(parity);
        let seen = self.shared.journal.seen();
        if seen == 0 {
            return Err(Begun { parity, seen }); // The slow path makes a system call before it loads the entry.
        }
        match self.shared.hit(range, access, seen) {
            Some((place, entry)) => Ok(self.used(place, entry, parity)),
            None => Err(Begun { parity, seen }),
        }
    }

    /// The slow path of [`Self::get`]. A separate function, so that the fast path does not have to save registers.
    #[cold]
    #[inline(never)]
    pub(crate) fn get_slowly(&self, range: Range, access: Access, begun: Begun) -> Result<Use, LookupError> {
        let Begun { parity, seen } = begun;
        if seen == 0 {
            self.shared.expect(range); // The prefetch overlaps with the system call.
        }
        let seen = self.shared.journal.seen_by_call().unwrap_or(seen);
        if let Some((place, entry)) = self.shared.hit_slowly(range, access, seen) {
            return Ok(self.used(place, entry, parity));
        }
        self.counts.end(parity);
        match self.shared.miss(range, access, &self.counts)? {
            FoundRegistration::Kept(place, parity) => match self.shared.entries.at(place) {
                Some(entry) => Ok(self.used(place, entry, parity)),
                None => unreachable!("the entry at {place:?} was just filled"),
            },
            FoundRegistration::Single(entry, Pinned { local_key, remote_key, .. }) => {
                Ok(Use { entry, owner: self.name | ALONE, local_key, remote_key })
            }
        }
    }

    /// Holds a use, for an operation that may take a long time because it waits for a peer or a device. A registration
    /// that was removed from the cache is unpinned only when all uses of any registration that began earlier have
    /// ended. A held use delays only its own registration. The call writes to memory that all holders of the same
    /// registration share.
    ///
    /// # Panics
    /// If the use belongs to another lane. The use is not ended then, so its memory stays pinned. See
    /// [`try_hold`](Self::try_hold).
    pub fn hold(&self, used: Use) -> Use {
        self.try_hold(used).unwrap_or_else(|_| not_ours())
    }

    /// Like [`hold`](Self::hold), but returns an error if the use belongs to another lane.
    ///
    /// # Errors
    /// [`WrongLane`], which contains the use, if it belongs to another lane.
    pub fn try_hold(&self, used: Use) -> Result<Use, WrongLane> {
        let parity = match used.owner ^ self.name {
            parity @ 0..=PARITY => Parity::of(parity),
            ALONE | HELD => return Ok(used),
            _ => return Err(WrongLane { used }),
        };
        let number = self.shared.entries.number(EntryPosition::from_u32(used.entry));
        self.shared.entries.hold(number);
        self.counts.hold(parity);
        Ok(Use { entry: number, owner: self.name | HELD, ..used })
    }

    /// Returns whether no use of a kept registration is under way. Registrations for one use are not counted here.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.counts.idle()
    }

    /// Returns whether this process is a fork of the one that opened the cache.
    #[must_use]
    pub fn forked(&self) -> bool {
        self.shared.journal.forked()
    }

    /// Ends a use, after its operation has completed.
    ///
    /// # Panics
    /// If the use belongs to another lane: each lane counts only its own uses. The use is not ended then, so its memory
    /// stays pinned. See [`try_end`](Self::try_end).
    #[inline]
    pub fn end(&self, used: Use) {
        self.end_of(used.entry, used.owner ^ self.name);
    }

    /// Like [`end`](Self::end), but returns an error if the use belongs to another lane.
    ///
    /// # Errors
    /// [`WrongLane`], which contains the use, if it belongs to another lane. That lane can still end it.
    #[inline]
    pub fn try_end(&self, used: Use) -> Result<(), WrongLane> {
        match used.owner ^ self.name {
            by @ (0..=PARITY | ALONE | HELD) => {
                self.end_of(used.entry, by);
                Ok(())
            }
            _ => Err(WrongLane { used }),
        }
    }

    /// Ends the use with this [ticket](Use::into_ticket), which belongs to this lane.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn end_ticket(&self, ticket: u64) {
        self.end_of(ticket as u32, ticket >> 32 & BY);
    }

    /// Returns the use with this ticket, which belongs to this lane.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn of_ticket(&self, ticket: u64) -> Use {
        Use::from_ticket(ticket, self.name)
    }

    #[inline(always)]
    fn end_of(&self, entry: u32, by: u64) {
        if by <= PARITY {
            self.counts.end(Parity::of(by));
        } else {
            self.end_apart(entry, by);
        }
    }

    /// Ends a use that the lane does not count.
    #[inline(never)]
    fn end_apart(&self, entry: u32, by: u64) {
        match by {
            HELD => {
                self.shared.entries.release(entry);
                self.counts.release();
            }
            ALONE => self.shared.end_single(entry),
            _ => not_ours(),
        }
    }
}

/// Panics because a use was passed to a lane that did not return it.
#[cold]
#[inline(never)]
fn not_ours() -> ! {
    panic!("the use belongs to another lane: hold or end it at the lane that returned it")
}

impl<R: Registrar> Drop for Lane<R> {
    fn drop(&mut self) {
        if !self.shared.journal.forked() {
            let mut table = self.shared.table();
            let table = &mut *table;
            table.grace.leave(&self.counts, &mut table.stats.hits);
        }
    }
}

impl<R: Registrar> fmt::Debug for Lane<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("counts", &self.counts).finish_non_exhaustive()
    }
}
