//! Threads that change memory while others use it and look whether what they were given is right.
//!
//! A use that begins before a change may see the old pages, and so may one that begins while the change is under way.
//! Each region therefore counts its changes: odd while one is under way. A look counts only if the number was even and the
//! same before the look-up and after the look: all that happened to the region had returned before, and nothing came
//! between.
//!
//! One change is looked at closer: a thread that finds the hole which another's munmap(2) has made, before that call
//! returns, and maps it anew, must not be given the old registration.
//!
//! While there are holes nothing may map memory but what means to: all threads are started, and have what they need,
//! before the first change.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libc::MAP_FIXED_NOREPLACE;
use pindown::{Lane, Registrar};
use serde::{Deserialize, Serialize};

use super::kinds::{self, Kind, Trait};
use super::memory::{Memory, Origin, Shape};
use super::monitors::{Monitor, Subject};
use super::operations::{self, Operation, Tools, Way};
use super::oracle::{Eye, Oracle, Seen};
use crate::fixed_buffers::ACCESS;
use crate::lot::{Lot, range};

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

/// How long a munmap(2) may take: it waits for some monitors.
const PATIENCE: Duration = Duration::from_secs(30);

/// Regions for each thread.
const REGIONS: u64 = 3;

/// What is done to regions apart from the operations, where those have their numbers.
const MADE_ANEW: usize = usize::MAX;
const BETWEEN: usize = usize::MAX - 1;

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
    /// What was done last.
    last: AtomicUsize,
}

impl Region {
    fn name_of_last(&self) -> String {
        let name = match self.last.load(Ordering::Acquire) {
            MADE_ANEW => "made anew",
            BETWEEN => "munmap all, mapped anew by another thread before it returned",
            number => self.operations.get(number).map_or("", |operation| operation.name),
        };
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
    /// All threads run: a thread maps memory before it does.
    begin: Barrier,
    time: Duration,
    failed: AtomicBool,
}

/// What each thread has of its own.
struct Thread {
    number: u64,
    dice: Dice,
    lane: Lane<Oracle>,
    eye: Eye,
    tally: Tally,
    deadline: Instant,
}

/// What a thread that changes memory has, apart from that.
struct Hands {
    tools: Tools,
    /// Another thread, which unmaps.
    unmap: Sender<Lot>,
    unmapped: Receiver<io::Result<()>>,
}

/// Runs the threads.
pub(super) fn run(plan: &Plan, monitor: &Monitor, subject: &Subject, oracle: &Oracle) -> io::Result<Tally> {
    let kinds: Vec<&Kind> = kinds::ALL.iter().filter(|kind| races(kind, oracle)).collect();
    let mut regions = Vec::new();
    for number in 0..(plan.threads * REGIONS).max(kinds.len() as u64) {
        regions.push(region(kinds[number as usize % kinds.len()], monitor)?);
    }
    let begin = Barrier::new(3 * plan.threads as usize);
    let time = Duration::from_secs(plan.seconds);
    let arena = Arena { subject, oracle, monitor, regions, begin, time, failed: AtomicBool::new(false) };
    let before = subject.cache.stats();
    let mut tally = Tally::default();
    let mut dice = Dice(plan.seed);
    let team = |number| -> io::Result<_> {
        let tools = Tools::for_way(Way::Call)?;
        let (unmap, lots) = channel::<Lot>();
        let (done, unmapped) = channel();
        let unmaps = move || lots.iter().try_for_each(|lot| done.send(lot.unmap(lot.range())));
        let changer = arena.thread(2 * number, dice.fork())?;
        Ok((unmaps, Hands { tools, unmap, unmapped }, changer, arena.thread(2 * number + 1, dice.fork())?))
    };
    let teams: Vec<_> = (0..plan.threads).map(team).collect::<io::Result<_>>()?;
    std::thread::scope(|scope| -> io::Result<()> {
        let arena = &arena;
        let mut threads = Vec::new();
        for (unmaps, mut hands, mut changer, mut user) in teams {
            scope.spawn(move || {
                arena.begin.wait();
                unmaps()
            });
            threads.push(scope.spawn(move || arena.run(|arena| arena.change(&mut changer, &mut hands))));
            threads.push(scope.spawn(move || arena.run(|arena| arena.use_and_look(&mut user))));
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
        // Without privileges the file behind some memory cannot be had.
        memory.establish(0)?;
        memory.touch()?;
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
        last: AtomicUsize::new(MADE_ANEW),
    })
}

impl Arena<'_> {
    fn thread(&self, number: u64, dice: Dice) -> io::Result<Thread> {
        let (lane, eye) = (self.subject.cache.lane(), self.oracle.eye()?);
        Ok(Thread { number, dice, lane, eye, tally: Tally::default(), deadline: Instant::now() })
    }

    fn begin(&self, thread: &mut Thread) {
        self.begin.wait();
        thread.deadline = Instant::now() + self.time;
    }

    fn goes_on(&self, thread: &Thread) -> bool {
        Instant::now() < thread.deadline && !self.failed.load(Ordering::Relaxed)
    }

    /// A thread: what fails ends all of them.
    fn run(&self, body: impl FnOnce(&Self) -> io::Result<Tally>) -> io::Result<Tally> {
        let tally = body(self);
        if tally.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        tally
    }

    /// Uses a part of a region, as a thread of a program does, and looks at a word that only this thread writes.
    fn use_and_look(&self, thread: &mut Thread) -> io::Result<Tally> {
        self.begin(thread);
        let (page, pages) = (Shape::small().unit, Shape::small().registered);
        while self.goes_on(thread) {
            let region = &self.regions[thread.dice.below(self.regions.len() as u64) as usize];
            let begun = region.changes.load(Ordering::Acquire);
            let start = region.start.load(Ordering::Acquire);
            let first = thread.dice.below(pages) / 2;
            let some = 1 + thread.dice.below(pages - first);
            let part = range(start + first * page, some * page)?;
            thread.tally.uses += 1;
            // There may be a hole just now.
            let Ok(used) = thread.lane.get(part, ACCESS) else { continue };
            for _ in 0..thread.dice.below(400) {
                std::hint::spin_loop();
            }
            let address = part.start() + thread.dice.below(some) * page + 8 * thread.number;
            let settled = begun.is_multiple_of(2);
            let current = settled.then(|| thread.eye.is_word_current(Seen::of(&used).slot, address));
            let after = region.name_of_last();
            let undisturbed = region.changes.load(Ordering::Acquire) == begun;
            thread.lane.end(used);
            if let (Some(Ok(current)), true) = (current, undisturbed) {
                thread.tally.judge(current, || after);
            }
        }
        Ok(std::mem::take(&mut thread.tally))
    }

    /// Changes one region after the other.
    fn change(&self, thread: &mut Thread, hands: &mut Hands) -> io::Result<Tally> {
        self.begin(thread);
        while self.goes_on(thread) {
            let region = &self.regions[thread.dice.below(self.regions.len() as u64) as usize];
            let mut memory = region.memory.lock().unwrap_or_else(PoisonError::into_inner);
            let next = region.changes.load(Ordering::Acquire) / 2;
            self.subject.about_to_change(memory.registered);
            region.count();
            if next % MOVES == MOVES - 1 {
                region.last.store(MADE_ANEW, Ordering::Release);
                let old = std::mem::replace(&mut *memory, (region.kind.make)()?);
                region.start.store(memory.registered.start(), Ordering::Release);
                // Addresses that a monitor may distrust are left alone; others come back, which is worse.
                if self.monitor.alone { old.retire()? } else { drop(old) }
            } else if thread.dice.below(4) == 0 && matches!(memory.origin, Origin::Mapped) {
                region.last.store(BETWEEN, Ordering::Release);
                map_between(&memory, thread, hands, || region.name_of_last())?;
            } else {
                let which = thread.dice.below(region.operations.len() as u64) as usize;
                region.last.store(which, Ordering::Release);
                // What the kernel does not do to such memory changes nothing.
                (region.operations[which].apply)(&mut memory, &mut hands.tools).ok();
                if hands.tools.mappings.of(memory.whole)?.is_none() || thread.dice.below(4) == 0 {
                    memory.establish(0)?;
                }
            }
            region.count();
            drop(memory);
            thread.tally.changes += 1;
            std::thread::sleep(Duration::from_micros(thread.dice.below(300)));
        }
        Ok(std::mem::take(&mut thread.tally))
    }
}

/// Another thread unmaps; this one maps as soon as it can, and uses what it has mapped.
fn map_between(memory: &Memory, thread: &mut Thread, hands: &Hands, after: impl Fn() -> String) -> io::Result<()> {
    let gone = |_| io::Error::other("the thread that unmaps has gone");
    hands.unmap.send(Lot::adopt(memory.whole)).map_err(|_| gone(()))?;
    let patience = Instant::now() + PATIENCE;
    let mut answer = None;
    while let Err(error) = memory.establish(MAP_FIXED_NOREPLACE) {
        if error.raw_os_error() != Some(libc::EEXIST) {
            return Err(error);
        }
        match &answer {
            None if Instant::now() < patience => answer = hands.unmapped.try_recv().ok(),
            None => return Err(io::Error::other(format!("munmap did not return for {PATIENCE:?}: {}", after()))),
            Some(Err(error)) => return Err(io::Error::other(format!("munmap: {error}"))),
            Some(Ok(())) => {
                let there = hands.tools.mappings.of(memory.whole);
                return Err(io::Error::other(format!("what munmap left was given to somebody else: {there:?}")));
            }
        }
    }
    if let Ok(used) = thread.lane.get(memory.registered, ACCESS) {
        let word = memory.registered.start() + 8 * thread.number;
        let current = thread.eye.is_word_current(Seen::of(&used).slot, word);
        thread.lane.end(used);
        thread.tally.judge(current?, after);
    }
    answer.unwrap_or_else(|| hands.unmapped.recv().unwrap_or_else(|_| Err(gone(()))))
}

impl Tally {
    fn judge(&mut self, current: bool, after: impl FnOnce() -> String) {
        self.checked += 1;
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
    /// Others, for another thread.
    fn fork(&mut self) -> Self {
        Self(self.below(u64::MAX))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound.max(1)
    }
}
