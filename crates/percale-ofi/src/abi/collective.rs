//! Sets of addresses and collective operations.

use std::ffi::{c_int, c_void};

use super::{fi_addr_t, fi_atomic_attr, fi_ioc, fid, fid_ep};

structures! { STRUCTURES;
    /// A set of addresses.
    fid_av_set {
        /// Head.
        fid: fid,
        /// What it can do.
        ops: *mut fi_ops_av_set,
    }

    /// What is known of a collective.
    fi_collective_attr {
        /// What is done to the elements.
        op: u32,
        /// Their type.
        datatype: u32,
        /// How many there may be.
        datatype_attr: fi_atomic_attr,
        /// Members of a group.
        max_members: usize,
        /// Modes.
        mode: u64,
    }

    /// A group to join.
    fi_collective_addr {
        /// Its members.
        set: *const fid_av_set,
        /// The group it is made of.
        coll_addr: fi_addr_t,
    }

    /// A collective.
    fi_msg_collective {
        /// Operands.
        msg_iov: *const fi_ioc,
        /// Local descriptors, or null.
        desc: *mut *mut c_void,
        /// Pieces.
        iov_count: usize,
        /// The group.
        coll_addr: fi_addr_t,
        /// Its root.
        root_addr: fi_addr_t,
        /// `FI_BARRIER` and so on.
        coll: u32,
        /// The elements' type.
        datatype: u32,
        /// What is done to them.
        op: u32,
        /// The operation's context.
        context: *mut c_void,
    }
}

tables! { TABLES;
    /// A set's operations.
    fi_ops_av_set {
        /// Adds another set's members.
        set_union(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        /// Keeps what is in another set.
        intersect(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        /// Removes another set's members.
        diff(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        /// Adds a member.
        insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int;
        /// Removes a member.
        remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int;
        /// The set's own address.
        addr(set: *mut fid_av_set, coll_addr: *mut fi_addr_t) -> c_int;
    }

    /// Collectives.
    fi_ops_collective {
        /// Waits for all.
        barrier(ep: *mut fid_ep, coll_addr: fi_addr_t, context: *mut c_void) -> isize;
        /// From the root to all.
        broadcast(
            ep: *mut fid_ep, buf: *mut c_void, count: usize, desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t,
            datatype: u32, flags: u64, context: *mut c_void,
        ) -> isize;
        /// From each to each.
        alltoall(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: u32, flags: u64, context: *mut c_void,
        ) -> isize;
        /// Combined, to all.
        allreduce(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: u32, op: u32, flags: u64, context: *mut c_void,
        ) -> isize;
        /// Collected, to all.
        allgather(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: u32, flags: u64, context: *mut c_void,
        ) -> isize;
        /// Combined, a part to each.
        reduce_scatter(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: u32, op: u32, flags: u64, context: *mut c_void,
        ) -> isize;
        /// Combined, to the root.
        reduce(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: u32, op: u32, flags: u64,
            context: *mut c_void,
        ) -> isize;
        /// From the root, a part to each.
        scatter(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: u32, flags: u64,
            context: *mut c_void,
        ) -> isize;
        /// Collected, to the root.
        gather(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: u32, flags: u64,
            context: *mut c_void,
        ) -> isize;
        /// Any of them.
        msg(
            ep: *mut fid_ep, msg: *const fi_msg_collective, resultv: *mut fi_ioc, result_desc: *mut *mut c_void,
            result_count: usize, flags: u64,
        ) -> isize;
        /// Waits for all, with flags.
        barrier2(ep: *mut fid_ep, coll_addr: fi_addr_t, flags: u64, context: *mut c_void) -> isize;
    }
}

constants! { CONSTANTS: u32;
    FI_BARRIER = 0, "Wait for all.";
    FI_BROADCAST = 1, "From the root to all.";
    FI_ALLTOALL = 2, "From each to each.";
    FI_ALLREDUCE = 3, "Combined, to all.";
    FI_ALLGATHER = 4, "Collected, to all.";
    FI_REDUCE_SCATTER = 5, "Combined, a part to each.";
    FI_REDUCE = 6, "Combined, to the root.";
    FI_SCATTER = 7, "From the root, a part to each.";
    FI_GATHER = 8, "Collected, to the root.";
}
