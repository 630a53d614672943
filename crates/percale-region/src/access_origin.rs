//! The endpoint and the peer of an access, and the endpoints and peers that a key admits.

/// The origin of an access: the local endpoint through which it arrives, and the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessOrigin {
    /// The endpoint, by its number in this process, or 0 for none.
    pub endpoint: u64,
    /// The peer's incarnation, which no other endpoint ever has, or 0 for none.
    pub peer: u128,
    /// The authorization key of the endpoint, which the peer has proved to have. 0 is the domain's key; other values
    /// are digests of keys.
    pub authority: u64,
}

/// The endpoints and peers through which accesses may arrive. Any other peer gets the same error as for a key that does
/// not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessScope {
    /// Every endpoint of the domain.
    #[default]
    Domain,
    /// No endpoint, because the region is disabled.
    Nobody,
    /// This endpoint, from any peer.
    Endpoint(u64),
    /// This endpoint, from this peer. Used for type 2 windows.
    Pair(AccessOrigin),
}

impl AccessScope {
    /// Returns whether an access of this origin is admitted.
    #[inline]
    pub fn admits(self, via: AccessOrigin) -> bool {
        match self {
            Self::Domain => true,
            Self::Nobody => false,
            Self::Endpoint(endpoint) => via.endpoint == endpoint,
            Self::Pair(pair) => via == pair,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Requirements: MW-038.
    #[test]
    fn pair_admits_only_its_endpoint_and_peer() {
        let ours = AccessOrigin { endpoint: 3, peer: 7, authority: 0 };
        let others = [AccessOrigin { endpoint: 4, ..ours }, AccessOrigin { peer: 8, ..ours }, AccessOrigin::default()];
        assert!(
            AccessScope::Pair(ours).admits(ours)
                && AccessScope::Domain.admits(ours)
                && AccessScope::Endpoint(3).admits(ours)
        );
        for other in others {
            assert!(!AccessScope::Pair(ours).admits(other), "{other:?}");
            assert!(AccessScope::Domain.admits(other) && !AccessScope::Nobody.admits(other), "{other:?}");
            assert_eq!(AccessScope::Endpoint(3).admits(other), other.endpoint == 3, "{other:?}");
        }
    }
}
