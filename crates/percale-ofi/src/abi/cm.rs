//! Names of endpoints, connections and multicast groups.

use std::ffi::{c_int, c_void};

use super::{fi_addr_t, fid, fid_ep, fid_pep, fid_t};

structures! { STRUCTURES;
    /// A multicast group.
    fid_mc {
        /// The common object header.
        fid: fid,
        /// The address of the group.
        fi_addr: fi_addr_t,
    }
}

tables! { TABLES;
    /// Names and connections.
    fi_ops_cm {
        /// Sets the local address.
        setname(fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int;
        /// Reads the local address. Returns -FI_ETOOSMALL and the length if the buffer is too small.
        getname(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        /// Reads the peer's address.
        getpeer(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        /// Connects.
        connect(ep: *mut fid_ep, addr: *const c_void, param: *const c_void, paramlen: usize) -> c_int;
        /// Listens.
        listen(pep: *mut fid_pep) -> c_int;
        /// Accepts a request.
        accept(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int;
        /// Rejects a request.
        reject(pep: *mut fid_pep, handle: fid_t, param: *const c_void, paramlen: usize) -> c_int;
        /// Ends a connection.
        shutdown(ep: *mut fid_ep, flags: u64) -> c_int;
        /// Joins a group.
        join(ep: *mut fid_ep, addr: *const c_void, flags: u64, mc: *mut *mut fid_mc, context: *mut c_void) -> c_int;
    }
}
