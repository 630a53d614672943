//! The state that a cache's lock protects: the ordered table of registrations, the order of eviction, and the
//! registrations that wait to be unpinned.
//!
//! Pins are passed in and out by value. Pinning and unpinning are done by the callers, without the lock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

use super::entries::{Entries, EntryPosition};
use super::entry::{Age, Entry, HIGHEST_END};
use super::grace::Grace;
use super::handles::Handles;
use super::pending_unpin::PendingUnpin;
use super::stats::Stats;
use super::tree::Tree;
use crate::access::Access;
use crate::journal::{ChangedAddresses, Drained, Journal};
use crate::monitor::{Refusal, WatchedInode};
use crate::range::Range;
use crate::registrar::Pinned;
use crate::sync::AtomicU64;

/// The state of an entry.
#[derive(Debug)]
enum EntryState<P> {
    Free,
    /// The registration is in the tree, and look-ups find it while its entry is live.
    Kept(P),
    /// The registration was removed, and is unpinned when its last use has ended.
    Retired(P),
}

/// A range that a thread is registering now.
#[derive(Debug)]
struct Pending {
    ticket: u64,
    range: Range,
    spoiled: bool,
}

/// The limits of a cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheLimits {
    pub(super) count: u32,
    pub(super) bytes: u64,
}

/// The table. The fields that every miss reads come first, in few cache lines, because a device driver that has just
/// registered memory has evicted other data from the processor's first-level cache.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Table<P> {
    limits: CacheLimits,
    /// log2 of the number of registrations that are kept before the [time](Self::time) advances.
    aging: u32,
    next_ticket: u64,
    held_bytes: u64,
    /// Invalid entries that are still in the tree. The next sweep removes them.
    dead: Vec<u32>,
    tree: Tree,
    pending: Vec<Pending>,
    /// The entries by the time of their last use, as known when each was last checked, the oldest first. Removed
    /// entries are skipped when they are reached.
    ages: BinaryHeap<Reverse<(u64, u32)>>,
    slots: Vec<EntryState<P>>,
    free: Vec<u32>,
    /// Retired entries that have passed their grace period and are still held.
    held: Vec<u32>,
    pub(super) stats: Stats,
    pub(super) grace: Grace,
    /// Registrations for one use each, which are unpinned when the use ends.
    singles: Slab<P>,
    /// The application's own registrations.
    pub(super) handles: Handles<P>,
}

impl<P> Table<P> {
    pub(super) fn new(limits: CacheLimits) -> Self {
        Self {
            aging: (limits.count >> TIMES).max(1).ilog2(),
            slots: Vec::new(),
            free: Vec::new(),
            singles: Slab::new(),
            tree: Tree::new(),
            grace: Grace::new(),
            held: Vec::new(),
            held_bytes: 0,
            ages: BinaryHeap::new(),
            pending: Vec::new(),
            next_ticket: 0,
            dead: Vec::new(),
            limits,
            stats: Stats::default(),
            handles: Handles::new(),
        }
    }

    /// Processes the changes that the monitor has reported.
    #[inline]
    pub(super) fn drain(&mut self, journal: &Journal, entries: &Entries) -> Drained {
        journal.drain(|change| self.invalidate(change, entries))
    }

    /// Invalidates every registration that overlaps the change. Allocates no memory: space for dead entries was
    /// reserved when they were kept.
    fn invalidate(&mut self, change: ChangedAddresses, entries: &Entries) {
        let range = match change {
            ChangedAddresses::Of(range) => range,
            ChangedAddresses::Everything => Range::ALL,
        };
        self.stats.flushes += u64::from(change == ChangedAddresses::Everything);
        self.kill(range, entries);
        self.handles.invalidate(range);
        for pending in &mut self.pending {
            pending.spoiled |= pending.range.overlaps(range);
        }
    }

    /// Invalidates the entries that overlap the range.
    fn kill(&mut self, range: Range, entries: &Entries) {
        let Self { tree, dead, stats, .. } = self;
        tree.overlapping(range, &mut |number| {
            if entries.kill(number) {
                dead.push(number);
                stats.invalidations += 1;
            }
            true
        });
    }

    pub(super) fn limits(&self) -> CacheLimits {
        self.limits
    }

    /// Calls `with` for each kept entry that overlaps the range or adjoins it.
    pub(super) fn each_near(&self, range: Range, with: &mut impl FnMut(u32)) {
        let near = Range::between(range.start().saturating_sub(1), range.end().saturating_add(1)).unwrap_or(range);
        self.tree.overlapping(near, &mut |number| {
            with(number);
            true
        });
    }

    /// Invalidates an entry that is replaced by another.
    pub(super) fn replace(&mut self, number: u32, entries: &Entries) {
        if entries.kill(number) {
            self.dead.push(number);
            self.stats.merged += 1;
        }
    }

    /// Invalidates an entry that must not be used again.
    pub(super) fn invalidate_one(&mut self, number: u32, entries: &Entries) {
        if entries.kill(number) {
            self.dead.push(number);
            self.stats.invalidations += 1;
        }
    }

    /// Finds a kept entry that serves the range with these rights.
    pub(super) fn find(
        &self,
        range: Range,
        access: Access,
        entries: &Entries,
        fits: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let serves = |number| entries.get(number).is_some_and(|entry| entry.serves(range, access)) && fits(number);
        self.tree.containing(range, serves)
    }

    /// Begins a registration. A change of the range that is reported from now on prevents the registration from being
    /// kept.
    pub(super) fn begin(&mut self, range: Range) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.pending.push(Pending { ticket, range, spoiled: false });
        ticket
    }

    /// Ends a registration that has begun. Returns whether no reported change overlapped it in the meantime.
    pub(super) fn end(&mut self, ticket: u64) -> bool {
        let place = self.pending.iter().position(|pending| pending.ticket == ticket);
        place.is_some_and(|place| !self.pending.swap_remove(place).spoiled)
    }

    /// Returns the number of registrations that have begun.
    #[cfg(all(test, not(loom)))]
    pub(super) fn registering(&self) -> usize {
        self.pending.len()
    }

    /// Returns an error if a registration of this range would not be kept even if the cache were empty.
    pub(super) fn can_keep(&self, range: Range) -> Result<(), Refusal> {
        if self.limits.count == 0 || self.grace.waits_for_fence() {
            Err(Refusal::NotCaching)
        } else if range.len() > self.limits.bytes || range.end() > HIGHEST_END {
            // An entry cannot represent such an end, and the kernel maps nothing there.
            Err(Refusal::TooLarge)
        } else {
            Ok(())
        }
    }

    /// Keeps a registration. Returns the number of its entry. Returns the registration itself if no entry is free
    /// because too many are still in use.
    pub(super) fn keep(
        &mut self,
        range: Range,
        access: Access,
        pinned: Pinned<P>,
        inode: Option<WatchedInode>,
        entries: &Entries,
    ) -> Result<u32, Pinned<P>> {
        let Some(number) = self.slot(entries) else { return Err(pinned) };
        entries.fill(number, range, access, &pinned, inode);
        let Some(entry) = entries.get(number) else { return Err(pinned) };
        self.slots[number as usize] = EntryState::Kept(pinned.pin);
        self.tree.insert(number, range);
        self.dead.reserve(self.stats.entries as usize + 1);
        if self.ages.len() > 2 * self.stats.entries as usize + 64 {
            self.forget_ended(entries);
        }
        self.stats.misses += 1;
        self.ages.push(Reverse((self.time(), number)));
        self.stats.entries += 1;
        self.stats.bytes += range.len();
        entry.publish(Age::of(self.time()));
        Ok(number)
    }

    /// The time for the ages of entries: the number of registrations kept so far. In large caches it advances only once
    /// in several registrations, so that the time advances by about a thousand while the cache is filled.
    pub(super) fn time(&self) -> u64 {
        self.stats.misses >> self.aging
    }

    /// Adds a registration for one use.
    pub(super) fn single(&mut self, pin: P, reason: Refusal) -> u32 {
        self.stats.single_uses[reason.index()] += 1;
        self.singles.insert(pin) as u32
    }

    /// Ends a registration for one use. Returns the pin to be unpinned.
    pub(super) fn single_ended(&mut self, number: u32) -> Option<P> {
        self.singles.try_remove(number as usize)
    }

    /// Returns the number of a free entry.
    fn slot(&mut self, entries: &Entries) -> Option<u32> {
        self.free.pop().or_else(|| {
            let next = self.slots.len();
            (next < entries.len()).then(|| {
                self.slots.push(EntryState::Free);
                next as u32
            })
        })
    }

    /// Removes dead entries from the tree. If the waiting registrations have reached the limits of a batch, or if
    /// `urgent`, also checks whether their uses have ended. Registrations to be unpinned are added to `out`.
    #[inline]
    pub(super) fn sweep(&mut self, epoch: &AtomicU64, entries: &Entries, urgent: bool, out: &mut Vec<PendingUnpin<P>>) {
        if urgent || !self.dead.is_empty() || entries.were_released() || self.has_waited() {
            self.sweep_now(epoch, entries, urgent, out);
        }
    }

    #[cold]
    #[inline(never)]
    fn sweep_now(&mut self, epoch: &AtomicU64, entries: &Entries, urgent: bool, out: &mut Vec<PendingUnpin<P>>) {
        while let Some(number) = self.dead.pop() {
            self.take_out(number, entries);
        }
        if entries.take_released() {
            self.free_released(entries, out);
        }
        if !urgent && !self.has_waited() {
            return;
        }
        let Self { grace, slots, free, stats, held, held_bytes, .. } = self;
        grace.pass(epoch, |number| {
            if number & COPY != 0 {
                entries.vacate_copy(EntryPosition::from_u32(number & !COPY));
            } else if entries.is_held(number) {
                held.push(number);
                *held_bytes += entries.len_of(number);
            } else {
                set_free(number, slots, free, stats, entries, out);
            }
        });
    }

    /// Returns whether the waiting registrations should not wait longer. The cost of a fence of all threads is paid for
    /// a batch, not for each entry.
    fn has_waited(&self) -> bool {
        let (count, bytes) = self.waiting();
        self.grace.waits_for_fence() || count >= BATCH || bytes >= BATCH_BYTES.min(self.limits.bytes / 8)
    }

    /// Makes a copy of entry `number` for this page, and returns the place of the copy, if there is room. Copies of
    /// other entries that serve only a part of its look-ups are dropped, and freed at once if no short use is under
    /// way: a program that registers longer and longer ranges from one address mostly looks up the last one.
    pub(super) fn copy(
        &mut self,
        number: u32,
        address: u64,
        epoch: &AtomicU64,
        entries: &Entries,
        out: &mut Vec<PendingUnpin<P>>,
    ) -> Option<EntryPosition> {
        if entries.is_taken(address) {
            self.drop_outdone(number, address, epoch, entries, out);
        }
        entries.copy(number, address, Age::of(self.time()))
    }

    #[cold]
    #[inline(never)]
    fn drop_outdone(
        &mut self,
        number: u32,
        address: u64,
        epoch: &AtomicU64,
        entries: &Entries,
        out: &mut Vec<PendingUnpin<P>>,
    ) {
        let mut is_urgent = false;
        for place in entries.outdone(number, address) {
            entries.retire_copy(place);
            self.grace.retire(COPY | place.to_u32());
            is_urgent = true;
        }
        if is_urgent {
            self.sweep(epoch, entries, true, out);
        }
    }

    /// Frees retired entries that are no longer held.
    fn free_released(&mut self, entries: &Entries, out: &mut Vec<PendingUnpin<P>>) {
        let Self { slots, free, stats, held, held_bytes, .. } = self;
        held.retain(|number| {
            let still = entries.is_held(*number);
            if !still {
                *held_bytes -= entries.len_of(*number);
                set_free(*number, slots, free, stats, entries, out);
            }
            still
        });
    }

    /// Returns the number of registrations that wait for short uses to end, and their bytes.
    pub(super) fn waiting(&self) -> (u64, u64) {
        (self.stats.retired - self.held.len() as u64, self.stats.retired_bytes - self.held_bytes)
    }

    /// Removes an invalidated entry from the tree. The entry then waits until its uses have ended.
    fn take_out(&mut self, number: u32, entries: &Entries) {
        self.tree.remove(number);
        let slot = std::mem::replace(&mut self.slots[number as usize], EntryState::Free);
        if let EntryState::Kept(pin) = slot {
            self.slots[number as usize] = EntryState::Retired(pin);
        }
        let len = entries.len_of(number);
        self.stats.entries -= 1;
        self.stats.bytes -= len;
        self.stats.retired += 1;
        self.stats.retired_bytes += len;
        self.grace.retire(number);
    }

    /// Returns whether one more registration of `bytes` bytes would exceed the limits. Registrations that wait to be
    /// unpinned also count, because the limits apply to pinned memory.
    pub(super) fn is_tight(&self, bytes: u64) -> bool {
        let held = self.stats.bytes + self.stats.retired_bytes;
        self.stats.entries + self.stats.retired >= u64::from(self.limits.count)
            || held.saturating_add(bytes) > self.limits.bytes
    }

    /// Drops the least recently used entries until one more registration of `bytes` bytes fits in addition to the kept
    /// and the held ones. Drops a few more than needed, so that the next misses find room. Returns whether the
    /// registration then fits.
    pub(super) fn make_room(&mut self, bytes: u64, entries: &Entries) -> bool {
        if self.is_tight(bytes) {
            let (spare, spare_bytes) = (u64::from(self.limits.count) / 16, self.limits.bytes / 16);
            while !self.has_room(1 + spare, bytes.saturating_add(spare_bytes)) && self.drop_oldest(entries) {}
        }
        self.fits(bytes)
    }

    /// Returns whether one more registration of `bytes` bytes fits in addition to the kept and the held ones.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.has_room(1, bytes)
    }

    fn has_room(&self, count: u64, bytes: u64) -> bool {
        let entries = self.stats.entries + self.held.len() as u64;
        entries + count <= u64::from(self.limits.count)
            && self.stats.bytes.saturating_add(self.held_bytes).saturating_add(bytes) <= self.limits.bytes
    }

    /// Drops the least recently used of the entries that are not held. Returns whether there was one.
    pub(super) fn drop_oldest(&mut self, entries: &Entries) -> bool {
        let mut held = Vec::new();
        let dropped = self.drop_oldest_but(&mut held, entries);
        self.ages.extend(held);
        dropped
    }

    /// Like [`Self::drop_oldest`], but adds the held entries that it skips to `held`, with the current time as the time
    /// of their last use.
    fn drop_oldest_but(&mut self, held: &mut Vec<Reverse<(u64, u32)>>, entries: &Entries) -> bool {
        while let Some(Reverse((age, number))) = self.ages.pop() {
            let Some(entry) = entries.get(number) else { continue };
            if !entry.is_live() || !matches!(self.slots[number as usize], EntryState::Kept(_)) {
                continue;
            }
            if entries.is_held(number) {
                held.push(Reverse((self.time(), number)));
                continue;
            }
            // The entry has been used since this age was recorded.
            let touched = entries.touched(number, self.time());
            if touched > age {
                self.ages.push(Reverse((touched, number)));
                continue;
            }
            entries.kill(number);
            self.take_out(number, entries);
            self.stats.evictions += 1;
            return true;
        }
        false
    }

    fn forget_ended(&mut self, entries: &Entries) {
        let live = |number: u32| entries.get(number).is_some_and(Entry::is_live);
        let mut seen = vec![false; self.slots.len()];
        let mut ages = std::mem::take(&mut self.ages).into_vec();
        ages.retain(|Reverse((_, number))| live(*number) && !std::mem::replace(&mut seen[*number as usize], true));
        self.ages = ages.into();
    }

    /// Invalidates all entries. A later sweep removes them.
    pub(super) fn clear(&mut self, entries: &Entries) {
        self.kill(Range::ALL, entries);
    }

    /// Returns all registrations that are still pinned. Called when there are no more users.
    pub(super) fn into_pins(self, entries: &Entries) -> impl Iterator<Item = PendingUnpin<P>> {
        let out = |number: u32, pin| PendingUnpin {
            pin,
            inode: entries.inode(number).map(|inode| inode.slot),
            locked: entries.range_of(number),
        };
        let kept = self.slots.into_iter().enumerate().filter_map(move |(number, slot)| match slot {
            EntryState::Free => None,
            EntryState::Kept(pin) | EntryState::Retired(pin) => Some(out(number as u32, pin)),
        });
        let singles = self.singles.into_iter().map(|(_, pin)| PendingUnpin { pin, inode: None, locked: None });
        kept.chain(singles).chain(self.handles.into_pins())
    }
}

/// Frees an entry, so that it can be filled again, and adds its registration to those to be unpinned.
fn set_free<P>(
    number: u32,
    slots: &mut [EntryState<P>],
    free: &mut Vec<u32>,
    stats: &mut Stats,
    entries: &Entries,
    out: &mut Vec<PendingUnpin<P>>,
) {
    let slot = std::mem::replace(&mut slots[number as usize], EntryState::Free);
    if let EntryState::Retired(pin) = slot {
        let inode = entries.inode(number).map(|inode| inode.slot);
        out.push(PendingUnpin { pin, inode, locked: entries.range_of(number) });
        free.push(number);
        stats.retired -= 1;
        stats.retired_bytes -= entries.len_of(number);
        entries.vacate(number);
    }
}

/// A flag in a number that waits: the number is the place of a copy.
const COPY: u32 = 1 << 31;

const _: () = assert!(Entries::MOST as u64 * 4 < COPY as u64);

/// log2 of the amount by which the [time](Table::time) advances while as many registrations are kept as the cache has
/// room for.
const TIMES: u32 = 10;

/// The number of waiting registrations at which a fence is executed for them.
const BATCH: u64 = 64;

/// The number of waiting bytes at which a fence is executed for them.
const BATCH_BYTES: u64 = 64 << 20;
