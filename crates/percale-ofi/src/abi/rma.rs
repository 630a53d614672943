//! Access to remote memory.

use std::ffi::c_void;

use super::{fi_addr_t, fid_ep};

structures! { STRUCTURES;
    /// A piece of remote memory.
    fi_rma_iov {
        /// The address or offset in the region.
        addr: u64,
        /// The length in bytes.
        len: usize,
        /// The region's key.
        key: u64,
    }

    /// A piece of typed remote memory.
    fi_rma_ioc {
        /// The address or offset in the region.
        addr: u64,
        /// The number of elements.
        count: usize,
        /// The region's key.
        key: u64,
    }

    /// A read or a write.
    fi_msg_rma {
        /// The local memory.
        msg_iov: *const libc::iovec,
        /// Local descriptors, or null.
        desc: *mut *mut c_void,
        /// The number of pieces.
        iov_count: usize,
        /// The peer.
        addr: fi_addr_t,
        /// The remote memory.
        rma_iov: *const fi_rma_iov,
        /// The number of pieces.
        rma_iov_count: usize,
        /// The context of the operation.
        context: *mut c_void,
        /// Remote completion data.
        data: u64,
    }
}

tables! { TABLES;
    /// Reads and writes.
    fi_ops_rma {
        /// Reads.
        read(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, addr: u64, key: u64,
            context: *mut c_void,
        ) -> isize;
        /// Reads into pieces.
        readv(
            ep: *mut fid_ep, iov: *const libc::iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t, addr: u64,
            key: u64, context: *mut c_void,
        ) -> isize;
        /// Reads, with flags.
        readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize;
        /// Writes.
        write(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64,
            context: *mut c_void,
        ) -> isize;
        /// Writes from pieces.
        writev(
            ep: *mut fid_ep, iov: *const libc::iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t, addr: u64,
            key: u64, context: *mut c_void,
        ) -> isize;
        /// Writes, with flags.
        writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize;
        /// Writes without a completion.
        inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, addr: u64, key: u64) -> isize;
        /// Writes with remote completion data.
        writedata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64, dest_addr: fi_addr_t, addr: u64,
            key: u64, context: *mut c_void,
        ) -> isize;
        /// Writes with remote completion data and without a completion.
        injectdata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, addr: u64, key: u64,
        ) -> isize;
    }
}
