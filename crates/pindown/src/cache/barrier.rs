//! The two halves of an asymmetric fence. The light half is for threads that use the cache, and executes no
//! instruction. The heavy half is for threads that remove registrations; it makes the kernel fence every running thread
//! of the process (membarrier(2)).

#![cfg_attr(not(loom), expect(unsafe_code, reason = "rustix has no membarrier(2); each block states its own reason"))]

use std::sync::atomic::Ordering;

/// Orders the earlier operations of this thread before its later ones, as observed by a thread that calls [`heavy`]: if
/// that thread does not see the earlier operations after the call, the later ones are performed after the call.
#[inline]
pub(super) fn light() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Fences every thread of the process. When this function returns true, every thread has passed a full fence. Returns
/// false if the kernel rejects the call, for example because of a seccomp filter that was installed after the cache was
/// opened.
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

/// Registers the process for [`heavy`]. Linux supports this since 4.14, but a seccomp filter may deny it.
///
/// # Errors
/// Errors of membarrier(2).
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
    // SAFETY: membarrier takes integers and accesses no memory of this program.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
