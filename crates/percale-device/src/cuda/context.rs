//! A device's primary context, and its lanes.
//!
//! A lane is a stream, and an event that is recorded after the last copy in the stream. Copies take a free lane, or a
//! new one, so that different kinds of transfers do not wait for each other. A lane is returned when its copies have
//! ended.

#![expect(unsafe_code, reason = "calls the driver; each block states its own reason")]

use std::ptr;
use std::sync::{Mutex, PoisonError};

use super::functions::{Code, DeviceHandle, Functions, NO_TIMING, NON_BLOCKING, Opaque, log_failure};
use crate::driver::DeviceError;

#[derive(Clone, Copy, Debug)]
pub(super) struct CopyStream {
    pub(super) stream: Opaque,
    pub(super) event: Opaque,
}

// SAFETY: the driver's objects may be used from any thread. A lane belongs to one transfer at a time.
unsafe impl Send for CopyStream {}

#[derive(Debug, Default)]
struct CopyStreams {
    all: Vec<CopyStream>,
    free: Vec<usize>,
}

/// The primary context of a device and its lanes.
#[derive(Debug)]
pub(super) struct PrimaryContext {
    context: Opaque,
    lanes: Mutex<CopyStreams>,
}

// SAFETY: contexts may be used from any thread, and the other fields are under locks.
unsafe impl Send for PrimaryContext {}
// SAFETY: as above.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    pub(super) fn new(functions: &Functions, device: DeviceHandle) -> Result<Self, DeviceError> {
        let mut context = ptr::null_mut();
        // SAFETY: the arguments are room for a context, and a device that the driver returned.
        let code = unsafe { (functions.retain_context)(&raw mut context, device) };
        functions.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Self { context, lanes: Mutex::default() })
    }

    /// Calls `then` while the context is current.
    pub(super) fn within<R>(
        &self,
        functions: &Functions,
        then: impl FnOnce() -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        // SAFETY: the context was retained and is never released.
        let code = unsafe { (functions.push_context)(self.context) };
        functions.check("cuCtxPushCurrent", code)?;
        let result = then();
        let mut ours: Opaque = ptr::null_mut();
        // SAFETY: the context was pushed above.
        let code: Code = unsafe { (functions.pop_context)(&raw mut ours) };
        // The call may report an earlier error of a device. Such an error does not affect the work of this call,
        // because copies that have begun are waited for.
        log_failure(functions.check("cuCtxPopCurrent", code));
        result
    }

    /// Takes a lane that is not in use. The context must be current.
    pub(super) fn take(&self, functions: &Functions) -> Result<(usize, CopyStream), DeviceError> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = lanes.free.pop() {
            return Ok((number, lanes.all[number]));
        }
        let lane = make_lane(functions)?;
        lanes.all.push(lane);
        Ok((lanes.all.len() - 1, lane))
    }

    /// Returns the lane with this number, which is in use.
    pub(super) fn lane(&self, number: usize) -> CopyStream {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).all[number]
    }

    /// Returns a lane after its copies have ended.
    pub(super) fn give_back(&self, number: usize) {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).free.push(number);
    }
}

fn make_lane(functions: &Functions) -> Result<CopyStream, DeviceError> {
    let (mut stream, mut event) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the argument is room for a stream.
    let code = unsafe { (functions.make_stream)(&raw mut stream, NON_BLOCKING) };
    functions.check("cuStreamCreate", code)?;
    // SAFETY: the argument is room for an event.
    let code = unsafe { (functions.make_event)(&raw mut event, NO_TIMING) };
    let made = functions.check("cuEventCreate", code).map(|()| CopyStream { stream, event });
    if made.is_err() {
        // SAFETY: the stream was created above. It has no work, and there is no other reference to it.
        let code = unsafe { (functions.end_stream)(stream) };
        log_failure(functions.check("cuStreamDestroy", code));
    }
    made
}
