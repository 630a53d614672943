//! Transports: how two endpoints reach each other.
//!
//! [`Info`](crate::Info) lists the transports of this machine, and [`DomainBuilder`](crate::DomainBuilder) selects those that a domain may use. With
//! the feature `sim`, this module contains the simulated network for tests. The links of the transports are not part of the API: they are in the
//! internal crate `percale-transport`, whose first page describes the rules that every transport keeps.

#[cfg(all(test, not(loom)))]
pub(crate) use percale_transport::testing;
pub(crate) use percale_transport::{
    Broken, Connection, Landing, Link, PullError, Refused, Sink, any, background, doorbell, host, kind, peer_process,
};

/// What the engine needs of a stream's protocol.
pub(crate) mod stream {
    pub(crate) use percale_transport::{expected_pull, refused_pull};
}

pub(crate) mod connect {
    pub(crate) use percale_transport::connect::{
        ConnectError, ConnectTimeouts, EndpointOptions, Facility, LocalBell, Made, Mailbox, Naming, Notice,
        PeerIdentity, Registration, Service, ShmParts, Site, Transports, facilities, tcp_listens,
    };
}

pub(crate) mod loopback {
    pub(crate) use percale_transport::loopback::LoopbackLink;
}

pub(crate) mod shm {
    #[cfg(all(test, not(loom)))]
    pub(crate) use percale_transport::shm::SetUpError;
    pub(crate) use percale_transport::shm::{
        ASSISTED, Bell, DirectError, Glance, GrantIndex, LongAccess, Lookup, Parts, Residue, Rouse, ShmLink,
    };
}

#[cfg(any(test, feature = "sim"))]
pub mod sim {
    //! A deterministic network, for tests: connections within one process, on a virtual clock.
    //!
    //! A [`Network`] connects the endpoints of its domains. What travels between them takes a time drawn for each frame; frames
    //! never overtake each other within a connection, but freely between connections. Messages may arrive in pieces
    //! and connections may be lost, at random. Everything follows from the seed and from the order of calls, and every
    //! connection has a stream of numbers of its own: the same test with the same seed sees the same events
    //! ([`Network::trace`]), and a further connection changes nothing for the others.
    //!
    //! The clock advances by a tick with every poll of a connection, and by [`Network::advance`].

    #[doc(inline)]
    pub use percale_transport::sim::{Event, Network, SimOptions, What};
    /// The frames in a [trace](Network::trace). They belong to the internal crate `percale-wire`, so they may change
    /// with any version.
    #[doc(no_inline)]
    pub use percale_wire::head::{Flags, Head, Kind};

    pub(crate) use percale_transport::sim::{Port, SimNotice, SimSite};
}
#[cfg(not(any(test, feature = "sim")))]
pub(crate) use percale_transport::sim;

pub(crate) mod tcp {
    pub(crate) use percale_transport::tcp::{TcpLink, TcpOptions};
}

pub(crate) mod verbs {
    pub(crate) use percale_transport::verbs::{Adapter, Pins, Unposted, VerbsLink};
    #[cfg(all(test, feature = "verbs", not(loom)))]
    pub(crate) use percale_transport::verbs::{End, Rights, double, testing};
    #[cfg(all(feature = "verbs", not(loom)))]
    pub(crate) use percale_transport::verbs::{Registers, VerbsRegistrar};
}
