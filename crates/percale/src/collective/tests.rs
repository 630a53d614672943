use std::time::{Duration, Instant};

use super::{AddressSet, MEMBER_LIMIT};
use crate::types::PeerAddress;

fn set(members: &[u64]) -> AddressSet {
    members.iter().map(|member| PeerAddress(*member)).collect()
}

#[test]
fn sets_keep_their_order() {
    let mut left = set(&[5, 1, 3, 1]);
    assert_eq!(left, set(&[5, 1, 3]));
    assert!(!left.insert(PeerAddress(3)) && left.insert(PeerAddress(9)));
    left.union(&set(&[2, 5, 4]));
    assert_eq!(left, set(&[5, 1, 3, 9, 2, 4]));
    left.intersect(&set(&[4, 9, 1, 7]));
    assert_eq!(left, set(&[1, 9, 4]));
    left.diff(&set(&[9, 8]));
    assert_eq!(left, set(&[1, 4]));
    assert!(left.remove(PeerAddress(1)) && !left.remove(PeerAddress(1)));
    assert_eq!((left.rank(PeerAddress(4)), left.len(), left.contains(PeerAddress(1))), (Some(0), 1, false));
}

/// Sets with the maximum number of members of a group are handled quickly. Comparing every pair of members would take
/// seconds.
#[test]
fn large_sets_are_made_quickly() {
    let all: Vec<u64> = (0..MEMBER_LIMIT as u64).rev().collect();
    let begun = Instant::now();
    let mut left = set(&all);
    left.union(&set(&all[..1000]));
    left.intersect(&set(&all[10..]));
    left.diff(&set(&all[MEMBER_LIMIT - 10..]));
    assert_eq!(left.members().iter().map(|member| member.0).collect::<Vec<_>>(), all[10..MEMBER_LIMIT - 10]);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}
