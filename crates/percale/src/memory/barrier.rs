//! A fence on every processor that runs somebody who asked for it: `membarrier(GLOBAL_EXPEDITED)`.
//!
//! It moves the cost of Dekker's fence from the side that publishes often to the side that looks rarely (16 µs there,
//! nothing here): to a receiver that goes to sleep, to a target that takes a right back. It reaches only processes that
//! registered, and tells nobody which did: so who would go without fences registers before it says so, and who would
//! fence for it tries that out before it allows it.

#![expect(unsafe_code, reason = "rustix has no membarrier(2); each block states its own reason")]

use std::sync::OnceLock;

use super::forked::PerProcess;

// From <linux/membarrier.h>.
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// A forked child asks for itself: its parent may have been forked while it registered, and that would never end in the child.
static REGISTERED: PerProcess<OnceLock<bool>> = PerProcess::new();

/// Registers this process, so that other processes' [`everywhere`] reaches it. The first time that takes some 10 ms (the
/// kernel waits until no processor uses the process's old state): not for a thread that has messages to send.
pub(crate) fn register() {
    match REGISTERED.get_or_make() {
        Ok(registered) => _ = registered.get_or_init(|| membarrier(REGISTER_GLOBAL_EXPEDITED)),
        Err(error) => crate::later::later!(warn: %error, "this process is not registered for fences of others"),
    }
}

/// Whether this process is registered.
pub(crate) fn is_registered() -> bool {
    REGISTERED.get().and_then(OnceLock::get) == Some(&true)
}

/// Whether this process can fence others.
pub(crate) fn available() -> bool {
    static AVAILABLE: PerProcess<OnceLock<bool>> = PerProcess::new();
    AVAILABLE.get_or_make().is_ok_and(|available| *available.get_or_init(everywhere))
}

/// Makes every registered process fence. False if the system refused.
#[must_use]
pub(crate) fn everywhere() -> bool {
    membarrier(GLOBAL_EXPEDITED)
}
