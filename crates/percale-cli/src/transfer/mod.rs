//! What `percale serve` and `percale cp` share.
//!
//! A file travels in [`blocks`], each with a checksum that both sides compute from what they read or write. The client asks for every
//! step ([`protocol`]); the bytes themselves it reads from, or writes into, the server's regions. [`pool`]: threads for disk and checksums;
//! [`part`]: a file that is not complete yet; [`key`]: the authorization key.

pub(crate) mod blocks;
pub(crate) mod key;
pub(crate) mod part;
pub(crate) mod pool;
pub(crate) mod protocol;
