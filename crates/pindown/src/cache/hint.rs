//! A hint to the processor's caches.

#![cfg_attr(
    all(target_arch = "x86_64", not(loom)),
    expect(unsafe_code, reason = "an instruction that is a hint; the block states its own reason")
)]

/// Asks for the cache line of `value`, to be read soon.
#[inline]
pub(super) fn prefetch<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch has no effect but on caches and never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _: &T = value;
}
