//! Event queues, completion queues, counters, wait sets and poll sets.

use std::ffi::{c_char, c_int, c_void};

use super::{fi_addr_t, fi_info, fid, fid_t, fid_xpu_cntr, fid_xpu_cq, fid_xpu_ctx};

structures! { STRUCTURES;
    /// The attributes of a wait set.
    fi_wait_attr {
        /// `FI_WAIT_*`.
        wait_obj: u32,
        /// Flags.
        flags: u64,
    }

    /// A wait set.
    fid_wait {
        /// The common object header.
        fid: fid,
        /// The operations of the object.
        ops: *mut fi_ops_wait,
    }

    /// A wait object: mutex and condition.
    fi_mutex_cond {
        /// The mutex.
        mutex: *mut libc::pthread_mutex_t,
        /// The condition.
        cond: *mut libc::pthread_cond_t,
    }

    /// A wait object: descriptors.
    fi_wait_pollfd {
        /// A counter that changes when the descriptors change.
        change_index: u64,
        /// The capacity of `fd` on input, and the number of descriptors on output.
        nfds: usize,
        /// The descriptors.
        fd: *mut libc::pollfd,
    }

    /// The attributes of a poll set.
    fi_poll_attr {
        /// Flags.
        flags: u64,
    }

    /// A poll set.
    fid_poll {
        /// The common object header.
        fid: fid,
        /// The operations of the object.
        ops: *mut fi_ops_poll,
    }

    /// The attributes of an event queue.
    fi_eq_attr {
        /// The number of entries.
        size: usize,
        /// Flags. With `FI_WRITE` the application may write events.
        flags: u64,
        /// `FI_WAIT_*`.
        wait_obj: u32,
        /// The interrupt vector, or the processor with `FI_AFFINITY`.
        signaling_vector: c_int,
        /// The wait set, with `FI_WAIT_SET`.
        wait_set: *mut fid_wait,
    }

    /// An event.
    fi_eq_entry {
        /// The object that the event refers to.
        fid: fid_t,
        /// The context of the object.
        context: *mut c_void,
        /// Event-specific data.
        data: u64,
    }

    /// An event that is an error.
    fi_eq_err_entry {
        /// The object that the event refers to.
        fid: fid_t,
        /// The context of the object.
        context: *mut c_void,
        /// Event-specific data.
        data: u64,
        /// The positive error code.
        err: c_int,
        /// The provider's error code.
        prov_errno: c_int,
        /// Error data.
        err_data: *mut c_void,
        /// The size of the error data in bytes.
        err_data_size: usize,
    }

    /// A connection event, followed by connection data.
    fi_eq_cm_entry {
        /// The object that the event refers to.
        fid: fid_t,
        /// The info of a connection request. The reader of the event frees it.
        info: *mut fi_info,
        /// The connection data.
        data: [u8; 0],
    }

    /// An event queue.
    fid_eq {
        /// The common object header.
        fid: fid,
        /// The operations of the object.
        ops: *mut fi_ops_eq,
    }

    /// A completion, `FI_CQ_FORMAT_CONTEXT`.
    fi_cq_entry {
        /// The context of the operation.
        op_context: *mut c_void,
    }

    /// A completion, `FI_CQ_FORMAT_MSG`.
    fi_cq_msg_entry {
        /// The context of the operation.
        op_context: *mut c_void,
        /// Flags that describe the operation.
        flags: u64,
        /// The number of received bytes.
        len: usize,
    }

    /// A completion, `FI_CQ_FORMAT_DATA`.
    fi_cq_data_entry {
        /// The context of the operation.
        op_context: *mut c_void,
        /// Flags that describe the operation.
        flags: u64,
        /// The number of received bytes.
        len: usize,
        /// The address of the data in a multi-receive buffer.
        buf: *mut c_void,
        /// Remote completion data.
        data: u64,
    }

    /// A completion, `FI_CQ_FORMAT_TAGGED`.
    fi_cq_tagged_entry {
        /// The context of the operation.
        op_context: *mut c_void,
        /// Flags that describe the operation.
        flags: u64,
        /// The number of received bytes.
        len: usize,
        /// The address of the data in a multi-receive buffer.
        buf: *mut c_void,
        /// Remote completion data.
        data: u64,
        /// The sender's tag.
        tag: u64,
    }

    /// A completion with an error. `err_data_size` exists since 1.5, and `src_addr` since API version 1.20.
    fi_cq_err_entry {
        /// The context of the operation.
        op_context: *mut c_void,
        /// Flags that describe the operation.
        flags: u64,
        /// The number of received bytes.
        len: usize,
        /// The address of the data in a multi-receive buffer.
        buf: *mut c_void,
        /// Remote completion data.
        data: u64,
        /// The sender's tag.
        tag: u64,
        /// The number of bytes that did not fit.
        olen: usize,
        /// The positive error code.
        err: c_int,
        /// The provider's error code.
        prov_errno: c_int,
        /// Error data. Since 1.5, the caller's buffer if `err_data_size` is not 0.
        err_data: *mut c_void,
        /// The size of the buffer on input, and of the error data on output.
        err_data_size: usize,
        /// The source (in 2.x headers, since API version 1.20). Not written for an older caller.
        src_addr: fi_addr_t,
    }

    /// The attributes of a completion queue. Before 2.x the structure ends with `wait_set`.
    fi_cq_attr {
        /// The number of entries.
        size: usize,
        /// Flags.
        flags: u64,
        /// `FI_CQ_FORMAT_*`.
        format: u32,
        /// `FI_WAIT_*`.
        wait_obj: u32,
        /// The interrupt vector, or the processor with `FI_AFFINITY`.
        signaling_vector: c_int,
        /// `FI_CQ_COND_*`.
        wait_cond: u32,
        /// The wait set, with `FI_WAIT_SET`.
        wait_set: *mut fid_wait,
        /// A device context (2.x).
        xpu_ctx: *mut fid_xpu_ctx,
    }

    /// A completion queue.
    fid_cq {
        /// The common object header.
        fid: fid,
        /// The operations of the object.
        ops: *mut fi_ops_cq,
    }

    /// The attributes of a counter. Before 2.x the structure ends with `flags`.
    fi_cntr_attr {
        /// `FI_CNTR_EVENTS_*`.
        events: u32,
        /// `FI_WAIT_*`.
        wait_obj: u32,
        /// The wait set, with `FI_WAIT_SET`.
        wait_set: *mut fid_wait,
        /// Flags.
        flags: u64,
        /// A device context (2.x).
        xpu_ctx: *mut fid_xpu_ctx,
    }

    /// A counter.
    fid_cntr {
        /// The common object header.
        fid: fid,
        /// The operations of the object.
        ops: *mut fi_ops_cntr,
    }
}

tables! { TABLES;
    /// The operations of a wait set. Timeouts are in milliseconds; a negative value waits without a limit.
    fi_ops_wait {
        /// Waits for any member.
        wait(waitset: *mut fid_wait, timeout: c_int) -> c_int;
    }

    /// The operations of a poll set.
    fi_ops_poll {
        /// Makes progress on all members, and returns the contexts of those with events.
        poll(pollset: *mut fid_poll, context: *mut *mut c_void, count: c_int) -> c_int;
        /// Adds a member.
        poll_add(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
        /// Removes a member.
        poll_del(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
    }

    /// The operations of an event queue.
    fi_ops_eq {
        /// Reads an event.
        read(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize;
        /// Reads an error.
        readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize;
        /// Writes an event.
        write(eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize, flags: u64) -> isize;
        /// Waits for an event.
        sread(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int, flags: u64) -> isize;
        /// Returns the text for a provider's error code.
        strerror(
            eq: *mut fid_eq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
        ) -> *const c_char;
    }

    /// The operations of a completion queue.
    fi_ops_cq {
        /// Reads completions. Returns their number, -FI_EAGAIN, or -FI_EAVAIL.
        read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize;
        /// Like `read`, with the source of each completion.
        readfrom(cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t) -> isize;
        /// Reads an error.
        readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize;
        /// Waits for completions.
        sread(cq: *mut fid_cq, buf: *mut c_void, count: usize, cond: *const c_void, timeout: c_int) -> isize;
        /// Like `sread`, with the source of each completion.
        sreadfrom(
            cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t, cond: *const c_void, timeout: c_int,
        ) -> isize;
        /// Wakes up a waiting thread.
        signal(cq: *mut fid_cq) -> c_int;
        /// Returns the text for a provider's error code.
        strerror(
            cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
        ) -> *const c_char;
        /// Exports the object to a device (2.x). libfabric calls it without a check for null.
        export_xpu(cq: *mut fid_cq, flags: u64, xpu_cq: *mut fid_xpu_cq) -> c_int;
    }

    /// The operations of a counter.
    fi_ops_cntr {
        /// Returns the value.
        read(cntr: *mut fid_cntr) -> u64;
        /// Returns the number of errors.
        readerr(cntr: *mut fid_cntr) -> u64;
        /// Adds to the value.
        add(cntr: *mut fid_cntr, value: u64) -> c_int;
        /// Sets the value.
        set(cntr: *mut fid_cntr, value: u64) -> c_int;
        /// Waits for a value. Returns -FI_EAVAIL if errors are added in the meantime.
        wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int;
        /// Adds to the number of errors.
        adderr(cntr: *mut fid_cntr, value: u64) -> c_int;
        /// Sets the number of errors.
        seterr(cntr: *mut fid_cntr, value: u64) -> c_int;
        /// Exports the object to a device (2.x). libfabric calls it without a check for null.
        export_xpu(cntr: *mut fid_cntr, flags: u64, xpu_cntr: *mut fid_xpu_cntr) -> c_int;
    }
}

constants! { CONSTANTS: u32;
    FI_WAIT_NONE = 0, "Waits: never.";
    FI_WAIT_UNSPEC = 1, "Waits: in the library's calls only.";
    FI_WAIT_SET = 2, "Waits: in a wait set.";
    FI_WAIT_FD = 3, "Waits: on a descriptor.";
    FI_WAIT_MUTEX_COND = 4, "Waits: on a condition variable.";
    FI_WAIT_YIELD = 5, "Waits: yielding the processor.";
    FI_WAIT_POLLFD = 6, "Waits: on several descriptors.";
    FI_NOTIFY = 0, "Event: a notification about an object.";
    FI_CONNREQ = 1, "Event: a connection request.";
    FI_CONNECTED = 2, "Event: connected.";
    FI_SHUTDOWN = 3, "Event: disconnected.";
    FI_MR_COMPLETE = 4, "Event: a registration ended.";
    FI_AV_COMPLETE = 5, "Event: an insertion ended.";
    FI_JOIN_COMPLETE = 6, "Event: a join ended.";
    FI_CQ_FORMAT_UNSPEC = 0, "Completions: any format.";
    FI_CQ_FORMAT_CONTEXT = 1, "Completions: [`fi_cq_entry`].";
    FI_CQ_FORMAT_MSG = 2, "Completions: [`fi_cq_msg_entry`].";
    FI_CQ_FORMAT_DATA = 3, "Completions: [`fi_cq_data_entry`].";
    FI_CQ_FORMAT_TAGGED = 4, "Completions: [`fi_cq_tagged_entry`].";
    FI_CQ_COND_NONE = 0, "Waits end with any completion.";
    FI_CQ_COND_THRESHOLD = 1, "Waits end with this many completions.";
    FI_CNTR_EVENTS_COMP = 0, "Counts completions.";
    FI_CNTR_EVENTS_BYTES = 1, "Counts bytes (2.x).";
}
