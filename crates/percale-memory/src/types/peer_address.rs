//! The number with which operations identify a peer.

use std::fmt;

/// The number by which operations identify a peer: the number that was returned when its network address was inserted into an address vector
/// (libfabric's `fi_addr_t`), or the source of a message of a peer that is not in the vector, which is valid at one
/// endpoint until the peer's connection ends. If the vector reserves bits for receive contexts, the top bits contain the number of a
/// receive context.
///
/// Its text is `peer` and the number, as the errors of operations have it. Messages to people should also contain the
/// network address (`network_address` of the endpoint or the vector), because the number means nothing outside of this
/// process.
///
/// ```
/// # use percale_memory::types::PeerAddress;
/// let peer = PeerAddress(3);
/// assert_eq!(format!("{peer} is lost"), "peer 3 is lost");
/// assert_eq!(PeerAddress::UNSPECIFIED.to_string(), "any peer");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PeerAddress(pub u64);

impl PeerAddress {
    /// No particular peer. A receive accepts messages from any peer, or the source of a completion is unknown.
    pub const UNSPECIFIED: Self = Self(u64::MAX);

    /// Returns whether this identifies a peer.
    #[must_use]
    #[inline]
    pub const fn is_specified(self) -> bool {
        self.0 != u64::MAX
    }

    /// Returns the address of receive context `context` of this peer, in a vector that reserves `bits` bits for receive
    /// contexts (libfabric's `fi_rx_addr`). If `bits` is 0, the peer has only one address. Returns `None` if `context`
    /// does not fit, or if `bits` is 64 or more.
    #[must_use]
    #[inline]
    pub const fn receive_context(self, context: u64, bits: u32) -> Option<Self> {
        if bits == 0 {
            return if context == 0 { Some(self) } else { None };
        }
        if bits >= u64::BITS || context >> bits != 0 {
            return None;
        }
        Some(Self((context << (u64::BITS - bits)) | self.0))
    }
}

impl Default for PeerAddress {
    #[inline]
    fn default() -> Self {
        Self::UNSPECIFIED
    }
}

/// Writes `peer 3`, or `any peer` for [`UNSPECIFIED`](PeerAddress::UNSPECIFIED).
impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_specified() { write!(f, "peer {}", self.0) } else { f.write_str("any peer") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements: AV-051, AV-052.
    #[test]
    fn a_receive_context_takes_the_top_bits() {
        let peer = PeerAddress(5);
        assert_eq!(peer.receive_context(3, 4), Some(PeerAddress((3 << 60) | 5)));
        assert_eq!(peer.receive_context(16, 4), None);
        assert_eq!(peer.receive_context(0, 0), Some(peer));
        assert_eq!(peer.receive_context(1, 0), None);
        assert_eq!(peer.receive_context(1, 64), None);
    }
}
