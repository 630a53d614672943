//! Triggered and deferred work: operations that start when a counter reaches a value, or when a variable is written.
//!
//! A program can post an operation with a condition before its data is complete. The operation starts without a further
//! call when the condition holds. For example, a reply starts when all parts of a request have arrived, or a step of a
//! pipeline starts when the previous step has completed.
//!
//! | | condition | how its end is reported |
//! |---|---|---|
//! | triggered operation | [`when`](crate::endpoint::safe::SendRequest::when): a counter has counted this many *successes* | by its handle, like any operation |
//! | deferred work | the same, with [`counting`](crate::endpoint::safe::SendRequest::counting): this many *successes and errors* | by its handle and by a second counter, which other work can wait for |
//! | operation that a device starts | [`when_written`](crate::endpoint::safe::SendRequest::when_written): a [`Variable`](crate::trigger::Variable) was written | by its handle |
//!
//! Every request of the safe API has these methods, with three exceptions: collectives cannot wait for variables,
//! multi-receives start at once, and window operations have none of these methods.
//!
//! # A reply that starts automatically
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{Counter, Info};
//!
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! let received = Counter::new();
//! let server = domain.endpoint().vector(&vector).receive_counter(&received).bind("127.0.0.1:0")?;
//! # let client = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let (to_server, to_client) = (vector.insert(server.address())?, vector.insert(client.address())?);
//!
//! let parts = [(); 2].map(|()| server.recv(vec![0; 64]).from(to_client).start());
//! let mut reply = server.send(to_client, "both parts are here").when(&received, 2).start()?; // nothing is sent yet
//! client.send(to_server, "part one").wait()?;
//! client.send(to_server, "part two").wait()?;
//! reply.wait()?; // started when the second receive completed
//!
//! assert_eq!(client.recv(vec![0; 64]).wait()?.to_vec(), b"both parts are here");
//! for part in parts {
//!     assert_eq!(part?.wait()?.len, 8);
//! }
//! # Ok(()) }
//! ```
//!
//! # Chains of deferred work
//! Deferred work increments a counter when it ends, so a chain of any length runs without further calls of the program.
//! If the endpoints that it uses are shared, they make progress automatically from then on. [`Domain::defer_add`] and
//! [`Domain::defer_set`] change a counter when another counter reaches a value.
//!
//! Deferred work that is canceled before it has begun counts nothing, so the work behind it does not begin either. This
//! happens if its handle cancels it or is dropped, and if its endpoint or its counter ends. A program that waits for the
//! last counter of a chain alone then waits without end: wait for the handles, or with a timeout. Work that has begun
//! and is canceled is counted as an error.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{Access, Counter, Info};
//!
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let peer = vector.insert(endpoint.address())?;
//! # let region = domain.register(domain.allocate(4096)?, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! # let memory = region.remote();
//! let [start, copied, done] = [Counter::new(), Counter::new(), Counter::new()];
//! // Once `start` is 1: write. Once that has ended: read it back.
//! let mut write = endpoint.write(peer, vec![7; 100], memory.at(0..100)).when(&start, 1).counting(&copied).start()?;
//! let mut read = endpoint.read(peer, memory.at(0..100), vec![0; 100]).when(&copied, 1).counting(&done).start()?;
//! start.add(1); // the program starts the chain
//! done.wait(1, None)?;
//! write.wait()?;
//! assert_eq!(read.wait()?.into_vec(), [7; 100]);
//! # Ok(()) }
//! ```
//!
//! # Rules
//! * Work that waits for one counter starts in the order of thresholds, and in the order of posting where thresholds
//!   are equal. If the condition holds already, the work starts at once.
//! * Until it starts, an operation reads and writes nothing. Dropping its handle cancels it.
//! * *Errors do not trigger* a triggered operation. If one of the operations that it waits for fails, it continues to
//!   wait. Cancel it, or use deferred work, which also counts errors. Deferred work may therefore start although data
//!   is missing.
//! * The thread that increments the counter starts the work before its call returns. If another thread is in the
//!   endpoint at that moment, that thread or the next progress starts the work.
//! * With the raw API the calls are [`Endpoint::post_when`], [`Endpoint::post_when_written`] and
//!   [`Domain::queue_work`].
//!
//! # Variables
//! A [`Variable`](crate::trigger::Variable) is 8 bytes that a GPU stream or kernel, or any thread, writes with one
//! store. The store does not call percale, so a thread has to make progress: a thread that waits for an operation, or
//! the thread of automatic progress. Operations that wait for variables start in the order in which they were posted.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::Info;
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let peer = vector.insert(endpoint.address())?;
//! let variable = domain.variable(); // `device_variable` for a device
//! let mut send = endpoint.send(peer, "computed").when_written(&variable).start()?;
//! assert!(!send.is_ready());
//! variable.write(); // a device stores `variable.value()` at `variable.device_address()`
//! send.wait()?;
//! assert_eq!(endpoint.recv(vec![0; 64]).wait()?.to_vec(), b"computed");
//! # Ok(()) }
//! ```

// Imported for the links in this text.
use crate::*;
