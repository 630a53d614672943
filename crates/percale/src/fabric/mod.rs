//! Discovery of the transports and devices of this machine.
//!
//! * [`Info`] tests every transport, and reports which ones work, and why others do not.
//! * [`host`] (in [`transport`](crate::transport), which also uses it) identifies the host, the network namespace and
//!   the user, and chooses the address to advertise.

mod info;
mod probe;

pub use self::info::{DeviceInfo, DiscoverError, Info, LimitInfo, TransportInfo};
pub use crate::transport::host::{self, Interface};
pub use crate::transport::kind::{TransportKind, UnknownTransport};
