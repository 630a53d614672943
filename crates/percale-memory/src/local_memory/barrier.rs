//! A fence on every processor that runs a thread of a registered process: `membarrier(GLOBAL_EXPEDITED)`.
//!
//! It moves the cost of Dekker's fence from the side that publishes often to the side that looks rarely (16 µs for the
//! latter, nothing for the former): to a receiver that goes to sleep, to a target that revokes a right. It reaches only
//! processes that registered, and the kernel does not report which did. So a process that wants to omit its fences registers
//! before it announces that, and a process that would fence for it allows that only after it has tested that it can fence.

#![expect(unsafe_code, reason = "rustix has no membarrier(2); each block states its own reason")]

use std::sync::OnceLock;

use crate::system::forked::PerProcess;

// From <linux/membarrier.h>.
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// A forked child registers for itself: the fork may have happened while the parent registered, and in the child that would never end.
static REGISTERED: PerProcess<OnceLock<bool>> = PerProcess::new();

/// Registers this process, so that other processes' [`everywhere`] reaches it. The first time that takes some 10 ms (the
/// kernel waits until no processor uses the process's old state): not for a thread that has messages to send.
#[inline]
pub fn register() {
    match REGISTERED.get_or_make() {
        Ok(registered) => _ = registered.get_or_init(|| membarrier(REGISTER_GLOBAL_EXPEDITED)),
        Err(error) => crate::later::later!(warn: %error, "this process is not registered for fences of others"),
    }
}

/// Whether this process is registered.
#[inline]
pub fn is_registered() -> bool {
    REGISTERED.get().and_then(OnceLock::get) == Some(&true)
}

/// Whether this process can fence others.
#[inline]
pub fn available() -> bool {
    static AVAILABLE: PerProcess<OnceLock<bool>> = PerProcess::new();
    AVAILABLE.get_or_make().is_ok_and(|available| *available.get_or_init(everywhere))
}

/// Makes every registered process fence. False if the system refused.
#[must_use]
#[inline]
pub fn everywhere() -> bool {
    membarrier(GLOBAL_EXPEDITED)
}
