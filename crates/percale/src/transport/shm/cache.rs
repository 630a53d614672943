//! Two hints to the processor's caches.

#![cfg_attr(
    all(target_arch = "x86_64", not(loom)),
    expect(unsafe_code, reason = "prefetch instructions; each block states its own reason")
)]

/// Asks for the cache line at `at`, to be written soon.
#[inline]
pub(super) fn prefetch_write(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch has no effect but on caches and never faults, whatever the address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _: *const u8 = at;
}

/// Asks for the cache line at `at`, to be read soon.
#[inline]
pub(super) fn prefetch_read(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: as above.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _: *const u8 = at;
}
