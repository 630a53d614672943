//! Threads that change memory while others use it and check their registrations.
//!
//! The keys must always belong to a registration that covers the requested range. The rule for pages is more complex: a
//! use that begins before a change, or while it is in progress, may access the old pages. Each region therefore counts
//! its changes, and the count is odd while one is in progress. A check is valid only if the count was even, and the
//! same before the lookup and after the check. In this case all changes of the region had returned before the lookup,
//! and none occurred during the check.
//!
//! One case is checked more strictly. A thread may find the hole that another thread's munmap(2) has made before that
//! call returns. If it maps the hole again, it must not get the old registration.
//!
//! While there are holes, no code may map memory unintentionally. Therefore all threads are started, and have all of
//! their resources, before the first change.

mod change;
mod check;
mod life;
mod mix;
mod pending;
mod region;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use pindown::Lane;
use serde::{Deserialize, Serialize};

use super::device;
use super::dice::Dice;
use super::kinds::{self, MemoryKind};
use super::monitors::{Monitor, TestedCache};
use super::operations::{ExecutionMode, Tools};
use super::oracle::{MemoryComparer, Oracle};
use crate::memory_range::MemoryRange;
use change::ChangerState;
use life::Interrupted;
pub(super) use mix::Mix;
use region::{Region, races};

/// The number of regions for each thread.
const REGIONS: u64 = 3;

/// The parameters of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) milliseconds: u64,
    /// The number of threads that change memory, and of threads that use it.
    pub(super) threads: u64,
    pub(super) seed: u64,
    pub(super) mix: Mix,
}

/// The counts of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// The number of changes of memory.
    pub(super) changes: u64,
    /// The number of uses of the cache.
    pub(super) uses: u64,
    /// The number of uses for which an existing registration was returned.
    pub(super) hits: u64,
    /// The number of uses with checked pages and without a change in the meantime.
    pub(super) checked: u64,
    /// The number of checked uses of a registration that contained other pages.
    pub(super) stale: u64,
    /// The last changes before the stale uses, with their counts.
    pub(super) after: BTreeMap<String, u64>,
    /// The number of uses that returned keys of another registration.
    pub(super) wrong_keys: u64,
    /// The first use with keys of another registration.
    pub(super) wrong_key: Option<String>,
}

/// The state that the threads share.
struct Arena<'a> {
    subjects: &'a [TestedCache],
    oracle: &'a Oracle,
    monitor: &'a Monitor,
    regions: &'a [Region],
    interrupted: Interrupted,
    /// All threads wait here until each of them runs, because starting a thread maps memory.
    begin: Barrier,
    time: Duration,
    failed: AtomicBool,
}

/// The state of each thread.
struct Thread {
    number: u64,
    dice: Dice,
    /// One lane of each cache.
    lanes: Vec<Lane<Oracle>>,
    comparer: MemoryComparer,
    tally: Tally,
    deadline: Instant,
}

/// Runs the threads with an open cache, without additional events.
pub(super) fn run(plan: &Plan, monitor: &Monitor, subject: &TestedCache, oracle: &Oracle) -> io::Result<Tally> {
    let regions = regions(plan, monitor, oracle)?;
    threads(plan, monitor, std::slice::from_ref(subject), oracle, &regions, &[])
}

/// Opens caches and runs the threads, with all events of the plan's mix. The process must have only this thread.
///
/// # Errors
/// Returns the monitor's error if the monitor is not available here, or the error of a failed run.
pub(super) fn search(plan: &Plan, monitor: &Monitor, device: device::DeviceChoice) -> io::Result<Tally> {
    if !plan.mix.descendant {
        return alone(plan, monitor, device);
    }
    let before = || {
        let oracle = Oracle::new(device).map_err(io::Error::other)?;
        monitor.open(oracle, plan.mix.most, plan.mix.merging).map(drop).map_err(io::Error::other)
    };
    match life::in_descendant(before, || alone(plan, monitor, device)) {
        // Only root may create PID namespaces.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => alone(plan, monitor, device),
        tally => tally,
    }
}

fn alone(plan: &Plan, monitor: &Monitor, device: device::DeviceChoice) -> io::Result<Tally> {
    let mix = &plan.mix;
    let oracle = Oracle::new(device).map_err(io::Error::other)?;
    let regions = regions(plan, monitor, &oracle)?;
    if mix.pending {
        let mut dice = Dice::new(!plan.seed);
        for region in &regions {
            region.submit(&mut dice)?;
        }
    }
    let before = life::descriptors()?;
    let open = |_| monitor.open(oracle.clone(), mix.most, mix.merging).map_err(io::Error::other);
    let subjects = (0..mix.caches).map(open).collect::<io::Result<Vec<_>>>()?;
    let mut opened = life::descriptors()?;
    opened.retain(|number| mix.closes && !before.contains(number));
    let tally = threads(plan, monitor, &subjects, &oracle, &regions, &opened);
    if mix.closes {
        // The numbers of the descriptors may now refer to other files.
        std::mem::forget(subjects);
    }
    tally
}

fn regions(plan: &Plan, monitor: &Monitor, oracle: &Oracle) -> io::Result<Vec<Region>> {
    let sealed = plan.mix != Mix::plain();
    let kinds: Vec<&MemoryKind> = kinds::ALL.iter().filter(|kind| races(kind, oracle, sealed)).collect();
    let count = (plan.threads * REGIONS).max(kinds.len() as u64);
    (0..count).map(|number| Region::new(kinds[number as usize % kinds.len()], monitor, &plan.mix)).collect()
}

fn threads(
    plan: &Plan,
    monitor: &Monitor,
    subjects: &[TestedCache],
    oracle: &Oracle,
    regions: &[Region],
    closed: &[RawFd],
) -> io::Result<Tally> {
    let mix = &plan.mix;
    let begin = Barrier::new(3 * plan.threads as usize + 1);
    let (time, failed) = (Duration::from_millis(plan.milliseconds), AtomicBool::new(false));
    let interrupted = Interrupted::default();
    let arena = Arena { subjects, oracle, monitor, regions, interrupted, begin, time, failed };
    let hits = || -> u64 {
        subjects.iter().map(|subject| subject.cache.stats()).map(|stats| stats.hits + stats.slow_hits).sum()
    };
    let before = hits();
    let mut tally = Tally::default();
    let mut dice = Dice::new(plan.seed);
    let team = |number| -> io::Result<_> {
        let tools = Tools::for_way(if mix.ways.contains(&ExecutionMode::Other) {
            ExecutionMode::Other
        } else {
            ExecutionMode::Call
        })?;
        let (unmap, lots) = channel::<MemoryRange>();
        let (done, unmapped) = channel();
        let unmaps =
            move || lots.iter().try_for_each(|memory_range| done.send(memory_range.unmap(memory_range.range())));
        let changer = arena.thread(2 * number, dice.fork())?;
        Ok((unmaps, ChangerState { tools, unmap, unmapped }, changer, arena.thread(2 * number + 1, dice.fork())?))
    };
    let teams: Vec<_> = (0..plan.threads).map(team).collect::<io::Result<_>>()?;
    if mix.interrupts {
        life::give_way_on_signals();
    }
    std::thread::scope(|scope| -> io::Result<()> {
        let arena = &arena;
        let mut threads = Vec::new();
        for (unmaps, mut hands, mut changer, mut user) in teams {
            scope.spawn(move || {
                arena.begin.wait();
                unmaps()
            });
            threads.push(scope.spawn(move || {
                let tally = arena.run(|arena| arena.change(&mut changer, &mut hands));
                // The children have copies of the pipes to the other processes. Because of these copies the other
                // processes would not receive the end of their input.
                arena.regions.iter().for_each(Region::end_children);
                tally
            }));
            threads.push(scope.spawn(move || arena.run(|arena| arena.use_and_check(&mut user))));
        }
        arena.begin.wait();
        let deadline = Instant::now() + time;
        let mut closed = Some(closed).filter(|closed| !closed.is_empty());
        while Instant::now() < deadline && !arena.failed.load(Ordering::Relaxed) {
            std::thread::sleep(if mix.interrupts { Duration::from_micros(300) } else { Duration::from_millis(20) });
            if mix.interrupts {
                arena.interrupted.interrupt();
            }
            if deadline.saturating_duration_since(Instant::now()) < time / 2 {
                closed.take().into_iter().for_each(life::close);
            }
        }
        for thread in threads {
            tally.add(thread.join().map_err(|_| io::Error::other("a thread panicked"))??);
        }
        Ok(())
    })?;
    tally.hits = hits().saturating_sub(before);
    Ok(tally)
}

impl Arena<'_> {
    fn thread(&self, number: u64, dice: Dice) -> io::Result<Thread> {
        let lanes = self.subjects.iter().map(|subject| subject.cache.lane()).collect();
        Ok(Thread {
            number,
            dice,
            lanes,
            comparer: self.oracle.comparer()?,
            tally: Tally::default(),
            deadline: Instant::now(),
        })
    }

    fn begin(&self, thread: &mut Thread) {
        self.begin.wait();
        thread.deadline = Instant::now() + self.time;
    }

    fn should_continue(&self, thread: &Thread) -> bool {
        Instant::now() < thread.deadline && !self.failed.load(Ordering::Relaxed)
    }

    /// Runs the body of a thread. An error ends all threads.
    fn run(&self, body: impl FnOnce(&Self) -> io::Result<Tally>) -> io::Result<Tally> {
        let tally = body(self);
        if tally.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        tally
    }
}

impl Tally {
    fn record_check(&mut self, current: bool, after: impl FnOnce() -> String) {
        self.checked += 1;
        if !current {
            self.stale += 1;
            *self.after.entry(after()).or_default() += 1;
        }
    }

    fn keys(&mut self, fault: Option<String>) {
        self.wrong_keys += u64::from(fault.is_some());
        self.wrong_key = self.wrong_key.take().or(fault);
    }

    /// Adds the counts of another thread, or of another run.
    pub(super) fn add(&mut self, other: Self) {
        self.changes += other.changes;
        self.uses += other.uses;
        self.hits += other.hits;
        self.checked += other.checked;
        self.stale += other.stale;
        for (name, count) in other.after {
            *self.after.entry(name).or_default() += count;
        }
        self.wrong_keys += other.wrong_keys;
        self.wrong_key = self.wrong_key.take().or(other.wrong_key);
    }
}
