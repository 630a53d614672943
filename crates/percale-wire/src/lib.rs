//! An internal crate of [percale](https://docs.rs/percale), without any promise of stability: programs use `percale`.
//!
//! The wire protocol between peers: frame layouts, shared by every transport.
//!
//! Everything here is little-endian and versioned by the hello. Nothing that a peer sent is trusted: a frame is
//! parsed into plain values, each checked, and what does not parse ends the connection that it came over.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod address;
pub mod contexts;
pub mod control;
pub mod head;
pub mod hello;
pub mod join;
pub mod limits;
pub mod located;
mod malformed;
pub mod meeting;
pub mod queue_pair;
pub mod why;
