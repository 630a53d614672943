//! Completions: how the outcome of operations is told.
//!
//! * [`entry`]: what one completion says, and what one error says.
//! * [`ring`]: where results wait to be read by one owner.

pub mod entry;
pub mod ring;
