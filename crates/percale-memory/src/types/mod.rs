//! Plain types that modules of all layers name. It depends on no other module; the modules that users know them by re-export them.

mod error_code;
mod op_flags;
mod peer_address;

pub use self::error_code::ErrorCode;
pub use self::op_flags::OpFlags;
pub use self::peer_address::PeerAddress;

/// Which connection of an endpoint a frame came over.
pub type Connection = u32;
