//! How long to look before sleeping.
//!
//! A wake-up costs tens of microseconds, so a waiter looks for about [`BUDGET`] first. With more waiters than cores, looking
//! without yielding costs whole scheduler ticks: after a few looks every further one is preceded by `sched_yield`, and a waiter
//! whose yields let others run (they come back late) yields from its first look on and counts yields rather than time.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time spent looking before the first sleep.
pub(crate) const BUDGET: Duration = Duration::from_micros(50);

/// Looks before the first yield.
const LOOKS: u32 = 100;

/// Yields before the first sleep, at least: on a crowded machine they are what others' turns are counted in.
const YIELDS: u32 = 64;

/// A yield that takes this long let somebody else run.
const LATE: Duration = Duration::from_nanos(900);

thread_local! {
    /// The last wait's yields came back late: start by yielding.
    static CROWDED: Cell<bool> = const { Cell::new(false) };
}

/// What a waiter that found nothing does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again.
    Again,
    /// Sleep.
    Sleep,
    /// The deadline has passed.
    Late,
}

/// One wait.
#[derive(Debug)]
pub(crate) struct Budget {
    looks: u32,
    yields: u32,
    since: Option<Instant>,
}

impl Budget {
    /// A wait begins.
    pub(crate) fn new() -> Self {
        Self { looks: if CROWDED.get() { LOOKS } else { 0 }, yields: 0, since: None }
    }

    /// A look found nothing.
    #[inline]
    pub(crate) fn step(&mut self, deadline: Option<Instant>) -> Step {
        if self.looks < LOOKS {
            self.looks += 1;
            std::hint::spin_loop();
            if deadline.is_none() || self.looks > 1 {
                return Step::Again;
            }
        }
        self.yield_now(deadline)
    }

    fn yield_now(&mut self, deadline: Option<Instant>) -> Step {
        let before = Instant::now();
        if deadline.is_some_and(|at| before >= at) {
            return Step::Late;
        }
        if self.looks < LOOKS {
            return Step::Again;
        }
        let since = *self.since.get_or_insert(before);
        if self.yields >= YIELDS && before.duration_since(since) >= BUDGET {
            return Step::Sleep;
        }
        std::thread::yield_now();
        self.yields += 1;
        CROWDED.set(before.elapsed() >= LATE);
        Step::Again
    }

    /// Slept: look only briefly before sleeping again.
    pub(crate) fn rest(&mut self) {
        self.looks = LOOKS;
        self.yields = YIELDS - 4;
        self.since = None;
    }
}
