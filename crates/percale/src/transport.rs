//! The transports, which carry frames and payloads between the two ends of a connection.
//!
//! A link is one end of an established connection. It carries frames in order in both directions, and moves the
//! payloads of offers with the mechanism of its transport. It does not handle matching, completions or addresses: it
//! reports what arrived to a [`Sink`] (the endpoint's engine). A link is owned by one endpoint and used by one thread
//! at a time.
//!
//! Rules for every transport (tested by the conformance suite):
//! * Each frame arrives whole and exactly once, and frames arrive in the order in which they were sent. Otherwise the
//!   link reports [`Broken`], after it has passed everything that did arrive to the sink.
//! * `send` never blocks. A frame that does not fit is refused with [`Refused::Full`], and no part of it is sent.
//! * Data from a peer is never trusted: malformed input is reported as [`Broken::Protocol`].
//! * The memory of a pull or a push is a [`Lease`](crate::memory::Lease). The copying code enters the lease around one
//!   bounded copy or one system call that does not block, and has left it when the call into the link returns. If the
//!   memory is revoked in the meantime, only this transfer fails, and it fails at both ends.

#[doc(inline)]
pub use percale_transport::{Broken, Connection, Landing, PullError, Refused, Sink};

#[cfg(all(test, not(loom)))]
pub(crate) use percale_transport::testing;
pub(crate) use percale_transport::{Link, any, background, doorbell, kind, peer_process};

/// The functions of the stream protocol that the engine needs.
pub(crate) mod stream {
    pub(crate) use percale_transport::{expected_pull, refused_pull};
}

pub mod connect {
    //! Connection set-up, from an address to an established link, and the detection of the end of a link.
    //!
    //! One [`Service`] thread per domain, which blocks in epoll, does all of this for all endpoints of the domain, so
    //! that endpoints never block. An endpoint submits a request ([`Registration::connect`]) and reads the results from
    //! its [`Mailbox`].

    #[cfg(fuzzing)]
    pub use percale_transport::connect::fuzz_handshake;
    #[doc(inline)]
    pub use percale_transport::connect::{
        ConnectError, ConnectTimeouts, EndpointOptions, LocalBell, Made, Mailbox, Naming, Notice, PeerIdentity,
        Registration, Service, ShmParts, Site, Transports,
    };

    pub(crate) use percale_transport::connect::{Facility, facilities, tcp_listens};
}

pub mod host {
    //! Identification of the host, the network namespace and the user, and the address that an endpoint with a wildcard
    //! bind advertises.
    //!
    //! Nothing is cached, because a process may move between namespaces and interfaces may appear and disappear.

    #[doc(inline)]
    pub use percale_transport::host::{Interface, LinkKind, advertised, boot_id, interfaces, network_namespace, place};

    pub(crate) use percale_transport::host::best_first;
}

pub mod loopback {
    //! A link of an endpoint to itself.

    #[doc(inline)]
    pub use percale_transport::loopback::LoopbackLink;
}

pub mod shm {
    //! Shared memory: connections between processes of one machine and one user.
    //!
    //! A pair of endpoints shares one sealed memfd ([`pair_memory`]) with a ring in each direction, and each endpoint
    //! has a doorbell ([`Bell`]) that its peers map. A [`ShmLink`] is one end of the connection. Small frames are
    //! copied into the ring and out of it. The payloads of offers are copied once, from memory to memory: through a
    //! mapping if percale allocated the memory, and otherwise by the kernel. If neither is possible, they go through
    //! the ring.
    //!
    //! The peer may write anything to the pair's memory at any time. Each word is read once, and only the copy that was
    //! read is checked and used. A payload is a [`View`](crate::memory::volatile::View). No value from the peer
    //! determines where this process reads or writes in its own memory.

    #[cfg(fuzzing)]
    pub use percale_transport::shm::fuzz_ring;
    #[doc(inline)]
    pub use percale_transport::shm::{
        BELL_BITS, BELL_BYTES, Bell, ConnectionEnd, Mappings, PAIR_BYTES, Parts, Rouse, SetUpError, ShmLink,
        pair_memory,
    };

    pub(crate) use percale_transport::shm::{ASSISTED, DirectError, Glance, GrantIndex, LongAccess, Lookup, Residue};
}

#[cfg(any(test, feature = "sim"))]
pub mod sim {
    //! A deterministic network for tests. It has connections within one process and a virtual clock.
    //!
    //! A [`Network`] creates pairs of [`SimLink`]s. The delay of each frame is random. Frames of one connection never
    //! overtake each other, but frames of different connections may. At random, frames are passed to the sink in pieces
    //! and connections are lost. The seed and the order of calls determine everything, and every connection has its own
    //! random numbers. So the same test with the same seed produces the same events ([`Network::trace`]), and an
    //! additional connection does not change anything for the others.
    //!
    //! The clock advances by a tick with every poll of a link, and by [`Network::advance`].

    #[doc(inline)]
    pub use percale_transport::sim::{Event, Network, Port, SimLink, SimNotice, SimOptions, SimSite, What};
}
#[cfg(not(any(test, feature = "sim")))]
pub(crate) use percale_transport::sim;

pub mod tcp {
    //! A link over a connected TCP socket.
    //!
    //! A reset, or an end of the stream without a `Bye` frame, is [`Broken::Died`](super::Broken::Died). An end after a
    //! `Bye` frame is [`Broken::Closed`](super::Broken::Closed). A silent peer or network is
    //! [`Broken::Timeout`](super::Broken::Timeout), detected by keepalive probes ([`TcpOptions::timeout`]). Data that
    //! arrived before the end is delivered first.

    #[doc(inline)]
    pub use percale_transport::tcp::TcpOptions;
    #[cfg(fuzzing)]
    pub use percale_transport::tcp::fuzz_stream;

    pub(crate) use percale_transport::tcp::TcpLink;
}

pub mod verbs {
    //! RDMA over libibverbs, with InfiniBand, RoCE, or the kernel's software RoCE.
    //!
    //! * percale-verbs contains small safe wrappers, each of which keeps the objects alive that it needs: `Context`,
    //!   `ProtectionDomain`, `MemoryRegion`, `CompletionChannel`, `CompletionQueue`, `QueuePair`, `Window`. They add no
    //!   thread and no lock to a request. In a forked child they do not destroy anything, because their objects belong
    //!   to the parent.
    //! * `VerbsRegistrar` registers any memory, for a cache. `Reach` reads and writes it through the device.
    //! * [`Adapter`] chooses the device, port and address, or reports the missing component.
    //! * [`Wire`] is a byte stream over a queue pair, which carries the same frames as TCP.

    #[cfg(all(feature = "verbs", not(loom)))]
    #[doc(inline)]
    pub use percale_transport::verbs::VerbsRegistrar;
    #[cfg(all(feature = "verbs", fuzzing))]
    pub use percale_transport::verbs::fuzz_grants;
    #[doc(inline)]
    pub use percale_transport::verbs::{Adapter, Wire};
    #[cfg(feature = "verbs")]
    #[doc(inline)]
    pub use percale_transport::verbs::{
        Backing, Binding, Completion, CompletionChannel, CompletionQueue, Context, DeviceLimits, End, Gid,
        MemoryRegion, POLLED, PairSize, Path, Port, ProtectionDomain, QueuePair, Reach, Registration, Rights,
        VerbsError, Window, WindowKind,
    };

    #[cfg(all(feature = "verbs", not(loom)))]
    pub(crate) use percale_transport::verbs::Registers;
    pub(crate) use percale_transport::verbs::{Pins, Unposted, VerbsLink};
    #[cfg(all(test, feature = "verbs", not(loom)))]
    pub(crate) use percale_transport::verbs::{double, testing};
}
