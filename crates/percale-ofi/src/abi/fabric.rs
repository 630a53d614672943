//! The common object header, the fabric object, and the commands for objects.

use std::ffi::{c_char, c_int, c_void};

use super::{fi_eq_attr, fi_info, fi_wait_attr, fid_domain, fid_ep, fid_eq, fid_pep, fid_wait};

opaque! {
    /// A device context (2.x).
    fid_xpu_ctx;
    /// An endpoint that a device drives (2.x).
    fid_xpu_ep;
    /// A completion queue that a device reads (2.x).
    fid_xpu_cq;
    /// A counter that a device reads (2.x).
    fid_xpu_cntr;
    /// The attributes of a device context (2.x).
    fi_xpu_attr;
}

structures! { STRUCTURES;
    /// The common object header.
    fid {
        /// The class of the object (`FI_CLASS_*`).
        fclass: usize,
        /// The context of the application.
        context: *mut c_void,
        /// The operations that every object has.
        ops: *mut fi_ops,
    }

    /// A fabric.
    fid_fabric {
        /// The common object header.
        fid: fid,
        /// The operations of the object.
        ops: *mut fi_ops_fabric,
        /// The API version that the application requested. libfabric's core writes it.
        api_version: u32,
    }

    /// A piece of typed memory, for atomic operations.
    fi_ioc {
        /// The address.
        addr: *mut c_void,
        /// The number of elements.
        count: usize,
    }

    /// Memory for the provider in the context of an operation.
    fi_context {
        /// Memory for the provider.
        internal: [*mut c_void; 4],
    }

    /// A larger area of memory for the provider in the context of an operation.
    fi_context2 {
        /// Memory for the provider.
        internal: [*mut c_void; 8],
    }

    /// The context of a receive that several endpoints share.
    fi_recv_context {
        /// The endpoint that received the message.
        ep: *mut fid_ep,
        /// The context of the application.
        context: *mut c_void,
    }

    /// The argument of `FI_ALIAS`.
    fi_alias {
        /// The location for the new object.
        fid: *mut *mut fid,
        /// The flags.
        flags: u64,
    }

    /// The argument of `FI_GET_VAL` and `FI_SET_VAL`.
    fi_fid_var {
        /// The name of the variable.
        name: c_int,
        /// The location of the value.
        val: *mut c_void,
    }

    /// The argument of `FI_EXPORT_FID`.
    fi_fid_export {
        /// The location for the exported object.
        fid: *mut *mut fid,
        /// Flags.
        flags: u64,
        /// The context of the application.
        context: *mut c_void,
    }

    /// The argument of `FI_GET_RAW_MR`.
    fi_mr_raw_attr {
        /// Flags.
        flags: u64,
        /// The location for the base address.
        base_addr: *mut u64,
        /// The buffer for the key.
        raw_key: *mut u8,
        /// The size of `raw_key` on input, and the size of the key on output.
        key_size: *mut usize,
    }

    /// The argument of `FI_MAP_RAW_MR`.
    fi_mr_map_raw {
        /// Flags.
        flags: u64,
        /// The base address.
        base_addr: u64,
        /// The key.
        raw_key: *mut u8,
        /// The size of the key.
        key_size: usize,
        /// The location for the 64-bit key.
        key: *mut u64,
    }

    /// The argument of `FI_GET_MR_XPU_DESC` (2.x).
    fi_mr_xpu_desc {
        /// The buffer for the descriptor.
        buf: *mut c_void,
        /// The size of the buffer on input, and of the descriptor on output.
        len: *mut usize,
        /// Flags.
        flags: u64,
        /// The context that the descriptor belongs to.
        ctx: *mut fid_xpu_ctx,
    }

    /// A parameter in the list that an application gets.
    fi_param {
        /// The environment variable.
        name: *const c_char,
        /// `FI_PARAM_*`.
        r#type: u32,
        /// The help text.
        help_string: *const c_char,
        /// The value, or null.
        value: *const c_char,
    }
}

tables! { TABLES;
    /// The operations that every object has.
    fi_ops {
        /// Closes the object. Returns -FI_EBUSY while other objects use it.
        close(fid: *mut fid) -> c_int;
        /// Binds another object to this one.
        bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int;
        /// Executes a command (`FI_GETWAIT`, ...).
        control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int;
        /// Opens a table of provider-specific operations by name.
        ops_open(fid: *mut fid, name: *const c_char, flags: u64, ops: *mut *mut c_void, context: *mut c_void) -> c_int;
        /// Formats a description of the object.
        tostr(fid: *const fid, buf: *mut c_char, len: usize) -> c_int;
        /// Replaces a table of operations by name.
        ops_set(fid: *mut fid, name: *const c_char, flags: u64, ops: *mut c_void, context: *mut c_void) -> c_int;
    }

    /// The operations of a fabric.
    fi_ops_fabric {
        /// Opens a domain.
        domain(fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain, context: *mut c_void) -> c_int;
        /// Opens a passive endpoint.
        passive_ep(fabric: *mut fid_fabric, info: *mut fi_info, pep: *mut *mut fid_pep, context: *mut c_void) -> c_int;
        /// Opens an event queue.
        eq_open(fabric: *mut fid_fabric, attr: *mut fi_eq_attr, eq: *mut *mut fid_eq, context: *mut c_void) -> c_int;
        /// Opens a wait set.
        wait_open(fabric: *mut fid_fabric, attr: *mut fi_wait_attr, waitset: *mut *mut fid_wait) -> c_int;
        /// Returns whether a thread may wait on the descriptors of the objects now.
        trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int;
        /// Opens a domain, with flags.
        domain2(
            fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain, flags: u64, context: *mut c_void,
        ) -> c_int;
    }
}

constants! { CLASSES: usize;
    FI_CLASS_UNSPEC = 0, "Nothing.";
    FI_CLASS_FABRIC = 1, "A fabric.";
    FI_CLASS_DOMAIN = 2, "A domain.";
    FI_CLASS_EP = 3, "An endpoint.";
    FI_CLASS_SEP = 4, "A scalable endpoint.";
    FI_CLASS_RX_CTX = 5, "A receive context.";
    FI_CLASS_SRX_CTX = 6, "A shared receive context.";
    FI_CLASS_TX_CTX = 7, "A transmit context.";
    FI_CLASS_STX_CTX = 8, "A shared transmit context.";
    FI_CLASS_PEP = 9, "A passive endpoint.";
    FI_CLASS_INTERFACE = 10, "An interface.";
    FI_CLASS_AV = 11, "An address vector.";
    FI_CLASS_MR = 12, "A memory region.";
    FI_CLASS_EQ = 13, "An event queue.";
    FI_CLASS_CQ = 14, "A completion queue.";
    FI_CLASS_CNTR = 15, "A counter.";
    FI_CLASS_WAIT = 16, "A wait set.";
    FI_CLASS_POLL = 17, "A poll set.";
    FI_CLASS_CONNREQ = 18, "A connection request.";
    FI_CLASS_MC = 19, "A multicast group.";
    FI_CLASS_NIC = 20, "A network interface.";
    FI_CLASS_AV_SET = 21, "A set of addresses.";
    FI_CLASS_MR_CACHE = 22, "A registration cache.";
    FI_CLASS_MEM_MONITOR = 23, "A memory monitor.";
    FI_CLASS_PEER_CQ = 24, "Another provider's completion queue.";
    FI_CLASS_PEER_SRX = 25, "Another provider's receive context.";
    FI_CLASS_LOG = 26, "A log.";
    FI_CLASS_PEER_AV = 27, "Another provider's address vector.";
    FI_CLASS_PEER_AV_SET = 28, "Another provider's set of addresses.";
    FI_CLASS_PEER_CNTR = 29, "Another provider's counter (2.x).";
    FI_CLASS_PROFILE = 30, "A profile (2.x).";
    FI_CLASS_XPU_CTX = 31, "A device's context (2.x).";
}

constants! { COMMANDS: c_int;
    FI_GETFIDFLAG = 0, "Reads an object's flags.";
    FI_SETFIDFLAG = 1, "Writes an object's flags.";
    FI_GETOPSFLAG = 2, "Reads the default flags of operations.";
    FI_SETOPSFLAG = 3, "Writes the default flags of operations.";
    FI_ALIAS = 4, "Creates an alias of an object with other flags: [`fi_alias`].";
    FI_GETWAIT = 5, "Reads the wait object.";
    FI_ENABLE = 6, "Enables an object.";
    FI_BACKLOG = 7, "Sets the maximum number of pending connection requests.";
    FI_GET_RAW_MR = 8, "Reads a raw key: [`fi_mr_raw_attr`].";
    FI_MAP_RAW_MR = 9, "Maps a raw key to a 64-bit key: [`fi_mr_map_raw`].";
    FI_UNMAP_KEY = 10, "Removes a mapped key.";
    FI_QUEUE_WORK = 11, "Queues deferred work.";
    FI_CANCEL_WORK = 12, "Cancels deferred work.";
    FI_FLUSH_WORK = 13, "Cancels all deferred work.";
    FI_REFRESH = 14, "Reports that memory of a region was mapped again: [`fi_mr_modify`](super::fi_mr_modify).";
    FI_DUP = 15, "Duplicates an object.";
    FI_GETWAITOBJ = 16, "Reads the kind of an object's wait object.";
    FI_GET_VAL = 17, "Reads a value: [`fi_fid_var`].";
    FI_SET_VAL = 18, "Writes a value: [`fi_fid_var`].";
    FI_EXPORT_FID = 19, "Exports an object: [`fi_fid_export`].";
    FI_GET_FD = 20, "Reads a descriptor (2.x).";
    FI_GET_MR_XPU_DESC = 21, "Reads a region's descriptor for a device: [`fi_mr_xpu_desc`] (2.x).";
}
