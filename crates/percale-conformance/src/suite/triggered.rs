//! Operations that start when a counter reaches a threshold.

use percale::endpoint::safe::Cause;
use percale::trigger::RawOperation;
use percale::{
    Access, AtomicOp, AtomicWork, CompletionFlags, Counter, Datatype, ErrorCode, OpFlags, PeerAddress, PostError,
};

use crate::fabric::{Peers, Transport};
use crate::memory::{Memory, content};
use crate::mesh::{Mesh, Receive, Send};

/// A message is sent only when the counter reaches the threshold, with the contents of the buffer at that time.
///
/// Requirements: TRIG-006, TRIG-007, TRIG-017.
pub fn a_send_waits_for_its_counter<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [8, 300, F::BULK] {
        let counter = Counter::new();
        let (from, to) = (Memory::content(1, len), Memory::blank(len));
        let received = mesh.receive(1, Receive::into(to));
        let sent = mesh.when(0, mesh.sending(1, Send::of(from)), &counter, 2);
        mesh.nothing(received);
        counter.add(1);
        mesh.nothing(sent);
        counter.add_error(5); // Failures do not count as successes.
        mesh.nothing(received);
        from.write(&content(2, len));
        counter.add(1);
        mesh.done(sent);
        mesh.done(received);
        assert!(to.read() == content(2, len), "{len} bytes");
        assert_eq!(counter.value(), 2);
    }
}

/// Operations start in the order of their thresholds, and in posting order if the thresholds are equal. This also holds
/// if one increment reaches all thresholds.
///
/// Requirements: TRIG-009, TRIG-010, TRIG-011.
pub fn due_operations_start_in_threshold_order<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let thresholds = [5, 3, 4, 3, 1, 2, 5, 1];
    let mut order: Vec<usize> = (0..thresholds.len()).collect();
    order.sort_by_key(|&number| thresholds[number]);
    for steps in [vec![5], vec![2, 3], vec![1; 5], vec![7]] {
        let counter = Counter::new();
        let receives: Vec<_> = thresholds.iter().map(|_| Memory::blank(8)).collect();
        let received: Vec<_> = receives.iter().map(|memory| mesh.receive(1, Receive::into(*memory))).collect();
        let sent: Vec<_> = (0..thresholds.len())
            .map(|number| {
                let bytes = Memory::of(&(number as u64).to_ne_bytes());
                mesh.when(0, mesh.sending(1, Send::of(bytes)), &counter, thresholds[number])
            })
            .collect();
        for step in steps {
            counter.add(step);
            mesh.turns(20);
        }
        mesh.all_done(sent);
        mesh.all_done(received);
        let came: Vec<_> = receives.iter().map(|memory| memory.read()[0] as usize).collect();
        assert_eq!(came, order);
    }
}

/// Tests threshold 0, a threshold that the counter has already passed, and a counter that is set.
///
/// Requirements: TRIG-008, TRIG-012.
pub fn operation_with_reached_threshold_starts_immediately<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let counter = Counter::new();
    counter.add(10);
    let threshold = |number| mesh.when(0, mesh.sending(1, Send::of(Memory::content(number, 64))), &counter, number);
    let receive = || mesh.receive(1, Receive::into(Memory::blank(64)));
    for number in [0, 9, 10] {
        let received = receive();
        mesh.done(threshold(number));
        mesh.done(received);
    }
    let (waits, received) = (threshold(20), receive());
    mesh.nothing(waits);
    counter.set(3);
    mesh.nothing(received);
    counter.set(20);
    mesh.done(waits);
    mesh.done(received);
    // After the counter was set to a lower value, later thresholds must be reached again.
    counter.set(0);
    let (waits, received) = (threshold(2), receive());
    mesh.nothing(waits);
    counter.add(2);
    mesh.done(waits);
    mesh.done(received);
}

/// Sends, tagged sends, receives, reads, writes and atomic operations are reported and counted as if they were posted
/// directly.
///
/// Requirements: TRIG-002, TRIG-014.
pub fn triggered_operations_complete_like_posted_ones<F: Transport>() {
    let (sends, writes) = (Counter::new(), Counter::new());
    let mesh = Mesh::<F>::with(
        2,
        |domain| domain,
        |number, endpoint| match number {
            0 => endpoint.send_counter(&sends).write_counter(&writes),
            _ => endpoint,
        },
    );
    mesh.connect();
    let counter = Counter::new();
    let region = mesh.test_endpoint(1).domain.register(vec![3; 64], Access::REMOTE_READ | Access::REMOTE_WRITE);
    let region = region.expect("a region");
    let (into, plain) = (Memory::blank(64), Memory::blank(64));
    let receive = mesh.when(1, mesh.receiving(Receive::into(into).tag(7, 0)), &counter, 1);
    let plainly = mesh.when(1, mesh.receiving(Receive::into(plain)), &counter, 1);
    let tagged = mesh.when(0, mesh.sending(1, Send::of(Memory::content(1, 64)).tag(7).data(99)), &counter, 2);
    let message = mesh.when(0, mesh.sending(1, Send::of(Memory::content(2, 64))), &counter, 2);
    let fetched = Memory::blank(32);
    let read = RawOperation::Read(mesh.rma(1, fetched.segments(), &[region.remote().at(0..32)]));
    let read = mesh.when(0, read, &counter, 3);
    let write = RawOperation::Write(mesh.rma(1, Memory::content(4, 16).segments(), &[region.remote().at(32..48)]));
    let write = mesh.when(0, write, &counter, 3);
    let one = Memory::of(&5_u64.to_ne_bytes());
    let old = Memory::blank(8);
    let add = AtomicWork {
        peer: mesh.peer(1),
        op: AtomicOp::Sum,
        datatype: Datatype::U64,
        operand: one.segments(),
        compare: None,
        result: Some(old.segments()),
        remote: region.remote().at(56..64),
        data: None,
        context: 0,
        flags: OpFlags::COMPLETION,
    };
    let add = mesh.when(0, RawOperation::Atomic(add), &counter, 4);
    mesh.nothing(tagged);
    mesh.nothing(add);
    let before = sends.value();
    counter.add(4);
    let entry = mesh.done(tagged);
    assert!(entry.flags.contains(CompletionFlags::SEND | CompletionFlags::TAGGED));
    mesh.all_done([message, read, write, add, plainly]);
    let entry = mesh.done(receive);
    assert_eq!((entry.tag, entry.data, entry.len), (7, 99, 64));
    assert_eq!(into.read(), content(1, 64));
    assert_eq!(plain.read(), content(2, 64));
    assert_eq!(fetched.read(), [3; 32]);
    assert_eq!(old.read(), [3; 8]);
    let mut now = [0; 64];
    region.read(0, &mut now);
    assert_eq!(now[32..48], content(4, 16));
    assert_eq!(now[56..], (u64::from_ne_bytes([3; 8]) + 5).to_ne_bytes());
    assert_eq!((sends.value() - before, writes.value()), (2, 1));
}

/// A received message is forwarded without a call of the application.
///
/// Requirements: TRIG-013.
pub fn receive_triggers_a_send<F: Peers>() {
    let arrivals = Counter::new();
    let mesh = Mesh::<F>::with(
        3,
        |domain| domain,
        |number, endpoint| if number == 1 { endpoint.receive_counter(&arrivals) } else { endpoint },
    );
    if F::ALONE {
        return; // There is no other endpoint to send to.
    }
    mesh.connect();
    let before = arrivals.value();
    let (through, end) = (Memory::blank(1000), Memory::blank(1000));
    let last = mesh.receive(2, Receive::into(end));
    let middle = mesh.receive(1, Receive::into(through));
    let onwards = mesh.when(1, mesh.sending(2, Send::of(through)), &arrivals, before + 1);
    mesh.nothing(last);
    mesh.send(0, 1, Send::of(Memory::content(8, 1000)));
    mesh.all_done([middle, onwards, last]);
    assert_eq!(end.read(), content(8, 1000));
}

/// A cancelled operation is reported as cancelled, whether it waits or has started. Other operations of the same
/// counter start.
///
/// Requirements: TRIG-016.
pub fn a_cancelled_triggered_operation_never_begins<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let counter = Counter::new();
    let waiting = |byte: u8| mesh.when(0, mesh.sending(1, Send::of(Memory::of(&[byte; 8]))), &counter, 1);
    let (first, second, third) = (waiting(1), waiting(2), waiting(3));
    assert!(mesh.endpoint(0).cancel(second));
    assert!(!mesh.endpoint(0).cancel(second), "an operation is cancelled only once");
    let error = mesh.failed(second);
    assert_eq!(error.error, ErrorCode::Canceled);
    assert!(error.entry.flags.contains(CompletionFlags::SEND));
    let receives: Vec<_> = (0..3).map(|_| Memory::blank(8)).collect();
    let received: Vec<_> = receives.iter().map(|memory| mesh.receive(1, Receive::into(*memory))).collect();
    counter.add(1);
    mesh.all_done([first, third, received[0], received[1]]);
    assert_eq!((receives[0].read()[0], receives[1].read()[0]), (1, 3));
    mesh.nothing(received[2]);
    assert!(mesh.endpoint(1).cancel(received[2]));
    mesh.failed(received[2]);
    // A receive that was started can be cancelled like any receive.
    let begun = mesh.when(1, mesh.receiving(Receive::into(Memory::blank(8))), &counter, 1);
    mesh.turns(5);
    assert!(mesh.endpoint(1).cancel(begun));
    assert_eq!(mesh.failed(begun).error, ErrorCode::Canceled);
    assert!(!counter.has_work());
}

/// The counter drops the operations of an endpoint that is closed, and can still be used.
///
/// Requirements: TRIG-019.
pub fn an_endpoint_closes_while_its_operations_wait<F: Transport>() {
    let mut mesh = Mesh::<F>::connected(2);
    let counter = Counter::new();
    for _ in 0..100 {
        mesh.when(0, mesh.sending(1, Send::of(Memory::content(1, 64))), &counter, 1);
    }
    assert!(counter.has_work());
    mesh.close(0);
    assert!(!counter.has_work(), "waiting operations are dropped");
    counter.add(1);
    // An operation that waits for a dropped counter never starts, and fails.
    if !F::ALONE {
        let counter = Counter::new();
        let lost = mesh.when(1, mesh.sending(1, Send::of(Memory::content(1, 64))), &counter, 1);
        drop(counter);
        assert_eq!(mesh.failed(lost).error, ErrorCode::Canceled);
    }
}

/// The error is returned immediately, and no operation waits.
///
/// Requirements: TRIG-004.
pub fn operations_that_cannot_be_triggered_are_rejected<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let counter = Counter::new();
    let many = Receive::into(Memory::blank(4096)).with(OpFlags::MULTI_RECEIVE);
    for receive in [many, Receive::peek(OpFlags::empty()), Receive::peek(OpFlags::CLAIM)] {
        let error = crate::mesh::try_when(&mesh, 1, &mesh.receiving(receive), &counter).expect_err("refused");
        assert!(matches!(error, PostError::Flags(_)), "{error}");
    }
    let long = Send::of(Memory::blank(1 << 20)).with(OpFlags::INJECT);
    let error = crate::mesh::try_when(&mesh, 0, &mesh.sending(1, long), &counter).expect_err("refused");
    assert!(matches!(error, PostError::InjectTooLong(_)), "{error}");
    let error = mesh.endpoint(1).recv(vec![0; 64]).when(&counter, 1).many().expect_err("refused");
    assert!(matches!(error.cause(), Cause::Post(PostError::Flags(_))), "{error}");
    assert_eq!(error.into_buffer().map(|buffer| buffer.len()), Some(64));
    let remains = mesh.endpoint(1).remains();
    assert!(!remains.iter().any(|(name, _)| *name == "safe operations"), "{remains:?}");
    assert!(!counter.has_work());
    // Injected data is copied when the operation is posted.
    let (bytes, into) = (Memory::of(&[1; 64]), Memory::blank(64));
    let received = mesh.receive(1, Receive::into(into));
    let sent = mesh.when(0, mesh.sending(1, Send::of(bytes).with(OpFlags::INJECT)), &counter, 1);
    bytes.write(&[2; 64]);
    counter.add(1);
    mesh.all_done([sent, received]);
    assert_eq!(into.read(), [1; 64]);
}

/// An error that occurs only when the operation starts is reported as an error completion.
///
/// Requirements: TRIG-007.
pub fn failure_at_start_is_reported_as_error_completion<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let counter = Counter::new();
    let RawOperation::Send(mut work) = mesh.sending(1, Send::of(Memory::content(1, 64)).silent()) else {
        unreachable!()
    };
    work.peer = PeerAddress(1000);
    let lost = mesh.when(0, RawOperation::Send(work), &counter, 1);
    mesh.nothing(lost);
    counter.add(1);
    assert_eq!(mesh.failed(lost).error, ErrorCode::UnknownAddress);
}

/// An operation that owns its buffer ends when nothing can start it any more. It returns the buffer.
///
/// Requirements: TRIG-019.
pub fn operation_of_dropped_counter_is_canceled<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let endpoint = mesh.endpoint(1);
    for _ in 0..3 {
        let (counter, ended) = (Counter::new(), Counter::new());
        let receive = endpoint.recv(vec![0; 64]).when(&counter, 1).start().expect("the operation waits");
        let again = endpoint.recv(vec![0; 32]).when(&counter, 2).start().expect("the operation waits");
        let counted = endpoint.recv(vec![0; 16]).when(&counter, 3).counting(&ended).start();
        let counted = counted.expect("the operation waits");
        drop(counter);
        for (mut waits, len) in [(receive, 64), (again, 32), (counted, 16)] {
            let error = waits.wait().expect_err("no counter can start the operation");
            assert_eq!(error.errno(), ErrorCode::Canceled.errno());
            assert_eq!(error.into_buffer().expect("the buffer is returned").len(), len);
        }
        // Work that waits for the end of the operation does not begin.
        assert_eq!((ended.value(), ended.read_error()), (0, 0), "a canceled operation is not counted");
    }
}
