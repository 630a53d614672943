//! Sets of addresses and collective operations.

use std::ffi::{c_int, c_void};

use super::{fi_addr_t, fi_atomic_attr, fi_ioc, fid, fid_ep};

structures! { STRUCTURES;
    /// A set of addresses.
    fid_av_set {
        /// The common object header.
        fid: fid,
        /// The operations of the object.
        ops: *mut fi_ops_av_set,
    }

    /// The properties of a collective.
    fi_collective_attr {
        /// The operation on the elements.
        op: u32,
        /// The data type of the elements.
        datatype: u32,
        /// The limits of the data type.
        datatype_attr: fi_atomic_attr,
        /// The maximum number of group members.
        max_members: usize,
        /// The mode bits.
        mode: u64,
    }

    /// A group to join.
    fi_collective_addr {
        /// The members of the group.
        set: *const fid_av_set,
        /// The parent group.
        coll_addr: fi_addr_t,
    }

    /// A collective.
    fi_msg_collective {
        /// The operands.
        msg_iov: *const fi_ioc,
        /// Local descriptors, or null.
        desc: *mut *mut c_void,
        /// The number of pieces.
        iov_count: usize,
        /// The group.
        coll_addr: fi_addr_t,
        /// The root.
        root_addr: fi_addr_t,
        /// The kind of collective (`FI_BARRIER`, ...).
        coll: u32,
        /// The data type of the elements.
        datatype: u32,
        /// The operation on the elements.
        op: u32,
        /// The context of the operation.
        context: *mut c_void,
    }
}

tables! { TABLES;
    /// The operations of an address set.
    fi_ops_av_set {
        /// Adds another set's members.
        set_union(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        /// Keeps only the members that are also in another set.
        intersect(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        /// Removes another set's members.
        diff(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int;
        /// Adds a member.
        insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int;
        /// Removes a member.
        remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int;
        /// Returns the address of the set.
        addr(set: *mut fid_av_set, coll_addr: *mut fi_addr_t) -> c_int;
    }

    /// Collectives.
    fi_ops_collective {
        /// Waits for all members.
        barrier(ep: *mut fid_ep, coll_addr: fi_addr_t, context: *mut c_void) -> isize;
        /// Sends data from the root to all members.
        broadcast(
            ep: *mut fid_ep, buf: *mut c_void, count: usize, desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t,
            datatype: u32, flags: u64, context: *mut c_void,
        ) -> isize;
        /// Sends a block from each member to each member.
        alltoall(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: u32, flags: u64, context: *mut c_void,
        ) -> isize;
        /// Combines the data of all members and returns the result to all.
        allreduce(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: u32, op: u32, flags: u64, context: *mut c_void,
        ) -> isize;
        /// Collects the blocks of all members and returns them to all.
        allgather(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: u32, flags: u64, context: *mut c_void,
        ) -> isize;
        /// Combines the data of all members and returns one block to each.
        reduce_scatter(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, datatype: u32, op: u32, flags: u64, context: *mut c_void,
        ) -> isize;
        /// Combines the data of all members and returns the result to the root.
        reduce(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: u32, op: u32, flags: u64,
            context: *mut c_void,
        ) -> isize;
        /// Sends one block from the root to each member.
        scatter(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: u32, flags: u64,
            context: *mut c_void,
        ) -> isize;
        /// Collects the blocks of all members at the root.
        gather(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, coll_addr: fi_addr_t, root_addr: fi_addr_t, datatype: u32, flags: u64,
            context: *mut c_void,
        ) -> isize;
        /// Starts any collective, with a message structure.
        msg(
            ep: *mut fid_ep, msg: *const fi_msg_collective, resultv: *mut fi_ioc, result_desc: *mut *mut c_void,
            result_count: usize, flags: u64,
        ) -> isize;
        /// Waits for all members, with flags.
        barrier2(ep: *mut fid_ep, coll_addr: fi_addr_t, flags: u64, context: *mut c_void) -> isize;
    }
}

constants! { CONSTANTS: u32;
    FI_BARRIER = 0, "Waits for all members.";
    FI_BROADCAST = 1, "Sends the root's data to all members.";
    FI_ALLTOALL = 2, "Sends a part of each member's data to each member.";
    FI_ALLREDUCE = 3, "Combines the data of all members; all receive the result.";
    FI_ALLGATHER = 4, "Collects the data of all members; all receive the result.";
    FI_REDUCE_SCATTER = 5, "Combines the data of all members; each receives a part of the result.";
    FI_REDUCE = 6, "Combines the data of all members; the root receives the result.";
    FI_SCATTER = 7, "Sends a part of the root's data to each member.";
    FI_GATHER = 8, "Collects the data of all members; the root receives the result.";
}
