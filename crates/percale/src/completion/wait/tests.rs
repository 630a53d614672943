//! Tests both ways of sleeping, with drivers that the tests control.

use super::*;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU32;

/// Returns whether a descriptor is readable, so that threads that sleep on it wake up.
pub(crate) fn is_readable(descriptor: impl AsFd) -> bool {
    rustix::event::poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
}

fn readable(wait: &Wait) -> bool {
    is_readable(wait.descriptor().unwrap())
}

#[test]
fn descriptor_is_readable_only_after_arm() {
    let wait = Wait::new();
    wait.notify();
    assert!(!readable(&wait));
    assert!(wait.arm().unwrap());
    assert!(!readable(&wait));
    wait.notify();
    assert!(readable(&wait), "the descriptor stays readable until a thread arms it again");
    assert!(readable(&wait));
    assert!(wait.arm().unwrap());
    assert!(!readable(&wait));
}

/// A driver that becomes ready after a number of rounds. Its descriptor is that of a pipe.
struct Driver {
    rounds: AtomicU32,
    busy: AtomicBool,
    pipe: (OwnedFd, OwnedFd),
}

impl Driver {
    fn new() -> Arc<Self> {
        let pipe = rustix::pipe::pipe().unwrap();
        Arc::new(Self { rounds: AtomicU32::new(0), busy: AtomicBool::new(false), pipe })
    }
}

impl Driven for Driver {
    fn progress(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }
    fn arm(&self) -> bool {
        !self.busy.load(Ordering::Relaxed)
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pipe.0.as_fd())
    }
}

#[test]
fn wait_progresses_attached_drivers_and_wakes_for_descriptors() {
    for before in [true, false] {
        let wait = Wait::new();
        let driver = Driver::new();
        let shared: Arc<dyn Driven> = driver.clone();
        if before {
            wait.attach(&shared).unwrap();
            assert!(!readable(&wait));
        } else {
            assert!(!readable(&wait));
            wait.attach(&shared).unwrap();
        }
        // A waiting thread goes to sleep after it has spun for a while, which on a slow processor may be one round. In
        // that case it waits again.
        let driven = || (driver.rounds.load(Ordering::Relaxed) > 3).then_some(());
        let waited = (0..100).any(|_| wait.until(Some(SPIN), driven).is_ok());
        assert!(waited, "driven {} times", driver.rounds.load(Ordering::Relaxed));
        driver.busy.store(true, Ordering::Relaxed);
        assert!(!wait.arm().unwrap());
        rustix::io::write(&driver.pipe.1, b"x").unwrap();
        assert!(readable(&wait));
        wait.detach(&shared);
        assert!(!readable(&wait));
        let rounds = driver.rounds.load(Ordering::Relaxed);
        wait.drive();
        assert_eq!(driver.rounds.load(Ordering::Relaxed), rounds);
    }
}

#[test]
fn sleeper_wakes_although_another_thread_drains_descriptor() {
    let wait = Wait::new();
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| wait.until(None, || (done.load(Ordering::SeqCst) == 1).then_some(())));
        std::thread::sleep(SPIN * 20);
        done.store(1, Ordering::SeqCst);
        wait.notify();
        for _ in 0..100 {
            assert!(wait.arm().unwrap());
        }
        sleeper.join().unwrap().unwrap();
    });
    assert!(lock(&wait.sleepers).is_empty());
}

#[test]
fn value_wait_is_not_woken_below_the_value() {
    let wait = Wait::new();
    let (value, looks) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            wait.until_value(1000, None, || {
                looks.fetch_add(1, Ordering::SeqCst);
                (value.load(Ordering::SeqCst) >= 1000).then_some(())
            })
        });
        // The thread is asleep and makes no more checks.
        let mut before = u32::MAX;
        while before != looks.load(Ordering::SeqCst) || lock(&wait.sleepers).is_empty() {
            before = looks.load(Ordering::SeqCst);
            std::thread::sleep(SPIN * 200);
        }
        let count = || {
            value.fetch_add(1, Ordering::SeqCst);
            wait.notify_value(|| value.load(Ordering::SeqCst).into());
        };
        (0..999).for_each(|_| count());
        std::thread::sleep(SPIN * 20);
        assert_eq!(looks.load(Ordering::SeqCst), before, "the thread was woken for a lower value");
        wait.notify(); // Notifies the thread of a change other than the one that it waits for.
        while looks.load(Ordering::SeqCst) == before {
            std::thread::yield_now();
        }
        count();
        sleeper.join().unwrap().unwrap();
    });
}

#[test]
fn value_wait_is_woken_at_exactly_its_value() {
    let wait = Wait::new();
    assert!(!readable(&wait));
    assert!(wait.ask(5));
    wait.notify_value(|| 4);
    assert!(!readable(&wait));
    wait.notify_value(|| 5);
    assert!(readable(&wait));
}

/// A driver whose result arrives while a thread that is about to sleep arms it.
#[derive(Default)]
struct LateResult {
    has_result: AtomicBool,
    /// The number of rounds of progress after the result arrived.
    late_rounds: AtomicU32,
}

impl Driven for LateResult {
    fn progress(&self) {
        if self.has_result.load(Ordering::SeqCst) {
            self.late_rounds.fetch_add(1, Ordering::SeqCst);
        }
    }
    fn arm(&self) -> bool {
        self.has_result.store(true, Ordering::SeqCst);
        true
    }
}

#[test]
fn armed_thread_checks_again_before_it_sleeps() {
    let wait = Wait::new();
    let driver = Arc::new(LateResult::default());
    let shared: Arc<dyn Driven> = driver.clone();
    wait.attach(&shared).unwrap();
    wait.until(None, || driver.has_result.load(Ordering::SeqCst).then_some(())).unwrap();
    assert_eq!(driver.late_rounds.load(Ordering::SeqCst), 0, "the thread slept before it found the result");
}

#[test]
fn wait_ends_at_its_timeout() {
    let wait = Wait::new();
    for timeout in [Duration::ZERO, Duration::from_millis(2)] {
        let ended = wait.until(Some(timeout), || None::<()>);
        assert!(matches!(ended, Err(WaitError::TimedOut)));
    }
}

#[test]
fn wait_misses_no_wakeup() {
    // The threads take turns. A lost wake-up would make this test hang.
    let turn = AtomicU32::new(0);
    let waits = [Wait::new(), Wait::new()];
    std::thread::scope(|scope| {
        for me in 0..2u32 {
            let (turn, waits) = (&turn, &waits);
            scope.spawn(move || {
                for round in (me..2000).step_by(2) {
                    if round % 100 < 2 {
                        std::thread::sleep(SPIN * 3);
                    }
                    let mine = &waits[me as usize];
                    mine.until(None, || (turn.load(Ordering::SeqCst) == round).then_some(())).unwrap();
                    turn.store(round + 1, Ordering::SeqCst);
                    waits[1 - me as usize].notify();
                }
            });
        }
    });
    assert_eq!(turn.into_inner(), 2000);
}
