//! Limits of messages that are part of the protocol.

/// The longest message that may be sent with `OpFlags::INJECT`, in bytes.
pub const INJECT_LIMIT: usize = 2048;
