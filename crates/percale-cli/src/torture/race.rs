//! Threads that change memory while others use it and look whether what they were given is right.
//!
//! A use that begins before a change may see the old pages, and so may one that begins while the change is under way.
//! Each region therefore counts its changes: odd while one is under way. A look counts only if the number was even and the
//! same before the look-up and after the look: all that happened to the region had returned before, and nothing came
//! between.
//!
//! One change is looked at closer: a thread that finds the hole which another's munmap(2) has made, before that call
//! returns, and maps it anew, must not be given the old registration.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libc::MAP_FIXED_NOREPLACE;
use pindown::{Lane, Registrar};
use serde::{Deserialize, Serialize};

use super::kinds::{self, Kind, Trait};
use super::lot::range;
use super::memory::{Memory, Origin, Shape};
use super::monitors::{Monitor, Subject};
use super::operations::{self, Operation, Tools, Way};
use super::oracle::{ACCESS, Eye, Oracle, Seen};

/// How long, how many, and which.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) seconds: u64,
    /// That change memory, and as many that use it.
    pub(super) threads: u64,
    pub(super) seed: u64,
}

/// What was done and seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Changes of memory.
    pub(super) changes: u64,
    /// Uses of the cache.
    pub(super) uses: u64,
    /// Those that were given a registration that was there.
    pub(super) hits: u64,
    /// Those that no change came across, and that were looked at.
    pub(super) checked: u64,
    /// Those of them whose registration was of other pages.
    pub(super) stale: u64,
    /// After which change, and how often.
    pub(super) after: BTreeMap<String, u64>,
}

/// After so many changes a region moves to other addresses.
const MOVES: u64 = 16;

/// Regions for each thread.
const REGIONS: u64 = 3;

/// How a region that was made anew is called.
const NEW: &str = "made anew";
const BETWEEN: &str = "munmap all, mapped anew by another thread before it returned";

/// Memory that threads change and use.
struct Region {
    kind: &'static Kind,
    /// What may happen to it.
    operations: Vec<&'static Operation>,
    memory: Mutex<Memory>,
    /// Of the registered part.
    start: AtomicU64,
    /// Changes begun and changes ended.
    changes: AtomicU64,
    /// What was done last: an operation, or past those one of the names above.
    last: AtomicUsize,
}

impl Region {
    fn name_of_last(&self) -> String {
        let last = self.last.load(Ordering::Acquire);
        let name = self.operations.get(last).map_or(if last == usize::MAX { BETWEEN } else { NEW }, |op| op.name);
        format!("{}, {name}", self.kind.name)
    }

    /// A change begins or ends.
    fn count(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }
}

/// What the threads share.
struct Arena<'a> {
    subject: &'a Subject,
    oracle: &'a Oracle,
    monitor: &'a Monitor,
    regions: Vec<Region>,
    deadline: Instant,
    failed: AtomicBool,
}

/// Runs the threads.
pub(super) fn run(plan: &Plan, monitor: &Monitor, subject: &Subject, oracle: &Oracle) -> io::Result<Tally> {
    let kinds: Vec<&Kind> = kinds::ALL.iter().filter(|kind| races(kind, oracle)).collect();
    let mut regions = Vec::new();
    for number in 0..(plan.threads * REGIONS).max(kinds.len() as u64) {
        regions.push(region(kinds[number as usize % kinds.len()], monitor)?);
    }
    let deadline = Instant::now() + Duration::from_secs(plan.seconds);
    let arena = Arena { subject, oracle, monitor, regions, deadline, failed: AtomicBool::new(false) };
    let before = subject.cache.stats();
    let mut tally = Tally::default();
    std::thread::scope(|scope| -> io::Result<()> {
        let mut threads = Vec::new();
        for number in 0..plan.threads {
            let arena = &arena;
            let dice = |which| Dice(plan.seed.wrapping_add(2 * number + which).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let (changing, using) = (dice(0), dice(1));
            threads.push(scope.spawn(move || arena.ending(arena.change(changing, 2 * number))));
            threads.push(scope.spawn(move || arena.ending(arena.use_and_look(using, 2 * number + 1))));
        }
        for thread in threads {
            tally.add(thread.join().map_err(|_| io::Error::other("a thread panicked"))??);
        }
        Ok(())
    })?;
    let after = subject.cache.stats();
    tally.hits = (after.hits + after.slow_hits) - (before.hits + before.slow_hits);
    Ok(tally)
}

/// Whether memory of this kind can be made anew at the same address, and pinned.
fn races(kind: &Kind, oracle: &Oracle) -> bool {
    let pinned = || -> io::Result<bool> {
        let memory = (kind.make)()?;
        let small = memory.registered.len() == Shape::small().registered * memory.unit;
        oracle.unpin(oracle.pin(memory.registered, ACCESS)?.pin);
        Ok(small)
    };
    kind.traits.contains(&Trait::Mapped) && pinned().unwrap_or(false)
}

fn region(kind: &'static Kind, monitor: &Monitor) -> io::Result<Region> {
    let memory = (kind.make)()?;
    let races = |operation: &&Operation| {
        operation.suits(kind) && operation.way == Way::Call && monitor.exception(operation.name).is_none()
    };
    Ok(Region {
        kind,
        operations: operations::all().filter(races).collect(),
        start: AtomicU64::new(memory.registered.start()),
        memory: Mutex::new(memory),
        changes: AtomicU64::new(0),
        last: AtomicUsize::new(usize::MAX - 1),
    })
}

impl Arena<'_> {
    fn goes_on(&self) -> bool {
        Instant::now() < self.deadline && !self.failed.load(Ordering::Relaxed)
    }

    /// What fails ends all threads.
    fn ending(&self, tally: io::Result<Tally>) -> io::Result<Tally> {
        if tally.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        tally
    }

    /// Uses a part of a region, as a thread of a program does, and looks at a word that only this thread writes.
    fn use_and_look(&self, mut dice: Dice, thread: u64) -> io::Result<Tally> {
        let lane = self.subject.cache.lane();
        let mut eye = self.oracle.eye()?;
        let mut tally = Tally::default();
        let page = Shape::small().unit;
        let pages = Shape::small().registered;
        while self.goes_on() {
            let region = &self.regions[dice.below(self.regions.len() as u64) as usize];
            let begun = region.changes.load(Ordering::Acquire);
            let start = region.start.load(Ordering::Acquire);
            let first = dice.below(pages) / 2;
            let some = 1 + dice.below(pages - first);
            let part = range(start + first * page, some * page)?;
            tally.uses += 1;
            // There may be a hole just now.
            let Ok(used) = lane.get(part, ACCESS) else { continue };
            for _ in 0..dice.below(400) {
                std::hint::spin_loop();
            }
            let address = part.start() + dice.below(some) * page + 8 * thread;
            let current = begun.is_multiple_of(2).then(|| eye.is_word_current(Seen::of(&used).slot, address));
            let after = region.name_of_last();
            let undisturbed = region.changes.load(Ordering::Acquire) == begun;
            lane.end(used);
            if let (Some(Ok(current)), true) = (current, undisturbed) {
                tally.checked += 1;
                tally.judge(current, || after);
            }
        }
        Ok(tally)
    }

    /// Changes one region after the other.
    fn change(&self, mut dice: Dice, thread: u64) -> io::Result<Tally> {
        let lane = self.subject.cache.lane();
        let mut eye = self.oracle.eye()?;
        let mut tools = Tools::for_way(Way::Call)?;
        let mut tally = Tally::default();
        while self.goes_on() {
            let region = &self.regions[dice.below(self.regions.len() as u64) as usize];
            let mut memory = region.memory.lock().unwrap_or_else(PoisonError::into_inner);
            let next = region.changes.load(Ordering::Acquire) / 2;
            self.subject.about_to_change(memory.registered);
            region.count();
            if next % MOVES == MOVES - 1 {
                region.last.store(usize::MAX - 1, Ordering::Release);
                let old = std::mem::replace(&mut *memory, (region.kind.make)()?);
                region.start.store(memory.registered.start(), Ordering::Release);
                // Addresses that a monitor may distrust are left alone; others come back, which is worse.
                if self.monitor.alone { old.retire()? } else { drop(old) }
            } else if dice.below(4) == 0 && matches!(memory.origin, Origin::Mapped) {
                region.last.store(usize::MAX, Ordering::Release);
                self.map_between(&memory, &lane, &mut eye, thread, region, &mut tally)?;
            } else {
                let which = dice.below(region.operations.len() as u64) as usize;
                region.last.store(which, Ordering::Release);
                // What the kernel does not do to such memory changes nothing.
                (region.operations[which].apply)(&mut memory, &mut tools).ok();
                if tools.mappings.of(memory.whole)?.is_none() || dice.below(4) == 0 {
                    memory.establish(0)?;
                }
            }
            region.count();
            drop(memory);
            tally.changes += 1;
            std::thread::sleep(Duration::from_micros(dice.below(300)));
        }
        Ok(tally)
    }

    /// Another thread unmaps; this one maps as soon as it can.
    fn map_between(
        &self,
        memory: &Memory,
        lane: &Lane<Oracle>,
        eye: &mut Eye,
        thread: u64,
        region: &Region,
        tally: &mut Tally,
    ) -> io::Result<()> {
        let (lot, whole) = (&memory.lot, memory.whole);
        std::thread::scope(|scope| {
            let unmapped = scope.spawn(move || lot.unmap(whole));
            let patience = Instant::now() + Duration::from_secs(30);
            while let Err(error) = memory.establish(MAP_FIXED_NOREPLACE) {
                if error.raw_os_error() != Some(libc::EEXIST) || Instant::now() > patience {
                    return Err(error);
                }
            }
            if let Ok(used) = lane.get(memory.registered, ACCESS) {
                let current = eye.is_word_current(Seen::of(&used).slot, memory.registered.start() + 8 * thread);
                lane.end(used);
                tally.checked += 1;
                tally.judge(current?, || region.name_of_last());
            }
            unmapped.join().map_err(|_| io::Error::other("a thread panicked"))?
        })
    }
}

impl Tally {
    fn judge(&mut self, current: bool, after: impl FnOnce() -> String) {
        if !current {
            self.stale += 1;
            *self.after.entry(after()).or_default() += 1;
        }
    }

    fn add(&mut self, other: Self) {
        self.changes += other.changes;
        self.uses += other.uses;
        self.checked += other.checked;
        self.stale += other.stale;
        for (name, count) in other.after {
            *self.after.entry(name).or_default() += count;
        }
    }
}

/// Numbers that look like chance and come again with the same seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound.max(1)
    }
}
