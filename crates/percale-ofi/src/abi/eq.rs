//! Event queues, completion queues, counters, wait sets and poll sets.

use std::ffi::{c_char, c_int, c_void};

use super::{fi_addr_t, fi_info, fid, fid_t, fid_xpu_cntr, fid_xpu_cq, fid_xpu_ctx};

structures! { STRUCTURES;
    /// How a wait set is to be.
    fi_wait_attr {
        /// `FI_WAIT_*`.
        wait_obj: u32,
        /// Flags.
        flags: u64,
    }

    /// A wait set.
    fid_wait {
        /// Head.
        fid: fid,
        /// What it can do.
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
        /// Changes when the descriptors do.
        change_index: u64,
        /// Room at `fd`, then how many there are.
        nfds: usize,
        /// Where they go.
        fd: *mut libc::pollfd,
    }

    /// How a poll set is to be.
    fi_poll_attr {
        /// Flags.
        flags: u64,
    }

    /// A poll set.
    fid_poll {
        /// Head.
        fid: fid,
        /// What it can do.
        ops: *mut fi_ops_poll,
    }

    /// How an event queue is to be.
    fi_eq_attr {
        /// Entries.
        size: usize,
        /// `FI_WRITE`: the application writes events too.
        flags: u64,
        /// `FI_WAIT_*`.
        wait_obj: u32,
        /// Interrupt vector, or processor with `FI_AFFINITY`.
        signaling_vector: c_int,
        /// The wait set, with `FI_WAIT_SET`.
        wait_set: *mut fid_wait,
    }

    /// An event.
    fi_eq_entry {
        /// The object that the event is about.
        fid: fid_t,
        /// Its context.
        context: *mut c_void,
        /// Depends on the event.
        data: u64,
    }

    /// An event that is an error.
    fi_eq_err_entry {
        /// The object that the event is about.
        fid: fid_t,
        /// Its context.
        context: *mut c_void,
        /// Depends on the event.
        data: u64,
        /// The code, positive.
        err: c_int,
        /// The provider's code.
        prov_errno: c_int,
        /// More about it.
        err_data: *mut c_void,
        /// Bytes there.
        err_data_size: usize,
    }

    /// A connection event. Data of the connection follows.
    fi_eq_cm_entry {
        /// The object that the event is about.
        fid: fid_t,
        /// The request's info; the reader of the event frees it.
        info: *mut fi_info,
        /// Data begins here.
        data: [u8; 0],
    }

    /// An event queue.
    fid_eq {
        /// Head.
        fid: fid,
        /// What it can do.
        ops: *mut fi_ops_eq,
    }

    /// A completion, `FI_CQ_FORMAT_CONTEXT`.
    fi_cq_entry {
        /// The operation's context.
        op_context: *mut c_void,
    }

    /// A completion, `FI_CQ_FORMAT_MSG`.
    fi_cq_msg_entry {
        /// The operation's context.
        op_context: *mut c_void,
        /// What it was.
        flags: u64,
        /// Bytes received.
        len: usize,
    }

    /// A completion, `FI_CQ_FORMAT_DATA`.
    fi_cq_data_entry {
        /// The operation's context.
        op_context: *mut c_void,
        /// What it was.
        flags: u64,
        /// Bytes received.
        len: usize,
        /// Where they are, in a multi-receive.
        buf: *mut c_void,
        /// Remote completion data.
        data: u64,
    }

    /// A completion, `FI_CQ_FORMAT_TAGGED`.
    fi_cq_tagged_entry {
        /// The operation's context.
        op_context: *mut c_void,
        /// What it was.
        flags: u64,
        /// Bytes received.
        len: usize,
        /// Where they are, in a multi-receive.
        buf: *mut c_void,
        /// Remote completion data.
        data: u64,
        /// The sender's tag.
        tag: u64,
    }

    /// A completion that is an error. Callers before 1.5 have no `err_data_size`, callers before 2.x no `src_addr`.
    fi_cq_err_entry {
        /// The operation's context.
        op_context: *mut c_void,
        /// What it was.
        flags: u64,
        /// Bytes received.
        len: usize,
        /// Where they are, in a multi-receive.
        buf: *mut c_void,
        /// Remote completion data.
        data: u64,
        /// The sender's tag.
        tag: u64,
        /// Bytes that had no room.
        olen: usize,
        /// The code, positive.
        err: c_int,
        /// The provider's code.
        prov_errno: c_int,
        /// More about it; since 1.5 the caller's buffer, if `err_data_size` is not 0.
        err_data: *mut c_void,
        /// Room there, then bytes there.
        err_data_size: usize,
        /// The source (2.x). Never written for an older caller.
        src_addr: fi_addr_t,
    }

    /// How a completion queue is to be. Before 2.x it ends with `wait_set`.
    fi_cq_attr {
        /// Entries.
        size: usize,
        /// Flags.
        flags: u64,
        /// `FI_CQ_FORMAT_*`.
        format: u32,
        /// `FI_WAIT_*`.
        wait_obj: u32,
        /// Interrupt vector, or processor with `FI_AFFINITY`.
        signaling_vector: c_int,
        /// `FI_CQ_COND_*`.
        wait_cond: u32,
        /// The wait set, with `FI_WAIT_SET`.
        wait_set: *mut fid_wait,
        /// A device's context (2.x).
        xpu_ctx: *mut fid_xpu_ctx,
    }

    /// A completion queue.
    fid_cq {
        /// Head.
        fid: fid,
        /// What it can do.
        ops: *mut fi_ops_cq,
    }

    /// How a counter is to be. Before 2.x it ends with `flags`.
    fi_cntr_attr {
        /// `FI_CNTR_EVENTS_*`.
        events: u32,
        /// `FI_WAIT_*`.
        wait_obj: u32,
        /// The wait set, with `FI_WAIT_SET`.
        wait_set: *mut fid_wait,
        /// Flags.
        flags: u64,
        /// A device's context (2.x).
        xpu_ctx: *mut fid_xpu_ctx,
    }

    /// A counter.
    fid_cntr {
        /// Head.
        fid: fid,
        /// What it can do.
        ops: *mut fi_ops_cntr,
    }
}

tables! { TABLES;
    /// A wait set's operations. Times are milliseconds, negative: for ever.
    fi_ops_wait {
        /// Waits for any member.
        wait(waitset: *mut fid_wait, timeout: c_int) -> c_int;
    }

    /// A poll set's operations.
    fi_ops_poll {
        /// Drives all members; returns the contexts of those with events.
        poll(pollset: *mut fid_poll, context: *mut *mut c_void, count: c_int) -> c_int;
        /// Adds a member.
        poll_add(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
        /// Removes a member.
        poll_del(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
    }

    /// An event queue's operations.
    fi_ops_eq {
        /// Reads an event.
        read(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize;
        /// Reads an error.
        readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize;
        /// Writes an event.
        write(eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize, flags: u64) -> isize;
        /// Waits for an event.
        sread(eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int, flags: u64) -> isize;
        /// Explains a provider's code.
        strerror(
            eq: *mut fid_eq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
        ) -> *const c_char;
    }

    /// A completion queue's operations.
    fi_ops_cq {
        /// Reads completions; returns how many, -FI_EAGAIN, or -FI_EAVAIL.
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
        /// Ends a wait.
        signal(cq: *mut fid_cq) -> c_int;
        /// Explains a provider's code.
        strerror(
            cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
        ) -> *const c_char;
        /// Lends it to a device (2.x; called without looking).
        export_xpu(cq: *mut fid_cq, flags: u64, xpu_cq: *mut fid_xpu_cq) -> c_int;
    }

    /// A counter's operations.
    fi_ops_cntr {
        /// Reads it.
        read(cntr: *mut fid_cntr) -> u64;
        /// Reads its errors.
        readerr(cntr: *mut fid_cntr) -> u64;
        /// Adds.
        add(cntr: *mut fid_cntr, value: u64) -> c_int;
        /// Sets it.
        set(cntr: *mut fid_cntr, value: u64) -> c_int;
        /// Waits for a value; -FI_EAVAIL if errors are added meanwhile.
        wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int;
        /// Adds errors.
        adderr(cntr: *mut fid_cntr, value: u64) -> c_int;
        /// Sets errors.
        seterr(cntr: *mut fid_cntr, value: u64) -> c_int;
        /// Lends it to a device (2.x; called without looking).
        export_xpu(cntr: *mut fid_cntr, flags: u64, xpu_cntr: *mut fid_xpu_cntr) -> c_int;
    }
}

constants! { CONSTANTS: u32;
    FI_WAIT_NONE = 0, "Waits: never.";
    FI_WAIT_UNSPEC = 1, "Waits: in the library's calls only.";
    FI_WAIT_SET = 2, "Waits: in a wait set.";
    FI_WAIT_FD = 3, "Waits: on a descriptor.";
    FI_WAIT_MUTEX_COND = 4, "Waits: on a condition.";
    FI_WAIT_YIELD = 5, "Waits: yielding the processor.";
    FI_WAIT_POLLFD = 6, "Waits: on several descriptors.";
    FI_NOTIFY = 0, "Event: something about an object.";
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
