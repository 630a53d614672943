//! Testing your program: the simulated network, injected faults, and real faults.
//!
//! # The simulated network
//! With the feature `sim`, endpoints of one process can communicate over a simulated network. It has a virtual clock
//! and a seed: the seed and the order of calls determine all delays, the order of arrival on different connections, the
//! fragmentation of messages, and losses. A single-threaded test with the same seed produces the same events.
//!
//! ```toml
//! [dev-dependencies]
//! percale = { path = "percale/crates/percale", features = ["sim"] }
//! ```
//!
//! The method `simulated` of [`DomainBuilder`] makes a domain use the network. Everything else is the same: endpoints,
//! vectors, regions, collectives, events. Any IP addresses and ports can be used, because no socket is opened.
//!
//! ```
//! # #[cfg(feature = "sim")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::Info;
//! use percale::transport::sim::{Network, SimOptions};
//!
//! /// Returns how long a round trip took, in virtual nanoseconds.
//! fn round_trip(seed: u64) -> Result<u64, Box<dyn std::error::Error>> {
//!     let network = Network::new(seed, SimOptions { delay: (1_000, 50_000), ..SimOptions::default() });
//!     let domain = Info::discover()?.domain().simulated(&network).open()?;
//!     let vector = domain.address_vector().build()?;
//!     let client = domain.endpoint().vector(&vector).bind("10.0.0.1:7000")?;
//!     let server = domain.endpoint().vector(&vector).bind("10.0.0.2:7000")?;
//!     let (to_client, to_server) = (vector.insert(client.address())?, vector.insert(server.address())?);
//!
//!     let mut request = server.recv(vec![0; 64]).from(to_client).start()?;
//!     let mut reply = client.recv(vec![0; 64]).from(to_server).start()?;
//!     let sent = client.send(to_server, "request").start()?;
//!     while !request.is_ready() | !sent.is_ready() {} // `|` makes progress on both, and moves the clock
//!     let answered = server.send(to_client, request.wait()?.to_vec()).start()?;
//!     while !reply.is_ready() | !answered.is_ready() {}
//!     assert_eq!(reply.wait()?.to_vec(), b"request");
//!     Ok(network.now())
//! }
//!
//! assert_eq!(round_trip(1)?, round_trip(1)?); // the same seed gives the same result
//! # Ok(()) }
//! # #[cfg(not(feature = "sim"))]
//! # fn main() {}
//! ```
//!
//! * In a single-threaded test, do not call `wait` while another endpoint of the test has to make progress, because
//!   `wait` does not drive that endpoint. Use `start` and `is_ready`, as above, or futures.
//! * `Network::advance` moves the clock, so that frames in flight arrive. Timeouts of percale use the real clock.
//! * `Network::trace` returns all events of the network. Print the seed of a failed test, and run the test again with
//!   that seed.
//!
//! # Lost connections
//! `SimOptions::loss` is the probability, per million, that sending a frame loses the connection. `Network::lose` loses
//! one connection at once. Both endpoints detect the loss after the frames that were sent earlier have arrived, and the
//! operations under way fail with [`ErrorCode::PeerDied`]. The next operation connects again. Tests can therefore cover
//! the error handling of [chapter 10](super::_10_failure) without killing a process.
//!
//! ```
//! # #[cfg(feature = "sim")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{ErrorCode, Info};
//! use percale::transport::sim::{Network, SimOptions};
//!
//! let network = Network::new(7, SimOptions::default());
//! let domain = Info::discover()?.domain().simulated(&network).open()?;
//! let vector = domain.address_vector().build()?;
//! let (client, server) = (domain.endpoint().vector(&vector).bind("10.0.0.1:1")?, domain.endpoint().vector(&vector).bind("10.0.0.2:1")?);
//! let to_server = vector.insert(server.address())?;
//! let sent = client.send(to_server, "hello").start()?;
//! let got = server.recv(vec![0; 64]).start()?;
//! while !sent.is_ready() | !got.is_ready() {}
//!
//! let mut reply = client.recv(vec![0; 64]).from(to_server).start()?;
//! network.lose(0); // connections count from 0, in the order in which they were made
//! while !reply.is_ready() {
//!     server.progress();
//! }
//! assert_eq!(reply.wait().unwrap_err().errno(), ErrorCode::PeerDied.errno());
//! # Ok(()) }
//! # #[cfg(not(feature = "sim"))]
//! # fn main() {}
//! ```
//!
//! # Tests on real transports
//! * Two endpoints of one process use the real transports, because percale treats them as two peers. Select the
//!   transport with [`DomainBuilder::transport`] and run the test once for `Shm` and once for `Tcp`, because their
//!   operations complete at different times. `PERCALE_TRANSPORT=tcp cargo test` selects it for a program that does not
//!   choose a transport.
//! * Dropping or closing an endpoint simulates a peer that shuts down normally. To test the death of a peer, start a
//!   child process and kill it, so that it runs no cleanup code.
//! * `SIGSTOP` and `SIGCONT` simulate a peer that does not answer for some time. Set short timeouts in the domain
//!   ([`peer_timeout`](DomainBuilder::peer_timeout), [`connect_timeout`](DomainBuilder::connect_timeout),
//!   [`revoke_timeout`](DomainBuilder::revoke_timeout)).
//! * `tc qdisc add dev eth0 root netem loss 100%` in a network namespace simulates a network partition.
//! * Restart a peer at the same address, and check that the program repeats its setup.
//! * Do not assert durations. Give each wait a generous timeout (`wait_for`), so that a failing test ends.
//!
//! # Checks that find most bugs
//! 1. Is every result checked? A dropped handle cancels its operation.
//! 2. Does the program still work if a peer is slow, or if messages arrive before their receives are posted?
//! 3. Is a read that overlaps a write detected ([chapter 4](super::_04_remote_memory))?
//! 4. Does every waiting loop end when the peer is gone?
//! 5. Does [`Region::close`] succeed for every region at the end?

// Imported for the links in this text.
use crate::*;
