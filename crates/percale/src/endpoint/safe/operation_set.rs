//! A bounded set of operations in flight, whose results are taken in the order in which the operations end.
//!
//! The set has a slot among the operations of its endpoint, as a multi-receive has. The engine adds the number of a
//! member to a list in that slot when it stores the result of the member, so that a wait looks only at the first number
//! of the list (`operations` describes the list). The handles and the keys of the members are in a table here, at these
//! numbers.
//!
//! Invariants:
//! 1. The table contains at most `capacity` members. It and the list are allocated when the set is created, so pushing
//!    an operation and taking a result allocate nothing.
//! 2. A member is in the table until its result is returned. It is never in two sets, because the set owns its handle.
//! 3. Every member is returned by `next` sometime, so a loop until `None` ends: a member of a closed endpoint that may
//!    never end, or of an endpoint that belongs to the parent of this forked child, is returned with an error.
//! 4. Keys are values of the application. They are never dropped while the endpoint is borrowed.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::operation::{End, InProgress, Operation};
use super::outcome::Outcome;
use super::wait::{EndedOperation, TimedOut};
use super::{Cause, OperationError};
use crate::endpoint::Endpoint;
use crate::endpoint::engine::Engine;
use crate::endpoint::operations::OperationId;
use crate::endpoint::ownership::reach::{EngineAccess as _, EngineCall};
use crate::endpoint::ownership::{EndpointHandle, Ownership};
use crate::endpoint::work::PostError;
use crate::table::{Id, Table};

/// A bounded set of operations in flight. Its results are taken in the order in which the operations end.
///
/// [`Endpoint::operation_set`] creates it, for a fixed number of operations with results of one type.
/// [`push`](Self::push) adds a started operation with a key, and [`next`](Self::next) waits for any of the operations
/// and returns the key and the result. The end of an operation takes the same time regardless of the number of members,
/// and nothing is allocated after the set was created. This is the way to keep many operations in flight, as with a
/// work queue of a given depth.
///
/// A set can be waited for ([`next`](Self::next), [`next_for`](Self::next_for), [`next_until`](Self::next_until)),
/// polled ([`try_next`](Self::try_next)) or awaited on any runtime ([`next_ended`](Self::next_ended),
/// [`poll_next`](Self::poll_next)). A wait makes progress on the endpoint.
///
/// Dropping the set drops all operations in it: each is canceled if that is possible
/// ([`Operation`](Operation#impl-Drop)). A set of a [`SharedEndpoint`](crate::SharedEndpoint) borrows nothing.
///
/// # Example
/// Reads a region in blocks, with 64 reads in flight:
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = percale::Info::discover()?.best()?.open()?;
/// # let vector = domain.address_vector().build()?;
/// # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
/// # let peer = vector.insert("127.0.0.1:7471")?;
/// # let remote = domain.register(vec![0; 1 << 20], percale::Access::REMOTE_READ)?.remote();
/// const BLOCK: u64 = 4096;
/// let mut buffers: Vec<percale::Buffer> = (0..64).map(|_| vec![0; BLOCK as usize].into()).collect();
/// let mut reads = endpoint.operation_set(64);
/// let mut offsets = (0..1 << 20).step_by(BLOCK as usize);
/// loop {
///     while let Some(buffer) = buffers.pop() {
///         let Some(offset) = offsets.next() else { break };
///         let read = endpoint.read(peer, remote.slice(offset..offset + BLOCK)?, buffer).start()?;
///         reads.push(read, offset).map_err(|refused| refused.cause)?;
///     }
///     let Some((offset, block)) = reads.next() else { break }; // All blocks were read.
///     let block = block?;
///     println!("{} bytes at {offset}", block.len());
///     buffers.push(block);
/// }
/// # Ok(()) }
/// ```
pub struct OperationSet<H: EndpointHandle, R: Outcome, K = ()> {
    members: Table<Member<H, R, K>>,
    capacity: usize,
    /// The slot of the set, and the state of its polls. It never ends before the set is dropped.
    slot: InProgress<H>,
}

crate::short_debug!(
    for [H: EndpointHandle, R: Outcome, K] OperationSet<H, R, K>, "OperationSet",
    len: |this| this.len(), capacity: |this| this.capacity
);

/// An operation of a set.
struct Member<H: EndpointHandle, R: Outcome, K> {
    operation: Operation<H, R>,
    key: K,
}

/// An operation that a set refused ([`OperationSet::push`]). Its [`cause`](Self::cause) is an error that borrows
/// nothing.
#[derive(thiserror::Error)]
#[error("{cause}")]
#[non_exhaustive]
pub struct PushError<H: EndpointHandle, R: Outcome, K> {
    /// The operation, which continues.
    pub operation: Operation<H, R>,
    /// The key that was passed with the operation.
    pub key: K,
    /// The reason.
    pub cause: PushCause,
}

crate::short_debug!(
    for [H: EndpointHandle, R: Outcome, K] PushError<H, R, K>, "PushError", cause: |this| this.cause.to_string()
);

impl<H: EndpointHandle, R: Outcome, K> PushError<H, R, K> {
    /// Returns whether the same call may succeed later although neither it nor the program is changed
    /// ([`PushCause::is_retriable`]).
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        self.cause.is_retriable()
    }

    /// Returns the libfabric code of the [`cause`](Self::cause) (positive).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        self.cause.errno()
    }
}

/// The reason of a [`PushError`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushCause {
    /// The set has as many members as it has room for.
    #[error("the operation set is full ({0} operations); take a result with next before the next push")]
    Full(usize),
    /// The operation belongs to another endpoint than the set.
    #[error("the operation belongs to another endpoint than the operation set; use one set for each endpoint")]
    OtherEndpoint,
}

impl PushCause {
    /// Returns whether the same call may succeed later although neither it nor the program is changed, which is the
    /// case for [`Full`](Self::Full), after a result was taken.
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::Full(_))
    }

    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Full(_) => libc::EAGAIN,
            Self::OtherEndpoint => libc::EINVAL,
        }
    }
}

impl<A: Ownership> Endpoint<A> {
    /// Creates a set for at most `capacity` operations of this endpoint with results of one type. `K` is the type of
    /// the keys that identify the operations in the set.
    ///
    /// # Panics
    /// If the memory for the set cannot be allocated, which is about 200 bytes for each operation.
    pub fn operation_set<R: Outcome, K>(&self, capacity: usize) -> OperationSet<A::Handle<'_>, R, K> {
        let (members, ended) = (Table::with_capacity(capacity), VecDeque::with_capacity(capacity));
        let id = self.access.with(|engine| Some(engine.core.operations.start_set(ended)));
        // In a forked child there is no such slot, and none of the set's calls looks for it.
        let id = id.unwrap_or_else(|| OperationId::from_u64(0));
        OperationSet { members, capacity, slot: InProgress::new(self.access.handle(), id) }
    }
}

/// The number of a member that has ended, and what its slot contained. `None` if it had no slot.
type EndedMember = (u64, Option<End>);

/// Takes the first member that has ended out of the list of its set, and its result out of its slot.
#[inline]
fn take<H: EndpointHandle, R: Outcome, K>(
    engine: &mut Engine,
    set: OperationId,
    members: &Table<Member<H, R, K>>,
) -> Option<EndedMember> {
    loop {
        let number = engine.core.operations.take_ended_member(set)?;
        // The list may have the number of a member that was given up (`abandon`).
        let Some(member) = members.get(Id::from_u64(number)) else { continue };
        let end = member.operation.slot().and_then(|id| engine.core.operations.take_end(id));
        return Some((number, end));
    }
}

/// Takes a member that has ended, or whose message is the next in its ring.
struct TakeAtOnce<'s, H: EndpointHandle, R: Outcome, K> {
    set: OperationId,
    members: &'s Table<Member<H, R, K>>,
}

impl<H: EndpointHandle, R: Outcome, K> EngineCall for TakeAtOnce<'_, H, R, K> {
    type Result = Option<EndedMember>;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline]
    fn call(self, engine: &mut Engine) -> Option<EndedMember> {
        if engine.core.operations.has_ended_member(self.set) {
            engine.progress_beside_result();
        } else {
            engine.progress_if_due();
            if !engine.core.operations.has_ended_member(self.set) {
                engine.poll_for_wait();
            }
        }
        take(engine, self.set, self.members)
    }
}

impl<H: EndpointHandle, R: Outcome, K> OperationSet<H, R, K> {
    /// Returns the number of operations in the set: those in flight, and those whose results were not taken yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns the maximum number of operations in the set.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns whether there is no operation in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns whether [`push`](Self::push) refuses a further operation.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Adds a started operation. Its result is returned together with `key`. The key does not have to be unique.
    ///
    /// If the operation has ended already, its result is the last of those that are ready.
    ///
    /// # Errors
    /// If the set is full, or the operation is in progress at another endpoint. The error returns the operation and the
    /// key, and the operation continues. An operation that ended when it was posted belongs to no endpoint any more,
    /// so every set takes it.
    #[inline]
    pub fn push(&mut self, mut operation: Operation<H, R>, key: K) -> Result<(), PushError<H, R, K>> {
        if self.is_full() {
            return Err(PushError { operation, key, cause: PushCause::Full(self.capacity) });
        }
        if operation.access().is_some_and(|access| !access.is_same(&self.slot.access)) {
            return Err(PushError { operation, key, cause: PushCause::OtherEndpoint });
        }
        // From now on the set's task is woken, and not a task that awaited the operation.
        operation.unwatch();
        let slot = operation.slot();
        let (set, number) = (self.slot.id(), self.members.insert(Member { operation, key }).to_u64());
        self.slot.access.access().with(|engine| engine.core.operations.add_to_set(set, number, slot));
        Ok(())
    }

    /// Waits until any of the operations has ended, and returns its key and its result. The results come in the order
    /// in which the operations ended. Returns `None` if the set is empty.
    ///
    /// The wait spins briefly, then yields, then sleeps. If the endpoint is closed by another handle, the results of
    /// all operations are returned as usual; an operation whose buffer a peer is still using then ends with
    /// [`PostError::Closed`], and its buffer is freed when the peer no longer uses it.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "it blocks, and operations can be added between two calls")]
    pub fn next(&mut self) -> Option<EndedOperation<K, R>> {
        // Without a deadline the wait does not time out.
        self.next_until(None).ok().flatten()
    }

    /// Like [`next`](Self::next), but waits for at most `timeout`.
    ///
    /// # Errors
    /// If the timeout expires. All operations are still in the set.
    pub fn next_for(&mut self, timeout: Duration) -> Result<Option<EndedOperation<K, R>>, TimedOut> {
        // A deadline that the clock cannot express is none.
        self.next_until(Instant::now().checked_add(timeout))
    }

    /// Like [`next_for`](Self::next_for), but with a deadline. `None`: no limit.
    ///
    /// # Errors
    /// As those of [`next_for`](Self::next_for).
    #[inline]
    pub fn next_until(&mut self, deadline: Option<Instant>) -> Result<Option<EndedOperation<K, R>>, TimedOut> {
        let at_once = TakeAtOnce { set: self.slot.id(), members: &self.members };
        // Usually an operation has ended, or its message has arrived.
        match self.slot.access.access().run(at_once) {
            Some(ended) => Ok(self.finish(ended)),
            None => self.wait_longer(deadline),
        }
    }

    /// Continues [`next_until`](Self::next_until) when no operation has ended yet.
    #[inline(never)]
    fn wait_longer(&mut self, deadline: Option<Instant>) -> Result<Option<EndedOperation<K, R>>, TimedOut> {
        if self.is_empty() {
            return Ok(None);
        }
        let access = self.slot.access.access();
        if !access.is_here() {
            return Ok(self.abandon(PostError::Forked));
        }
        let (set, members) = (self.slot.id(), &self.members);
        let ended = access.wait_until(deadline, |engine| take(engine, set, members));
        // Another thread may have closed the endpoint after the last look, which ended members.
        let (ended, closed) = match ended {
            Some(ended) => (Some(ended), false),
            None => access.with_here(|engine| (take(engine, set, members), engine.is_closed())),
        };
        match ended {
            Some(ended) => Ok(self.finish(ended)),
            None if closed => Ok(self.abandon(PostError::Closed)),
            None => Err(TimedOut),
        }
    }

    /// Makes progress, then returns the key and the result of the operation that has ended first. Returns `None` if
    /// none has ended. Does not wait.
    pub fn try_next(&mut self) -> Option<EndedOperation<K, R>> {
        if self.is_empty() {
            return None;
        }
        let access = self.slot.access.access();
        if !access.is_here() {
            return self.abandon(PostError::Forked);
        }
        let (set, members) = (self.slot.id(), &self.members);
        let ended = access.with(|engine| {
            engine.progress();
            take(engine, set, members)
        })?;
        self.finish(ended)
    }

    /// Polls for [`next`](Self::next). If no operation has ended, arranges for the task to be woken. The task's waker
    /// is kept until a result was returned or the set is dropped.
    ///
    /// A task that found nothing is woken again immediately a few times before it waits for the endpoint's descriptor.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<EndedOperation<K, R>>> {
        if self.is_empty() {
            return Poll::Ready(None);
        }
        if !self.slot.access.access().is_here() {
            return Poll::Ready(self.abandon(PostError::Forked));
        }
        let (set, members) = (self.slot.id(), &self.members);
        self.slot.poll_for(context, |engine| take(engine, set, members)).map(|ended| self.finish(ended))
    }

    /// Returns a future of [`next`](Self::next), for any runtime. Dropping the future loses no result.
    pub const fn next_ended(&mut self) -> NextEnded<'_, H, R, K> {
        NextEnded { set: self, is_waiting: false }
    }

    /// Cancels all operations that can be canceled ([`Operation::cancel`]). Returns their number. Each stays in the set
    /// until its result was taken, which is [`ErrorCode::Canceled`](crate::ErrorCode::Canceled) for those that were
    /// canceled.
    pub fn cancel_all(&self) -> usize {
        self.members.iter().filter(|(_, member)| member.operation.cancel()).count()
    }

    /// Removes a member that has ended, and returns its key and its result.
    #[inline]
    fn finish(&mut self, (number, end): EndedMember) -> Option<EndedOperation<K, R>> {
        self.slot.end_polls();
        let Member { operation, key } = self.members.remove(Id::from_u64(number))?;
        Some((key, operation.into_result(end)))
    }

    /// Removes any member, which does not have to end, and returns its key and this error.
    #[cold]
    fn abandon(&mut self, cause: PostError) -> Option<EndedOperation<K, R>> {
        let (number, _) = self.members.iter().next()?;
        let Member { operation, key } = self.members.remove(number)?;
        drop(operation);
        Some((key, Err(OperationError::new(Cause::Post(cause), None))))
    }

    /// Forgets the task that polled.
    fn forget_task(&mut self) {
        if self.slot.access.access().is_here() {
            self.slot.end_polls();
            let set = self.slot.id();
            self.slot.access.access().with(|engine| engine.core.operations.clear_waker(set));
        }
    }
}

/// The future of [`OperationSet::next_ended`].
#[must_use = "futures do nothing unless polled"]
pub struct NextEnded<'s, H: EndpointHandle, R: Outcome, K> {
    set: &'s mut OperationSet<H, R, K>,
    /// Whether the last poll found no result.
    is_waiting: bool,
}

crate::short_debug!(for [H: EndpointHandle, R: Outcome, K] NextEnded<'_, H, R, K>, "NextEnded", len: |this| this.set.len());

impl<H: EndpointHandle, R: Outcome, K> Future for NextEnded<'_, H, R, K> {
    type Output = Option<EndedOperation<K, R>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let poll = self.set.poll_next(context);
        self.is_waiting = poll.is_pending();
        poll
    }
}

impl<H: EndpointHandle, R: Outcome, K> Drop for NextEnded<'_, H, R, K> {
    fn drop(&mut self) {
        if self.is_waiting {
            self.set.forget_task();
        }
    }
}
