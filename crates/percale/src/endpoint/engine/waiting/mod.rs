//! The threads and tasks that may be asleep at an endpoint, the mode in which the doorbell wakes all of them, and the
//! maximum time of the next sleep.
//!
//! * `progress`: how much progress reads make, and the work that progress includes
//!
//! This module only keeps records. `sleep` uses them to arm the doorbell and the descriptor, and explains the reasons.
//!
//! Invariants:
//! 1. A waiter is counted from the moment at which it may sleep until it reports that it is awake.
//! 2. The mode that [`mode_with`](Sleepers::mode_with) returns wakes every sleeper that is counted, and one additional
//!    sleeper.
//! 3. Naps become longer only while nothing happens: a result, or a poll that finds something, makes them short again.

mod progress;
#[cfg(all(test, not(loom)))]
mod tests;

use std::time::Duration;

pub(super) use self::progress::{EMPTY_READS_PER_PROGRESS, OptionalWork, ReadPace};
use crate::transport::shm::WakeMethod;

/// The time of the first sleeps while a link waits for its peer's progress.
pub(super) const NAP: Duration = Duration::from_micros(500);

/// The maximum number of times that such a nap is doubled, up to 16 ms.
const DOUBLINGS: u32 = 5;

/// The number of polls that find nothing before naps are doubled the first time, and before watchers nap too.
pub(super) const EMPTY_POLLS: u32 = 64;

/// Polls between two doublings.
const STEADY: u32 = 16;

/// The object on which one waiter sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SleepsOn {
    /// The endpoint's descriptor.
    Descriptor,
    /// The doorbell alone.
    Doorbell,
}

/// The threads and tasks that may be asleep, and the polls before their sleeps that found nothing.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    /// The number of waiters: sleepers that report when they are awake.
    waiters: u32,
    /// The number of waiters that sleep on the doorbell alone.
    by_word: u32,
    /// Whether there are, or were, watchers.
    watched: bool,
    /// Whether some watchers wait only for the endpoint's own results. Only the engine notifies them of these.
    bare: bool,
    /// Consecutive polls before a sleep that found nothing while the endpoint waited for an event that does not ring
    /// the doorbell.
    looks: u32,
    /// The number of results at the last of these polls.
    results: u64,
}

impl Sleepers {
    /// Counts one more waiter, which sleeps on this object.
    pub(super) fn add_sleeper(&mut self, on: SleepsOn) {
        self.waiters += 1;
        self.by_word += u32::from(on == SleepsOn::Doorbell);
    }

    /// Counts a waiter that is awake again.
    pub(super) fn wake_up(&mut self, on: SleepsOn) {
        self.waiters -= 1;
        self.by_word -= u32::from(on == SleepsOn::Doorbell);
    }

    /// Records that there is a watcher: a sleeper that does not report when it is awake.
    pub(super) const fn watch(&mut self) {
        self.watched = true;
    }

    /// Records that a watcher waits only for the endpoint's own results. Only the engine notifies it of these.
    pub(super) const fn watch_results(&mut self) {
        self.bare = true;
    }

    /// Returns whether a thread or a task may be asleep.
    pub(super) const fn any(&self) -> bool {
        self.watched || self.waiters > 0
    }

    /// Returns whether there are, or were, watchers.
    pub(super) const fn is_watched(&self) -> bool {
        self.watched
    }

    /// Returns whether waiters sleep on the doorbell alone, so that nothing else wakes them.
    pub(super) const fn any_on_doorbell(&self) -> bool {
        self.by_word > 0
    }

    /// Returns whether some sleepers may wait for the endpoint's results.
    pub(super) const fn any_for_results(&self) -> bool {
        self.bare || self.waiters > 0
    }

    /// Returns the mode of the doorbell that wakes all current sleepers and one additional sleeper that sleeps in mode
    /// `one`.
    pub(super) const fn mode_with(&self, one: WakeMethod) -> WakeMethod {
        let word = self.by_word > 0 || !matches!(one, WakeMethod::Event);
        let event = self.watched || self.waiters > self.by_word || !matches!(one, WakeMethod::Word);
        match (word, event) {
            (true, false) => WakeMethod::Word,
            (true, true) => WakeMethod::Both,
            (false, _) => WakeMethod::Event,
        }
    }

    /// Counts one more poll that found nothing, when the endpoint had this number of results. Returns the time to sleep
    /// after it.
    pub(super) fn nap(&mut self, results: u64) -> Duration {
        if self.results != results {
            (self.looks, self.results) = (0, results);
        }
        self.looks = self.looks.saturating_add(1);
        let doublings = match self.looks.checked_sub(EMPTY_POLLS) {
            None => 0,
            Some(more) => (more / STEADY).saturating_add(1).min(DOUBLINGS),
        };
        NAP.saturating_mul(1 << doublings)
    }

    /// Makes naps short again, because something happened.
    pub(super) const fn shorten_naps(&mut self) {
        (self.looks, self.results) = (0, 0);
    }

    /// Returns whether so many polls found nothing that naps are long.
    pub(super) const fn naps_long(&self) -> bool {
        self.looks >= EMPTY_POLLS
    }
}
