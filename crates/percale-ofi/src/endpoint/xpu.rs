//! Operations that begin when a device writes a variable (fi_trigger(3), FI_TRIGGER_XPU; fi_endpoint(3),
//! FI_OPT_XPU_TRIGGER).
//!
//! An operation needs one 64-bit variable in host memory, which is mapped for the device. Devices are named like kinds
//! of memory (`FI_HMEM_*`): a thread that writes the variable is `FI_HMEM_SYSTEM`, device 0. CUDA devices are available
//! if their driver is available. Other devices are rejected.

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;

use percale::device::Device;
use percale::trigger::RawOperation;

use super::{Endpoint, answer};
use crate::abi::{
    FI_EOPNOTSUPP, FI_ETOOSMALL, FI_HMEM_SYSTEM, FI_LOG_EP_CTRL, FI_LOG_EP_DATA, FI_UINT64, fi_trigger_var,
    fi_trigger_xpu, fi_triggered_context,
};
use crate::log;
use crate::port::Port;
use crate::registration::devices;

/// The number of variables that an operation needs.
const NEEDED: i32 = 1;

/// Returns the device that writes the variable, or `None` for a thread. Fails if variables are not supported for the
/// device.
fn writer(wanted: &fi_trigger_xpu) -> Result<Option<Device>, i32> {
    if wanted.iface == FI_HMEM_SYSTEM {
        return if wanted.device == 0 { Ok(None) } else { Err(FI_EOPNOTSUPP) };
    }
    devices::device(wanted.iface, wanted.device).map(Some).map_err(|error| {
        log::note!(FI_LOG_EP_CTRL, "triggers of this device are not available: {error}");
        FI_EOPNOTSUPP
    })
}

impl Endpoint {
    /// Implements FI_OPT_XPU_TRIGGER: returns the number and the type of the variables that an operation needs (XPU-005
    /// to XPU-007).
    ///
    /// # Safety
    /// `value` meets the requirements of fi_endpoint(3).
    pub(super) unsafe fn xpu_needs(&self, value: *mut c_void, len: *mut usize) -> i32 {
        // SAFETY: the client passed the size of its buffer.
        if unsafe { len.replace(size_of::<fi_trigger_xpu>()) } < size_of::<fi_trigger_xpu>() {
            return -FI_ETOOSMALL;
        }
        // SAFETY: the check above identifies this structure.
        let requested = unsafe { &mut *value.cast::<fi_trigger_xpu>() };
        if !self.xpu || writer(requested).is_err() {
            log::note!(FI_LOG_EP_CTRL, "FI_OPT_XPU_TRIGGER: needs an available device and the capability FI_XPU");
            return -FI_EOPNOTSUPP;
        }
        if requested.count > 0 && !requested.var.is_null() {
            // SAFETY: the client passed an array of `requested.count` entries, which is not empty.
            let first = unsafe { &mut *requested.var };
            (first.datatype, first.count) = (FI_UINT64, 1);
        }
        requested.count = NEEDED;
        0
    }

    /// Posts an operation that begins when its variable is written. Writes the description of the variable to the
    /// client's context (XPU-008 to XPU-016).
    ///
    /// # Safety
    /// The context and the operation's memory meet the requirements of fi_trigger(3).
    pub(super) unsafe fn post_xpu(&self, port: &Port, operation: &RawOperation, context: *mut c_void) -> isize {
        let context = context.cast::<fi_triggered_context>();
        // SAFETY: with FI_TRIGGER_XPU this member of the union is the valid one. The structure is read as a whole
        // because it may be unaligned.
        let wanted = unsafe { context.read_unaligned().trigger.xpu };
        if !self.xpu {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: the endpoint was opened without FI_XPU_TRIGGER");
            return -(libc::ENOSYS as isize);
        }
        let writer = match writer(&wanted) {
            Ok(writer) => writer,
            Err(code) => {
                log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: interface {} is not supported", wanted.iface);
                return -(code as isize);
            }
        };
        // The memory of the operation must be on the device that begins it (XPU-004).
        if !operation.devices().is_ok_and(|devices| devices.iter().all(|device| Some(*device) == writer)) {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: the memory of the operation belongs to another device");
            return -(libc::EINVAL as isize);
        }
        if wanted.count < NEEDED {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: an operation needs {NEEDED} variable");
            return -(FI_ETOOSMALL as isize);
        }
        if wanted.var.is_null() {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: the array for the variable is missing or too short");
            return -(libc::EINVAL as isize);
        }
        let domain = &self.setup.domain().percale;
        let variable = match writer.map(|device| domain.device_variable(device)).transpose() {
            Ok(variable) => variable.unwrap_or_else(|| domain.variable()),
            Err(error) => {
                log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: {error}");
                return -(error.errno() as isize);
            }
        };
        let addr = match variable.device_address() {
            Some(address) => ptr::with_exposed_provenance_mut(address as usize),
            None => variable.address().cast(),
        };
        let reported = fi_trigger_var { datatype: FI_UINT64, count: 1, addr, value: variable.value() };
        // SAFETY: the client keeps the memory valid until the operation has completed.
        let posted = unsafe { port.when_written(operation, &variable) };
        if posted.is_ok() {
            // The client gets the address of the variable only when this call returns. Until then the operation waits,
            // and its context is valid.
            // SAFETY: the client passed an array with at least one entry.
            unsafe { wanted.var.write(reported) };
            let count = offset_of!(fi_triggered_context, trigger) + offset_of!(fi_trigger_xpu, count);
            // SAFETY: the field is inside the context, which belongs to the provider now.
            unsafe { ptr::write_unaligned(context.byte_add(count).cast::<i32>(), NEEDED) };
        }
        answer(posted)
    }
}
