//! Transports: how the two ends of one connection reach each other.
//!
//! A link is one end of an established connection. It carries frames in order, both ways, and moves the payloads of offers by whatever means it
//! has. It knows nothing of matching, completions or addresses: it reports to a [`Sink`] (the endpoint's engine) what arrived. Links are owned by one
//! endpoint and used by one thread at a time.
//!
//! Rules every transport keeps (the conformance suite tests them):
//! * Frames arrive whole, once, in the order sent, or not at all: then the link reports [`Broken`], after
//!   everything that did arrive was given to the sink.
//! * `send` never blocks. What does not fit is refused with [`Refused::Full`] and nothing of it was sent.
//! * What a peer wrote is never trusted: anything malformed is [`Broken::Protocol`].
//! * The memory of a pull or a push is a [`Lease`](crate::memory::Lease): the code that copies enters it around one bounded copy or system call that
//!   does not block, and has left it when the call into the link returns. If the memory is revoked meanwhile, the transfer fails at both ends and
//!   nothing else does.

#[doc(inline)]
pub use percale_transport::{Broken, Connection, Landing, PullError, Refused, Sink};

#[cfg(all(test, not(loom)))]
pub(crate) use percale_transport::testing;
pub(crate) use percale_transport::{Link, any, background, doorbell, kind, peer_process};

/// What the engine needs of a stream's protocol.
pub(crate) mod stream {
    pub(crate) use percale_transport::{expected_pull, refused_pull};
}

pub mod connect {
    //! Connection set-up: from an address to an established link, and from an established link to news of its end.
    //!
    //! One [`Service`] thread per domain, blocked in epoll, does all of it for all endpoints of the domain, so that
    //! endpoints never block. An endpoint asks ([`Registration::connect`]) and reads the answers in its [`Mailbox`].

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
    //! This host, this network namespace, this user, and the address that a wildcard bind advertises.
    //!
    //! Nothing here is cached: a process may move between namespaces, and interfaces come and go.

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
    //! A pair of endpoints shares one sealed memfd ([`pair_memory`]) with a ring in each direction; each endpoint has a doorbell
    //! ([`Bell`]) that its peers map. A [`ShmLink`] is one end of the connection. Small frames are copied into the ring and out
    //! of it; the payloads of offers are copied once, from memory to memory, by both sides.
    //!
    //! The peer may write anything to the pair's memory at any time. Words are read once and checked, and only the copy is used;
    //! a payload is a [`View`](crate::memory::volatile::View). No value from the peer decides where this process reads or writes
    //! in its own memory.

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
    //! A deterministic network, for tests: connections within one process, on a virtual clock.
    //!
    //! A [`Network`] makes pairs of [`SimLink`]s. What travels between them takes a time drawn for each frame; frames never
    //! overtake each other within a connection, but freely between connections. Frames may be given to the sink in pieces
    //! and connections may be lost, at random. Everything follows from the seed and from the order of calls, and every
    //! connection has a stream of numbers of its own: the same test with the same seed sees the same events
    //! ([`Network::trace`]), and a further connection changes nothing for the others.
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
    //! A reset or an end without a goodbye is [`Broken::Died`](super::Broken::Died), after a goodbye
    //! [`Broken::Closed`](super::Broken::Closed); a peer or network that goes silent is [`Broken::Timeout`](super::Broken::Timeout)
    //! ([`TcpOptions::timeout`]). Whatever came before is delivered first.

    #[doc(inline)]
    pub use percale_transport::tcp::TcpOptions;
    #[cfg(fuzzing)]
    pub use percale_transport::tcp::fuzz_stream;

    pub(crate) use percale_transport::tcp::TcpLink;
}

pub mod verbs {
    //! RDMA over libibverbs: InfiniBand, RoCE, or the kernel's own RoCE in software.
    //!
    //! * Safe, small wrappers (percale-verbs), each of which keeps alive what it needs: `Context`, `ProtectionDomain`, `MemoryRegion`,
    //!   `CompletionChannel`, `CompletionQueue`, `QueuePair`, `Window`. They add no thread and no lock on the way of a
    //!   request. In a forked child they end nothing: what they name is the parent's.
    //! * `VerbsRegistrar` registers any memory, for a cache; `Reach` reads and writes it through the device.
    //! * [`Adapter`] chooses device, port and address, or reports what is missing.
    //! * [`Wire`] is a byte stream over a queue pair, which carries the frames that TCP carries.

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
