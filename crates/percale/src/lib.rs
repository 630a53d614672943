//! percale: a fabric library.

pub mod address;
pub mod completion;
pub mod endpoint;
pub mod memory;
pub mod transport;
pub mod wire;
