//! The random tester with several real processes, over shared memory and TCP.
//!
//! A supervisor starts worker processes with a few endpoints each. The workers post random operations to each other and, now and then, run
//! through events in the life of a program: they close endpoints, drop futures, cancel, bind windows and take them back, fork, exec, exit,
//! forbid kernel copies and mappings, run out of descriptors, take signals, lose connections. The supervisor kills and stops workers, starts
//! others at their addresses or with their process ids, and plays strangers that connect over TCP, are at the address of a worker that has
//! ended, or stand between two workers. A run is a sequence of rounds; a round's seed decides which of these events may happen in it.
//!
//! * [`program`]: makes rounds until its time is over, and reports
//! * [`plan`]: what a round does, and how a worker learns it
//! * [`supervisor`]: starts workers, causes events, and collects the faults that workers found
//! * `worker`: a worker's loop, and the events that it causes in its own process
//! * `station`: an endpoint of a worker: its operations, and the checks of their ends
//! * `ledger`: what a worker knows: its raw operations, other workers, memory that was given back; `task`: a safe operation under way
//! * `class`: the classes of messages; `counts`: what was done, counted
//! * `message`: contents that name their sender, receiver and number, and the check of their order
//! * `graveyard`: memory that was given back, which must not change any more
//! * `inherited`: calls on inherited objects in a forked child
//! * `stranger`: a process that is no peer and connects nevertheless; `successor`: one at the address of a peer that has
//!   ended; `proxy`: between two workers
//!
//! What is checked:
//! 1. A message is what its sender posted, for the endpoint that received it, exactly once, and in the order of its sender.
//! 2. Every operation ends exactly once. A send, an access, a receive that has been matched and a cancelled receive end within
//!    [`plan::PATIENCE`]; so does a receive directed at a peer that is gone.
//! 3. Memory does not change after it was given back: after the completion, the close of the region or the end of the endpoint.
//! 4. What is written to a region names that region; what is read comes from it.
//! 5. In a round without events that end connections, no operation fails.
//! 6. No process dies of a signal, panics, or keeps descriptors, mappings or threads after its endpoints are closed.
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

/// A result that makes no difference here.
fn ignored<T>(_: T) {}
