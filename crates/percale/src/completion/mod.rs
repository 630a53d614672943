//! Completions: how the outcome of operations is told.
//!
//! * [`entry`]: what one completion says, and what one error says.
//! * [`ring`]: where results wait to be read by one owner, without a lock.
//! * [`queue`]: the completion queue that several endpoints and threads share.
//! * [`counter`]: counts completions instead of describing them.
//! * [`event`]: what happens apart from operations: peers come and go.
//! * [`wait`]: how a thread sleeps until any of them has something, and who makes progress meanwhile.

pub mod counter;
pub mod entry;
pub mod event;
pub mod queue;
pub mod ring;
pub mod wait;
