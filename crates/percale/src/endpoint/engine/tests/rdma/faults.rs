//! Tests with devices that are slow or fail, which the test double of libibverbs simulates.

use super::*;
use crate::transport::verbs::{QueuePairEnd, double};
use crate::wire::queue_pair::OfferedBytes;

/// Closes a region while more writes to it are under way than a queue pair has room for.
///
/// Requirements: REV-001.
#[test]
fn writes_waiting_for_queue_space_do_not_block_rejections() {
    double::on("device double0; delay double0 write 20", || {
        let (a, b, peer) = connected().expect("a device");
        for count in [1, 31, 32, 33, 40, 100] {
            let region = b.domain.register(vec![0; LEN], ALL).unwrap();
            reach(&a, &b, peer, &region);
            let part = region.remote().at(0..64);
            let writes: Vec<_> =
                (0..count).map(|_| a.endpoint.write(peer, vec![7; 64], part).start().unwrap()).collect();
            region.close().unwrap();
            // The initiator does other work until the device has refused the posted writes.
            let begun = Instant::now();
            until(&[&b], || (begun.elapsed() > Duration::from_millis(60)).then_some(()));
            until(&[&a, &b], || writes.iter().all(|write| write.is_ready()).then_some(()));
            for mut write in writes {
                if let Err(error) = write.wait() {
                    assert_eq!(code::<()>(Err(error)), ErrorCode::KeyRejected);
                }
            }
            let (send, mut receive) = (a.endpoint.send(peer, vec![1; 8]), b.endpoint.recv(vec![0; 8]).start().unwrap());
            let mut send = send.start().unwrap();
            until(&[&a, &b], || (send.is_ready() && receive.is_ready()).then_some(()));
            send.wait().unwrap();
            receive.wait().unwrap();
        }
    });
}

/// A peer requests a queue pair at an address that no peer has, which a kernel tries to resolve for a second.
///
/// Requirements: FLT-007.
#[test]
fn no_queue_pair_is_created_for_a_foreign_address() {
    double::on("", || {
        let (a, b, peer) = connected().expect("a device");
        let region = b.domain.register(vec![0; LEN], ALL).unwrap();
        let end = QueuePairEnd { pair: 0x11, sequence: 1, lid: 0, gid: [0xfe; 16], mtu: 3 };
        let ask = Head { kind: FrameKind::QueuePair, flags: Flags::ID, ..Head::default() };
        for _ in 0..20 {
            a.forge(&b, &ask, OfferedBytes::of(&Ok(end)).as_bytes());
            let slot = b.slot(&a);
            b.endpoint.progress();
            b.engine(|engine| match &engine.links[slot as usize] {
                Some(AnyLink::Verbs(link)) => assert!(!link.has_background_work(), "a queue pair is being created"),
                other => panic!("{other:?}"),
            });
            // The initiator gets an answer to a request that it did not make itself.
            until(&[&a, &b], || a.ended());
            until(&[&a, &b], || b.ended());
            connect(&a, &b);
        }
        reach(&a, &b, peer, &region);
    });
}
