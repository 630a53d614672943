//! A lane: one user of the cache, and the uses it has under way.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::entries::Place;
use super::entry::Entry;
use super::grace::{Counts, Parity};
use super::{Found, LookupError, Shared};
use crate::access::Access;
use crate::range::Range;
use crate::registrar::{Pinned, Registrar};

/// One user of a cache: a thread, or an endpoint that one thread at a time drives. It may move to another thread.
///
/// A lane that is dropped while uses are under way holds up the unpinning of whatever leaves the cache, for ever: end
/// every [`Use`]. Uses that last are to be [held](Self::hold).
pub struct Lane<R: Registrar> {
    shared: Arc<Shared<R>>,
    counts: Arc<Counts>,
    /// Counted by plain stores: not for two threads at once.
    alone: PhantomData<Cell<()>>,
}

/// A look-up that is not over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    /// Under which it was announced.
    parity: Parity,
    /// Where the cache stood then, which need not be asked again.
    seen: u64,
}

/// Bits of a use's ticket.
#[cfg(not(loom))]
pub(crate) const TICKET_BITS: u32 = 35;

/// What keeps a use's pages pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Its lane, which counts it under this parity.
    Lane(Parity),
    /// Its entry.
    Entry,
    /// Itself: the registration was made for it alone.
    Alone,
}

/// A registration while an operation uses it. The pages stay pinned until [`Lane::end`], whatever the process does to its
/// address space meanwhile.
#[must_use = "a use that is never ended keeps memory pinned"]
#[derive(Debug)]
pub struct Use {
    /// The place where it was found; the number of its entry, if it is held; or its number among those for one use.
    entry: u32,
    by: By,
    local_key: u64,
    remote_key: u64,
}

impl Use {
    #[inline(always)]
    fn of(place: Place, entry: &Entry, parity: Parity) -> Self {
        let (local_key, remote_key) = entry.keys();
        Self { entry: place.to_u32(), by: By::Lane(parity), local_key, remote_key }
    }

    /// What work requests of this process name the memory by.
    #[inline]
    #[must_use]
    pub fn local_key(&self) -> u64 {
        self.local_key
    }

    /// What peers name it by.
    #[inline]
    #[must_use]
    pub fn remote_key(&self) -> u64 {
        self.remote_key
    }

    /// Whether the registration was made for this use alone.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.by == By::Alone
    }

    /// Whether it is [held](Lane::hold).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.by == By::Entry
    }

    /// What ends the use, as a number of [`TICKET_BITS`] bits, for the C interface.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn into_ticket(self) -> u64 {
        let by = match self.by {
            By::Lane(parity) => parity.index() as u64,
            By::Alone => 2,
            By::Entry => 4,
        };
        u64::from(self.entry) | by << 32
    }

    /// The use that such a number ends; its keys are not known any more.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn from_ticket(ticket: u64) -> Self {
        let by = match ticket >> 32 & 6 {
            0 => By::Lane(Parity::of(ticket >> 32)),
            2 => By::Alone,
            _ => By::Entry,
        };
        Self { entry: ticket as u32, by, local_key: 0, remote_key: 0 }
    }
}

impl<R: Registrar> Lane<R> {
    pub(super) fn new(shared: Arc<Shared<R>>) -> Self {
        // In a forked child a thread that is not there may hold the lock; a lane gives nothing there, so no grace period asks for it.
        let counts = if shared.journal.forked() { Arc::new(Counts::default()) } else { shared.table().grace.join() };
        Self { shared, counts, alone: PhantomData }
    }

    /// A registration of these bytes with at least these rights: one that the cache has, or a new one of their pages.
    ///
    /// End it by [`Self::end`] when the operation that uses it has completed, and [hold](Self::hold) it if that may take long:
    /// until it ends, nothing is unpinned that left the cache since it began.
    ///
    /// # Errors
    /// [`LookupError::Registrar`] with what the registrar said; nothing remains pinned then.
    #[inline(always)]
    pub fn get(&self, range: Range, access: Access) -> Result<Use, LookupError> {
        match self.hit(range, access) {
            Ok(used) => Ok(used),
            Err(begun) => self.get_slowly(range, access, begun),
        }
    }

    /// The straight path of [`Self::get`]; else what was begun, for [`Self::get_slowly`].
    #[inline(always)]
    pub(crate) fn hit(&self, range: Range, access: Access) -> Result<Use, Begun> {
        let parity = self.shared.parity();
        self.counts.begin(parity);
        let seen = self.shared.journal.seen();
        if seen == 0 {
            return Err(Begun { parity, seen }); // There is more to ask, before the entry is waited for.
        }
        match self.shared.hit(range, access, seen) {
            Some((place, entry)) => Ok(Use::of(place, entry, parity)),
            None => Err(Begun { parity, seen }),
        }
    }

    /// Apart, so that the straight path has the processor's registers to itself.
    #[cold]
    #[inline(never)]
    pub(crate) fn get_slowly(&self, range: Range, access: Access, begun: Begun) -> Result<Use, LookupError> {
        let Begun { parity, seen } = begun;
        if seen == 0 {
            self.shared.expect(range); // While the kernel is asked.
        }
        let seen = self.shared.journal.seen_aside().unwrap_or(seen);
        if let Some((place, entry)) = self.shared.hit_aside(range, access, seen) {
            return Ok(Use::of(place, entry, parity));
        }
        self.counts.end(parity);
        match self.shared.miss(range, access, &self.counts)? {
            Found::Kept(place, parity) => match self.shared.entries.at(place) {
                Some(entry) => Ok(Use::of(place, entry, parity)),
                None => unreachable!("the entry at {place:?} was just filled"),
            },
            Found::Single(entry, Pinned { local_key, remote_key, .. }) => {
                Ok(Use { entry, by: By::Alone, local_key, remote_key })
            }
        }
    }

    /// The same use, for an operation that may last: one that waits for a peer, or for a device. What has left the cache is
    /// unpinned when the uses that began earlier have ended, whatever they use; a held use holds up nothing but its own registration
    /// (RCACHE-010, RCACHE-023). Costs a write to memory that those share who hold the same registration.
    pub fn hold(&self, used: Use) -> Use {
        let By::Lane(parity) = used.by else { return used };
        let number = self.shared.entries.number(Place::from_u32(used.entry));
        self.shared.entries.hold(number);
        self.counts.hold(parity);
        Use { entry: number, by: By::Entry, ..used }
    }

    /// Whether no use of a kept registration is under way. Registrations for one use are not counted here.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.counts.idle()
    }

    /// Whether this process is a fork of the one that opened the cache.
    #[must_use]
    pub fn forked(&self) -> bool {
        self.shared.journal.forked()
    }

    /// The operation has completed. A use belongs to the lane that gave it.
    #[inline]
    pub fn end(&self, used: Use) {
        match used.by {
            By::Lane(parity) => self.counts.end(parity),
            By::Entry => {
                self.shared.entries.release(used.entry);
                self.counts.release();
            }
            By::Alone => self.shared.end_single(used.entry),
        }
    }
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
