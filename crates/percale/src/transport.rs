//! The transports, which connect two endpoints.
//!
//! [`Info`](crate::Info) lists the transports of this machine, and [`DomainBuilder`](crate::DomainBuilder) selects
//! those that a domain may use. With the feature `sim`, this module contains the simulated network for tests. The links
//! of the transports are not part of the API: they are in the internal crate `percale-transport`, whose first page
//! describes the rules for every transport.

#[cfg(all(test, not(loom)))]
pub(crate) use percale_transport::testing;
pub(crate) use percale_transport::{
    Broken, ConnectionId, Landing, Link, PullError, Refused, Sink, any, background, doorbell_allocator, host, kind,
    peer_process,
};

/// The functions of the stream protocol that the engine needs.
pub(crate) mod stream {
    pub(crate) use percale_transport::{expected_pull, refused_pull};
}

pub(crate) mod connect {
    pub(crate) use percale_transport::connect::{
        ConnectError, ConnectTimeouts, EndpointOptions, EndpointRegistration, EstablishedTransport, Facility,
        LocalDoorbell, Mailbox, Naming, PeerIdentity, Service, ServiceNotice, ShmParts, Site, Transports, facilities,
        tcp_listens,
    };
}

pub(crate) mod loopback {
    pub(crate) use percale_transport::loopback::LoopbackLink;
}

pub(crate) mod shm {
    pub(crate) use percale_transport::shm::{
        ASSISTED, DirectError, Doorbell, DrainingLink, GrantIndex, LongAccess, Lookup, PeekResult, ShmLink,
        ShmLinkParts, WakeMethod,
    };
    #[cfg(all(test, not(loom)))]
    pub(crate) use percale_transport::shm::{DOORBELL_BITS, DOORBELL_BYTES, ForgedLine, PAIR_BYTES, SetUpError};
}

#[cfg(any(test, feature = "sim"))]
pub mod sim {
    //! A deterministic network for tests. It has connections within one process and a virtual clock.
    //!
    //! A [`Network`] connects the endpoints of its domains. The delay of each frame is random. Frames of one connection
    //! never overtake each other, but frames of different connections may. At random, frames arrive in pieces and
    //! connections are lost. The seed and the order of calls determine everything, and every connection has its own
    //! random numbers. So the same test with the same seed produces the same events ([`Network::trace`]), and an
    //! additional connection does not change anything for the others.
    //!
    //! The clock advances by a tick with every poll of a connection, and by [`Network::advance`].

    #[doc(inline)]
    pub use percale_transport::sim::{EventKind, Network, SimEvent, SimOptions};
    /// The frames in a [trace](Network::trace). They belong to the internal crate `percale-wire`, so they may change
    /// with any version.
    #[doc(hidden)]
    pub use percale_wire::head::{Flags, FrameKind, Head};

    pub(crate) use percale_transport::sim::{SimNotice, SimPort, SimSite};
}
#[cfg(not(any(test, feature = "sim")))]
pub(crate) use percale_transport::sim;

pub(crate) mod tcp {
    pub(crate) use percale_transport::tcp::{TcpLink, TcpOptions};
}

pub(crate) mod verbs {
    pub(crate) use percale_transport::verbs::{Adapter, Pins, PostFailure, VerbsLink};
    #[cfg(all(feature = "verbs", not(loom)))]
    pub(crate) use percale_transport::verbs::{EarlyRegistration, Registers, VerbsRegistrar};
    #[cfg(all(test, feature = "verbs", not(loom)))]
    pub(crate) use percale_transport::verbs::{QueuePairEnd, Rights, double, testing};
}
