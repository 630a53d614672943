//! The random tester with several real processes, over shared memory and TCP.
//!
//! A supervisor starts worker processes with a few endpoints each. The workers post random operations to each other.
//! Occasionally they also cause events in the life of a program: they close endpoints, drop futures, cancel operations,
//! bind and revoke windows, fork, exec, exit, forbid kernel copies and mappings, run out of descriptors, receive
//! signals, or lose connections. The supervisor kills and stops workers, and starts others at their addresses or with
//! their process IDs. It also acts as strangers that connect over TCP, use the address of a worker that has ended, or
//! stand between two workers. A run is a sequence of rounds. The seed of a round determines which of these events may
//! happen in it.
//!
//! * [`program`]: runs rounds until its time is over, and reports the results
//! * [`plan`]: the parameters of a round, and how they are passed to a worker
//! * [`supervisor`]: starts workers, causes events, and collects the faults that workers found
//! * `worker`: the loop of a worker, and the events that it causes in its own process
//! * `station`: an endpoint of a worker: its operations, and the checks of their results
//! * `ledger`: the records of a worker: its raw operations, other workers, memory that was given back; `task`: an
//!   outstanding safe operation
//! * `class`: the classes of messages; `counts`: counts of operations and events
//! * `message`: contents that identify their sender, receiver and number, and the check of their order
//! * `graveyard`: memory that was given back, which must not change any more
//! * `inherited`: calls on inherited objects in a forked child
//! * `stranger`: a process that is not a peer and connects nevertheless; `successor`: a stranger at the address of a
//!   peer that has ended; `proxy`: a stranger between two workers
//!
//! Checked properties:
//! 1. A message has the contents that its sender posted, is received by its target endpoint exactly once, and in the
//!    order of its sender.
//! 2. Every operation ends exactly once. A send, an access, a receive that has been matched and a cancelled receive end
//!    within [`plan::PATIENCE`], and so does a receive directed at a peer that is gone.
//! 3. Memory does not change after it was given back: after the completion, the close of the region or the end of the
//!    endpoint.
//! 4. Data written to a region contains the name of that region. Data that is read comes from the region.
//! 5. In a round without events that end connections, no operation fails.
//! 6. No process is killed by a signal, panics, or keeps descriptors, mappings or threads after its endpoints are
//!    closed.
//! 7. A task is woken when its operation has ended.

mod class;
mod counts;
mod graveyard;
mod inherited;
mod ledger;
mod message;
pub mod plan;
pub mod program;
mod proxy;
mod station;
mod stranger;
mod successor;
pub mod supervisor;
mod task;
mod worker;

pub use counts::Counts;
pub use plan::Plan;
pub use worker::play;

/// Ignores a result.
fn ignored<T>(_: T) {}
