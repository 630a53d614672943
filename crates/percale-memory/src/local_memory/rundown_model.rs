//! Loom models of the rundown (`RUSTFLAGS="--cfg loom" cargo test --release -p percale-memory --lib loom_`). A region's
//! memory is a loom cell, which makes a model fail if two accesses to it are not ordered. This is the case if an
//! initiator's access comes after the revoker read its line as retired, or is still in progress at that time.
//!
//! Loom does not support membarrier(2). [`Interrupt`] models it: it makes a thread fence at an arbitrary point, and
//! returns after that fence.

use loom::sync::Arc;
use loom::thread::{self, yield_now};

use super::*;
use crate::sync::{Shared, explore};

const OLD: u64 = 7;
const NEW: u64 = 8;

/// The state that a target shares with its initiators.
struct Target<const LINES: usize> {
    lines: [AnnouncementLine; LINES],
    entry: KeyPageEntry,
    memory: Shared<u64>,
}

// Every field is an atomic or a loom cell, so loom checks every use.
impl<const LINES: usize> Target<LINES> {
    fn new() -> Arc<Self> {
        let target = Self {
            lines: std::array::from_fn(|_| AnnouncementLine::default()),
            entry: KeyPageEntry::default(),
            memory: Shared::new(0),
        };
        target.entry.grant(OLD);
        Arc::new(target)
    }

    fn start(
        this: &Arc<Self>,
        line: usize,
        access: impl FnOnce(&Self, &mut Announcer, &AnnouncementLine) + 'static,
    ) -> thread::JoinHandle<()> {
        let target = Arc::clone(this);
        thread::spawn(move || access(&target, &mut Announcer::default(), &target.lines[line]))
    }

    fn write(&self) {
        self.memory.with_mut(|_| ());
    }

    fn write_if_allowed(&self) {
        if self.entry.holds(OLD) {
            self.write();
        }
    }

    /// Makes one access.
    fn access(&self, announcer: &mut Announcer, line: &AnnouncementLine) {
        announcer.access(line, &self.entry, OLD, || self.write());
    }

    /// Makes two accesses.
    fn access_twice(&self, announcer: &mut Announcer, line: &AnnouncementLine) {
        self.access(announcer, line);
        self.access(announcer, line);
    }

    /// Acts as a region's owner: revokes the right, waits, and uses the memory for another purpose.
    fn revoke(&self) {
        self.entry.revoke();
        fence_after_revoking();
        let snapshots: [_; LINES] = std::array::from_fn(|line| self.lines[line].snapshot());
        for (line, then) in self.lines.iter().zip(snapshots) {
            while !line.has_retired(then) {
                yield_now();
            }
        }
        self.write();
    }
}

/// membarrier(2) for loom, which makes a thread fence at an arbitrary point.
struct Interrupt {
    requested: AtomicU32,
    done: AtomicU32,
}

impl Interrupt {
    fn new() -> Arc<Self> {
        Arc::new(Self { requested: AtomicU32::new(0), done: AtomicU32::new(0) })
    }

    /// Called between two steps of the thread, where the interrupt may occur.
    fn may_come(&self) {
        if self.requested.load(Ordering::Relaxed) != self.done.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            self.done.store(self.requested.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    /// Called when the thread has ended. This is also a fence.
    fn ended(&self) {
        fence(Ordering::SeqCst);
        self.done.store(u32::MAX, Ordering::Release);
    }

    /// Called by the revoker.
    fn everywhere(&self, turn: u32) {
        fence(Ordering::SeqCst);
        self.requested.store(turn, Ordering::Relaxed);
        while self.done.load(Ordering::Acquire) < turn {
            yield_now();
        }
        fence(Ordering::SeqCst);
    }
}

/// Checks the model of an initiator that makes accesses while its right is revoked.
fn revoked_during(
    expected: usize,
    accesses: impl Fn(&Target<1>, &mut Announcer, &AnnouncementLine) + Copy + Send + Sync + 'static,
) {
    explore(None, expected, move || {
        let target = Target::<1>::new();
        let initiator = Target::start(&target, 0, accesses);
        target.revoke();
        initiator.join().unwrap();
    });
}

/// Requirements: REV-007.
#[test]
fn loom_no_write_lands_after_its_line_retired() {
    revoked_during(35, Target::access);
}

/// The revoker may find that the line has changed and is odd. It then need not wait for the second access.
///
/// Requirements: REV-007.
#[test]
fn loom_a_changed_line_has_retired_though_it_is_odd() {
    revoked_during(400, Target::access_twice);
}

/// Requirements: REV-007.
#[test]
fn loom_renewed_access_checks_the_entry_again() {
    revoked_during(150, |target, announcer, line| {
        announcer.enter(line);
        target.write_if_allowed();
        announcer.renew(line);
        target.write_if_allowed();
        announcer.leave(line);
    });
}

/// The entry is granted again while the initiator of the first grant continues. That initiator must not mistake the new
/// grant for its own grant.
///
/// Requirements: REV-007.
#[test]
fn loom_an_old_generation_does_not_hold_under_a_new_grant() {
    explore(None, 1000, || {
        let target = Target::<1>::new();
        let initiator = Target::start(&target, 0, Target::access_twice);
        target.revoke();
        target.entry.grant(NEW);
        target.write();
        assert!(target.entry.holds(NEW) && !target.entry.holds(OLD));
        initiator.join().unwrap();
    });
}

/// One fence covers all lines. Each initiator has its own memory, because their accesses are not ordered.
///
/// Requirements: REV-007.
#[test]
fn loom_one_fence_serves_every_line() {
    explore(Some(3), 1000, || {
        let target = Target::<2>::new();
        let other = Arc::new(Shared::new(0));
        let first = Target::start(&target, 0, Target::access);
        let second = {
            let other = Arc::clone(&other);
            Target::start(&target, 1, move |target, announcer, line| {
                announcer.enter(line);
                if target.entry.holds(OLD) {
                    other.with_mut(|_| ());
                }
                announcer.leave(line);
            })
        };
        target.revoke();
        other.with_mut(|_| ());
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// Two entries and their memories under one line, so that rights of one initiator can be revoked twice.
struct Twice {
    line: AnnouncementLine,
    entries: [KeyPageEntry; 2],
    memory: [Shared<u64>; 2],
}

impl Twice {
    fn new() -> Arc<Self> {
        let twice = Self {
            line: AnnouncementLine::default(),
            entries: [KeyPageEntry::default(), KeyPageEntry::default()],
            memory: [Shared::new(0), Shared::new(0)],
        };
        twice.entries.iter().for_each(|entry| entry.grant(OLD));
        Arc::new(twice)
    }

    /// Starts an initiator.
    fn start(
        this: &Arc<Self>,
        interrupt: &Arc<Interrupt>,
        accesses: impl FnOnce(&Self, &Interrupt) + 'static,
    ) -> thread::JoinHandle<()> {
        let (twice, interrupt) = (Arc::clone(this), Arc::clone(interrupt));
        thread::spawn(move || accesses(&twice, &interrupt))
    }

    /// Makes one access, which may be interrupted at any point.
    fn access(&self, announcer: &mut Announcer, interrupt: &Interrupt, which: usize) {
        announcer.enter(&self.line);
        interrupt.may_come();
        if self.entries[which].holds(OLD) {
            interrupt.may_come();
            self.memory[which].with_mut(|_| ());
        }
        announcer.leave(&self.line);
        interrupt.may_come();
    }

    /// Revokes an entry, like the owner of a region that allows initiators to omit fences.
    fn revoke(&self, which: usize, interrupt: impl FnOnce()) {
        self.entries[which].revoke();
        fence_after_revoking();
        if self.line.is_unfenced() {
            interrupt();
            self.line.ask_to_fence();
        }
        let then = self.line.snapshot();
        while !self.line.has_retired(then) {
            yield_now();
        }
        self.memory[which].with_mut(|_| ());
    }
}

/// An initiator stops fencing while a right is revoked.
///
/// Requirements: REV-007.
#[test]
fn loom_no_write_lands_late_while_its_initiator_stops_fencing() {
    explore(Some(3), 600, || {
        let (twice, interrupt) = (Twice::new(), Interrupt::new());
        let initiator = Twice::start(&twice, &interrupt, |twice, interrupt| {
            let mut announcer = Announcer::default();
            announcer.stop_fencing(&twice.line);
            interrupt.may_come();
            twice.access(&mut announcer, interrupt, 0);
            twice.access(&mut announcer, interrupt, 0);
            interrupt.ended();
        });
        twice.revoke(0, || interrupt.everywhere(1));
        initiator.join().unwrap();
    });
}

/// A revocation requests that an initiator that does not fence start fencing again. At the next revocation the
/// initiator may or may not have done so.
///
/// Requirements: REV-007.
#[test]
fn loom_no_late_write_while_the_initiator_resumes_fencing() {
    explore(Some(3), 5000, || {
        let (twice, interrupt) = (Twice::new(), Interrupt::new());
        let mut announcer = Announcer::default();
        announcer.stop_fencing(&twice.line);
        let initiator = Twice::start(&twice, &interrupt, move |twice, interrupt| {
            twice.access(&mut announcer, interrupt, 0);
            twice.access(&mut announcer, interrupt, 1);
            interrupt.ended();
        });
        for which in 0..2 {
            twice.revoke(which, || interrupt.everywhere(which as u32 + 1));
        }
        initiator.join().unwrap();
    });
}

/// The model detects this defect: a revoker that does not fence for an initiator that announces without fences returns
/// too early.
///
/// Requirements: REV-007.
#[test]
#[should_panic(expected = "access")]
fn loom_model_detects_missing_fence_for_unfenced_initiator() {
    explore(Some(3), 2, || {
        let (twice, interrupt) = (Twice::new(), Interrupt::new());
        let mut announcer = Announcer::default();
        announcer.stop_fencing(&twice.line);
        let initiator =
            Twice::start(&twice, &interrupt, move |twice, interrupt| twice.access(&mut announcer, interrupt, 0));
        twice.revoke(0, || ());
        initiator.join().unwrap();
    });
}

/// The model detects this defect: an initiator marks its line as unfenced without a fence.
///
/// Requirements: REV-007.
#[test]
#[should_panic(expected = "access")]
fn loom_model_detects_unfenced_stop_of_fencing() {
    explore(Some(3), 2, || {
        let (twice, interrupt) = (Twice::new(), Interrupt::new());
        let initiator = Twice::start(&twice, &interrupt, |twice, interrupt| {
            let mut announcer = Announcer { unfenced: true, ..Announcer::default() };
            twice.line.manner.store(UNFENCED, Ordering::Relaxed);
            interrupt.may_come();
            twice.access(&mut announcer, interrupt, 0);
            interrupt.ended();
        });
        twice.revoke(0, || interrupt.everywhere(1));
        initiator.join().unwrap();
    });
}

/// The model detects this defect: if an announcement has no fence, neither side may see the other's write.
///
/// Requirements: REV-007.
#[test]
#[should_panic(expected = "access")]
fn loom_model_detects_unfenced_announcement() {
    revoked_during(2, |target, _, line| {
        line.sequence.store(1, Ordering::Relaxed);
        target.write_if_allowed();
        line.sequence.store(2, Ordering::Release);
    });
}

/// The model detects this defect: if a revoker has not fenced before it reads the line, neither side may see the
/// other's write.
///
/// Requirements: REV-007.
#[test]
#[should_panic(expected = "access")]
fn loom_model_detects_unfenced_revocation() {
    explore(None, 2, || {
        let target = Target::<1>::new();
        let initiator = Target::start(&target, 0, Target::access);
        target.entry.revoke();
        let then = target.lines[0].snapshot();
        while !target.lines[0].has_retired(then) {
            yield_now();
        }
        target.write();
        initiator.join().unwrap();
    });
}

/// The model detects this defect: an initiator that renews without checking the entry again writes too late.
///
/// Requirements: REV-007.
#[test]
#[should_panic(expected = "access")]
fn loom_model_detects_renewal_without_check() {
    revoked_during(2, |target, announcer, line| {
        announcer.enter(line);
        if target.entry.holds(OLD) {
            announcer.renew(line);
            target.write();
        }
        announcer.leave(line);
    });
}

/// A pin and the memory that it protects. There is one cell for each thread that enters, because their accesses are not
/// ordered.
struct Pinned {
    pin: Pin,
    memory: [Shared<u64>; 2],
}

impl Pinned {
    fn new() -> Arc<Self> {
        Arc::new(Self { pin: Pin::default(), memory: [Shared::new(0), Shared::new(0)] })
    }

    fn start(this: &Arc<Self>, cell: usize, times: usize) -> thread::JoinHandle<()> {
        let pinned = Arc::clone(this);
        thread::spawn(move || {
            for _ in 0..times {
                if let Some(_inside) = pinned.pin.enter() {
                    pinned.memory[cell].with_mut(|_| ());
                }
            }
        })
    }

    fn reuse(&self) {
        while !self.pin.is_quiet() {
            yield_now();
        }
        self.memory.iter().for_each(|cell| cell.with_mut(|_| ()));
    }
}

/// Requirements: REV-007.
#[test]
fn loom_no_thread_is_inside_a_revoked_quiet_pin() {
    explore(Some(3), 2500, || {
        let pinned = Pinned::new();
        let threads = [Pinned::start(&pinned, 0, 2), Pinned::start(&pinned, 1, 1)];
        assert!(pinned.pin.revoke());
        pinned.reuse();
        assert!(!pinned.pin.revoke() && pinned.pin.enter().is_none());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// The model detects this defect: a pin that is quiet but was not revoked does not prove anything.
///
/// Requirements: REV-007.
#[test]
#[should_panic(expected = "access")]
fn loom_model_detects_reuse_of_unrevoked_pin() {
    explore(None, 2, || {
        let pinned = Pinned::new();
        let thread = Pinned::start(&pinned, 0, 1);
        pinned.reuse();
        thread.join().unwrap();
    });
}
