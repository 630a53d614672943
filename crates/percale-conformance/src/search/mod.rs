//! A search for faults: random operations and random lifecycle events, checked against a model.
//!
//! A hand-written test covers only the cases that its author thought of. The search closes, cancels, drops, forgets and
//! polls at random moments, over the simulated network (where a seed repeats a run exactly), loopback, shared memory,
//! TCP and RDMA. It checks these guarantees of the library:
//!
//! 1. Each operation ends exactly once, after a limited amount of progress.
//! 2. A message has the contents that the buffer had when it was posted. It arrives at the right receive, from the
//!    right peer, in order.
//! 3. Memory is not accessed after it was returned.
//! 4. At the end no resources are leaked.
//!
//! * [`step`]: the steps of a run, as data
//! * `draw`: generates the steps from a seed
//! * [`ledger`]: the model
//! * [`payload`]: contents that identify their operation
//! * [`lent`]: memory that is checked after its return. Like the model and the payloads, it does not depend on how the
//!   endpoints are driven, and can be used by any number of processes
//! * [`world`]: a run in this process
//! * [`heap`]: an allocator that quarantines freed memory and detects writes to it
//! * `double`: RDMA devices, simulated by a test double of libibverbs
//! * [`program`]: the program that executes runs, shortens those that found a fault, and reports the results

mod double;
mod draw;
pub mod heap;
pub mod ledger;
pub mod lent;
pub mod payload;
pub mod program;
pub mod step;
mod waker;
pub mod world;

/// Known faults that are not fixed yet. Runs avoid the steps that cause them, and each search prints them.
pub const KNOWN: [&str; 0] = [];
