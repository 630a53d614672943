//! The addresses at which callers are probed.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// The rule that selects which of the addresses that callers advertise are probed.
#[derive(Clone)]
pub enum Naming {
    /// No address is probed: the endpoint does not identify callers by their addresses.
    None,
    /// The addresses from which peers call, and the addresses for which this function returns true, which are those
    /// that the application has named. An unknown client cannot cause calls to other addresses.
    Of(Arc<dyn Fn(SocketAddr) -> bool + Send + Sync>),
}

impl fmt::Debug for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::None) { "None" } else { "Of(..)" })
    }
}

impl Naming {
    /// Returns the address at which a caller is probed: the address that it advertises, or the address from which it
    /// calls with the advertised port.
    pub(super) fn candidate(&self, advertised: SocketAddr, from: SocketAddr) -> Option<SocketAddr> {
        let Self::Of(named) = self else { return None };
        if advertised.ip() == from.ip() || named(advertised) {
            return Some(advertised);
        }
        let other = SocketAddr::new(from.ip(), advertised.port());
        named(other).then_some(other)
    }
}
