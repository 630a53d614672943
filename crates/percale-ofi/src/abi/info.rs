//! The hints and the results of getinfo: `fi_info` and the structures that it points to.

use std::ffi::{c_char, c_int, c_void};

use super::{fid, fid_domain, fid_fabric, fid_t, fid_xpu_ctx};

structures! { STRUCTURES;
    /// The requirements of an application, or the properties that a provider offers. In hints each attribute may be
    /// null.
    fi_info {
        /// The next entry of the list.
        next: *mut fi_info,
        /// Capabilities.
        caps: u64,
        /// The modes that the application must support (results) or supports (hints).
        mode: u64,
        /// The address format (`FI_SOCKADDR_*`).
        addr_format: u32,
        /// The size of `src_addr` in bytes.
        src_addrlen: usize,
        /// The size of `dest_addr` in bytes.
        dest_addrlen: usize,
        /// The local address.
        src_addr: *mut c_void,
        /// The peer's address.
        dest_addr: *mut c_void,
        /// A connection request, or a passive endpoint from which an active endpoint is opened.
        handle: fid_t,
        /// The attributes of the transmitting side.
        tx_attr: *mut fi_tx_attr,
        /// The attributes of the receiving side.
        rx_attr: *mut fi_rx_attr,
        /// The attributes of the endpoint.
        ep_attr: *mut fi_ep_attr,
        /// The attributes of the domain.
        domain_attr: *mut fi_domain_attr,
        /// The attributes of the fabric and the provider.
        fabric_attr: *mut fi_fabric_attr,
        /// The network interface, or null.
        nic: *mut fid_nic,
    }

    /// The attributes of the transmitting side of an endpoint.
    fi_tx_attr {
        /// Capabilities.
        caps: u64,
        /// The mode bits (fi_getinfo(3)).
        mode: u64,
        /// The default flags of operations.
        op_flags: u64,
        /// The order of messages.
        msg_order: u64,
        /// The order of completions (1.x).
        comp_order: u64,
        /// The maximum size of an injected message in bytes.
        inject_size: usize,
        /// The maximum number of outstanding operations.
        size: usize,
        /// The maximum number of local memory segments.
        iov_limit: usize,
        /// The maximum number of remote memory segments.
        rma_iov_limit: usize,
        /// The traffic class.
        tclass: u32,
    }

    /// The attributes of the receiving side of an endpoint.
    fi_rx_attr {
        /// Capabilities.
        caps: u64,
        /// The mode bits (fi_getinfo(3)).
        mode: u64,
        /// The default flags of operations.
        op_flags: u64,
        /// The order of messages.
        msg_order: u64,
        /// The order of completions (1.x).
        comp_order: u64,
        /// The size of the buffer for unexpected messages in bytes (1.x).
        total_buffered_recv: usize,
        /// The maximum number of posted receives.
        size: usize,
        /// The maximum number of memory segments.
        iov_limit: usize,
    }

    /// The attributes of an endpoint.
    fi_ep_attr {
        /// `FI_EP_*`.
        r#type: u32,
        /// `FI_PROTO_*`, or a provider-specific protocol.
        protocol: u32,
        /// The version of the protocol.
        protocol_version: u32,
        /// The maximum size of a message in bytes.
        max_msg_size: usize,
        /// The number of bytes before each message that belong to the provider.
        msg_prefix_size: usize,
        /// The maximum size in bytes for which reads after writes are ordered.
        max_order_raw_size: usize,
        /// The maximum size in bytes for which writes after reads are ordered.
        max_order_war_size: usize,
        /// The maximum size in bytes for which writes after writes are ordered.
        max_order_waw_size: usize,
        /// The format of tags: the bits of each field.
        mem_tag_format: u64,
        /// The number of transmit contexts.
        tx_ctx_cnt: usize,
        /// The number of receive contexts.
        rx_ctx_cnt: usize,
        /// The size of `auth_key` in bytes.
        auth_key_size: usize,
        /// The authorization key of the endpoint.
        auth_key: *mut u8,
        /// A device context (2.x).
        xpu_ctx: *mut fid_xpu_ctx,
    }

    /// The attributes of a domain. The fields after `mr_iov_limit` exist since 1.5 or later.
    fi_domain_attr {
        /// An open domain to use.
        domain: *mut fid_domain,
        /// The name.
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
        /// The size of a key in bytes.
        mr_key_size: usize,
        /// The size of remote completion data in bytes.
        cq_data_size: usize,
        /// The maximum number of completion queues.
        cq_cnt: usize,
        /// The maximum number of endpoints.
        ep_cnt: usize,
        /// The maximum number of transmit contexts.
        tx_ctx_cnt: usize,
        /// The maximum number of receive contexts.
        rx_ctx_cnt: usize,
        /// The maximum number of transmit contexts of an endpoint.
        max_ep_tx_ctx: usize,
        /// The maximum number of receive contexts of an endpoint.
        max_ep_rx_ctx: usize,
        /// The maximum number of endpoints of a shared transmit context.
        max_ep_stx_ctx: usize,
        /// The maximum number of endpoints of a shared receive context.
        max_ep_srx_ctx: usize,
        /// The maximum number of counters.
        cntr_cnt: usize,
        /// The maximum number of segments of a region.
        mr_iov_limit: usize,
        /// Capabilities of the domain: local or remote peers, shared vectors.
        caps: u64,
        /// The mode bits (fi_getinfo(3)).
        mode: u64,
        /// The domain's authorization key.
        auth_key: *mut u8,
        /// The size of `auth_key` in bytes.
        auth_key_size: usize,
        /// The maximum size of error data in bytes.
        max_err_data: usize,
        /// The maximum number of regions.
        mr_cnt: usize,
        /// The traffic class.
        tclass: u32,
        /// The maximum number of authorization keys of an endpoint (2.x).
        max_ep_auth_key: usize,
        /// The maximum group number (2.x).
        max_group_id: u32,
        /// The maximum value of a counter (2.x).
        max_cntr_value: u64,
        /// The maximum number of errors of a counter (2.x).
        max_err_cntr_value: u64,
        /// The maximum number of device contexts (2.x).
        max_xpu_ctx_cnt: usize,
    }

    /// The attributes of a fabric and its provider.
    fi_fabric_attr {
        /// An open fabric to use.
        fabric: *mut fid_fabric,
        /// The name.
        name: *mut c_char,
        /// The name of the provider. libfabric's core sets it.
        prov_name: *mut c_char,
        /// The provider's version.
        prov_version: u32,
        /// The API version that the application requested, which determines the size of its structures.
        api_version: u32,
    }

    /// A network interface card.
    fid_nic {
        /// The common object header, of class `FI_CLASS_NIC`.
        fid: fid,
        /// The attributes of the device.
        device_attr: *mut fi_device_attr,
        /// The attributes of the bus.
        bus_attr: *mut fi_bus_attr,
        /// The attributes of the link.
        link_attr: *mut fi_link_attr,
        /// Provider-specific attributes.
        prov_attr: *mut c_void,
    }

    /// The attributes of a network device.
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

    /// A PCI address.
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

    /// The attributes of the bus of a network device.
    fi_bus_attr {
        /// `FI_BUS_*`.
        bus_type: u32,
        /// The PCI address, the only kind of bus attributes.
        attr: fi_pci_attr,
    }

    /// The attributes of the link of a network device.
    fi_link_attr {
        /// The address of the interface.
        address: *mut c_char,
        /// The maximum packet size in bytes.
        mtu: usize,
        /// The speed in bits per second.
        speed: usize,
        /// `FI_LINK_*`. MPICH ignores interfaces that are not up.
        state: u32,
        /// The type of the network.
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
    FI_AV_UNSPEC = 0, "Vectors: unspecified, any type.";
    FI_AV_MAP = 1, "Vectors: the provider chooses the values of addresses.";
    FI_AV_TABLE = 2, "Vectors: the values of addresses are indices.";
    FI_PROGRESS_UNSPEC = 0, "Progress: unspecified, any model.";
    FI_PROGRESS_AUTO = 1, "Progress: automatic.";
    FI_PROGRESS_MANUAL = 2, "Progress: in the application's calls.";
    FI_PROGRESS_CONTROL_UNIFIED = 3, "Progress: manual; the application serializes control and data calls (2.x).";
    FI_THREAD_UNSPEC = 0, "Threads: unspecified, any model.";
    FI_THREAD_SAFE = 1, "Threads: any thread may use any object.";
    FI_THREAD_FID = 2, "Threads: one at a time for each object.";
    FI_THREAD_DOMAIN = 3, "Threads: one at a time for each domain.";
    FI_THREAD_COMPLETION = 4, "Threads: one at a time for the objects of a completion queue or counter.";
    FI_THREAD_ENDPOINT = 5, "Threads: one at a time for an endpoint and its queues.";
    FI_RM_UNSPEC = 0, "Resource management: unspecified.";
    FI_RM_DISABLED = 1, "Resource management: the application prevents overruns.";
    FI_RM_ENABLED = 2, "Resource management: the provider prevents overruns.";
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
    FI_TAG_MAX_FORMAT = 1 << 16, "Tags: upper limit of the formats (2.x).";
    FI_TC_UNSPEC = 0, "Traffic: any class.";
    FI_TC_DSCP = 0x100, "Traffic: the low bits are a DSCP value.";
    FI_TC_LABEL = 0x200, "Traffic: the first label.";
    FI_TC_BEST_EFFORT = 0x200, "Traffic: best effort.";
    FI_TC_LOW_LATENCY = 0x201, "Traffic: low latency.";
    FI_TC_DEDICATED_ACCESS = 0x202, "Traffic: dedicated access.";
    FI_TC_BULK_DATA = 0x203, "Traffic: bulk data.";
    FI_TC_SCAVENGER = 0x204, "Traffic: lowest priority.";
    FI_TC_NETWORK_CTRL = 0x205, "Traffic: network control.";
    FI_BUS_UNSPEC = 0, "Bus: unspecified.";
    FI_BUS_UNKNOWN = 0, "Bus: not known.";
    FI_BUS_PCI = 1, "Bus: PCI.";
    FI_LINK_UNKNOWN = 0, "Link: not known.";
    FI_LINK_DOWN = 1, "Link: down.";
    FI_LINK_UP = 2, "Link: up.";
}
