//! An allocator for the search. It counts allocated memory, fills freed memory with a pattern, quarantines it for a
//! while, and detects writes to it.
//!
//! Therefore a payload that is read from freed memory is wrong, and a late write is detected without a sanitizer. Under
//! AddressSanitizer, which detects more, memory is freed immediately.

#![expect(unsafe_code, reason = "is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

/// The byte that fills freed memory.
const FREED: u8 = 0xdd;

/// The number of blocks in the quarantine.
const HELD: usize = 2_048;

/// The maximum size of a quarantined block. Larger blocks are freed immediately.
const LARGEST: usize = 64 << 10;

/// Whether all memory is freed immediately.
static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// The number of bytes in use.
static BYTES: AtomicIsize = AtomicIsize::new(0);

/// The number of freed blocks that were written while they were quarantined, and the size of the last of them.
static WRITTEN: AtomicUsize = AtomicUsize::new(0);
static WRITTEN_SIZE: AtomicUsize = AtomicUsize::new(0);

/// The allocator.
#[derive(Debug)]
pub struct Quarantine {
    lock: AtomicBool,
    ring: UnsafeCell<[(*mut u8, usize, usize); HELD]>,
    next: UnsafeCell<usize>,
}

// SAFETY: the ring is accessed only under the lock.
unsafe impl Sync for Quarantine {}

impl Quarantine {
    /// Makes an allocator with an empty quarantine.
    #[must_use]
    pub const fn new() -> Self {
        let none = (std::ptr::null_mut(), 0, 0);
        Self { lock: AtomicBool::new(false), ring: UnsafeCell::new([none; HELD]), next: UnsafeCell::new(0) }
    }

    /// Puts a block into the ring. Returns the block that it replaces.
    fn exchange(&self, block: (*mut u8, usize, usize)) -> (*mut u8, usize, usize) {
        while self.lock.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
        // SAFETY: the lock is held.
        let next = unsafe { &mut *self.next.get() };
        // SAFETY: the lock is held.
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

/// Disables the quarantine if the program contains AddressSanitizer. Returns true in that case.
pub fn leave_to_sanitizer() -> bool {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__asan_init".as_ptr()) };
    AT_ONCE.store(!found.is_null(), Ordering::Relaxed);
    !found.is_null()
}

/// Returns the number of bytes in use.
#[must_use]
pub fn bytes() -> isize {
    BYTES.load(Ordering::Relaxed)
}

/// Returns the size of a freed block that was written since the last call, if there is one.
#[must_use]
pub fn written() -> Option<usize> {
    (WRITTEN.swap(0, Ordering::Relaxed) > 0).then(|| WRITTEN_SIZE.load(Ordering::Relaxed))
}

// SAFETY: blocks come from the system's allocator, and each is returned to it once.
unsafe impl GlobalAlloc for Quarantine {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the safety contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the safety contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        if layout.size() > LARGEST || AT_ONCE.load(Ordering::Relaxed) {
            // SAFETY: the caller upholds the safety contract.
            return unsafe { System.dealloc(ptr, layout) };
        }
        // SAFETY: the block belonged to the caller, which does not use it any more.
        unsafe { std::ptr::write_bytes(ptr, FREED, layout.size()) };
        let (ptr, size, align) = self.exchange((ptr, layout.size(), layout.align()));
        if ptr.is_null() {
            return;
        }
        // SAFETY: only the ring held the block.
        let bytes = unsafe { std::slice::from_raw_parts(ptr, size) };
        if bytes.iter().any(|byte| *byte != FREED) {
            WRITTEN_SIZE.store(size, Ordering::Relaxed);
            WRITTEN.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the block was allocated with this layout.
        let layout = unsafe { Layout::from_size_align_unchecked(size, align) };
        // SAFETY: the block has left the ring, so it is freed only once.
        unsafe { System.dealloc(ptr, layout) };
    }
}
