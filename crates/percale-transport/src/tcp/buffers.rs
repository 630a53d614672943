//! Buffers that links borrow while they have use for them, one small store per thread.
//!
//! An idle link owns no buffer: thousands of connections cost what the busy ones need. Buffers are owned values that
//! move in and out of the thread's store, so a link may move to another thread with one, and a nested use (a sink that
//! polls another link) merely finds the store empty and gets a new one.

use std::cell::{Cell, RefCell};

/// Bytes of a receive scratch: how much is received at once where it is not known yet what comes.
pub(super) const SCRATCH_BYTES: usize = 32 << 10;

/// Bytes that a queue's buffer has room for from the start.
const QUEUE_BYTES: usize = 20 << 10;

/// What a buffer may have grown to and still be kept.
const KEPT_BYTES: usize = 128 << 10;

/// How many of them a thread keeps.
const KEPT: usize = 8;

/// A receive scratch.
pub(super) type Scratch = Box<[u8; SCRATCH_BYTES]>;

thread_local! {
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
    static QUEUES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the thread's scratch.
#[inline]
pub(super) fn with_scratch<R>(f: impl FnOnce(&mut [u8; SCRATCH_BYTES]) -> R) -> R {
    // While the thread ends its store is gone; then there simply is no reuse.
    let kept = SCRATCH.try_with(Cell::take).ok().flatten();
    let mut scratch = kept.unwrap_or_else(|| Box::new([0; SCRATCH_BYTES]));
    let result = f(&mut scratch);
    SCRATCH.try_with(|kept| kept.set(Some(scratch))).ok();
    result
}

/// An empty buffer for a queue.
pub(super) fn take_queue() -> Vec<u8> {
    let kept = QUEUES.try_with(|kept| kept.borrow_mut().pop()).ok().flatten();
    kept.unwrap_or_else(|| Vec::with_capacity(QUEUE_BYTES))
}

/// Gives a buffer back.
pub(super) fn give_queue(mut buffer: Vec<u8>) {
    if buffer.capacity() <= KEPT_BYTES && buffer.capacity() >= QUEUE_BYTES {
        buffer.clear();
        QUEUES
            .try_with(|kept| {
                let mut kept = kept.borrow_mut();
                if kept.len() < KEPT {
                    kept.push(buffer);
                }
            })
            .ok();
    }
}
