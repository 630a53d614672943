//! Tests of a cache for which the kernel rejects the fence of all threads after the cache was opened.

use super::*;
use crate::cache::grace::Grace;

/// Requirements: RCACHE-010.
#[test]
fn grace_without_fence_waits_for_lanes_without_a_later_lock() {
    let epoch = AtomicU64::new(0);
    let mut grace = Grace::with(|| false);
    let ended = |grace: &mut Grace, epoch: &crate::sync::AtomicU64| {
        let mut all = Vec::new();
        grace.pass(epoch, |number| all.push(number));
        all
    };
    let (one, other) = (grace.join(), grace.join());
    grace.retire(7);
    assert!(ended(&mut grace, &epoch).is_empty() && grace.waits_for_fence());
    grace.fenced(&one);
    assert!(ended(&mut grace, &epoch).is_empty() && grace.waits_for_fence(), "the other lane has not passed a fence");
    grace.retire(8);
    // The other lane is in the middle of a use.
    other.begin(Parity::of(0));
    grace.fenced(&other);
    assert!(ended(&mut grace, &epoch).is_empty() && !grace.waits_for_fence(), "the use has not ended");
    other.end(Parity::of(0));
    assert_eq!(ended(&mut grace, &epoch), [7], "entries retired later still wait");
    assert!(grace.waits_for_fence());
    // A lane that joins later finds none of these entries, and a lane that leaves is not waited for.
    let _later = grace.join();
    grace.leave(&other, &mut 0);
    grace.fenced(&one);
    assert_eq!(ended(&mut grace, &epoch), [8]);
    assert!(!grace.waits_for_fence());
}
