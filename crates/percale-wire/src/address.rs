//! The wire representation of a network address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::malformed::Malformed;

/// An address that can be connected to.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AddressBytes {
    family: U16,
    port: U16,
    /// The IP address. An IPv4 address is stored as an IPv4-mapped IPv6 address.
    ip: [u8; 16],
}

impl AddressBytes {
    /// Returns the wire representation.
    #[must_use]
    #[inline]
    pub fn of(address: SocketAddr) -> Self {
        let (family, ip) = match address.ip() {
            IpAddr::V4(ip) => (4, ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => (6, ip.octets()),
        };
        Self { family: U16::new(family), port: U16::new(address.port()), ip }
    }

    /// Parses the wire representation.
    ///
    /// # Errors
    /// If the address is malformed, or if a socket cannot connect to it.
    pub fn parse(&self) -> Result<SocketAddr, Malformed> {
        let wide = Ipv6Addr::from(self.ip);
        let ip = match self.family.get() {
            4 => IpAddr::V4(wide.to_ipv4_mapped().ok_or(Malformed::Field("the address is not an IPv4 address"))?),
            6 => IpAddr::V6(wide),
            _ => return Err(Malformed::Field("the address is neither IPv4 nor IPv6")),
        };
        if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) || self.port.get() == 0 {
            return Err(Malformed::Field("no connection is possible to the advertised address"));
        }
        Ok(SocketAddr::new(ip, self.port.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_to_which_no_socket_connects_is_rejected() {
        let parsed = |text: &str| AddressBytes::of(text.parse().expect("an address")).parse();
        for text in ["10.1.2.3:4", "127.0.0.1:65535", "[::1]:1", "[fe80::1]:7"] {
            assert_eq!(parsed(text), Ok(text.parse().expect("an address")));
        }
        for text in ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[ff02::1]:1", "255.255.255.255:1", "10.1.2.3:0"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
