//! The raw API of operations that begin when a counter has reached a threshold, or a variable was written.

#![expect(unsafe_code, reason = "its contract is the caller's to keep")]

use std::io;

use super::ownership::Ownership;
use super::ownership::reach::Reach;
use super::work::PostError;
use super::{Endpoint, SharedEndpoint};
use crate::completion::counter::Counter;
use crate::completion::counter::{Condition, Due, fire};
use crate::conditions::variable::Variable;
use crate::endpoint::operation::Operation;

impl<A: Ownership> Endpoint<A> {
    /// Posts an operation that begins when `counter` has counted `threshold` successes (fi_trigger(3), FI_TRIGGER_THRESHOLD).
    /// Nothing is read or written before. Then it runs and completes like an operation that is posted at that time; there is always
    /// room for its completion. [`Endpoint::cancel`] cancels it.
    ///
    /// # Errors
    /// See [`PostError`]. After an error nothing was done. An error that only shows when the operation begins (for example that the peer is
    /// no longer in the vector) makes it fail.
    ///
    /// # Safety
    /// The requirements for posting the operation hold from now until it has completed.
    pub unsafe fn post_when(&self, operation: &Operation, counter: &Counter, threshold: u64) -> Result<(), PostError> {
        let due = self.access.with(|engine| {
            let transfer = engine.transfer(operation, None)?;
            Ok::<_, PostError>(engine.queue(transfer, counter, Condition::Successes(threshold)))
        })?;
        // This thread is not in the endpoint now, so the operation can begin at once.
        if due {
            fire(counter);
        }
        Ok(())
    }

    /// Posts an operation that begins when a variable was written (fi_trigger(3), FI_TRIGGER_XPU), and the operations before it
    /// that wait for variables have begun. Otherwise like [`post_when`](Self::post_when). A store makes no call, so a thread has to
    /// make progress; automatic progress does. For 10 ms after such an operation was posted or began, no thread that waits for the
    /// endpoint sleeps; later such a thread looks at the variable about every half millisecond.
    ///
    /// # Errors
    /// Those of [`post_when`](Self::post_when).
    ///
    /// # Safety
    /// As for [`post_when`](Self::post_when).
    pub unsafe fn post_when_written(&self, operation: &Operation, variable: &Variable) -> Result<(), PostError> {
        self.access.with(|engine| {
            let transfer = engine.transfer(operation, None)?;
            engine.queue_written(transfer, variable.clone());
            Ok(())
        })
    }

    /// Prepares an operation for deferred work on `counter`: its end is counted by the given counter, if any, and not by the
    /// endpoint's. From here on the endpoint knows that one of its operations waits for `counter`.
    pub(crate) fn deferred(
        &self,
        operation: &Operation,
        counter: &Counter,
        counting: Option<Counter>,
    ) -> Result<Due, PostError> {
        self.access.with(|engine| {
            let transfer = engine.transfer(operation, Some(counting))?;
            engine.core.triggered.waits_for(counter);
            Ok(transfer.into_due())
        })
    }
}

impl SharedEndpoint {
    /// Starts a thread that makes progress on the endpoint from now on.
    pub(crate) fn automate(&self) -> io::Result<()> {
        self.access.automate()
    }
}
