//! The memory that a thread allocates while it runs the victim.
//!
//! The allocator of the unit tests adds and subtracts the sizes of allocations that a thread makes within
//! [`counted`]. The victim and its peers share one thread, so only the calls of the victim are counted. Memory that the
//! victim allocates within such a call and frees outside of one stays counted, so the result is never too small by it.

#![expect(unsafe_code, reason = "an allocator; each block states its own reason")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with counts for each thread.
struct CountingAllocator;

/// The counts of a thread.
#[derive(Clone, Copy)]
struct Counts {
    /// Whether allocations are counted.
    active: bool,
    /// The bytes that are allocated, and the largest value of that number.
    live: isize,
    peak: isize,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { active: false, live: 0, peak: 0 }) };
}

/// Adds to the bytes of this thread. The counts no longer exist while the thread exits.
fn add(bytes: isize) {
    COUNTS
        .try_with(|counts| {
            let mut now = counts.get();
            if now.active {
                now.live += bytes;
                now.peak = now.peak.max(now.live);
                counts.set(now);
            }
        })
        .unwrap_or_default();
}

// SAFETY: every call is forwarded to the system's allocator. Counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        // SAFETY: the caller upholds the safety contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        add(-layout.size().cast_signed());
        // SAFETY: the caller upholds the safety contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        // SAFETY: the caller upholds the safety contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller upholds the safety contract.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Calls `f`, and counts the allocations of this thread meanwhile.
pub(super) fn counted<R>(f: impl FnOnce() -> R) -> R {
    /// Restores the earlier state, also if `f` panics.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            COUNTS.set(Counts { active: self.0, ..COUNTS.get() });
        }
    }
    let _restore = Restore(COUNTS.get().active);
    COUNTS.set(Counts { active: true, ..COUNTS.get() });
    f()
}

/// Begins a measurement: the peak is that of the memory that is allocated from now on.
pub(super) fn begin() {
    COUNTS.set(Counts { active: false, live: 0, peak: 0 });
}

/// Returns the largest number of bytes that were allocated at a time since [`begin`].
pub(super) fn peak() -> usize {
    COUNTS.get().peak.max(0) as usize
}

#[test]
fn only_counted_calls_add_to_the_peak() {
    begin();
    let kept = counted(|| vec![0_u8; 1000]);
    let _others = vec![0_u8; 5000];
    counted(|| drop(vec![0_u8; 3000]));
    assert_eq!(peak(), 4000);
    counted(|| drop(kept));
    counted(|| drop(vec![0_u8; 3500]));
    assert_eq!(peak(), 4000);
}
