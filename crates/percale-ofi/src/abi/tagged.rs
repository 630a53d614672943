//! Tagged messages.

use std::ffi::c_void;

use super::{fi_addr_t, fid_ep};

structures! { STRUCTURES;
    /// A tagged message.
    fi_msg_tagged {
        /// The memory.
        msg_iov: *const libc::iovec,
        /// Local descriptors, or null.
        desc: *mut *mut c_void,
        /// The number of pieces.
        iov_count: usize,
        /// The peer.
        addr: fi_addr_t,
        /// The tag.
        tag: u64,
        /// The tag bits that are ignored.
        ignore: u64,
        /// The context of the operation.
        context: *mut c_void,
        /// Remote completion data.
        data: u64,
    }
}

tables! { TABLES;
    /// Tagged messages.
    fi_ops_tagged {
        /// Receives.
        recv(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, tag: u64, ignore: u64,
            context: *mut c_void,
        ) -> isize;
        /// Receives into pieces.
        recvv(
            ep: *mut fid_ep, iov: *const libc::iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t, tag: u64,
            ignore: u64, context: *mut c_void,
        ) -> isize;
        /// Receives, with flags.
        recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize;
        /// Sends.
        send(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, tag: u64,
            context: *mut c_void,
        ) -> isize;
        /// Sends from pieces.
        sendv(
            ep: *mut fid_ep, iov: *const libc::iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t, tag: u64,
            context: *mut c_void,
        ) -> isize;
        /// Sends, with flags.
        sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize;
        /// Sends without a completion.
        inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, tag: u64) -> isize;
        /// Sends with remote completion data.
        senddata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t, tag: u64,
            context: *mut c_void,
        ) -> isize;
        /// Sends with remote completion data and without a completion.
        injectdata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, tag: u64,
        ) -> isize;
    }
}

constants! { CONSTANTS: u64;
    FI_MPI_IGNORE_TAG = 0xFFFF_FFFF, "The bits of an MPI tag (2.x).";
    FI_MPI_IGNORE_PAYLOAD = 0xFF << 32, "The bits above the MPI tag that contain the kind of payload (2.x).";
}
