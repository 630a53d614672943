//! Tests of peers that announce their accesses without fences.

use super::revoked::{grantee, is_granted};
use super::*;
use crate::region::CloseError;
use crate::shm::pair::PairMemory;
use crate::system::forked::{in_a_child, refuse_calls};

/// Writes how the peer announces its accesses: with fences (0), or without them (1).
fn set_manner(pair: &PairMemory, manner: u64) {
    let words = PairMemory::words(0);
    let word = words.iter().find(|word| word.name == "other accesses: manner");
    pair.overwrite(word.expect("a word of the control page"), manner);
}

/// If the system refuses a fence on behalf of the peer, nothing is known about the peer's accesses until it fences
/// itself.
#[test]
fn unfenced_peer_is_waited_for_if_no_fence_is_possible() {
    let barrier = [(libc::SYS_membarrier, None)];
    if !in_a_child(|| refuse_calls(&barrier)) {
        return println!("skipped (seccomp): the kernel refuses a filter");
    }
    assert!(in_a_child(|| {
        assert!(refuse_calls(&barrier));
        let domain = Domain::new(Duration::from_millis(20));
        let (pair, grantee, region, registered) = grantee(&domain, None);
        set_manner(&pair, 1);
        grantee.end();
        assert!(is_granted(&registered, &grantee), "the peer may still write");
        let Err(CloseError::Busy(region)) = region.close() else { panic!("closed while the peer may write") };
        set_manner(&pair, 0);
        region.close().is_ok()
    }));
}
