//! The raw face of operations that begin when a counter has reached a threshold.

#![expect(unsafe_code, reason = "its contract is the caller's to keep")]

use std::io;
use std::sync::Arc;

use super::ownership::Ownership;
use super::ownership::reach::Reach;
use super::work::PostError;
use super::{Endpoint, SharedEndpoint};
use crate::completion::counter::Counter;
use crate::trigger::{Condition, Due, Operation, Variable, fire};

impl<A: Ownership> Endpoint<A> {
    /// Posts an operation that begins when `counter` has counted `threshold` successes (fi_trigger(3), FI_TRIGGER_THRESHOLD).
    /// Nothing is read or written before. Then it is as if it were posted, and completes so; there is always room for its
    /// completion. [`Endpoint::cancel`] takes it back.
    ///
    /// # Errors
    /// As [`PostError`] says; then nothing was done. What is only wrong when it begins (the peer is no longer in the vector, say) fails it.
    ///
    /// # Safety
    /// As for posting it, from now until it has completed.
    pub unsafe fn post_when(&self, operation: &Operation, counter: &Counter, threshold: u64) -> Result<(), PostError> {
        let due = self.access.with(|engine| {
            let transfer = engine.transfer(operation, None)?;
            Ok::<_, PostError>(engine.queue(transfer, counter, Condition::Successes(threshold)))
        })?;
        // Nobody is in the endpoint now, so it can begin at once.
        if due {
            fire(counter);
        }
        Ok(())
    }

    /// Posts an operation that begins when a variable was written (fi_trigger(3), FI_TRIGGER_XPU), and those before it that wait for
    /// variables have begun. Otherwise as [`post_when`](Self::post_when). A store makes no call: somebody has to make progress, and
    /// does if that is automatic. For 10 ms after such an operation was posted or began, nobody who waits for the endpoint sleeps;
    /// later it is looked at about every half millisecond.
    ///
    /// # Errors
    /// As of [`post_when`](Self::post_when).
    ///
    /// # Safety
    /// As of [`post_when`](Self::post_when).
    pub unsafe fn post_when_written(&self, operation: &Operation, variable: &Variable) -> Result<(), PostError> {
        self.access.with(|engine| {
            let transfer = engine.transfer(operation, None)?;
            engine.queue_written(transfer, variable.clone());
            Ok(())
        })
    }

    /// What is to be begun when a counter says so, as deferred work: counted by the given counter, if any, and not by the
    /// endpoint's. The endpoint knows from here on that something of it waits for `counter`.
    pub(crate) fn deferred(
        &self,
        operation: &Operation,
        counter: &Counter,
        counting: Option<Counter>,
    ) -> Result<Due, PostError> {
        self.access.with(|engine| {
            let transfer = engine.transfer(operation, Some(counting))?;
            engine.core.lines.add(counter);
            Ok(Due::Transfer(Arc::clone(&engine.core.submissions), Box::new(transfer)))
        })
    }
}

impl SharedEndpoint {
    /// Makes progress in a thread of its own from now on.
    pub(crate) fn automate(&self) -> io::Result<()> {
        self.access.automate()
    }
}
