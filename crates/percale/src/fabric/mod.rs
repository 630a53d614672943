//! What is on this machine: discovery.
//!
//! * [`Info`] tries everything out and says what works, and why something does not.
//! * [`host`] tells this host, this network namespace and this user from others, and picks the address to advertise.

pub mod host;
mod info;
mod kind;
mod probe;

pub use self::host::Interface;
pub use self::info::{DeviceInfo, DiscoverError, Info, LimitInfo, TransportInfo};
pub use self::kind::{TransportKind, UnknownTransport};
