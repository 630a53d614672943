//! Transports: how to choose them, and which one is used for which peer.
//!
//! | transport | connects | used |
//! |---|---|---|
//! | `loopback` | an endpoint with itself | always |
//! | `shm` | processes of one user on one machine, in one network namespace | if available |
//! | `verbs` | machines with RDMA devices (InfiniBand, RoCE) | on request only |
//! | `tcp` | everything else | if no better transport works |
//! | `sim` | endpoints of one process, on a virtual clock | in tests ([chapter 13](super::_13_testing)) |
//!
//! The operations, their order and their errors are the same on all of them.
//!
//! # What works on this machine
//! [`Info`] tests each transport instead of reading version numbers. For each unavailable transport it returns the
//! reason. The command `percale info` prints the same information.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let info = percale::Info::discover()?;
//! for one in info.transports() {
//!     println!("{}: {} ({})", one.kind, if one.available { "yes" } else { "no" }, one.reason);
//! }
//! println!("a wildcard address advertises {}", info.advertised());
//! # assert!(info.transports().iter().any(|one| one.available));
//! # Ok(()) }
//! ```
//!
//! # Choosing transports
//! By default, a domain allows `shm` and `tcp`. The environment variable `PERCALE_TRANSPORT` (for example `shm,tcp` or
//! `tcp`) sets the transports of a program that does not choose them. [`DomainBuilder::transport`] takes precedence
//! over the variable. Call it several times to allow several transports.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{Info, TransportKind};
//!
//! let domain = Info::discover()?.domain().transport(TransportKind::Tcp).open()?;
//! assert_eq!(domain.transports(), [TransportKind::Loopback, TransportKind::Tcp]);
//! # Ok(()) }
//! ```
//!
//! Only `verbs` must be chosen explicitly. With `shm,verbs,tcp`, RDMA is used between machines if *both* sides chose it
//! and have an active port, and TCP otherwise. `docs/rdma.md` describes the requirements.
//!
//! # Which transport a connection uses
//! On every transport, the address of an endpoint is an IP address and a port. The first operation to a peer connects
//! to this address over TCP. The two sides then compare the transports that they allow:
//!
//! 1. Two processes of the same user, on the same running kernel and in the same network namespace, use shared memory
//!    and close the TCP connection. They create no file in `/dev/shm` or elsewhere: the memory is passed as
//!    descriptors.
//! 2. Otherwise RDMA is used if both sides chose it and a test message arrives.
//! 3. Otherwise the TCP connection is kept.
//!
//! A connection keeps its transport until it ends. Two containers on one machine normally have different network
//! namespaces, so they use TCP ([chapter 11](super::_11_clusters) shows what to change). [`Event::Connected`] reports
//! the choice to the program, and [`Endpoint::describe_peers`] returns a description for people:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{Event, EventQueue, Info};
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let other = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let other_address = other.address();
//! let events = EventQueue::default();
//! let endpoint = domain.endpoint().vector(&vector).event_queue(&events).bind("127.0.0.1:0")?;
//! let peer = vector.insert(other_address)?;
//! endpoint.send(peer, vec![1]).wait()?;
//! let Some(Event::Connected { transport, reason, .. }) = events.read() else { panic!("the send connected") };
//! println!("connected over {transport}: {reason}");
//! for (address, how) in endpoint.describe_peers() {
//!     println!("{address}: {how}");
//! }
//! # Ok(()) }
//! ```
//!
//! If two endpoints allow no common transport, operations fail with [`ErrorCode::NotConnected`], and the text of the
//! error states the reason.
//!
//! # Costs of the transports
//! | | shm | verbs | tcp |
//! |---|---|---|---|
//! | short messages | a ring in shared memory, without a system call while the receiver polls | the device, from registered buffers | a system call on each side |
//! | long messages | copied once: by both processes at the same time if the memory comes from [`Domain::allocate`], otherwise by the kernel | in frames over the queue pair | sent from and received into the buffers of the operations |
//! | remote access | by the initiator itself, after the target has answered its first access with a key | by the device, after the first access with a key; atomic operations by the target | by the target's endpoint, while it makes progress |
//! | descriptors for each peer | 4 | 1, and those of the device | 1 |
//! | locked memory for each peer | none | 656 KiB | none |
//!
//! So the *target has to make progress* for every remote access over TCP, and only for the first access with each key
//! over shared memory. To avoid this dependency, use automatic progress at the target ([chapter
//! 9](super::_09_progress)).
//!
//! # Other settings of a domain
//! | [`DomainBuilder`] method | default | meaning |
//! |---|---|---|
//! | [`interface`](DomainBuilder::interface) | the first real interface that is up | the interface with the address that a wildcard bind advertises |
//! | [`authorization_key`](DomainBuilder::authorization_key) | none | only peers with the same key can connect |
//! | [`trust`](DomainBuilder::trust) | [`Trust::SameUser`] | whether peers may access regions directly; with [`Trust::None`] the target makes every access |
//! | [`connect_timeout`](DomainBuilder::connect_timeout) | 5 s and 3 min | how long establishing a connection may take: 5 s until the peer's host accepts it, and 3 min in total until the peer's process answers |
//! | [`peer_timeout`](DomainBuilder::peer_timeout) | 20 s | how long a TCP peer may be unreachable |
//! | [`revoke_timeout`](DomainBuilder::revoke_timeout) | 1 s | how long closing a region waits for a peer that is in the middle of an access |
//! | [`unexpected_cap`](DomainBuilder::unexpected_cap) | 64 MiB for each peer | memory for messages that have arrived before their receives |
//! | [`progress`](DomainBuilder::progress) | [`Progress::Manual`] | which threads make progress |

// Imported for the links in this text.
use crate::*;
