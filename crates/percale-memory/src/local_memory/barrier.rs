//! A fence on every processor that runs a thread of a registered process, executed by `membarrier(GLOBAL_EXPEDITED)`.
//!
//! It moves the cost of the fence in Dekker's pattern from the side that publishes often to the side that checks
//! rarely. The checking side is a receiver that goes to sleep, or a target that revokes a right. It pays 16 µs, and the
//! publishing side pays nothing. The fence reaches only processes that have registered, and the kernel does not report
//! which processes these are. So a process registers before it announces that it omits its fences. A process permits
//! other processes to omit their fences only after it has tested that it can execute fences for them.

#![expect(unsafe_code, reason = "rustix has no membarrier(2); each block states its own reason")]

use std::sync::OnceLock;

use crate::system::forked::PerProcess;

// From <linux/membarrier.h>.
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes integers and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// A forked child registers itself. If a thread of the parent was registering at the time of the fork, waiting for that
/// thread in the child would never end.
static REGISTERED: PerProcess<OnceLock<bool>> = PerProcess::new();

/// Registers this process, so that [`everywhere`] in other processes also executes a fence here. The first call takes
/// about 10 ms (the kernel waits until no processor uses the process's old state), so a thread that has messages to
/// send must not make it.
#[inline]
pub fn register() {
    match REGISTERED.get_or_make() {
        Ok(registered) => _ = registered.get_or_init(|| membarrier(REGISTER_GLOBAL_EXPEDITED)),
        Err(error) => crate::later::later!(warn: %error, "this process is not registered for membarrier"),
    }
}

/// Returns whether this process is registered.
#[inline]
pub fn is_registered() -> bool {
    REGISTERED.get().and_then(OnceLock::get) == Some(&true)
}

/// Returns whether this process can execute fences for other processes.
#[inline]
pub fn available() -> bool {
    static AVAILABLE: PerProcess<OnceLock<bool>> = PerProcess::new();
    AVAILABLE.get_or_make().is_ok_and(|available| *available.get_or_init(everywhere))
}

/// Executes a fence in every registered process. Returns false if the system refused.
#[must_use]
#[inline]
pub fn everywhere() -> bool {
    membarrier(GLOBAL_EXPEDITED)
}
