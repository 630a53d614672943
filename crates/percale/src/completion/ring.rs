//! A ring buffer of results that wait to be read, for one owner.
//!
//! A [`Ring`] never overruns. An operation reserves room for its result when it is posted ([`Ring::reserve`]), and
//! posting fails if there is none. Events that do not belong to a posted operation (such as a peer's write) have no
//! reservation: the ring always accepts them, and [`Ring::has_room`] shows the owner when to stop draining its
//! transports.
//!
//! Results are read in the order in which they were pushed. An error blocks reading until it is taken: the results
//! before it are read first, then [`Ring::read`] reports that an error is next, until [`Ring::read_error`] takes it.
//!
//! There is no lock: the owner of the ring serializes its use. Nothing is allocated once the ring has grown to the size
//! that its owner needs.

use std::collections::VecDeque;

use super::entry::{Entry, ErrorEntry};

/// The error if there is no room for another operation's result. Read some results first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue is full; read completions and post again")]
#[non_exhaustive]
pub struct QueueFull;

impl QueueFull {
    /// Returns whether the same call may succeed later although neither it nor the program is changed. Always true:
    /// there is room after results were read.
    #[must_use]
    pub const fn is_retriable(self) -> bool {
        true
    }

    /// Returns the libfabric code for this error.
    #[must_use]
    pub const fn errno(self) -> i32 {
        libc::EAGAIN
    }
}

/// The error if the next result is an error, which `read_error` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the next completion is an error; read it with read_error")]
#[non_exhaustive]
pub struct ErrorAvailable;

impl ErrorAvailable {
    /// Returns the libfabric code for this error (`FI_EAVAIL`).
    #[must_use]
    pub const fn errno(self) -> i32 {
        259
    }
}

/// A ring buffer of results that wait to be read.
#[doc(hidden)] // For the crates of percale.
pub struct Ring {
    /// A circular buffer. Entry `n` since the beginning is at index `n` modulo the length, which is a power of two.
    places: Box<[Entry]>,
    /// The number of entries pushed so far.
    pushed: u64,
    /// Each error with the number of entries that were pushed before it.
    errors: VecDeque<(u64, ErrorEntry)>,
    /// The number of entries read so far.
    taken: u64,
    /// The number of results that wait, and of operations under way that will push a result here.
    claimed: usize,
    /// The number of results that fit without growing. It never exceeds the limit.
    room: usize,
    limit: usize,
}

crate::short_debug!(Ring, "Ring");

/// The default number of results at which reservations fail.
pub const DEFAULT_LIMIT: usize = 1 << 20;

/// The number of places that an empty ring allocates first.
const FIRST: usize = 64;

impl Default for Ring {
    /// Creates a ring that allocates no places until room is reserved or a result is pushed. Many endpoints report to
    /// another queue, or have nothing to report.
    fn default() -> Self {
        let limit = DEFAULT_LIMIT;
        Self { places: Box::default(), pushed: 0, errors: VecDeque::new(), taken: 0, claimed: 0, room: 0, limit }
    }
}

impl Ring {
    /// Creates a ring with room for `capacity` results, which grows as needed up to `limit` (at least one).
    #[must_use]
    pub fn new(capacity: usize, limit: usize) -> Self {
        let limit = limit.max(1);
        let places = circle(capacity.clamp(1, limit));
        let room = places.len().min(limit);
        Self { places, pushed: 0, errors: VecDeque::new(), taken: 0, claimed: 0, room, limit }
    }

    /// Reserves room for the result of an operation that is being posted. Each reservation is consumed by one
    /// [`push`](Self::push) or [`push_error`](Self::push_error), or returned by [`unreserve`](Self::unreserve).
    ///
    /// # Errors
    /// If the number of results that wait or are due has reached the limit.
    #[inline]
    pub fn reserve(&mut self) -> Result<(), QueueFull> {
        if self.claimed >= self.room {
            self.grow()?;
        }
        self.claimed += 1;
        Ok(())
    }

    #[cold]
    fn grow(&mut self) -> Result<(), QueueFull> {
        if self.claimed >= self.limit {
            return Err(QueueFull);
        }
        self.widen();
        Ok(())
    }

    /// Doubles the number of places, or allocates the first ones.
    #[cold]
    fn widen(&mut self) {
        let mut places = circle(if self.places.is_empty() { FIRST } else { self.places.len() * 2 });
        for number in self.taken..self.pushed {
            places[index(&places, number)] = self.places[index(&self.places, number)];
        }
        self.places = places;
        self.room = self.places.len().min(self.limit);
    }

    #[inline(always)]
    fn put(&mut self, entry: Entry) {
        if self.waiting() == self.places.len() {
            self.widen();
        }
        let at = index(&self.places, self.pushed);
        self.places[at] = entry;
        self.pushed += 1;
    }

    /// Returns the number of entries that wait.
    #[inline]
    const fn waiting(&self) -> usize {
        (self.pushed - self.taken) as usize
    }

    /// Releases the reservation of an operation that reports no result.
    #[inline]
    pub fn unreserve(&mut self) {
        debug_assert!(self.reserved() > 0, "more results than reservations");
        self.claimed -= 1;
    }

    /// Returns the number of operations under way that have reserved room.
    #[must_use]
    pub fn reserved(&self) -> usize {
        self.claimed.saturating_sub(self.len())
    }

    /// Pushes the result of an operation that reserved room for it.
    #[inline]
    pub fn push(&mut self, entry: Entry) {
        debug_assert!(self.reserved() > 0, "more results than reservations");
        self.put(entry);
    }

    /// Pushes the error of an operation that reserved room for its result.
    #[cold]
    pub fn push_error(&mut self, error: ErrorEntry) {
        self.unreserve();
        self.push_error_event(error);
    }

    /// Pushes a result without a reservation. It is always accepted.
    #[inline]
    pub fn push_event(&mut self, entry: Entry) {
        self.claimed += 1;
        self.put(entry);
    }

    /// Pushes an error without a reservation. It is always accepted.
    #[cold]
    pub fn push_error_event(&mut self, error: ErrorEntry) {
        self.claimed += 1;
        self.errors.push_back((self.pushed, error));
    }

    /// Returns whether fewer results wait than the limit allows. An owner should stop draining its transports while
    /// this is false. Reservations do not count, because their operations need the transports in order to end.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.len() < self.limit
    }

    /// Reads up to `into.len()` results, oldest first. Returns their number, which is 0 if there are none now.
    ///
    /// # Errors
    /// If the next result is an error. It stays until [`read_error`](Self::read_error) takes it.
    #[inline]
    pub fn read(&mut self, into: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        let until = match self.errors.front() {
            None => self.pushed,
            Some((before, _)) if *before == self.taken => return Err(ErrorAvailable),
            Some((before, _)) => *before,
        };
        let mut count = 0;
        for place in into {
            if self.taken == until {
                break;
            }
            *place = self.places[index(&self.places, self.taken)];
            self.taken += 1;
            count += 1;
        }
        self.claimed = self.claimed.saturating_sub(count);
        Ok(count)
    }

    /// Takes the next result if it is an error. Otherwise returns `None`.
    pub fn read_error(&mut self) -> Option<ErrorEntry> {
        let (before, _) = self.errors.front()?;
        if *before != self.taken {
            return None;
        }
        self.claimed -= 1;
        self.errors.pop_front().map(|(_, error)| error)
    }

    /// Returns the number of results that wait, including errors.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.waiting() + self.errors.len()
    }

    /// Returns the number of entries that were pushed so far, including those that have been read.
    #[must_use]
    pub(crate) const fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Returns whether no result waits.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pushed == self.taken && self.errors.is_empty()
    }
}

/// Allocates a circular buffer of at least this many places.
fn circle(places: usize) -> Box<[Entry]> {
    vec![Entry::default(); places.next_power_of_two()].into()
}

/// Returns the index of an entry, by its number since the beginning.
#[inline]
const fn index(places: &[Entry], number: u64) -> usize {
    number as usize & (places.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::entry::ErrorCode;
    use proptest::prelude::*;

    fn entry(context: u64) -> Entry {
        Entry { context, ..Entry::default() }
    }

    fn failure(context: u64) -> ErrorEntry {
        ErrorEntry::new(entry(context), ErrorCode::Canceled)
    }

    #[test]
    fn error_blocks_later_entries_until_it_is_read() {
        let mut ring = Ring::new(4, 8);
        for _ in 0..4 {
            ring.reserve().unwrap();
        }
        ring.push(entry(1));
        ring.push(entry(2));
        ring.push_error(failure(3));
        ring.push(entry(4));
        let mut out = [Entry::default(); 8];
        assert_eq!(ring.read_error(), None, "two results are before the error");
        assert_eq!(ring.read(&mut out), Ok(2));
        assert_eq!(ring.read(&mut out), Err(ErrorAvailable));
        assert_eq!(ring.read(&mut out), Err(ErrorAvailable));
        assert_eq!(ring.read_error().unwrap().entry.context, 3);
        assert_eq!(ring.read(&mut out), Ok(1));
        assert_eq!(out[0].context, 4);
        assert_eq!(ring.read(&mut out), Ok(0));
    }

    #[test]
    fn unused_ring_allocates_no_memory() {
        let mut ring = Ring::default();
        let mut out = [Entry::default(); 1];
        assert_eq!((ring.read(&mut out), ring.places.len(), ring.has_room()), (Ok(0), 0, true));
        ring.push_event(entry(1));
        ring.reserve().unwrap();
        ring.push(entry(2));
        assert_eq!((ring.read(&mut out), out[0].context), (Ok(1), 1));
        assert_eq!((ring.read(&mut out), out[0].context), (Ok(1), 2));
        assert_eq!((ring.read(&mut out), ring.places.len()), (Ok(0), FIRST));
    }

    #[test]
    fn reserve_fails_at_the_limit_until_a_read() {
        let mut ring = Ring::new(1, 3);
        for _ in 0..3 {
            ring.reserve().unwrap();
        }
        assert_eq!(ring.reserve(), Err(QueueFull));
        ring.push(entry(1));
        assert_eq!(ring.reserve(), Err(QueueFull), "a result that was not read keeps its reservation");
        ring.read(&mut [Entry::default(); 1]).unwrap();
        ring.reserve().unwrap();
        ring.unreserve();
        ring.push_event(entry(9));
        ring.push_event(entry(9));
        assert!(ring.has_room(), "reservations do not count");
        ring.push_event(entry(9));
        assert!(!ring.has_room());
    }

    #[test]
    fn a_ring_in_use_does_not_allocate() {
        let mut ring = Ring::new(16, 1024);
        let room = ring.places.len();
        for round in 0..1000 {
            for _ in 0..16 {
                ring.reserve().unwrap();
            }
            for at in 0..16 {
                ring.push(entry(round * 16 + at));
            }
            let mut out = [Entry::default(); 16];
            assert_eq!(ring.read(&mut out), Ok(16));
            assert_eq!(out[15].context, round * 16 + 15);
        }
        assert_eq!(ring.places.len(), room);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push,
        PushError,
        Event,
        Read(usize),
        ReadError,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Push),
            1 => Just(Step::PushError),
            1 => Just(Step::Event),
            3 => (0usize..6).prop_map(Step::Read),
            2 => Just(Step::ReadError),
        ]
    }

    proptest! {
        #[test]
        fn ring_matches_list_model(steps in proptest::collection::vec(step(), 1..200)) {
            let mut ring = Ring::new(2, 24);
            let mut model: VecDeque<Result<u64, u64>> = VecDeque::new();
            for (context, step) in (0..).zip(steps) {
                match step {
                    Step::Push | Step::PushError => {
                        prop_assert_eq!(ring.reserve().is_ok(), model.len() < 24);
                        if ring.reserved() == 0 {
                            continue;
                        }
                        if matches!(step, Step::Push) {
                            ring.push(entry(context));
                            model.push_back(Ok(context));
                        } else {
                            ring.push_error(failure(context));
                            model.push_back(Err(context));
                        }
                    }
                    Step::Event => {
                        ring.push_event(entry(context));
                        model.push_back(Ok(context));
                    }
                    Step::Read(want) => {
                        let mut out = vec![Entry::default(); want];
                        let good = model.iter().take_while(|result| result.is_ok()).count().min(want);
                        if good == 0 && matches!(model.front(), Some(Err(_))) {
                            prop_assert_eq!(ring.read(&mut out), Err(ErrorAvailable));
                            continue;
                        }
                        prop_assert_eq!(ring.read(&mut out), Ok(good));
                        for (got, want) in out.iter().zip(model.drain(..good)) {
                            prop_assert_eq!(Ok(got.context), want);
                        }
                    }
                    Step::ReadError => {
                        let next = model.front().copied().and_then(Result::err);
                        prop_assert_eq!(ring.read_error().map(|error| error.entry.context), next);
                        if next.is_some() {
                            model.pop_front();
                        }
                    }
                }
                prop_assert_eq!(ring.len(), model.len());
            }
        }
    }
}
