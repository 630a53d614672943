//! Cache misses: looks a registration up under the lock, or makes a new one.

use std::io;

use super::entry::{Age, Entry};
use super::grace::LaneUses;
use super::pending_unpin::PendingUnpin;
use super::table::Table;
use super::{FoundRegistration, LookupError, Shared};
use crate::access::Access;
use crate::journal::Drained;
use crate::monitor::{Refusal, Watched};
use crate::range::Range;
use crate::registrar::{Pinned, Registrar};

impl<R: Registrar> Shared<R> {
    /// Finds a registration under the lock, or makes one, after the look-up without the lock has found none. The
    /// caller's announcement must have ended: otherwise this function could wait for registrations that wait for the
    /// caller's own use to end. If a kept registration is returned, the caller is announced again, under the lock that
    /// is needed to remove entries.
    #[cold]
    pub(super) fn miss(&self, range: Range, access: Access, lane: &LaneUses) -> Result<FoundRegistration, LookupError> {
        if self.journal.forked() {
            return Err(LookupError::Forked);
        }
        let pages = range.pages();
        let mut out = Vec::new();
        let (ticket, kept, wide) = {
            let mut table = self.table();
            table.grace.fenced(lane);
            let settled = self.settle(&mut table);
            if settled && let Some(number) = self.find(&mut table, range, access) {
                table.stats.slow_hits += 1;
                let found = self.found(&mut table, number, range, lane, &mut out);
                drop(table);
                self.let_go(out);
                return Ok(found);
            }
            let kept = table.can_keep(pages);
            let merging = self.merging && settled && kept.is_ok();
            let wide = if merging { table.widened(pages, access, &self.entries) } else { pages };
            let (kept, wide) = match kept {
                Ok(()) if table.make_room(wide.len(), &self.entries) => (kept, wide),
                Ok(()) if table.fits(pages.len()) => (kept, pages),
                Ok(()) => (Err(Refusal::InUse), pages),
                Err(_) => (kept, pages),
            };
            let tight = table.is_tight(wide.len());
            table.sweep(&self.epoch, &self.entries, tight, &mut out);
            // A change that is reported from now on prevents the registration from being kept. A change that began
            // before and is not reported yet marks the report page as busy.
            let ticket = table.begin(wide);
            // A monitor that has ended refuses the range itself, and releases the threads that wait for it.
            let changing = self.journal.busy() && !self.journal.has_ended();
            (ticket, if changing { Err(Refusal::Changed) } else { kept }, wide)
        };
        let mut unfinished = PendingRegistration { shared: self, ticket, is_look_up: true, watched: None };
        if !out.is_empty() {
            self.let_go(out.drain(..));
        }
        let merged = if wide == pages { None } else { self.register_merged(kept, wide, access, &mut unfinished) };
        let registered = if merged.is_some() { wide } else { pages };
        let (watched, pinned) = merged.unwrap_or_else(|| {
            let watched = kept.and_then(|()| unfinished.watch(pages, access));
            (watched, self.pin(pages, access))
        });
        std::mem::forget(unfinished);
        let (found, unused) = {
            let mut table = self.table();
            let settled = self.settle(&mut table);
            let undisturbed = table.end(ticket);
            if watched.as_ref().is_err_and(|reason| *reason == Refusal::MonitorEnded) {
                table.clear(&self.entries);
            }
            match pinned {
                Ok(pinned) => {
                    let still = |watched: &Watched| settled && undisturbed && self.is_still(watched);
                    match watched {
                        Ok(watched) if still(&watched) => {
                            self.keep(&mut table, (range, registered), access, (pinned, watched), lane, &mut out)
                        }
                        Ok(watched) => (Ok(Self::single(&mut table, pinned, Refusal::Changed)), Some(watched)),
                        Err(reason) => (Ok(Self::single(&mut table, pinned, reason)), None),
                    }
                }
                Err(source) => {
                    table.stats.failures += 1;
                    (Err(LookupError::Registrar { range: pages, source }), watched.ok())
                }
            }
        };
        self.let_go(out);
        self.unwatch(unused);
        found
    }

    /// Registers a merged range, if it can be watched, and can be pinned without dropping registrations at the
    /// registrar's limit.
    #[expect(clippy::type_complexity, reason = "the results of the two calls")]
    fn register_merged(
        &self,
        kept: Result<(), Refusal>,
        wide: Range,
        access: Access,
        unfinished: &mut PendingRegistration<'_, R>,
    ) -> Option<(Result<Watched, Refusal>, io::Result<Pinned<R::Pin>>)> {
        kept.ok()?;
        let watched = unfinished.watch(wide, access).ok()?;
        match self.registrar.pin(wide, access) {
            Ok(pinned) => Some((Ok(watched), Ok(pinned))),
            Err(_) => {
                unfinished.watched = None;
                self.unwatch(Some(watched));
                None
            }
        }
    }

    /// Keeps a registration, if an entry is free for it. Otherwise also returns the `Watched` that is no longer needed.
    fn keep(
        &self,
        table: &mut Table<R::Pin>,
        (range, registered): (Range, Range),
        access: Access,
        (pinned, watched): (Pinned<R::Pin>, Watched),
        lane: &LaneUses,
        out: &mut Vec<PendingUnpin<R::Pin>>,
    ) -> (Result<FoundRegistration, LookupError>, Option<Watched>) {
        match table.keep(registered, access, pinned, watched.inode, &self.entries) {
            Ok(number) => {
                self.clock.set(Age::of(table.time()));
                if self.merging {
                    table.absorb(number, &self.entries);
                }
                (Ok(self.found(table, number, range, lane, out)), None)
            }
            Err(pinned) => (Ok(Self::single(table, pinned, Refusal::InUse)), Some(watched)),
        }
    }

    /// Records a registration for one use.
    fn single(table: &mut Table<R::Pin>, pinned: Pinned<R::Pin>, reason: Refusal) -> FoundRegistration {
        let keys = Pinned { pin: (), local_key: pinned.local_key, remote_key: pinned.remote_key };
        FoundRegistration::Single(table.single(pinned.pin, reason), keys)
    }

    /// Begins a use of a kept entry, and makes a copy of the entry for this page. Called under the table's lock.
    /// Registrations that this call releases are added to `out`.
    fn found(
        &self,
        table: &mut Table<R::Pin>,
        number: u32,
        range: Range,
        lane: &LaneUses,
        out: &mut Vec<PendingUnpin<R::Pin>>,
    ) -> FoundRegistration {
        let copy = table.copy(number, range.start(), &self.epoch, &self.entries, out);
        let place = copy.unwrap_or_else(|| {
            let place = self.entries.place(number);
            self.front.put(range.start(), place, |old| !self.entries.at(old).is_some_and(Entry::is_live));
            place
        });
        let parity = self.parity();
        lane.begin(parity);
        FoundRegistration::Kept(place, parity)
    }

    /// Finds a kept entry that serves the range, with an unchanged file and with rights that the process still has.
    /// Entries with rights that the process no longer has are dropped.
    fn find(&self, table: &mut Table<R::Pin>, range: Range, access: Access) -> Option<u32> {
        loop {
            let same = |number| self.same_inode(number);
            let number = table.find(range, access, &self.entries, same)?;
            if self.entries.get(number).is_some_and(|entry| self.allowed(entry)) {
                return Some(number);
            }
            table.invalidate_one(number, &self.entries);
        }
    }

    /// Returns whether no change is under way in the monitor, and the range's file is unchanged.
    pub(super) fn is_still(&self, watched: &Watched) -> bool {
        !self.journal.busy() && watched.inode.is_none_or(|inode| self.journal.inode(inode.slot) == inode.count)
    }

    /// Processes all reported changes. Returns false if the monitor does not finish its report soon ([`SETTLING`]).
    #[inline]
    pub(super) fn settle(&self, table: &mut Table<R::Pin>) -> bool {
        table.drain(&self.journal, &self.entries) == Drained::Settled || self.settle_later(table)
    }

    #[cold]
    #[inline(never)]
    fn settle_later(&self, table: &mut Table<R::Pin>) -> bool {
        for look in 1..SETTLING {
            // The monitor's thread may be waiting for this processor.
            if look <= SETTLING / 2 {
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
            if table.drain(&self.journal, &self.entries) == Drained::Settled {
                return true;
            }
        }
        false
    }

    /// Pins the pages. If the registrar reports a limit, drops idle registrations and tries again.
    pub(super) fn pin(&self, pages: Range, access: Access) -> io::Result<Pinned<R::Pin>> {
        let mut checks_left = LIMIT_CHECKS;
        loop {
            let error = match self.registrar.pin(pages, access) {
                Ok(pinned) => return Ok(pinned),
                Err(error) if is_a_limit(&error) => error,
                Err(error) => return Err(error),
            };
            let mut out = Vec::new();
            let waiting = {
                let mut table = self.table();
                // First unpin the registrations that were already removed from the cache.
                table.sweep(&self.epoch, &self.entries, true, &mut out);
                if out.is_empty() {
                    // Drop an eighth at a time: one registration may not be enough, and dropping all would empty the
                    // cache.
                    for _ in 0..(table.stats.entries / 8).max(1) {
                        table.drop_oldest(&self.entries);
                    }
                    table.sweep(&self.epoch, &self.entries, true, &mut out);
                }
                table.waiting().0 > 0
            };
            if out.is_empty() {
                // Short uses of other threads end soon; this loop does not wait for held uses.
                if !waiting || checks_left == 0 {
                    return Err(error);
                }
                checks_left -= 1;
                std::thread::yield_now();
            }
            self.let_go(out);
        }
    }
}

/// A registration in progress. If the registrar or an application's monitor callback panics, this value is dropped,
/// which ends the registration without a result.
pub(super) struct PendingRegistration<'a, R: Registrar> {
    pub(super) shared: &'a Shared<R>,
    pub(super) ticket: u64,
    /// Whether dropping this value counts as a failed look-up.
    pub(super) is_look_up: bool,
    pub(super) watched: Option<Watched>,
}

impl<R: Registrar> PendingRegistration<'_, R> {
    /// Makes the monitor watch the range for the registration.
    pub(super) fn watch(&mut self, range: Range, access: Access) -> Result<Watched, Refusal> {
        let watched = self.shared.monitor.watch(range, access);
        self.watched = watched.ok();
        watched
    }
}

impl<R: Registrar> Drop for PendingRegistration<'_, R> {
    fn drop(&mut self) {
        {
            let mut table = self.shared.table();
            table.end(self.ticket);
            table.stats.failures += u64::from(self.is_look_up);
        }
        self.shared.unwatch(self.watched);
    }
}

/// The number of times that the journal is read during a monitor's report, before a registration is made for one use.
const SETTLING: u32 = 400;

/// The number of times that the cache checks at a limit whether uses have ended, before it returns the limit's error to
/// the caller.
const LIMIT_CHECKS: u32 = 100;

/// Returns whether the error reports a limit at which dropping idle registrations may help.
fn is_a_limit(error: &io::Error) -> bool {
    let limits = [libc::ENOMEM, libc::EAGAIN, libc::ENOSPC, libc::EDQUOT];
    error.raw_os_error().is_some_and(|code| limits.contains(&code)) || error.kind() == io::ErrorKind::OutOfMemory
}
