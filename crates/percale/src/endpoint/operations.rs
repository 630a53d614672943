//! Safe operations under way: their buffers, their results, and the tasks that wait for them.
//!
//! A slot exists from posting until the result is taken. If the handle is dropped first, the slot is *parked*: it keeps
//! the buffer until the operation has completed, because the peer may be using the buffer until then.
//!
//! 1. The ID of a slot is the context of its operation in the engine, and the handle holds it. It includes a
//!    generation, so a late completion, a second completion, or a handle that was used up never refers to the operation
//!    that uses the slot now.
//! 2. Code of the application (its wakers and their destructors) never runs here, because the engine is borrowed.
//!    Wakers that have to be called or dropped are put in [`Errands`], which the caller runs when the engine is free.

use std::collections::VecDeque;
use std::task::Waker;

use super::shared_receive::Owed;
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::errands::Errands;
use crate::local_memory::buffer::Buffer;
use crate::table::{Id, Table};

/// One operation.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    buffer: Option<Buffer>,
    /// One result, or several for a multi-receive.
    results: VecDeque<Result<Entry, ErrorEntry>>,
    /// Whether further results follow, until one reports that the buffer is released.
    many: bool,
    /// Whether no further results follow.
    done: bool,
    waker: Option<Waker>,
    parked: bool,
    /// Set for a shared receive. Another handle waits for its result.
    owed: Option<Owed>,
}

/// The ID of an operation.
pub(crate) type OperationId = Id<Slot>;

/// All safe operations of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    slots: Table<Slot>,
    /// The queues of finished slots, which are reused to avoid allocations in the steady state.
    spare: Vec<VecDeque<Result<Entry, ErrorEntry>>>,
    /// Work to be done once the endpoint is no longer borrowed.
    errands: Errands,
    /// The number of results so far. Sleeping threads of a shared endpoint compare it.
    finished: u64,
}

impl Operations {
    /// Creates a slot for an operation that owns `buffer`.
    pub(crate) fn start(&mut self, buffer: Buffer) -> OperationId {
        let results = self.spare.pop().unwrap_or_default();
        self.slots.insert(Slot { buffer: Some(buffer), results, ..Slot::default() })
    }

    /// Creates a slot for a shared receive that owns `buffer`. Its end is reported to the handle that waits for it.
    pub(crate) fn start_owed(&mut self, buffer: Buffer, owed: Owed) -> OperationId {
        self.slots.insert(Slot { buffer: Some(buffer), owed: Some(owed), ..Slot::default() })
    }

    /// Sets the buffer of an operation that was started without one.
    pub(crate) fn give(&mut self, id: OperationId, buffer: Buffer) {
        self.slots[id].buffer = Some(buffer);
    }

    /// Removes the slot of an operation after all its results were taken, or after it could not be posted, and returns
    /// its buffer.
    pub(crate) fn release(&mut self, id: OperationId) -> Option<Buffer> {
        let mut slot = self.slots.remove(id)?;
        self.errands.discard(slot.waker.take());
        slot.results.clear();
        if self.spare.len() < 64 {
            self.spare.push(slot.results);
        }
        slot.buffer
    }

    /// Adds a result to the operation with this context. An operation that has ended takes no more results.
    pub(crate) fn finish(&mut self, context: u64, result: Result<Entry, ErrorEntry>) {
        let id = Id::from_u64(context);
        self.finished += 1;
        let Some(slot) = self.slots.get_mut(id) else { return };
        let flags = match &result {
            Ok(entry) => entry.flags,
            Err(error) => error.entry.flags,
        };
        slot.done = slot.done || !slot.many || flags.contains(CompletionFlags::MULTI_RECEIVE);
        if let Some(owed) = slot.owed.take() {
            let buffer = self.release(id);
            self.errands.wake(owed.pay(result, buffer));
            return;
        }
        if slot.parked {
            if slot.done {
                self.release(id);
            }
            return;
        }
        slot.results.push_back(result);
        self.errands.wake(slot.waker.take());
    }

    /// Called when the endpoint is closed and has ended all operations in its tables. Ends the remaining operations,
    /// for example an operation that can no longer begin because the last handle of its counter is being dropped.
    #[cold]
    pub(crate) fn end_all(&mut self, why: &str) {
        self.slots.iter_mut().for_each(|(_, slot)| slot.many = false);
        let left: Vec<_> = self.slots.iter().filter(|(_, slot)| !slot.done).map(|(id, _)| id).collect();
        for id in left {
            let entry = Entry { context: id.to_u64(), ..Entry::default() };
            let error = ErrorEntry::new(entry, ErrorCode::Canceled).with_text(why.to_owned());
            self.finish(id.to_u64(), Err(error));
        }
    }

    /// Marks an operation as having many results, until one reports that the buffer is released.
    pub(crate) fn many(&mut self, id: OperationId) {
        self.slots[id].many = true;
    }

    /// Takes the next result, if there is one.
    pub(crate) fn take_result(&mut self, id: OperationId) -> Option<Result<Entry, ErrorEntry>> {
        self.slots.get_mut(id)?.results.pop_front()
    }

    /// Returns whether there is a result.
    pub(crate) fn has_result(&self, id: OperationId) -> bool {
        self.slots.get(id).is_some_and(|slot| !slot.results.is_empty())
    }

    /// Returns whether no further results follow.
    pub(crate) fn is_done(&self, id: OperationId) -> bool {
        self.slots.get(id).is_none_or(|slot| slot.done && slot.results.is_empty())
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
        self.errands.discard(slot.waker.replace(fresh));
        true
    }

    /// Records that the handle was dropped, and keeps the buffer until the operation has completed. Returns whether the
    /// operation has yet to complete.
    pub(crate) fn park(&mut self, id: OperationId) -> bool {
        let Some(slot) = self.slots.get_mut(id) else { return false };
        slot.parked = true;
        self.errands.discard(slot.waker.take());
        if slot.done {
            self.release(id);
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
    pub(crate) fn has_errands(&self) -> bool {
        !self.errands.is_empty()
    }

    /// Makes the caller yield its processor to other threads when it has left the engine.
    #[cold]
    pub(crate) fn offer_processor(&mut self) {
        self.errands.offer();
    }

    /// Adds an errand if log events were recorded. This is for the slow parts of calls that do not check for events
    /// themselves (`Call::LOOKS_FOR_EVENTS`).
    #[inline]
    pub(crate) fn note_events(&mut self) {
        if crate::later::any() {
            self.errands.log();
        }
    }

    /// Adds errands to be run when the endpoint is no longer borrowed.
    pub(crate) fn add_errands(&mut self, errands: Errands) {
        self.errands.append(errands);
    }

    /// Takes the work to be done once the endpoint is no longer borrowed.
    pub(crate) fn take_errands(&mut self) -> Errands {
        std::mem::take(&mut self.errands)
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
        operations.finish(old.to_u64(), Ok(entry(old)));
        assert!(operations.take_result(old).is_some());
        assert_eq!(operations.release(old).unwrap().len(), 1);
        let new = operations.start(buffer(2));
        assert_eq!(new.to_u64() as u32, old.to_u64() as u32, "the slot is used again");
        // A second completion and calls with the old ID have no effect.
        operations.finish(old.to_u64(), Err(ErrorEntry::new(entry(old), ErrorCode::Canceled)));
        assert!(!operations.has_result(new) && !operations.is_done(new));
        assert!(operations.take_buffer(old).is_none());
        assert!(operations.buffer(new).is_some() && operations.buffer(old).is_none());
        assert!(operations.is_done(old) && !operations.has_result(old) && operations.take_result(old).is_none());
        assert!(operations.release(old).is_none() && !operations.park(old));
        assert!(operations.set_waker(old, Waker::noop(), &mut None), "there is nothing to wait for");
        operations.finish(new.to_u64(), Ok(entry(new)));
        assert!(operations.take_result(new).is_some());
        assert_eq!(operations.release(new).unwrap().len(), 2);
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
            assert!(!operations.set_waker(id, &waker, &mut None), "a clone is wanted");
            assert!(operations.set_waker(id, &waker, &mut Some(waker.clone())));
            assert!(operations.set_waker(id, &waker, &mut None), "it is known");
            drop(waker);
            let before = dropped.load(Ordering::SeqCst);
            leave(&mut operations, id);
            assert_eq!(dropped.load(Ordering::SeqCst), before, "dropped while the endpoint is borrowed");
            assert!(operations.has_errands());
            operations.take_errands().run();
            assert_eq!(dropped.load(Ordering::SeqCst), before + 1);
        };
        leaves(&|operations, id| drop(operations.release(id)));
        leaves(&|operations, id| assert!(operations.park(id)));
        leaves(&|operations, id| assert!(operations.set_waker(id, Waker::noop(), &mut Some(Waker::noop().clone()))));
        leaves(&|operations, id| operations.finish(id.to_u64(), Ok(entry(id))));
    }

    /// Counts how often it woke a task.
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn endpoint_close_ends_exactly_the_pending_operations() {
        let mut operations = Operations::default();
        let [waits, finished, many, parked] = [1, 2, 3, 4].map(|len| operations.start(buffer(len)));
        let wakes = Arc::new(Wakes(AtomicU32::new(0)));
        let waker = Waker::from(Arc::clone(&wakes));
        assert!(operations.set_waker(waits, &waker, &mut Some(waker.clone())));
        operations.finish(finished.to_u64(), Ok(entry(finished)));
        operations.many(many);
        operations.finish(many.to_u64(), Ok(entry(many)));
        assert!(operations.park(parked) && !operations.is_done(many));
        let before = operations.finished();
        operations.end_all("over");
        assert_eq!(operations.finished(), before + 3);
        operations.take_errands().run();
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        let is_over = |result: Option<Result<Entry, ErrorEntry>>| {
            result.expect("a result").is_err_and(|error| error.error == ErrorCode::Canceled && error.text == "over")
        };
        // This operation was, for example, waiting for a message.
        assert!(is_over(operations.take_result(waits)) && operations.is_done(waits));
        assert_eq!(operations.release(waits).expect("its buffer").len(), 1);
        // An operation that has ended keeps its one result.
        assert!(operations.take_result(finished).expect("a result").is_ok() && operations.is_done(finished));
        assert_eq!(operations.release(finished).expect("its buffer").len(), 2);
        // The results so far are followed by an error, which is the last result.
        assert!(operations.take_result(many).expect("a result").is_ok());
        assert!(is_over(operations.take_result(many)) && operations.is_done(many));
        assert_eq!(operations.release(many).expect("its buffer").len(), 3);
        // The handle of this operation was dropped, so the buffer is freed.
        assert!(operations.buffer(parked).is_none() && operations.release(parked).is_none());
        operations.end_all("over");
        assert_eq!(operations.finished(), before + 3, "each ends once");
    }
}
