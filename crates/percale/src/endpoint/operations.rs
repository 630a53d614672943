//! Safe operations under way: the buffers they own, their results, and who waits for them.
//!
//! A slot lives from posting until its result was taken; if its handle is dropped first the slot is *parked*: it keeps the
//! buffer until the operation has completed, because the peer may be using it until then.

use std::collections::VecDeque;
use std::task::Waker;

use slab::Slab;

use super::engine::types::Notify;
use super::shared_receive::Owed;
use crate::completion::entry::{CompletionFlags, Entry, ErrorEntry};
use crate::memory::buffer::Buffer;

/// One operation.
#[derive(Debug, Default)]
struct Slot {
    buffer: Option<Buffer>,
    /// One result, or several from a multi-receive.
    results: VecDeque<Result<Entry, ErrorEntry>>,
    /// More than one result comes, until one says that the buffer is released.
    many: bool,
    /// No more results come.
    done: bool,
    waker: Option<Waker>,
    parked: bool,
    /// It is a shared receive: somebody else waits for the result.
    owed: Option<Owed>,
}

/// All safe operations of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    slots: Slab<Slot>,
    /// Queues of finished slots, for reuse: no allocation in the steady state.
    spare: Vec<VecDeque<Result<Entry, ErrorEntry>>>,
    /// Tasks to wake once the endpoint is no longer borrowed.
    wake: Vec<Waker>,
    /// Results so far; sleepers of a shared endpoint compare it.
    finished: u64,
}

impl Operations {
    /// Makes room for an operation that owns `buffer`.
    pub(crate) fn start(&mut self, buffer: Buffer) -> usize {
        let results = self.spare.pop().unwrap_or_default();
        self.slots.insert(Slot { buffer: Some(buffer), results, ..Slot::default() })
    }

    /// Makes room for a shared receive that owns `buffer`; its end is told to whoever waits for it.
    pub(crate) fn start_owed(&mut self, buffer: Buffer, owed: Owed) -> usize {
        self.slots.insert(Slot { buffer: Some(buffer), owed: Some(owed), ..Slot::default() })
    }

    /// The buffer of an operation that was started without.
    pub(crate) fn give(&mut self, id: usize, buffer: Buffer) {
        self.slots[id].buffer = Some(buffer);
    }

    /// Takes back an operation that could not be posted.
    pub(crate) fn withdraw(&mut self, id: usize) -> Option<Buffer> {
        self.remove(id)
    }

    fn remove(&mut self, id: usize) -> Option<Buffer> {
        let mut slot = self.slots.remove(id);
        slot.results.clear();
        if self.spare.len() < 64 {
            self.spare.push(slot.results);
        }
        slot.buffer
    }

    /// An operation has a result.
    pub(crate) fn finish(&mut self, id: u64, result: Result<Entry, ErrorEntry>) {
        let id = id as usize;
        self.finished += 1;
        let Some(slot) = self.slots.get_mut(id) else { return };
        let flags = match &result {
            Ok(entry) => entry.flags,
            Err(error) => error.entry.flags,
        };
        slot.done = slot.done || !slot.many || flags.contains(CompletionFlags::MULTI_RECEIVE);
        if let Some(owed) = slot.owed.take() {
            let buffer = self.remove(id);
            self.wake.extend(owed.pay(result, buffer));
            return;
        }
        if slot.parked {
            if slot.done {
                self.remove(id);
            }
            return;
        }
        slot.results.push_back(result);
        if let Some(waker) = slot.waker.take() {
            self.wake.push(waker);
        }
    }

    /// Declares an operation to have many results, until one says that the buffer is released.
    pub(crate) fn many(&mut self, id: usize) {
        self.slots[id].many = true;
    }

    /// The next result, if there is one.
    pub(crate) fn take_result(&mut self, id: usize) -> Option<Result<Entry, ErrorEntry>> {
        self.slots[id].results.pop_front()
    }

    /// Whether there is a result.
    pub(crate) fn has_result(&self, id: usize) -> bool {
        !self.slots[id].results.is_empty()
    }

    /// Whether no more results come.
    pub(crate) fn is_done(&self, id: usize) -> bool {
        let slot = &self.slots[id];
        slot.done && slot.results.is_empty()
    }

    /// Ends a completed operation and gives its buffer back.
    pub(crate) fn release(&mut self, id: usize) -> Option<Buffer> {
        self.remove(id)
    }

    /// Who to wake when there is a result.
    pub(crate) fn set_waker(&mut self, id: usize, waker: &Waker) {
        let slot = &mut self.slots[id];
        if !slot.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            slot.waker = Some(waker.clone());
        }
    }

    /// The handle is gone: keep the buffer until the operation has completed.
    pub(crate) fn park(&mut self, id: usize) {
        let slot = &mut self.slots[id];
        slot.parked = true;
        slot.waker = None;
        if slot.done {
            self.remove(id);
        }
    }

    /// Gives up the buffer of an operation, if it is a safe one: somebody may use it for ever.
    pub(crate) fn leak(&mut self, notify: Notify, context: u64) {
        if notify == Notify::Operation
            && let Some(slot) = self.slots.get_mut(context as usize)
        {
            std::mem::forget(slot.buffer.take());
        }
    }

    /// The buffer of an operation, for reading what a multi-receive has got so far.
    pub(crate) fn buffer(&self, id: usize) -> Option<&Buffer> {
        self.slots[id].buffer.as_ref()
    }

    /// Whether tasks are to be woken.
    #[inline]
    pub(crate) fn has_wakers(&self) -> bool {
        !self.wake.is_empty()
    }

    /// The tasks to wake.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wake)
    }

    /// Results so far.
    pub(crate) fn finished(&self) -> u64 {
        self.finished
    }
}
