//! The cache: registrations by range and rights.
//!
//! A *hit* announces itself in its lane (`grace`), finds an `entry` at the place given by the hash of its page
//! (`entries`), and compares the monitor's journal with the position up to which the cache has processed it. It takes
//! no lock and uses no shared counter. It writes only its lane's own counts and, if the cache's clock has advanced, the
//! time of the entry's last use. Misses and removals take the table's lock for bookkeeping, and no lock for pinning and
//! unpinning.
//!
//! A *miss* makes the monitor watch the pages, then pins them, then keeps the registration. If a change was reported in
//! the meantime, the registration serves only this use. Memory that cannot be watched, or that exceeds the limits of
//! the cache, is also registered for one use. So a registration that is found always covers the memory that is mapped
//! at its addresses now.

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
mod own;
mod pending_unpin;
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
use crate::monitor::{MonitorBackend, Unavailable, Watched};
use crate::range::{Range, RangeError};
use crate::registrar::{Pinned, Registrar};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use entries::{Entries, EntryPosition};
use entry::{Clock, Entry};
use front::Front;
use grace::{LaneUses, Parity};
use pending_unpin::PendingUnpin;
use table::Table;

/// A cache of registrations. Clones share one cache; dropping the last one unpins all registrations.
pub struct Cache<R: Registrar>(Arc<Shared<R>>);

/// The reasons why a look-up returns no registration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The range is invalid.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// This process is a fork of the one that opened the cache. The registrations belong to the parent, and a lock may
    /// be held by a thread that does not exist in this process.
    #[error("the registration cache belongs to the parent process of this fork: open a new one")]
    Forked,
    /// The registrar could not pin the range, even after idle registrations were dropped.
    #[error("cannot register {range}: {source}")]
    Registrar {
        /// The range that was to be pinned.
        range: Range,
        /// The registrar's error.
        source: io::Error,
    },
}

impl LookupError {
    /// Returns the positive errno that corresponds to the error in C.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Range(_) => libc::EINVAL,
            Self::Forked => libc::ECHILD,
            Self::Registrar { source, .. } => errno_for(source),
        }
    }
}

/// The state that the clones and lanes of a cache share.
struct Shared<R: Registrar> {
    entries: Entries,
    front: Front,
    journal: Journal,
    epoch: AtomicU64,
    /// The clock for the ages of entries.
    clock: Clock,
    table: Aligned<Mutex<Table<R::Pin>>>,
    monitor: Box<dyn MonitorBackend>,
    merging: bool,
    /// The better monitors that are not available, and the reasons.
    unavailable: Vec<Unavailable>,
    /// The eventfd that interrupts a wait.
    interrupt: OwnedFd,
    registrar: R,
}

/// Places the value at the start of a cache line.
#[repr(align(64))]
struct Aligned<T>(T);

/// A registration that was found or made.
#[derive(Clone, Copy, Debug)]
enum FoundRegistration {
    /// A kept registration: the place of its entry, and the parity of the use.
    Kept(EntryPosition, Parity),
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

    /// Returns the statistics of the cache.
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.0.journal.forked() {
            return Stats::default();
        }
        let table = self.0.table();
        let mut stats = table.stats;
        // A look-up announces itself once, and once more if it uses a registration that was found or kept under the
        // lock.
        let begun: u64 = table.grace.lanes().map(LaneUses::begun).sum();
        let slow = 2 * (stats.slow_hits + stats.misses) + stats.single_uses.iter().sum::<u64>() + stats.failures;
        stats.hits = (stats.hits + begun).saturating_sub(slow);
        stats.own = table.handles.len() as u64;
        stats
    }

    /// Returns the name of the cache's monitor.
    #[must_use]
    pub fn monitor(&self) -> &'static str {
        self.0.monitor.name()
    }

    /// Returns the name of the monitor and the reasons why no better one is used, one line each.
    #[must_use]
    pub fn explanation(&self) -> String {
        let worse = self.0.unavailable.iter().map(|why| format!("\n{why}"));
        std::iter::once(format!("the monitor is {}", self.monitor())).chain(worse).collect()
    }

    /// Returns whether this process is a fork of the one that opened the cache. The cache then returns no registration.
    #[must_use]
    pub fn forked(&self) -> bool {
        self.0.journal.forked()
    }

    /// Drops all kept registrations, but not those made by [`Self::register`]. Registrations in use are unpinned by a
    /// later call, after their uses have ended.
    pub fn flush(&self) {
        let shared = &*self.0;
        if !shared.journal.forked() {
            shared.table().clear(&shared.entries);
            shared.sweep();
        }
    }

    /// Processes the changes that the monitor has reported, and unpins registrations that are no longer used. Misses
    /// also do this. A program that has stopped using the cache calls this function to release the memory.
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
        // A panic under the lock can only come from a failed allocation; the table is consistent at every step.
        self.table.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether no pages were removed from the file that the entry's pages belong to.
    #[inline(always)]
    fn same_inode(&self, number: u32) -> bool {
        self.entries.inode(number).is_none_or(|inode| self.journal.inode(inode.slot) == inode.count)
    }

    /// A hit at the first place for its page. The caller has announced itself and has then read the cache's position
    /// ([`Journal::seen`]).
    #[inline(always)]
    fn hit(&self, range: Range, access: Access, seen: u64) -> Option<(EntryPosition, &Entry)> {
        let place = self.entries.home(range.start());
        let entry = self.entries.at(place)?;
        self.holds(place, entry, range, access, seen).then_some((place, entry))
    }

    /// Prefetches the entry at the first place for an address.
    fn expect(&self, range: Range) {
        if let Some(entry) = self.entries.at(self.entries.home(range.start())) {
            hint::prefetch(entry);
        }
    }

    /// A hit at another place, or under a monitor that requires a system call first. The caller must meet the
    /// conditions of [`Self::hit`].
    fn hit_slowly(&self, range: Range, access: Access, seen: u64) -> Option<(EntryPosition, &Entry)> {
        let home = self.entries.home(range.start());
        let serves = |place: &EntryPosition| self.entries.at(*place).is_some_and(|entry| entry.serves(range, access));
        // If the first place is free, the look-up continues under the lock, where a copy is put there. So a miss
        // usually reads only one place.
        let near = if self.entries.has_room(home) { None } else { home.near().find(serves) };
        let place = near.or_else(|| self.front.find(range.start(), |place| serves(&place)))?;
        let entry = self.entries.at(place)?;
        if !self.allowed(entry) {
            return None;
        }
        self.holds(place, entry, range, access, seen).then_some((place, entry))
    }

    /// Returns whether the process still has the rights that the entry was made with. Used with monitors that do not
    /// report the removal of a right.
    fn allowed(&self, entry: &Entry) -> bool {
        !self.monitor.checks_rights() || self.monitor.allowed(entry.range(), entry.rights())
    }

    /// Returns whether the entry serves the look-up and no change was reported since `seen` was read.
    #[inline(always)]
    fn holds(&self, place: EntryPosition, entry: &Entry, range: Range, access: Access, seen: u64) -> bool {
        let Some(serves) = entry.how_serves(range, access) else { return false };
        if serves.watched && !self.same_inode(self.entries.number(place)) || !self.journal.still(seen) {
            return false;
        }
        entry.touch(serves, self.clock.now());
        true
    }

    /// Returns the parity of uses that begin now.
    #[inline]
    fn parity(&self) -> Parity {
        Parity::of(self.epoch.load(Ordering::Relaxed))
    }

    /// Ends a use that had its own registration.
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
    fn let_go(&self, all: impl IntoIterator<Item = PendingUnpin<R::Pin>>) {
        for PendingUnpin { pin, inode, locked } in all {
            self.unpin(pin);
            locked.into_iter().for_each(|range| self.monitor.unlock(range));
            inode.into_iter().for_each(|inode| self.monitor.unwatch(inode));
        }
    }

    /// Unpins a registration. A panic of the registrar is not propagated: the calling thread may be looking up other
    /// memory, and the other registrations that it unpins must not stay pinned.
    fn unpin(&self, pin: R::Pin) {
        // In a model every panic is an error.
        #[cfg(loom)]
        self.registrar.unpin(pin);
        #[cfg(not(loom))]
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.registrar.unpin(pin))) {
            std::mem::forget(panic); // Dropping it may panic.
            tracing::error!("a registrar panicked in unpin: the memory is treated as unpinned");
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
        // The child's copies belong to the parent, which unpins them.
        if self.journal.forked() {
            return;
        }
        let limits = table::CacheLimits { count: 0, bytes: 0 };
        let table = std::mem::replace(&mut *self.table(), Table::new(limits));
        if !table.grace.lanes().all(LaneUses::idle) {
            tracing::warn!("a registration cache was closed with uses in progress: its memory remains pinned");
            return;
        }
        self.let_go(table.into_pins(&self.entries));
    }
}
