//! Completions, which report the outcome of operations.
//!
//! * [`entry`]: the contents of one completion and of one error.
//! * [`ring`]: holds results until one owner reads them, without a lock.
//! * [`queue`]: the completion queue that several endpoints and threads share.
//! * [`counter`]: counts completions instead of describing them.
//! * [`event`]: events that belong to no operation, such as the connection or loss of a peer; `request`: a request that
//!   a listener receives.
//! * [`poll_set`], [`wait_set`]: several queues and counters at once; [`source`]: the members of such a set.
//! * [`wait`]: lets a thread sleep until any of them is ready, and makes progress meanwhile.

pub mod counter;
pub mod entry;
pub mod event;
mod group;
pub mod poll_set;
pub mod queue;
pub(crate) mod request;
pub mod ring;
#[cfg(test)]
mod set_tests;
pub mod source;
pub mod wait;
pub mod wait_set;
