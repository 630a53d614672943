//! Getting started: two processes exchange messages.
//!
//! # Requirements
//! percale needs Linux 6.1 or newer and Rust 1.95 or newer. No daemon, driver or configuration is needed. Add the crate
//! to `Cargo.toml`:
//!
//! ```toml
//! [dependencies]
//! percale = { path = "percale/crates/percale" }
//! ```
//!
//! # The objects of a program
//! | object | created by | what it is |
//! |---|---|---|
//! | [`Info`] | [`Info::discover`] | the transports of this machine, each tested |
//! | [`Domain`] | [`Info::best`], then [`DomainBuilder::open`] | settings and the resources that endpoints share: memory keys, a service thread |
//! | [`AddressVector`] | [`Domain::address_vector`] | the addresses of the peers |
//! | [`Endpoint`] | [`Domain::endpoint`], then [`EndpointBuilder::bind`] | posts operations and receives messages |
//!
//! Most programs have one of each.
//!
//! # A server and a client
//! The server waits for a request and sends a reply. The addresses of its clients are not known beforehand, so each
//! client sends its own address first. The example runs both functions as threads. With two processes, each function
//! would be a `main`.
//!
//! ```
//! use std::net::SocketAddr;
//! use std::sync::mpsc::Sender;
//!
//! use percale::Info;
//!
//! type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
//!
//! fn server(started: Sender<SocketAddr>) -> Outcome<()> {
//!     let domain = Info::discover()?.best()?.open()?;
//!     let vector = domain.address_vector().build()?;
//!     let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?; // port 0: any free port
//!     started.send(endpoint.address())?; // two processes: print it, or pass it on as chapter 11 shows
//!
//!     let hello = endpoint.recv(vec![0; 64]).wait()?; // a message from any sender
//!     let client = vector.insert(String::from_utf8(hello.to_vec())?.as_str())?;
//!     let request = endpoint.recv(vec![0; 4096]).from(client).wait()?; // a message from this client
//!     let sum: u64 = request.to_vec().iter().map(|&byte| u64::from(byte)).sum();
//!     endpoint.send(client, sum.to_le_bytes().to_vec()).wait()?;
//!     Ok(())
//! }
//!
//! fn client(server: SocketAddr) -> Outcome<u64> {
//!     let domain = Info::discover()?.best()?.open()?;
//!     let vector = domain.address_vector().build()?;
//!     let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//!
//!     let server = vector.insert(server)?; // no packet is sent: the first operation connects
//!     endpoint.send(server, endpoint.address().to_string()).wait()?;
//!     endpoint.send(server, vec![1, 2, 3]).wait()?;
//!     let reply = endpoint.recv(vec![0; 8]).from(server).wait()?;
//!     Ok(u64::from_le_bytes(reply.to_vec().as_slice().try_into()?))
//! }
//!
//! # fn main() -> Outcome<()> {
//! let (started, address) = std::sync::mpsc::channel();
//! let server = std::thread::spawn(move || server(started));
//! assert_eq!(client(address.recv()?)?, 6);
//! server.join().expect("the server does not panic")?;
//! # Ok(()) }
//! ```
//!
//! # What happened
//! * [`Info::discover`] tested the transports of this machine. [`Info::best`] returns a builder with all transports
//!   that work, or an error with the reasons.
//! * [`bind`](EndpointBuilder::bind) opened a TCP port. [`Endpoint::address`] is the address that peers insert. To
//!   accept connections from other machines, bind to `0.0.0.0:0`. The endpoint then advertises one concrete address
//!   ([`Info::advertised`] returns the address and the reason for the choice).
//! * [`insert`](AddressVector::insert) assigned a number to the peer. It resolves names (`"node7:7471"`) but sends
//!   nothing to the peer.
//! * The first send connected the two endpoints. Both belong to one user on one machine, so they continued over shared
//!   memory. On two machines they would have used TCP. [`Endpoint::describe_peers`] returns the transport of each peer
//!   and the reason.
//! * Each operation took ownership of its buffer and returned it. While an operation is under way, no other code can
//!   reach the buffer. A buffer is a `Vec<u8>`, a `String`, a `Box<[u8]>` or memory of [`Domain::allocate`]; a send
//!   also takes `&'static` data and `Arc<[u8]>`. To reuse a buffer without a copy, take it from the result
//!   (`sent.buffer`, `received.buffer`).
//! * [`wait`](crate::endpoint::safe::SendRequest::wait) blocked until the operation had completed, and made progress
//!   for the endpoint meanwhile.
//!
//! # Three ways to run a request
//! A request such as `endpoint.send(peer, buffer)` does nothing until one of these calls:
//!
//! * `.wait()` posts the operation and blocks until it has completed.
//! * `.start()` posts it and returns a handle. Several operations can be under way at a time. Call `wait` on the handle
//!   later. Dropping the handle cancels the operation if that is still possible. To wait with a timeout, write
//!   `.start()?.wait_for(duration)`.
//! * `.await` posts it and waits asynchronously, in any runtime.
//!
//! # Key points
//! * **An endpoint only advances inside its calls.** A program that computes for a second does not receive messages,
//!   answer peers or serve accesses over TCP during that second. [Chapter 9](super::_09_progress) shows the
//!   alternative: automatic progress.
//! * **A peer must be in the address vector** before it can be the target of an operation or be named in `.from(peer)`.
//!   The sender of a message can be answered in any case ([chapter 3](super::_03_messages)).
//! * **A message may be lost after its send has completed** if the receiver dies before it receives the message.
//!   [Chapter 3](super::_03_messages) explains `delivered()`.
//!
//! # More programs
//! `crates/percale/examples` contains complete programs, which `cargo run -p percale --example NAME` runs:
//!
//! | program | shows |
//! |---|---|
//! | `hello_server`, `hello_client` | two processes and one message |
//! | `ping_pong`, `tagged`, `tokio` | messages: blocking, with tags, in tasks |
//! | `rpc` | an RPC server, with a task for each request and for each call |
//! | `key_value` | a key-value store on remote reads |
//! | `work_queue` | workers that share a queue by compare-and-swap |
//! | `halo_exchange` | neighbours that exchange the edges of their cells in each step |
//! | `parameter_broadcast` | collectives: parameters to all members, and the sum of their gradients |
//! | `bulk_mover` | remote writes with 64 transfers in flight |
//! | `one_sided`, `leases` | remote memory: reads, writes, atomic operations, windows that expire |
//! | `contexts` | several endpoints behind one address |
//! | `fixed_buffers` | io_uring's fixed buffers |
//!
//! Continue with [transports](super::_02_transports).

// Imported for the links in this text.
use crate::*;
