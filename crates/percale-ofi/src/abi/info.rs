//! What getinfo is asked and answers: `fi_info` and what hangs on it.

use std::ffi::{c_char, c_int, c_void};

use super::{fid, fid_domain, fid_fabric, fid_t, fid_xpu_ctx};

structures! { STRUCTURES;
    /// What an application wants, or a provider offers. Each attribute may be null in hints.
    fi_info {
        /// The next offer.
        next: *mut fi_info,
        /// Capabilities.
        caps: u64,
        /// What the application must do (answers), or is able to do (hints).
        mode: u64,
        /// How addresses are written, `FI_SOCKADDR_*`.
        addr_format: u32,
        /// Bytes at `src_addr`.
        src_addrlen: usize,
        /// Bytes at `dest_addr`.
        dest_addrlen: usize,
        /// Own address.
        src_addr: *mut c_void,
        /// The peer's address.
        dest_addr: *mut c_void,
        /// A connection request, or a passive endpoint to make an active one of.
        handle: fid_t,
        /// The transmitting side.
        tx_attr: *mut fi_tx_attr,
        /// The receiving side.
        rx_attr: *mut fi_rx_attr,
        /// Endpoints.
        ep_attr: *mut fi_ep_attr,
        /// Domains.
        domain_attr: *mut fi_domain_attr,
        /// The fabric and the provider.
        fabric_attr: *mut fi_fabric_attr,
        /// The network interface, if one is to be named.
        nic: *mut fid_nic,
    }

    /// The transmitting side of an endpoint.
    fi_tx_attr {
        /// Capabilities.
        caps: u64,
        /// Modes.
        mode: u64,
        /// Flags of operations without flags of their own.
        op_flags: u64,
        /// Order of messages.
        msg_order: u64,
        /// Order of completions (1.x).
        comp_order: u64,
        /// Longest injected message, bytes.
        inject_size: usize,
        /// Operations outstanding.
        size: usize,
        /// Segments of local memory.
        iov_limit: usize,
        /// Segments of remote memory.
        rma_iov_limit: usize,
        /// Traffic class.
        tclass: u32,
    }

    /// The receiving side of an endpoint.
    fi_rx_attr {
        /// Capabilities.
        caps: u64,
        /// Modes.
        mode: u64,
        /// Flags of operations without flags of their own.
        op_flags: u64,
        /// Order of messages.
        msg_order: u64,
        /// Order of completions (1.x).
        comp_order: u64,
        /// Bytes of unexpected messages that are kept (1.x).
        total_buffered_recv: usize,
        /// Receives posted.
        size: usize,
        /// Segments of memory.
        iov_limit: usize,
    }

    /// Endpoints.
    fi_ep_attr {
        /// `FI_EP_*`.
        r#type: u32,
        /// `FI_PROTO_*`, or a provider's own.
        protocol: u32,
        /// Of the protocol.
        protocol_version: u32,
        /// Longest message, bytes.
        max_msg_size: usize,
        /// Bytes before each message that are the provider's.
        msg_prefix_size: usize,
        /// Up to how many bytes reads after writes are ordered.
        max_order_raw_size: usize,
        /// The same for writes after reads.
        max_order_war_size: usize,
        /// The same for writes after writes.
        max_order_waw_size: usize,
        /// Which bits of a tag are fields of their own.
        mem_tag_format: u64,
        /// Transmit contexts.
        tx_ctx_cnt: usize,
        /// Receive contexts.
        rx_ctx_cnt: usize,
        /// Bytes at `auth_key`.
        auth_key_size: usize,
        /// The endpoint's authorization key.
        auth_key: *mut u8,
        /// A device's context (2.x).
        xpu_ctx: *mut fid_xpu_ctx,
    }

    /// Domains. What follows `mr_iov_limit` came with 1.5 and later; a caller of an older API has less.
    fi_domain_attr {
        /// An open domain to use.
        domain: *mut fid_domain,
        /// Its name.
        name: *mut c_char,
        /// `FI_THREAD_*`.
        threading: u32,
        /// `FI_PROGRESS_*` of control operations.
        control_progress: u32,
        /// `FI_PROGRESS_*` of data operations.
        data_progress: u32,
        /// `FI_RM_*`.
        resource_mgmt: u32,
        /// `FI_AV_*`.
        av_type: u32,
        /// `FI_MR_*`.
        mr_mode: c_int,
        /// Bytes of a key.
        mr_key_size: usize,
        /// Bytes of remote completion data.
        cq_data_size: usize,
        /// Completion queues.
        cq_cnt: usize,
        /// Endpoints.
        ep_cnt: usize,
        /// Transmit contexts.
        tx_ctx_cnt: usize,
        /// Receive contexts.
        rx_ctx_cnt: usize,
        /// Transmit contexts of an endpoint.
        max_ep_tx_ctx: usize,
        /// Receive contexts of an endpoint.
        max_ep_rx_ctx: usize,
        /// Endpoints of a shared transmit context.
        max_ep_stx_ctx: usize,
        /// Endpoints of a shared receive context.
        max_ep_srx_ctx: usize,
        /// Counters.
        cntr_cnt: usize,
        /// Segments of a region.
        mr_iov_limit: usize,
        /// Capabilities of the domain: local or remote peers, shared vectors.
        caps: u64,
        /// Modes.
        mode: u64,
        /// The domain's authorization key.
        auth_key: *mut u8,
        /// Bytes at `auth_key`.
        auth_key_size: usize,
        /// Most bytes of an error's data.
        max_err_data: usize,
        /// Regions.
        mr_cnt: usize,
        /// Traffic class.
        tclass: u32,
        /// Authorization keys of an endpoint (2.x).
        max_ep_auth_key: usize,
        /// Greatest group number (2.x).
        max_group_id: u32,
        /// Greatest value of a counter (2.x).
        max_cntr_value: u64,
        /// Greatest value of a counter's errors (2.x).
        max_err_cntr_value: u64,
        /// Device contexts (2.x).
        max_xpu_ctx_cnt: usize,
    }

    /// The fabric and its provider.
    fi_fabric_attr {
        /// An open fabric to use.
        fabric: *mut fid_fabric,
        /// Its name.
        name: *mut c_char,
        /// The provider's name. libfabric's core fills it in.
        prov_name: *mut c_char,
        /// The provider's version.
        prov_version: u32,
        /// Which API the application asked for: decides how long its structures are.
        api_version: u32,
    }

    /// A network interface.
    fid_nic {
        /// Head; its class is `FI_CLASS_NIC`.
        fid: fid,
        /// What it is.
        device_attr: *mut fi_device_attr,
        /// Where it is plugged in.
        bus_attr: *mut fi_bus_attr,
        /// What it is connected to.
        link_attr: *mut fi_link_attr,
        /// The provider's own.
        prov_attr: *mut c_void,
    }

    /// What an interface is.
    fi_device_attr {
        /// Name.
        name: *mut c_char,
        /// Device number.
        device_id: *mut c_char,
        /// Version.
        device_version: *mut c_char,
        /// Vendor.
        vendor_id: *mut c_char,
        /// Driver.
        driver: *mut c_char,
        /// Firmware.
        firmware: *mut c_char,
    }

    /// A place on a PCI bus.
    fi_pci_attr {
        /// Domain.
        domain_id: u16,
        /// Bus.
        bus_id: u8,
        /// Device.
        device_id: u8,
        /// Function.
        function_id: u8,
    }

    /// Where an interface is plugged in.
    fi_bus_attr {
        /// `FI_BUS_*`.
        bus_type: u32,
        /// The only kind of place there is.
        attr: fi_pci_attr,
    }

    /// What an interface is connected to.
    fi_link_attr {
        /// Its address there.
        address: *mut c_char,
        /// Bytes of a packet.
        mtu: usize,
        /// Bits in a second.
        speed: usize,
        /// `FI_LINK_*`. MPICH passes over interfaces that are not up.
        state: u32,
        /// The network's kind.
        network_type: *mut c_char,
    }
}

constants! { CONSTANTS: u32;
    FI_FORMAT_UNSPEC = 0, "Addresses: any format.";
    FI_SOCKADDR = 1, "Addresses: any socket address.";
    FI_SOCKADDR_IN = 2, "Addresses: IPv4 and port.";
    FI_SOCKADDR_IN6 = 3, "Addresses: IPv6 and port.";
    FI_SOCKADDR_IB = 4, "Addresses: InfiniBand.";
    FI_ADDR_STR = 9, "Addresses: text.";
    FI_SOCKADDR_IP = 17, "Addresses: IPv4 or IPv6 and port (2.x).";
    FI_AV_UNSPEC = 0, "Vectors: whatever is there.";
    FI_AV_MAP = 1, "Vectors: numbers are the provider's.";
    FI_AV_TABLE = 2, "Vectors: numbers are indices.";
    FI_PROGRESS_UNSPEC = 0, "Progress: whatever is there.";
    FI_PROGRESS_AUTO = 1, "Progress: by itself.";
    FI_PROGRESS_MANUAL = 2, "Progress: in the application's calls.";
    FI_PROGRESS_CONTROL_UNIFIED = 3, "Progress: control calls drive data, and the other way round (2.x).";
    FI_THREAD_UNSPEC = 0, "Threads: whatever is there.";
    FI_THREAD_SAFE = 1, "Threads: any, anywhere.";
    FI_THREAD_FID = 2, "Threads: one in an object.";
    FI_THREAD_DOMAIN = 3, "Threads: one in a domain.";
    FI_THREAD_COMPLETION = 4, "Threads: one in a completion queue's or counter's objects.";
    FI_THREAD_ENDPOINT = 5, "Threads: one in an endpoint and its queues.";
    FI_RM_UNSPEC = 0, "Resource management: whatever is there.";
    FI_RM_DISABLED = 1, "Resource management: the application counts.";
    FI_RM_ENABLED = 2, "Resource management: nothing overruns.";
    FI_EP_UNSPEC = 0, "Endpoints: any.";
    FI_EP_MSG = 1, "Endpoints: connected.";
    FI_EP_DGRAM = 2, "Endpoints: unreliable datagrams.";
    FI_EP_RDM = 3, "Endpoints: reliable datagrams.";
    FI_PROTO_UNSPEC = 0, "Protocol: any.";
    FI_PROTO_SOCK_TCP = 6, "Protocol: the sockets provider's.";
    FI_PROTO_RXM = 11, "Protocol: rxm.";
    FI_PROTO_RXD = 12, "Protocol: rxd.";
    FI_PROTO_SHM = 16, "Protocol: shm.";
    FI_PROTO_RXM_TCP = 22, "Protocol: rxm over tcp.";
    FI_PROTO_XNET = 25, "Protocol: tcp.";
    FI_TAG_BITS = 0, "Tags: bits (2.x).";
    FI_TAG_MPI = 1, "Tags: MPI's (2.x).";
    FI_TAG_CCL = 2, "Tags: collective libraries' (2.x).";
    FI_TAG_MAX_FORMAT = 1 << 16, "Tags: formats are below (2.x).";
    FI_TC_UNSPEC = 0, "Traffic: any class.";
    FI_TC_DSCP = 0x100, "Traffic: a DSCP value follows.";
    FI_TC_LABEL = 0x200, "Traffic: where labels begin.";
    FI_TC_BEST_EFFORT = 0x200, "Traffic: best effort.";
    FI_TC_LOW_LATENCY = 0x201, "Traffic: low latency.";
    FI_TC_DEDICATED_ACCESS = 0x202, "Traffic: dedicated access.";
    FI_TC_BULK_DATA = 0x203, "Traffic: bulk data.";
    FI_TC_SCAVENGER = 0x204, "Traffic: what others leave.";
    FI_TC_NETWORK_CTRL = 0x205, "Traffic: network control.";
    FI_BUS_UNSPEC = 0, "Bus: not said.";
    FI_BUS_UNKNOWN = 0, "Bus: not known.";
    FI_BUS_PCI = 1, "Bus: PCI.";
    FI_LINK_UNKNOWN = 0, "Link: not known.";
    FI_LINK_DOWN = 1, "Link: down.";
    FI_LINK_UP = 2, "Link: up.";
}
