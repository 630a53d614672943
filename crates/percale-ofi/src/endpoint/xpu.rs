//! Operations that a device's store begins (fi_trigger(3), FI_TRIGGER_XPU; fi_endpoint(3), FI_OPT_XPU_TRIGGER).
//!
//! An operation needs one variable of 64 bits, in the host's memory. Devices are named as memory is (`FI_HMEM_*`): a thread that stores is
//! `FI_HMEM_SYSTEM`, device 0, and others are refused.

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;

use percale::trigger::Operation;

use super::port::Port;
use super::{Endpoint, answer};
use crate::abi::{
    FI_EOPNOTSUPP, FI_ETOOSMALL, FI_HMEM_SYSTEM, FI_LOG_EP_CTRL, FI_LOG_EP_DATA, FI_UINT64, fi_trigger_var,
    fi_trigger_xpu, fi_triggered_context,
};
use crate::log;

/// Variables that an operation needs.
const NEEDED: i32 = 1;

/// Whether there are variables for such a device.
const fn is_known(wanted: &fi_trigger_xpu) -> bool {
    wanted.iface == FI_HMEM_SYSTEM && wanted.device == 0
}

impl Endpoint {
    /// FI_OPT_XPU_TRIGGER: how many variables an operation needs, and of which type (XPU-005 to XPU-007).
    ///
    /// # Safety
    /// `value` is as fi_endpoint(3) has it.
    pub(super) unsafe fn xpu_needs(&self, value: *mut c_void, len: *mut usize) -> i32 {
        // SAFETY: the client says how much room there is.
        if unsafe { len.read() } < size_of::<fi_trigger_xpu>() {
            return -FI_ETOOSMALL;
        }
        // SAFETY: then it is this structure.
        let asked = unsafe { &mut *value.cast::<fi_trigger_xpu>() };
        if !self.xpu || !is_known(asked) {
            log::note!(
                FI_LOG_EP_CTRL,
                "FI_OPT_XPU_TRIGGER: only FI_HMEM_SYSTEM, device 0, and with the capability FI_XPU"
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

    /// Posts an operation that begins when its variable was written, and tells the client which that is (XPU-008 to XPU-016).
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
        if !is_known(&wanted) {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: there are no variables but for FI_HMEM_SYSTEM, device 0");
            return -(FI_EOPNOTSUPP as isize);
        }
        if wanted.count < NEEDED {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU: an operation needs {NEEDED} variable");
            return -(FI_ETOOSMALL as isize);
        }
        if wanted.var.is_null() {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_XPU needs room for its variable");
            return -(libc::EINVAL as isize);
        }
        let variable = self.setup.domain().percale.variable();
        let told =
            fi_trigger_var { datatype: FI_UINT64, count: 1, addr: variable.address().cast(), value: variable.value() };
        // SAFETY: the client keeps the memory until the operation has completed.
        let posted = unsafe { port.when_written(operation, &variable) };
        if posted.is_ok() {
            // Nobody can write the variable before this call has returned, so the operation waits, and its context is there.
            // SAFETY: there is room for one.
            unsafe { wanted.var.write(told) };
            let count = offset_of!(fi_triggered_context, trigger) + offset_of!(fi_trigger_xpu, count);
            // SAFETY: within the context, which is the provider's now.
            unsafe { ptr::write_unaligned(context.byte_add(count).cast::<i32>(), NEEDED) };
        }
        answer(posted)
    }
}
