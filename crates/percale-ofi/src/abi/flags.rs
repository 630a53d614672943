//! Capabilities, operation flags, modes and orders, as bits of a `u64`. Some bits have one meaning as a capability and
//! another as an operation flag.

constants! { FLAGS: u64;
    FI_MSG = 1 << 1, "Untagged messages.";
    FI_RMA = 1 << 2, "Access to remote memory.";
    FI_TAGGED = 1 << 3, "Tagged messages.";
    FI_ATOMIC = 1 << 4, "Atomic operations on remote memory.";
    FI_ATOMICS = FI_ATOMIC, "The same as [`FI_ATOMIC`].";
    FI_MULTICAST = 1 << 5, "Messages to groups.";
    FI_COLLECTIVE = 1 << 6, "Collective operations.";
    FI_READ = 1 << 8, "Reads: a capability, a right, or a kind of operation.";
    FI_WRITE = 1 << 9, "Writes: a capability, a right, or a kind of operation.";
    FI_RECV = 1 << 10, "Receives: a capability, a right, or a kind of operation.";
    FI_SEND = 1 << 11, "Sends: a capability, a right, or a kind of operation.";
    FI_TRANSMIT = FI_SEND, "The transmit side, when binding.";
    FI_REMOTE_READ = 1 << 12, "Peers may read.";
    FI_REMOTE_WRITE = 1 << 13, "Peers may write.";
    FI_MULTI_RECV = 1 << 16, "The buffer receives several messages.";
    FI_REMOTE_CQ_DATA = 1 << 17, "Carries data for the target's completion.";
    FI_MORE = 1 << 18, "Another operation follows at once.";
    FI_PEEK = 1 << 19, "Looks for a message without receiving it.";
    FI_TRIGGER = 1 << 20, "Triggered operations.";
    FI_FENCE = 1 << 21, "Begins after earlier operations to this peer ended.";
    FI_COMPLETION = 1 << 24, "Reports a completion.";
    FI_EVENT = FI_COMPLETION, "Operates asynchronously and reports an event.";
    FI_INJECT = 1 << 25, "The buffer is free when the call returns.";
    FI_INJECT_COMPLETE = 1 << 26, "Completes when the buffer is free.";
    FI_TRANSMIT_COMPLETE = 1 << 27, "Completes when delivery no longer depends on the sender.";
    FI_DELIVERY_COMPLETE = 1 << 28, "Completes when the data has arrived in memory.";
    FI_AFFINITY = 1 << 29, "The signaling vector is the number of a processor.";
    FI_COMMIT_COMPLETE = 1 << 30, "Completes when the data is in persistent memory.";
    FI_MATCH_COMPLETE = 1 << 31, "Completes when a receive has matched the message.";
    FI_RESCAN = 1 << 35, "fi_getinfo searches for devices again (2.x).";
    FI_PEER_TRANSFER = 1 << 36, "The object belongs to another provider.";
    FI_AV_USER_ID = 1 << 41, "The application chooses the source identifiers that completions contain.";
    FI_FIREWALL_ADDR = 1 << 42, "The address is behind a firewall (2.x).";
    FI_PEER = 1 << 43, "Objects are shared between providers.";
    FI_XPU = 1 << 44, "Devices use objects directly (1.x: device triggers).";
    FI_TAGGED_DIRECTED_RECV = 1 << 45, "Directed receives for tagged messages only (2.x).";
    FI_TAGGED_MULTI_RECV = 1 << 46, "Multi-receive for tagged messages (2.x).";
    FI_HMEM = 1 << 47, "Memory of devices.";
    FI_EXACT_DIRECTED_RECV = 1 << 48, "Directed receives without a wildcard (2.x).";
    FI_RMA_PMEM = 1 << 49, "Persistent memory.";
    FI_SOURCE_ERR = 1 << 50, "Unknown sources are reported as errors with their address.";
    FI_LOCAL_COMM = 1 << 51, "Reaches peers on this machine.";
    FI_REMOTE_COMM = 1 << 52, "Reaches peers on other machines.";
    FI_SHARED_AV = 1 << 53, "Address vectors that processes share.";
    FI_PROV_ATTR_ONLY = 1 << 54, "fi_getinfo only lists the providers, usable or not.";
    FI_NUMERICHOST = 1 << 55, "The node is an address, not a name.";
    FI_RMA_EVENT = 1 << 56, "Counters of regions count remote access.";
    FI_SOURCE = 1 << 57, "Completions contain their source. In fi_getinfo: node and service are local.";
    FI_NAMED_RX_CTX = 1 << 58, "Peers choose among receive contexts.";
    FI_DIRECTED_RECV = 1 << 59, "Receives from one peer only.";
    FI_CLAIM = 1 << 59, "Claims a peeked message.";
    FI_DISCARD = 1 << 58, "Discards a peeked message.";
    FI_AUTH_KEY = 1 << 57, "The address belongs to an authorization key (2.x).";
    FI_SELECTIVE_COMPLETION = 1 << 59, "When binding: operations report completions only with FI_COMPLETION.";
    FI_REG_MR = 1 << 59, "When binding a domain: registration events.";
    FI_FETCH_ATOMIC = 1 << 58, "Queries whether fetching atomics are supported.";
    FI_COMPARE_ATOMIC = 1 << 59, "Queries whether comparing atomics are supported.";
    FI_SYMMETRIC = 1 << 59, "Each process inserts the same addresses.";
    FI_SYNC_ERR = 1 << 58, "The context is an array of error codes, one for each address.";
    FI_UNIVERSE = 1 << 57, "A set of all addresses.";
    FI_BARRIER_SET = 1 << 40, "A set for barriers.";
    FI_BROADCAST_SET = 1 << 41, "A set for broadcasts.";
    FI_ALLTOALL_SET = 1 << 42, "A set for all-to-all.";
    FI_ALLREDUCE_SET = 1 << 43, "A set for all-reduce.";
    FI_ALLGATHER_SET = 1 << 44, "A set for all-gather.";
    FI_REDUCE_SCATTER_SET = 1 << 45, "A set for reduce-scatter.";
    FI_REDUCE_SET = 1 << 46, "A set for reductions.";
    FI_SCATTER_SET = 1 << 47, "A set for scatters.";
    FI_GATHER_SET = 1 << 48, "A set for gathers.";
    FI_MR_DMABUF = 1 << 40, "The registration refers to a dma-buf (2.x).";
    FI_MR_SINGLE_USE = 1 << 41, "The registration is valid for one access (2.x).";
    FI_HMEM_HOST_ALLOC = 1 << 45, "Device memory that the host allocated.";
    FI_HMEM_DEVICE_ONLY = 1 << 46, "Device memory that only the device can access.";
}

constants! { MODES: u64;
    FI_CONTEXT = 1 << 59, "The context is a [`fi_context`](super::fi_context) that the provider may use.";
    FI_MSG_PREFIX = 1 << 58, "Buffers begin with room for the provider.";
    FI_ASYNC_IOV = 1 << 57, "Vectors stay valid until completion.";
    FI_RX_CQ_DATA = 1 << 56, "Completion data consumes a posted receive.";
    FI_LOCAL_MR = 1 << 55, "Local buffers must be registered (before 1.5).";
    FI_CONTEXT2 = 1 << 52, "The context is a [`fi_context2`](super::fi_context2) that the provider may use.";
}

constants! { ORDERS: u64;
    FI_ORDER_NONE = 0, "No order.";
    FI_ORDER_RAR = 1 << 0, "Reads after reads.";
    FI_ORDER_RAW = 1 << 1, "Reads after writes.";
    FI_ORDER_RAS = 1 << 2, "Reads after sends.";
    FI_ORDER_WAR = 1 << 3, "Writes after reads.";
    FI_ORDER_WAW = 1 << 4, "Writes after writes.";
    FI_ORDER_WAS = 1 << 5, "Writes after sends.";
    FI_ORDER_SAR = 1 << 6, "Sends after reads.";
    FI_ORDER_SAW = 1 << 7, "Sends after writes.";
    FI_ORDER_SAS = 1 << 8, "Sends after sends.";
    FI_ORDER_STRICT = 0x1FF, "All of the above.";
    FI_ORDER_DATA = 1 << 16, "Received data is written to memory in order.";
    FI_ORDER_RMA_RAR = 1 << 32, "RMA reads after RMA reads.";
    FI_ORDER_RMA_RAW = 1 << 33, "RMA reads after RMA writes.";
    FI_ORDER_RMA_WAR = 1 << 34, "RMA writes after RMA reads.";
    FI_ORDER_RMA_WAW = 1 << 35, "RMA writes after RMA writes.";
    FI_ORDER_ATOMIC_RAR = 1 << 36, "Atomic reads after atomic reads.";
    FI_ORDER_ATOMIC_RAW = 1 << 37, "Atomic reads after atomic writes.";
    FI_ORDER_ATOMIC_WAR = 1 << 38, "Atomic writes after atomic reads.";
    FI_ORDER_ATOMIC_WAW = 1 << 39, "Atomic writes after atomic writes.";
}

constants! { SPECIAL: u64;
    FI_ADDR_UNSPEC = u64::MAX, "Unspecified address: any peer, or no peer.";
    FI_ADDR_NOTAVAIL = u64::MAX, "No address.";
    FI_KEY_NOTAVAIL = u64::MAX, "No key.";
}

constants! { COUNTS: usize;
    FI_SHARED_CONTEXT = usize::MAX, "As a number of contexts: a shared context.";
    FI_AV_AUTH_KEY = usize::MAX, "As the size of a key: the keys are in the address vector (2.x).";
}

constants! { MR_MODES: i32;
    FI_MR_UNSPEC = 0, "Unspecified.";
    FI_MR_BASIC = 1 << 0, "Before 1.5: virtual addresses, mapped memory, keys chosen by the provider.";
    FI_MR_SCALABLE = 1 << 1, "Before 1.5: offsets, any memory, keys chosen by the application.";
    FI_MR_LOCAL = 1 << 2, "Local buffers must be registered.";
    FI_MR_RAW = 1 << 3, "Keys longer than 8 bytes.";
    FI_MR_VIRT_ADDR = 1 << 4, "Remote addresses are virtual addresses, not offsets.";
    FI_MR_ALLOCATED = 1 << 5, "Memory must be mapped when it is registered.";
    FI_MR_PROV_KEY = 1 << 6, "The provider chooses keys.";
    FI_MR_MMU_NOTIFY = 1 << 7, "The application reports when memory was mapped.";
    FI_MR_RMA_EVENT = 1 << 8, "Regions with counters are enabled explicitly.";
    FI_MR_ENDPOINT = 1 << 9, "Regions are bound to endpoints and enabled.";
    FI_MR_HMEM = 1 << 10, "Device memory must be registered.";
    FI_MR_COLLECTIVE = 1 << 11, "Buffers of collectives must be registered.";
    FI_MR_XPU_DESC = 1 << 12, "Devices fetch descriptors explicitly (2.x).";
}
