//! Conversion of addresses between C and Rust: network addresses and the sources of messages.

use std::ffi::c_void;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{AF_INET, AF_INET6, sa_family_t, sockaddr_in, sockaddr_in6};
use percale::Entry;

use crate::abi::{FI_ADDR_NOTAVAIL, fi_addr_t};

/// A socket address in its C representation.
pub(crate) struct SocketAddress {
    bytes: [u8; size_of::<sockaddr_in6>()],
    len: usize,
}

impl SocketAddress {
    /// Returns the bytes of the `sockaddr_in` or `sockaddr_in6`.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Copies up to `room` bytes of the address to `to` and sets `room` to the length of the complete address. Returns
    /// whether the complete address was copied (fi_cm(3)).
    ///
    /// # Safety
    /// `room` is readable and writable. `to` is null or writable for that many bytes.
    pub(crate) unsafe fn copy(&self, to: *mut c_void, room: *mut usize) -> bool {
        // SAFETY: the caller guarantees this.
        let available = if to.is_null() { 0 } else { unsafe { room.read() } };
        let count = available.min(self.len);
        // SAFETY: `count` is at most the size of the caller's buffer, and that buffer does not overlap `self`.
        unsafe { std::ptr::copy_nonoverlapping(self.bytes.as_ptr(), to.cast(), count) };
        // SAFETY: the caller guarantees this.
        unsafe { room.write(self.len) };
        available >= self.len
    }
}

impl From<SocketAddr> for SocketAddress {
    fn from(address: SocketAddr) -> Self {
        let mut bytes = [0; size_of::<sockaddr_in6>()];
        let family = if address.is_ipv4() { AF_INET } else { AF_INET6 } as sa_family_t;
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(address) => {
                bytes[4..8].copy_from_slice(&address.ip().octets());
                Self { bytes, len: size_of::<sockaddr_in>() }
            }
            SocketAddr::V6(address) => {
                bytes[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&address.ip().octets());
                bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
                Self { bytes, len: size_of::<sockaddr_in6>() }
            }
        }
    }
}

/// Reads the address that a client passed. Returns `None` for a null pointer, an unknown address family, or too few
/// bytes.
///
/// # Safety
/// `from` is null or readable for `len` bytes.
pub(crate) unsafe fn read(from: *const c_void, len: usize) -> Option<SocketAddr> {
    let mut bytes = [0_u8; size_of::<sockaddr_in6>()];
    let len = len.min(bytes.len());
    if from.is_null() || len < size_of::<sockaddr_in>() {
        return None;
    }
    // SAFETY: the caller guarantees this.
    unsafe { std::ptr::copy_nonoverlapping(from.cast(), bytes.as_mut_ptr(), len) };
    let word = |at: usize| -> [u8; 4] { std::array::from_fn(|offset| bytes[at + offset]) };
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match i32::from(sa_family_t::from_ne_bytes([bytes[0], bytes[1]])) {
        AF_INET => Some(SocketAddrV4::new(Ipv4Addr::from(word(4)), port).into()),
        AF_INET6 if len == size_of::<sockaddr_in6>() => {
            let ip: [u8; 16] = std::array::from_fn(|offset| bytes[8 + offset]);
            let (flow, scope) = (u32::from_be_bytes(word(4)), u32::from_ne_bytes(word(24)));
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
        }
        _ => None,
    }
}

/// Like [`read`], for an address with a length that follows from its family.
///
/// # Safety
/// `from` is null or points to a `sockaddr_in`, a `sockaddr_in6`, or another object of at least 16 bytes.
pub(crate) unsafe fn read_sized(from: *const c_void) -> Option<SocketAddr> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees this.
    let family = i32::from(unsafe { from.cast::<sa_family_t>().read_unaligned() });
    let len = if family == AF_INET6 { size_of::<sockaddr_in6>() } else { size_of::<sockaddr_in>() };
    // SAFETY: the caller guarantees this.
    unsafe { read(from, len) }
}

/// Converts the sender of a message to libfabric's form.
#[inline]
pub(crate) const fn source(entry: &Entry) -> fi_addr_t {
    if entry.source.is_specified() { entry.source.0 } else { FI_ADDR_NOTAVAIL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_through_sockaddr() {
        for text in ["10.1.2.3:7471", "[::1]:80", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let native = SocketAddress::from(address);
            let bytes = native.as_bytes();
            // SAFETY: a slice is readable.
            assert_eq!(unsafe { read(bytes.as_ptr().cast(), bytes.len()) }, Some(address));
            // SAFETY: the slice holds a complete address.
            assert_eq!(unsafe { read_sized(bytes.as_ptr().cast()) }, Some(address));
            // SAFETY: a slice is readable.
            assert!(unsafe { read(bytes.as_ptr().cast(), bytes.len() - 1) }.is_none());
        }
    }

    #[test]
    fn too_small_buffer_returns_the_required_size() {
        let native = SocketAddress::from("10.1.2.3:7471".parse::<SocketAddr>().unwrap());
        let (mut to, mut room) = ([0_u8; 8], 8);
        // SAFETY: the buffer has eight bytes.
        assert!(!unsafe { native.copy(to.as_mut_ptr().cast(), &mut room) });
        assert_eq!((room, &to[4..]), (16, &[10, 1, 2, 3][..]));
        // SAFETY: no bytes are copied.
        assert!(!unsafe { native.copy(std::ptr::null_mut(), &mut room) });
    }
}
