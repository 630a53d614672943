//! The raw API of operations that begin when a counter has reached a threshold or a variable is written.

#![expect(unsafe_code, reason = "the caller fulfils the safety contract")]

use std::io;

use super::ownership::Ownership;
use super::ownership::reach::EngineAccess;
use super::work::PostError;
use super::{Endpoint, SharedEndpoint};
use crate::completion::counter::Counter;
use crate::completion::counter::{Condition, Due, fire};
use crate::conditions::variable::Variable;
use crate::endpoint::operation::RawOperation;

impl<A: Ownership> Endpoint<A> {
    /// Posts an operation that begins when `counter` has counted `threshold` successes (fi_trigger(3),
    /// FI_TRIGGER_THRESHOLD). Before that, nothing is read or written. Then the operation runs and completes like one
    /// that is posted at that time. There is always room for its completion. [`Endpoint::cancel`] cancels it.
    ///
    /// # Errors
    /// See [`PostError`]. After an error, the operation was not started. If an error is detected only when the
    /// operation begins (for example the peer is no longer in the vector), the operation fails.
    ///
    /// # Safety
    /// The requirements for posting the operation hold from this call until it has completed.
    pub unsafe fn post_when(
        &self,
        operation: &RawOperation,
        counter: &Counter,
        threshold: u64,
    ) -> Result<(), PostError> {
        let due = self.access.with(|engine| {
            let transfer = engine.transfer(operation, None)?;
            engine.queue(transfer, counter, Condition::Successes(threshold)).ok_or(PostError::Forked)
        })?;
        // This thread is not in the endpoint now, so the operation can begin immediately.
        if due {
            fire(counter);
        }
        Ok(())
    }

    /// Posts an operation that begins when a variable is written (fi_trigger(3), FI_TRIGGER_XPU) and all earlier
    /// operations that wait for variables have begun. In all other respects it is like [`post_when`](Self::post_when).
    /// A store does not call the library, so a thread has to make progress; with automatic progress, a thread of the
    /// library does so. For 10 ms after such an operation was posted or began, a thread that waits for the endpoint
    /// does not sleep. Later such a thread checks the variable after sleeps of 0.5 ms, which become longer while
    /// nothing happens, up to 16 ms.
    ///
    /// # Errors
    /// Those of [`post_when`](Self::post_when).
    ///
    /// # Safety
    /// As for [`post_when`](Self::post_when).
    pub unsafe fn post_when_written(&self, operation: &RawOperation, variable: &Variable) -> Result<(), PostError> {
        self.access.with(|engine| {
            let transfer = engine.transfer(operation, None)?;
            engine.queue_written(transfer, variable.clone());
            Ok(())
        })
    }

    /// Prepares an operation for deferred work on `counter`. The end of the operation is counted by the given counter,
    /// if any, and not by the endpoint's counters. From now on the endpoint has a record that one of its operations
    /// waits for `counter`.
    pub(crate) fn deferred(
        &self,
        operation: &RawOperation,
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
