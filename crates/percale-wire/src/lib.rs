//! An internal crate of [percale](https://docs.rs/percale). Its API is not stable: programs use `percale`.
//!
//! The wire protocol between peers. It consists of frame layouts that every transport shares.
//!
//! All messages are little-endian. The hello contains the version. Nothing that a peer sends is trusted: a frame is
//! parsed into plain values, which are all checked, and a frame that cannot be parsed ends the connection over which it
//! arrived.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod address;
pub mod contexts;
pub mod control;
pub mod form;
pub mod head;
pub mod hello;
pub mod join;
pub mod limits;
pub mod located;
mod malformed;
pub mod meeting;
pub mod queue_pair;
pub mod refusal_reason;
