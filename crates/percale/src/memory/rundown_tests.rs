//! Tests of the rundown on real threads; every interleaving is the model's business.

use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;

/// Initiators that write as fast as they may, each with a line and a word of memory of its own.
const INITIATORS: usize = 3;
const REVOCATIONS: u64 = 2000;
/// How often the revoker looks at memory that must not change.
const LOOKS: usize = 50;

struct Target {
    lines: [Line; INITIATORS],
    entry: Entry,
    /// What initiators were told of the grant.
    granted: AtomicU64,
    memory: [AtomicU64; INITIATORS],
    stop: AtomicBool,
}

impl Target {
    fn new() -> Self {
        Self {
            lines: std::array::from_fn(|_| Line::default()),
            entry: Entry::default(),
            granted: AtomicU64::new(0),
            memory: std::array::from_fn(|_| AtomicU64::new(0)),
            stop: AtomicBool::new(false),
        }
    }

    /// Writes the generation it was granted, until stopped; returns how many writes that were.
    fn initiate(&self, me: usize, renewals: usize) -> u64 {
        let (mut announcer, line, mut writes) = (Announcer::default(), &self.lines[me], 0);
        while !self.stop.load(Ordering::Relaxed) {
            let generation = self.granted.load(Ordering::Relaxed);
            announcer.enter(line);
            for piece in 0..=renewals {
                if piece > 0 {
                    announcer.renew(line);
                }
                if generation == 0 || !self.entry.holds(generation) {
                    break;
                }
                self.memory[me].store(generation, Ordering::Relaxed);
                writes += 1;
            }
            announcer.leave(line);
        }
        writes
    }

    /// Revokes and waits: busy initiators cannot keep a revoker waiting, so a bounded number of looks does.
    fn revoke(&self) {
        self.entry.revoke();
        fence_after_revoking();
        let snapshots: [_; INITIATORS] = std::array::from_fn(|line| self.lines[line].snapshot());
        for (line, then) in self.lines.iter().zip(snapshots) {
            let retired = (0..1_000_000).any(|_| {
                line.has_retired(then) || {
                    thread::yield_now();
                    false
                }
            });
            assert!(retired, "the line never retired");
        }
    }
}

fn hammer(renewals: usize) {
    let target = Target::new();
    let writes: Vec<u64> = thread::scope(|scope| {
        let target = &target;
        let initiators: [_; INITIATORS] = std::array::from_fn(|me| scope.spawn(move || target.initiate(me, renewals)));
        for generation in 1..=REVOCATIONS {
            target.entry.grant(generation);
            target.granted.store(generation, Ordering::Relaxed);
            thread::yield_now();
            target.revoke();
            // The memory is ours: what we write stays.
            let ours = u64::MAX - generation;
            target.memory.iter().for_each(|word| word.store(ours, Ordering::Relaxed));
            for _ in 0..LOOKS {
                assert!(target.memory.iter().all(|word| word.load(Ordering::Relaxed) == ours), "a write came late");
                std::hint::spin_loop();
            }
        }
        target.stop.store(true, Ordering::Relaxed);
        initiators.into_iter().map(|initiator| initiator.join().unwrap()).collect()
    });
    assert!(writes.iter().sum::<u64>() > 0, "nobody wrote, so nothing was tested");
}

#[test]
fn no_write_comes_late_from_busy_initiators() {
    hammer(0);
}

#[test]
fn no_write_comes_late_from_renewed_accesses() {
    hammer(3);
}

#[test]
fn a_line_retires_when_it_is_even_or_has_changed() {
    let (line, mut announcer) = (Line::default(), Announcer::default());
    assert!(line.has_retired(line.snapshot()), "nobody is inside");
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
    assert!(line.has_retired(second), "another access is not the revoker's business");
}

#[test]
fn a_count_that_wraps_still_tells() {
    let line = Line { sequence: AtomicU64::new(u64::MAX - 1) };
    let mut announcer = Announcer { sequence: u64::MAX - 1 };
    announcer.enter(&line);
    let then = line.snapshot();
    announcer.renew(&line);
    assert!(announcer.is_inside() && line.has_retired(then));
    announcer.leave(&line);
    assert!(!announcer.is_inside());
}

#[test]
fn an_announcer_trusts_its_own_count_only() {
    let (line, mut announcer) = (Line::default(), Announcer::default());
    line.sequence.store(0xDEAD_BEEF, Ordering::Relaxed);
    announcer.enter(&line);
    assert_eq!(line.sequence.load(Ordering::Relaxed), 1);
    line.sequence.store(0xDEAD_BEEF, Ordering::Relaxed);
    announcer.leave(&line);
    assert_eq!(line.sequence.load(Ordering::Relaxed), 2);
}

#[test]
fn an_entry_holds_for_its_generation_only() {
    let entry = Entry::default();
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
    assert!(!pin.revoke(), "it was revoked before");
    assert!(pin.enter().is_none());
    drop(first);
    assert!(!pin.is_quiet());
    drop(second);
    assert!(pin.is_quiet() && pin.enter().is_none());
}

#[test]
fn no_thread_is_inside_a_quiet_pin() {
    for round in 1..=500 {
        let (pin, memory) = (Pin::default(), [AtomicU64::new(0), AtomicU64::new(0)]);
        thread::scope(|scope| {
            for word in &memory {
                let pin = &pin;
                scope.spawn(move || {
                    while let Some(_inside) = pin.enter() {
                        word.store(round, Ordering::Relaxed);
                    }
                });
            }
            thread::yield_now();
            assert!(pin.revoke());
            let quiet = (0..1_000_000).any(|_| {
                pin.is_quiet() || {
                    thread::yield_now();
                    false
                }
            });
            assert!(quiet, "somebody stays inside");
            memory.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
            for _ in 0..LOOKS {
                assert!(memory.iter().all(|word| word.load(Ordering::Relaxed) == u64::MAX), "a write came late");
                std::hint::spin_loop();
            }
        });
    }
}
