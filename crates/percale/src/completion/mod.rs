//! Completions: how the outcome of operations is reported.
//!
//! * [`entry`]: the contents of one completion and of one error.
//! * [`ring`]: holds results until one owner reads them, without a lock.
//! * [`queue`]: the completion queue that several endpoints and threads share.
//! * [`counter`]: counts completions instead of describing them.
//! * [`event`]: events that belong to no operation, such as the connection or loss of a peer; `request`: what a listener gets.
//! * [`poll_set`], [`wait_set`]: several queues and counters at once; [`source`]: the members of such a set.
//! * [`wait`]: how a thread sleeps until any of them has something, and what makes progress meanwhile.

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
