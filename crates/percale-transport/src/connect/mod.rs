//! Connection set-up, from an address to an established link, and the detection of the end of a link.
//!
//! One [`Service`] thread per domain, which blocks in epoll, does all of this for all endpoints of the domain, so that
//! endpoints never block. An endpoint submits a request ([`EndpointRegistration::connect`]) and reads the results from
//! its [`Mailbox`].
//!
//! * `service` contains the handles, and `commands` the commands that they send to the thread.
//! * `handshake` is the protocol over TCP, without I/O. It proves the identity of the peer and whether it has the key.
//! * `arbiter` decides which transport two endpoints use, and which of several connections between two incarnations
//!   survives. `naming` determines the addresses at which callers are probed.
//! * `meeting` passes descriptors (`passing`) over an abstract Unix socket, if both endpoints are on one host.
//!   `degraded` is the reason if that fails. `pairing` connects queue pairs, which the threads of `queue_pairs` create.
//! * `reactor` contains the sockets, timers and listeners. `setup` is one connection being made, `drive` advances it
//!   and `settle` handles its outcome. `liveness` watches local peers afterwards.
//! * `facilities` lists and tests the system facilities that shared memory needs.
//!
//! In this module a *call* is a TCP connection that requests a connection between endpoints. A peer was *met* at an
//! address if a call to that address has reached it.
//!
//! Rules:
//! 1. There is exactly one connection for a pair of incarnations.
//! 2. Every attempt ends, by success or by its timeout. The same applies to everything that an unauthenticated client
//!    starts.
//! 3. The initiator sends the final message (over TCP `Commit`, at the meeting `Confirm`). With it the connection is
//!    established on both sides.
//! 4. If the meeting fails, the TCP connection that is already open is used instead.
//! 5. The locks of the mailboxes and of the command queue are held only for short changes of their queues, and never
//!    together.
//!
//! Several endpoints may share one address, as *contexts* of a *site*. A caller's hello contains the number of the
//! context that it calls, and that context answers. In all other respects each context is a separate endpoint.
//!
//! A peer is identified by its incarnation, and an address belongs to the endpoint that is met there. Before an
//! acceptor decides, a *prober* calls the address that the caller advertises, and checks whether the call was made
//! there. A caller that is not met at its address gets a connection, but no entry under an address and no token. It
//! cannot affect anything that belongs to another peer (see `arbiter`).

mod arbiter;
mod commands;
mod degraded;
mod drive;
mod error;
mod facilities;
mod handshake;
mod listen;
mod liveness;
mod mailbox;
mod meeting;
mod naming;
mod pairing;
mod passing;
mod queue_pairs;
mod reactor;
mod service;
mod settle;
mod setup;
#[cfg(all(test, not(loom)))]
mod tests;
mod timeouts;

pub use error::ConnectError;
pub use facilities::{Facility, facilities};
pub use listen::tcp_listens;
pub use mailbox::{EstablishedTransport, LocalDoorbell, Mailbox, PeerIdentity, ServiceNotice, ShmParts};
pub use naming::Naming;
pub use service::{EndpointOptions, EndpointRegistration, Service, Site, Transports};
pub use timeouts::ConnectTimeouts;

/// Passes arbitrary bytes to both sides of the handshake. Must never panic.
#[cfg(any(test, fuzzing))]
pub fn fuzz_handshake(bytes: &[u8]) {
    handshake::fuzz::drive(bytes);
}
