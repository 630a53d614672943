//! Tests of connections and endpoints that end, or fail to begin, while others are in the middle of something.

use std::sync::mpsc;

use zerocopy::IntoBytes;

use super::owned::{next, received};
use super::*;
use crate::ErrorCode;
use crate::completion::wait::tests::is_readable;
use crate::endpoint::engine::Connector;
use crate::endpoint::engine::types::Notify;
use crate::endpoint::safe::Cause;
use crate::endpoint::work::{OpFlags, ReceiveWork, SendWork};
use crate::local_memory::buffer::Buffer;
use crate::local_memory::buffer::BufferExt as _;
use crate::region::Access;
use crate::transport::any::AnyLink;
use crate::transport::connect::{ConnectError, ServiceNotice};
use crate::wire::hello::Incarnation;

/// Posts a notice to an endpoint, as the service thread does.
fn notify(to: &TestEndpoint, notice: ServiceNotice) {
    to.engine(|engine| match &engine.connector {
        Connector::Service { mailbox, .. } => mailbox.post(notice),
        other => panic!("{other:?}"),
    });
}

/// The frames that a local peer published before its death are received, however many there are and although the
/// endpoint has not polled them.
///
/// Requirements: FLT-003.
#[test]
fn messages_published_before_the_death_of_a_local_peer_arrive() {
    /// The number of results at which an endpoint stops polling, and a number of messages that has room in a ring.
    const LIMIT: usize = 8;
    const PART: u64 = 16;
    let queue = CompletionQueue::new(1, LIMIT);
    let (a, b) = (TestEndpoint::reporting("shm", Trust::SameUser, &queue), TestEndpoint::new("shm"));
    let to_a = connect(&b, &a);
    let mut buffers: Vec<Buffer> = (0..2 * PART).map(|_| Buffer::zeroed(8)).collect();
    for (context, buffer) in (0..).zip(&mut buffers) {
        let segments = buffer.segment_for_receive().map(Segments::one).unwrap();
        let (from, tag, flags) = (PeerAddress::UNSPECIFIED, Some((7, 0)), OpFlags::COMPLETION);
        let work = ReceiveWork { from, segments, tag, context, flags };
        a.engine(|engine| engine.post_receive(&work, Notify::Event)).unwrap();
    }
    let send = |number: u64| b.endpoint.tagged_inject(to_a, 7, &number.to_le_bytes()).unwrap();
    (0..PART).for_each(send);
    until(&[&a], || (queue.len() >= LIMIT).then_some(()));
    (PART..2 * PART).for_each(send);
    a.endpoint.progress();
    assert!(queue.len() < 2 * PART as usize, "messages wait in the ring, because the queue is full");
    let slot = a.slot(&b);
    let (serial, incarnation) = a.engine(|engine| {
        let peer = engine.core.peers.get(slot);
        (peer.serial(), Incarnation(peer.incarnation().to_be_bytes()))
    });
    notify(&a, ServiceNotice::Dead { serial, incarnation, reason: "the peer process exited".to_owned() });
    until(&[&a], || a.ended());
    for context in 0..2 * PART {
        let entry = received(&queue).expect("a result").expect("the message was published before the peer died");
        assert_eq!(entry.context, context);
    }
    for (number, buffer) in (0_u64..).zip(buffers) {
        assert_eq!(buffer.into_vec(), number.to_le_bytes());
    }
}

/// Memory of a peer that has ended is still mapped. An access that is posted then fails, and does not change the memory.
///
/// Requirements: FLT-001.
#[test]
fn access_to_memory_of_an_ended_peer_fails() {
    let (a, b) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
    let to_b = connect(&a, &b);
    let region = b.domain.register(b.domain.allocate(8).unwrap(), Access::REMOTE_WRITE).unwrap();
    let write = |byte| a.endpoint.write(to_b, vec![byte; 8], region.remote().at(0..8)).start().unwrap();
    let content = || {
        let mut bytes = [0; 8];
        region.read(0, &mut bytes);
        bytes
    };
    let mut first = write(1);
    until(&[&a, &b], || first.is_ready().then_some(()));
    first.wait().unwrap();
    let second = write(2);
    assert_eq!(content(), [2; 8], "the memory is mapped: the call itself makes the access");
    drop(second);
    let slot = a.slot(&b);
    a.engine(|engine| match &engine.links[slot as usize] {
        Some(AnyLink::Shm(link)) => link.connection_end().set("the peer process exited"),
        other => panic!("{other:?}"),
    });
    let mut late = write(3);
    until(&[&a], || late.is_ready().then_some(()));
    let error = late.wait().unwrap_err();
    assert!(matches!(error.cause(), Cause::Completion(entry) if entry.error == ErrorCode::PeerDied), "{error}");
    assert_eq!(content(), [2; 8]);
}

/// Both sides may connect at once. If the attempt of one side fails after the connection of the other side was
/// established, operations over that connection continue.
#[test]
fn failed_attempt_does_not_end_the_connection_of_the_peer() {
    for transport in ["shm", "tcp"] {
        let (a, b) = (TestEndpoint::new(transport), TestEndpoint::new(transport));
        let (to_b, to_a) = (connect(&a, &b), b.peer(&a));
        let slot = a.slot(&b);
        let mut receive = a.endpoint.tagged_recv(5, 0, vec![0; 8]).from(to_b).start().unwrap();
        let attempt = u64::MAX;
        a.engine(|engine| engine.attempts.insert(attempt, slot));
        let error = ConnectError::AnswersOnly(b.endpoint.address());
        notify(&a, ServiceNotice::Failed { attempt, error });
        until(&[&a, &b], || a.engine(|engine| engine.attempts.is_empty()).then_some(()));
        b.endpoint.tagged_inject(to_a, 5, &[5; 8]).unwrap();
        until(&[&a, &b], || receive.is_ready().then_some(()));
        assert_eq!(receive.wait().unwrap().to_vec(), [5; 8], "{transport}");
        assert!(a.ended().is_none() && b.ended().is_none(), "{transport}: the connection has not ended");
    }
}

/// An endpoint that closes sends the answers for which its rings had no room.
#[test]
fn closing_endpoint_sends_answers_that_wait_for_room() {
    let (a, b) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
    let (to_b, to_a) = (connect(&a, &b), b.peer(&a));
    let bytes = Buffer::from(vec![7; 8]);
    let segments = Segments::one(bytes.segment_for_send());
    let flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
    let work = SendWork { peer: to_b, segments, tag: Some(7), data: None, context: 1, flags };
    a.engine(|engine| engine.post_send(&work, Notify::Event)).unwrap();
    while b.endpoint.inject(to_a, &[]).is_ok() {}
    let mut receive = b.endpoint.tagged_recv(7, 0, vec![0; 8]).start().unwrap();
    until(&[&b], || receive.is_ready().then_some(()));
    assert_eq!(receive.wait().unwrap().to_vec(), [7; 8]);
    drop(receive);
    assert!(b.engine(|engine| engine.core.peers.has_answers()), "the ring has no room for the answer");
    // The sender makes no progress before the endpoint closes.
    let (closes, closing) = mpsc::channel();
    let sender = std::thread::spawn(move || {
        closing.recv().unwrap();
        until(&[&a], || a.engine(|engine| next(&mut engine.core.reporting)))
    });
    b.engine(|engine| {
        closes.send(()).unwrap();
        engine.flush();
    });
    drop(b);
    assert_eq!(sender.join().unwrap().expect("the message was received").context, 1);
    drop(bytes);
}

/// The call that finds the end of a connection may first send the last bytes of a message. The message is then reported
/// as sent.
#[test]
fn message_that_leaves_in_the_call_that_finds_the_end_is_reported_as_sent() {
    let (a, b) = (TestEndpoint::new("tcp"), TestEndpoint::new("tcp"));
    let peer = connect(&a, &b);
    let slot = a.slot(&b);
    let bytes = Buffer::from(vec![7; 8]);
    let segments = Segments::one(bytes.segment_for_send());
    // The link keeps the message until the next call.
    let flags = OpFlags::COMPLETION | OpFlags::MORE;
    let work = SendWork { peer, segments, tag: Some(7), data: None, context: 1, flags };
    a.engine(|engine| engine.post_send(&work, Notify::Event)).unwrap();
    let link = |engine: &Engine| match &engine.links[slot as usize] {
        Some(AnyLink::Tcp(link)) => (link.unsent().is_some(), is_readable(link)),
        other => panic!("{other:?}"),
    };
    assert!(a.engine(|engine| link(engine).0), "the message has not left");
    let bye = Head { kind: FrameKind::Bye, ..Head::default() };
    b.write_bytes(&a, bye.to_bytes().as_bytes());
    until(&[], || (a.engine(|engine| link(engine)) == (true, true)).then_some(()));
    until(&[&a], || a.ended());
    let end = until(&[&a], || a.engine(|engine| next(&mut engine.core.reporting)));
    assert_eq!(end.expect("all bytes of the message have left").context, 1);
    let mut receive = b.endpoint.tagged_recv(7, 0, vec![0; 8]).start().unwrap();
    until(&[&b], || receive.is_ready().then_some(()));
    assert_eq!(receive.wait().unwrap().to_vec(), [7; 8]);
    drop(bytes);
}
