//! Where callers are looked for.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Which of the addresses that callers advertise are called, to find out whether they are there.
#[derive(Clone)]
pub enum Naming {
    /// None: its callers are not known by their addresses.
    None,
    /// The addresses from which peers call, and those for which this returns true: the ones that the application has named. A stranger cannot have
    /// other addresses called.
    Of(Arc<dyn Fn(SocketAddr) -> bool + Send + Sync>),
}

impl fmt::Debug for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::None) { "None" } else { "Of(..)" })
    }
}

impl Naming {
    /// The address at which a caller is looked for: the one that it advertises, or that port of the address that it calls from.
    pub(super) fn candidate(&self, advertised: SocketAddr, from: SocketAddr) -> Option<SocketAddr> {
        let Self::Of(named) = self else { return None };
        if advertised.ip() == from.ip() || named(advertised) {
            return Some(advertised);
        }
        let other = SocketAddr::new(from.ip(), advertised.port());
        named(other).then_some(other)
    }
}
