//! The wire protocol between peers: frame layouts, shared by every transport.
//!
//! All values are little-endian, and the protocol version is negotiated in the hello frame. Nothing that a peer sends
//! is trusted: each frame is parsed into plain values, each value is checked, and a frame that cannot be parsed ends
//! its connection.

#[doc(inline)]
pub use percale_wire::{address, contexts, control, head, hello, join, located, meeting, queue_pair, why};

pub(crate) use percale_wire::limits;
