//! Connection set-up: from an address to an established link, and from an established link to news of its end.
//!
//! One [`Service`] thread per domain, blocked in epoll, does all of it for all endpoints of the domain, so that
//! endpoints never block. An endpoint asks ([`Registration::connect`]) and reads the answers in its [`Mailbox`].
//!
//! * `service` has the handles, and `commands` what they ask of the thread.
//! * `handshake` is the protocol over TCP, without I/O. TCP is the authority: it decides the identity of the peer, whether it knows the key, and
//!   which transport is used.
//! * `arbiter` decides which of several connections between two incarnations lives; `naming` where callers are looked for.
//! * `meeting` passes descriptors (`passing`) over an abstract Unix socket, where both are on one host; `degraded` is why it failed; `pairing`
//!   connects queue pairs, which the threads of `queue_pairs` make.
//! * `reactor` has the sockets, timers and listeners; `setup` is one connection being made, `drive` advances it and `settle` handles its outcome.
//!   `liveness` watches local peers afterwards.
//! * `facilities` lists what the system must allow for shared memory, and tries it.
//!
//! Rules. Exactly one connection a pair of incarnations. Every attempt ends, by success or by its timeout; so does
//! everything that a stranger starts. The initiator has the last word (over TCP `Commit`, at the meeting `Confirm`):
//! with it the connection stands on both sides. Whatever fails at the meeting degrades to the TCP connection that is
//! open already. Locks: a mailbox's and the command queue's, both held for a push or a swap and never together.
//!
//! Several endpoints may share one address, as *contexts* of a *site*: a caller's hello names the context that it wants, and is answered by that one.
//! Each is an endpoint of its own in everything else.
//!
//! A peer is its incarnation, and an address belongs to the endpoint that is met there. Before an acceptor decides, a *prober* calls the address that
//! the caller advertises, and asks whether the call was made there. A caller that is not met there gets a connection of its own at most: no name, no
//! token, and no influence on what belongs to another peer (`arbiter`).

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
pub use mailbox::{LocalBell, Made, Mailbox, Notice, PeerIdentity, ShmParts};
pub use naming::Naming;
pub use service::{EndpointOptions, Registration, Service, Site, Transports};
pub use timeouts::ConnectTimeouts;

/// Feeds arbitrary bytes to both sides of the handshake; never panics, whatever they are.
#[cfg(any(test, fuzzing))]
pub fn fuzz_handshake(bytes: &[u8]) {
    handshake::fuzz::drive(bytes);
}
