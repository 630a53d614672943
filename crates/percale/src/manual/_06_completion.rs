//! Completion: waiting, polling, futures, counters and events.
//!
//! | method | for | calls |
//! |---|---|---|
//! | wait for one operation | most programs | `wait`, `wait_for`, `wait_until`, `is_ready` of the handle |
//! | wait for any of many operations | programs that keep many operations in flight | [`Endpoint::operation_set`] |
//! | futures | programs with an asynchronous runtime | `.await` |
//! | counters | the number of completed operations, without details | [`Counter`], passed to [`EndpointBuilder`] or [`Registration`](crate::memory::region::Registration) |
//! | events | peers that connect and disconnect | [`EventQueue`] |
//! | completion queues | the raw API, which has contexts instead of handles | [`Endpoint::poll`], [`CompletionQueue`] |
//! | sets | several of these at once | [`WaitSet`], [`PollSet`] |
//!
//! All of these calls make progress. Waiting threads poll for some microseconds, then sleep; a message wakes them.
//!
//! # Several operations in progress
//! `start` posts an operation and returns its handle, an [`Operation`]. Post several,
//! then wait for the handles. The order of the waits does not matter.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::Info;
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let peer = vector.insert(endpoint.address())?;
//! let receives = (0..8).map(|tag| endpoint.tagged_recv(tag, 0, vec![0; 64]).start()).collect::<Result<Vec<_>, _>>()?;
//! for tag in (0..8).rev() {
//!     endpoint.tagged_send(peer, tag, vec![tag as u8]).wait()?;
//! }
//! for (tag, mut receive) in receives.into_iter().enumerate() {
//!     assert_eq!(receive.wait()?.to_vec(), [tag as u8]);
//! }
//! # Ok(()) }
//! ```
//!
//! [`is_ready`](crate::endpoint::safe::Operation::is_ready) makes progress and returns whether `wait` would return at
//! once.
//!
//! # Waiting again after a timeout
//! No wait consumes the handle. When the timeout of [`wait_for`](crate::endpoint::safe::Operation::wait_for) or the
//! deadline of [`wait_until`](crate::endpoint::safe::Operation::wait_until) has passed, the wait returns
//! [`Cause::TimedOut`]. The operation is still in progress and still owns its
//! buffer. Wait for the same handle again, poll it, or cancel it. A handle returns the result once. After that, waits
//! and polls return [`Cause::Taken`].
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::Duration;
//! # use percale::{Info, endpoint::safe::Cause};
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let peer = vector.insert(endpoint.address())?;
//! let mut receive = endpoint.recv(vec![0; 64]).start()?;
//! let message = loop {
//!     match receive.wait_for(Duration::from_millis(10)) {
//!         Ok(message) => break message,
//!         Err(error) if matches!(error.cause(), Cause::TimedOut) => {
//!             // Nothing has arrived. Do other work, then wait again.
//! #           endpoint.send(peer, "late").wait()?;
//!         }
//!         Err(error) => return Err(error.into()), // the receive has failed; the error contains its buffer
//!     }
//! };
//! assert_eq!(message.to_vec(), b"late");
//! assert!(matches!(receive.wait().unwrap_err().cause(), Cause::Taken)); // the result was returned before
//! # Ok(()) }
//! ```
//!
//! # Canceling and dropping
//! [`cancel`](crate::endpoint::safe::Operation::cancel) returns whether it canceled the operation. A canceled operation
//! ends with [`ErrorCode::Canceled`], and its error returns the buffer. Dropping a handle cancels as well. Both
//! are possible until the operation begins. A receive begins when a message matches it. A send or an access begins when
//! a part of it is passed to the connection. An operation that waits for a counter or a variable ([chapter
//! 7](super::_07_triggers)) has not begun.
//!
//! | the operation | `cancel` | dropping the handle |
//! |---|---|---|
//! | has not begun | cancels it | cancels it, and drops its buffer |
//! | has begun | returns false | it continues; its result is lost, and its buffer is kept until no peer uses it; the message of a receive is lost |
//! | is a collective that has begun | returns false | it continues, because the other members depend on it |
//! | is a join | returns false | the join ends for all members |
//! | has ended | returns false | its result is lost, and with it the message of a receive |
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{ErrorCode, Info};
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let peer = vector.insert(endpoint.address())?;
//! let mut receive = endpoint.recv(vec![0; 64]).start()?;
//! assert!(receive.cancel()); // no message has matched it
//! let error = receive.wait().unwrap_err();
//! assert_eq!(error.errno(), ErrorCode::Canceled.errno());
//! let buffer = error.into_buffer().expect("no peer uses it");
//!
//! drop(endpoint.recv(buffer).start()?); // canceled: it takes no message
//! endpoint.send(peer, "hello").wait()?;
//! assert_eq!(endpoint.recv(vec![0; 64]).wait()?.to_vec(), b"hello");
//! # Ok(()) }
//! ```
//!
//! The handle of an operation of an [`Endpoint`] borrows the endpoint. To keep handles in a struct or to name them in a
//! signature, write their types: `Operation<&Owned, Received>` is a receive of an [`Endpoint`], and
//! `Operation<Shared, Received>` a receive of a [`SharedEndpoint`]. The second parameter is the type of the result:
//! [`Buffer`] for a send, a read or a write. All these types are in the root of the crate.
//!
//! ```
//! use percale::{Buffer, Endpoint, Operation, OperationError, Owned, PeerAddress, Received};
//!
//! struct Exchange<'e> {
//!     send: Operation<&'e Owned, Buffer>,
//!     receive: Operation<&'e Owned, Received>,
//! }
//!
//! fn exchange(endpoint: &Endpoint, peer: PeerAddress) -> Result<Exchange<'_>, OperationError> {
//!     let receive = endpoint.recv(vec![0; 64]).from(peer).start()?;
//!     Ok(Exchange { send: endpoint.send(peer, "hello").start()?, receive })
//! }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let domain = percale::Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let peer = vector.insert(endpoint.address())?;
//! # let Exchange { mut send, mut receive } = exchange(&endpoint, peer)?;
//! # send.wait()?;
//! # assert_eq!(receive.wait()?.to_vec(), b"hello");
//! # Ok(()) }
//! ```
//!
//! # Any of many operations
//! An [`OperationSet`] contains a fixed number of operations in flight. It returns
//! their results, with a key for each, in the order in which the operations end. The end of an operation takes the same
//! time regardless of the number of operations. For any or all of a few operations there are
//! [`wait_any`](crate::endpoint::safe::wait_any) and [`wait_all`](crate::endpoint::safe::wait_all).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::Info;
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let peer = vector.insert(endpoint.address())?;
//! let mut receives = endpoint.operation_set(8);
//! for tag in 0..8_u64 {
//!     let receive = endpoint.tagged_recv(tag, 0, vec![0; 64]).start()?;
//!     receives.push(receive, tag).map_err(|refused| refused.cause)?;
//! }
//! for tag in (0..8).rev() {
//!     endpoint.tagged_send(peer, tag, vec![tag as u8]).wait()?;
//! }
//! while let Some((tag, message)) = receives.next() {
//!     assert_eq!(message?.to_vec(), [tag as u8]);
//! }
//! # Ok(()) }
//! ```
//!
//! # Futures
//! Requests and handles are futures that work with any runtime. No reactor has to be started: the endpoint wakes the
//! task, or a thread of percale that watches the endpoint's descriptor while the task sleeps. Dropping a future cancels
//! the operation as above, so a timeout of the runtime works as usual. To keep the operation when such a timeout
//! expires, pass a reference to the handle (`tokio::time::timeout(limit, &mut receive)`).
//!
//! Operations of an [`Endpoint`] borrow it. They run in the task that owns the endpoint, for example in a `join!` or
//! `select!`. Operations of a [`SharedEndpoint`] borrow nothing, so they can be spawned on a runtime:
//! [chapter 9](super::_09_progress) shows a program.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(run())
//! # }
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::Info;
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let bind = || domain.endpoint().vector(&vector).bind("127.0.0.1:0");
//! # let (endpoint, first, second) = (bind()?, bind()?, bind()?);
//! # let (to_first, to_second) = (vector.insert(first.address())?, vector.insert(second.address())?);
//! # let me = vector.insert(endpoint.address())?;
//! # first.send(me, "connect").await?;
//! # second.send(me, "connect").await?;
//! # endpoint.recv(vec![0; 64]).from(to_first).await?;
//! # endpoint.recv(vec![0; 64]).from(to_second).await?;
//! let mut from_first = endpoint.recv(vec![0; 64]).from(to_first).start()?;
//! let mut from_second = endpoint.recv(vec![0; 64]).from(to_second).start()?;
//! # drop(second);
//! tokio::select! {
//!     result = &mut from_first => println!("the first peer: {} bytes", result?.len),
//!     result = &mut from_second => {
//!         let error = result.unwrap_err(); // in this example the second peer is closed
//!         println!("the second peer is lost: {error}");
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! # Costs
//! Medians over shared memory between two processes on two cores of one machine, in a program that is built with the
//! default release profile. `percale perf` measures the same on your machine.
//!
//! | operation | safe API | raw API |
//! |---|---|---|
//! | tagged message of 8 bytes, half a round trip | 125 ns | 100 ns |
//! | tagged message of 4 KiB, half a round trip | 657 ns | 551 ns |
//! | tagged message of 64 KiB in percale's memory, half a round trip | 1.80 µs | 1.73 µs |
//! | tagged message of 8 bytes in a stream with 64 receives posted | 70 ns | 42 ns |
//! | read of 8 bytes of percale's memory | 24 ns | 32 ns |
//! | write of 8 bytes to percale's memory | 32 ns | 32 ns |
//! | `fetch_add` on percale's memory | 27 ns | 45 ns |
//! | `compare_swap` on percale's memory | 29 ns | 48 ns |
//!
//! A read, a write or an atomic operation that ends when it is posted is cheaper by the safe API, because the raw API
//! reports it to a queue, from which it is read.
//!
//! A round trip of two 8-byte messages takes 265 ns with `wait`. If the operations are awaited, it takes 339 ns with a
//! minimal executor, 342 ns with smol, 351 ns with tokio's current-thread runtime, and 421 ns in a task that is spawned
//! on tokio, with a [`SharedEndpoint`].
//!
//! # Events: peers that connect and disconnect
//! An [`EventQueue`] that was passed to [`EndpointBuilder::event_queue`] reports [`Event::Connected`],
//! [`Event::Failed`] (a connection could not be established), [`Event::PeerDown`] and [`Event::PeerReplaced`]. [Chapter
//! 10](super::_10_failure) explains how to handle them. The queue keeps 4,096 events and counts further ones in
//! [`Event::Lost`].
//!
//! [`EventQueue::read`] and [`EventQueue::wait`] make progress on shared endpoints only. An [`Endpoint`] adds its
//! events during its own calls: call `read` after them. `wait` does not drive it, so it might never end: it fails with
//! [`NotDriven`](crate::completion::wait::WaitError::NotDriven) if no event is there. So do waits for counters,
//! completion queues and sets to which such an endpoint reports.
//!
//! # Waiting for either a message or a lost peer
//! A [`WaitSet`] sleeps until one of its members has something to report. Its members are counters, event queues and
//! completion queues. To wait for a receive, add its counter. Sets make progress on *shared* endpoints only.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{Counter, Event, EventQueue, Info, WaitSet};
//!
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! let (events, received) = (EventQueue::default(), Counter::new());
//! let builder = domain.endpoint().vector(&vector).event_queue(&events).receive_counter(&received);
//! let endpoint = builder.bind_shared("127.0.0.1:0")?;
//! let set = WaitSet::new();
//! set.add(&events)?;
//! set.add(&received)?;
//!
//! let mut receiving = endpoint.recv(vec![0; 64]).start()?; // from any sender
//! # let other = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # vector.insert(other.address())?;
//! # let me = vector.insert(endpoint.address())?;
//! # let other = std::thread::spawn(move || other.send(me, "hello").wait().map(|_| ()));
//! let message = loop {
//!     if receiving.is_ready() {
//!         break receiving.wait()?;
//!     }
//!     while let Some(event) = events.read() {
//!         if let Event::PeerDown { peer, reason, .. } = event {
//!             println!("{peer} is lost: {reason}");
//!         }
//!     }
//!     if !receiving.is_ready() {
//!         set.wait(None)?; // sleeps until a receive completes or an event arrives
//!     }
//! };
//! assert_eq!(message.to_vec(), b"hello");
//! # other.join().expect("no panic")?;
//! # Ok(()) }
//! ```
//!
//! # Counters
//! A [`Counter`] contains the number of operations that succeeded and the number of operations that failed. It is
//! passed to the endpoint's builder (for sends, receives, reads, writes and accesses of peers) or to a registration.
//! [`Counter::wait`] returns when the value reaches a threshold, or with an error if an operation fails first. [Chapter
//! 7](super::_07_triggers) shows how counters start operations.
//!
//! # Completion queues
//! Operations of the raw API report their completions to the endpoint's own queue ([`Endpoint::poll`],
//! [`Endpoint::wait`], [`Endpoint::read_error`]), or to a [`CompletionQueue`] that several endpoints and threads share.
//! A queue never overruns: an operation reserves its entry when it is posted, and [`PostError::Again`] means that
//! entries must be read first. An error stays at the front of the queue until `read_error` takes it. The results of
//! safe operations are returned by their handles, not by a queue.
//!
//! # Event loops
//! An [`Endpoint`] implements [`AsFd`](std::os::fd::AsFd). Before each sleep in `poll` or `epoll`, call
//! [`Endpoint::try_wait`]; sleep only if it returns true, and call [`Endpoint::progress`] afterwards. The other queues
//! and sets have `try_wait` and `descriptor` for the same purpose.

// Imported for the links in this text.
use crate::*;
