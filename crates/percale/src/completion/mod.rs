//! Completions: how the outcome of operations is told.
//!
//! * [`entry`]: what one completion says, and what one error says.
//! * [`ring`]: where results wait to be read by one owner, without a lock.
//! * [`queue`]: the completion queue that several endpoints and threads share.
//! * [`counter`]: counts completions instead of describing them.
//! * [`event`]: what happens apart from operations: peers come and go.
//! * [`poll_set`], [`wait_set`]: several of them at once; [`source`]: what such a set holds
//! * [`wait`]: how a thread sleeps until any of them has something, and who makes progress meanwhile.

pub mod counter;
pub mod entry;
pub mod event;
mod group;
pub mod poll_set;
pub mod queue;
pub mod ring;
#[cfg(test)]
mod set_tests;
pub mod source;
pub mod wait;
pub mod wait_set;
