//! Tests that frames leave in the call that creates them, because there may be no later call: the answers of a target in
//! the call in which it executes the accesses, and operations without a completion in the call that posts them.

use super::super::types::Notify;
use super::*;
use crate::endpoint::remote_work::{RemotePieces, RmaWork};
use crate::endpoint::work::{OpFlags, SendWork};
use crate::local_memory::buffer::{Buffer, BufferExt as _};
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

/// The first of several frames always leaves at once, so two operations are posted.
///
/// Requirements: CMP-004.
#[test]
fn operations_without_completion_leave_in_the_call_that_posts_them() {
    // A frame also leaves at once if it is posted some microseconds after the first one, but not in every round.
    const ROUNDS: usize = 20;
    let (a, b) = (TestEndpoint::new("tcp"), TestEndpoint::new("tcp"));
    let peer = connect(&a, &b);
    let slot = a.slot(&b);
    let region = b.domain.register(vec![0; 8], Access::REMOTE_WRITE).unwrap();
    let bytes = Buffer::from(vec![7; 8]);
    let local = Segments::one(bytes.segment_for_send());
    let send = |flags| SendWork { peer, segments: local, tag: Some(5), data: None, context: 0, flags };
    let remote = RemotePieces::one(region.remote());
    let write = RmaWork { peer, local, remote, data: None, context: 0, flags: OpFlags::empty() };
    let (plain, delivered) = (send(OpFlags::empty()), send(OpFlags::DELIVERY_COMPLETE));
    let receive = |_| b.endpoint.tagged_recv(5, 0, vec![0; 8]).start().unwrap();
    let receives: Vec<_> = (0..4 * ROUNDS).map(receive).collect();
    let posts: [&dyn Fn(&mut Engine); 3] = [
        &|engine| engine.post_send(&plain, Notify::Silent).unwrap(),
        &|engine| engine.post_send(&delivered, Notify::Silent).unwrap(),
        &|engine| engine.post_rma(true, &write, Notify::Silent).unwrap(),
    ];
    for (kind, post) in posts.iter().enumerate() {
        for _ in 0..ROUNDS {
            let unsent = a.engine(|engine| {
                engine.progress();
                post(engine);
                post(engine);
                engine.links[slot as usize].as_ref().and_then(AnyLink::unsent)
            });
            assert_eq!(unsent, None, "operation {kind} waits for another call");
            b.endpoint.progress();
        }
    }
    // The sender makes no further call.
    until(&[&b], || receives.iter().all(|receive| receive.is_ready()).then_some(()));
    receives.into_iter().for_each(|mut receive| assert_eq!(receive.wait().unwrap().to_vec(), [7; 8]));
    until(&[&a, &b], || a.remains().is_empty().then_some(()));
}
