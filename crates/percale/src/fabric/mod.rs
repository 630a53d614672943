//! What is on this machine: discovery.

pub mod host;
mod info;
mod kind;
mod probe;

pub use self::info::{DeviceInfo, DiscoverError, Info, LimitInfo, TransportInfo};
pub use self::kind::{TransportKind, UnknownTransport};
