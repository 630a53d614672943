//! Safe operations under way: their buffers, their results, and the tasks that wait for them.
//!
//! A slot exists from posting until the result is taken. If the handle is dropped first, the slot is *parked*: it keeps
//! the buffer until the operation has completed, because the peer may be using the buffer until then.
//!
//! 1. The ID of a slot is the context of its operation in the engine, and the handle holds it. It includes a
//!    generation, so a late completion, a second completion, or a handle that was used up never refers to the operation
//!    that uses the slot now.
//! 2. Code of the application (its wakers and their destructors) never runs here, because the engine is borrowed.
//!    Wakers that have to be called or dropped are put in [`DeferredActions`], which the caller runs when the engine is
//!    free.
//! 3. A set of operations has a slot too. The slot of a pending member names the set, in place of the result that is
//!    still to come. When the result is stored, the member's number is added to the list of the set, which has room for
//!    the numbers of all members. So the end of a member takes constant time and allocates nothing.
//! 4. The number of a member is in the list of its set if and only if the operation has ended and its set has not taken
//!    the result. A parked slot belongs to no set.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::task::Waker;

use super::shared_receive::ReceiveReport;
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry, OperationResult};
use crate::deferred_actions::DeferredActions;
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::table::{Id, Recycler};

/// One operation. While the slot is free, its fields have their default values.
#[derive(Debug, Default)]
pub(crate) struct OperationSlot {
    state: State,
    buffer: Option<Buffer>,
    waker: Option<Waker>,
    /// Whether the handle was dropped.
    parked: bool,
}

#[derive(Debug, Default)]
enum State {
    /// The operation has one result, and has not ended.
    #[default]
    Pending,
    /// Like `Pending`, for a member of a set.
    Member(Membership),
    /// The operation has ended, and its handle has not taken the result yet.
    Ended(OperationResult),
    /// A set of operations, with the numbers of the members that have ended, oldest first.
    Set(VecDeque<u64>),
    /// A multi-receive, which has several results.
    Many(Box<Many>),
    /// A shared receive, whose result another handle waits for.
    ReceiveReport(ReceiveReport),
}

/// The set of an operation, and its number in that set.
#[derive(Clone, Copy, Debug)]
struct Membership {
    set: OperationId,
    number: u64,
}

/// The results of a multi-receive.
#[derive(Debug, Default)]
struct Many {
    /// The results that were not taken yet, oldest first.
    results: VecDeque<OperationResult>,
    /// Whether no further results follow: one has reported that the buffer is released.
    done: bool,
}

impl State {
    /// Returns whether no further results follow.
    const fn is_done(&self) -> bool {
        match self {
            Self::Ended(_) | Self::Set(_) => true,
            Self::Many(many) => many.done,
            Self::Pending | Self::Member(_) | Self::ReceiveReport(_) => false,
        }
    }
}

/// Makes the result that a handle returns for an operation that has succeeded. This is a trait instead of a closure,
/// because a closure with several callers is not inlined.
pub(crate) trait MakeResult {
    /// What the handle returns.
    type Result;

    /// Makes the result. Called at most once.
    fn make(&mut self, entry: &Entry, buffer: Buffer) -> Self::Result;
}

/// The ID of an operation.
pub(crate) type OperationId = Id<OperationSlot>;

/// All safe operations of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    slots: Recycler<OperationSlot>,
    /// Work to be done once the endpoint is no longer borrowed.
    deferred_actions: DeferredActions,
    /// The number of results so far. Sleeping threads of a shared endpoint compare it.
    finished: u64,
}

impl Operations {
    /// Creates a slot for an operation that owns `buffer`.
    #[inline(always)]
    pub(crate) fn start(&mut self, buffer: Buffer) -> OperationId {
        // Without a destructor it stays in registers.
        let buffer = ManuallyDrop::new(buffer);
        let (id, slot) = self.slots.reuse();
        // Nothing needs to be dropped: the slot has no buffer.
        std::mem::forget(slot.buffer.replace(ManuallyDrop::into_inner(buffer)));
        id
    }

    /// Creates a slot for a shared receive that owns `buffer`. Its completion is reported to the handle that waits for
    /// it.
    pub(crate) fn start_shared_receive(&mut self, buffer: Buffer, receive_report: ReceiveReport) -> OperationId {
        let (id, slot) = self.slots.reuse();
        *slot = OperationSlot {
            state: State::ReceiveReport(receive_report),
            buffer: Some(buffer),
            ..OperationSlot::default()
        };
        id
    }

    /// Sets the buffer of an operation that was started without one.
    pub(crate) fn give(&mut self, id: OperationId, buffer: Buffer) {
        if let Some(slot) = self.slots.get_mut(id) {
            slot.buffer = Some(buffer);
        }
    }

    /// Marks an operation as having many results, until one reports that the buffer is released.
    pub(crate) fn many(&mut self, id: OperationId) {
        if let Some(slot) = self.slots.get_mut(id) {
            slot.state = State::Many(Box::default());
        }
    }

    /// Creates a slot for a set of operations. `ended` is empty, and has room for the numbers of all members.
    pub(crate) fn start_set(&mut self, ended: VecDeque<u64>) -> OperationId {
        let (id, slot) = self.slots.reuse();
        *slot = OperationSlot { state: State::Set(ended), ..OperationSlot::default() };
        id
    }

    /// Makes an operation a member of a set. The operation has ended if it has no slot.
    #[inline]
    pub(crate) fn add_to_set(&mut self, set: OperationId, number: u64, operation: Option<OperationId>) {
        if let Some(slot) = operation.and_then(|id| self.slots.get_mut(id)) {
            // The set's task is woken from now on.
            if slot.waker.is_some() {
                self.deferred_actions.discard(slot.waker.take());
            }
            if matches!(slot.state, State::Pending) {
                slot.state = State::Member(Membership { set, number });
                return;
            }
        }
        self.member_ended(Membership { set, number });
    }

    /// Adds a member to the list of the members of its set that have ended.
    #[inline]
    fn member_ended(&mut self, Membership { set, number }: Membership) {
        if let Some(OperationSlot { state: State::Set(ended), waker, .. }) = self.slots.get_mut(set) {
            ended.push_back(number);
            if waker.is_some() {
                self.deferred_actions.wake(waker.take());
            }
        }
    }

    /// Takes the number of the member that has ended first from the list of its set.
    #[inline]
    pub(crate) fn take_ended_member(&mut self, set: OperationId) -> Option<u64> {
        let OperationSlot { state: State::Set(ended), waker, .. } = self.slots.get_mut(set)? else { return None };
        let number = ended.pop_front()?;
        if waker.is_some() {
            self.deferred_actions.discard(waker.take());
        }
        Some(number)
    }

    /// Returns whether a member of a set has ended and its result was not taken.
    #[inline]
    pub(crate) fn has_ended_member(&self, set: OperationId) -> bool {
        matches!(self.slots.get(set), Some(OperationSlot { state: State::Set(ended), .. }) if !ended.is_empty())
    }

    /// Removes the waker of the task that waits for a result.
    pub(crate) fn clear_waker(&mut self, id: OperationId) {
        if let Some(slot) = self.slots.get_mut(id) {
            self.deferred_actions.discard(slot.waker.take());
        }
    }

    /// Takes everything out of a slot, and makes it free.
    fn remove(&mut self, id: OperationId) -> Option<OperationSlot> {
        let slot = std::mem::take(self.slots.get_mut(id)?);
        self.slots.retire(id);
        Some(slot)
    }

    /// Removes the slot of an operation after all its results were taken, or after it could not be posted, and returns
    /// its buffer.
    pub(crate) fn release(&mut self, id: OperationId) -> Option<Buffer> {
        let slot = self.remove(id)?;
        self.deferred_actions.discard(slot.waker);
        slot.buffer
    }

    /// Removes the slot of an operation that has no handle any more, and drops the buffer.
    fn release_parked(&mut self, id: OperationId) {
        if let Some(buffer) = self.release(id) {
            buffer.drop_under_lock();
        }
    }

    /// Adds a success to the operation with this context. An operation that has ended takes no more results.
    #[inline(always)]
    pub(crate) fn succeed(&mut self, entry: Entry) {
        self.finished += 1;
        match self.slots.get_mut(Id::from_u64(entry.context)) {
            Some(OperationSlot { state: state @ State::Pending, waker: None, parked: false, .. }) => {
                // Nothing needs to be dropped.
                std::mem::forget(std::mem::replace(state, State::Ended(Ok(entry))));
            }
            Some(_) => self.add_result(entry.context, entry.flags, Ok(entry)),
            None => {}
        }
    }

    /// Adds a failure to the operation with this context. An operation that has ended takes no more results.
    #[cold]
    pub(crate) fn fail(&mut self, error: ErrorEntry) {
        self.finished += 1;
        self.add_result(error.entry.context, error.entry.flags, Err(Box::new(error)));
    }

    /// Adds a result in all other cases.
    #[inline(never)]
    fn add_result(&mut self, context: u64, flags: CompletionFlags, result: OperationResult) {
        let id = Id::from_u64(context);
        let Some(slot) = self.slots.get_mut(id) else { return };
        match &mut slot.state {
            State::ReceiveReport(_) => {
                let Some(OperationSlot { state: State::ReceiveReport(receive_report), buffer, waker, .. }) =
                    self.remove(id)
                else {
                    return;
                };
                self.deferred_actions.discard(waker);
                self.deferred_actions.wake(receive_report.complete(result, buffer));
                return;
            }
            State::Many(many) => {
                many.done |= flags.contains(CompletionFlags::MULTI_RECEIVE);
                if !slot.parked {
                    many.results.push_back(result);
                }
            }
            State::Pending => slot.state = State::Ended(result),
            State::Member(membership) => {
                let membership = *membership;
                slot.state = State::Ended(result);
                return self.member_ended(membership);
            }
            State::Ended(_) | State::Set(_) => return,
        }
        if !slot.parked {
            self.deferred_actions.wake(slot.waker.take());
        } else if slot.state.is_done() {
            self.release_parked(id);
        }
    }

    /// Called when the endpoint is closed and has ended all operations in its tables. Ends the remaining operations,
    /// for example an operation that can no longer begin because the last handle of its counter is being dropped.
    #[cold]
    pub(crate) fn end_all(&mut self, why: &str) {
        let left = self.slots.iter().filter(|(_, slot)| !slot.state.is_done()).map(|(id, slot)| {
            let many = matches!(slot.state, State::Many(_));
            (id, if many { CompletionFlags::MULTI_RECEIVE } else { CompletionFlags::empty() })
        });
        for (id, flags) in left.collect::<Vec<_>>() {
            let entry = Entry { context: id.to_u64(), flags, ..Entry::default() };
            self.fail(ErrorEntry::new(entry, ErrorCode::Canceled).with_text(why.to_owned()));
        }
    }

    /// Takes the result of an operation that has ended, and its buffer, and releases its slot. Multi-receives use
    /// [`take_result`](Self::take_result).
    #[inline]
    pub(crate) fn take_end(&mut self, id: OperationId) -> Option<(OperationResult, Option<Buffer>)> {
        match self.slots.get(id)?.state {
            State::Ended(_) => {}
            _ => return None,
        }
        match self.remove(id)? {
            OperationSlot { state: State::Ended(result), buffer, waker, .. } => {
                if waker.is_some() {
                    self.deferred_actions.discard(waker);
                }
                Some((result, buffer))
            }
            _ => None, // It was checked above.
        }
    }

    /// Takes the result of an operation that has succeeded and has its buffer, and releases its slot.
    #[inline(always)]
    pub(crate) fn take_success<M: MakeResult>(&mut self, id: OperationId, make: &mut M) -> Option<M::Result> {
        let mut slot = self.slots.occupied(id)?;
        let OperationSlot { state, waker: None, buffer, .. } = slot.value() else { return None };
        let State::Ended(Ok(entry)) = state else { return None };
        let result = make.make(entry, buffer.take()?);
        // A success needs no destructor.
        std::mem::forget(std::mem::replace(state, State::Pending));
        slot.retire();
        Some(result)
    }

    /// Takes the buffer of an operation that succeeds now, and releases its slot. Returns `None`, and does nothing, for
    /// an operation whose success has to be reported.
    #[inline(always)]
    pub(crate) fn succeed_at_once(&mut self, id: OperationId) -> Option<Buffer> {
        let mut slot = self.slots.occupied(id)?;
        let OperationSlot { state: State::Pending, waker: None, parked: false, buffer } = slot.value() else {
            return None;
        };
        let buffer = buffer.take()?;
        self.finished += 1;
        slot.retire();
        Some(buffer)
    }

    /// Takes the next result of a multi-receive, if there is one.
    pub(crate) fn take_result(&mut self, id: OperationId) -> Option<OperationResult> {
        match &mut self.slots.get_mut(id)?.state {
            State::Many(many) => many.results.pop_front(),
            State::Pending | State::Member(_) | State::Ended(_) | State::Set(_) | State::ReceiveReport(_) => None,
        }
    }

    #[inline]
    pub(crate) fn has_result(&self, id: OperationId) -> bool {
        self.slots.get(id).is_some_and(|slot| match &slot.state {
            State::Ended(_) => true,
            State::Many(many) => !many.results.is_empty(),
            State::Pending | State::Member(_) | State::Set(_) | State::ReceiveReport(_) => false,
        })
    }

    /// Returns whether a multi-receive has ended and all its results were taken.
    pub(crate) fn is_done(&self, id: OperationId) -> bool {
        self.slots.get(id).is_none_or(|slot| slot.state.is_done() && !self.has_result(id))
    }

    /// Registers the waker of the task that waits for a result. `fresh` is a clone of `waker`, which the caller makes
    /// while the endpoint is not borrowed; if a clone is needed and there is none, nothing is registered and this
    /// returns false.
    pub(crate) fn set_waker(&mut self, id: OperationId, waker: &Waker, fresh: &mut Option<Waker>) -> bool {
        let Some(slot) = self.slots.get_mut(id) else { return true };
        if slot.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return true;
        }
        let Some(fresh) = fresh.take() else { return false };
        self.deferred_actions.discard(slot.waker.replace(fresh));
        true
    }

    /// Records that the handle was dropped, and keeps the buffer until the operation has completed. Returns whether the
    /// operation has yet to complete.
    pub(crate) fn park(&mut self, id: OperationId) -> bool {
        let Some(slot) = self.slots.get_mut(id) else { return false };
        slot.parked = true;
        if matches!(slot.state, State::Member(_)) {
            slot.state = State::Pending;
        }
        self.deferred_actions.discard(slot.waker.take());
        if slot.state.is_done() {
            self.release_parked(id);
            return false;
        }
        true
    }

    /// Takes the buffer of an operation that is about to fail. A peer may still be writing to it.
    pub(crate) fn take_buffer(&mut self, id: OperationId) -> Option<Buffer> {
        self.slots.get_mut(id)?.buffer.take()
    }

    /// Returns the buffer of an operation, for reading what a multi-receive has received so far.
    pub(crate) fn buffer(&self, id: OperationId) -> Option<&Buffer> {
        self.slots.get(id)?.buffer.as_ref()
    }

    /// Returns whether there are tasks to wake, or wakers to drop.
    #[inline]
    pub(crate) fn has_deferred_actions(&self) -> bool {
        !self.deferred_actions.is_empty()
    }

    /// Makes the caller yield its processor to other threads when it has left the engine.
    #[cold]
    pub(crate) fn offer_processor(&mut self) {
        self.deferred_actions.offer();
    }

    /// Adds a deferred action if log events were recorded. This is for the slow parts of calls that do not check for
    /// events themselves (`Call::LOOKS_FOR_EVENTS`).
    #[inline]
    pub(crate) fn note_events(&mut self) {
        if crate::later::any() {
            self.deferred_actions.log();
        }
    }

    /// Adds deferred actions to be run when the endpoint is no longer borrowed.
    pub(crate) fn add_deferred_actions(&mut self, deferred_actions: DeferredActions) {
        self.deferred_actions.append(deferred_actions);
    }

    /// Takes the work to be done once the endpoint is no longer borrowed.
    pub(crate) fn take_deferred_actions(&mut self) -> DeferredActions {
        std::mem::take(&mut self.deferred_actions)
    }

    /// Returns the number of slots in use.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn in_use(&self) -> usize {
        self.slots.iter().count()
    }

    /// Returns the number of results so far.
    pub(crate) fn finished(&self) -> u64 {
        self.finished
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    fn entry(id: OperationId) -> Entry {
        Entry { context: id.to_u64(), ..Entry::default() }
    }

    fn buffer(len: usize) -> Buffer {
        Buffer::from(vec![0; len])
    }

    #[test]
    fn stale_id_does_not_affect_the_reused_slot() {
        let mut operations = Operations::default();
        let old = operations.start(buffer(1));
        operations.succeed(entry(old));
        assert_eq!(operations.take_end(old).and_then(|(_, buffer)| buffer).unwrap().len(), 1);
        let new = operations.start(buffer(2));
        assert_eq!(new.to_u64() as u32, old.to_u64() as u32, "the slot is used again");
        // A second completion and calls with the old ID have no effect.
        operations.fail(ErrorEntry::new(entry(old), ErrorCode::Canceled));
        operations.succeed(entry(old));
        assert!(!operations.has_result(new) && !operations.is_done(new));
        assert!(operations.take_buffer(old).is_none());
        assert!(operations.buffer(new).is_some() && operations.buffer(old).is_none());
        assert!(operations.is_done(old) && !operations.has_result(old) && operations.take_end(old).is_none());
        assert!(operations.release(old).is_none() && !operations.park(old));
        assert!(operations.set_waker(old, Waker::noop(), &mut None), "there is nothing to wait for");
        operations.succeed(entry(new));
        assert_eq!(operations.take_end(new).and_then(|(_, buffer)| buffer).unwrap().len(), 2);
    }

    #[test]
    fn member_and_set_states_make_no_slot_larger() {
        assert_eq!(std::mem::size_of::<State>(), std::mem::size_of::<OperationResult>());
    }

    /// Counts how often it was dropped.
    struct Counts(Arc<AtomicU32>);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn wakers_are_dropped_only_in_deferred_calls() {
        let dropped = Arc::<AtomicU32>::default();
        let waker = || Waker::from(Arc::new(Counts(Arc::clone(&dropped))));
        let mut operations = Operations::default();
        let mut leaves = |leave: &dyn Fn(&mut Operations, OperationId)| {
            let id = operations.start(buffer(1));
            let waker = waker();
            assert!(!operations.set_waker(id, &waker, &mut None), "a clone is needed");
            assert!(operations.set_waker(id, &waker, &mut Some(waker.clone())));
            assert!(operations.set_waker(id, &waker, &mut None), "the waker is registered already");
            drop(waker);
            let before = dropped.load(Ordering::SeqCst);
            leave(&mut operations, id);
            assert_eq!(dropped.load(Ordering::SeqCst), before, "dropped while the endpoint is borrowed");
            assert!(operations.has_deferred_actions());
            operations.take_deferred_actions().run();
            assert_eq!(dropped.load(Ordering::SeqCst), before + 1);
        };
        leaves(&|operations, id| drop(operations.release(id)));
        leaves(&|operations, id| assert!(operations.park(id)));
        leaves(&|operations, id| assert!(operations.set_waker(id, Waker::noop(), &mut Some(Waker::noop().clone()))));
        leaves(&|operations, id| operations.succeed(entry(id)));
    }

    /// Counts how often it woke a task.
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn end_of_a_member_wakes_the_task_of_its_set() {
        let mut operations = Operations::default();
        let set = operations.start_set(VecDeque::with_capacity(4));
        let members = [1, 2, 3].map(|len| operations.start(buffer(len)));
        for (number, member) in (0..).zip(members) {
            operations.add_to_set(set, number, Some(member));
        }
        let wakes = Arc::new(Wakes(AtomicU32::new(0)));
        let waker = Waker::from(Arc::clone(&wakes));
        let wakes_after = |operations: &mut Operations, end: &dyn Fn(&mut Operations)| {
            end(operations);
            operations.take_deferred_actions().run();
            wakes.0.load(Ordering::SeqCst)
        };
        let waits = |operations: &mut Operations| {
            assert!(operations.set_waker(set, &waker, &mut Some(waker.clone())));
        };
        waits(&mut operations);
        assert_eq!(wakes_after(&mut operations, &|operations| operations.succeed(entry(members[1]))), 1);
        let canceled = ErrorEntry::new(entry(members[0]), ErrorCode::Canceled);
        waits(&mut operations);
        assert_eq!(wakes_after(&mut operations, &|operations| operations.fail(canceled.clone())), 2);
        // No task waits.
        assert_eq!(wakes_after(&mut operations, &|operations| operations.succeed(entry(members[2]))), 2);
        // A member that has ended before.
        waits(&mut operations);
        assert_eq!(wakes_after(&mut operations, &|operations| operations.add_to_set(set, 3, None)), 3);
        let ended: Vec<_> = std::iter::from_fn(|| operations.take_ended_member(set)).collect();
        assert_eq!(ended, [1, 0, 2, 3]);
    }

    #[test]
    fn endpoint_close_ends_exactly_the_pending_operations() {
        let mut operations = Operations::default();
        let [waits, finished, many, parked] = [1, 2, 3, 4].map(|len| operations.start(buffer(len)));
        operations.many(many);
        let wakes = Arc::new(Wakes(AtomicU32::new(0)));
        let waker = Waker::from(Arc::clone(&wakes));
        assert!(operations.set_waker(waits, &waker, &mut Some(waker.clone())));
        operations.succeed(entry(finished));
        operations.succeed(entry(many));
        assert!(operations.park(parked) && !operations.is_done(many));
        let before = operations.finished();
        operations.end_all("over");
        assert_eq!(operations.finished(), before + 3);
        operations.take_deferred_actions().run();
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        let is_over = |result: OperationResult| {
            result.is_err_and(|error| error.error == ErrorCode::Canceled && error.text == "over")
        };
        // This operation was, for example, waiting for a message.
        let (result, buffer) = operations.take_end(waits).expect("a result");
        assert!(is_over(result) && operations.is_done(waits));
        assert_eq!(buffer.expect("its buffer").len(), 1);
        // An operation that has ended keeps its one result.
        let (result, buffer) = operations.take_end(finished).expect("a result");
        assert!(result.is_ok() && operations.is_done(finished));
        assert_eq!(buffer.expect("its buffer").len(), 2);
        // The results so far are followed by an error, which is the last result.
        assert!(operations.take_result(many).expect("a result").is_ok());
        assert!(is_over(operations.take_result(many).expect("the end")) && operations.is_done(many));
        assert_eq!(operations.release(many).expect("its buffer").len(), 3);
        // The handle of this operation was dropped, so the buffer is freed.
        assert!(operations.buffer(parked).is_none() && operations.release(parked).is_none());
        operations.end_all("over");
        assert_eq!(operations.finished(), before + 3, "each operation ends once");
    }
}
