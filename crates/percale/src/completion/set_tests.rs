//! Tests of poll sets and wait sets over sources of every kind, with one and with several threads.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::counter::Counter;
use super::entry::Entry;
use super::event::EventQueue;
use super::poll_set::PollSet;
use super::queue::CompletionQueue;
use super::wait::{Driven, WaitError};
use super::wait_set::WaitSet;

/// The maximum duration of a wait. A longer wait has missed a wake-up.
const BOUND: Option<Duration> = Some(Duration::from_secs(60));

fn push(queue: &CompletionQueue, context: u64) {
    queue.update(|ring| ring.push_event(Entry { context, ..Entry::default() }));
}

fn take(queue: &CompletionQueue) -> u64 {
    let mut entries = [Entry::default(); 8];
    queue.read(&mut entries).unwrap() as u64
}

fn poll(set: &PollSet<u32>) -> Vec<u32> {
    let mut names = [0; 8];
    let count = set.poll(&mut names);
    names[..count].to_vec()
}

fn readable(descriptor: &impl AsFd, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).unwrap();
    rustix::event::poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

fn now(set: &WaitSet) -> bool {
    match set.wait(Some(Duration::ZERO)) {
        Ok(()) => true,
        Err(WaitError::TimedOut) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Requirements: CMP-019.
#[test]
fn poll_set_reports_ready_members() {
    let (queue, counter, events) = (CompletionQueue::default(), Counter::new(), EventQueue::default());
    let set = PollSet::new();
    assert_eq!(poll(&set), []);
    counter.add(7);
    set.add(&queue, 1).unwrap();
    set.add(&counter, 2).unwrap();
    set.add(&events, 3).unwrap();
    assert_eq!(poll(&set), [], "changes before a counter was added are not reported");
    push(&queue, 1);
    counter.add(1);
    assert_eq!(poll(&set), [1, 2]);
    assert_eq!(poll(&set), [1], "a queue is reported while it is not empty, and a counter once");
    events.write(1, *b"x").unwrap();
    counter.add_error(1);
    assert_eq!(poll(&set), [1, 2, 3]);
    assert_eq!((take(&queue), events.read().is_some()), (1, true));
    counter.set(counter.value());
    assert_eq!(poll(&set), [2], "setting the same value is a change");
    assert_eq!(poll(&set), []);
    set.add(&counter.clone(), 5).unwrap();
    assert_eq!(set.len(), 3, "all handles to a counter are one member");
    counter.add(1);
    assert_eq!(poll(&set), [5]);
    assert_eq!((set.remove(&counter), set.remove(&counter)), (Some(5), None));
    counter.add(1);
    assert_eq!(poll(&set), []);
    assert_eq!((set.remove(&queue), set.remove(&events), set.is_empty()), (Some(1), Some(3), true));
}

/// Requirements: CMP-019.
#[test]
fn poll_set_is_fair_with_a_short_output_list() {
    let set = PollSet::new();
    let queues = [(); 5].map(|()| CompletionQueue::default());
    for (name, queue) in (0..).zip(&queues) {
        set.add(queue, name).unwrap();
        push(queue, 0);
    }
    let mut named = [0; 5];
    for _ in 0..10 {
        let mut names = [0_u32; 2];
        assert_eq!(set.poll(&mut names), 2);
        names.into_iter().for_each(|name| named[name as usize] += 1);
    }
    assert_eq!(named, [4; 5]);
    assert_eq!(set.poll(&mut []), 0);
    set.remove(&queues[4]);
    let mut names = poll(&set);
    names.sort_unstable();
    assert_eq!(names, [0, 1, 2, 3]);
}

/// Adds to a counter each time it is driven.
#[derive(Default)]
struct Feeder {
    rounds: AtomicU64,
    feeds: Counter,
}

impl Driven for Feeder {
    fn progress(&self) {
        self.rounds.fetch_add(1, Ordering::SeqCst);
        self.feeds.add(1);
    }
}

/// Requirements: CMP-019.
#[test]
fn endpoint_of_several_members_is_progressed_once() {
    let (queue, events, feeder) = (CompletionQueue::default(), EventQueue::default(), Arc::new(Feeder::default()));
    let driver: Arc<dyn Driven> = Arc::clone(&feeder) as _;
    let (set, waits) = (PollSet::new(), WaitSet::new());
    let rounds = || feeder.rounds.swap(0, Ordering::SeqCst);
    // The driver is attached to two sources before they become members, and to a third one afterwards.
    queue.attach(&driver).unwrap();
    feeder.feeds.attach(&driver).unwrap();
    set.add(&queue, 1).unwrap();
    set.add(&feeder.feeds, 2).unwrap();
    set.add(&events, 3).unwrap();
    events.attach(&driver).unwrap();
    assert_eq!((poll(&set), rounds()), (vec![2], 1));
    waits.add(&feeder.feeds).unwrap();
    waits.add(&queue).unwrap();
    waits.wait(BOUND).unwrap();
    assert_eq!(rounds(), 1);
    // It drives the set as long as it feeds one of the members.
    queue.detach(&driver);
    set.remove(&feeder.feeds);
    assert_eq!((poll(&set), rounds()), (vec![], 1));
    events.detach(&driver);
    assert_eq!((poll(&set), rounds()), (vec![], 0));
    waits.wait(BOUND).unwrap();
    assert_eq!(rounds(), 1);
    // The sources that sets followed outlive the sets.
    drop((set, waits));
    push(&queue, 1);
    assert_eq!(take(&queue), 1);
}

/// Requirements: CMP-020.
#[test]
fn wait_set_wakes_for_each_member() {
    let (queue, counter, events) = (CompletionQueue::default(), Counter::new(), EventQueue::default());
    counter.add(3);
    let set = WaitSet::new();
    assert!(!now(&set));
    assert!(set.add(&queue).unwrap() && set.add(&counter).unwrap() && set.add(&events).unwrap());
    assert!(!set.add(&queue.clone()).unwrap());
    assert!(!now(&set));
    push(&queue, 1);
    assert!(now(&set) && now(&set), "the set stays ready while the queue is not empty");
    take(&queue);
    assert!(!now(&set));
    counter.add(1);
    assert!(now(&set) && !now(&set), "a change of a counter is reported once");
    counter.add_error(1);
    assert!(now(&set));
    push(&queue, 2);
    counter.add(1);
    assert!(now(&set));
    take(&queue);
    assert!(!now(&set), "the change of the counter was reported together with the queue");
    events.write(1, *b"x").unwrap();
    assert!(now(&set) && now(&set));
    assert!(set.remove(&events) && !set.remove(&events));
    assert!(!now(&set));
    assert_eq!(set.len(), 2);
}

/// Requirements: CMP-020.
#[test]
fn wait_set_descriptor_is_readable_for_each_member() {
    let (queue, counter, events) = (CompletionQueue::default(), Counter::new(), EventQueue::default());
    let set = WaitSet::new();
    set.add(&queue).unwrap();
    set.add(&counter).unwrap();
    assert!(set.try_wait().unwrap());
    assert!(!readable(&set.descriptor().unwrap(), Duration::ZERO));
    set.add(&events).unwrap();
    assert!(readable(&set.descriptor().unwrap(), Duration::ZERO), "a sleeping thread is woken to check a new member");
    let signals: [&dyn Fn(); 4] =
        [&|| push(&queue, 1), &|| counter.add(1), &|| counter.add_error(1), &|| events.write(1, *b"x").unwrap()];
    for (number, signal) in signals.into_iter().enumerate() {
        assert!(set.try_wait().unwrap(), "signal {number}");
        assert!(!readable(&set.descriptor().unwrap(), Duration::ZERO), "signal {number}");
        signal();
        assert!(readable(&set.descriptor().unwrap(), Duration::ZERO), "signal {number}");
        assert!(!set.try_wait().unwrap(), "signal {number}: an event can be read");
        take(&queue);
        drop(events.read());
        // An item that arrives before a wake-up is requested is found by the check.
        signal();
        assert!(!set.try_wait().unwrap(), "signal {number}");
        take(&queue);
        drop(events.read());
    }
}

/// The messages between the threads below, which are sent one at a time through one of three sources.
struct Turns {
    sources: (CompletionQueue, Counter, EventQueue),
    /// The number of items taken from all sources; `counted` is the part taken from the counter.
    taken: Counter,
    counted: AtomicU64,
}

impl Turns {
    const COUNT: u64 = 3000;

    fn new(sets: &[&WaitSet]) -> Self {
        let turns = Self {
            sources: (CompletionQueue::default(), Counter::new(), EventQueue::default()),
            taken: Counter::new(),
            counted: AtomicU64::new(0),
        };
        for set in sets {
            set.add(&turns.sources.0).unwrap();
            set.add(&turns.sources.1).unwrap();
            set.add(&turns.sources.2).unwrap();
        }
        turns
    }

    /// Sends each item after the previous one was taken.
    fn signal(&self) {
        let (queue, counter, events) = &self.sources;
        for number in 0..Self::COUNT {
            self.taken.wait(number, BOUND).unwrap();
            if number % 100 == 0 {
                std::thread::sleep(Duration::from_micros(500)); // The other thread falls asleep.
            }
            match number % 3 {
                0 => push(queue, number),
                1 => counter.add(1),
                _ => events.write(1, *b"x").unwrap(),
            }
        }
    }

    /// Takes the available items. Returns whether all items have arrived.
    fn take(&self) -> bool {
        let (queue, counter, events) = &self.sources;
        let count = counter.value();
        let count = count - self.counted.swap(count, Ordering::SeqCst);
        let taken = take(queue) + count + u64::from(events.read().is_some());
        self.taken.add(taken);
        self.taken.value() == Self::COUNT
    }
}

fn sleep_on(descriptor: BorrowedFd<'_>) {
    assert!(readable(&descriptor, Duration::from_secs(60)), "a wake-up was missed");
}

/// Requirements: CMP-020.
#[test]
fn waiting_thread_misses_no_wakeup() {
    let set = WaitSet::new();
    let turns = Turns::new(&[&set]);
    std::thread::scope(|scope| {
        scope.spawn(|| turns.signal());
        while !turns.take() {
            set.wait(BOUND).unwrap();
        }
    });
}

/// Requirements: CMP-020.
#[test]
fn event_loop_misses_no_wakeup() {
    let set = WaitSet::new();
    let turns = Turns::new(&[&set]);
    std::thread::scope(|scope| {
        scope.spawn(|| turns.signal());
        while !turns.take() {
            if set.try_wait().unwrap() {
                sleep_on(set.descriptor().unwrap());
            }
        }
    });
}

/// Two sets have the same members, and the queue also has a reader of its own.
///
/// Requirements: CMP-020.
#[test]
fn sets_and_readers_wait_for_the_same_sources() {
    const EACH: u64 = 2000;
    let (queue, done) = (CompletionQueue::default(), Counter::new());
    let sets = [WaitSet::new(), WaitSet::new()];
    for set in &sets {
        set.add(&queue).unwrap();
        set.add(&done).unwrap();
    }
    let taken = Counter::new();
    std::thread::scope(|scope| {
        for set in [&sets[0], &sets[0], &sets[1]] {
            scope.spawn(|| {
                while done.value() == 0 {
                    set.wait(BOUND).unwrap();
                    taken.add(take(&queue));
                }
                done.add(1); // For the other thread that waits for the same set: a change is reported to one of them.
            });
        }
        scope.spawn(|| {
            let mut entries = [Entry::default(); 2];
            while done.value() == 0 {
                if let Ok(count) = queue.wait(&mut entries, Some(Duration::from_millis(1))) {
                    taken.add(count as u64);
                }
            }
        });
        for number in 0..EACH {
            if number % 200 == 0 {
                std::thread::sleep(Duration::from_micros(500));
            }
            push(&queue, number);
        }
        taken.wait(EACH, BOUND).unwrap();
        done.add(1);
    });
    assert_eq!(taken.value(), EACH);
}

/// Requirements: FLT-010.
#[test]
fn inherited_sources_are_rejected_by_the_sets_of_a_child() {
    let (queue, counter, events) = (CompletionQueue::default(), Counter::new(), EventQueue::default());
    assert!(crate::system::forked::in_a_child(|| {
        let (waits, polls) = (WaitSet::new(), PollSet::new());
        let waited = [waits.add(&queue).is_err(), waits.add(&counter).is_err(), waits.add(&events).is_err()];
        let polled = [polls.add(&queue, 1).is_err(), polls.add(&counter, 2).is_err(), polls.add(&events, 3).is_err()];
        waited == [true; 3] && polled == [true; 3] && waits.is_empty() && polls.is_empty()
    }));
}
