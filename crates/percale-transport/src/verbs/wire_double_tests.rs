//! Tests of devices that fail, change, or lack a feature. They use the double of libibverbs.

use std::time::{Duration, Instant};

use super::super::double;
use super::super::tests::{adapter, sides};
use super::tests::wires;
use super::*;

/// A failed completion queue ends only the connection that uses it.
///
/// Requirements: FLT-002.
#[test]
fn a_completion_queue_that_fails_ends_no_other() {
    double::on("", || {
        let adapter = adapter().expect("a device");
        let context = Arc::clone(adapter.domain().context());
        let (one, two) = sides(&adapter);
        let (three, four) = sides(&adapter);
        double::tell("event double0 cq_error");
        context.look();
        assert_eq!(context.lost(), None, "the device works");
        assert!(four.queue.has_failed() && four.queue.poll(|_| {}).is_err());
        assert!(![&one, &two, &three].iter().any(|side| side.queue.has_failed()));
        one.pair.post_send(1, 0, 8, None).expect("the queue pair works");
        assert_eq!((one.next().status, two.next().len), (0, 8));
        // A thread that sleeps on the connection of the failed wire is woken up as well.
        drop((one, two, three, four));
        let (mut first, mut second) = wires(&adapter);
        double::tell("event double0 cq_error");
        first.look();
        second.look();
        second.look();
        let ends = (first.failure().is_some(), second.failure().is_some());
        assert!(ends == (false, true) || ends == (true, false), "{ends:?}");
        double::tell("event double0 fatal");
        context.look();
        assert!(context.lost().is_some());
    });
}

#[test]
fn a_device_without_reliable_connections_is_skipped_with_the_reason() {
    double::on("device efa0 rc=0; device small0 max_qp_wr=64; device down0 up=0; device double0", || {
        let reason = Adapter::open().expect("one device can be used").describe_all();
        for text in [
            "double0 port 1",
            "efa0: it does not support reliable connections",
            "small0: it allows 64 requests",
            "down0: no port",
        ] {
            assert!(reason.contains(text), "{text} is not in {reason}");
        }
    });
}

#[test]
fn a_machine_without_reliable_connections_has_no_verbs() {
    double::on("device efa0 rc=0", || {
        assert!(Adapter::open().is_err_and(|why| why.contains("does not support reliable connections")));
    });
}

#[test]
fn port_is_found_after_its_address_changes() {
    double::on("", || {
        let adapter = adapter().expect("a device");
        exchange(&adapter);
        let before = adapter.describe();
        double::tell("event double0 gid_change");
        exchange(&adapter);
        assert_ne!(before, adapter.describe());
    });
}

/// Transfers a byte between two new queue pairs.
fn exchange(adapter: &Arc<Adapter>) {
    let (mut one, mut two) = wires(adapter);
    assert_eq!(one.write_one(&[7]), Ok(1));
    let until = Instant::now() + Duration::from_secs(10);
    let mut byte = [0];
    while two.read_one(&mut byte) != Ok(1) {
        assert!(one.failure().is_none() && Instant::now() < until, "{:?}", one.failure());
        _ = one.read_one(&mut [0]);
    }
    assert_eq!(byte, [7]);
}

/// The end of the TCP connection arrives before the last bytes. They are received even if the wire is polled often.
///
/// Requirements: FLT-003.
#[test]
fn last_bytes_after_tcp_close_are_read() {
    double::on("device double0; delay double0 receive 5", || {
        let adapter = adapter().expect("a device");
        let (mut one, mut two) = wires(&adapter);
        assert_eq!(one.write_one(&[7]), Ok(1));
        drop(one);
        while !two.is_over() {
            two.look();
        }
        let (mut byte, until) = ([0], Instant::now() + Duration::from_secs(10));
        let read = loop {
            match two.read_one(&mut byte) {
                Err(Errno::AGAIN) => assert!(Instant::now() < until, "neither a byte nor an end"),
                other => break other,
            }
        };
        assert_eq!((read, byte), (Ok(1), [7]));
    });
}
