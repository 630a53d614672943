//! percale: a fabric library.

pub mod endpoint;
pub mod memory;
pub mod transport;
pub mod wire;
