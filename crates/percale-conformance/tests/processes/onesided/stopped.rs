//! Regions are closed while their writers are stopped in the middle of a write, or killed.

use std::time::{Duration, Instant};

use percale_conformance::long;
use percale_conformance::process::Helper;
use percale_conformance::random::{Random, seed};
use percale_conformance::watchdog::Watchdog;
use rustix::process::Signal;

use super::ground::{GROUND, Ground, HeldRegion, Watch, key_of};
use super::revocation::Owner;
use super::{Deadline, WAIT_TIMEOUT, open_kind, work};
use crate::faults::is_stopped;

crate::on!(shm, untrusting, tcp, verbs: { memory_of_stopped_writers_is_not_used_again });

/// The revocation timeout of the owner in these tests.
const REVOKE: Duration = Duration::from_millis(50);
const WRITERS: usize = 3;

/// Requirements: REV-002, REV-003, REV-005.
fn memory_of_stopped_writers_is_not_used_again(kind: &str) {
    let timeout = Duration::from_secs(if long() { 3600 } else { 300 });
    let _watchdog = Watchdog::within("memory of stopped writers is not used again", timeout);
    let memories: &[bool] = if kind == "shm" { &[true, false] } else { &[true] };
    for &sealed in memories {
        let mut play = Play::new(kind, sealed);
        for _ in 0..if long() { 5000 } else { 100 } {
            play.step();
        }
        play.end();
    }
}

struct Writer {
    helper: Helper,
    stopped: bool,
}

struct Play {
    kind: String,
    owner: Owner,
    ground: Option<Ground>,
    watch: Watch,
    writers: Vec<Writer>,
    born: Instant,
    random: Random,
    sealed: bool,
    epoch: u64,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    ok: u64,
    busy: u64,
    ok_after_busy: u64,
    parked: u64,
    stops: u64,
    kills: u64,
    longest_close: Duration,
}

impl Play {
    fn new(kind: &str, sealed: bool) -> Self {
        let owner = Owner::new(open_kind(kind, |domain| domain.revoke_timeout(REVOKE)));
        let writers = (0..WRITERS).map(|_| Writer { helper: owner.writer(kind), stopped: false }).collect();
        let ground = Some(Ground::new(&owner.open.domain, sealed));
        let seed = seed();
        println!("PERCALE_SEED={seed}");
        Self {
            kind: kind.to_owned(),
            owner,
            ground,
            watch: Watch::new(),
            writers,
            born: Instant::now(),
            random: Random::new(seed),
            sealed,
            epoch: 0,
            counts: Counts::default(),
        }
    }

    /// Registers the memory once, sends some signals, and closes the region.
    fn step(&mut self) {
        if self.born.elapsed() > Duration::from_secs(240) {
            // Helpers exit after ten minutes.
            (0..WRITERS).for_each(|at| self.replace(at));
            self.born = Instant::now();
        }
        self.epoch += 1;
        let ground = self.ground.take().expect("a ground");
        self.watch.check(&ground, self.epoch);
        let held = ground.register(&self.owner.open.domain, key_of(self.epoch));
        self.owner.post(self.epoch);
        let deadline = Deadline::new("a writer writes");
        while !self.watch.is_written(&held) && self.writers.iter().any(|writer| !writer.stopped) {
            work(&self.owner.open);
            deadline.check();
        }
        (0..self.random.below(50_000)).for_each(|_| std::hint::spin_loop());
        self.signals();
        match self.close(held) {
            Ok(ground) => {
                self.counts.ok += 1;
                self.verify(ground);
            }
            Err(held) => {
                self.counts.busy += 1;
                assert_eq!(self.kind, "shm", "only memory that peers access directly can be busy");
                if self.sealed && self.random.below(2) == 0 {
                    self.drop_while_stopped(held);
                } else {
                    self.close_later(held);
                }
            }
        }
    }

    /// Stops, continues and kills some writers.
    fn signals(&mut self) {
        let at = self.random.below(WRITERS);
        match self.random.below(10) {
            0 => self.replace(at),
            1..6 => {
                self.stop(at);
                // A stop takes effect when the writer next leaves the kernel. The test sometimes waits for this.
                if self.random.below(2) == 0 {
                    self.wait_stopped(at);
                }
            }
            _ => self.go_on(at),
        }
    }

    fn stop(&mut self, at: usize) {
        let writer = &mut self.writers[at];
        writer.helper.signal(Signal::STOP);
        writer.stopped = true;
        self.counts.stops += 1;
    }

    fn wait_stopped(&self, at: usize) {
        let deadline = Deadline::new("a writer stops");
        while !is_stopped(self.writers[at].helper.pid()) {
            std::thread::yield_now();
            deadline.check();
        }
    }

    fn go_on(&mut self, at: usize) {
        let writer = &mut self.writers[at];
        if writer.stopped {
            writer.helper.signal(Signal::CONT);
            writer.stopped = false;
        }
    }

    fn replace(&mut self, at: usize) {
        self.writers[at].helper.kill();
        self.writers[at] = Writer { helper: self.owner.writer(&self.kind), stopped: false };
        self.counts.kills += 1;
    }

    /// Closes the region, and records how long this took.
    fn close(&mut self, held: HeldRegion) -> Result<Ground, HeldRegion> {
        let started = Instant::now();
        let result = held.close();
        let took = started.elapsed();
        self.counts.longest_close = self.counts.longest_close.max(took);
        assert!(took < REVOKE + WAIT_TIMEOUT, "closing took {took:?}");
        result
    }

    /// Checks returned memory: it contains only bytes of this epoch, and does not change.
    fn verify(&mut self, mut ground: Ground) {
        self.watch.closed(&mut ground, self.epoch);
        for _ in 0..3 {
            self.owner.open.endpoint.progress();
            self.watch.check(&ground, self.epoch);
        }
        // Stopped writers sometimes continue while the memory belongs to the owner.
        let at = self.random.below(WRITERS);
        self.go_on(at);
        (0..self.random.below(200)).for_each(|_| _ = self.owner.open.endpoint.progress());
        self.watch.check(&ground, self.epoch);
        self.ground = Some(ground);
    }

    /// Continues every stopped writer, or kills and replaces it. Repeats the close of the region until it succeeds.
    fn close_later(&mut self, mut held: HeldRegion) {
        for at in 0..WRITERS {
            if self.random.below(2) == 0 {
                self.go_on(at);
            } else if self.writers[at].stopped {
                self.replace(at);
            }
        }
        let deadline = Deadline::new("closing again ends");
        let ground = loop {
            match self.close(held) {
                Ok(ground) => break ground,
                Err(again) => held = again,
            }
            deadline.check();
        };
        self.counts.ok_after_busy += 1;
        self.verify(ground);
    }

    /// Drops the region while all writers are stopped, one of them in the middle of a write. The memory must not be
    /// reused.
    fn drop_while_stopped(&mut self, held: HeldRegion) {
        for at in 0..WRITERS {
            self.stop(at);
            self.wait_stopped(at);
        }
        let held = match self.close(held) {
            // The access that delayed the previous close completed before its writer was stopped.
            Ok(ground) => {
                self.counts.ok_after_busy += 1;
                return self.verify(ground);
            }
            Err(held) => held,
        };
        let place = held.place().expect("percale allocated it");
        drop(held);
        self.counts.parked += 1;
        let others: Vec<Ground> = (0..10).map(|_| Ground::new(&self.owner.open.domain, true)).collect();
        for other in &others {
            let at = other.place().expect("percale allocated it");
            assert!(at.abs_diff(place) >= GROUND, "parked memory at {place:#x} was reused at {at:#x}");
        }
        (0..WRITERS).for_each(|at| self.go_on(at));
        self.ground = others.into_iter().next();
        self.watch.renew();
    }

    fn end(mut self) {
        (0..WRITERS).for_each(|at| self.go_on(at));
        let workers = self.writers.drain(..).map(|writer| writer.helper).collect();
        for word in self.owner.dismiss(workers) {
            println!("{}: {word}", self.kind);
        }
        println!("{}, sealed {}: {:?}", self.kind, self.sealed, self.counts);
        assert!(self.counts.ok > 0, "{:?}", self.counts);
    }
}
