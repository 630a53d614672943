//! Buffers that links borrow while they need them, from one small store for each thread.
//!
//! An idle link owns no buffer, so the memory for thousands of connections depends on how many are busy. Buffers are
//! owned values that are moved in and out of the thread's store. So a link may move to another thread together with a
//! buffer. A nested use (a sink that polls another link) finds the store empty and allocates a new buffer.

use std::cell::{Cell, RefCell};

/// The size of the receive scratch, which is the number of bytes that are received at once before their content is
/// known.
pub(super) const SCRATCH_BYTES: usize = 32 << 10;

/// The initial capacity of a queue's buffer in bytes.
const QUEUE_BYTES: usize = 20 << 10;

/// The largest capacity of a buffer that is kept.
const KEPT_BYTES: usize = 128 << 10;

/// The number of buffers that a thread keeps.
const KEPT: usize = 8;

/// A buffer for receiving.
pub(super) type ReceiveBuffer = Box<[u8; SCRATCH_BYTES]>;

thread_local! {
    static SCRATCH: Cell<Option<ReceiveBuffer>> = const { Cell::new(None) };
    static QUEUES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the thread's scratch.
#[inline]
pub(super) fn with_scratch<R>(f: impl FnOnce(&mut [u8; SCRATCH_BYTES]) -> R) -> R {
    // While the thread exits, its store no longer exists, so buffers are not reused.
    let kept = SCRATCH.try_with(Cell::take).ok().flatten();
    let mut scratch = kept.unwrap_or_else(|| Box::new([0; SCRATCH_BYTES]));
    let result = f(&mut scratch);
    SCRATCH.try_with(|kept| kept.set(Some(scratch))).ok();
    result
}

/// Returns an empty buffer for a queue.
pub(super) fn take_queue() -> Vec<u8> {
    let kept = QUEUES.try_with(|kept| kept.borrow_mut().pop()).ok().flatten();
    kept.unwrap_or_else(|| Vec::with_capacity(QUEUE_BYTES))
}

/// Returns a buffer to the store.
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
