//! An allocator for the search: it counts what is allocated, fills memory that is freed, holds it back for a while, and finds writes to it.
//!
//! So a payload that is read from freed memory is wrong, and a late write is found, without a sanitizer. Under AddressSanitizer, which finds
//! more, memory goes to it at once.

#![expect(unsafe_code, reason = "is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

/// What freed memory is filled with.
const FREED: u8 = 0xdd;

/// Blocks that are held back.
const HELD: usize = 2_048;

/// Larger blocks are freed at once.
const LARGEST: usize = 64 << 10;

/// Whether freed memory is given back at once.
static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// Bytes in use.
static BYTES: AtomicIsize = AtomicIsize::new(0);

/// Freed blocks that were written before they were given back to the system: how many, and the size of the last.
static WRITTEN: AtomicUsize = AtomicUsize::new(0);
static WRITTEN_SIZE: AtomicUsize = AtomicUsize::new(0);

/// The allocator.
#[derive(Debug)]
pub struct Quarantine {
    lock: AtomicBool,
    ring: UnsafeCell<[(*mut u8, usize, usize); HELD]>,
    next: UnsafeCell<usize>,
}

// SAFETY: the ring is used under the lock.
unsafe impl Sync for Quarantine {}

impl Quarantine {
    /// An allocator that holds nothing.
    #[must_use]
    pub const fn new() -> Self {
        let none = (std::ptr::null_mut(), 0, 0);
        Self { lock: AtomicBool::new(false), ring: UnsafeCell::new([none; HELD]), next: UnsafeCell::new(0) }
    }

    /// Puts a block in the ring, and gives the one that it replaces.
    fn exchange(&self, block: (*mut u8, usize, usize)) -> (*mut u8, usize, usize) {
        while self.lock.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
        // SAFETY: under the lock.
        let next = unsafe { &mut *self.next.get() };
        // SAFETY: under the lock.
        let ring = unsafe { &mut *self.ring.get() };
        *next = (*next + 1) % HELD;
        let old = std::mem::replace(&mut ring[*next], block);
        self.lock.store(false, Ordering::Release);
        old
    }
}

impl Default for Quarantine {
    fn default() -> Self {
        Self::new()
    }
}

/// Leaves freed memory to AddressSanitizer if the program contains it. Returns whether it does.
pub fn leave_to_sanitizer() -> bool {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__asan_init".as_ptr()) };
    AT_ONCE.store(!found.is_null(), Ordering::Relaxed);
    !found.is_null()
}

/// Bytes in use.
#[must_use]
pub fn bytes() -> isize {
    BYTES.load(Ordering::Relaxed)
}

/// Whether freed memory was written since the last call; and the size of the block.
#[must_use]
pub fn written() -> Option<usize> {
    (WRITTEN.swap(0, Ordering::Relaxed) > 0).then(|| WRITTEN_SIZE.load(Ordering::Relaxed))
}

// SAFETY: blocks come from the system's allocator and go back to it once, later.
unsafe impl GlobalAlloc for Quarantine {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        if layout.size() > LARGEST || AT_ONCE.load(Ordering::Relaxed) {
            // SAFETY: as the caller promised.
            return unsafe { System.dealloc(ptr, layout) };
        }
        // SAFETY: the block was the caller's, which does not use it any more.
        unsafe { std::ptr::write_bytes(ptr, FREED, layout.size()) };
        let (ptr, size, align) = self.exchange((ptr, layout.size(), layout.align()));
        if ptr.is_null() {
            return;
        }
        // SAFETY: the block is held by the ring alone.
        let bytes = unsafe { std::slice::from_raw_parts(ptr, size) };
        if bytes.iter().any(|byte| *byte != FREED) {
            WRITTEN_SIZE.store(size, Ordering::Relaxed);
            WRITTEN.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: as it was allocated.
        let layout = unsafe { Layout::from_size_align_unchecked(size, align) };
        // SAFETY: the block left the ring, so this is the only time.
        unsafe { System.dealloc(ptr, layout) };
    }
}
