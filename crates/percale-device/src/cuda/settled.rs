//! Waits for the work that the application's synchronous copies have left in progress.
//!
//! cuMemcpyHtoD from pageable memory may return while its last bytes, at most 64 KiB, are still being copied to the
//! device. cuMemcpyDtoD and cuMemset do not wait for the device at all. The legacy default stream orders them before
//! the application's next call, but percale's streams are CU_STREAM_NON_BLOCKING and do not wait for that stream. On an
//! H200, half of 2,000 copies of 64 KiB that followed a cuMemcpyHtoD to the same memory read old bytes, and so did 10
//! to 27 copies of 1 MiB. Conversely, the late bytes may overwrite the bytes that a transfer has written.
//!
//! Therefore, before percale's first copy from or to an allocation, and before it exports the allocation to another
//! process or device:
//!
//! 1. It sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS. From then on, synchronous calls return when their bytes are in the
//!    allocation.
//! 2. It waits for the legacy stream of the device's primary context, so that earlier calls are complete too.
//! 3. It stores the allocation's buffer number, which no other allocation of the process ever has. Later copies query
//!    the number (cuPointerGetAttributes) and look it up, because the address alone may belong to another allocation by
//!    then.
//!
//! **Pools and mapped memory.** The attribute has no effect on memory of a pool (cuMemAllocAsync), and is refused for
//! memory that is mapped (cuMemMap). The number of such memory is never stored. Each copy waits for the legacy stream,
//! which takes about 2 µs on an H200.
//!
//! **Captures.** While a graph is captured on a blocking stream of the context, it is not possible to wait for the
//! legacy stream, and an attempt would invalidate the graph. So no attempt is made, and the number is not stored. If
//! the attribute was set, the copy continues: according to its reference, cuPointerSetAttribute returns after pending
//! synchronous operations. Otherwise there is no evidence that the bytes have arrived, and the copy is refused. Other
//! captures have no effect, because the thread's capture mode is relaxed during the calls.
//!
//! **Not covered.** The application has to wait for its asynchronous work. The same applies to synchronous calls in a
//! context other than the primary one, if the memory belongs to a pool or is mapped.
//!
//! The wait includes kernels that the application has started on the legacy stream. If a kernel there waits for a
//! transfer, the transfer needs memory that was registered or used before the kernel was started. (Such a kernel would
//! also delay the application's own synchronous copies.)

#![expect(unsafe_code, reason = "calls the driver; each block states its own reason")]

use std::collections::HashSet;
use std::ptr;
use std::sync::{PoisonError, RwLock};

use super::functions::{Address, CAPTURE_RELAXED, Functions, LEGACY, Opaque, attribute, code, log_failure};
use crate::driver::DeviceError;

/// The maximum number of stored allocations. Numbers of freed allocations are never used again, and they cannot be
/// identified. So when the set is full, all of it is dropped, and allocations in use are settled once more.
const MOST: usize = 1 << 16;

const WAIT: &str = "cuStreamSynchronize";

/// The allocations in which synchronous calls complete their work before they return.
#[derive(Debug, Default)]
pub(super) struct Settled(RwLock<HashSet<u64>>);

impl Settled {
    /// Returns whether the allocation with this buffer number needs no wait.
    pub(super) fn contains(&self, buffer: u64) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&buffer)
    }

    /// Waits for synchronous calls that have returned, and stores the allocation's number if later calls need no wait.
    /// The primary context of the device must be current.
    ///
    /// # Errors
    /// The error that the driver reports, which may be an error of the application's earlier work. If the wait would
    /// invalidate a graph that is being captured, an error with the driver's code for that.
    pub(super) fn settle(&self, functions: &Functions, at: Address, buffer: u64) -> Result<(), DeviceError> {
        let _relaxed = Relaxed::enter(functions);
        let is_synchronous = make_synchronous(functions, at);
        match wait(functions) {
            code if !code::CAPTURING.contains(&code) => functions.check(WAIT, code)?,
            _ if is_synchronous => return Ok(()),
            code => return Err(capturing(code)),
        }
        if is_synchronous {
            self.insert(buffer);
        }
        Ok(())
    }

    fn insert(&self, buffer: u64) {
        // Memory without a number could not be distinguished from other memory.
        if buffer == 0 {
            return;
        }
        let mut settled = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if settled.len() >= MOST {
            settled.clear();
        }
        settled.insert(buffer);
    }
}

fn capturing(code: i32) -> DeviceError {
    let text = "a graph is being captured on a blocking stream, so copies to this memory that are under way cannot be waited for; capture on \
                streams created with CU_STREAM_NON_BLOCKING, or use memory from cuMemAlloc";
    DeviceError::Driver { function: WAIT, code, text: text.to_owned(), memory: false }
}

/// Makes synchronous calls return only when their bytes are in the allocation. Returns false if the driver cannot, as
/// for pools and mapped memory.
fn make_synchronous(functions: &Functions, at: Address) -> bool {
    let Some(set_attribute) = functions.set_pointer_attribute else { return false };
    if is_pool(functions, at) {
        return false;
    }
    let yes: u32 = 1;
    // SAFETY: the attribute is an unsigned int, and the driver checks whether the address belongs to its memory.
    let code = unsafe { set_attribute((&raw const yes).cast(), attribute::SYNC_MEMOPS, at) };
    code == code::SUCCESS
}

/// Returns whether memory belongs to a pool. Drivers that do not support the query have no pools.
fn is_pool(functions: &Functions, at: Address) -> bool {
    let mut pool: Opaque = ptr::null_mut();
    let (requested, room) = ([attribute::MEMPOOL_HANDLE], [(&raw mut pool).cast()]);
    // SAFETY: the arguments are one attribute, and room for its value, which is a handle.
    let code = unsafe { (functions.pointer_attributes)(1, requested.as_ptr(), room.as_ptr(), at) };
    code == code::SUCCESS && !pool.is_null()
}

/// Waits for the legacy stream of the current context, unless that would invalidate a graph. Returns the driver's code.
fn wait(functions: &Functions) -> i32 {
    if let Some(is_capturing) = functions.is_capturing {
        let mut status = 0;
        // SAFETY: the argument is room for a status. For this stream the call reports a capture on a blocking stream,
        // and leaves the capture valid.
        let code = unsafe { is_capturing(LEGACY, &raw mut status) };
        if code::CAPTURING.contains(&code) {
            return code;
        }
    }
    // SAFETY: this is a predefined handle of the driver.
    unsafe { (functions.finish_stream)(LEGACY) }
}

/// Allows the calling thread to make calls that a capture by another thread prohibits, until this object is dropped.
/// None of the calls made here takes part in the capture.
struct Relaxed<'a> {
    functions: &'a Functions,
    before: Option<i32>,
}

impl<'a> Relaxed<'a> {
    fn enter(functions: &'a Functions) -> Self {
        let before = functions.exchange_capture_mode.and_then(|exchange| {
            let mut mode = CAPTURE_RELAXED;
            // SAFETY: the argument is a mode, and room for the previous mode.
            let code = unsafe { exchange(&raw mut mode) };
            (code == code::SUCCESS).then_some(mode)
        });
        Self { functions, before }
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let (Some(exchange), Some(mut mode)) = (self.functions.exchange_capture_mode, self.before) {
            // SAFETY: as above.
            let code = unsafe { exchange(&raw mut mode) };
            log_failure(self.functions.check("cuThreadExchangeStreamCaptureMode", code));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements: HMEM-003.
    #[test]
    fn remembered_allocations_are_bounded() {
        let settled = Settled::default();
        let len = || settled.0.read().unwrap().len();
        settled.insert(0);
        assert!(!settled.contains(0), "memory without an id is not recorded");
        for buffer in 1..=MOST as u64 {
            settled.insert(buffer);
        }
        assert!(len() == MOST && settled.contains(1) && settled.contains(MOST as u64));
        settled.insert(MOST as u64 + 1);
        assert!(len() == 1 && !settled.contains(1) && settled.contains(MOST as u64 + 1));
    }
}
