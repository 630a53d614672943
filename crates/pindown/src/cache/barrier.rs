//! The two halves of an asymmetric fence: one for threads that use the cache, which costs nothing, and one for threads
//! that take registrations out, which makes the kernel fence every running thread of the process (membarrier(2)).

#![cfg_attr(not(loom), expect(unsafe_code, reason = "rustix has no membarrier(2); each block states its own reason"))]

use std::sync::atomic::Ordering;

/// Orders what stands before against what follows, for threads that call [`heavy`]: they see the former before the
/// latter is done.
#[inline]
pub(super) fn light() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Fences every thread of the process. When this returns true, every thread has passed a full fence. Returns false if the kernel refuses
/// the call, as it does where a filter of system calls that was installed meanwhile denies it.
#[must_use]
pub(super) fn heavy() -> bool {
    #[cfg(not(loom))]
    {
        let fenced = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        std::sync::atomic::fence(Ordering::SeqCst);
        fenced
    }
    #[cfg(loom)]
    {
        loom::sync::atomic::fence(Ordering::SeqCst);
        true
    }
}

/// Asks the kernel for [`heavy`]; in every kernel since 4.14, but a filter of system calls may forbid it.
///
/// # Errors
/// Those of membarrier(2).
pub(super) fn register() -> std::io::Result<()> {
    #[cfg(not(loom))]
    if !membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        return Err(crate::calls::last("membarrier"));
    }
    Ok(())
}

// From <linux/membarrier.h>.
#[cfg(not(loom))]
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
#[cfg(not(loom))]
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

#[cfg(not(loom))]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
