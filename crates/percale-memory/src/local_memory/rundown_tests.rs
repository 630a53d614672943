//! Tests of the rundown with real threads. The loom model covers all interleavings.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// The number of initiators, which write as fast as possible, each with its own line and memory.
const INITIATORS: usize = 2;
const REVOCATIONS: u64 = 5_000;
/// The number of words that one access writes. It is large enough that a revocation often happens during an access.
const WORDS: usize = 64;
/// The number of steps of a thread between two yields.
const TURN: u64 = 64;
/// The number of times that the revoker checks memory that must not change.
const LOOKS: usize = 5;

struct Target {
    lines: [AnnouncementLine; INITIATORS],
    entry: KeyPageEntry,
    /// The generation that is granted to the initiators.
    granted: AtomicU64,
    memory: [[AtomicU64; WORDS]; INITIATORS],
    stop: AtomicBool,
}

impl Target {
    fn new() -> Self {
        Self {
            lines: std::array::from_fn(|_| AnnouncementLine::default()),
            entry: KeyPageEntry::default(),
            granted: AtomicU64::new(0),
            memory: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            stop: AtomicBool::new(false),
        }
    }

    /// Writes the granted generation until stopped. If `unfenced` is true, the initiator stops fencing again a few
    /// accesses after it was requested to fence.
    fn initiate(&self, me: usize, renewals: usize, unfenced: bool) {
        let (mut announcer, line) = (Announcer::default(), &self.lines[me]);
        while !self.stop.load(Ordering::Relaxed) {
            if unfenced && announcer.fenced == 8 {
                announcer.stop_fencing(line);
            }
            let generation = self.granted.load(Ordering::Relaxed);
            announcer.enter(line);
            for piece in 0..=renewals {
                if piece > 0 {
                    announcer.renew(line);
                }
                if generation == 0 || !self.entry.holds(generation) {
                    break;
                }
                write(&self.memory[me], generation, announcer.sequence);
            }
            announcer.leave(line);
            if announcer.sequence % TURN == 0 {
                thread::yield_now();
            }
        }
    }

    /// Revokes and waits. Busy initiators cannot delay a revoker, so a bounded number of checks is enough.
    fn revoke(&self) {
        self.entry.revoke();
        fence_after_revoking();
        if self.lines.iter().any(AnnouncementLine::is_unfenced) {
            assert!(fence_initiators());
            self.lines.iter().for_each(AnnouncementLine::ask_to_fence);
        }
        let snapshots: [_; INITIATORS] = std::array::from_fn(|line| self.lines[line].snapshot());
        for (line, then) in self.lines.iter().zip(snapshots) {
            soon("retired", || line.has_retired(then));
        }
    }
}

/// Waits for a condition that takes a few accesses of another thread. Yields from time to time.
fn soon(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !(0..TURN).any(|_| is_so()) {
        assert!(Instant::now() < deadline, "not {what} within a minute");
        thread::yield_now();
    }
}

/// Makes one access. From time to time the thread yields in the middle, because a revocation is most critical at that
/// point, and because there may be fewer processors than threads.
fn write(memory: &[AtomicU64], value: u64, turn: u64) {
    for (at, word) in memory.iter().enumerate() {
        if at == WORDS / 2 && turn % TURN < 2 {
            thread::yield_now();
        }
        word.store(value, Ordering::Relaxed);
    }
}

/// Checks that values written to revoked memory are not overwritten.
fn reuse_alone(memory: &[AtomicU64], value: u64) {
    memory.iter().for_each(|word| word.store(value, Ordering::Relaxed));
    for _ in 0..LOOKS {
        assert!(memory.iter().all(|word| word.load(Ordering::Relaxed) == value), "revoked memory was written");
    }
}

/// Stops the initiators, even if an assertion fails, because the scope waits for them.
struct StopsThem<'a>(&'a AtomicBool);

impl Drop for StopsThem<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn hammer(renewals: usize, unfenced: bool) {
    let target = Target::new();
    thread::scope(|scope| {
        let target = &target;
        let _stop = StopsThem(&target.stop);
        for me in 0..INITIATORS {
            scope.spawn(move || target.initiate(me, renewals, unfenced));
        }
        for generation in 1..=REVOCATIONS {
            target.entry.grant(generation);
            target.granted.store(generation, Ordering::Relaxed);
            // Revoke while an initiator is probably in the middle of writing.
            let busy = &target.memory[generation as usize % INITIATORS][0];
            soon("wrote", || busy.load(Ordering::Relaxed) == generation);
            target.revoke();
            reuse_alone(target.memory.as_flattened(), u64::MAX - generation);
        }
    });
}

#[test]
fn no_write_comes_late_from_busy_initiators() {
    hammer(0, false);
}

#[test]
fn no_write_comes_late_from_renewed_accesses() {
    hammer(3, false);
}

/// Returns whether this system allows initiators to omit fences.
fn can_go_unfenced() -> bool {
    barrier::register();
    let can = barrier::is_registered() && barrier::available();
    if !can {
        eprintln!("skipped (membarrier): the kernel rejects membarrier(2)");
    }
    can
}

#[test]
fn no_write_comes_late_from_initiators_that_do_not_fence() {
    if can_go_unfenced() {
        hammer(0, true);
        hammer(3, true);
    }
}

fn access(announcer: &mut Announcer, line: &AnnouncementLine) {
    announcer.enter(line);
    announcer.leave(line);
}

#[test]
fn initiator_stops_fencing_after_many_accesses_until_requested() {
    let (line, mut announcer) = (AnnouncementLine::default(), Announcer::default());
    line.allow_unfenced();
    if !can_go_unfenced() {
        return;
    }
    for _ in 0..2 {
        (1..FENCED_ACCESSES).for_each(|_| access(&mut announcer, &line));
        assert!(!line.is_unfenced());
        access(&mut announcer, &line);
        assert!(line.is_unfenced());
        access(&mut announcer, &line);
        assert!(line.is_unfenced());
        line.ask_to_fence();
        assert!(line.is_unfenced(), "no access was announced since the request");
        access(&mut announcer, &line);
        assert!(!line.is_unfenced());
    }
}

#[test]
fn initiator_keeps_fencing_if_the_target_cannot() {
    let (line, mut announcer) = (AnnouncementLine::default(), Announcer::default());
    (0..3 * FENCED_ACCESSES).for_each(|_| access(&mut announcer, &line));
    assert!(!line.is_unfenced());
    line.ask_to_fence();
    assert!(!line.is_unfenced(), "the line already fences");
}

#[test]
fn a_line_retires_when_it_is_even_or_has_changed() {
    let (line, mut announcer) = (AnnouncementLine::default(), Announcer::default());
    assert!(line.has_retired(line.snapshot()), "no access is in progress");
    announcer.enter(&line);
    assert!(announcer.is_inside());
    let first = line.snapshot();
    assert!(!line.has_retired(first));
    announcer.renew(&line);
    let second = line.snapshot();
    assert!(line.has_retired(first) && !line.has_retired(second));
    announcer.leave(&line);
    assert!(!announcer.is_inside() && line.has_retired(second));
    announcer.enter(&line);
    assert!(line.has_retired(second), "a later access does not delay the revoker");
}

#[test]
fn wrapped_sequence_count_still_works() {
    let line = AnnouncementLine { sequence: AtomicU64::new(u64::MAX - 1), ..AnnouncementLine::default() };
    let mut announcer = Announcer { sequence: u64::MAX - 1, ..Announcer::default() };
    announcer.enter(&line);
    let then = line.snapshot();
    announcer.renew(&line);
    assert!(announcer.is_inside() && line.has_retired(then));
    announcer.leave(&line);
    assert!(!announcer.is_inside());
}

#[test]
fn announcer_ignores_changes_to_the_shared_count() {
    let (line, mut announcer) = (AnnouncementLine::default(), Announcer::default());
    line.sequence.store(0xDEAD_BEEF, Ordering::Relaxed);
    announcer.enter(&line);
    assert_eq!(line.sequence.load(Ordering::Relaxed), 1);
    line.sequence.store(0xDEAD_BEEF, Ordering::Relaxed);
    announcer.leave(&line);
    assert_eq!(line.sequence.load(Ordering::Relaxed), 2);
}

#[test]
fn an_entry_holds_for_its_generation_only() {
    let entry = KeyPageEntry::default();
    assert!(!entry.holds(1));
    entry.grant(1);
    assert!(entry.holds(1) && !entry.holds(2));
    entry.revoke();
    assert!(!entry.holds(1));
    entry.grant(2);
    assert!(!entry.holds(1) && entry.holds(2));
}

#[test]
fn a_pin_counts_and_is_revoked_once() {
    let pin = Pin::default();
    assert!(pin.is_quiet() && !pin.is_revoked());
    let (first, second) = (pin.enter().unwrap(), pin.enter().unwrap());
    assert!(!pin.is_quiet());
    assert!(pin.revoke() && pin.is_revoked());
    assert!(!pin.revoke(), "the pin is already revoked");
    assert!(pin.enter().is_none());
    drop(first);
    assert!(!pin.is_quiet());
    drop(second);
    assert!(pin.is_quiet() && pin.enter().is_none());
}

#[test]
fn no_thread_is_inside_a_quiet_pin() {
    for round in 1..=1000 {
        let pin = Pin::default();
        let memory: [[AtomicU64; WORDS]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)));
        thread::scope(|scope| {
            for mine in &memory {
                let pin = &pin;
                scope.spawn(move || {
                    for turn in 1.. {
                        let Some(_inside) = pin.enter() else { break };
                        write(mine, round, turn);
                    }
                });
            }
            soon("inside", || memory.iter().all(|mine| mine[0].load(Ordering::Relaxed) == round));
            assert!(pin.revoke());
            soon("quiet", || pin.is_quiet());
            reuse_alone(memory.as_flattened(), u64::MAX);
        });
    }
}

#[test]
fn access_after_an_unwound_one_is_announced() {
    let (mut announcer, line) = (Announcer::default(), AnnouncementLine::default());
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        announcer.enter(&line);
        panic!("in the middle of an access");
    }));
    assert!(unwound.is_err());
    let left_open = line.snapshot();
    assert!(!line.has_retired(left_open), "the end of the access is not visible yet");
    announcer.enter(&line);
    assert!(line.has_retired(left_open));
    let under_way = line.snapshot();
    assert!(!line.has_retired(under_way));
    announcer.leave(&line);
    assert!(line.has_retired(under_way) && line.has_retired(line.snapshot()));
}
