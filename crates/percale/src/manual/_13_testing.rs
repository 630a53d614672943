//! Testing your program: the simulated network, injected faults, and real faults.
//!
//! # The simulated network
//! With the feature `sim`, endpoints of one process can communicate over a simulated network. It has a virtual clock and a seed: delays,
//! the order of arrival on different connections, pieces of messages, and losses all follow from the seed and from the order of calls. A
//! single-threaded test with the same seed sees the same events.
//!
//! ```toml
//! [dev-dependencies]
//! percale = { path = "percale/crates/percale", features = ["sim"] }
//! ```
//!
//! A domain gets the network by [`DomainBuilder`]'s `simulated`. Everything else is the same: endpoints, vectors, regions, collectives,
//! events. Addresses are any IP addresses and ports; no socket is opened.
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
//!     let request = server.recv(vec![0; 64]).from(to_client).start()?;
//!     let reply = client.recv(vec![0; 64]).from(to_server).start()?;
//!     let sent = client.send(to_server, "request").start()?;
//!     while !request.is_ready() | !sent.is_ready() {} // `|` makes progress on both, and moves the clock
//!     let answered = server.send(to_client, request.wait()?.to_vec()).start()?;
//!     while !reply.is_ready() | !answered.is_ready() {}
//!     assert_eq!(reply.wait()?.to_vec(), b"request");
//!     Ok(network.now())
//! }
//!
//! assert_eq!(round_trip(1)?, round_trip(1)?); // a seed repeats
//! # Ok(()) }
//! # #[cfg(not(feature = "sim"))]
//! # fn main() {}
//! ```
//!
//! * In a single thread do not call `wait` while another endpoint of the test has to make progress: nothing would drive it. Use `start` and
//!   `is_ready`, as above, or futures.
//! * `Network::advance` moves the clock, so that frames on their way arrive. Timeouts of percale use the real clock.
//! * `Network::trace` returns everything that happened. Print the seed of a failed test, and run it again.
//!
//! # Lost connections
//! `SimOptions::loss` loses a connection now and then (probability of each frame, in a million), and `Network::lose` loses one at a chosen
//! moment. The two ends notice it after what was sent before has arrived, and the operations under way fail with [`ErrorCode::PeerDied`].
//! The next operation connects again. So tests reach every path of [chapter 10](super::_10_failure) without killing a process.
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
//! let reply = client.recv(vec![0; 64]).from(to_server).start()?;
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
//! * Two endpoints of one process use the real transports, because percale treats them as two peers. Choose each by
//!   [`DomainBuilder::transport`] and run the test once for `Shm` and once for `Tcp`: their completions come at different moments.
//!   `PERCALE_TRANSPORT=tcp cargo test` does the same for a program that does not choose.
//! * Dropping or closing an endpoint is a peer that ends in good order. For a peer that dies, start a child process and kill it: no exit code runs.
//! * `SIGSTOP` and `SIGCONT` make a peer that does not answer for a while. Set short timeouts in the domain
//!   ([`peer_timeout`](DomainBuilder::peer_timeout), [`connect_timeout`](DomainBuilder::connect_timeout),
//!   [`revoke_timeout`](DomainBuilder::revoke_timeout)).
//! * `tc qdisc add dev eth0 root netem loss 100%` in a network namespace makes a partition.
//! * Restart a peer at the same address, and check that the program repeats its introduction.
//! * Never assert a time. Give each wait a generous timeout (`wait_for`), so that a failed test ends.
//!
//! # Checks that find most errors
//! 1. Is each result looked at? A dropped handle cancels its operation.
//! 2. Does the program still work if each peer is slow, and if messages come before their receives?
//! 3. Is a read that overlaps a write detected ([chapter 4](super::_04_remote_memory))?
//! 4. Does each loop that waits end when the peer is gone?
//! 5. Does the program get all its memory back: does [`Region::close`] succeed at the end?

// For the links in this text.
use crate::*;
