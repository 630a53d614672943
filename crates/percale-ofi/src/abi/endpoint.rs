//! Endpoints and messages.

use std::ffi::{c_int, c_void};

use super::{
    fi_addr_t, fi_ops_atomic, fi_ops_cm, fi_ops_collective, fi_ops_rma, fi_ops_tagged, fi_rx_attr, fi_tx_attr, fid,
    fid_t, fid_xpu_ep,
};

structures! { STRUCTURES;
    /// An endpoint. A table may be null if the endpoint lacks the capability.
    fid_ep {
        /// The common object header.
        fid: fid,
        /// Options and contexts.
        ops: *mut fi_ops_ep,
        /// Names and connections.
        cm: *mut fi_ops_cm,
        /// Untagged messages.
        msg: *mut fi_ops_msg,
        /// Access to remote memory.
        rma: *mut fi_ops_rma,
        /// Tagged messages.
        tagged: *mut fi_ops_tagged,
        /// Atomic operations.
        atomic: *mut fi_ops_atomic,
        /// Collectives.
        collective: *mut fi_ops_collective,
    }

    /// A passive endpoint.
    fid_pep {
        /// The common object header.
        fid: fid,
        /// Options.
        ops: *mut fi_ops_ep,
        /// Names and connections.
        cm: *mut fi_ops_cm,
    }

    /// A shared transmit context.
    fid_stx {
        /// The common object header.
        fid: fid,
        /// Options.
        ops: *mut fi_ops_ep,
    }

    /// An untagged message.
    fi_msg {
        /// The memory.
        msg_iov: *const libc::iovec,
        /// Local descriptors, or null.
        desc: *mut *mut c_void,
        /// The number of pieces.
        iov_count: usize,
        /// The peer.
        addr: fi_addr_t,
        /// The context of the operation.
        context: *mut c_void,
        /// Remote completion data.
        data: u64,
    }
}

tables! { TABLES;
    /// The options and contexts of an endpoint.
    fi_ops_ep {
        /// Cancels the first operation with this context that can still be canceled.
        cancel(fid: fid_t, context: *mut c_void) -> isize;
        /// Reads an option.
        getopt(fid: fid_t, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut usize) -> c_int;
        /// Writes an option.
        setopt(fid: fid_t, level: c_int, optname: c_int, optval: *const c_void, optlen: usize) -> c_int;
        /// Opens a transmit context.
        tx_ctx(
            sep: *mut fid_ep, index: c_int, attr: *mut fi_tx_attr, tx_ep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        /// Opens a receive context.
        rx_ctx(
            sep: *mut fid_ep, index: c_int, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        /// Returns the number of receives that may be posted.
        rx_size_left(ep: *mut fid_ep) -> isize;
        /// Returns the number of operations that may be posted.
        tx_size_left(ep: *mut fid_ep) -> isize;
        /// Exports the object to a device (2.x). libfabric calls it without a check for null.
        export_xpu(ep: *mut fid_ep, flags: u64, xpu_ep: *mut fid_xpu_ep) -> c_int;
    }

    /// Untagged messages.
    fi_ops_msg {
        /// Receives.
        recv(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, context: *mut c_void,
        ) -> isize;
        /// Receives into pieces.
        recvv(
            ep: *mut fid_ep, iov: *const libc::iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        /// Receives, with flags.
        recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
        /// Sends.
        send(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, context: *mut c_void,
        ) -> isize;
        /// Sends from pieces.
        sendv(
            ep: *mut fid_ep, iov: *const libc::iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        /// Sends, with flags.
        sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
        /// Sends without a completion.
        inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize;
        /// Sends with remote completion data.
        senddata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        /// Sends with remote completion data and without a completion.
        injectdata(ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t) -> isize;
    }
}

constants! { OPTIONS: c_int;
    FI_OPT_ENDPOINT = 0, "The level of all endpoint options.";
    FI_OPT_MIN_MULTI_RECV = 0, "Free space below which a multi-receive buffer is released (size_t).";
    FI_OPT_CM_DATA_SIZE = 1, "Maximum size of the data of a connection request (size_t).";
    FI_OPT_BUFFERED_MIN = 2, "Minimum size of buffered receives (size_t).";
    FI_OPT_BUFFERED_LIMIT = 3, "Maximum size of buffered receives (size_t).";
    FI_OPT_SEND_BUF_SIZE = 4, "Size of the send buffers in bytes.";
    FI_OPT_RECV_BUF_SIZE = 5, "Size of the receive buffers in bytes.";
    FI_OPT_TX_SIZE = 6, "Maximum number of outstanding transmit operations.";
    FI_OPT_RX_SIZE = 7, "Maximum number of posted receives.";
    FI_OPT_FI_HMEM_P2P = 8, "Whether devices access each other's memory directly (int, `FI_HMEM_P2P_*`).";
    FI_OPT_XPU_TRIGGER = 9, "Device triggers (1.x).";
    FI_OPT_CUDA_API_PERMITTED = 10, "Whether CUDA may be called (bool, 2.x).";
    FI_OPT_SHARED_MEMORY_PERMITTED = 11, "Whether shared memory may be used (bool, 2.x).";
    FI_OPT_MAX_MSG_SIZE = 12, "Longest untagged message (size_t, 2.x).";
    FI_OPT_MAX_TAGGED_SIZE = 13, "Longest tagged message (size_t, 2.x).";
    FI_OPT_MAX_RMA_SIZE = 14, "Longest access to remote memory (size_t, 2.x).";
    FI_OPT_MAX_ATOMIC_SIZE = 15, "Longest atomic operation (size_t, 2.x).";
    FI_OPT_INJECT_MSG_SIZE = 16, "Longest injected untagged message (size_t, 2.x).";
    FI_OPT_INJECT_TAGGED_SIZE = 17, "Longest injected tagged message (size_t, 2.x).";
    FI_OPT_INJECT_RMA_SIZE = 18, "Longest injected write (size_t, 2.x).";
    FI_OPT_INJECT_ATOMIC_SIZE = 19, "Longest injected atomic operation (size_t, 2.x).";
    FI_OPT_FIREWALL_ADDR = 20, "Whether the endpoint's address is behind a firewall (bool, 2.x).";
    FI_HMEM_P2P_ENABLED = 0, "The provider decides.";
    FI_HMEM_P2P_REQUIRED = 1, "Always.";
    FI_HMEM_P2P_PREFERRED = 2, "Where possible.";
    FI_HMEM_P2P_DISABLED = 3, "Never.";
}
