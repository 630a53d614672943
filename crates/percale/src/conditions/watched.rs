//! Work that waits for variables, in the order in which it was posted.
//!
//! Operations begin in the order in which they were posted (fi_trigger(3): devices write in the order of the queue). If
//! the variable of an operation is written early, the operation waits for those before it. Writing a variable sends no
//! notification, so each thread that makes progress checks the variables. A thread that would sleep continues to check
//! for a while ([`EAGER`]), and then checks after every short sleep.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::variable::Variable;

/// The time during which no thread sleeps after an operation was posted or began.
const EAGER: Duration = Duration::from_millis(10);

/// The operations of an endpoint that wait for their variables, in the order in which they were posted.
#[derive(Debug)]
pub(crate) struct VariableWaiters<T> {
    line: VecDeque<(Variable, Box<T>)>,
    /// The time at which an operation was last posted or began.
    changed: Option<Instant>,
}

impl<T> Default for VariableWaiters<T> {
    fn default() -> Self {
        Self { line: VecDeque::new(), changed: None }
    }
}

impl<T> VariableWaiters<T> {
    /// Adds an operation.
    pub(crate) fn push(&mut self, variable: Variable, transfer: Box<T>) {
        self.line.push_back((variable, transfer));
        self.changed = Some(Instant::now());
    }

    /// Returns whether the first operation may begin.
    pub(crate) fn is_due(&self) -> bool {
        self.line.front().is_some_and(|(variable, _)| variable.is_written())
    }

    /// Takes the first operation if it may begin.
    pub(crate) fn pop(&mut self) -> Option<Box<T>> {
        if !self.is_due() {
            return None;
        }
        self.changed = Some(Instant::now());
        self.line.pop_front().map(|(_, transfer)| transfer)
    }

    /// Cancels the first operation that `wanted` accepts.
    pub(crate) fn cancel(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Option<Box<T>> {
        let at = self.line.iter().position(|(_, transfer)| wanted(transfer))?;
        self.line.remove(at).map(|(_, transfer)| transfer)
    }

    /// Returns whether an operation waits.
    pub(crate) fn any(&self) -> bool {
        !self.line.is_empty()
    }

    /// Returns whether an operation waits, and its variable is to be checked without sleeping.
    pub(crate) fn is_eager(&self) -> bool {
        self.any() && self.changed.is_some_and(|at| at.elapsed() < EAGER)
    }

    /// Takes all operations, when the endpoint closes.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Box<T>> {
        self.line.drain(..).map(|(_, transfer)| transfer)
    }
}
