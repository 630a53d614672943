//! What is on this machine: discovery.
//!
//! * [`Info`] tries everything out and says what works, and why something does not.
//! * [`host`] (of [`transport`](crate::transport), which asks it, too) tells this host, this network namespace and this user from others, and
//!   picks the address to advertise.

mod info;
mod kind;
mod probe;

pub use self::info::{DeviceInfo, DiscoverError, Info, LimitInfo, TransportInfo};
pub use self::kind::{TransportKind, UnknownTransport};
pub use crate::transport::host::{self, Interface};
