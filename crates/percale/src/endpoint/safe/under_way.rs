//! Operations in progress: their slots in the engine, waiting for them, and dropping them.
//!
//! A handle is used up when it has returned its operation's result. After that, polls and waits return
//! [`Cause::Taken`], [`is_ready`](UnderWay::is_ready) returns true, and canceling and dropping have no effect.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::{Cause, OperationError, Received, Sent};
use crate::completion::entry::{Entry, OperationResult};
use crate::deferred_actions;
use crate::endpoint::engine::Engine;
use crate::endpoint::operations::OperationId;
use crate::endpoint::ownership::Ownership;
use crate::endpoint::refused::RefusedResult;
use crate::endpoint::{Endpoint, reactor};
use crate::local_memory::buffer::Buffer;

/// An operation under way.
#[derive(Debug)]
pub(super) struct UnderWay<'e, A: Ownership> {
    pub(super) endpoint: &'e Endpoint<A>,
    pub(super) id: OperationId,
    /// The number of successive polls that found no result.
    polls: u32,
    /// Whether the reactor has a waker of this operation.
    watched: bool,
    /// Whether the result was taken and the slot released.
    ended: bool,
}

/// The number of polls in which a future asks the executor to poll it again before it waits for the descriptor.
const SPINS: u32 = 32;

/// The result of an operation, and its buffer.
type ResultAndBuffer = (OperationResult, Option<Buffer>);

/// The result of a poll.
enum PollOutcome {
    Ended(ResultAndBuffer),
    /// The task's waker has to be cloned first, while the endpoint is not borrowed.
    Clone,
    /// There is no result yet, and the task polls again.
    Spin,
    /// There is no result yet, and the task is woken when the descriptor is readable.
    Sleep,
}

impl<'e, A: Ownership> UnderWay<'e, A> {
    pub(super) fn new(endpoint: &'e Endpoint<A>, id: OperationId) -> Self {
        Self { endpoint, id, polls: 0, watched: false, ended: false }
    }

    /// Takes the result and the buffer, if there is a result.
    fn take(id: OperationId, engine: &mut Engine) -> Option<ResultAndBuffer> {
        engine.core.operations.take_end(id)
    }

    /// Makes progress, then returns whether a wait would return immediately.
    pub(super) fn is_ready(&self) -> bool {
        let id = self.id;
        self.ended
            || !self.endpoint.access.is_here()
            || self.endpoint.access.with(|engine| {
                engine.progress();
                engine.core.operations.has_result(id)
            })
    }

    /// Cancels the operation if that is possible. Returns whether it was canceled.
    pub(super) fn cancel(&self) -> bool {
        let context = self.id.to_u64();
        !self.ended && self.endpoint.access.with(|engine| engine.core.cancel(context, true))
    }

    /// Waits for the end of the operation. Only methods that consume the handle, or record that it ended, call this.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<(Entry, Buffer), OperationError> {
        if self.ended {
            return Err(OperationError::taken());
        }
        if !self.endpoint.access.is_here() {
            return Err(OperationError::refused());
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let id = self.id;
        match self.endpoint.access.wait_until(deadline, |engine| Self::take(id, engine)) {
            Some(end) => self.end(end),
            None => Err(OperationError { cause: Cause::TimedOut, buffer: None }),
        }
    }

    fn end(&mut self, (result, buffer): ResultAndBuffer) -> Result<(Entry, Buffer), OperationError> {
        self.used_up();
        match (result, buffer) {
            (Ok(entry), Some(buffer)) => Ok((entry, buffer)),
            (Ok(entry), None) => Ok((entry, Buffer::from(Vec::new()))),
            (Err(error), buffer) => Err(OperationError { cause: error.into(), buffer }),
        }
    }

    /// Records that the slot was released.
    pub(super) fn used_up(&mut self) {
        self.ended = true;
        self.unwatch();
    }

    /// Removes the task's waker from the reactor.
    fn unwatch(&mut self) {
        if std::mem::take(&mut self.watched) {
            reactor::unwatch(self.endpoint.id(), self.id.to_u64());
        }
    }

    /// Polls for the end of the operation. If it has not ended, arranges for the task to be woken.
    pub(super) fn poll(&mut self, context: &Context<'_>) -> Poll<Result<(Entry, Buffer), OperationError>> {
        if self.ended {
            return Poll::Ready(Err(OperationError::taken()));
        }
        if !self.endpoint.access.is_here() {
            return Poll::Ready(Err(OperationError::refused()));
        }
        let spin = self.polls < SPINS;
        self.polls = self.polls.saturating_add(1);
        let mut fresh = None;
        let look = loop {
            match self.poll_outcome(context.waker(), &mut fresh, spin) {
                PollOutcome::Clone => fresh = Some(context.waker().clone()),
                look => break look,
            }
        };
        deferred_actions::discard(fresh);
        match look {
            PollOutcome::Ended(end) => return Poll::Ready(self.end(end)),
            PollOutcome::Sleep => {
                let (id, key) = (self.endpoint.id(), self.id.to_u64());
                match reactor::wake_when_readable(id, &self.endpoint.descriptor, key, context.waker()) {
                    Ok(()) => self.watched = true,
                    Err(error) => {
                        tracing::warn!(%error, "the reactor cannot watch the endpoint; the future polls instead");
                        context.waker().wake_by_ref();
                    }
                }
            }
            PollOutcome::Clone | PollOutcome::Spin => context.waker().wake_by_ref(),
        }
        Poll::Pending
    }

    fn poll_outcome(&self, waker: &Waker, fresh: &mut Option<Waker>, spin: bool) -> PollOutcome {
        let id = self.id;
        // The caller has checked for the result.
        self.endpoint.access.with_here(|engine| {
            engine.progress();
            if let Some(end) = Self::take(id, engine) {
                return PollOutcome::Ended(end);
            }
            if !engine.core.operations.set_waker(id, waker, fresh) {
                return PollOutcome::Clone;
            }
            if spin {
                return PollOutcome::Spin;
            }
            let calm = engine.watch();
            match Self::take(id, engine) {
                Some(end) => PollOutcome::Ended(end),
                None if calm => PollOutcome::Sleep,
                None => PollOutcome::Spin,
            }
        })
    }
}

impl<A: Ownership> Drop for UnderWay<'_, A> {
    fn drop(&mut self) {
        if self.ended || !self.endpoint.access.is_here() {
            return;
        }
        self.unwatch();
        let id = self.id;
        self.endpoint.access.with(|engine| {
            if engine.core.operations.park(id) {
                engine.core.cancel(id.to_u64(), true);
            }
        });
    }
}

/// A send in progress. Wait for it, or await it, to get its result.
#[must_use = "dropping it cancels the send if possible"]
pub struct Sending<'e, A: Ownership> {
    pub(super) under_way: UnderWay<'e, A>,
}

crate::short_debug!(for [A: Ownership] Sending<'_, A>, "Sending");

impl<A: Ownership> Sending<'_, A> {
    /// Waits until the send has completed.
    ///
    /// # Errors
    /// If the send fails.
    pub fn wait(mut self) -> Result<Sent, OperationError> {
        self.under_way.wait(None).map(|(_, buffer)| Sent { buffer })
    }

    /// Returns whether the send has ended. Makes progress, but does not wait.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.under_way.is_ready()
    }

    /// Like [`wait`](Self::wait), but for at most `timeout`. After that the send continues without its handle.
    ///
    /// # Errors
    /// If the send fails, or the timeout expires.
    pub fn wait_for(mut self, timeout: Duration) -> Result<Sent, OperationError> {
        self.under_way.wait(Some(timeout)).map(|(_, buffer)| Sent { buffer })
    }
}
/// A receive in progress. Wait for it, or await it, to get the message.
#[must_use = "dropping it cancels the receive if possible"]
pub struct Receiving<'e, A: Ownership> {
    pub(super) under_way: UnderWay<'e, A>,
}

crate::short_debug!(for [A: Ownership] Receiving<'_, A>, "Receiving");

impl<A: Ownership> Receiving<'_, A> {
    /// Waits for the message.
    ///
    /// # Errors
    /// If the receive fails, for example because the message was truncated, the receive was canceled, or the peer at
    /// which it was directed died.
    pub fn wait(mut self) -> Result<Received, OperationError> {
        self.under_way.wait(None).map(|(entry, buffer)| Received::new(buffer, &entry))
    }

    /// Like [`wait`](Self::wait), but for at most `timeout`, after which the receive is canceled.
    ///
    /// # Errors
    /// If the receive fails, or the timeout expires.
    pub fn wait_for(mut self, timeout: Duration) -> Result<Received, OperationError> {
        self.under_way.wait(Some(timeout)).map(|(entry, buffer)| Received::new(buffer, &entry))
    }

    /// Returns whether the receive has ended. Makes progress, but does not wait.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.under_way.is_ready()
    }

    /// Cancels the receive, which then completes with [`ErrorCode::Canceled`](crate::ErrorCode::Canceled), unless a
    /// message was matched first. Returns whether it was canceled.
    #[must_use]
    pub fn cancel(&self) -> bool {
        self.under_way.cancel()
    }
}
