//! percale: a fabric library.

pub mod memory;
pub mod transport;
pub mod wire;
