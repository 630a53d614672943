//! Hints to the processor's caches.

#![cfg_attr(
    all(target_arch = "x86_64", not(loom)),
    expect(unsafe_code, reason = "instructions that are hints; each block states its own reason")
)]

/// Prefetches the cache line at `at` for writing.
#[inline]
pub(super) fn prefetch_write(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch affects only caches and never faults, at any address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _: *const u8 = at;
}

/// Prefetches the cache line at `at` for reading.
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

/// Returns whether [`demote`] has an effect on this processor.
pub(super) fn can_demote() -> bool {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        // CLDEMOTE is bit 25 of ECX in leaf 7. It is queried only once, because in a virtual machine the hypervisor
        // handles each CPUID.
        static CAN: std::sync::LazyLock<bool> =
            std::sync::LazyLock::new(|| __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & (1 << 25) != 0);
        *CAN
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    false
}

/// Moves the cache line at `at`, which was just written, to the cache that all cores share, because another core will
/// read it.
#[inline]
pub(super) fn demote(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: the hint affects only caches and never faults, at any address. A processor that does not support it
    // ignores it.
    unsafe {
        std::arch::asm!("cldemote [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _: *const u8 = at;
}
