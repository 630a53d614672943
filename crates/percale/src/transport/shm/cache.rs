//! Hints to the processor's caches.

#![cfg_attr(
    all(target_arch = "x86_64", not(loom)),
    expect(unsafe_code, reason = "instructions that are hints; each block states its own reason")
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

/// Whether [`demote`] does anything on this processor.
pub(super) fn can_demote() -> bool {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        // CLDEMOTE: leaf 7, ECX, bit 25. Asked once: in a virtual machine the hypervisor answers.
        static CAN: std::sync::LazyLock<bool> =
            std::sync::LazyLock::new(|| __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & (1 << 25) != 0);
        *CAN
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    false
}

/// Moves the cache line at `at`, which was written, to the cache that all cores share: another core will read it.
#[inline]
pub(super) fn demote(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a hint has no effect but on caches and never faults, whatever the address; a processor without it does nothing.
    unsafe {
        std::arch::asm!("cldemote [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _: *const u8 = at;
}
