//! Pools of buffers that share one allocation.
//!
//! A pool divides one [`Allocation`] into *parts* of equal length, and hands them out as
//! [`Buffer`](super::buffer::Buffer)s.
//!
//! Invariants:
//! 1. The number of a part is either in the list of free parts, or in exactly one `PoolPart`. Taking a part removes
//!    the number from the list, and dropping the `PoolPart` puts it back.
//! 2. A `PoolPart` is dropped by its owner only. An operation whose memory a peer may still access owns its buffer
//!    until the peer has let go of it, so the part cannot be taken again before.
//! 3. The pool and each part keep the allocation alive. So the pool may be dropped while parts are in use.
//! 4. The list never grows beyond the capacity with which it was made, so neither taking nor dropping allocates.
//!
//! The list is a stack under a lock, which is held for the time of a push or a pop. A stack of atomics would need
//! generations in its head (a thread that was stopped between two of its steps must not succeed later), and would save
//! little: an uncontended lock is one exchange to enter and one to leave. The part that was returned last is taken
//! first, because it is most likely in a cache.
//!
//! A forked child has no part of its parent's pool: the memory does not exist there, and the lock may have been held
//! by a thread of the parent. So a child takes no lock and gets no buffer.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sealed::{AllocateError, Allocation, AllocationExt as _, allocate, reserved};
use super::volatile::Segment;

/// The state that a pool shares with its buffers.
struct PoolMemory {
    /// Kept until the last buffer is dropped: for example the registration of the memory with a device.
    kept: Mutex<Option<Box<dyn Any + Send>>>,
    memory: Allocation,
    /// The number of bytes from the start of a part to the start of the next one.
    stride: usize,
    /// The length of each part.
    len: u32,
    /// The number of parts.
    count: u32,
    /// The numbers of the parts that are not in use.
    free: Mutex<Vec<u32>>,
}

impl PoolMemory {
    /// Locks the list of free parts, or returns `None` in a forked child.
    #[inline]
    fn free(&self) -> Option<MutexGuard<'_, Vec<u32>>> {
        self.memory.exists_here().then(|| self.free.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        if !self.memory.exists_here() {
            // It belongs to the parent process.
            std::mem::forget(self.kept.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// A fixed number of buffers of one length, for operations that should not allocate memory.
///
/// All buffers are parts of one allocation, which local peers can map, and which is registered with the RDMA device as
/// a whole when the pool is created. Taking a buffer and returning it cost one uncontended lock each, and never
/// allocate. A buffer returns to its pool when it is dropped, wherever that happens: the result of an operation, an
/// error, an operation that was cancelled or dropped, a closed region. If an operation is dropped while a peer may
/// still access its buffer, the buffer returns when the peer can no longer access it.
///
/// A pool is created by `Domain::buffer_pool`. Clones are handles to the same buffers, and several threads may use
/// them. The memory exists until the pool and all its buffers were dropped, in any order. A buffer that is forgotten
/// ([`std::mem::forget`]) never returns.
#[derive(Clone)]
pub struct BufferPool {
    memory: Arc<PoolMemory>,
}

crate::short_debug!(BufferPool, "BufferPool", capacity: |this| this.capacity(), buffer_len: |this| this.buffer_len());

impl BufferPool {
    /// Returns the length of each buffer in bytes.
    #[must_use]
    #[inline]
    pub fn buffer_len(&self) -> usize {
        self.memory.len as usize
    }

    /// Returns the number of buffers, including those that are in use.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.memory.count as usize
    }

    /// Returns the number of buffers that are not in use. Other threads may take and return buffers at the same time.
    /// In a forked child this is 0.
    #[must_use]
    pub fn available(&self) -> usize {
        self.memory.free().map_or(0, |free| free.len())
    }

    /// Takes a free part.
    #[inline]
    pub(super) fn take_part(&self) -> Option<PoolPart> {
        let number = self.memory.free()?.pop()?;
        Some(PoolPart { memory: Arc::clone(&self.memory), number, len: self.memory.len })
    }
}

/// Creates a [`BufferPool`]. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait BufferPoolExt: Sized {
    /// Creates a pool of `count` buffers of `len` bytes, all 0.
    ///
    /// # Errors
    /// See [`AllocateError`].
    fn new(count: usize, len: usize) -> Result<Self, AllocateError>;

    /// Returns all of the pool's memory.
    fn segment(&self) -> Segment;

    /// Keeps an object until the pool and all its buffers were dropped, and drops it before the memory is freed. In a
    /// forked child it is not dropped.
    fn keep(&self, object: Box<dyn Any + Send>);
}

impl BufferPoolExt for BufferPool {
    fn new(count: usize, len: usize) -> Result<Self, AllocateError> {
        let (Ok(parts), Ok(part_len)) = (u32::try_from(count), u32::try_from(len)) else {
            return Err(AllocateError::Pool { count, len });
        };
        let stride = reserved(len);
        let memory = allocate(stride.checked_mul(count).ok_or(AllocateError::TooLarge(usize::MAX))?)?;
        // In reverse, so that the first parts are taken first.
        let free = Mutex::new((0..parts).rev().collect());
        let memory = PoolMemory { kept: Mutex::new(None), memory, stride, len: part_len, count: parts, free };
        Ok(Self { memory: Arc::new(memory) })
    }

    fn segment(&self) -> Segment {
        self.memory.memory.segment()
    }

    fn keep(&self, object: Box<dyn Any + Send>) {
        let before = self.memory.kept.lock().unwrap_or_else(PoisonError::into_inner).replace(object);
        drop(before);
    }
}

/// A part of a pool that is in use. It returns to the pool when it is dropped.
pub(super) struct PoolPart {
    memory: Arc<PoolMemory>,
    number: u32,
    /// The length of the part that operations use, at most the length of the part.
    len: u32,
}

impl PoolPart {
    /// Returns the length in bytes.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Reduces the length until the part returns to the pool.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = u32::try_from(len).map_or(self.len, |len| len.min(self.len));
    }

    /// Returns the allocation that contains the part.
    #[inline]
    pub(super) fn allocation(&self) -> &Allocation {
        &self.memory.memory
    }

    /// Returns the part as a segment, which the caller uses only while it keeps the part.
    ///
    /// # Panics
    /// In a forked child of the process that created the pool.
    #[inline]
    #[track_caller]
    pub(super) fn segment(&self) -> Segment {
        self.memory.memory.segment().slice(self.number as usize * self.memory.stride, self.len())
    }
}

impl Drop for PoolPart {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut free) = self.memory.free() {
            free.push(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_memory::buffer::{Buffer, BufferExt as _};
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn address(buffer: &Buffer) -> usize {
        buffer.segment_for_send().as_ptr().addr()
    }

    #[test]
    fn buffers_are_separate_and_aligned_parts_of_one_allocation() {
        for (count, len) in [(5, 1), (3, 64), (4, 1000), (2, 100_000), (3, 0)] {
            let pool = BufferPool::new(count, len).unwrap();
            assert_eq!((pool.capacity(), pool.buffer_len(), pool.available()), (count, len, count));
            let mut buffers: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
            assert_eq!((buffers.len(), pool.available()), (count, 0));
            let whole = pool.segment();
            for (mark, buffer) in (1..).zip(&mut buffers) {
                assert!(buffer.is_writable() && buffer.as_slice().is_none());
                assert_eq!(address(buffer) % 64, 0);
                assert!(address(buffer) >= whole.as_ptr().addr());
                assert!(address(buffer) + len <= whole.as_ptr().addr() + whole.len());
                assert_eq!(buffer.copy_from(0, &vec![mark; len]), len);
            }
            for (mark, buffer) in (1..).zip(buffers) {
                assert_eq!(buffer.into_vec(), vec![mark; len]);
            }
            assert_eq!(pool.available(), count);
        }
    }

    #[test]
    fn empty_pool_gives_no_buffer_until_one_returns() {
        let pool = BufferPool::new(1, 100).unwrap();
        let buffer = pool.take().unwrap();
        let at = address(&buffer);
        assert!(pool.take().is_none());
        drop(buffer);
        assert_eq!(address(&pool.take().unwrap()), at);
        assert!(BufferPool::new(0, 100).unwrap().take().is_none());
    }

    #[test]
    fn buffer_that_was_shortened_has_its_full_length_when_it_is_taken_again() {
        let pool = BufferPool::new(1, 100).unwrap();
        let mut buffer = pool.take().unwrap();
        buffer.truncate(200);
        assert_eq!(buffer.len(), 100);
        buffer.truncate(7);
        buffer.truncate(50);
        assert_eq!((buffer.len(), buffer.copy_from(3, &[1; 100])), (7, 4));
        assert_eq!(buffer.segment_for_send().len(), 7);
        assert_eq!(buffer.into_vec(), [0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(pool.take().unwrap().len(), 100);
    }

    #[test]
    fn buffers_outlive_their_pool() {
        struct Kept(Arc<AtomicBool>);
        impl Drop for Kept {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let ended = Arc::new(AtomicBool::new(false));
        let pool = BufferPool::new(2, 1000).unwrap();
        pool.keep(Box::new(Kept(Arc::clone(&ended))));
        let (mut first, second) = (pool.take().unwrap(), pool.take().unwrap());
        drop(pool);
        drop(second);
        assert_eq!(first.copy_from(0, b"still here"), 10);
        assert!(!ended.load(Ordering::Relaxed));
        assert_eq!(first.into_vec()[..10], *b"still here");
        assert!(ended.load(Ordering::Relaxed), "the registration ends with the last buffer");
    }

    #[test]
    fn threads_never_own_one_buffer_at_the_same_time() {
        const COUNT: usize = 3;
        let pool = BufferPool::new(COUNT, 8).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let pool = pool.clone();
                scope.spawn(move || {
                    for round in 0..5000_u64 {
                        let Some(mut buffer) = pool.take() else { continue };
                        let mark = (thread << 32 | round).to_ne_bytes();
                        buffer.copy_from(0, &mark);
                        std::hint::spin_loop();
                        let mut seen = [0; 8];
                        buffer.copy_to(0, &mut seen);
                        assert_eq!(seen, mark);
                    }
                });
            }
        });
        let all: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(all.iter().map(address).collect::<BTreeSet<_>>().len(), COUNT);
    }

    #[test]
    fn absurd_pools_are_refused() {
        let refused = |count, len| BufferPool::new(count, len).map(drop).unwrap_err();
        assert!(matches!(refused(1 << 32, 1), AllocateError::Pool { .. }));
        let error = refused(1, 1 << 32);
        assert_eq!(error.errno(), libc::EINVAL);
        assert!(error.to_string().contains("1 buffers of 4294967296 bytes"), "{error}");
        assert!(matches!(refused(u32::MAX as usize, u32::MAX as usize), AllocateError::TooLarge(_)));
    }

    /// The child takes no lock, so a lock that is held while the process forks does not block it.
    ///
    /// Requirements: FLT-010.
    #[test]
    fn child_gets_no_buffer_and_returns_none() {
        let pool = BufferPool::new(3, 100).unwrap();
        let mut held = Some(pool.take().unwrap());
        let lock = pool.memory.free();
        assert!(crate::system::forked::in_a_child(|| {
            let none = pool.take().is_none() && pool.available() == 0;
            drop(held.take());
            let own = BufferPool::new(1, 10).unwrap();
            none && own.take().is_some_and(|mut buffer| buffer.copy_from(0, b"child") == 5)
        }));
        drop(lock);
        assert_eq!(pool.available(), 2);
        drop(held);
        assert_eq!(pool.available(), 3);
    }
}
