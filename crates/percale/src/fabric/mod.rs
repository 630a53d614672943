//! Discovery of the transports and devices of this machine.
//!
//! * [`Info`] tests every transport, and reports which ones work, and why others do not.
//! * An [`InterfaceAddress`] is an address of this machine, from which [`Info::advertised`] chooses the address to
//!   advertise.

mod info;
mod probe;

pub use self::info::{DeviceInfo, DiscoverError, Info, LimitInfo, TransportInfo};
pub use crate::transport::host::{InterfaceAddress, LinkKind};
pub use crate::transport::kind::{TransportKind, UnknownTransport};
