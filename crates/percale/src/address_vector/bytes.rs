//! The byte form of network addresses, for programs that exchange addresses as fixed-size records.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::error::AddressError;

/// The length of the [byte form](to_bytes) of an address.
pub const ADDRESS_BYTES: usize = size_of::<Bytes>();

const VERSION: u8 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Bytes {
    version: u8,
    family: u8,
    port: U16,
    scope: U32,
    ip: [u8; 16],
}

/// Returns the byte form of an address, such as the one that an endpoint advertises
/// ([`Endpoint::address`](crate::Endpoint::address)). It has [`ADDRESS_BYTES`] bytes and is the same on every machine
/// and in every release:
///
/// | byte | content |
/// |---|---|
/// | 0 | the version of the form, 1 |
/// | 1 | the family, 4 or 6 |
/// | 2..4 | the port, the least significant byte first |
/// | 4..8 | the scope of an IPv6 address, the least significant byte first; 0 for IPv4 |
/// | 8..24 | the octets of the IP address in the order of its text; 4 octets of IPv4 are followed by 12 zeros |
///
/// A scope is a number of the machine that uses the address.
/// The flow label of an IPv6 address is not part of an endpoint's address, and is left out.
#[must_use]
pub fn to_bytes(address: SocketAddr) -> [u8; ADDRESS_BYTES] {
    let mut bytes = Bytes { version: VERSION, family: 4, port: address.port().into(), scope: U32::ZERO, ip: [0; 16] };
    match address {
        SocketAddr::V4(address) => bytes.ip[..4].copy_from_slice(&address.ip().octets()),
        SocketAddr::V6(address) => {
            bytes.family = 6;
            bytes.scope = address.scope_id().into();
            bytes.ip = address.ip().octets();
        }
    }
    zerocopy::transmute!(bytes)
}

/// Decodes the [byte form](to_bytes) of an address, which a peer sent. Whether an endpoint can have the address is
/// checked when it is inserted.
///
/// # Errors
/// [`AddressError::Bytes`] if the length, the version or the family is wrong, or an unused byte is not 0.
pub fn from_bytes(bytes: &[u8]) -> Result<SocketAddr, AddressError> {
    let read = Bytes::read_from_bytes(bytes).map_err(|_| AddressError::Bytes("it has 24 bytes"))?;
    if read.version != VERSION {
        return Err(AddressError::Bytes("its version is not 1"));
    }
    let port = read.port.get();
    match read.family {
        4 => {
            let [a, b, c, d, rest @ ..] = read.ip;
            if rest != [0; 12] || read.scope != U32::ZERO {
                return Err(AddressError::Bytes("a byte that IPv4 does not use is not 0"));
            }
            Ok(SocketAddr::new(IpAddr::from([a, b, c, d]), port))
        }
        6 => Ok(SocketAddrV6::new(Ipv6Addr::from(read.ip), port, 0, read.scope.get()).into()),
        _ => Err(AddressError::Bytes("its family is neither 4 nor 6")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_form_of_each_family_is_the_documented_one() {
        let v4 = [1, 4, 0x2F, 0x1D, 0, 0, 0, 0, 10, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let v6 = [1, 6, 0x2F, 0x1D, 2, 0, 0, 0, 0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        for (text, bytes) in [("10.1.2.3:7471", v4), ("[fe80::7%2]:7471", v6)] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(to_bytes(address), bytes, "{text}");
            assert_eq!(from_bytes(&bytes), Ok(address));
        }
    }

    #[test]
    fn other_bytes_are_rejected() {
        let bytes = to_bytes("10.1.2.3:7471".parse().unwrap());
        for len in (0..64).filter(|len| *len != ADDRESS_BYTES) {
            let other: Vec<u8> = bytes.iter().copied().cycle().take(len).collect();
            assert_eq!(from_bytes(&other), Err(AddressError::Bytes("it has 24 bytes")));
        }
        for at in (0..ADDRESS_BYTES).filter(|at| !matches!(at, 2 | 3 | 8..12)) {
            let mut other = bytes;
            other[at] ^= 0x80;
            assert!(matches!(from_bytes(&other), Err(AddressError::Bytes(_))), "byte {at}");
        }
    }
}
