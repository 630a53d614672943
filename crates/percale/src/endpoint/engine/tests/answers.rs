//! Tests that the answers of a target leave in the call in which it executes the accesses, because there may be no
//! later call.

use super::*;
use crate::region::Access;

/// The number of accesses that arrive together.
const ACCESSES: usize = 6;

/// Returns whether all accesses end although their target polls only once. They have ended in any case when this
/// returns.
fn end_with_one_look(a: &TestEndpoint, b: &TestEndpoint, peer: PeerAddress, region: &crate::Region) -> bool {
    let reads = [(); ACCESSES].map(|()| a.endpoint.read(peer, region.remote(), vec![0; 8]).start().unwrap());
    // The accesses leave and arrive.
    for _ in 0..50 {
        a.endpoint.progress();
        std::thread::sleep(Duration::from_micros(100));
    }
    b.endpoint.progress();
    let ended = || reads.iter().all(|read| read.is_ready()).then_some(());
    let mut enough = false;
    for _ in 0..1000 {
        a.endpoint.progress();
        enough |= ended().is_some();
    }
    until(&[a, b], ended);
    reads.into_iter().for_each(|mut read| assert_eq!(read.wait().unwrap().into_vec(), [7; 8]));
    enough
}

/// Requirements: RMA-005.
#[test]
fn answers_are_sent_in_the_poll_that_creates_them() {
    let (a, b) = (TestEndpoint::new("tcp"), TestEndpoint::new("tcp"));
    let peer = connect(&a, &b);
    let region = b.domain.register(vec![7; 8], Access::REMOTE_READ).unwrap();
    // On a busy machine the accesses may arrive one after the other, but not in every attempt.
    assert!((0..20).any(|_| end_with_one_look(&a, &b, peer, &region)), "answers wait for the target's next call");
}
