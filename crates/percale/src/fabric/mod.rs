//! Discovery of the transports and devices of this machine.
//!
//! * [`Info`] tests every transport, and reports which ones work, and why others do not.
//! * [`host`] (in [`transport`](crate::transport), which also uses it) distinguishes this host, this network namespace
//!   and this user from others, and chooses the address to advertise.

mod info;
mod probe;

pub use self::info::{DeviceInfo, DiscoverError, Info, LimitInfo, TransportInfo};
pub use crate::transport::host::{self, Interface};
pub use crate::transport::kind::{TransportKind, UnknownTransport};
