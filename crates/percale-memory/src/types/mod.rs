//! Plain types that modules of all layers use. They depend on no other module; public modules re-export them.

mod error_code;
mod op_flags;
mod peer_address;
mod span;

pub use self::error_code::ErrorCode;
pub use self::op_flags::OpFlags;
pub use self::peer_address::PeerAddress;
pub use self::span::{span, span_of_memory};

/// The number of the connection over which an endpoint received a frame.
pub type ConnectionId = u32;
