//! Tests of spinning on the rings between two polls.

use super::*;

/// A time longer than any step of these tests takes, so that a wait of this length would be noticed.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_micros(10);

/// Requirements: CMP-008.
#[test]
fn lingering_detects_shm_message_and_leaves_it_to_next_poll() {
    let (a, b) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
    let peer = connect(&a, &b);
    until(&[&a, &b], || (!a.endpoint.progress() && !b.endpoint.progress()).then_some(()));
    assert!(!b.engine(|engine| engine.linger(SHORT)), "no message arrives");
    assert!(!b.engine(|engine| engine.has_posted_receives()));
    let before = b.finished();
    let mut receive = b.endpoint.tagged_recv(7, 0, vec![0; 8]).start().unwrap();
    a.endpoint.tagged_inject(peer, 7, &[7; 8]).unwrap();
    assert!(b.engine(|engine| engine.has_posted_receives()));
    // `linger` itself returns false after that time, so the steps below need not measure it.
    assert!(b.engine(|engine| engine.linger(LONG)), "a message has arrived");
    assert_eq!(b.finished(), before, "no progress was made");
    assert!(b.engine(|engine| engine.linger(LONG)), "the message is still there");
    until(&[&b], || (b.finished() > before).then_some(()));
    assert!(!b.engine(|engine| engine.has_posted_receives()), "the receive has its message");
    assert_eq!(receive.wait().unwrap().to_vec(), [7; 8]);
}

/// Requirements: CMP-008.
#[test]
fn lingering_does_not_delay_sockets() {
    let (a, b) = (TestEndpoint::new("tcp"), TestEndpoint::new("tcp"));
    let peer = connect(&a, &b);
    let start = Instant::now();
    assert!(!b.engine(|engine| engine.linger(LONG)), "there is no ring to watch");
    // Frames that have not left must not wait either.
    let (near, far) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
    connect(&near, &far);
    let nobody = near.vector.insert("127.0.0.1:9").unwrap();
    near.endpoint.tagged_inject(nobody, 1, &[1; 8]).ok();
    near.engine(|engine| engine.poller.waits(0));
    assert!(!near.engine(|engine| engine.linger(LONG)), "a message waits to be sent");
    assert!(start.elapsed() < LONG, "the rings were watched");
    a.endpoint.tagged_inject(peer, 1, &[1; 8]).unwrap();
    let mut receive = b.endpoint.tagged_recv(1, 0, vec![0; 8]).start().unwrap();
    let before = b.finished();
    until(&[&a, &b], || (b.finished() > before).then_some(()));
    assert_eq!(receive.wait().unwrap().to_vec(), [1; 8]);
}
