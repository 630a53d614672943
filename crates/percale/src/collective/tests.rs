use super::AddressSet;
use crate::address::PeerAddress;

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
