//! Operations under way: their slot in the engine, waiting for them, and what happens when they are dropped.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::{Cause, OperationError, Received, Sent};
use crate::completion::entry::{Entry, ErrorEntry};
use crate::endpoint::engine::Engine;
use crate::endpoint::ownership::Ownership;
use crate::endpoint::{Endpoint, reactor};
use crate::memory::buffer::Buffer;

/// An operation under way.
#[derive(Debug)]
pub(super) struct UnderWay<'e, A: Ownership> {
    pub(super) endpoint: &'e Endpoint<A>,
    pub(super) id: usize,
    /// Polls in a row that found nothing.
    polls: u32,
    /// The slot was released.
    pub(super) ended: bool,
}

/// Polls of a future that spin through the executor before it waits for the descriptor.
const SPINS: u32 = 32;

impl<'e, A: Ownership> UnderWay<'e, A> {
    pub(super) fn new(endpoint: &'e Endpoint<A>, id: usize) -> Self {
        Self { endpoint, id, polls: 0, ended: false }
    }

    /// The result and the buffer, once there is one.
    pub(super) fn take(id: usize, engine: &mut Engine) -> Option<(Result<Entry, ErrorEntry>, Option<Buffer>)> {
        let result = engine.core.operations.take_result(id)?;
        Some((result, engine.core.operations.release(id)))
    }

    /// Whether there is a result, after some progress.
    pub(super) fn is_ready(&self) -> bool {
        let id = self.id;
        self.endpoint.access.with(|engine| {
            engine.progress();
            engine.core.operations.has_result(id)
        })
    }

    /// The address of the buffer's first byte.
    pub(super) fn base(&self) -> u64 {
        self.endpoint.access.with(|engine| {
            let buffer = engine.core.operations.buffer(self.id);
            buffer.map_or(0, |buffer| buffer.segment_for_send().as_ptr().addr() as u64)
        })
    }

    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<(Entry, Buffer), OperationError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let id = self.id;
        match self.endpoint.access.wait_until(deadline, |engine| Self::take(id, engine)) {
            Some(taken) => self.end(taken),
            None => Err(OperationError { cause: Cause::TimedOut, buffer: None }),
        }
    }

    pub(super) fn end(
        &mut self,
        (result, buffer): (Result<Entry, ErrorEntry>, Option<Buffer>),
    ) -> Result<(Entry, Buffer), OperationError> {
        self.ended = true;
        match (result, buffer) {
            (Ok(entry), Some(buffer)) => Ok((entry, buffer)),
            (Ok(entry), None) => Ok((entry, Buffer::from(Vec::new()))),
            (Err(error), buffer) => Err(OperationError { cause: error.into(), buffer }),
        }
    }

    /// Polls for whatever `take` finds; arranges to be woken otherwise.
    pub(super) fn poll<R>(&mut self, context: &Context<'_>, mut take: impl FnMut(&mut Engine) -> Option<R>) -> Poll<R> {
        let (id, spin) = (self.id, self.polls < SPINS);
        self.polls += 1;
        let endpoint = self.endpoint;
        let found = endpoint.access.with(|engine| {
            engine.progress();
            if let Some(found) = take(engine) {
                return Ok(found);
            }
            engine.core.operations.set_waker(id, context.waker());
            if spin {
                return Err(false);
            }
            let calm = engine.watch();
            take(engine).ok_or(calm)
        });
        match found {
            Ok(found) => {
                self.polls = 0;
                return Poll::Ready(found);
            }
            Err(false) => context.waker().wake_by_ref(),
            Err(true) => {
                let watched = reactor::wake_when_readable(endpoint.id(), &endpoint.descriptor, context.waker());
                if let Err(error) = watched {
                    tracing::warn!(%error, "no reactor; the future polls instead");
                    context.waker().wake_by_ref();
                }
            }
        }
        Poll::Pending
    }
}

impl<A: Ownership> Drop for UnderWay<'_, A> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let id = self.id;
        self.endpoint.access.with(|engine| {
            engine.core.operations.park(id);
            engine.core.cancel(id as u64, true);
        });
    }
}

/// A send under way: wait for it or await it.
#[derive(Debug)]
#[must_use = "dropping it cancels the send if it can"]
pub struct Sending<'e, A: Ownership> {
    pub(super) under_way: UnderWay<'e, A>,
}

impl<A: Ownership> Sending<'_, A> {
    /// Waits until the send has completed.
    ///
    /// # Errors
    /// If it fails.
    pub fn wait(mut self) -> Result<Sent, OperationError> {
        self.under_way.wait(None).map(|(_, buffer)| Sent { buffer })
    }

    /// Whether the send has ended, without waiting (but making progress).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.under_way.is_ready()
    }

    /// As [`wait`](Self::wait), for at most `timeout`; after that the send goes on without its handle.
    ///
    /// # Errors
    /// If it fails, or time passes.
    pub fn wait_for(mut self, timeout: Duration) -> Result<Sent, OperationError> {
        self.under_way.wait(Some(timeout)).map(|(_, buffer)| Sent { buffer })
    }
}
/// A receive under way: wait for it or await it.
#[derive(Debug)]
#[must_use = "dropping it cancels the receive if it can"]
pub struct Receiving<'e, A: Ownership> {
    pub(super) under_way: UnderWay<'e, A>,
}

impl<A: Ownership> Receiving<'_, A> {
    /// Waits for the message.
    ///
    /// # Errors
    /// If the receive fails: truncation, cancellation, death of the peer that it was directed at.
    pub fn wait(mut self) -> Result<Received, OperationError> {
        self.under_way.wait(None).map(|(entry, buffer)| Received::new(buffer, &entry))
    }

    /// As [`wait`](Self::wait), for at most `timeout`; then the receive is cancelled.
    ///
    /// # Errors
    /// If the receive fails, or time passes.
    pub fn wait_for(mut self, timeout: Duration) -> Result<Received, OperationError> {
        self.under_way.wait(Some(timeout)).map(|(entry, buffer)| Received::new(buffer, &entry))
    }

    /// Whether the message is here, without waiting (but making progress).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.under_way.is_ready()
    }

    /// Cancels the receive; it then completes with [`ErrorCode::Canceled`](crate::ErrorCode::Canceled), unless a message came first. Says whether it did.
    #[must_use]
    pub fn cancel(&self) -> bool {
        let id = self.under_way.id;
        self.under_way.endpoint.access.with(|engine| engine.core.cancel(id as u64, true))
    }
}
