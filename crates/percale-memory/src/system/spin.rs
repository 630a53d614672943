//! Determines how long a waiting thread polls before it sleeps.
//!
//! A wake-up costs microseconds (tens of them if it crosses to another processor of a virtual machine), so a waiting
//! thread polls before it sleeps. A *look* is one check for progress.
//! 1. The thread makes `LOOKS` looks without a system call (2.3 µs with one idle peer). Two processes that each have a
//!    processor answer within that time.
//! 2. Then it calls `sched_yield` before each look, for at most `BUDGET`. While no other thread needs the processor,
//!    these looks do not take time from any thread.
//! 3. After a few late yields in a row (`LATES`), it sleeps at once if the peer from which it last received a message
//!    runs on the same processor. A late yield let other threads run, so there are more threads than processors. During
//!    each further yield, the thread that has work to do would have to wait, and a wake-up from the same processor is
//!    cheap. A wake-up from another processor is not cheap. In that case the thread continues to yield, for at most
//!    `CROWDED_BUDGET`, which also keeps its processor awake.
//!
//! A thread with a late yield is *crowded*. Its next `MEMORY` waits yield after their first look without a result,
//! because looks without a yield would take the processor from the threads for which it waits. One more late yield is
//! then enough to sleep. Each wait that yields, but has no late yield, reduces this count, so a thread that is alone
//! again returns to looks without yields.
//!
//! Both ways out of step 2 are bounded, one by time and one by a number of yields, each of which lasts one turn of all
//! other threads. So an idle waiting thread does not use processor time.
//!
//! A yield is late if it takes at least `LATE` and the kernel has counted that the thread lost its processor. The time
//! alone is not enough: in a program that computes between two looks, a yield takes as long because the kernel's code
//! is not in the cache. (HPCC's MPIRandomAccess on two ranks and two processors: 1.40 s with the time alone, 1.17 s
//! with both.)
//!
//! # Why these numbers
//! Measured with the example `token_ring` of percale-conformance. The figures are the time of one hop in a ring of 16
//! processes on two processors. For comparison, a hop in a ring of two takes 0.3 µs and a context switch 1.1 µs. On a
//! virtual machine where waking up the other processor takes the waking thread 12 µs, and the woken thread 20 to 40 µs,
//! whether idle or not:
//! * Sleeping after two late yields, independently of the peer's processor, took 20 µs per hop. With sleepers chosen at
//!   random it took 5.5 to 6 µs. Yielding for 80 to 150 µs and then sleeping took 4.5 to 5 µs (a turn among eight
//!   threads costs 1.06 µs, and a hop waits for four of them).
//! * Checking on which processor the peer runs took 2.9 to 3.4 µs with 150 µs for `CROWDED_BUDGET`, 3.1 to 3.6 µs with
//!   250 µs, 3.2 to 4.3 µs with 100 µs, and 5 to 10 µs with 80 µs. With 80 µs a round takes longer than the budget, so
//!   all threads sleep.
//! * On another machine, where a wake-up of another processor is cheap, sleeping after late yields took 2.3 to 5.0 µs.
//! * For values of `LATES` from one to four the difference is within the noise. It is two, so that a pair that shares
//!   its processor with a third process still has a turn to answer in.
//! * `LATE` lies between the time of a yield that no other thread uses (0.20 µs, 0.35 µs at the 99th percentile) and
//!   that of a yield to a process that yields back at once (1.17 µs at the 10th percentile).
//! * `MEMORY`: 16 and 64 waits gave the same results.
//!
//! # Threads that poll
//! A thread that polls by itself (`Endpoint::poll`, `CompletionQueue::read`, fi_cq_read(3)) does not sleep, but the
//! message for which it polls may come from a process that waits for this processor. So reads that find nothing are
//! counted ([`EmptyReads`]), and from time to time the caller offers the processor ([`offer`]), while it holds no lock.
//! It does so after `READS` looks without a result or, if the thread is crowded, from the second such read on. (A
//! client that reads until the queue is empty always has one read without a result after a message, although it does
//! not wait.) Late yields make the thread crowded, and prompt yields end that state, as above. Many clients yield by
//! themselves between two reads, like Open MPI, or compute. In that case the other threads have had their turn, and a
//! crowded thread offers the processor only at every `ELSEWHERE_READS`th read ([`begins`]). Four ranks of HPCC on two
//! processors took 19.3 s with an offer at every read, and take 16.4 s with this rule (shared memory).

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::thread::lost_processor;

/// The maximum time for which a thread yields before it sleeps.
pub const BUDGET: Duration = Duration::from_micros(50);

/// The maximum time for which a thread yields before it sleeps if there are more threads than processors.
const CROWDED_BUDGET: Duration = Duration::from_micros(150);

/// The number of looks before the first yield.
const LOOKS: u32 = 100;

/// A yield that takes at least this long may have let another thread run. The kernel's count shows whether it did
/// ([`lost_processor`]).
const LATE: Duration = Duration::from_nanos(700);

/// The number of late yields in a row before a sleep.
const LATES: u32 = 2;

/// The number of waits for which a late yield is remembered.
const MEMORY: u32 = 32;

/// The number of looks without a result after which a polling thread offers its processor (20 µs with one idle peer).
const READS: u32 = 512;

/// The number of reads without a result after which a crowded thread offers its processor.
const CROWDED_READS: u32 = 2;

/// The number of reads without a result after which a crowded thread offers its processor even if it did other work
/// between them. If it computed and did not yield, the other threads had no turn.
const ELSEWHERE_READS: u32 = 8;

thread_local! {
    /// The number of further waits of this thread that begin with a yield.
    static CROWDED: Cell<u32> = const { Cell::new(0) };
    /// The value of [`lost_processor`] at the last late yield.
    static LOST: Cell<Option<u64>> = const { Cell::new(None) };
    /// Whether late yields are disabled for this thread.
    static ALONE: Cell<bool> = const { Cell::new(false) };
    /// If the thread is crowded, the time when its last read that found nothing ended, including the offer that
    /// followed, if any.
    static WAS_HERE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether the thread has done other work since then. See [`begins`].
    static ELSEWHERE: Cell<bool> = const { Cell::new(false) };
    /// The reads without a result of this thread from queues to which several endpoints report.
    static EMPTY_READS: Cell<EmptyReads> = const { Cell::new(EmptyReads::NONE) };
}

/// Returns whether other threads need the processors of this thread: its last yields let other threads run.
#[inline]
pub fn is_crowded() -> bool {
    CROWDED.get() > 0
}

/// A number of consecutive reads that found nothing.
#[derive(Clone, Copy, Debug)]
pub struct EmptyReads {
    reads: u32,
    looks: u32,
}

impl EmptyReads {
    /// No reads so far.
    pub const NONE: Self = Self { reads: 0, looks: 0 };

    /// Records that a read found nothing and took as much time as `looks` looks at a ring. Returns whether the caller
    /// should [`offer`] the processor.
    #[inline]
    pub fn is_offer_due(&mut self, looks: u32) -> bool {
        (self.reads, self.looks) = (self.reads + 1, self.looks + looks);
        let is_due =
            self.looks >= READS || (self.reads >= CROWDED_READS && is_crowded() && is_offer_due_among_many(self.reads));
        if is_due {
            (self.reads, self.looks) = (CROWDED_READS - 1, 0);
        }
        is_due
    }
}

/// Records that a crowded thread begins a read. This is used to detect whether it did other work since its last read
/// that found nothing. If at least the time of a late yield has passed, the thread has yielded by itself or computed in
/// between.
#[cold]
pub fn begins() {
    begins_at(Instant::now());
}

fn begins_at(now: Instant) {
    ELSEWHERE.set(WAS_HERE.get().is_some_and(|last| now.duration_since(last) >= LATE));
}

/// Returns whether a crowded thread that found nothing `reads` times should offer its processor. It should rarely do so
/// if it did other work.
#[cold]
fn is_offer_due_among_many(reads: u32) -> bool {
    let was_elsewhere = ELSEWHERE.replace(false);
    if was_elsewhere {
        WAS_HERE.set(Some(Instant::now()));
    }
    !was_elsewhere || reads >= ELSEWHERE_READS
}

/// Offers the processor to other threads, and records whether another thread used it.
#[inline(never)]
pub fn offer() {
    offer_in(&mut Real);
}

/// Returns whether a yield that took this long let another thread run. A yield can also take a long time because
/// the kernel's code was not in the cache.
fn another_thread_ran(world: &mut impl World, took: Duration) -> bool {
    took >= LATE && !ALONE.get() && world.lost_processor()
}

fn offer_in(world: &mut impl World) {
    let before = world.now();
    world.yield_now();
    let after = world.now();
    if another_thread_ran(world, after.duration_since(before)) {
        CROWDED.set(MEMORY);
    } else {
        CROWDED.set(CROWDED.get().saturating_sub(1));
    }
    WAS_HERE.set(Some(after));
}

/// Disables late yields, for programs that count instructions: yields of this thread no longer count as yields that let
/// other threads run. Under valgrind every yield is late.
#[doc(hidden)]
#[inline]
pub fn assume_alone() {
    ALONE.set(true);
}

/// Counts a round of progress that found nothing, and from time to time offers the processor to other threads. It is
/// for an application's own loop that drives endpoints with `Endpoint::progress`. `Endpoint::poll` does the same by
/// itself. If other threads often use the processor, it is offered sooner.
#[inline]
pub fn offer_when_idle() {
    let mut empty_reads = EMPTY_READS.get();
    let is_due = empty_reads.is_offer_due(PROGRESS_LOOKS);
    EMPTY_READS.set(empty_reads);
    if is_due {
        offer();
    }
}

/// Records that a read found something, which restarts the count of reads that find nothing.
#[inline]
pub fn found() {
    EMPTY_READS.set(EmptyReads::NONE);
}

/// The number of looks that a round of progress counts as.
pub const PROGRESS_LOOKS: u32 = 4;

/// The next step of a waiting thread that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinStep {
    /// Look again.
    Again,
    /// Sleep.
    Sleep,
    /// The deadline has passed.
    Late,
}

/// The clock and the scheduler. Tests use their own implementation.
trait World {
    fn now(&mut self) -> Instant;
    fn yield_now(&mut self);
    /// Returns whether another thread got the processor of this thread since the last call. Returns true if this is
    /// unknown.
    fn lost_processor(&mut self) -> bool;
}

struct Real;

impl World for Real {
    fn now(&mut self) -> Instant {
        Instant::now()
    }

    fn yield_now(&mut self) {
        std::thread::yield_now();
    }

    fn lost_processor(&mut self) -> bool {
        let count = lost_processor();
        count.is_none() || LOST.replace(count) != count
    }
}

/// The state of one wait.
#[derive(Debug)]
pub struct SpinBudget {
    looks: u32,
    /// The number of late yields in a row.
    lates: u32,
    /// The time of the first yield, or of the first yield since the last sleep.
    since: Option<Instant>,
}

impl SpinBudget {
    /// Starts a wait.
    #[inline]
    #[expect(clippy::new_without_default, reason = "the value depends on the state of the thread")]
    pub fn new() -> Self {
        let (looks, lates) = if CROWDED.get() > 0 { (LOOKS, LATES - 1) } else { (0, 0) };
        Self { looks, lates, since: None }
    }

    /// Records that a look found nothing, and returns the next step. `near` returns whether the peer that will probably
    /// end the wait runs on this processor. It is called only for a crowded thread.
    #[inline]
    pub fn step(&mut self, deadline: Option<Instant>, near: impl FnOnce() -> bool) -> SpinStep {
        if self.looks < LOOKS {
            self.looks += 1;
            std::hint::spin_loop();
            // A deadline that has already passed is detected at once. Reading the clock at every look would slow down
            // the looks.
            if self.looks == 1 && deadline.is_some_and(|at| Instant::now() >= at) {
                return SpinStep::Late;
            }
            return SpinStep::Again;
        }
        self.yield_processor(deadline, near, &mut Real)
    }

    #[inline(never)]
    fn yield_processor(
        &mut self,
        deadline: Option<Instant>,
        near: impl FnOnce() -> bool,
        world: &mut impl World,
    ) -> SpinStep {
        let before = world.now();
        if deadline.is_some_and(|at| before >= at) {
            return SpinStep::Late;
        }
        let since = *self.since.get_or_insert_with(|| {
            CROWDED.set(CROWDED.get().saturating_sub(1));
            before
        });
        let budget = if CROWDED.get() > 0 { CROWDED_BUDGET } else { BUDGET };
        if before.duration_since(since) >= budget || (self.lates >= LATES && near()) {
            return SpinStep::Sleep;
        }
        world.yield_now();
        let took = world.now().duration_since(before);
        if another_thread_ran(world, took) {
            self.lates += 1;
            CROWDED.set(MEMORY);
        } else {
            self.lates = 0;
        }
        SpinStep::Again
    }

    /// Records that the thread slept. It looks again before it sleeps again, but only briefly if other threads need the
    /// processor.
    #[inline]
    pub fn rest(&mut self) {
        (self.looks, self.lates) = (LOOKS, LATES - 1);
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scheduler that takes the same time for every yield.
    struct Fake {
        now: Instant,
        a_yield: Duration,
        yields: u32,
        /// Whether no other thread runs during a late yield.
        undisturbed: bool,
    }

    impl Fake {
        fn new(a_yield: Duration) -> Self {
            Self { now: Instant::now(), a_yield, yields: 0, undisturbed: false }
        }

        /// Waits without a result for a peer on this processor, without the initial looks. Returns the number of yields
        /// before the sleep.
        fn yields_of(&mut self, wait: &mut SpinBudget) -> u32 {
            self.yields_for(wait, true)
        }

        fn yields_for(&mut self, wait: &mut SpinBudget, near: bool) -> u32 {
            let before = self.yields;
            for _ in 0..1000 {
                match wait.yield_processor(None, || near, self) {
                    SpinStep::Again => {}
                    SpinStep::Sleep => return self.yields - before,
                    SpinStep::Late => panic!("there is no deadline"),
                }
            }
            panic!("the thread never sleeps");
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

        fn lost_processor(&mut self) -> bool {
            !self.undisturbed
        }
    }

    const PROMPT: Duration = Duration::from_nanos(500);

    /// Returns the number of looks of a wait before its first yield.
    fn looks() -> u32 {
        LOOKS - SpinBudget::new().looks
    }

    /// A `near` function that must not be called.
    fn must_not_be_called() -> bool {
        panic!("called by a thread that is not crowded");
    }

    #[test]
    fn lone_waiter_polls_then_yields_then_sleeps() {
        CROWDED.set(0);
        let mut wait = SpinBudget::new();
        for _ in 0..LOOKS {
            assert_eq!(wait.step(None, must_not_be_called), SpinStep::Again);
            assert_eq!(wait.since, None, "no yield yet");
        }
        assert_eq!(Fake::new(PROMPT).yields_of(&mut wait), 100);
        assert_eq!(looks(), LOOKS, "no other thread was found");
    }

    #[test]
    fn crowded_waiter_sleeps_after_few_yields_and_remembers() {
        CROWDED.set(0);
        let mut many = Fake::new(LATE);
        assert_eq!(many.yields_of(&mut SpinBudget::new()), LATES);
        assert_eq!(looks(), 0, "the next wait yields at once");
        assert_eq!(many.yields_of(&mut SpinBudget::new()), 1, "one yield is enough");
        // Long turns of other threads do not reduce the number of late yields.
        CROWDED.set(0);
        assert_eq!(Fake::new(Duration::from_micros(24)).yields_of(&mut SpinBudget::new()), LATES);
    }

    #[test]
    fn crowded_waiter_with_remote_peer_keeps_yielding() {
        CROWDED.set(0);
        let mut many = Fake::new(Duration::from_micros(3));
        assert_eq!(many.yields_for(&mut SpinBudget::new(), false), 50);
        // The other threads sleep, so this thread has its processor to itself and keeps it awake.
        assert_eq!(Fake::new(PROMPT).yields_for(&mut SpinBudget::new(), false), 300);
    }

    #[test]
    fn waiter_with_an_idle_processor_keeps_yielding() {
        CROWDED.set(0);
        let mut wait = SpinBudget::new();
        let mut many = Fake::new(LATE);
        for _ in 1..LATES {
            assert_eq!(wait.yield_processor(None, must_not_be_called, &mut many), SpinStep::Again);
        }
        many.a_yield = PROMPT;
        assert_eq!(
            wait.yield_processor(None, must_not_be_called, &mut many),
            SpinStep::Again,
            "the other threads sleep"
        );
        assert_eq!(wait.lates, 0);
        many.a_yield = LATE;
        assert_eq!(many.yields_of(&mut wait), LATES, "late yields are tolerated again");
    }

    #[test]
    fn prompt_waits_clear_the_crowded_state() {
        CROWDED.set(0);
        Fake::new(LATE).yields_of(&mut SpinBudget::new());
        let mut alone = Fake::new(PROMPT);
        for _ in 0..MEMORY {
            assert_eq!(looks(), 0);
            alone.yields_of(&mut SpinBudget::new());
        }
        assert_eq!(looks(), LOOKS);
        // A wait that does not need to yield does not change the count.
        CROWDED.set(3);
        assert_eq!(looks(), 0);
        assert_eq!(CROWDED.get(), 3);
    }

    #[test]
    fn one_late_yield_after_a_sleep_causes_the_next_sleep() {
        CROWDED.set(0);
        let mut many = Fake::new(LATE);
        let mut wait = SpinBudget::new();
        many.yields_of(&mut wait);
        wait.rest();
        assert_eq!(many.yields_of(&mut wait), 1);
        CROWDED.set(0);
        wait.rest();
        assert_eq!(Fake::new(PROMPT).yields_of(&mut wait), 100, "without other threads, the full budget applies again");
    }

    #[test]
    fn deadline_is_checked_at_first_poll_and_before_each_yield() {
        CROWDED.set(0);
        let mut world = Fake::new(PROMPT);
        assert_eq!(
            SpinBudget::new().step(Some(world.now), must_not_be_called),
            SpinStep::Late,
            "the deadline has already passed"
        );
        let deadline = Some(world.now + 3 * PROMPT);
        let mut wait = SpinBudget::new();
        while wait.yield_processor(deadline, must_not_be_called, &mut world) == SpinStep::Again {}
        assert_eq!(world.yields, 3);
        assert_eq!(wait.yield_processor(deadline, must_not_be_called, &mut world), SpinStep::Late);
    }

    #[test]
    fn polling_thread_offers_its_processor_after_many_empty_polls() {
        CROWDED.set(0);
        let mut empty_reads = EmptyReads::NONE;
        for _ in 0..3 {
            for _ in 0..READS / 4 - 1 {
                assert!(!empty_reads.is_offer_due(4));
            }
            assert!(empty_reads.is_offer_due(4));
        }
    }

    #[test]
    fn crowded_polling_thread_offers_from_the_second_empty_read() {
        CROWDED.set(MEMORY);
        let mut empty_reads = EmptyReads::NONE;
        assert!(!empty_reads.is_offer_due(16), "the first empty read may follow a read of data");
        assert!(empty_reads.is_offer_due(16));
        assert!(empty_reads.is_offer_due(16));
        CROWDED.set(0);
        assert!(!empty_reads.is_offer_due(16), "the other threads are gone");
    }

    #[test]
    fn crowded_thread_that_yields_itself_offers_rarely() {
        CROWDED.set(0);
        let mut empty_reads = EmptyReads::NONE;
        let mut offers = |elsewhere: Duration| {
            let mut offers = 0;
            for _ in 0..READS {
                let mut world = Fake::new(LATE);
                offer_in(&mut world);
                begins_at(world.now + elsewhere);
                offers += u32::from(empty_reads.is_offer_due(4));
            }
            offers
        };
        assert_eq!(offers(LATE), READS / (ELSEWHERE_READS - 1));
        assert!(offers(LATE / 2) >= READS - 1, "the thread spins");
    }

    #[test]
    fn late_offers_set_and_prompt_offers_clear_the_crowded_state() {
        CROWDED.set(0);
        offer_in(&mut Fake::new(PROMPT));
        assert!(!is_crowded());
        offer_in(&mut Fake::new(LATE));
        let mut prompt = Fake::new(PROMPT);
        for _ in 0..MEMORY {
            assert!(is_crowded());
            offer_in(&mut prompt);
        }
        assert!(!is_crowded());
    }

    #[test]
    fn late_yield_without_other_threads_does_not_set_crowded() {
        CROWDED.set(0);
        let mut slow = Fake { undisturbed: true, ..Fake::new(2 * LATE) };
        offer_in(&mut slow);
        assert!(!is_crowded(), "after an offer");
        slow.yields_of(&mut SpinBudget::new());
        assert!(!is_crowded(), "a wait");
    }

    #[test]
    fn yield_to_another_thread_is_detected() {
        // Two threads with one processor: each yield of one lets the other run.
        let processors = rustix::thread::sched_getaffinity(None).unwrap();
        let mut one = rustix::thread::CpuSet::new();
        one.set((0..rustix::thread::CpuSet::MAX_CPU).find(|at| processors.is_set(*at)).unwrap());
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    rustix::thread::sched_setaffinity(None, &one).unwrap();
                    let mut lost = 0;
                    while lost < 3 && !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        Real.yield_now();
                        lost += u32::from(lost_processor().is_some() && Real.lost_processor());
                    }
                    stop.store(true, std::sync::atomic::Ordering::Relaxed);
                });
            }
        });
    }
}
