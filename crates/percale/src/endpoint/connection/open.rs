//! Opens endpoints of one connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{ConnectionError, ConnectionRequest};
use crate::endpoint::builder::{BindError, Purpose, resolve};
use crate::endpoint::ownership::{Owned, Ownership, Shared};
use crate::endpoint::{Endpoint, EndpointBuilder};

impl EndpointBuilder<'_> {
    /// Opens an endpoint of one connection at `address` (`HOST:PORT`; port 0 for any free one), for one owner. The
    /// endpoint is not connected yet: receives can be posted, then [`connect`](Endpoint::connect) or
    /// [`accept`](Endpoint::accept) can be called. The builder's address vector is not used.
    ///
    /// # Errors
    /// If the address cannot be bound, or the system refuses descriptors.
    pub fn bind_single(self, address: impl AsRef<str>) -> Result<Endpoint, BindError> {
        self.owned(resolve(address.as_ref())?, Purpose::Single)
    }

    /// Like [`bind_single`](Self::bind_single), but for many threads.
    ///
    /// # Errors
    /// If the address cannot be bound, or the system refuses descriptors or a thread.
    pub fn bind_single_shared(self, address: impl AsRef<str>) -> Result<Endpoint<Shared>, BindError> {
        self.shared(resolve(address.as_ref())?, Purpose::Single)
    }

    /// Opens an endpoint at any free port and [connects](Endpoint::connect) it to the listener at `address`. The
    /// endpoint is bound to every interface, or to the loopback interface if `address` is a loopback address.
    ///
    /// # Errors
    /// If the endpoint cannot be opened, or the data is too long. The result of the request is reported later.
    pub fn connect(self, address: impl AsRef<str>, data: &[u8]) -> Result<Endpoint<Owned>, ConnectionError> {
        let from = self.near(resolve(address.as_ref())?);
        connected(self.owned(from, Purpose::Single)?, address.as_ref(), data)
    }

    /// Like [`connect`](Self::connect), but for many threads.
    ///
    /// # Errors
    /// If the endpoint cannot be opened, or the data is too long. The result of the request is reported later.
    pub fn connect_shared(self, address: impl AsRef<str>, data: &[u8]) -> Result<Endpoint<Shared>, ConnectionError> {
        let from = self.near(resolve(address.as_ref())?);
        connected(self.shared(from, Purpose::Single)?, address.as_ref(), data)
    }

    /// Opens an endpoint at any free port of the listener's address, and [accepts](Endpoint::accept) a request with it.
    ///
    /// # Errors
    /// If the endpoint cannot be opened, the request is no longer valid, or the data is too long.
    pub fn accept(self, request: &ConnectionRequest, data: &[u8]) -> Result<Endpoint<Owned>, ConnectionError> {
        let endpoint = self.owned(request.place(), Purpose::Single)?;
        endpoint.accept(request, data).map(|()| endpoint)
    }

    /// Like [`accept`](Self::accept), but for many threads.
    ///
    /// # Errors
    /// If the endpoint cannot be opened, the request is no longer valid, or the data is too long.
    pub fn accept_shared(self, request: &ConnectionRequest, data: &[u8]) -> Result<Endpoint<Shared>, ConnectionError> {
        let endpoint = self.shared(request.place(), Purpose::Single)?;
        endpoint.accept(request, data).map(|()| endpoint)
    }

    /// Returns the address at which to open an endpoint that connects to `there`.
    fn near(&self, there: SocketAddr) -> SocketAddr {
        let ip = match there.ip() {
            ip if ip.is_loopback() || self.is_simulated() => ip,
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        SocketAddr::new(ip, 0)
    }
}

fn connected<A: Ownership>(endpoint: Endpoint<A>, address: &str, data: &[u8]) -> Result<Endpoint<A>, ConnectionError> {
    endpoint.connect(address, data).map(|()| endpoint)
}
