//! A counter's two values, and the least threshold that anything waits for.

use crate::sync::{AtomicU64, Ordering, loom_fence};

/// See the module. All accesses are sequentially consistent: who counts and who puts work in line cannot miss each other.
#[derive(Debug)]
pub(crate) struct Gate {
    value: AtomicU64,
    errors: AtomicU64,
    /// Nothing waits for less; `u64::MAX` if nothing waits.
    next: AtomicU64,
}

impl Default for Gate {
    fn default() -> Self {
        Self { value: AtomicU64::new(0), errors: AtomicU64::new(0), next: AtomicU64::new(u64::MAX) }
    }
}

impl Gate {
    /// Successes.
    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    /// Failures.
    #[inline]
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::SeqCst)
    }

    /// Adds to the successes; says whether something may be due.
    #[inline]
    pub(crate) fn add(&self, count: u64) -> bool {
        self.value.fetch_add(count, Ordering::SeqCst);
        self.is_due()
    }

    /// Adds to the failures; says whether something may be due.
    #[inline]
    pub(crate) fn add_error(&self, count: u64) -> bool {
        self.errors.fetch_add(count, Ordering::SeqCst);
        self.is_due()
    }

    /// Sets the successes; says whether something may be due.
    pub(crate) fn set(&self, value: u64) -> bool {
        self.value.store(value, Ordering::SeqCst);
        self.is_due()
    }

    /// Sets the failures; says whether something may be due.
    pub(crate) fn set_error(&self, value: u64) -> bool {
        self.errors.store(value, Ordering::SeqCst);
        self.is_due()
    }

    /// Something waits, for no less than this. Says whether it may be due.
    pub(crate) fn waits_for(&self, next: u64) -> bool {
        self.next.store(next, Ordering::SeqCst);
        self.is_due()
    }

    /// Whether the least threshold may be reached. It is looked at first: mostly nothing waits.
    #[inline]
    fn is_due(&self) -> bool {
        loom_fence();
        let next = self.next.load(Ordering::SeqCst);
        next != u64::MAX && self.value().saturating_add(self.errors()) >= next
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    /// One thread puts work in line while two count; whoever is told that something is due takes what is. It is taken exactly once.
    #[test]
    fn loom_trig_007_what_waits_is_never_slept_over() {
        loom::model(|| {
            let gate = Arc::new(Gate::default());
            let line = Arc::new(Mutex::new((Vec::<u64>::new(), 0_u32)));
            let fire = |gate: &Gate, line: &Mutex<(Vec<u64>, u32)>| {
                let mut line = line.lock().unwrap();
                let reached = gate.value() + gate.errors();
                let due = line.0.iter().filter(|threshold| **threshold <= reached).count() as u32;
                line.0.retain(|threshold| *threshold > reached);
                line.1 += due;
                gate.waits_for(line.0.iter().copied().min().unwrap_or(u64::MAX));
            };
            let counts: Vec<_> = [false, true]
                .into_iter()
                .map(|fails| {
                    let (gate, line) = (Arc::clone(&gate), Arc::clone(&line));
                    thread::spawn(move || {
                        if if fails { gate.add_error(1) } else { gate.add(1) } {
                            fire(&gate, &line);
                        }
                    })
                })
                .collect();
            let due = {
                let mut line = line.lock().unwrap();
                line.0.push(2);
                gate.waits_for(2)
            };
            if due {
                fire(&gate, &line);
            }
            counts.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(line.lock().unwrap().1, 1, "what was due was not begun, or twice");
        });
    }
}
