//! Transports: choosing them, and which one is used for which peer.
//!
//! | transport | connects | used |
//! |---|---|---|
//! | `loopback` | an endpoint with itself | always |
//! | `shm` | processes of one user on one machine, in one network namespace | where it works |
//! | `verbs` | machines with RDMA devices (InfiniBand, RoCE) | on request only |
//! | `tcp` | everything else | where nothing better works |
//! | `sim` | endpoints of one process, on a virtual clock | in tests ([chapter 13](super::_13_testing)) |
//!
//! The operations, their order and their errors are the same on all of them.
//!
//! # What works on this machine
//! [`Info`] tests each transport instead of reading version numbers. For each transport that is unavailable it has the reason. The command
//! `percale info` prints the same.
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
//! Without a choice a domain allows `shm` and `tcp`. The environment variable `PERCALE_TRANSPORT`, for example `shm,tcp` or `tcp`, chooses for a
//! program that does not. [`DomainBuilder::transport`] chooses in the program and takes precedence; several calls allow several transports.
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
//! Only `verbs` has to be chosen: `shm,verbs,tcp` uses RDMA between machines where *both* sides chose it and have an active port, and TCP
//! otherwise. `docs/rdma.md` describes what it needs.
//!
//! # Which transport a connection uses
//! The address of an endpoint is an IP address and a port, whatever the transport. The first operation to a peer connects there over TCP. The two
//! sides compare what they allow:
//!
//! 1. Two processes of the same boot of a kernel, the same network namespace and the same user use shared memory, and close the TCP connection. No
//!    file is left in `/dev/shm` or elsewhere: the memory is passed as descriptors.
//! 2. Otherwise RDMA is used if both sides chose it and a test message arrives.
//! 3. Otherwise the TCP connection is kept.
//!
//! A connection keeps its transport until it ends. Two containers on one machine normally have different network namespaces, so they use TCP
//! ([chapter 11](super::_11_clusters) shows what to change). Programs read the choice from [`Event::Connected`], people from
//! [`Endpoint::describe_peers`]:
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
//! If two endpoints allow no common transport, operations fail with
//! [`ErrorCode::NotConnected`], and the error's text has the reason.
//!
//! # What the transports cost and who copies
//! | | shm | verbs | tcp |
//! |---|---|---|---|
//! | messages of at most 2 KiB | a ring in shared memory, without a system call while the receiver polls | the device, from registered buffers | a system call on each side |
//! | long messages | copied once, by both processes at the same time, if the memory is of [`Domain::allocate`]; else once, by the kernel | in frames over the queue pair | sent from and received into the buffers of the operations |
//! | remote access | by the initiator itself, after the target has answered its first access by a key | by the device, after the first access by a key; atomic operations by the target | by the target's endpoint, while it makes progress |
//! | descriptors for a peer | 4 | 1 and the device's | 1 |
//! | locked memory for a peer | none | 656 KiB | none |
//!
//! So over TCP the *target has to make progress* for remote access, and over shared memory only for the first access. A program that must
//! not depend on this uses automatic progress at the target ([chapter 9](super::_09_progress)).
//!
//! # Other settings of a domain
//! | [`DomainBuilder`] method | default | meaning |
//! |---|---|---|
//! | [`interface`](DomainBuilder::interface) | the first real interface that is up | the interface with the address that a wildcard bind advertises |
//! | [`authorization_key`](DomainBuilder::authorization_key) | none | only peers with the same key can connect |
//! | [`trust`](DomainBuilder::trust) | [`Trust::SameUser`] | whether peers may access regions directly; with [`Trust::None`] the target makes every access |
//! | [`connect_timeout`](DomainBuilder::connect_timeout) | 5 s, then 3 min | how long a connection may take: until the peer's host accepts, then until the peer's process answers |
//! | [`peer_timeout`](DomainBuilder::peer_timeout) | 20 s | how long a TCP peer may be unreachable |
//! | [`revoke_timeout`](DomainBuilder::revoke_timeout) | 1 s | how long closing a region waits for a peer that is in the middle of an access |
//! | [`unexpected_cap`](DomainBuilder::unexpected_cap) | 64 MiB for a peer | memory for messages without a receive |
//! | [`progress`](DomainBuilder::progress) | [`Progress::Manual`] | which threads make progress |

// For the links in this text.
use crate::*;
