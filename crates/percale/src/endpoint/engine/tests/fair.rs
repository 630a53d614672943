//! Tests that a peer that always has frames to send does not delay other peers.

use super::*;

/// Requirements: FLT-009.
#[test]
fn continuously_sending_peer_does_not_starve_others() {
    let [busy, other, target] = [(); 3].map(|()| TestEndpoint::new("tcp"));
    let from_other = connect(&other, &target);
    // The peer that was added last is polled first.
    let from_busy = connect(&busy, &target);
    let before = target.finished();
    let mut receive = target.endpoint.tagged_recv(9, 0, vec![0; 8]).start().unwrap();
    other.endpoint.tagged_inject(from_other, 9, &[9; 8]).unwrap();
    for _ in 0..1000 {
        other.endpoint.progress();
        // At every poll of the target there is a message of the busy peer.
        busy.endpoint.tagged_inject(from_busy, 5, &[5; 8]).unwrap();
        busy.endpoint.progress();
        target.endpoint.progress();
        if target.finished() > before {
            assert_eq!(receive.wait().unwrap().to_vec(), [9; 8]);
            return;
        }
    }
    panic!("the message of the other peer did not arrive within 1000 rounds");
}
