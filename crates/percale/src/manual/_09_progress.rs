//! Progress, threads and performance.
//!
//! # Progress
//! *Progress* is the work that an endpoint does: sending data that could not be sent at once, receiving, matching,
//! answering peers, and detecting lost peers.
//!
//! **Manual progress** ([`Progress::Manual`], the default) is made only inside calls of the endpoint: `wait`,
//! `is_ready`, a poll of a future, [`Endpoint::progress`], [`Endpoint::poll`]. Reading a completion queue, counter or
//! event queue, or waiting for it, makes progress on the *shared* endpoints that report to it. Between calls:
//!
//! * arriving messages stay in the transport's buffers, and a sender of long messages waits;
//! * accesses of TCP peers to this process's memory wait, and so does a local peer's first access with a key;
//! * completions, events and lost peers are not detected.
//!
//! Only connection setup continues, in the domain's service thread. Manual progress is the fastest mode for a program
//! that waits for its operations anyway. A program that computes for a long time should call `progress()` regularly.
//!
//! **Automatic progress** ([`Progress::Automatic`]) gives each shared endpoint a thread of percale that makes progress
//! whenever there is something to do, and sleeps otherwise. Handles can still be waited for in any thread. It costs a
//! lock and, for a message that arrives while the thread sleeps, a wake-up of some microseconds. This time is for a
//! machine with idle cores: if all cores are busy, the thread also waits until the kernel schedules it.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{Access, Info, Progress};
//!
//! let domain = Info::discover()?.best()?.progress(Progress::Automatic).open()?;
//! let vector = domain.address_vector().build()?;
//! let server = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?; // `bind` would be an error
//! let region = domain.register(domain.allocate(4096)?, Access::REMOTE_READ)?;
//!
//! // Another process. The server's program makes no further call.
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! let client = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! let peer = vector.insert(server.address())?;
//! let bytes = client.read(peer, region.remote(), vec![1; 4096]).wait()?;
//! assert_eq!(bytes.into_vec(), [0; 4096]);
//! # Ok(()) }
//! ```
//!
//! # Threads
//! * [`Endpoint`] has one owner and no lock. It is `Send` and not `Sync`: it can be moved to another thread, but not
//!   used by two at a time.
//! * [`SharedEndpoint`] can be used by many threads through one lock. Clone it for each thread.
//!   [`EndpointBuilder::bind_shared`] opens one, and `share()` converts an [`Endpoint`] into one. A call without
//!   contention takes about 20 ns more than on an [`Endpoint`]. If a program uses an [`Endpoint`] in a second thread or
//!   in a spawned task, the error of the compiler states this.
//! * For many cores, give each thread its own endpoint, or use a [`ScalableEndpoint`]: several contexts behind one
//!   address, each with its own thread and queues.
//! * [`Domain`], [`AddressVector`], [`Counter`] and the queues are handles that all threads may use.
//! * [`SharedEndpoint`] is `Endpoint<Shared>`. A function for both kinds of endpoints is generic over
//!   [`Ownership`]: `fn f<A: Ownership>(endpoint: &Endpoint<A>)`.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::Info;
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! let endpoint = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! let me = vector.insert(endpoint.address())?;
//! std::thread::scope(|scope| {
//!     for tag in 0..4 {
//!         let endpoint = endpoint.clone();
//!         scope.spawn(move || {
//!             endpoint.tagged_send(me, tag, vec![0; 100]).wait().expect("sent");
//!             endpoint.tagged_recv(tag, 0, vec![0; 100]).wait().expect("received");
//!         });
//!     }
//! });
//! # Ok(()) }
//! ```
//!
//! # Tasks of a runtime
//! An operation of a [`SharedEndpoint`] borrows nothing: it is `'static` and `Send`. So a task can own it, in any
//! thread of the runtime, and a future that uses a clone of the endpoint can be spawned. A struct can contain it: the
//! type of a receive is `Operation<Shared, Received>` ([`Operation`],
//! [`Shared`]). An operation in progress keeps the endpoint open. An operation of an
//! [`Endpoint`] borrows the endpoint and stays in its thread.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(run())
//! # }
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::Info;
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! let endpoint = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! let me = vector.insert(endpoint.address())?;
//!
//! let mut receives = Vec::new();
//! for tag in 0..4 {
//!     let receive = endpoint.tagged_recv(tag, 0, vec![0; 100]).start()?; // posted now, in this order
//!     receives.push(tokio::spawn(receive));
//! }
//! let sender = endpoint.clone();
//! let send = tokio::spawn(async move {
//!     for tag in 0..4 {
//!         sender.tagged_send(me, tag, vec![7; 100]).await?;
//!     }
//!     Ok::<_, percale::endpoint::safe::OperationError>(())
//! });
//! drop(endpoint); // the tasks keep it open
//!
//! send.await??;
//! for receive in receives {
//!     assert_eq!(receive.await??.to_vec(), [7; 100]);
//! }
//! # Ok(()) }
//! ```
//!
//! Aborting a task drops its operation, by the rules of [chapter 6](super::_06_completion). Dropping a `JoinHandle` of
//! tokio does not end the task, so the operation continues, and its result is lost.
//!
//! # Forks
//! Endpoints, domains and regions belong to the process that opened them. In a forked child their calls fail (most of
//! them with `Forked`), and the parent is not affected. A child that needs percale opens its own domain.
//!
//! # Getting the best performance
//! 1. Build with `--release`. Unoptimised code is many times slower.
//! 2. Allocate large buffers with [`Domain::allocate`]: both processes then copy a long message at the same time, and
//!    remote access over shared memory needs no system call.
//! 3. Reuse buffers. Take them from the results (the result of a send is its buffer; `received.buffer`) instead of
//!    allocating a vector for each operation. Or take them from a pool ([`Domain::buffer_pool`]): its buffers are parts
//!    of one allocation, which has the advantages of 2 and is registered with an RDMA device once, when the pool is
//!    created. A buffer returns to its pool when it is dropped. Taking and returning one allocate nothing. When all
//!    buffers are in use, [`BufferPool::take`] returns `None`: complete operations, and drop their results, before you
//!    take another one.
//! 4. Post receives before the messages arrive. Then each message is copied directly into its buffer.
//! 5. Keep several operations under way. With one operation at a time, the latency limits the throughput.
//! 6. Use `inject` for messages of at most 2 KiB if their completion does not matter.
//! 7. Use an [`Endpoint`] rather than a [`SharedEndpoint`] where one thread suffices, and [`Endpoint::poll_lingering`]
//!    in programs that poll the raw API.
//! 8. Do not have more polling threads than cores. Threads that wait in percale soon yield the processor and then
//!    sleep. Loops that call `is_ready` or `poll` yield the processor only occasionally.
//! 9. For many cores, distribute peers over several endpoints. One endpoint serves its peers one after another.
//!
//! `percale perf` measures the latency, message rate and bandwidth of this machine, and compares them with those of
//! programs without percale. `docs/benchmarks.md` lists results.

// Imported for the links in this text.
use crate::*;
