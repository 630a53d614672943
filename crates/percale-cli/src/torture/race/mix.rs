//! Additional events in a run of threads.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::fixed_buffers::SLOTS;
use crate::torture::dice::Dice;
use crate::torture::operations::ExecutionMode;

/// The events of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::torture) struct Mix {
    /// How memory is changed.
    pub(in crate::torture) ways: Vec<ExecutionMode>,
    /// The number of caches of the process, all with the same monitor.
    pub(in crate::torture) caches: u64,
    /// The maximum number of registrations of each cache.
    pub(in crate::torture) most: u32,
    pub(in crate::torture) merging: bool,
    /// Whether signals interrupt the threads that use registrations, at any point.
    pub(in crate::torture) interrupts: bool,
    /// Whether requests to io_uring are submitted before the caches are opened, and change memory later.
    pub(in crate::torture) pending: bool,
    /// Whether the program closes the descriptors that the caches have opened.
    pub(in crate::torture) closes: bool,
    /// Whether the run is in a descendant with the process ID of an ancestor that also had a cache.
    pub(in crate::torture) descendant: bool,
}

impl Mix {
    /// A run with one cache, in which memory changes only by system calls of the threads.
    pub(in crate::torture) fn plain() -> Self {
        Self {
            ways: vec![ExecutionMode::Call],
            caches: 1,
            most: SLOTS / 4,
            merging: false,
            interrupts: false,
            pending: false,
            closes: false,
            descendant: false,
        }
    }

    /// Draws a random mix of events.
    pub(in crate::torture) fn draw(dice: &mut Dice) -> Self {
        let mut ways = vec![ExecutionMode::Call];
        if dice.once_in(2) {
            ways.push(ExecutionMode::Once);
        }
        if dice.once_in(2) {
            ways.push(ExecutionMode::Other);
        }
        // After one of these events, some monitors keep no registrations.
        if dice.once_in(6) {
            ways.push(ExecutionMode::Worker);
        }
        Self {
            ways,
            caches: 1 + u64::from(dice.once_in(3)),
            most: *dice.of(&[8, 24, 64, SLOTS / 4]),
            merging: dice.once_in(4),
            interrupts: dice.once_in(2),
            pending: dice.once_in(4),
            closes: dice.once_in(8),
            descendant: dice.once_in(6),
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} caches of {} registrations; changes by {:?}", self.caches, self.most, self.ways)?;
        let also = [
            (self.merging, "merging"),
            (self.interrupts, "signals"),
            (self.pending, "requests submitted before"),
            (self.closes, "descriptors closed"),
            (self.descendant, "a descendant with its ancestor's process id"),
        ];
        also.iter().filter(|(is, _)| *is).try_for_each(|(_, name)| write!(f, "; {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_is_determined_by_seed_and_covers_every_choice() {
        let draw = |seed| Mix::draw(&mut Dice::new(seed));
        let all: Vec<_> = (0..200).map(draw).collect();
        assert!((0..200).all(|seed| draw(seed) == all[seed as usize]));
        for way in [ExecutionMode::Call, ExecutionMode::Once, ExecutionMode::Other, ExecutionMode::Worker] {
            assert!(all.iter().any(|mix| mix.ways.contains(&way)), "{way:?}");
        }
        type Choice = fn(&Mix) -> bool;
        let choices: [Choice; 6] = [
            |mix| mix.caches > 1,
            |mix| mix.merging,
            |mix| mix.interrupts,
            |mix| mix.pending,
            |mix| mix.closes,
            |mix| mix.descendant,
        ];
        for (number, choice) in choices.iter().enumerate() {
            assert!(all.iter().any(choice) && !all.iter().all(choice), "choice {number}");
        }
        let text = all.iter().find(|mix| mix.closes).map(Mix::to_string).expect("a mix that closes descriptors");
        assert!(text.contains("descriptors closed") && text.contains("Call"), "{text}");
    }
}
