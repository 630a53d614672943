//! Domains, address vectors and memory regions.

use std::ffi::{c_char, c_int, c_void};

use super::{
    fi_addr_t, fi_atomic_attr, fi_cntr_attr, fi_collective_attr, fi_cq_attr, fi_info, fi_poll_attr, fi_rx_attr,
    fi_tx_attr, fi_xpu_attr, fid, fid_av_set, fid_cntr, fid_cq, fid_ep, fid_poll, fid_stx, fid_xpu_ctx,
};

structures! { STRUCTURES;
    /// A domain.
    fid_domain {
        /// Head.
        fid: fid,
        /// What it can do.
        ops: *mut fi_ops_domain,
        /// Registration.
        mr: *mut fi_ops_mr,
    }

    /// How an address vector is to be.
    fi_av_attr {
        /// `FI_AV_*`.
        r#type: u32,
        /// Upper bits of an address that choose a receive context.
        rx_ctx_bits: c_int,
        /// Addresses expected.
        count: usize,
        /// Endpoints of a node, about.
        ep_per_node: usize,
        /// Name of a shared vector, or null.
        name: *const c_char,
        /// Where a shared vector is mapped.
        map_addr: *mut c_void,
        /// `FI_EVENT`, `FI_READ`, `FI_SYMMETRIC`.
        flags: u64,
    }

    /// How a set of addresses is to be.
    fi_av_set_attr {
        /// Members expected.
        count: usize,
        /// The first.
        start_addr: fi_addr_t,
        /// The last.
        end_addr: fi_addr_t,
        /// Steps between them.
        stride: u64,
        /// Bytes at `comm_key`.
        comm_key_size: usize,
        /// The group's key.
        comm_key: *mut u8,
        /// `FI_*_SET`.
        flags: u64,
    }

    /// An address vector.
    fid_av {
        /// Head.
        fid: fid,
        /// What it can do.
        ops: *mut fi_ops_av,
    }

    /// A memory region.
    fid_mr {
        /// Head.
        fid: fid,
        /// The local descriptor.
        mem_desc: *mut c_void,
        /// The key for peers.
        key: u64,
    }

    /// Memory given by a dma-buf (2.x).
    fi_mr_dmabuf {
        /// Its descriptor.
        fd: c_int,
        /// Where in it.
        offset: u64,
        /// Bytes.
        len: usize,
        /// Where it is mapped, or null.
        base_addr: *mut c_void,
    }

    /// Authorization of a region's users (2.x).
    fi_mr_auth_key {
        /// The vector.
        av: *mut fid_av,
        /// The key's address in it.
        src_addr: fi_addr_t,
    }

    /// What to register. Before 2.x it ends with `device`.
    fi_mr_attr {
        /// The memory; with `FI_MR_DMABUF` this points to [`fi_mr_dmabuf`] structures.
        mr_iov: *const libc::iovec,
        /// Pieces.
        iov_count: usize,
        /// `FI_SEND`, `FI_REMOTE_READ` and so on.
        access: u64,
        /// Where it is to begin for peers.
        offset: u64,
        /// The key, if the application chooses it.
        requested_key: u64,
        /// The application's.
        context: *mut c_void,
        /// Bytes at `auth_key`.
        auth_key_size: usize,
        /// An authorization key.
        auth_key: *mut u8,
        /// The kind of memory, `FI_HMEM_*`.
        iface: u32,
        /// Which device; smaller numbers are in the low bytes.
        device: u64,
        /// Of that kind of memory (2.x).
        hmem_data: *mut c_void,
        /// Bytes of a page, 0: any (2.x).
        page_size: usize,
        /// The region that this one is a part of (2.x).
        base_mr: *const fid_mr,
        /// How many parts there will be (2.x).
        sub_mr_cnt: usize,
    }

    /// Argument of `FI_REFRESH`.
    fi_mr_modify {
        /// Flags.
        flags: u64,
        /// The new memory.
        attr: fi_mr_attr,
    }
}

tables! { TABLES;
    /// A domain's operations.
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
        /// Whether an atomic operation is there.
        query_atomic(domain: *mut fid_domain, datatype: u32, op: u32, attr: *mut fi_atomic_attr, flags: u64) -> c_int;
        /// Whether a collective is there.
        query_collective(domain: *mut fid_domain, coll: u32, attr: *mut fi_collective_attr, flags: u64) -> c_int;
        /// Opens an endpoint, with flags.
        endpoint2(
            domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, flags: u64, context: *mut c_void,
        ) -> c_int;
        /// Opens a device's context (2.x; called without looking).
        xpu_ctx(
            domain: *mut fid_domain, attr: *mut fi_xpu_attr, ctx: *mut *mut fid_xpu_ctx, context: *mut c_void,
        ) -> c_int;
    }

    /// Registration.
    fi_ops_mr {
        /// One piece of memory.
        reg(
            fid: *mut fid, buf: *const c_void, len: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
            mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        /// Several pieces.
        regv(
            fid: *mut fid, iov: *const libc::iovec, count: usize, access: u64, offset: u64, requested_key: u64, flags: u64,
            mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        /// Everything that can be said.
        regattr(fid: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int;
    }

    /// An address vector's operations.
    fi_ops_av {
        /// Inserts addresses; returns how many.
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
        /// Reads an address back.
        lookup(av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        /// Writes an address as text.
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
        /// What completions name as this source (2.x).
        set_user_id(av: *mut fid_av, fi_addr: fi_addr_t, user_id: fi_addr_t, flags: u64) -> c_int;
        /// Reads an address in a device's form (2.x).
        lookup2(
            av: *mut fid_av, fi_addr: fi_addr_t, buf: *mut c_void, len: *mut usize, flags: u64, ctx: *mut fid_xpu_ctx,
        ) -> c_int;
    }
}

constants! { CONSTANTS: u32;
    FI_HMEM_SYSTEM = 0, "The host's memory.";
    FI_HMEM_CUDA = 1, "CUDA's.";
    FI_HMEM_ROCR = 2, "ROCm's.";
    FI_HMEM_ZE = 3, "Level Zero's.";
    FI_HMEM_NEURON = 4, "Neuron's.";
    FI_HMEM_SYNAPSEAI = 5, "SynapseAI's.";
}
