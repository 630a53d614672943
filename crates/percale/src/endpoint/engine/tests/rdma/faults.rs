//! Devices that are slow, or fail, on the double of libibverbs.

use super::*;
use crate::transport::verbs::double;

/// More writes than a queue pair has room for are under way when their region is closed.
#[test]
fn rev_001_writes_that_wait_for_room_hold_up_nothing_that_was_refused() {
    double::on("device double0; delay double0 write 20", || {
        let (a, b, peer) = connected().expect("a device");
        for count in [1, 31, 32, 33, 40, 100] {
            let region = b.domain.register(vec![0; LEN], ALL).unwrap();
            reach(&a, &b, peer, &region);
            let part = region.remote().slice(0..64);
            let writes: Vec<_> =
                (0..count).map(|_| a.endpoint.write(peer, vec![7; 64], part).start().unwrap()).collect();
            region.close().unwrap();
            // The initiator is busy elsewhere until the device has refused what it was given.
            let begun = Instant::now();
            until(&[&b], || (begun.elapsed() > Duration::from_millis(60)).then_some(()));
            until(&[&a, &b], || writes.iter().all(|write| write.is_ready()).then_some(()));
            for write in writes {
                if let Err(error) = write.wait() {
                    assert_eq!(code::<()>(Err(error)), ErrorCode::KeyRejected);
                }
            }
            let (send, receive) = (a.endpoint.send(peer, vec![1; 8]), b.endpoint.recv(vec![0; 8]).start().unwrap());
            let send = send.start().unwrap();
            until(&[&a, &b], || (send.is_ready() && receive.is_ready()).then_some(()));
            send.wait().unwrap();
            receive.wait().unwrap();
        }
    });
}
