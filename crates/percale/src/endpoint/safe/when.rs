//! Safe operations that begin when a counter has reached a threshold.

use super::OperationError;
use crate::completion::counter::Counter;
use crate::endpoint::Endpoint;
use crate::endpoint::access::Access;
use crate::endpoint::engine::types::Notify;
use crate::memory::buffer::Buffer;
use crate::trigger::{Condition, Operation, fire};

/// When an operation begins, and what else counts its end.
#[derive(Clone, Debug)]
pub(super) struct When {
    counter: Counter,
    threshold: u64,
    /// It is deferred work, which this counter counts.
    counting: Option<Counter>,
}

impl When {
    /// Once `counter` has counted so many; otherwise as before.
    pub(super) fn once(before: Option<Self>, counter: &Counter, threshold: u64) -> Self {
        let counting = before.and_then(|when| when.counting);
        Self { counter: counter.clone(), threshold, counting }
    }

    /// Counted by a counter of its own; begins as before, or at once.
    pub(super) fn counting(before: Option<Self>, by: &Counter) -> Self {
        let (counter, threshold) = before.map_or_else(|| (by.clone(), 0), |when| (when.counter, when.threshold));
        Self { counter, threshold, counting: Some(by.clone()) }
    }

    /// Lets an operation that owns its buffer wait; returns its number.
    pub(super) fn start<A: Access>(
        self,
        endpoint: &Endpoint<A>,
        buffer: Buffer,
        operation: impl FnOnce(u64, &Buffer) -> Operation,
    ) -> Result<usize, OperationError> {
        let Self { counter, threshold, counting } = self;
        let condition = if counting.is_some() { Condition::Ends(threshold) } else { Condition::Successes(threshold) };
        // Deferred work goes on by itself.
        if counting.is_some()
            && let Err(error) = endpoint.access.automate().and_then(|()| counter.automate())
        {
            tracing::warn!(%error, "no thread for progress: deferred work goes on when the endpoint is used");
        }
        let (id, due) = endpoint.access.with(|engine| {
            let id = engine.core.operations.start(Buffer::from(Vec::new()));
            let operation = operation(id as u64, &buffer);
            let deferred = counting.is_some().then_some(counting);
            match engine.transfer(&operation, deferred) {
                Ok(mut transfer) => {
                    engine.core.operations.give(id, buffer);
                    transfer.notify = Notify::Operation;
                    Ok((id, engine.queue(transfer, &counter, condition)))
                }
                Err(cause) => {
                    engine.core.operations.withdraw(id);
                    Err(OperationError { cause: cause.into(), buffer: Some(buffer) })
                }
            }
        })?;
        // Nobody is in the endpoint now, so it can begin at once.
        if due {
            fire(&counter);
        }
        Ok(id)
    }
}
