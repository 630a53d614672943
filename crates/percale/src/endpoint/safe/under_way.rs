//! Operations in progress: their slots in the engine, waiting for them, and dropping them.
//!
//! A handle is used up when it has returned its operation's result. After that, polls and waits return
//! [`Cause::Taken`], [`is_ready`](UnderWay::is_ready) returns true, and canceling and dropping have no effect.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::{Cause, OperationError, Received, Sent};
use crate::completion::entry::{Entry, OperationResult};
use crate::endpoint::engine::Engine;
use crate::endpoint::operations::OperationId;
use crate::endpoint::ownership::Ownership;
use crate::endpoint::ownership::reach::Call;
use crate::endpoint::refused::Refused;
use crate::endpoint::{Endpoint, reactor};
use crate::errands;
use crate::local_memory::buffer::Buffer;

/// An operation under way.
#[derive(Debug)]
pub(super) struct UnderWay<'e, A: Ownership> {
    pub(super) endpoint: &'e Endpoint<A>,
    /// The number of the operation, in one word ([`OperationId::to_u64`]).
    id: u64,
    marks: Marks,
}

/// What a handle records about its operation, in one word. Handles and buffers consist of whole words only: the compiler
/// moves smaller fields, which share a word with a field of another variant of an enum, by loads that overlap earlier
/// stores, and each of these costs about 5 ns.
#[derive(Clone, Copy, Debug)]
struct Marks(u64);

impl Marks {
    /// Set if the result was taken and the slot released.
    const ENDED: u64 = 1 << 63;
    /// Set if the reactor has a waker of this operation.
    const WATCHED: u64 = 1 << 62;

    #[inline(always)]
    const fn are_set(self, mark: u64) -> bool {
        self.0 & mark != 0
    }

    /// Counts a poll that found no result. Returns the number of those before it.
    const fn count_poll(&mut self) -> u64 {
        let polls = self.0 & !(Self::ENDED | Self::WATCHED);
        if polls < SPINS {
            self.0 += 1;
        }
        polls
    }
}

/// An operation that was started. Its result is of type `R`.
#[derive(Debug)]
pub(super) struct Begun<'e, A: Ownership, R> {
    state: State<'e, A, R>,
}

#[derive(Debug)]
enum State<'e, A: Ownership, R> {
    /// The operation ended when it was posted. `None` if the result was taken.
    Ended(&'e Endpoint<A>, Option<R>),
    UnderWay(UnderWay<'e, A>),
}

impl<'e, A: Ownership, R> Begun<'e, A, R> {
    /// The operation ended when it was posted.
    #[inline(always)]
    pub(super) const fn ended(endpoint: &'e Endpoint<A>, result: R) -> Self {
        Self { state: State::Ended(endpoint, Some(result)) }
    }

    /// The operation was posted, and has a slot.
    #[inline]
    pub(super) fn under_way(endpoint: &'e Endpoint<A>, id: OperationId) -> Self {
        Self { state: State::UnderWay(UnderWay::new(endpoint, id)) }
    }

    /// Like [`UnderWay::is_ready`].
    pub(super) fn is_ready(&self) -> bool {
        match &self.state {
            State::Ended(..) => true,
            State::UnderWay(under_way) => under_way.is_ready(),
        }
    }

    /// Like [`UnderWay::wait`]. `of` makes the result of an operation that had a slot.
    #[inline(always)]
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        of: impl FnOnce(&Entry, Buffer) -> R,
    ) -> Result<R, OperationError> {
        match &mut self.state {
            State::Ended(endpoint, result) => Self::take(endpoint, result),
            State::UnderWay(under_way) => under_way.wait(timeout).map(|(entry, buffer)| of(&entry, buffer)),
        }
    }

    /// Like [`UnderWay::poll`].
    pub(super) fn poll(
        &mut self,
        context: &Context<'_>,
        of: impl FnOnce(&Entry, Buffer) -> R,
    ) -> Poll<Result<R, OperationError>> {
        match &mut self.state {
            State::Ended(endpoint, result) => Poll::Ready(Self::take(endpoint, result)),
            State::UnderWay(under_way) => under_way.poll(context).map_ok(|(entry, buffer)| of(&entry, buffer)),
        }
    }

    #[inline(always)]
    fn take(endpoint: &Endpoint<A>, result: &mut Option<R>) -> Result<R, OperationError> {
        if !endpoint.access.is_here() {
            return Err(OperationError::refused());
        }
        result.take().ok_or_else(OperationError::taken)
    }
}

/// The number of polls in which a future asks the executor to poll it again before it waits for the descriptor.
const SPINS: u64 = 32;

/// The result of an operation, and its buffer.
type End = (OperationResult, Option<Buffer>);

/// Takes the result and the buffer of an operation, if it succeeded and was only waiting to be taken, or if its message
/// is the next in its ring.
struct TakeAtOnce(OperationId);

impl Call for TakeAtOnce {
    type Result = Option<(Entry, Buffer)>;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) -> Option<(Entry, Buffer)> {
        engine.progress_if_due();
        if !engine.core.operations.has_result(self.0) {
            engine.poll_for_wait();
        }
        engine.core.operations.take_success(self.0)
    }
}

/// The result of a poll.
enum Look {
    Ended(End),
    /// The task's waker has to be cloned first, while the endpoint is not borrowed.
    Clone,
    /// There is no result yet, and the task polls again.
    Spin,
    /// There is no result yet, and the task is woken when the descriptor is readable.
    Sleep,
}

impl<'e, A: Ownership> UnderWay<'e, A> {
    pub(super) fn new(endpoint: &'e Endpoint<A>, id: OperationId) -> Self {
        Self { endpoint, id: id.to_u64(), marks: Marks(0) }
    }

    /// Returns the number of the operation.
    #[inline(always)]
    pub(super) const fn id(&self) -> OperationId {
        OperationId::from_u64(self.id)
    }

    #[inline(always)]
    const fn is_ended(&self) -> bool {
        self.marks.are_set(Marks::ENDED)
    }

    /// Takes the result and the buffer, if there is a result.
    fn take(id: OperationId, engine: &mut Engine) -> Option<End> {
        engine.core.operations.take_end(id)
    }

    /// Makes progress, then returns whether a wait would return immediately.
    pub(super) fn is_ready(&self) -> bool {
        let id = self.id();
        self.is_ended()
            || !self.endpoint.access.is_here()
            || self.endpoint.access.with(|engine| {
                engine.progress();
                engine.core.operations.has_result(id)
            })
    }

    /// Cancels the operation if that is possible. Returns whether it was canceled.
    pub(super) fn cancel(&self) -> bool {
        let context = self.id;
        !self.is_ended() && self.endpoint.access.with(|engine| engine.core.cancel(context, true))
    }

    /// Waits for the end of the operation. Only methods that consume the handle, or record that it ended, call this.
    #[inline(always)]
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<(Entry, Buffer), OperationError> {
        // Usually the operation has ended, or its message has arrived.
        if !self.is_ended()
            && let Some((entry, buffer)) = self.endpoint.access.run(TakeAtOnce(self.id()))
        {
            self.marks.0 |= Marks::ENDED;
            if self.marks.are_set(Marks::WATCHED) {
                self.unwatch();
            }
            return Ok((entry, buffer));
        }
        self.wait_longer(timeout)
    }

    /// Continues [`wait`](Self::wait) when the operation has not succeeded yet.
    #[inline(never)]
    fn wait_longer(&mut self, timeout: Option<Duration>) -> Result<(Entry, Buffer), OperationError> {
        if self.is_ended() {
            return Err(OperationError::taken());
        }
        if !self.endpoint.access.is_here() {
            return Err(OperationError::refused());
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let id = self.id();
        match self.endpoint.access.wait_until(deadline, |engine| Self::take(id, engine)) {
            Some(end) => self.end(end),
            None => Err(OperationError::new(Cause::TimedOut, None)),
        }
    }

    fn end(&mut self, (result, buffer): End) -> Result<(Entry, Buffer), OperationError> {
        self.used_up();
        match (result, buffer) {
            (Ok(entry), Some(buffer)) => Ok((entry, buffer)),
            (Ok(entry), None) => Ok((entry, Buffer::from(Vec::new()))),
            (Err(error), buffer) => Err(OperationError::new(error, buffer)),
        }
    }

    /// Records that the slot was released.
    pub(super) fn used_up(&mut self) {
        self.marks.0 |= Marks::ENDED;
        self.unwatch();
    }

    /// Removes the task's waker from the reactor.
    fn unwatch(&mut self) {
        if self.marks.are_set(Marks::WATCHED) {
            self.marks.0 &= !Marks::WATCHED;
            reactor::unwatch(self.endpoint.id(), self.id);
        }
    }

    /// Polls for the end of the operation. If it has not ended, arranges for the task to be woken.
    pub(super) fn poll(&mut self, context: &Context<'_>) -> Poll<Result<(Entry, Buffer), OperationError>> {
        if self.is_ended() {
            return Poll::Ready(Err(OperationError::taken()));
        }
        if !self.endpoint.access.is_here() {
            return Poll::Ready(Err(OperationError::refused()));
        }
        let spin = self.marks.count_poll() < SPINS;
        let mut fresh = None;
        let look = loop {
            match self.look(context.waker(), &mut fresh, spin) {
                Look::Clone => fresh = Some(context.waker().clone()),
                look => break look,
            }
        };
        errands::discard(fresh);
        match look {
            Look::Ended(end) => return Poll::Ready(self.end(end)),
            Look::Sleep => {
                let (id, key) = (self.endpoint.id(), self.id);
                match reactor::wake_when_readable(id, &self.endpoint.descriptor, key, context.waker()) {
                    Ok(()) => self.marks.0 |= Marks::WATCHED,
                    Err(error) => {
                        tracing::warn!(%error, "no reactor; the future polls instead");
                        context.waker().wake_by_ref();
                    }
                }
            }
            Look::Clone | Look::Spin => context.waker().wake_by_ref(),
        }
        Poll::Pending
    }

    fn look(&self, waker: &Waker, fresh: &mut Option<Waker>, spin: bool) -> Look {
        let id = self.id();
        // The caller has checked for the result.
        self.endpoint.access.with_here(|engine| {
            engine.progress();
            if let Some(end) = Self::take(id, engine) {
                return Look::Ended(end);
            }
            if !engine.core.operations.set_waker(id, waker, fresh) {
                return Look::Clone;
            }
            if spin {
                return Look::Spin;
            }
            let calm = engine.watch();
            match Self::take(id, engine) {
                Some(end) => Look::Ended(end),
                None if calm => Look::Sleep,
                None => Look::Spin,
            }
        })
    }
}

impl<A: Ownership> Drop for UnderWay<'_, A> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_ended() {
            self.leave();
        }
    }
}

impl<A: Ownership> UnderWay<'_, A> {
    /// Ends the use of the handle before its operation has ended.
    #[cold]
    fn leave(&mut self) {
        if !self.endpoint.access.is_here() {
            return;
        }
        self.unwatch();
        let id = self.id();
        self.endpoint.access.with(|engine| {
            if engine.core.operations.park(id) {
                engine.core.cancel(id.to_u64(), true);
            }
        });
    }
}

/// A send in progress. Wait for it, or await it, to get its result.
#[must_use = "dropping it cancels the send if it can"]
pub struct Sending<'e, A: Ownership> {
    pub(super) begun: Begun<'e, A, Sent>,
}

crate::short_debug!(for [A: Ownership] Sending<'_, A>, "Sending");

impl<A: Ownership> Sending<'_, A> {
    /// Waits until the send has completed.
    ///
    /// # Errors
    /// If it fails.
    #[inline(always)]
    pub fn wait(mut self) -> Result<Sent, OperationError> {
        self.begun.wait(None, |_, buffer| Sent { buffer })
    }

    /// Returns whether the send has ended. Makes progress, but does not wait.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.begun.is_ready()
    }

    /// Like [`wait`](Self::wait), but for at most `timeout`. After that the send continues without its handle.
    ///
    /// # Errors
    /// If it fails, or the timeout expires.
    pub fn wait_for(mut self, timeout: Duration) -> Result<Sent, OperationError> {
        self.begun.wait(Some(timeout), |_, buffer| Sent { buffer })
    }
}
/// A receive in progress. Wait for it, or await it, to get the message.
#[must_use = "dropping it cancels the receive if it can"]
pub struct Receiving<'e, A: Ownership> {
    pub(super) under_way: UnderWay<'e, A>,
}

crate::short_debug!(for [A: Ownership] Receiving<'_, A>, "Receiving");

impl<A: Ownership> Receiving<'_, A> {
    /// Waits for the message.
    ///
    /// # Errors
    /// If the receive fails: the message was truncated, the receive was canceled, or the peer at which it was directed
    /// died.
    #[inline(always)]
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
