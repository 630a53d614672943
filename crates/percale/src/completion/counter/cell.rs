//! The two values of a counter, and the lowest threshold for which work waits.

use crate::sync::{OrderedU64, Ordering};

/// The two values of a counter and the lowest threshold for which work waits. All accesses are sequentially consistent,
/// so a thread that counts and a thread that queues work cannot miss each other.
#[derive(Debug)]
pub(crate) struct CounterCell {
    value: OrderedU64,
    errors: OrderedU64,
    /// A lower bound of the thresholds for which work waits, or `u64::MAX` if no work waits. A counter that has reached
    /// this bound may check the line and find no work that is due.
    next: OrderedU64,
}

impl Default for CounterCell {
    fn default() -> Self {
        Self { value: OrderedU64::new(0), errors: OrderedU64::new(0), next: OrderedU64::new(u64::MAX) }
    }
}

impl CounterCell {
    /// Returns the number of successes.
    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    /// Returns the number of failures.
    #[inline]
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::SeqCst)
    }

    /// Adds to the successes; returns whether work may be due.
    #[inline]
    pub(crate) fn add(&self, count: u64) -> bool {
        self.value.fetch_add(count, Ordering::SeqCst);
        self.is_due()
    }

    /// Adds to the failures; returns whether work may be due.
    #[inline]
    pub(crate) fn add_error(&self, count: u64) -> bool {
        self.errors.fetch_add(count, Ordering::SeqCst);
        self.is_due()
    }

    /// Sets the successes; returns whether work may be due.
    pub(crate) fn set(&self, value: u64) -> bool {
        self.value.store(value, Ordering::SeqCst);
        self.is_due()
    }

    /// Sets the failures; returns whether work may be due.
    pub(crate) fn set_error(&self, value: u64) -> bool {
        self.errors.store(value, Ordering::SeqCst);
        self.is_due()
    }

    /// Records that no work waits for a threshold below `next`. Returns whether work may be due.
    pub(crate) fn waits_for(&self, next: u64) -> bool {
        self.next.store(next, Ordering::SeqCst);
        self.is_due()
    }

    /// Returns whether the lowest threshold may have been reached. The threshold is loaded first, because usually no
    /// work waits.
    #[inline]
    fn is_due(&self) -> bool {
        let next = self.next.load(Ordering::SeqCst);
        self.value().saturating_add(self.errors()) >= next
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;
    use crate::sync::explore;

    type ModelQueue = Mutex<(Vec<u64>, u32)>;

    /// Takes the work that is due from the line, and counts it.
    fn fire(cell: &CounterCell, line: &ModelQueue) {
        let mut line = line.lock().unwrap();
        let reached = cell.value() + cell.errors();
        let before = line.0.len();
        line.0.retain(|threshold| *threshold > reached);
        line.1 += (before - line.0.len()) as u32;
        cell.waits_for(line.0.iter().copied().min().unwrap_or(u64::MAX));
    }

    /// One thread queues work while another counts. A thread that finds that work may be due takes it. The work is
    /// taken exactly once.
    #[test]
    fn loom_due_work_is_started_exactly_once() {
        for fails in [false, true] {
            explore(None, 25, move || {
                let cell = Arc::new(CounterCell::default());
                let line = Arc::new(ModelQueue::default());
                let counts = {
                    let (cell, line) = (Arc::clone(&cell), Arc::clone(&line));
                    thread::spawn(move || {
                        for _ in 0..2 {
                            if if fails { cell.add_error(1) } else { cell.add(1) } {
                                fire(&cell, &line);
                            }
                        }
                    })
                };
                let due = {
                    let mut line = line.lock().unwrap();
                    line.0.push(2);
                    cell.waits_for(2)
                };
                if due {
                    fire(&cell, &line);
                }
                counts.join().unwrap();
                assert_eq!(line.lock().unwrap().1, 1, "the due work did not begin exactly once");
            });
        }
    }
}
