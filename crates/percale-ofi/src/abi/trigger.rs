//! Triggered operations and deferred work.

use std::ffi::{c_int, c_void};
use std::fmt;

use super::{
    fi_context2, fi_msg, fi_msg_atomic, fi_msg_compare, fi_msg_fetch, fi_msg_rma, fi_msg_tagged, fid_cntr, fid_ep,
};

structures! { STRUCTURES;
    /// A trigger that fires when a counter has reached a value.
    fi_trigger_threshold {
        /// The counter.
        cntr: *mut fid_cntr,
        /// The value.
        threshold: usize,
    }

    /// A variable that a device writes to fire a trigger.
    fi_trigger_var {
        /// The data type (`FI_UINT8`, ...).
        datatype: u32,
        /// The number of values.
        count: c_int,
        /// The address.
        addr: *mut c_void,
        /// The value to write: up to 64 bits in the low bytes, or a pointer.
        value: u64,
    }

    /// A trigger that fires when a device writes variables.
    fi_trigger_xpu {
        /// The number of variables.
        count: c_int,
        /// The kind of device, `FI_HMEM_*`.
        iface: u32,
        /// The device. Smaller integer types are in the low bytes.
        device: u64,
        /// The variables.
        var: *mut fi_trigger_var,
    }

    /// The context of a triggered operation, which contains its condition. It has the size of
    /// [`fi_context`](super::fi_context).
    fi_triggered_context {
        /// `FI_TRIGGER_*`.
        event_type: u32,
        /// The condition of the trigger.
        trigger: fi_trigger_when<3>,
    }

    /// Like [`fi_triggered_context`], with the size of [`fi_context2`].
    fi_triggered_context2 {
        /// `FI_TRIGGER_*`.
        event_type: u32,
        /// The condition of the trigger.
        trigger: fi_trigger_when<7>,
    }

    /// A deferred message.
    fi_op_msg {
        /// The endpoint.
        ep: *mut fid_ep,
        /// The message.
        msg: fi_msg,
        /// The flags.
        flags: u64,
    }

    /// A deferred tagged message.
    fi_op_tagged {
        /// The endpoint.
        ep: *mut fid_ep,
        /// The message.
        msg: fi_msg_tagged,
        /// The flags.
        flags: u64,
    }

    /// A deferred read or write.
    fi_op_rma {
        /// The endpoint.
        ep: *mut fid_ep,
        /// The access.
        msg: fi_msg_rma,
        /// The flags.
        flags: u64,
    }

    /// A deferred atomic operation.
    fi_op_atomic {
        /// The endpoint.
        ep: *mut fid_ep,
        /// The operation.
        msg: fi_msg_atomic,
        /// The flags.
        flags: u64,
    }

    /// A deferred fetching operation.
    fi_op_fetch_atomic {
        /// The endpoint.
        ep: *mut fid_ep,
        /// The operation.
        msg: fi_msg_atomic,
        /// The result buffers.
        fetch: fi_msg_fetch,
        /// The flags.
        flags: u64,
    }

    /// A deferred comparing operation.
    fi_op_compare_atomic {
        /// The endpoint.
        ep: *mut fid_ep,
        /// The operation.
        msg: fi_msg_atomic,
        /// The result buffers.
        fetch: fi_msg_fetch,
        /// The comparison operands.
        compare: fi_msg_compare,
        /// The flags.
        flags: u64,
    }

    /// A deferred change of a counter.
    fi_op_cntr {
        /// The counter.
        cntr: *mut fid_cntr,
        /// The value to set or to add.
        value: u64,
    }

    /// Work that begins when a counter has reached a value.
    fi_deferred_work {
        /// Memory for the provider while the work is queued.
        context: fi_context2,
        /// The value.
        threshold: u64,
        /// The counter.
        triggering_cntr: *mut fid_cntr,
        /// A counter that counts the work's completion, or null.
        completion_cntr: *mut fid_cntr,
        /// `FI_OP_*`.
        op_type: u32,
        /// The operation.
        op: fi_deferred_op,
    }
}

/// The condition of a triggered operation. The union has `N` words.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_trigger_when<const N: usize> {
    /// The condition for `FI_TRIGGER_THRESHOLD`.
    pub threshold: fi_trigger_threshold,
    /// The condition for `FI_TRIGGER_XPU`.
    pub xpu: fi_trigger_xpu,
    /// Memory for the provider.
    pub internal: [*mut c_void; N],
}

impl<const N: usize> fmt::Debug for fi_trigger_when<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fi_trigger_when")
    }
}

/// A deferred operation. `op_type` selects the member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_deferred_op {
    /// `FI_OP_SEND`, `FI_OP_RECV`.
    pub msg: *mut fi_op_msg,
    /// `FI_OP_TSEND`, `FI_OP_TRECV`.
    pub tagged: *mut fi_op_tagged,
    /// `FI_OP_READ`, `FI_OP_WRITE`.
    pub rma: *mut fi_op_rma,
    /// `FI_OP_ATOMIC`.
    pub atomic: *mut fi_op_atomic,
    /// `FI_OP_FETCH_ATOMIC`.
    pub fetch_atomic: *mut fi_op_fetch_atomic,
    /// `FI_OP_COMPARE_ATOMIC`.
    pub compare_atomic: *mut fi_op_compare_atomic,
    /// `FI_OP_CNTR_SET`, `FI_OP_CNTR_ADD`.
    pub cntr: *mut fi_op_cntr,
}

impl fmt::Debug for fi_deferred_op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fi_deferred_op")
    }
}

constants! { CONSTANTS: u32;
    FI_TRIGGER_THRESHOLD = 0, "A counter reaches a threshold.";
    FI_TRIGGER_XPU = 1, "A device writes a variable.";
    FI_OP_RECV = 0, "Receive.";
    FI_OP_SEND = 1, "Send.";
    FI_OP_TRECV = 2, "Receive, tagged.";
    FI_OP_TSEND = 3, "Send, tagged.";
    FI_OP_READ = 4, "Read.";
    FI_OP_WRITE = 5, "Write.";
    FI_OP_ATOMIC = 6, "Atomic.";
    FI_OP_FETCH_ATOMIC = 7, "Atomic, fetching.";
    FI_OP_COMPARE_ATOMIC = 8, "Atomic, comparing.";
    FI_OP_CNTR_SET = 9, "Set a counter.";
    FI_OP_CNTR_ADD = 10, "Add to a counter.";
}
