//! The encoding of a vector's words, and the addresses that they can hold.
//!
//! Scopes: Linux uses an IPv6 address's scope only if the address is link-local. In this case the scope is kept (in
//! bits of the address that are zero by definition). Otherwise it is dropped. Flow labels are always dropped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::error::AddressError;

/// A decoded entry. It is encoded as a word: 2 bits for the kind, 16 bits for the port, and the IPv4 address in the low
/// 32 bits or, for an IPv6 address, a tag of 46 bits, which differs for each IPv6 address that was ever inserted into
/// the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableEntry {
    /// The entry was never written.
    Untouched,
    /// The address was removed.
    Removed,
    V4(Ipv4Addr, u16),
    /// The address is in the record with the same index.
    V6(u16, u64),
}

/// The bits of the tag.
const TAG: u64 = (1 << 46) - 1;

impl TableEntry {
    pub(super) const fn pack(self) -> u64 {
        let (kind, port, low) = match self {
            Self::Untouched => return 0,
            Self::Removed => (3, 0, 0),
            Self::V4(ip, port) => (1u64, port, ip.to_bits() as u64),
            Self::V6(port, tag) => (2, port, tag & TAG),
        };
        kind << 62 | (port as u64) << 46 | low
    }

    /// Returns the IPv4 address of a word if the word encodes one.
    #[inline]
    pub(super) const fn unpack_v4(word: u64) -> Option<(Ipv4Addr, u16)> {
        if word >> 62 == 1 { Some((Ipv4Addr::from_bits(word as u32), (word >> 46) as u16)) } else { None }
    }

    #[inline]
    pub(super) const fn unpack(word: u64) -> Self {
        let port = (word >> 46) as u16;
        match word >> 62 {
            0 => Self::Untouched,
            1 => Self::V4(Ipv4Addr::from_bits(word as u32), port),
            2 => Self::V6(port, word & TAG),
            _ => Self::Removed,
        }
    }
}

/// The position of bits in a link-local address that are zero by definition (RFC 4291). The scope is stored there.
const SCOPE_SHIFT: u32 = 64;

/// Encodes an IPv6 address as a record: its bits, with its scope in them. Returns `None` if it cannot be stored
/// exactly.
pub(super) fn fold_scope(address: &SocketAddrV6) -> Option<u128> {
    let bits = address.ip().to_bits();
    if !address.ip().is_unicast_link_local() {
        return Some(bits);
    }
    // fe80::/10 is followed by 54 zero bits.
    let zero = (bits >> SCOPE_SHIFT) << 10 & u128::from(u64::MAX) == 0;
    zero.then_some(bits | u128::from(address.scope_id()) << SCOPE_SHIFT)
}

/// Decodes the address of a record.
pub(super) fn unfold_scope(bits: u128, port: u16) -> SocketAddr {
    let ip = Ipv6Addr::from_bits(bits);
    if !ip.is_unicast_link_local() {
        return SocketAddrV6::new(ip, port, 0, 0).into();
    }
    let scope = (bits >> SCOPE_SHIFT) as u32;
    let ip = Ipv6Addr::from_bits(bits & !(u128::from(u32::MAX) << SCOPE_SHIFT));
    SocketAddrV6::new(ip, port, 0, scope).into()
}

/// Returns an error for an address that no endpoint can be bound to, or that cannot be stored exactly.
pub(super) fn check(address: &SocketAddr) -> Result<(), AddressError> {
    let unusable = match address.ip() {
        IpAddr::V4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
    };
    let inexact = matches!(address, SocketAddr::V6(address) if fold_scope(address).is_none());
    if address.port() == 0 || unusable || inexact {
        return Err(AddressError::NotAnEndpoint(*address));
    }
    Ok(())
}

/// Returns the form in which two addresses of the same endpoint are equal. IPv4 addresses in IPv6 notation are
/// converted, and meaningless scopes and flow labels are removed.
pub(super) fn canonical(address: &SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), v6.port()),
            None => fold_scope(v6).map_or(*address, |bits| unfold_scope(bits, v6.port())),
        },
        SocketAddr::V4(_) => *address,
    }
}
