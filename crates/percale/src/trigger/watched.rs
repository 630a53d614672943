//! Operations of an endpoint that wait for their variables.
//!
//! They begin in the order in which they were posted (fi_trigger(3): devices write in the order of the queue): one whose variable was
//! written early waits for those before it. Nobody rings when a variable is written, so whoever makes progress looks; and
//! whoever would sleep looks again at once for a while ([`EAGER`]), then every nap.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::submissions::Transfer;
use super::variable::Variable;

/// So many variables of operations that were taken back are kept from being others' if they are not written, or twice as many; each takes 64
/// bytes.
const LATE: usize = 1 << 13;

/// So long after something was posted, or began, nobody sleeps.
const EAGER: Duration = Duration::from_millis(10);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    line: VecDeque<(Variable, Box<Transfer>)>,
    /// Of what was taken back, the oldest first: devices may write them still, and a place that serves another operation meanwhile would lose
    /// what was written for that. Once they have, nobody writes there any more.
    late: VecDeque<Variable>,
    /// How many may be there before those that were written are looked for.
    limit: usize,
    /// When something was posted or began.
    changed: Option<Instant>,
}

impl Watched {
    /// Adds an operation.
    pub(crate) fn push(&mut self, variable: Variable, transfer: Box<Transfer>) {
        self.line.push_back((variable, transfer));
        self.changed = Some(Instant::now());
    }

    /// Whether the first may begin.
    pub(crate) fn is_due(&self) -> bool {
        self.line.front().is_some_and(|(variable, _)| variable.is_written())
    }

    /// Takes the first, if it may begin.
    pub(crate) fn pop(&mut self) -> Option<Box<Transfer>> {
        if !self.is_due() {
            return None;
        }
        self.changed = Some(Instant::now());
        self.line.pop_front().map(|(_, transfer)| transfer)
    }

    /// Takes back the first that is wanted.
    pub(crate) fn cancel(&mut self, mut wanted: impl FnMut(&Transfer) -> bool) -> Option<Box<Transfer>> {
        let at = self.line.iter().position(|(_, transfer)| wanted(transfer))?;
        let (variable, transfer) = self.line.remove(at)?;
        self.keep(variable);
        Some(transfer)
    }

    /// Keeps the place of a variable that may be written yet from serving again.
    fn keep(&mut self, variable: Variable) {
        self.late.push_back(variable);
        if self.late.len() > self.limit {
            self.late.retain(|variable| !variable.is_written());
            // Most of what is left will never be written: its writers were stopped, too.
            let surplus = self.late.len().saturating_sub(LATE);
            self.late.drain(..surplus);
            self.limit = (2 * self.late.len()).max(64);
        }
    }

    /// Whether something waits.
    pub(crate) fn any(&self) -> bool {
        !self.line.is_empty()
    }

    /// Whether something waits that is looked at all the time.
    pub(crate) fn is_eager(&self) -> bool {
        self.any() && self.changed.is_some_and(|at| at.elapsed() < EAGER)
    }

    /// Takes all: the endpoint closes.
    pub(crate) fn clear(&mut self) {
        self.line.clear();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::trigger::Variables;

    #[test]
    fn xpu_012_places_of_what_was_taken_back_serve_again() {
        let (all, mut watched) = (Arc::new(Variables::default()), Watched::default());
        for _ in 0..5 * LATE {
            watched.keep(Variables::take(&all));
            assert!(watched.late.len() <= 2 * LATE);
        }
        let mut watched = Watched::default();
        for _ in 0..1000 {
            let variable = Variables::take(&all);
            variable.write();
            watched.keep(variable);
        }
        assert!(watched.late.len() <= 65, "those that were written: {}", watched.late.len());
    }
}
