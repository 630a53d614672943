//! The results of operations when their endpoint closes.

#![expect(unsafe_code, reason = "raw operations; each block states why its memory is valid")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percale::endpoint::safe::Cause;
use percale::trigger::{RawOperation, Variable};
use percale::{
    CompletionFlags, CompletionQueue, Counter, Endpoint, Entry, ErrorCode, OpFlags, PeerAddress, PostError,
    ReceiveWork, Segments, SendWork, SharedEndpoint,
};

use crate::fabric::{Peers, Real, Transport};
use crate::memory::Memory;
use crate::watchdog::Watchdog;

/// Reads all entries of a queue. Appends the error of each entry, or `None` for a success, to the results of its
/// context.
fn results(queue: &CompletionQueue, ended: &mut BTreeMap<u64, Vec<Option<ErrorCode>>>) {
    loop {
        let mut entry = [Entry::default(); 1];
        let (entry, error) = match queue.read(&mut entry) {
            Ok(0) => return,
            Ok(_) => (entry[0], None),
            Err(_) => {
                let error = queue.read_error().expect("an error entry");
                (error.entry, Some(error.error))
            }
        };
        ended.entry(entry.context).or_default().push(error);
        let many = entry.context % 10 == 4;
        assert!(
            !many || entry.flags.contains(CompletionFlags::MULTI_RECEIVE),
            "no message was sent to the multi-receive buffer"
        );
    }
}

/// An endpoint that will be closed, and the objects that its operations use.
struct Poster<'a> {
    endpoint: &'a Endpoint,
    own: PeerAddress,
    /// The peer of the operations. It is the endpoint itself on a transport where an endpoint can reach only itself.
    other: PeerAddress,
    long: Memory,
    short: Memory,
    trigger: &'a Counter,
    variable: &'a Variable,
}

impl Poster<'_> {
    /// Returns the operation with this context. Its kind depends on the last digit.
    fn operation(&self, context: u64) -> RawOperation {
        let (from, peer) = match context % 4 {
            0 => (self.own, self.own),
            1 if self.other != self.own => (self.other, self.other),
            _ => (PeerAddress::UNSPECIFIED, self.other),
        };
        let flags = OpFlags::COMPLETION;
        let (short, long) = (self.short, self.long);
        let several = Segments::new(&[short.segment(), short.segment()]).expect("two segments");
        let receive = |tag, segments, flags| ReceiveWork { from, segments, tag, context, flags };
        let send = |memory: Memory| SendWork {
            peer,
            segments: memory.segments(),
            tag: Some(1 << 40),
            data: None,
            context,
            flags: if context % 20 < 10 { flags } else { flags | OpFlags::FENCE },
        };
        match context % 10 {
            0 | 1 => RawOperation::Receive(receive(None, short.segments(), flags)),
            2 => RawOperation::Receive(receive(Some((context, 0)), short.segments(), flags)),
            3 => RawOperation::Receive(receive(None, several, flags)),
            4 => RawOperation::Receive(receive(None, long.segments(), flags | OpFlags::MULTI_RECEIVE)),
            7 => RawOperation::Send(send(long)),
            _ => RawOperation::Send(send(short)),
        }
    }

    /// Posts the operation with this context: immediately, or so that it starts when `trigger` reaches 1 or when
    /// `variable` is written.
    fn post(&self, context: u64) -> Result<(), PostError> {
        let endpoint = self.endpoint;
        // The suite's memory is never freed, and this test does not access it.
        match (context % 10, &self.operation(context)) {
            // SAFETY: see above.
            (8, operation) => unsafe { endpoint.post_when(operation, self.trigger, 1) },
            // SAFETY: see above.
            (9, operation) => unsafe { endpoint.post_when_written(operation, self.variable) },
            // SAFETY: see above.
            (_, RawOperation::Receive(work)) => unsafe { endpoint.post_recv(work) },
            // SAFETY: see above.
            (_, RawOperation::Send(work)) => unsafe { endpoint.post_send(work) },
            _ => unreachable!("only messages are posted"),
        }
    }

    /// Posts the operations with contexts below `count`, and makes progress in between. Returns the number of posted
    /// operations.
    fn post_all(&self, count: u64, round: usize) -> usize {
        let mut posted = 0;
        for context in 0..count {
            match self.post(context) {
                Ok(()) => posted += 1,
                // The maximum number of sends is already waiting for the peer.
                Err(PostError::Again) => assert!(context % 10 > 4, "round {round}: receive {context} was refused"),
                Err(error) => panic!("round {round}: operation {context} was refused: {error}"),
            }
            if context % 7 == 0 {
                self.endpoint.progress();
            }
        }
        posted
    }
}

/// Checks that `posted` operations ended once each, with results that are allowed for a closed endpoint, and that no
/// entry remains reserved in their queue.
fn check_ends(queue: &CompletionQueue, posted: usize, round: usize) {
    let mut ended = BTreeMap::new();
    results(queue, &mut ended);
    assert_eq!(ended.len(), posted, "round {round}: {ended:?}");
    for (context, results) in &ended {
        assert_eq!(results.len(), 1, "round {round}: operation {context} did not end exactly once");
        let received = context % 10 < 5;
        let good = [Some(ErrorCode::Canceled)].contains(&results[0]) || !received && results[0].is_none();
        assert!(good, "round {round}: operation {context}: {:?}", results[0]);
    }
    assert_eq!(queue.update(|ring| ring.reserved()), 0, "round {round}: room stays reserved");
}

/// Each operation ends once and releases its reserved entry in the queue, regardless of the number of endpoints closed
/// before.
pub fn operations_end_once_when_their_endpoint_closes<F: Transport>() {
    const EACH: u64 = 60;
    let _watchdog = Watchdog::new("operations end once when their endpoint closes");
    let fabric = F::new(12);
    let domain = fabric.domain(|domain| domain);
    let vector = domain.address_vector().build().expect("a vector");
    let queue = CompletionQueue::new(16, 200);
    let other = domain.endpoint().vector(&vector).bind(fabric.address()).expect("an endpoint");
    let to_other = vector.insert(other.address()).expect("an address");
    let (long, short, variable) = (Memory::blank(F::BULK), Memory::blank(64), domain.variable());
    for round in 0..12 {
        let (counted, trigger) = (Counter::new(), Counter::new());
        let builder = domain.endpoint().vector(&vector).transmit_queue(&queue).receive_queue(&queue);
        let counter = Arc::new(counted);
        let endpoint = builder.receive_counter(&counter).send_counter(&counter).bind(fabric.address());
        let endpoint = endpoint.expect("an endpoint");
        let own = vector.insert(endpoint.address()).expect("an address");
        let to = if F::ALONE { own } else { to_other };
        let (trigger, variable) = (&trigger, &variable);
        let poster = Poster { endpoint: &endpoint, own, other: to, long, short, trigger, variable };
        let posted = poster.post_all(EACH, round);
        for _ in 0..round * 20 {
            endpoint.progress();
            other.progress();
            fabric.tick();
        }
        vector.remove(own).expect("the peer is in the vector");
        match round % 2 {
            0 => endpoint.close().expect("no window is bound"),
            _ => drop(endpoint),
        }
        check_ends(&queue, posted, round);
        trigger.add(1);
        assert_eq!(counter.value() + counter.read_error(), posted as u64, "each operation was counted once");
        assert!(queue.is_empty());
    }
}

/// Sends messages with this content until `stop` is set.
fn flood(sender: &Endpoint, peer: PeerAddress, message: &[u8], stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        _ = sender.inject(peer, message);
        sender.progress();
    }
}

/// Reads a queue and a counter, which drives their endpoint, until `stop` is set.
fn read_results(queue: &CompletionQueue, counter: &Counter, stop: &AtomicBool) {
    let mut entries = [Entry::default(); 16];
    while !stop.load(Ordering::Relaxed) {
        if queue.read(&mut entries).is_err() {
            _ = queue.read_error();
        }
        _ = counter.read();
    }
}

/// Checks that the buffer of a closed endpoint is not written any more, and that another handle of the endpoint returns
/// an error.
fn check_closed(other: Option<&SharedEndpoint>, peer: PeerAddress, work: &ReceiveWork, buffer: Memory, round: u64) {
    let before = buffer.read();
    if let Some(other) = other {
        assert!(other.is_closed() && !other.wait(None), "a wait for a closed endpoint ends");
        // SAFETY: the suite's memory is never freed.
        let refused = unsafe { other.post_recv(work) }.expect_err("the endpoint is closed");
        assert!(matches!(refused, PostError::Closed), "{refused}");
        let refused = other.recv(vec![0; 8]).start().expect_err("the endpoint is closed");
        assert!(matches!(refused.cause(), Cause::Post(PostError::Closed)), "{refused}");
        assert!(other.inject(peer, &[1]).is_err());
    }
    std::thread::sleep(Duration::from_millis(3));
    assert!(before == buffer.read(), "round {round}: the buffer of a closed endpoint was written");
}

/// Closes a shared endpoint while threads drive it and a peer floods it. Afterwards its buffers are not written, other
/// handles return errors, and another endpoint can use its address.
pub fn nothing_is_written_once_a_shared_endpoint_is_closed<F: Peers + Real>() {
    const SLOT: usize = 512;
    const SLOTS: usize = 1 << 14;
    let _watchdog = Watchdog::new("nothing is written once a shared endpoint is closed");
    let fabric = F::new(13);
    let domain = fabric.domain(|domain| domain);
    let vector = domain.address_vector().build().expect("a vector");
    let buffer = Memory::blank(SLOT * SLOTS);
    let mut address = fabric.address();
    for round in 0..20 {
        buffer.write(&vec![0; SLOT * SLOTS]);
        let queue = CompletionQueue::new(16, 1 << 16);
        let counter = Counter::new();
        let builder = domain.endpoint().vector(&vector).receive_queue(&queue).receive_counter(&counter);
        let endpoint = builder.bind_shared(&address).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let again = endpoint.address().to_string();
        let peer = vector.insert(endpoint.address()).expect("an address");
        let work = ReceiveWork {
            from: PeerAddress::UNSPECIFIED,
            segments: buffer.segments(),
            tag: None,
            context: 1,
            flags: OpFlags::COMPLETION | OpFlags::MULTI_RECEIVE,
        };
        // SAFETY: the suite's memory is never freed.
        unsafe { endpoint.post_recv(&work) }.expect("a receive");
        if round % 3 == 0 {
            domain.defer_add(&Counter::new(), 1, (&counter, 1 << 40)).expect("a thread makes progress");
        }
        let (stop, anywhere) = (AtomicBool::new(false), fabric.address());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let sender = domain.endpoint().vector(&vector).bind(&anywhere).expect("an endpoint");
                flood(&sender, peer, &[1; SLOT], &stop);
            });
            for _ in 0..2 {
                scope.spawn(|| read_results(&queue, &counter, &stop));
            }
            let kept = (round % 2 == 0).then(|| endpoint.clone());
            while counter.value() < 50 + round * 7 {
                std::thread::sleep(Duration::from_micros(100));
            }
            match round % 2 {
                0 => endpoint.close().expect("no window is bound"),
                // The last handle is dropped.
                _ => drop(endpoint),
            }
            check_closed(kept.as_ref(), peer, &work, buffer, round);
            stop.store(true, Ordering::Relaxed);
        });
        vector.remove(peer).expect("the peer is in the vector");
        address = again;
    }
}
