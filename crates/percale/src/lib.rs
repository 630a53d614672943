//! percale: a fabric library.

pub mod fabric;
pub mod memory;
pub mod transport;
pub mod wire;
