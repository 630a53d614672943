//! Operations that start when a variable is written by a device. In these tests, a thread writes it.

use std::time::Duration;

use percale::trigger::{RawOperation, Variable};
use percale::{Access, AtomicOp, AtomicWork, Counter, Datatype, ErrorCode, OpFlags};

use crate::fabric::{Fabric, Transport};
use crate::memory::{Memory, content};
use crate::mesh::{Mesh, Receive, Send};

fn variables<F: Fabric, const N: usize>(mesh: &Mesh<F>) -> [Variable; N] {
    std::array::from_fn(|_| mesh.test_endpoint(0).domain.variable())
}

/// A message is sent only when the variable is written, with the contents of the buffer at that time.
///
/// Requirements: XPU-012, XPU-013, XPU-019.
pub fn a_send_waits_for_its_variable<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [8, 300, F::BULK] {
        let [variable, other] = variables(&mesh);
        let (from, to) = (Memory::content(1, len), Memory::blank(len));
        let received = mesh.receive(1, Receive::into(to));
        let sent = mesh.when_written(0, mesh.sending(1, Send::of(from)), &variable);
        other.write(); // This is another variable.
        mesh.nothing(received);
        from.write(&content(2, len));
        variable.write();
        mesh.all_done([sent, received]);
        assert!(to.read() == content(2, len), "{len} bytes");
    }
}

/// If the variable was written before the operation is posted, the operation starts immediately.
///
/// Requirements: XPU-013.
pub fn operation_of_written_variable_starts_immediately<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let [variable] = variables(&mesh);
    variable.write();
    let received = mesh.receive(1, Receive::into(Memory::blank(8)));
    let sent = mesh.when_written(0, mesh.sending(1, Send::of(Memory::content(1, 8))), &variable);
    mesh.all_done([sent, received]);
}

/// The order in which variables are written does not change the order in which operations start.
///
/// Requirements: XPU-018.
pub fn operations_begin_in_the_order_of_the_queue<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let all: [Variable; 4] = variables(&mesh);
    let receives: Vec<_> = all.iter().map(|_| Memory::blank(8)).collect();
    let received: Vec<_> = receives.iter().map(|memory| mesh.receive(1, Receive::into(*memory))).collect();
    let sent: Vec<_> = (0_u8..)
        .zip(&all)
        .map(|(number, variable)| mesh.when_written(0, mesh.sending(1, Send::of(Memory::of(&[number; 8]))), variable))
        .collect();
    all[2].write();
    all[1].write();
    mesh.nothing(received[0]);
    all[0].write();
    mesh.all_done(sent[..3].iter().copied());
    mesh.all_done(received[..3].iter().copied());
    mesh.nothing(sent[3]);
    all[3].write();
    mesh.all_done([sent[3], received[3]]);
    assert_eq!(receives.iter().map(|memory| memory.read()[0]).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

/// Every kind of operation can wait for a variable and completes normally.
///
/// Requirements: XPU-013.
pub fn every_kind_waits_for_its_variable<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let region = mesh.test_endpoint(1).domain.register(vec![3; 64], Access::REMOTE_READ | Access::REMOTE_WRITE);
    let region = region.expect("a region");
    let (into, fetched, old) = (Memory::blank(64), Memory::blank(32), Memory::blank(8));
    let atomic = AtomicWork {
        peer: mesh.peer(1),
        op: AtomicOp::Sum,
        datatype: Datatype::U64,
        operand: Memory::of(&5_u64.to_ne_bytes()).segments(),
        compare: None,
        result: Some(old.segments()),
        remote: region.remote().at(56..64),
        data: None,
        context: 0,
        flags: OpFlags::COMPLETION,
    };
    let [receiving, sending, reading, writing, adding] = variables(&mesh);
    let received = mesh.when_written(1, mesh.receiving(Receive::into(into).tag(7, 0)), &receiving);
    let send = Send::of(Memory::content(1, 64)).tag(7).data(99);
    let sent = mesh.when_written(0, mesh.sending(1, send), &sending);
    let read = RawOperation::Read(mesh.rma(1, fetched.segments(), &[region.remote().at(0..32)]));
    let read = mesh.when_written(0, read, &reading);
    let write = RawOperation::Write(mesh.rma(1, Memory::content(4, 16).segments(), &[region.remote().at(32..48)]));
    let write = mesh.when_written(0, write, &writing);
    let add = mesh.when_written(0, RawOperation::Atomic(atomic), &adding);
    mesh.nothing(add);
    for variable in [&receiving, &sending, &reading, &writing, &adding] {
        variable.write();
    }
    mesh.all_done([received, sent, read, write, add]);
    assert!(into.read() == content(1, 64) && fetched.read() == [3; 32] && old.read() == [3; 8]);
}

/// An operation that waits for a variable is cancelled. The operations posted before and after it start as if it had
/// not been posted, and closing the endpoint does not hang.
///
/// Requirements: XPU-017.
pub fn a_cancelled_operation_of_a_variable_never_begins<F: Transport>() {
    let mut mesh = Mesh::<F>::connected(2);
    let [first, second, third, never] = variables(&mesh);
    let waiting =
        |byte: u8, variable| mesh.when_written(0, mesh.sending(1, Send::of(Memory::of(&[byte; 8]))), variable);
    let (one, two, three) = (waiting(1, &first), waiting(2, &second), waiting(3, &third));
    waiting(4, &never);
    assert!(mesh.endpoint(0).cancel(one));
    assert!(!mesh.endpoint(0).cancel(one), "an operation is cancelled only once");
    assert_eq!(mesh.failed(one).error, ErrorCode::Canceled);
    let receives: Vec<_> = (0..3).map(|_| Memory::blank(8)).collect();
    let received: Vec<_> = receives.iter().map(|memory| mesh.receive(1, Receive::into(*memory))).collect();
    [&first, &second, &third].into_iter().for_each(Variable::write);
    mesh.all_done([two, three, received[0], received[1]]);
    assert_eq!((receives[0].read()[0], receives[1].read()[0]), (2, 3));
    mesh.nothing(received[2]);
    mesh.close(0);
    never.write(); // Its memory still exists.
    assert!(never.is_written());
}

/// Through the safe API, a waiting thread detects a store by another thread without a notification. A counter can count
/// the completion.
///
/// Requirements: XPU-013.
pub fn a_store_of_another_thread_ends_a_wait<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for pause in [0, 5, 30] {
        let [variable] = variables(&mesh);
        let counter = Counter::new();
        let received = mesh.receive(1, Receive::into(Memory::blank(64)));
        let send = mesh.endpoint(0).send(mesh.peer(1), vec![1; 64]).when_written(&variable);
        let mut send = send.counting(&counter).start().expect("the operation waits");
        let dropped =
            mesh.endpoint(0).send(mesh.peer(1), vec![2; 64]).when_written(&mesh.test_endpoint(0).domain.variable());
        drop(dropped.start().expect("the operation waits"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(pause));
                variable.write();
            });
            assert_eq!(send.wait().expect("sent").len(), 64);
        });
        mesh.done(received);
        assert_eq!(counter.value(), 1);
    }
}
