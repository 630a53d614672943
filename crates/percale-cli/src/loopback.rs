//! The loopback address at which processes of this machine connect to each other, for IPv4 or IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// Returns a loopback address with port 0 (any free port): IPv4, or IPv6 if the loopback interface has no IPv4 address.
pub(crate) fn here() -> SocketAddr {
    let v4: IpAddr = Ipv4Addr::LOCALHOST.into();
    let ip = if has(v4) { v4 } else { Some(Ipv6Addr::LOCALHOST.into()).filter(|v6| has(*v6)).unwrap_or(v4) };
    SocketAddr::new(ip, 0)
}

fn has(ip: IpAddr) -> bool {
    TcpListener::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn loopback_can_be_bound() {
        assert!(super::here().ip().is_loopback() && std::net::TcpListener::bind(super::here()).is_ok());
    }
}
