//! Randomized tests with several real processes, over shared memory and TCP.
//!
//! A supervisor starts worker processes with a few endpoints each. The workers post random operations to each other.
//! Occasionally they also cause lifecycle events: they close endpoints, drop futures, cancel operations, bind and
//! revoke windows, fork, exec, exit, forbid kernel copies and mappings, run out of descriptors, receive signals, or
//! lose connections. The supervisor kills and stops workers, and starts others at their addresses or with their process
//! IDs. It also acts as strangers, which are processes that are not peers. They connect over TCP, use the address of a
//! worker that has ended, or forward the data between two workers. A run is a sequence of rounds. The seed of a round
//! determines which of these events can occur in it.
//!
//! * [`program`]: runs rounds for a given time, and reports the results
//! * [`plan`]: the parameters of a round, and how they are passed to a worker
//! * [`supervisor`]: starts workers, causes events, and collects the faults that workers found
//! * `worker`: the loop of a worker, and the events that it causes in its own process
//! * `worker_endpoint`: an endpoint of a worker, with its operations and the checks of their results
//! * `ledger`: the records of a worker: its raw operations, other workers, returned memory
//! * `task`: an outstanding safe operation
//! * `class`: the classes of messages
//! * `counts`: counts of operations and events
//! * `message`: contents that identify their sender, receiver and number, and the check of their order
//! * `freed_memory`: returned memory, which must not change any more
//! * `inherited`: calls on inherited objects in a forked child
//! * `stranger`: a process that is not a peer but connects nevertheless
//! * `successor`: a stranger at the address of a peer that has ended
//! * `proxy`: a stranger between two workers
//!
//! Checked properties:
//! 1. A message has the contents that its sender posted. Its target endpoint receives it exactly once, in the order in
//!    which the sender posted its messages.
//! 2. Every operation ends exactly once. A send, an access, a receive that has been matched and a cancelled receive end
//!    within [`plan::OPERATION_TIMEOUT`]. A receive directed at a peer that has died also ends within this time.
//! 3. Memory does not change after its return, which is the completion, the closing of the region or the closing of the
//!    endpoint.
//! 4. Data written to a region contains the tag of that region. Data that is read comes from the region.
//! 5. In a round without events that end connections, no operation fails.
//! 6. No process is killed by a signal, panics, or keeps descriptors, mappings or threads after its endpoints are
//!    closed.
//! 7. A task is woken when its operation has ended.

mod class;
mod counts;
mod freed_memory;
mod inherited;
mod ledger;
mod message;
pub mod plan;
pub mod program;
mod proxy;
mod stranger;
mod successor;
pub mod supervisor;
mod task;
mod worker;
mod worker_endpoint;

pub use counts::Counts;
pub use plan::RoundPlan;
pub use worker::play;

/// Ignores a result.
fn ignored<T>(_: T) {}
