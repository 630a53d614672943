//! Deferred work on endpoints with automatic progress.

#![expect(unsafe_code, reason = "queues raw work, on memory that is never freed")]

use std::time::Duration;

use percale::trigger::{DeferredWork, RawOperation, Work, WorkError, WorkId};
use percale::{
    Access, AddressVector, AtomicOp, AtomicWork, CompletionFlags, CompletionQueue, Counter, Datatype, Domain, Entry,
    ErrorCode, OpFlags, PeerAddress, ReceiveWork, RemoteMemory, RemotePieces, RmaWork, SendWork, SharedEndpoint,
};

use crate::fabric::{Fabric, Peers, Real};
use crate::memory::{Memory, content};
use crate::watchdog::Watchdog;

/// The maximum length of an injected message, as reported by `percale info`.
const INJECT_LIMIT: usize = 2048;

const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// Numbered endpoints of one domain that have each other's addresses. Tests do not drive them.
struct Ring {
    endpoints: Vec<SharedEndpoint>,
    queues: Vec<CompletionQueue>,
    sends: Counter,
    _vector: AddressVector,
    domain: Domain,
    _watchdog: Watchdog,
}

impl Ring {
    fn new<F: Fabric>(count: usize, what: &str) -> Self {
        let count = if F::ALONE { 1 } else { count };
        let _watchdog = Watchdog::new(what);
        let domain = F::new(crate::random::seed()).domain(|domain| domain);
        let _vector = domain.address_vector().build().expect("a vector");
        let sends = Counter::new();
        let (mut endpoints, mut queues) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let queue = CompletionQueue::default();
            let endpoint = domain.endpoint().vector(&_vector).transmit_queue(&queue).receive_queue(&queue);
            let endpoint = endpoint.send_counter(&sends).bind_shared("127.0.0.1:0").expect("an endpoint");
            _vector.insert(endpoint.address()).expect("an address");
            endpoints.push(endpoint);
            queues.push(queue);
        }
        Self { endpoints, queues, sends, _vector, domain, _watchdog }
    }

    fn at(&self, number: usize) -> SharedEndpoint {
        self.endpoints[number % self.endpoints.len()].clone()
    }

    fn peer(&self, number: usize) -> PeerAddress {
        PeerAddress((number % self.endpoints.len()) as u64)
    }

    fn queue(&self, number: usize) -> &CompletionQueue {
        &self.queues[number % self.queues.len()]
    }

    /// Queues an operation of an endpoint as deferred work.
    fn defer(&self, on: usize, operation: RawOperation, when: (&Counter, u64), counting: Option<&Counter>) -> WorkId {
        let (counter, threshold) = (when.0.clone(), when.1);
        let work = Work::Transfer(self.at(on), operation);
        // SAFETY: the tests use `Memory`, which is never freed.
        unsafe { self.domain.queue_work(DeferredWork { work, counter, threshold, counting: counting.cloned() }) }
            .expect("queued")
    }

    fn send(&self, to: usize, memory: Memory, tag: u64) -> RawOperation {
        let (peer, segments, flags) = (self.peer(to), memory.segments(), OpFlags::empty());
        RawOperation::Send(SendWork { peer, segments, tag: Some(tag), data: None, context: 7, flags })
    }

    /// Returns the entries that are currently in a queue.
    #[track_caller]
    fn entries(&self, number: usize) -> Vec<Entry> {
        let mut entries = [Entry::default(); 16];
        let count = self.queue(number).read(&mut entries).expect("no error");
        entries[..count].to_vec()
    }
}

fn receive(memory: Memory, tag: u64) -> RawOperation {
    let (from, segments, flags) = (PeerAddress::UNSPECIFIED, memory.segments(), OpFlags::empty());
    RawOperation::Receive(ReceiveWork { from, segments, tag: Some((tag, 0)), context: 8, flags })
}

/// Deferred work writes no entries to queues and does not change the endpoint's counters, unless requested.
///
/// Requirements: DWQ-001, DWQ-005, DWQ-009, DWQ-010, DWQ-011.
pub fn deferred_work_updates_only_its_counter<F: Real>() {
    let ring = Ring::new::<F>(2, "deferred work updates only its counter");
    let [trigger, sent, received] = [Counter::new(), Counter::new(), Counter::new()];
    for (round, len) in [8, 5000, F::BULK].into_iter().enumerate() {
        let round = round as u64;
        let (from, into) = (Memory::content(1, len), Memory::blank(len));
        ring.defer(0, ring.send(1, from, round), (&trigger, round + 1), Some(&sent));
        ring.defer(1, receive(into, round), (&trigger, round + 1), Some(&received));
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!((sent.value(), received.value()), (round, round), "no operation starts before the trigger");
        from.write(&content(round, len)); // DWQ-017
        trigger.add(1);
        received.wait(round + 1, LONG).expect("the message arrives");
        sent.wait(round + 1, LONG).expect("the message was sent");
        assert!(into.read() == content(round, len), "{len} bytes");
    }
    assert_eq!((sent.value(), received.value(), ring.sends.value()), (3, 3, 0));
    assert!(ring.entries(0).is_empty() && ring.entries(1).is_empty());
    // With FI_COMPLETION there is also an entry. A counter of the endpoint is incremented if it is also the counter of
    // the work.
    let RawOperation::Send(mut send) = ring.send(1, Memory::content(1, 8), 9) else { unreachable!() };
    send.flags = OpFlags::COMPLETION;
    ring.defer(0, RawOperation::Send(send), (&trigger, 4), Some(&ring.sends));
    ring.defer(1, receive(Memory::blank(8), 9), (&trigger, 4), None);
    trigger.add(1);
    ring.sends.wait(1, LONG).expect("the send is counted");
    let entries = ring.entries(0);
    assert_eq!((entries.len(), entries[0].context, ring.sends.value()), (1, 7, 1));
    assert!(entries[0].flags.contains(CompletionFlags::SEND | CompletionFlags::TAGGED));
}

/// Tagged and untagged messages, reads, writes, the three kinds of atomic operations, and counter operations can be
/// deferred.
///
/// Requirements: DWQ-004.
pub fn every_kind_of_operation_can_be_deferred<F: Real>() {
    let ring = Ring::new::<F>(2, "every kind of deferred work");
    let [trigger, done, other] = [Counter::new(), Counter::new(), Counter::new()];
    let region = ring.domain.register(vec![9; 64], Access::REMOTE_READ | Access::REMOTE_WRITE).expect("a region");
    let remote = |from, to| region.remote().at(from..to);
    let (peer, flags, context) = (ring.peer(1), OpFlags::empty(), 0);
    let (read, old, swapped, plain) = (Memory::blank(16), Memory::blank(8), Memory::blank(8), Memory::blank(4));
    let rma = |memory: Memory, remote| {
        let (local, remote) = (memory.segments(), RemotePieces::one(remote));
        RmaWork { peer, local, remote, data: None, context, flags }
    };
    let atomic = |remote, operand: Memory, compare: Option<Memory>, result: Option<Memory>, op| AtomicWork {
        peer,
        op,
        datatype: Datatype::U64,
        operand: operand.segments(),
        compare: compare.map(|memory| memory.segments()),
        result: result.map(|memory| memory.segments()),
        remote,
        data: None,
        context,
        flags,
    };
    let number = |value: u64| Memory::of(&value.to_ne_bytes());
    let nines = u64::from_ne_bytes([9; 8]);
    let receive_plain =
        ReceiveWork { from: PeerAddress::UNSPECIFIED, segments: plain.segments(), tag: None, context, flags };
    let send_plain = SendWork { peer, segments: Memory::of(b"word").segments(), tag: None, data: None, context, flags };
    let works = [
        (1, RawOperation::Receive(receive_plain)),
        (0, RawOperation::Send(send_plain)),
        (0, RawOperation::Read(rma(read, remote(0, 16)))),
        (0, RawOperation::Write(rma(Memory::content(3, 16), remote(16, 32)))),
        (0, RawOperation::Atomic(atomic(remote(32, 40), number(1), None, None, AtomicOp::Sum))),
        (0, RawOperation::Atomic(atomic(remote(40, 48), number(2), None, Some(old), AtomicOp::Sum))),
        (
            0,
            RawOperation::Atomic(atomic(
                remote(48, 56),
                number(3),
                Some(number(nines)),
                Some(swapped),
                AtomicOp::Cswap,
            )),
        ),
    ];
    let count = works.len() as u64;
    for (on, work) in works {
        ring.defer(on, work, (&trigger, 1), Some(&done));
    }
    ring.domain.defer_add(&other, 5, (&done, count)).expect("queued");
    ring.domain.defer_set(&done, 1000, (&other, 5)).expect("queued");
    trigger.add(1);
    done.wait(1000, LONG).expect("all deferred work has completed");
    assert_eq!((plain.read().as_slice(), other.value()), (&b"word"[..], 5));
    assert_eq!((read.read(), old.read(), swapped.read()), (vec![9; 16], vec![9; 8], vec![9; 8]));
    let mut now = [0; 64];
    region.read(0, &mut now);
    assert_eq!(now[16..32], content(3, 16));
    assert_eq!(now[32..40], (nines + 1).to_ne_bytes());
    assert_eq!(now[40..48], (nines + 2).to_ne_bytes());
    assert_eq!(now[48..56], 3_u64.to_ne_bytes());
}

/// Work can be cancelled and flushed. It is rejected if it belongs to another domain.
///
/// Requirements: DWQ-012, DWQ-013, DWQ-016.
pub fn deferred_work_is_canceled_flushed_and_rejected<F: Real>() {
    let ring = Ring::new::<F>(2, "deferred work is taken back");
    let [trigger, other, done] = [Counter::new(), Counter::new(), Counter::new()];
    let queue = |on: &Counter, byte: u8| ring.defer(0, ring.send(1, Memory::of(&[byte; 8]), 1), (on, 1), Some(&done));
    let first = queue(&trigger, 1);
    queue(&trigger, 2);
    queue(&other, 3);
    assert!(ring.domain.cancel_work(&first) && !ring.domain.cancel_work(&first));
    assert_eq!((ring.domain.flush_work(Some(&other)), ring.domain.flush_work(Some(&other))), (1, 0));
    other.add(1);
    trigger.add(1);
    done.wait(1, LONG).expect("the work that was not cancelled");
    // An operation that owns its buffer returns it.
    let owned = ring.at(0);
    let waits = owned.tagged_send(ring.peer(1), 1, vec![4; 8]).when(&other, 2).counting(&done).start().expect("queued");
    assert_eq!(ring.domain.flush_work(None), 0, "the work belongs to the operation, not to the domain");
    drop(waits);
    other.add(1);
    let into = Memory::blank(8);
    ring.defer(1, receive(into, 1), (&trigger, 1), Some(&done));
    done.wait(2, LONG).expect("one message");
    assert_eq!((into.read(), done.value()), (vec![2; 8], 2));
    let mut sent =
        owned.tagged_send(ring.peer(1), 2, vec![5; 8]).when(&trigger, 2).counting(&done).start().expect("queued");
    ring.defer(1, receive(into, 2), (&trigger, 2), None);
    trigger.add(1);
    assert_eq!(sent.wait().expect("the message is sent").len(), 8);
    let stranger = F::new(1).domain(|domain| domain);
    let work = Work::Transfer(ring.at(0), ring.send(1, into, 1));
    let work = DeferredWork { work, counter: trigger.clone(), threshold: 100, counting: None };
    // SAFETY: as in `Ring::defer`.
    let error = unsafe { stranger.queue_work(work) }.expect_err("the endpoint belongs to another domain");
    assert!(matches!(error, WorkError::OtherDomain), "{error}");
    assert!(!trigger.has_work() && !other.has_work());
}

/// Injected data is copied when the work is queued.
///
/// Requirements: DWQ-025.
pub fn injected_work_copies_its_data_when_queued<F: Real>() {
    let ring = Ring::new::<F>(2, "injected deferred work");
    let [trigger, done] = [Counter::new(), Counter::new()];
    let injected = |len| {
        let memory = Memory::content(1, len);
        let RawOperation::Send(mut send) = ring.send(1, memory, 1) else { unreachable!() };
        send.flags = OpFlags::INJECT;
        (memory, RawOperation::Send(send))
    };
    for (round, len) in [0, 1, 8, INJECT_LIMIT].into_iter().enumerate() {
        let (memory, operation) = injected(len);
        ring.defer(0, operation, (&trigger, round as u64 + 1), Some(&done));
        memory.write(&vec![9; len]);
        let into = Memory::blank(len);
        ring.defer(1, receive(into, 1), (&trigger, round as u64 + 1), Some(&done));
        trigger.add(1);
        done.wait(2 * (round as u64 + 1), LONG).expect("the message is sent and received");
        assert!(
            into.read() == content(1, len),
            "{len} bytes: the data differs from the data when the operation was queued"
        );
    }
    let work = Work::Transfer(ring.at(0), injected(INJECT_LIMIT + 1).1);
    let work = DeferredWork { work, counter: trigger.clone(), threshold: 100, counting: None };
    // SAFETY: as in `Ring::defer`.
    let error = unsafe { ring.domain.queue_work(work) }.expect_err("too long to inject");
    assert_eq!(error.errno(), libc::EMSGSIZE, "{error}");
}

/// Failed deferred work counts as an error, and is reported to the queue regardless of its flags.
///
/// Requirements: DWQ-026.
pub fn failed_work_is_counted_and_reported<F: Real>() {
    let ring = Ring::new::<F>(2, "deferred work that fails");
    let [trigger, done, ended] = [Counter::new(), Counter::new(), Counter::new()];
    for (round, flags) in (1..).zip([OpFlags::empty(), OpFlags::COMPLETION]) {
        let (peer, local) = (ring.peer(1), Memory::content(1, 64).segments());
        let remote = RemotePieces::one(RemoteMemory { key: 1 << 40, address: 0, len: 64 });
        let work = RmaWork { peer, local, remote, data: None, context: round, flags };
        ring.defer(0, RawOperation::Write(work), (&trigger, round), Some(&done));
        // Because of this receive, the target makes progress and rejects the access.
        ring.defer(1, receive(Memory::blank(8), 5), (&trigger, round), None);
        ring.domain.defer_add(&ended, 1, (&done, round)).expect("queued");
        trigger.set(round);
        ended.wait(round, LONG).expect("errors count as completions");
        assert_eq!((done.value(), done.read_error()), (0, round));
        assert_eq!((ring.sends.value(), ring.sends.read_error()), (0, 0), "the endpoint's own counter");
        let error = ring.queue(0).read_error().expect("the error is reported");
        assert_eq!((error.entry.context, error.error), (round, ErrorCode::KeyRejected));
    }
}

/// A failed operation counts as an error. Work that waits for successes that never occur does not prevent closing.
///
/// Requirements: DWQ-015, DWQ-022.
pub fn unstarted_work_does_not_prevent_closing<F: Real>() {
    let ring = Ring::new::<F>(2, "deferred work that never begins");
    let [trigger, done, other] = [Counter::new(), Counter::new(), Counter::new()];
    let (into, peer) = (Memory::blank(8), ring.peer(1));
    // There is no such region. The operation fails, and the queue reports this.
    let remote = RemotePieces::one(percale::RemoteMemory { key: 1, address: 0, len: 8 });
    let work = RmaWork { peer, local: into.segments(), remote, data: None, context: 77, flags: OpFlags::empty() };
    ring.defer(0, RawOperation::Write(work), (&trigger, 1), Some(&done));
    ring.domain.defer_add(&other, 1, (&done, 1)).expect("queued");
    // Because of this receive, the target makes progress and rejects the access.
    ring.defer(1, receive(Memory::blank(8), 5), (&trigger, 1), None);
    let never = ring.defer(0, ring.send(1, into, 1), (&done, 2), Some(&done));
    trigger.add(1);
    other.wait(1, LONG).expect("errors count as completions");
    assert_eq!((done.value(), done.read_error()), (0, 1));
    let error = ring.queue(0).read_error().expect("the failure is reported");
    assert_eq!((error.error, error.entry.context), (ErrorCode::KeyRejected, 77));
    drop(ring.queues);
    drop(ring.endpoints); // The work that waits for `done` is dropped.
    done.add(5);
    assert!(!ring.domain.cancel_work(&never));
}

/// Each of four endpoints receives and sends a token. All operations are queued before the first message.
///
/// Requirements: DWQ-020, DWQ-023.
pub fn deferred_token_ring_runs_without_calls<F: Peers + Real>() {
    const ROUNDS: u64 = 50;
    let ring = Ring::new::<F>(4, "deferred token ring runs without calls");
    let received: [Counter; 4] = Default::default();
    let (start, sent) = (Counter::new(), Counter::new());
    let token = Memory::content(1, 40);
    let places: Vec<_> = (0..4).map(|_| Memory::blank(40)).collect();
    for round in 0..ROUNDS {
        for number in 0..4_usize {
            // The receive is posted after the previous one has completed, and the send starts after the token has
            // arrived.
            ring.defer(number, receive(places[number], number as u64), (&start, 0), Some(&received[number]));
            let (from, when) = if (round, number) == (0, 0) {
                (token, (&start, 1))
            } else {
                (places[number], (&received[number], round + u64::from(number > 0)))
            };
            ring.defer(number, ring.send(number + 1, from, (number as u64 + 1) % 4), when, Some(&sent));
        }
    }
    start.add(1);
    received[0].wait(ROUNDS, LONG).expect("the token returns");
    sent.wait(4 * ROUNDS, LONG).expect("the token is forwarded");
    assert_eq!(received.each_ref().map(Counter::value), [ROUNDS; 4]);
    assert_eq!(places[0].read(), content(1, 40));
}

/// The completion of an injected message, which has no completion entry, starts another operation. A thread that sleeps
/// until the result of that operation is woken up.
///
/// Requirements: TRIG-007.
pub fn operation_triggered_by_silent_send_wakes_sleeper<F: Peers + Real>() {
    let ring = Ring::new::<F>(2, "a silent send triggers another operation");
    let (left, right) = (ring.at(0), ring.at(1));
    for round in 0..20 {
        let RawOperation::Send(mut send) = ring.send(1, Memory::content(1, 8), 5) else { unreachable!() };
        (send.flags, send.context) = (OpFlags::COMPLETION, round);
        // SAFETY: `Memory` is never freed.
        unsafe { left.post_when(&RawOperation::Send(send), &ring.sends, 2 * round + 1) }.expect("the operation waits");
        let receives = [4, 5].map(|tag| right.tagged_recv(tag, 0, vec![0; 8]).start().expect("posted"));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let mut entries = [Entry::default(); 1];
                let count = ring.queue(0).wait(&mut entries, LONG).expect("the send is reported");
                (count, entries[0].context)
            });
            std::thread::sleep(Duration::from_millis(if round % 4 == 0 { 5 } else { 0 }));
            left.tagged_inject(ring.peer(1), 4, &[1; 8]).expect("room");
            // No other thread drives the sender.
            assert_eq!(sleeper.join().expect("the thread does not panic"), (1, round));
        });
        receives.into_iter().for_each(|mut receive| drop(receive.wait().expect("a message")));
    }
}

/// An endpoint can be dropped while another thread increments the counter. For a short time, that thread has the last
/// handle of the endpoint, and holds the lock of the operations that wait for the counter.
///
/// Requirements: TRIG-019.
pub fn endpoint_can_be_dropped_while_its_operations_start<F: Peers + Real>() {
    let ring = Ring::new::<F>(1, "endpoint can be dropped while its operations start");
    let counter = Counter::new();
    for round in 0..100 {
        let endpoint = ring.domain.endpoint().vector(&ring._vector).bind_shared("127.0.0.1:0").expect("an endpoint");
        for tag in 0..20 {
            let send = ring.send(0, Memory::content(1, 8), tag);
            // SAFETY: `Memory` is never freed.
            unsafe { endpoint.post_when(&send, &counter, round + 1) }.expect("the operation waits");
        }
        std::thread::scope(|scope| {
            scope.spawn(|| counter.add(1));
            scope.spawn(|| drop(endpoint));
        });
        assert!(!counter.has_work(), "operations that were not started are dropped");
    }
}
