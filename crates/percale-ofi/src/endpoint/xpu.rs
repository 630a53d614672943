//! Operations that begin when a device writes a variable (fi_trigger(3), FI_TRIGGER_XPU; fi_endpoint(3), FI_OPT_XPU_TRIGGER).
//!
//! An operation needs one variable of 64 bits, in the host's memory, which is mapped for the device. Devices have the same names as kinds of memory
//! (`FI_HMEM_*`): a thread that writes is `FI_HMEM_SYSTEM`, device 0; CUDA devices are available if their driver is; others are rejected.

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;

use percale::device::Device;
use percale::trigger::Operation;

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

/// Returns the device that writes; `None`: a thread. Fails if there are no variables for such a device.
fn writer(wanted: &fi_trigger_xpu) -> Result<Option<Device>, i32> {
    if wanted.iface == FI_HMEM_SYSTEM {
        return if wanted.device == 0 { Ok(None) } else { Err(FI_EOPNOTSUPP) };
    }
    devices::device(wanted.iface, wanted.device).map(Some).map_err(|error| {
        log::note!(FI_LOG_EP_CTRL, "no triggers of such a device: {error}");
        FI_EOPNOTSUPP
    })
}

impl Endpoint {
    /// FI_OPT_XPU_TRIGGER: how many variables an operation needs, and of which type (XPU-005 to XPU-007).
    ///
    /// # Safety
    /// `value` is as fi_endpoint(3) has it.
    pub(super) unsafe fn xpu_needs(&self, value: *mut c_void, len: *mut usize) -> i32 {
        // SAFETY: the client says how much room there is.
        if unsafe { len.replace(size_of::<fi_trigger_xpu>()) } < size_of::<fi_trigger_xpu>() {
            return -FI_ETOOSMALL;
        }
        // SAFETY: then it is this structure.
        let asked = unsafe { &mut *value.cast::<fi_trigger_xpu>() };
        if !self.xpu || writer(asked).is_err() {
            log::note!(
                FI_LOG_EP_CTRL,
                "FI_OPT_XPU_TRIGGER: only of devices that are here, and with the capability FI_XPU"
            );
            return -FI_EOPNOTSUPP;
        }
        if asked.count > 0 && !asked.var.is_null() {
            // SAFETY: there is room for so many.
            let first = unsafe { &mut *asked.var };
            (first.datatype, first.count) = (FI_UINT64, 1);
        }
        asked.count = NEEDED;
        0
    }

    /// Posts an operation that begins when its variable is written, and writes the variable's description to the client's context (XPU-008 to
    /// XPU-016).
    ///
    /// # Safety
    /// The context is as fi_trigger(3) has it, and so is the operation's memory.
    pub(super) unsafe fn post_xpu(&self, port: &Port, operation: &Operation, context: *mut c_void) -> isize {
        let context = context.cast::<fi_triggered_context>();
        // SAFETY: with FI_TRIGGER_XPU this member is the one that is meant; read as a whole, as it need not be aligned.
        let wanted = unsafe { context.read_unaligned().trigger.xpu };
        if !self.xpu {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: the endpoint was opened without FI_XPU_TRIGGER");
            return -(libc::ENOSYS as isize);
        }
        let writer = match writer(&wanted) {
            Ok(writer) => writer,
            Err(code) => {
                log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: there are no variables for interface {}", wanted.iface);
                return -(code as isize);
            }
        };
        // The device that begins it is where its memory is (XPU-004).
        if !operation.devices().is_ok_and(|devices| devices.iter().all(|device| Some(*device) == writer)) {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: the operation's memory is another device's");
            return -(libc::EINVAL as isize);
        }
        if wanted.count < NEEDED {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: an operation needs {NEEDED} variable");
            return -(FI_ETOOSMALL as isize);
        }
        if wanted.var.is_null() {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU needs room for its variable");
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
        let told = fi_trigger_var { datatype: FI_UINT64, count: 1, addr, value: variable.value() };
        // SAFETY: the client keeps the memory until the operation has completed.
        let posted = unsafe { port.when_written(operation, &variable) };
        if posted.is_ok() {
            // The client learns the variable's address only when this call returns, so the operation still waits, and its context is there.
            // SAFETY: there is room for one.
            unsafe { wanted.var.write(told) };
            let count = offset_of!(fi_triggered_context, trigger) + offset_of!(fi_trigger_xpu, count);
            // SAFETY: within the context, which is the provider's now.
            unsafe { ptr::write_unaligned(context.byte_add(count).cast::<i32>(), NEEDED) };
        }
        answer(posted)
    }
}
