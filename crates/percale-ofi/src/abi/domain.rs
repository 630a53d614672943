//! Domains, address vectors and memory regions.

use std::ffi::{c_char, c_int, c_void};

use super::{
    fi_addr_t, fi_atomic_attr, fi_cntr_attr, fi_collective_attr, fi_cq_attr, fi_info, fi_poll_attr, fi_rx_attr,
    fi_tx_attr, fi_xpu_attr, fid, fid_av_set, fid_cntr, fid_cq, fid_ep, fid_poll, fid_stx, fid_xpu_ctx,
};

structures! { STRUCTURES;
    /// A domain.
    fid_domain {
        /// The common object header.
        fid: fid,
        /// The operations of the object.
        ops: *mut fi_ops_domain,
        /// The registration operations.
        mr: *mut fi_ops_mr,
    }

    /// The attributes of an address vector.
    fi_av_attr {
        /// `FI_AV_*`.
        r#type: u32,
        /// The number of upper bits of an address that select a receive context.
        rx_ctx_bits: c_int,
        /// The expected number of addresses.
        count: usize,
        /// The approximate number of endpoints per node.
        ep_per_node: usize,
        /// The name of a shared vector, or null.
        name: *const c_char,
        /// The address at which a shared vector is mapped.
        map_addr: *mut c_void,
        /// `FI_EVENT`, `FI_READ`, `FI_SYMMETRIC`.
        flags: u64,
    }

    /// The attributes of an address set.
    fi_av_set_attr {
        /// The expected number of members.
        count: usize,
        /// The first address.
        start_addr: fi_addr_t,
        /// The last address.
        end_addr: fi_addr_t,
        /// The step between addresses.
        stride: u64,
        /// The size of `comm_key` in bytes.
        comm_key_size: usize,
        /// The key of the group.
        comm_key: *mut u8,
        /// `FI_*_SET`.
        flags: u64,
    }

    /// An address vector.
    fid_av {
        /// The common object header.
        fid: fid,
        /// The operations of the object.
        ops: *mut fi_ops_av,
    }

    /// A memory region.
    fid_mr {
        /// The common object header.
        fid: fid,
        /// The local descriptor.
        mem_desc: *mut c_void,
        /// The key for peers.
        key: u64,
    }

    /// Memory that a dma-buf provides (2.x).
    fi_mr_dmabuf {
        /// The file descriptor.
        fd: c_int,
        /// The offset in the dma-buf.
        offset: u64,
        /// The length in bytes.
        len: usize,
        /// The address of the mapping, or null.
        base_addr: *mut c_void,
    }

    /// The authorization key that grants access to a region (2.x).
    fi_mr_auth_key {
        /// The address vector.
        av: *mut fid_av,
        /// The address of the key in the vector.
        src_addr: fi_addr_t,
    }

    /// The attributes of a registration. Before 2.x the structure ends with `device`.
    fi_mr_attr {
        /// The memory; with `FI_MR_DMABUF` this points to [`fi_mr_dmabuf`] structures.
        mr_iov: *const libc::iovec,
        /// The number of pieces.
        iov_count: usize,
        /// `FI_SEND`, `FI_REMOTE_READ` and so on.
        access: u64,
        /// The address of the first byte for peers.
        offset: u64,
        /// The key, if the application selects it.
        requested_key: u64,
        /// The context of the application.
        context: *mut c_void,
        /// The size of `auth_key` in bytes.
        auth_key_size: usize,
        /// The authorization key.
        auth_key: *mut u8,
        /// The kind of memory, `FI_HMEM_*`.
        iface: u32,
        /// The device. Smaller integer types are in the low bytes.
        device: u64,
        /// Data for this kind of memory (2.x).
        hmem_data: *mut c_void,
        /// The page size in bytes, or 0 for any size (2.x).
        page_size: usize,
        /// The region that contains this one (2.x).
        base_mr: *const fid_mr,
        /// The number of regions that this one will contain (2.x).
        sub_mr_cnt: usize,
    }

    /// The argument of `FI_REFRESH`.
    fi_mr_modify {
        /// Flags.
        flags: u64,
        /// The new memory.
        attr: fi_mr_attr,
    }
}

tables! { TABLES;
    /// The operations of a domain.
    fi_ops_domain {
        /// Opens an address vector.
        av_open(domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void) -> c_int;
        /// Opens a completion queue.
        cq_open(domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void) -> c_int;
        /// Opens an endpoint.
        endpoint(domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void) -> c_int;
        /// Opens a scalable endpoint.
        scalable_ep(domain: *mut fid_domain, info: *mut fi_info, sep: *mut *mut fid_ep, context: *mut c_void) -> c_int;
        /// Opens a counter.
        cntr_open(
            domain: *mut fid_domain, attr: *mut fi_cntr_attr, cntr: *mut *mut fid_cntr, context: *mut c_void,
        ) -> c_int;
        /// Opens a poll set.
        poll_open(domain: *mut fid_domain, attr: *mut fi_poll_attr, pollset: *mut *mut fid_poll) -> c_int;
        /// Opens a shared transmit context.
        stx_ctx(domain: *mut fid_domain, attr: *mut fi_tx_attr, stx: *mut *mut fid_stx, context: *mut c_void) -> c_int;
        /// Opens a shared receive context.
        srx_ctx(domain: *mut fid_domain, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep, context: *mut c_void) -> c_int;
        /// Returns whether an atomic operation is supported.
        query_atomic(domain: *mut fid_domain, datatype: u32, op: u32, attr: *mut fi_atomic_attr, flags: u64) -> c_int;
        /// Returns whether a collective is supported.
        query_collective(domain: *mut fid_domain, coll: u32, attr: *mut fi_collective_attr, flags: u64) -> c_int;
        /// Opens an endpoint, with flags.
        endpoint2(
            domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, flags: u64, context: *mut c_void,
        ) -> c_int;
        /// Opens a device context (2.x). libfabric calls it without a check for null.
        xpu_ctx(
            domain: *mut fid_domain, attr: *mut fi_xpu_attr, ctx: *mut *mut fid_xpu_ctx, context: *mut c_void,
        ) -> c_int;
    }

    /// The registration operations.
    fi_ops_mr {
        /// Registers one piece of memory.
        reg(
            fid: *mut fid, buf: *const c_void, len: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
            mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        /// Registers several pieces of memory.
        regv(
            fid: *mut fid, iov: *const libc::iovec, count: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
            mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        /// Registers memory with all attributes.
        regattr(fid: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int;
    }

    /// The operations of an address vector.
    fi_ops_av {
        /// Inserts addresses and returns their number.
        insert(
            av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void,
        ) -> c_int;
        /// Inserts a node and a service.
        insertsvc(
            av: *mut fid_av, node: *const c_char, service: *const c_char, fi_addr: *mut fi_addr_t, flags: u64,
            context: *mut c_void,
        ) -> c_int;
        /// Inserts a range of nodes and services.
        insertsym(
            av: *mut fid_av, node: *const c_char, nodecnt: usize, service: *const c_char, svccnt: usize,
            fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void,
        ) -> c_int;
        /// Removes addresses.
        remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int;
        /// Reads an address.
        lookup(av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        /// Formats an address as text.
        straddr(av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char;
        /// Opens a set of addresses.
        av_set(
            av: *mut fid_av, attr: *mut fi_av_set_attr, av_set: *mut *mut fid_av_set, context: *mut c_void,
        ) -> c_int;
        /// Inserts an authorization key (2.x).
        insert_auth_key(
            av: *mut fid_av, auth_key: *const c_void, auth_key_size: usize, fi_addr: *mut fi_addr_t, flags: u64,
        ) -> c_int;
        /// Reads an authorization key (2.x).
        lookup_auth_key(
            av: *mut fid_av, fi_addr: fi_addr_t, auth_key: *mut c_void, auth_key_size: *mut usize,
        ) -> c_int;
        /// Sets the user ID that completions report for this source (2.x).
        set_user_id(av: *mut fid_av, fi_addr: fi_addr_t, user_id: fi_addr_t, flags: u64) -> c_int;
        /// Reads an address in the form of a device (2.x).
        lookup2(
            av: *mut fid_av, fi_addr: fi_addr_t, buf: *mut c_void, len: *mut usize, flags: u64, ctx: *mut fid_xpu_ctx,
        ) -> c_int;
    }
}

constants! { CONSTANTS: u32;
    FI_HMEM_SYSTEM = 0, "Host memory.";
    FI_HMEM_CUDA = 1, "CUDA memory.";
    FI_HMEM_ROCR = 2, "ROCm memory.";
    FI_HMEM_ZE = 3, "Level Zero memory.";
    FI_HMEM_NEURON = 4, "Neuron memory.";
    FI_HMEM_SYNAPSEAI = 5, "SynapseAI memory.";
}
