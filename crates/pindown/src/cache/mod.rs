//! The cache: registrations by range and rights.
//!
//! A *hit* announces itself in its lane (`grace`), finds an `entry` where the hash of its page says (`entries`), and compares the
//! monitor's journal with what the cache has taken in: no lock, no shared count, no store to memory that others read or write.
//! Everything else takes the table's lock for bookkeeping and none for pinning and unpinning.
//!
//! A *miss* asks the monitor to watch the pages, then pins them, then keeps the registration, unless a change was
//! reported meanwhile: then it serves this use alone. Memory that cannot be watched, or that does not fit, is
//! registered for one use as well. So a registration that is found is that of the memory which is at its addresses now.

mod barrier;
mod builder;
mod entries;
pub(crate) mod entry;
mod front;
mod grace;
mod handles;
mod hint;
mod lane;
mod merge;
mod miss;
#[cfg(all(test, loom))]
mod model;
mod out;
mod own;
mod stats;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod tree;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
#[cfg(not(loom))]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

pub use builder::{Builder, MOST_REGISTRATIONS, OpenError};
pub use handles::{Handle, Registration, UnknownHandle};
#[cfg(not(loom))]
pub(crate) use lane::{Begun, TICKET_BITS};
pub use lane::{Lane, Use, WrongLane};
pub use own::Waited;
pub use stats::Stats;

use crate::access::Access;
use crate::calls::errno_for;
use crate::journal::Journal;
use crate::monitor::{Monitor, Unavailable, Watched};
use crate::range::{Range, RangeError};
use crate::registrar::{Pinned, Registrar};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use entries::{Entries, Place};
use entry::{Clock, Entry};
use front::Front;
use grace::{Counts, Parity};
use out::Out;
use table::Table;

/// A cache of registrations. Clones are the same cache; the last one unpins everything.
pub struct Cache<R: Registrar>(Arc<Shared<R>>);

/// Why a look-up has no registration to give.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The range is invalid.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// This process is a fork of the one that opened the cache. Registrations are the parent's, and no lock of another
    /// thread's is waited for.
    #[error("the registration cache belongs to the process that this one is a fork of: open a new one")]
    Forked,
    /// The registrar could not pin it, also after idle registrations were dropped.
    #[error("{range} could not be registered: {source}")]
    Registrar {
        /// What was to be pinned.
        range: Range,
        /// The registrar's error.
        source: io::Error,
    },
}

impl LookupError {
    /// The errno that stands for it in C, positive.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Range(_) => libc::EINVAL,
            Self::Forked => libc::ECHILD,
            Self::Registrar { source, .. } => errno_for(source),
        }
    }
}

/// What the clones and lanes of a cache share.
struct Shared<R: Registrar> {
    entries: Entries,
    front: Front,
    journal: Journal,
    epoch: AtomicU64,
    /// The clock by which entries age.
    clock: Clock,
    table: Aligned<Mutex<Table<R::Pin>>>,
    monitor: Box<dyn Monitor>,
    merging: bool,
    /// The better monitors that are not available, with the reasons.
    unavailable: Vec<Unavailable>,
    /// The descriptor that interrupts a wait.
    interrupt: OwnedFd,
    registrar: R,
}

/// At the start of a cache line.
#[repr(align(64))]
struct Aligned<T>(T);

/// A registration that was found or made.
#[derive(Clone, Copy, Debug)]
enum Found {
    /// Where its entry lies, and the parity of the use.
    Kept(Place, Parity),
    Single(u32, Pinned<()>),
}

impl<R: Registrar> Cache<R> {
    /// Returns a builder of a cache that pins with this registrar.
    pub fn builder(registrar: R) -> Builder<R> {
        Builder::new(registrar)
    }

    /// Returns a new lane: one user of the cache, a thread or an endpoint.
    #[must_use]
    pub fn lane(&self) -> Lane<R> {
        Lane::new(Arc::clone(&self.0))
    }

    /// Counts of what the cache has done.
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.0.journal.forked() {
            return Stats::default();
        }
        let table = self.0.table();
        let mut stats = table.stats;
        // A look-up announces itself once, and once more if it goes on with a registration found behind the lock.
        let begun: u64 = table.grace.lanes().map(Counts::begun).sum();
        let slow = 2 * (stats.slow_hits + stats.misses) + stats.single_uses.iter().sum::<u64>() + stats.failures;
        stats.hits = (stats.hits + begun).saturating_sub(slow);
        stats.own = table.handles.len() as u64;
        stats
    }

    /// The name of the monitor that watches.
    #[must_use]
    pub fn monitor(&self) -> &'static str {
        self.0.monitor.name()
    }

    /// Which monitor watches, and why none of the better ones: a line each.
    #[must_use]
    pub fn explanation(&self) -> String {
        let worse = self.0.unavailable.iter().map(|why| format!("\n{why}"));
        std::iter::once(format!("the monitor is {}", self.monitor())).chain(worse).collect()
    }

    /// Whether this process is a fork of the one that opened the cache: then it has nothing to give.
    #[must_use]
    pub fn forked(&self) -> bool {
        self.0.journal.forked()
    }

    /// Drops every registration; those in use are unpinned when their uses end, at one of the next calls.
    pub fn flush(&self) {
        let shared = &*self.0;
        if !shared.journal.forked() {
            shared.table().clear(&shared.entries);
            shared.sweep();
        }
    }

    /// Processes the changes that the monitor has reported, and unpins registrations that are no longer used. Misses do
    /// this too; a program that has stopped using the cache calls it to release the memory.
    pub fn sweep(&self) {
        self.0.sweep();
    }
}

impl<R: Registrar> Clone for Cache<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Registrar> fmt::Debug for Cache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("monitor", &self.monitor()).field("stats", &self.stats()).finish()
    }
}

impl<R: Registrar> Shared<R> {
    fn table(&self) -> MutexGuard<'_, Table<R::Pin>> {
        // A panic under the lock can only come from a failed allocation; the table is whole at every step.
        self.table.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing was taken from the file that the entry's pages belong to.
    #[inline(always)]
    fn same_inode(&self, number: u32) -> bool {
        self.entries.inode(number).is_none_or(|inode| self.journal.inode(inode.slot) == inode.count)
    }

    /// A hit where the page is looked for first, by a caller that has announced itself and then looked where the cache stands
    /// ([`Journal::seen`]).
    #[inline(always)]
    fn hit(&self, range: Range, access: Access, seen: u64) -> Option<(Place, &Entry)> {
        let place = self.entries.home(range.start());
        let entry = self.entries.at(place)?;
        self.holds(place, entry, range, access, seen).then_some((place, entry))
    }

    /// Prefetches the entry at the place where an address is looked for first.
    fn expect(&self, range: Range) {
        if let Some(entry) = self.entries.at(self.entries.home(range.start())) {
            hint::prefetch(entry);
        }
    }

    /// A hit at another place, or under a monitor that hits have to ask first. The caller is that of [`Self::hit`].
    fn hit_aside(&self, range: Range, access: Access, seen: u64) -> Option<(Place, &Entry)> {
        let home = self.entries.home(range.start());
        let serves = |place: &Place| self.entries.at(*place).is_some_and(|entry| entry.serves(range, access));
        // If the place has become free, the look-up goes on to the lock, where a copy is put into it. So a miss looks at one
        // place.
        let near = if self.entries.has_room(home) { None } else { home.near().find(serves) };
        let place = near.or_else(|| self.front.find(range.start(), |place| serves(&place)))?;
        let entry = self.entries.at(place)?;
        if !self.allowed(entry) {
            return None;
        }
        self.holds(place, entry, range, access, seen).then_some((place, entry))
    }

    /// Whether the process still has the rights that the entry was made with, where their loss is not reported.
    fn allowed(&self, entry: &Entry) -> bool {
        !self.monitor.checks_rights() || self.monitor.allowed(entry.range(), entry.rights())
    }

    /// Whether the entry serves this, and no change was reported since `seen` was read.
    #[inline(always)]
    fn holds(&self, place: Place, entry: &Entry, range: Range, access: Access, seen: u64) -> bool {
        let Some(serves) = entry.how_serves(range, access) else { return false };
        if serves.watched && !self.same_inode(self.entries.number(place)) || !self.journal.still(seen) {
            return false;
        }
        entry.touch(serves, self.clock.now());
        true
    }

    /// The parity under which uses begin now.
    #[inline]
    fn parity(&self) -> Parity {
        Parity::of(self.epoch.load(Ordering::Relaxed))
    }

    /// The end of a use that had a registration of its own.
    #[cold]
    fn end_single(&self, number: u32) {
        if self.journal.forked() {
            return;
        }
        let pin = self.table().single_ended(number);
        if let Some(pin) = pin {
            self.unpin(pin);
        }
    }

    fn sweep(&self) {
        if self.journal.forked() {
            return;
        }
        let mut out = Vec::new();
        {
            let mut table = self.table();
            self.settle(&mut table);
            table.sweep(&self.epoch, &self.entries, true, &mut out);
        }
        self.let_go(out);
    }

    /// Releases registrations. Called outside the lock.
    fn let_go(&self, all: impl IntoIterator<Item = Out<R::Pin>>) {
        for Out { pin, inode, locked } in all {
            self.unpin(pin);
            locked.into_iter().for_each(|range| self.monitor.unlock(range));
            inode.into_iter().for_each(|inode| self.monitor.unwatch(inode));
        }
    }

    /// A panic of the registrar ends here: the call that unpins may be a look-up of other memory, and what else it unpins is not to
    /// stay pinned.
    fn unpin(&self, pin: R::Pin) {
        // In a model every panic is a fault that was found.
        #[cfg(loom)]
        self.registrar.unpin(pin);
        #[cfg(not(loom))]
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.registrar.unpin(pin))) {
            std::mem::forget(panic); // Dropping it may panic.
            tracing::error!("a registrar panicked while it unpinned memory: the memory counts as unpinned");
        }
    }

    /// Stops watching a range that was not registered or not kept.
    fn unwatch(&self, watched: Option<Watched>) {
        let Some(Watched { inode, locked }) = watched else { return };
        locked.into_iter().for_each(|range| self.monitor.unlock(range));
        inode.into_iter().for_each(|inode| self.monitor.unwatch(inode.slot));
    }
}

impl<R: Registrar> Drop for Shared<R> {
    fn drop(&mut self) {
        // A child's copies are its parent's: the parent unpins them.
        if self.journal.forked() {
            return;
        }
        let limits = table::Limits { count: 0, bytes: 0 };
        let table = std::mem::replace(&mut *self.table(), Table::new(limits));
        if !table.grace.lanes().all(Counts::idle) {
            tracing::warn!("a registration cache was closed while uses had not ended: its memory stays pinned");
            return;
        }
        self.let_go(table.into_pins(&self.entries));
    }
}
