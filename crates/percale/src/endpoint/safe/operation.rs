//! Operations in progress: their slots in the engine, waiting for them, and dropping them.
//!
//! A handle is used up when it has returned its operation's result. After that, polls and waits return
//! [`Cause::Taken`], [`is_ready`](Operation::is_ready) returns true, and canceling and dropping have no effect.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::outcome::Outcome;
use super::{Cause, OperationError};
use crate::completion::entry::{Entry, OperationResult};
use crate::deferred_actions;
use crate::endpoint::engine::Engine;
use crate::endpoint::operations::{MakeResult, OperationId};
use crate::endpoint::ownership::EndpointHandle;
use crate::endpoint::ownership::reach::{EngineAccess, EngineCall};
use crate::endpoint::reactor;
use crate::endpoint::refused::RefusedResult;
use crate::local_memory::buffer::Buffer;
use crate::system::forked::Process;

/// An operation that was started. Its result is of type `R`.
///
/// `H` refers to the endpoint: it is `&Owned` for an [`Endpoint`](crate::Endpoint), which the operation borrows, and
/// [`Shared`](crate::endpoint::Shared) for a [`SharedEndpoint`](crate::SharedEndpoint). An operation of a shared endpoint
/// borrows nothing, so a task that a runtime spawns can own it, and it keeps the endpoint open.
///
/// Wait for the operation ([`wait`](Self::wait), [`wait_for`](Self::wait_for)), or await it: it is a future for any
/// runtime. Waits do not consume the handle. After one of them has returned the result, further ones return
/// [`Cause::Taken`].
///
/// Dropping the handle cancels the operation if no message was matched and no part of it was carried out. Otherwise the
/// operation continues, its result is lost, and its buffer is kept until the peer no longer uses it. A collective is not
/// canceled, because the other members depend on it. A join that is dropped ends for all members.
#[must_use = "dropping it cancels the operation if it can"]
pub struct Operation<H: EndpointHandle, R: Outcome> {
    state: State<H, R>,
}

crate::short_debug!(for [H: EndpointHandle, R: Outcome] Operation<H, R>, "Operation");

/// Consists of whole words, including the discriminant: the compiler moves smaller fields, which share a word with a
/// field of another variant, by loads that overlap earlier stores, and each of these costs about 5 ns.
#[repr(u64)]
enum State<H: EndpointHandle, R: Outcome> {
    /// The operation ended when it was posted, in this process. `None` if the result was taken.
    Ended(Process, Option<R::AtOnce>),
    /// The operation has a slot. The second value is the part of the result that is known already.
    InProgress(InProgress<H>, R::Known),
}

impl<H: EndpointHandle, R: Outcome> Operation<H, R> {
    /// The operation ended when it was posted.
    #[inline(always)]
    pub(super) const fn ended(process: Process, result: R::AtOnce) -> Self {
        Self { state: State::Ended(process, Some(result)) }
    }

    /// The operation was posted, and has a slot.
    #[inline]
    pub(super) fn in_progress(access: H, id: OperationId, known: R::Known) -> Self {
        Self { state: State::InProgress(InProgress::new(access, id), known) }
    }

    /// Waits until the operation has ended, and returns its result.
    ///
    /// # Errors
    /// If the operation fails, or its result was taken before.
    #[inline(always)]
    pub fn wait(&mut self) -> Result<R, OperationError> {
        self.wait_until(None)
    }

    /// Like [`wait`](Self::wait), but for at most `timeout`. After that the operation continues, and can be waited for
    /// again.
    ///
    /// # Errors
    /// If the operation fails, its result was taken before, or the timeout expires ([`Cause::TimedOut`]).
    pub fn wait_for(&mut self, timeout: Duration) -> Result<R, OperationError> {
        // A deadline that the clock cannot express is none.
        self.wait_until(Instant::now().checked_add(timeout))
    }

    /// Like [`wait_for`](Self::wait_for), but with a deadline. `None`: no limit.
    ///
    /// # Errors
    /// As those of [`wait_for`](Self::wait_for).
    #[inline(always)]
    pub fn wait_until(&mut self, deadline: Option<Instant>) -> Result<R, OperationError> {
        match &mut self.state {
            State::Ended(process, result) => Self::take(*process, result),
            State::InProgress(operation, known) => operation.wait(known, deadline),
        }
    }

    /// Returns whether the operation has ended, so that a wait returns at once. Makes progress, but does not wait.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match &self.state {
            State::Ended(..) => true,
            State::InProgress(operation, _) => operation.is_ready(),
        }
    }

    /// Returns whether the result was taken.
    #[must_use]
    pub const fn is_taken(&self) -> bool {
        match &self.state {
            State::Ended(_, result) => result.is_none(),
            State::InProgress(operation, _) => operation.is_ended(),
        }
    }

    /// Like [`wait_until`](Self::wait_until), for an operation that has ended or cannot end. Its result counts as taken
    /// afterwards, also in a forked child.
    pub(super) fn take_end(&mut self, deadline: Option<Instant>) -> Result<R, OperationError> {
        let result = self.wait_until(deadline);
        match &mut self.state {
            State::Ended(_, result) => drop(result.take()),
            State::InProgress(operation, _) => operation.give_up(),
        }
        result
    }

    /// Cancels the operation if no message was matched and no part of it was carried out. It then ends with
    /// [`ErrorCode::Canceled`](crate::ErrorCode::Canceled). Returns whether it was canceled.
    pub fn cancel(&self) -> bool {
        match &self.state {
            State::Ended(..) => false,
            State::InProgress(operation, _) => operation.cancel(),
        }
    }

    /// Returns the endpoint, unless the operation ended when it was posted.
    pub(super) const fn access(&self) -> Option<&H> {
        match &self.state {
            State::Ended(..) => None,
            State::InProgress(operation, _) => Some(&operation.access),
        }
    }

    /// Returns the ID of the slot, unless the operation ended when it was posted or its result was taken.
    #[inline]
    pub(super) const fn slot(&self) -> Option<OperationId> {
        match &self.state {
            State::InProgress(operation, _) if !operation.is_ended() => Some(operation.id()),
            State::InProgress(..) | State::Ended(..) => None,
        }
    }

    /// Returns whether the operation ended when it was posted, and its result was not taken.
    pub(super) const fn is_result_here(&self) -> bool {
        matches!(&self.state, State::Ended(_, Some(_)))
    }

    /// Removes the waker of the task that awaited the operation from the reactor.
    pub(super) fn unwatch(&mut self) {
        if let State::InProgress(operation, _) = &mut self.state {
            operation.unwatch();
        }
    }

    /// Returns the result. `end` is what was taken from the slot, if the operation has one.
    #[inline]
    pub(super) fn into_result(mut self, end: Option<End>) -> Result<R, OperationError> {
        match (&mut self.state, end) {
            (State::Ended(process, result), _) => Self::take(*process, result),
            (State::InProgress(operation, known), Some(end)) => {
                operation.mark_ended();
                outcome(end, known)
            }
            (State::InProgress(..), None) => Err(OperationError::taken()),
        }
    }

    #[inline(always)]
    fn take(process: Process, result: &mut Option<R::AtOnce>) -> Result<R, OperationError> {
        if !process.is_here() {
            return Err(OperationError::refused());
        }
        match result.take() {
            Some(result) => Ok(R::of_at_once(result)),
            None => Err(OperationError::taken()),
        }
    }
}

impl<H: EndpointHandle, R: Outcome> Future for Operation<H, R> {
    type Output = Result<R, OperationError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            State::Ended(process, result) => Poll::Ready(Self::take(*process, result)),
            State::InProgress(operation, known) => operation.poll(known, context),
        }
    }
}

#[cfg(feature = "futures")]
impl<H: EndpointHandle, R: Outcome> futures_core::FusedFuture for Operation<H, R> {
    /// Returns whether the result was taken ([`is_taken`](Operation::is_taken)). Further polls return [`Cause::Taken`].
    fn is_terminated(&self) -> bool {
        self.is_taken()
    }
}

// Nothing in it is pinned.
impl<H: EndpointHandle, R: Outcome> Unpin for Operation<H, R> {}

/// An operation that has a slot.
#[derive(Debug)]
pub(super) struct InProgress<H: EndpointHandle> {
    pub(super) access: H,
    /// The ID of the operation, in one word ([`OperationId::to_u64`]).
    id: u64,
    marks: Marks,
}

/// What a handle records about its operation, in one word.
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

    /// Counts polls from 0 again.
    const fn restart_polls(&mut self) {
        self.0 &= Self::ENDED | Self::WATCHED;
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

/// The number of polls in which a future asks the executor to poll it again before it waits for the descriptor.
const SPINS: u64 = 32;

/// The result of an operation, and its buffer.
pub(super) type End = (OperationResult, Option<Buffer>);

/// Takes the result of an operation that has succeeded, or whose message is the next in its ring.
struct TakeAtOnce<'k, R: Outcome> {
    id: OperationId,
    known: &'k mut R::Known,
    /// The place of the result. If the call returned the result, it would be moved several times.
    into: &'k mut Option<Result<R, OperationError>>,
}

impl<R: Outcome> EngineCall for TakeAtOnce<'_, R> {
    type Result = ();
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) {
        let Self { id, known, into } = self;
        engine.progress_if_due();
        let make = &mut MakeOutcome::<R>(known);
        *into = engine.core.operations.take_success(id, make);
        if into.is_none() && !engine.core.operations.has_result(id) {
            engine.poll_for_result(id, make, into);
        }
    }
}

/// Makes the result of an operation whose known part is this.
struct MakeOutcome<'k, R: Outcome>(&'k mut R::Known);

impl<R: Outcome> MakeResult for MakeOutcome<'_, R> {
    type Result = Result<R, OperationError>;

    #[inline(always)]
    fn make(&mut self, entry: &Entry, buffer: Buffer) -> Self::Result {
        match R::of(entry, buffer, self.0) {
            Some(result) => Ok(result),
            None => Err(OperationError::taken()),
        }
    }
}

/// The result of a poll for a `T`.
enum PollOutcome<T> {
    Ready(T),
    /// The task's waker has to be cloned first, while the endpoint is not borrowed.
    Clone,
    /// There is no result yet, and the task polls again.
    Spin,
    /// There is no result yet, and the task is woken when the descriptor is readable.
    Sleep,
}

impl<H: EndpointHandle> InProgress<H> {
    pub(super) fn new(access: H, id: OperationId) -> Self {
        Self { access, id: id.to_u64(), marks: Marks(0) }
    }

    /// Returns the ID of the operation.
    #[inline(always)]
    pub(super) const fn id(&self) -> OperationId {
        OperationId::from_u64(self.id)
    }

    #[inline(always)]
    fn reach(&self) -> &H::Access {
        self.access.access()
    }

    #[inline(always)]
    const fn is_ended(&self) -> bool {
        self.marks.are_set(Marks::ENDED)
    }

    /// Makes progress, then returns whether a wait would return immediately.
    fn is_ready(&self) -> bool {
        let id = self.id();
        self.is_ended()
            || !self.reach().is_here()
            || self.reach().with(|engine| {
                engine.progress();
                engine.core.operations.has_result(id)
            })
    }

    /// Cancels the operation if that is possible. Returns whether it was canceled.
    pub(super) fn cancel(&self) -> bool {
        let context = self.id;
        !self.is_ended() && self.reach().with(|engine| engine.core.cancel(context, true))
    }

    /// Waits for the end of the operation, and returns its result, of which this part is known.
    // The slow parts get the fields and not the handle, so that a handle that is not moved can stay in registers.
    #[inline(always)]
    fn wait<R: Outcome>(&mut self, known: &mut R::Known, deadline: Option<Instant>) -> Result<R, OperationError> {
        let mut taken = std::mem::take(known);
        let mut result = None;
        // Usually the operation has ended, or its message has arrived.
        if !self.is_ended() {
            self.reach().run(TakeAtOnce { id: self.id(), known: &mut taken, into: &mut result });
            if result.is_none() {
                Self::wait_longer(self.reach(), self.id(), &mut taken, deadline, &mut result);
            }
            if result.is_some() {
                self.mark_ended();
            }
        }
        *known = taken;
        result.unwrap_or_else(|| Err(self.no_result()))
    }

    /// Continues [`wait`](Self::wait) when the operation has not succeeded yet. Puts its result in `into` when it has
    /// ended.
    #[inline(never)]
    fn wait_longer<R: Outcome>(
        access: &H::Access,
        id: OperationId,
        known: &mut R::Known,
        deadline: Option<Instant>,
        into: &mut Option<Result<R, OperationError>>,
    ) {
        let failure = access.poll_until(deadline, |engine| {
            let polled = engine.poll_for_result(id, &mut MakeOutcome::<R>(known), into);
            match into {
                Some(_) => (polled, Some(None)),
                // Only a poll of everything finds that an operation has failed.
                None if polled => (polled, engine.core.operations.take_end(id).map(Some)),
                None => (polled, None),
            }
        });
        if let Some(Some(end)) = failure {
            *into = Some(outcome(end, known));
        }
    }

    /// Returns the error of a wait that has no result.
    #[cold]
    fn no_result(&self) -> OperationError {
        if self.is_ended() {
            OperationError::taken()
        } else if self.reach().is_here() {
            OperationError::new(Cause::TimedOut, None)
        } else {
            OperationError::refused()
        }
    }

    /// Records that the slot was released.
    #[inline(always)]
    pub(super) fn mark_ended(&mut self) {
        self.marks.0 |= Marks::ENDED;
        self.unwatch();
    }

    /// Counts the result as taken in a forked child, where the operation cannot end.
    fn give_up(&mut self) {
        if !self.reach().is_here() {
            self.marks.0 |= Marks::ENDED;
        }
    }

    /// Removes the task's waker from the reactor.
    #[inline(always)]
    pub(super) fn unwatch(&mut self) {
        if self.marks.are_set(Marks::WATCHED) {
            self.marks.0 &= !Marks::WATCHED;
            unwatch(self.reach(), self.id());
        }
    }

    /// Polls for the end of the operation. If it has not ended, arranges for the task to be woken.
    fn poll<R: Outcome>(&mut self, known: &mut R::Known, context: &Context<'_>) -> Poll<Result<R, OperationError>> {
        if self.is_ended() {
            return Poll::Ready(Err(OperationError::taken()));
        }
        if !self.reach().is_here() {
            return Poll::Ready(Err(OperationError::refused()));
        }
        let id = self.id();
        self.poll_for(context, |engine| engine.core.operations.take_end(id)).map(|end| {
            self.mark_ended();
            outcome(end, known)
        })
    }

    /// Polls until `take` returns a result. If there is none yet, arranges for the task to be woken. The caller has
    /// checked that this is no forked child.
    pub(super) fn poll_for<T>(
        &mut self,
        context: &Context<'_>,
        mut take: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Poll<T> {
        let spin = self.marks.count_poll() < SPINS;
        let mut fresh = None;
        let look = loop {
            match self.poll_outcome(context.waker(), &mut fresh, spin, &mut take) {
                PollOutcome::Clone => fresh = Some(context.waker().clone()),
                look => break look,
            }
        };
        deferred_actions::discard(fresh);
        match look {
            PollOutcome::Ready(result) => return Poll::Ready(result),
            PollOutcome::Sleep => {
                let (id, descriptor) =
                    self.reach().with_here(|engine| (engine.id(), std::sync::Arc::clone(engine.descriptor())));
                match reactor::wake_when_readable(id, &descriptor, self.id, context.waker()) {
                    Ok(()) => self.marks.0 |= Marks::WATCHED,
                    Err(error) => {
                        tracing::warn!(%error, "no reactor; the future polls instead");
                        context.waker().wake_by_ref();
                    }
                }
            }
            PollOutcome::Clone | PollOutcome::Spin => context.waker().wake_by_ref(),
        }
        Poll::Pending
    }

    fn poll_outcome<T>(
        &self,
        waker: &Waker,
        fresh: &mut Option<Waker>,
        spin: bool,
        take: &mut impl FnMut(&mut Engine) -> Option<T>,
    ) -> PollOutcome<T> {
        let id = self.id();
        // The caller has checked that this is no forked child.
        self.reach().with_here(|engine| {
            engine.progress();
            if let Some(result) = take(engine) {
                return PollOutcome::Ready(result);
            }
            if !engine.core.operations.set_waker(id, waker, fresh) {
                return PollOutcome::Clone;
            }
            if spin {
                return PollOutcome::Spin;
            }
            let calm = engine.watch();
            match take(engine) {
                Some(result) => PollOutcome::Ready(result),
                None if calm => PollOutcome::Sleep,
                None => PollOutcome::Spin,
            }
        })
    }

    /// Ends a wait by polls: the next one counts its polls from 0 again. Removes the task's waker from the reactor.
    #[inline]
    pub(super) fn end_polls(&mut self) {
        self.marks.restart_polls();
        self.unwatch();
    }
}

/// Returns the result of an operation that has ended, of which this part is known.
fn outcome<R: Outcome>((result, buffer): End, known: &mut R::Known) -> Result<R, OperationError> {
    match result {
        Ok(entry) => MakeOutcome(known).make(&entry, buffer.unwrap_or_default()),
        Err(error) => Err(OperationError::new(error, buffer)),
    }
}

/// Removes the waker of the task that awaited the operation from the reactor.
#[cold]
#[inline(never)]
fn unwatch(access: &impl EngineAccess, id: OperationId) {
    let endpoint = access.with(|engine| engine.id());
    reactor::unwatch(endpoint, id.to_u64());
}

/// Ends the use of a handle before its operation has ended.
#[cold]
#[inline(never)]
fn leave(access: &impl EngineAccess, id: OperationId, is_watched: bool) {
    if !access.is_here() {
        return;
    }
    if is_watched {
        unwatch(access, id);
    }
    access.with(|engine| {
        if engine.core.operations.park(id) {
            engine.core.cancel(id.to_u64(), true);
        }
    });
}

impl<H: EndpointHandle> Drop for InProgress<H> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.is_ended() {
            leave(self.reach(), self.id(), self.marks.are_set(Marks::WATCHED));
        }
    }
}
