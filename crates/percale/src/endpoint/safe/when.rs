//! Safe operations that begin when a counter has reached a threshold or a variable is written.

use super::OperationError;
use crate::completion::counter::Counter;
use crate::completion::counter::{Condition, fire};
use crate::conditions::variable::Variable;
use crate::endpoint::engine::types::Notify;
use crate::endpoint::operation::RawOperation;
use crate::endpoint::operations::OperationId;
use crate::endpoint::ownership::Ownership;
use crate::endpoint::work::{OpFlags, PostError};
use crate::local_memory::buffer::Buffer;

/// The condition under which an operation begins, and the additional counter that counts its end.
#[derive(Clone, Debug)]
pub(super) struct StartCondition {
    begins: Begins,
    /// The counter that counts the end of the operation, if the operation is deferred work.
    counting: Option<Counter>,
}

#[derive(Clone, Debug)]
enum Begins {
    /// Begins when the counter has reached the threshold.
    Counted(Counter, u64),
    /// Begins when the variable is written.
    Written(Variable),
}

impl StartCondition {
    /// Sets the condition that `counter` has reached `threshold`, and keeps the other settings of `before`.
    pub(super) fn once(before: Option<Box<Self>>, counter: &Counter, threshold: u64) -> Box<Self> {
        let counting = before.and_then(|when| when.counting);
        Box::new(Self { begins: Begins::Counted(counter.clone(), threshold), counting })
    }

    /// Sets the condition that `variable` was written, and keeps the other settings of `before`.
    pub(super) fn written(before: Option<Box<Self>>, variable: &Variable) -> Box<Self> {
        let counting = before.and_then(|when| when.counting);
        Box::new(Self { begins: Begins::Written(variable.clone()), counting })
    }

    /// Sets the counter that counts the end of the operation. Without a condition in `before` it begins immediately.
    pub(super) fn counting(before: Option<Box<Self>>, by: &Counter) -> Box<Self> {
        let begins = before.map_or_else(|| Begins::Counted(by.clone(), 0), |when| when.begins);
        Box::new(Self { begins, counting: Some(by.clone()) })
    }

    /// Queues an operation that owns its buffer until its condition is met. Returns the ID of the operation.
    pub(super) fn start<A: Ownership>(
        self,
        access: &A,
        buffer: Buffer,
        operation: impl FnOnce(u64, &Buffer) -> RawOperation,
    ) -> Result<OperationId, OperationError> {
        let Self { begins, counting } = self;
        // Deferred work needs progress without calls by the application. A thread that waits for its end also makes
        // progress, with less delay.
        if let Some(counting) = &counting
            && let Err(error) = access.automate().and_then(|()| access.drive_for(counting)).and_then(|()| match &begins
            {
                Begins::Counted(counter, _) => counter.automate(),
                Begins::Written(_) => Ok(()),
            })
        {
            tracing::warn!(%error, "cannot start a progress thread: deferred work makes progress only when the endpoint is used");
        }
        let (id, due) = access.with(|engine| {
            let id = engine.core.operations.start(Buffer::from(Vec::new()));
            let operation = operation(id.to_u64(), &buffer);
            if matches!(&operation, RawOperation::Receive(work) if work.flags.contains(OpFlags::MULTI_RECEIVE)) {
                engine.core.operations.many(id);
            }
            let is_work = counting.is_some();
            let deferred = is_work.then_some(counting);
            let queued = engine.transfer(&operation, deferred).and_then(|mut transfer| {
                transfer.notify = Notify::Operation;
                match begins {
                    Begins::Counted(counter, threshold) => {
                        let condition =
                            if is_work { Condition::Ends(threshold) } else { Condition::Successes(threshold) };
                        let due = engine.queue(transfer, &counter, condition).ok_or(PostError::Forked)?;
                        Ok(due.then_some(counter))
                    }
                    Begins::Written(variable) => {
                        engine.queue_written(transfer, variable);
                        Ok(None)
                    }
                }
            });
            match queued {
                Ok(due) => {
                    // The operation cannot begin before this call leaves the endpoint.
                    engine.core.operations.give(id, buffer);
                    Ok((id, due))
                }
                Err(cause) => {
                    engine.core.operations.release(id);
                    Err(OperationError::new(cause, Some(buffer)))
                }
            }
        })?;
        // This thread is not in the endpoint now, so the operation can begin immediately.
        if let Some(counter) = due {
            fire(&counter);
        }
        Ok(id)
    }
}
