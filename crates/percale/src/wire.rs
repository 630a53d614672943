//! The wire protocol between peers: frame layouts, shared by every transport.
//!
//! Everything here is little-endian and versioned by the hello. Nothing that a peer sent is trusted: a frame is
//! parsed into plain values, each checked, and what does not parse ends the connection that it came over.

#[doc(inline)]
pub use percale_wire::{address, contexts, control, head, hello, join, located, meeting, queue_pair, why};

pub(crate) use percale_wire::limits;
