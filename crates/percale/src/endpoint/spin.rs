//! How long to look before sleeping.
//!
//! A wake-up costs microseconds (tens of them if the processor slept too), so a waiter looks before it sleeps:
//! 1. [`LOOKS`] times without more ado (2.3 µs with one idle peer): two processes that have a processor each answer
//!    within them, and pay for no system call;
//! 2. then after a `sched_yield` each time, for at most [`BUDGET`]: while nobody else wants the processor, looking
//!    costs nobody anything;
//! 3. but after a few yields in a row that came back late ([`LATES`] and, by lot, some more), it sleeps at once. A late
//!    yield let others run, so there are more of them than processors, and every further yield is a turn that the one
//!    with something to do waits for. By lot, because two that yield to each other and sleep at the same time leave
//!    their processor idle, and to wake an idle one takes longer than all else: the one that stays has it to itself, its
//!    yields are prompt again, and who is woken next finds the processor awake.
//!
//! A thread with a late yield is *crowded*: its next [`MEMORY`] waits yield from their first failed look on, as looks
//! would take the processor from those whom it waits for. Waits without a late yield use the memory up, so a thread
//! that is alone again looks again.
//!
//! Both ways out of step 2 are bounded (by time, and by a number of yields of which each is one turn of everyone
//! else), so an idle waiter takes no processor time.
//!
//! # Why these numbers
//! Measured on a virtual machine with two processors by the example `token_ring` of percale-conformance: the hop of a
//! ring of 16 processes, beside that of two (0.3 µs) and a context switch (1.0 µs).
//! * Yielding to the end of the budget took 4.8 to 7.5 µs a hop; sleeping at once 3.6 µs, but 5.8 µs for the two;
//!   sleeping after late yields 2.3 to 5.0 µs, by what else the machine did, and the two keep their 0.3 µs.
//! * On another such machine, where to wake an idle processor takes 20 to 30 µs: 20 µs without the lot, 6.3 to 9.5 µs with
//!   up to 3 yields more, 5.4 to 6.2 µs with up to 7, 15 or 31, once 7.7. (If only a quarter of the waiters stayed: 7 to 9 µs.)
//! * Between one and four for [`LATES`] the ring shows no difference beyond its noise. Two, so that a pair that shares
//!   its processor with a third process still has a turn to answer in.
//! * [`LATE`] lies between a yield to nobody (0.20 µs, 0.35 at the 99th percentile) and one to a process that yields
//!   back at once (1.17 µs at the 10th).
//! * [`MEMORY`]: 16 and 64 waits did the same.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time spent yielding before a sleep.
pub(crate) const BUDGET: Duration = Duration::from_micros(50);

/// Looks before the first yield.
const LOOKS: u32 = 100;

/// A yield that takes this long let somebody else run.
const LATE: Duration = Duration::from_nanos(700);

/// Late yields in a row before a sleep.
const LATES: u32 = 2;

/// By lot, fewer than so many more; a power of two.
const LOTS: u32 = 16;

/// Waits for which a late yield is remembered.
const MEMORY: u32 = 32;

thread_local! {
    /// What lots are drawn from: never 0.
    static LOT: Cell<u32> = Cell::new(std::process::id() | 1);
    /// How many more of this thread's waits begin with a yield.
    static CROWDED: Cell<u32> = const { Cell::new(0) };
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

/// The clock and the scheduler; tests have their own.
trait World {
    fn now(&mut self) -> Instant;
    fn yield_now(&mut self);
}

struct Real;

impl World for Real {
    fn now(&mut self) -> Instant {
        Instant::now()
    }

    fn yield_now(&mut self) {
        std::thread::yield_now();
    }
}

/// How many late yields the next wait bears: Marsaglia's xorshift, whose upper bits are the better ones.
fn draw() -> u32 {
    let mut lot = LOT.get();
    lot ^= lot << 13;
    lot ^= lot >> 17;
    lot ^= lot << 5;
    LOT.set(lot);
    LATES + lot / (u32::MAX / LOTS + 1)
}

/// One wait.
#[derive(Debug)]
pub(crate) struct Budget {
    looks: u32,
    /// Late yields in a row, and how many it bears.
    lates: u32,
    bears: u32,
    /// The first yield, or the first one since the last sleep.
    since: Option<Instant>,
}

impl Budget {
    /// A wait begins.
    pub(crate) fn new() -> Self {
        Self { looks: if CROWDED.get() > 0 { LOOKS } else { 0 }, lates: 0, bears: draw(), since: None }
    }

    /// A look found nothing.
    #[inline]
    pub(crate) fn step(&mut self, deadline: Option<Instant>) -> Step {
        if self.looks < LOOKS {
            self.looks += 1;
            std::hint::spin_loop();
            // A deadline that has passed is noticed at once; reading the clock every time would slow the looks down.
            if self.looks == 1 && deadline.is_some_and(|at| Instant::now() >= at) {
                return Step::Late;
            }
            return Step::Again;
        }
        self.step_aside(deadline, &mut Real)
    }

    #[inline(never)]
    fn step_aside(&mut self, deadline: Option<Instant>, world: &mut impl World) -> Step {
        let before = world.now();
        if deadline.is_some_and(|at| before >= at) {
            return Step::Late;
        }
        let since = *self.since.get_or_insert_with(|| {
            CROWDED.set(CROWDED.get().saturating_sub(1));
            before
        });
        if self.lates >= self.bears || before.duration_since(since) >= BUDGET {
            return Step::Sleep;
        }
        world.yield_now();
        if world.now().duration_since(before) >= LATE {
            self.lates += 1;
            CROWDED.set(MEMORY);
        } else {
            self.lates = 0;
        }
        Step::Again
    }

    /// Slept: look again before sleeping again, but if others want the processor, only briefly.
    pub(crate) fn rest(&mut self) {
        self.looks = LOOKS;
        self.lates = self.bears - 1;
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields that take the same time each.
    struct Fake {
        now: Instant,
        a_yield: Duration,
        yields: u32,
    }

    impl Fake {
        fn new(a_yield: Duration) -> Self {
            Self { now: Instant::now(), a_yield, yields: 0 }
        }

        /// Waits in vain, without the looks; how many yields there were before the sleep.
        fn yields_of(&mut self, wait: &mut Budget) -> u32 {
            let before = self.yields;
            for _ in 0..1000 {
                match wait.step_aside(None, self) {
                    Step::Again => {}
                    Step::Sleep => return self.yields - before,
                    Step::Late => panic!("there is no deadline"),
                }
            }
            panic!("it never sleeps");
        }
    }

    impl World for Fake {
        fn now(&mut self) -> Instant {
            self.now
        }

        fn yield_now(&mut self) {
            self.now += self.a_yield;
            self.yields += 1;
        }
    }

    const PROMPT: Duration = Duration::from_nanos(500);

    /// The looks of a wait before its first yield.
    fn looks() -> u32 {
        LOOKS - Budget::new().looks
    }

    #[test]
    fn a_waiter_that_is_alone_looks_then_yields_for_its_budget_then_sleeps() {
        CROWDED.set(0);
        let mut wait = Budget::new();
        for _ in 0..LOOKS {
            assert_eq!(wait.step(None), Step::Again);
            assert_eq!(wait.since, None, "no yield yet");
        }
        assert_eq!(Fake::new(PROMPT).yields_of(&mut wait), 100);
        assert_eq!(looks(), LOOKS, "nobody else was there");
    }

    #[test]
    fn a_waiter_among_many_sleeps_after_few_yields_and_remembers() {
        CROWDED.set(0);
        let mut many = Fake::new(LATE);
        let mut seen = [false; LOTS as usize];
        for _ in 0..1000 {
            let mut wait = Budget::new();
            let bears = wait.bears;
            assert_eq!(many.yields_of(&mut wait), bears);
            seen[(bears - LATES) as usize] = true;
        }
        assert_eq!(seen, [true; LOTS as usize], "each lot is drawn");
        assert_eq!(looks(), 0, "the next wait yields at once");
        // Turns that take long are no reason to take fewer, within the budget.
        let mut long = Fake::new(Duration::from_micros(24));
        assert!((LATES..=3).contains(&long.yields_of(&mut Budget::new())));
    }

    #[test]
    fn who_has_the_processor_to_itself_again_stays() {
        CROWDED.set(0);
        let mut wait = Budget::new();
        let mut many = Fake::new(LATE);
        for _ in 1..wait.bears {
            assert_eq!(wait.step_aside(None, &mut many), Step::Again);
        }
        many.a_yield = PROMPT;
        assert_eq!(wait.step_aside(None, &mut many), Step::Again, "the others sleep");
        assert_eq!(wait.lates, 0);
        many.a_yield = LATE;
        assert!(many.yields_of(&mut wait) >= LATES, "it bears others anew");
    }

    #[test]
    fn being_crowded_is_forgotten_by_waits_without_late_yields() {
        CROWDED.set(0);
        Fake::new(LATE).yields_of(&mut Budget::new());
        let mut alone = Fake::new(PROMPT);
        for _ in 0..MEMORY {
            assert_eq!(looks(), 0);
            alone.yields_of(&mut Budget::new());
        }
        assert_eq!(looks(), LOOKS);
        // A wait that needs no yield says nothing either way.
        CROWDED.set(3);
        assert_eq!(looks(), 0);
        assert_eq!(CROWDED.get(), 3);
    }

    #[test]
    fn after_a_sleep_one_late_yield_is_enough() {
        CROWDED.set(0);
        let mut many = Fake::new(LATE);
        let mut wait = Budget::new();
        many.yields_of(&mut wait);
        wait.rest();
        assert_eq!(many.yields_of(&mut wait), 1);
        wait.rest();
        assert_eq!(Fake::new(PROMPT).yields_of(&mut wait), 100, "alone, it has its budget again");
    }

    #[test]
    fn deadlines_are_seen_at_the_first_look_and_before_every_yield() {
        CROWDED.set(0);
        let mut world = Fake::new(PROMPT);
        assert_eq!(Budget::new().step(Some(world.now)), Step::Late, "passed already");
        let deadline = Some(world.now + 3 * PROMPT);
        let mut wait = Budget::new();
        while wait.step_aside(deadline, &mut world) == Step::Again {}
        assert_eq!(world.yields, 3);
        assert_eq!(wait.step_aside(deadline, &mut world), Step::Late);
    }
}
