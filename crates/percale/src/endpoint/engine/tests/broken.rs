//! Tests of connections that break while the peer is stopped and may be in the middle of a copy into local memory.

use super::*;
use crate::Counter;
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::endpoint::engine::deferred_cleanup::{self, DeferredCleanup, LateReport, ReportTarget};
use crate::endpoint::engine::types::{Notify, Side};
use crate::endpoint::safe::{Cause, OperationError};
use crate::endpoint::work::{OpFlags, ReceiveWork};
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::sealed;
use crate::region::Access;
use crate::transport::any::AnyLink;
use crate::transport::shm::DrainingLink;
use crate::wire::head::{Flags, FrameKind};

const LEN: usize = 1 << 20;

/// An operation of the victim with a safe handle. Its peer copies into the operation's memory.
#[derive(Clone, Copy, Debug)]
enum CopiedOperation {
    /// A receive. `triggered`: a counter begins it.
    Receive { triggered: bool },
    /// A read that its target executes. `triggered`: a counter begins it.
    Read { triggered: bool },
}

impl CopiedOperation {
    const ALL: [Self; 4] = [
        Self::Receive { triggered: false },
        Self::Receive { triggered: true },
        Self::Read { triggered: false },
        Self::Read { triggered: true },
    ];

    /// Opens the victim and its peer, and connects them.
    fn test_endpoints(self) -> [TestEndpoint; 2] {
        let trust = if matches!(self, Self::Read { .. }) { Trust::None } else { Trust::SameUser };
        let all = [TestEndpoint::new("shm"), TestEndpoint::trusting("shm", trust)];
        connect(&all[0], &all[1]);
        all
    }

    /// Starts the operation, and the peer's part in it. Returns a function that waits for the operation, and returns
    /// its error, when all bytes have been requested from the peer. The peer has not seen the request, and makes no
    /// progress from here on.
    fn start<'a>(
        self,
        victim: &'a TestEndpoint,
        stopped: &'a TestEndpoint,
    ) -> Box<dyn FnOnce() -> OperationError + 'a> {
        let counter = Counter::new();
        let wait: Box<dyn FnOnce() -> OperationError + 'a> = match self {
            Self::Receive { triggered } => {
                let mut receive = victim.endpoint.tagged_recv(5, 0, vec![0xEE; LEN]);
                if triggered {
                    receive = receive.when(&counter, 1);
                }
                let mut receive = receive.start().unwrap();
                let send = stopped.endpoint.tagged_send(stopped.peer(victim), 5, vec![9; LEN]).start().unwrap();
                counter.add(1);
                Box::new(move || {
                    let error = receive.wait().unwrap_err();
                    drop(send);
                    error
                })
            }
            Self::Read { triggered } => {
                let memory = stopped.domain.register(vec![9; LEN], Access::REMOTE_READ).unwrap();
                let mut read = victim.endpoint.read(victim.peer(stopped), memory.remote(), vec![0xEE; LEN]);
                if triggered {
                    read = read.when(&counter, 1);
                }
                let mut read = read.start().unwrap();
                counter.add(1);
                until(&[victim, stopped], || {
                    stopped.engine(|engine| engine.core.remote.remains()[3].1 > 0).then_some(())
                });
                Box::new(move || {
                    let error = read.wait().unwrap_err();
                    drop(memory);
                    error
                })
            }
        };
        until(&[victim], || victim.engine(|engine| engine.core.messages.under_way()[1] > 0).then_some(()));
        wait
    }
}

/// Sends a frame that no correct peer sends, so that the receiver ends the connection.
fn provoke(from: &TestEndpoint, to: &TestEndpoint) {
    let head = Head { kind: FrameKind::Done, flags: Flags::ID, id: 1, ..Head::default() };
    from.forge(to, &head, &[]);
    until(&[to], || to.ended());
}

/// Breaks the connection once the victim pulls and has sent the address of its memory. From here on the victim's peer
/// makes no progress. Returns the number of operations that had ended before.
fn break_at_a_pull(stopped: &TestEndpoint, victim: &TestEndpoint) -> u64 {
    until(&[victim], || victim.engine(|engine| engine.core.messages.under_way()[1] > 0).then_some(()));
    let ended = victim.finished(); // Counted before the connection breaks, because nothing may end with it.
    provoke(stopped, victim);
    ended
}

/// Requirements: FLT-009.
#[test]
fn memory_is_kept_until_a_copying_peer_releases_it() {
    for copied in CopiedOperation::ALL {
        let [victim, stopped] = copied.test_endpoints();
        let wait = copied.start(&victim, &stopped);
        let ended = victim.finished();
        provoke(&stopped, &victim);
        (0..1000).for_each(|_| _ = victim.endpoint.progress());
        assert_eq!(victim.finished(), ended, "{copied:?} ended while the peer may still write to its buffer");
        assert!(
            !victim.endpoint.try_wait(),
            "{copied:?}: the endpoint would sleep although the peer may still write to the buffer"
        );
        // The peer detects the end of the connection, and copies nothing.
        until(&[&victim, &stopped], || (victim.finished() > ended).then_some(()));
        let error = wait();
        assert!(matches!(error.cause(), Cause::Completion(entry) if entry.error == ErrorCode::Protocol), "{copied:?}");
        assert_eq!(error.into_buffer().unwrap().len(), LEN);
        assert!(victim.engine(|engine| engine.core.left.is_empty()));
        until(&[&stopped], || stopped.ended());
        connect(&victim, &stopped);
    }
}

/// Requirements: FLT-009.
#[test]
fn closed_endpoint_returns_no_memory_a_peer_may_copy_to() {
    for copied in CopiedOperation::ALL {
        let [victim, stopped] = copied.test_endpoints();
        let wait = copied.start(&victim, &stopped);
        victim.endpoint.access.close(|_| true);
        let error = wait();
        assert!(matches!(error.cause(), Cause::Completion(entry) if entry.error == ErrorCode::Canceled), "{copied:?}");
        assert!(error.buffer().is_none(), "{copied:?}: the buffer was returned while the peer may still write to it");
        until(&[&stopped], || stopped.ended());
    }
}

/// The reports of raw operations return memory to the application, so they are made when the peer has released it.
///
/// Requirements: FLT-009.
#[test]
fn closed_endpoint_reports_raw_receive_when_its_peer_releases_the_memory() {
    for notify in [Notify::Queue, Notify::Event] {
        let queue = CompletionQueue::new(1, 4);
        let (victim, stopped) = (TestEndpoint::reporting("shm", Trust::SameUser, &queue), TestEndpoint::new("shm"));
        let peer = connect(&stopped, &victim);
        let mut into = Buffer::zeroed(LEN);
        let work = ReceiveWork {
            from: PeerAddress::UNSPECIFIED,
            segments: Segments::one(into.segment_for_receive().unwrap()),
            tag: Some((5, 0)),
            context: 7,
            flags: OpFlags::COMPLETION,
        };
        victim.engine(|engine| {
            engine.core.reserve(Side::Receive, notify).unwrap();
            engine.post_receive(&work, notify).unwrap();
        });
        let send = stopped.endpoint.tagged_send(peer, 5, vec![9; LEN]).start().unwrap();
        until(&[&victim], || victim.engine(|engine| engine.core.messages.under_way()[1] > 0).then_some(()));
        victim.endpoint.access.close(|_| true);
        super::super::deferred_cleanup::settle();
        assert!(queue.is_empty(), "{notify:?}: the receive was reported while the peer may still write to its buffer");
        let error = until(&[&stopped], || queue.read_error());
        assert_eq!((error.entry.context, error.error), (7, ErrorCode::Canceled), "{notify:?}");
        assert_eq!(queue.update(|ring| ring.reserved()), 0, "{notify:?}: the room of the ended receive stays reserved");
        drop((send, into));
    }
}

/// A buffer for many messages takes no more of them after the end of its peer's connection. It is released with the
/// message to which the peer may still be copying.
///
/// Requirements: MSG-006, FLT-009.
#[test]
fn multi_receive_buffer_is_released_after_a_copying_peer() {
    let queue = CompletionQueue::default();
    let victim = TestEndpoint::reporting("shm", Trust::SameUser, &queue);
    let stopped = TestEndpoint::new("shm");
    let (from, peer) = (connect(&victim, &stopped), connect(&stopped, &victim));
    let mut buffer = Buffer::from(vec![0; 2 * LEN]);
    let segments = Segments::one(buffer.segment_for_receive().unwrap());
    let flags = OpFlags::COMPLETION | OpFlags::MULTI_RECEIVE;
    let many = ReceiveWork { from, segments, tag: None, context: 5, flags };
    victim.engine(|engine| engine.core.post_any_receive(&many, Notify::Event)).unwrap();
    let mut send = stopped.endpoint.send(peer, vec![9; LEN]).start().unwrap();
    break_at_a_pull(&stopped, &victim);
    (0..1000).for_each(|_| _ = victim.endpoint.progress());
    assert_eq!(queue.len(), 0, "an end is reported while the peer may still write to the buffer");
    until(&[&victim, &stopped], || (!queue.is_empty()).then_some(()));
    let error = queue.read_error().expect("the message failed");
    assert_eq!((error.entry.context, error.error), (5, ErrorCode::Protocol));
    assert!(error.entry.flags.contains(CompletionFlags::MULTI_RECEIVE), "{error}");
    (0..1000).for_each(|_| _ = victim.endpoint.progress());
    assert_eq!(queue.len(), 0, "the buffer is released once");
    let remains = victim.remains();
    assert!(remains.is_empty(), "{remains:?}");
    send.wait().unwrap_err();
}

/// Requirements: FLT-009.
#[test]
fn closed_endpoint_keeps_memory_a_peer_may_copy_to() {
    let (victim, stopped) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
    let peer = connect(&stopped, &victim);
    let mut memory = victim.domain.allocate(LEN).unwrap();
    memory.fill(1);
    let place = memory.as_ptr();
    let receive = victim.endpoint.tagged_recv(5, 0, memory).start().unwrap();
    let send = stopped.endpoint.tagged_send(peer, 5, vec![9; LEN]).start().unwrap();
    until(&[&victim], || victim.engine(|engine| engine.core.messages.under_way()[1] > 0).then_some(()));
    drop(receive);
    let TestEndpoint { endpoint, .. } = victim;
    drop(endpoint);
    let others: Vec<_> = (0..20).map(|_| crate::local_memory::sealed::allocate(LEN).unwrap()).collect();
    assert!(others.iter().all(|other| other.as_ptr() != place), "memory that a peer may be writing was reused");
    drop(send);
}

/// Requirements: FLT-009.
#[test]
fn number_of_kept_ended_connections_is_bounded() {
    use crate::endpoint::engine::draining::KEPT;
    let victim = TestEndpoint::new("shm");
    let mut stopped = Vec::new();
    for _ in 0..KEPT {
        let other = TestEndpoint::new("shm");
        let peer = connect(&other, &victim);
        let receive = victim.endpoint.tagged_recv(5, 0, vec![0xEE; LEN]).from(victim.peer(&other)).start().unwrap();
        let send = other.endpoint.tagged_send(peer, 5, vec![9; LEN]).start().unwrap();
        until(&[&victim], || victim.engine(|engine| engine.core.messages.under_way()[1] > 0).then_some(()));
        drop((receive, send));
        provoke(&other, &victim);
        stopped.push(other);
    }
    assert_eq!(victim.engine(|engine| engine.core.left.len()), KEPT);
    // The next connection is refused, regardless of the side that connects.
    let next = TestEndpoint::new("shm");
    let send = next.endpoint.tagged_send(next.peer(&victim), 5, vec![9; 8]).start().unwrap();
    until(&[&victim, &next], || next.ended());
    drop(send);
    let mut send = victim.endpoint.tagged_send(victim.peer(&next), 5, vec![9; 8]).start().unwrap();
    until(&[&victim, &next], || send.is_ready().then_some(()));
    send.wait().unwrap_err();
    assert_eq!(victim.engine(|engine| engine.core.left.len()), KEPT);
    // Neither the connections that have ended nor those that were refused keep a bit of the doorbell.
    until(&[&victim, &next], || (bits_in_use(&victim) == 0).then_some(()));
    // When one of the peers releases the memory, there is room again.
    let first = stopped.remove(0);
    until(&[&victim, &first], || victim.engine(|engine| engine.core.left.len() < KEPT).then_some(()));
    let mut receive = victim.endpoint.tagged_recv(6, 0, vec![0; 8]).start().unwrap();
    let peer = next.peer(&victim);
    until(&[&victim, &next], || {
        // The endpoint may not have been notified yet of the refusal.
        let mut send = next.endpoint.tagged_send(peer, 6, vec![6; 8]).start().unwrap();
        until(&[&victim, &next], || send.is_ready().then_some(()));
        drop(send.wait());
        receive.is_ready().then_some(())
    });
    assert_eq!(receive.wait().unwrap().to_vec(), [6; 8]);
}

#[test]
fn waiting_for_a_stopped_peer_sleeps_between_polls() {
    use crate::endpoint::engine::waiting::EMPTY_POLLS;
    use std::os::fd::AsFd;
    let (victim, stopped) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
    let peer = connect(&stopped, &victim);
    let mut receive = victim.endpoint.tagged_recv(5, 0, vec![0xEE; LEN]).start().unwrap();
    let mut send = stopped.endpoint.tagged_send(peer, 5, vec![9; LEN]).start().unwrap();
    let ended = break_at_a_pull(&stopped, &victim);
    let naps = |victim: &TestEndpoint| {
        victim.engine(|engine| {
            let armed = engine.arm(engine.results()).expect("there is nothing to do");
            engine.disarm(&armed);
            armed.longest()
        })
    };
    let first = naps(&victim);
    for _ in 0..EMPTY_POLLS {
        victim.endpoint.try_wait();
    }
    // Tasks and event loops do not poll all the time, and waiters take longer naps, up to a bound.
    assert!(victim.endpoint.try_wait(), "the endpoint polls without sleeping");
    (0..10 * EMPTY_POLLS).for_each(|_| _ = naps(&victim));
    let last = naps(&victim);
    assert!(first < last && last < crate::endpoint::engine::sleep::SLEEP, "{first:?}, {last:?}");
    // The victim's own timer makes it detect that the peer has released the memory.
    until(&[&stopped], || send.is_ready().then_some(()));
    let deadline = Instant::now() + event_timeout();
    while victim.finished() == ended && Instant::now() < deadline {
        if victim.endpoint.try_wait() {
            let endpoint = victim.endpoint.as_fd();
            let mut polled = [rustix::event::PollFd::new(&endpoint, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut polled, None).unwrap();
        }
        victim.endpoint.progress();
    }
    receive.wait().unwrap_err();
    send.wait().unwrap_err();
    assert_eq!(naps(&victim), crate::endpoint::engine::sleep::SLEEP, "the endpoint no longer waits for the peer");
}

/// Requirements: FLT-009.
#[test]
fn closed_endpoint_memory_is_kept_until_all_peers_release_it() {
    let [victim, first, second] = [(); 3].map(|()| TestEndpoint::new("shm"));
    let (mut arenas, mut receives, mut sends) = (Vec::new(), Vec::new(), Vec::new());
    // Long memory has an arena of its own, whose number is never used again.
    let arena = |place: *mut u8| sealed::locate(place, LEN).map(|located| located.arena);
    for (tag, stopped) in [(5, &first), (6, &second)] {
        let peer = connect(stopped, &victim);
        let mut memory = victim.domain.allocate(LEN).unwrap();
        memory.fill(1);
        arenas.push((memory.as_ptr(), arena(memory.as_ptr()).expect("memory in an arena")));
        receives.push(victim.endpoint.tagged_recv(tag, 0, memory).start().unwrap());
        sends.push(stopped.endpoint.tagged_send(peer, tag, vec![9; LEN]).start().unwrap());
    }
    until(&[&victim], || victim.engine(|engine| engine.core.messages.under_way()[1] == 2).then_some(()));
    drop(receives);
    let TestEndpoint { endpoint, .. } = victim;
    drop(endpoint);
    let are_kept = || arenas.iter().all(|(place, number)| arena(*place) == Some(*number));
    super::super::deferred_cleanup::settle();
    assert!(are_kept(), "two peers may be writing");
    // One of them is resumed, and detects the end of the connection.
    until(&[&first], || first.ended());
    super::super::deferred_cleanup::settle();
    assert!(are_kept(), "the other peer may be writing");
    until(&[&second], || second.ended());
    // From here on only the library's own thread checks.
    until(&[], || (!are_kept()).then_some(()));
    drop(sends);
}

/// Requirements: FLT-001.
#[test]
fn receive_from_already_lost_peer_fails() {
    for transport in ["shm", "tcp"] {
        let (left, gone) = (TestEndpoint::new(transport), TestEndpoint::new(transport));
        connect(&gone, &left);
        let peer = left.peer(&gone);
        drop(gone);
        until(&[&left], || left.ended());
        let ended = left.finished();
        let mut receive = left.endpoint.tagged_recv(5, 0, vec![0; 8]).from(peer).start().unwrap();
        until(&[&left], || (left.finished() > ended).then_some(()));
        assert!(matches!(receive.wait().unwrap_err().cause(), Cause::Completion(_)), "{transport}");
    }
}

/// Ends the victim's link to a peer that may be copying, without using the engine. Returns the remains of the link.
fn drain_link(victim: &TestEndpoint, stopped: &TestEndpoint) -> DrainingLink {
    let slot = victim.slot(stopped);
    victim.engine(|engine| match &mut engine.links[slot as usize] {
        Some(AnyLink::Shm(link)) => link.draining().expect("the peer may be copying"),
        other => panic!("{other:?}"),
    })
}

/// Keeps a receive of a closed endpoint to which a peer may be copying. Its end is reported to this queue and these
/// counters.
fn keep_closed(draining: &DrainingLink, context: u64, queue: &CompletionQueue, counters: Vec<Counter>) {
    let mut closed = DeferredCleanup::new(vec![draining.twin()], Vec::new());
    let error = ErrorEntry::new(Entry { context, ..Entry::default() }, ErrorCode::Canceled);
    let place = ReportTarget::Queue(queue.clone());
    closed.report(LateReport { place, reserved: false, error, counters, part: None });
    deferred_cleanup::keep(closed);
}

/// Requirements: FLT-009.
#[test]
fn operation_of_closed_endpoint_ends_while_the_peer_of_another_is_stopped() {
    let [victim, stopped, resumed] = [(); 3].map(|()| TestEndpoint::new("shm"));
    let operations = [(5, &stopped), (6, &resumed)].map(|(tag, peer)| {
        let name = connect(peer, &victim);
        let receive = victim.endpoint.tagged_recv(tag, 0, vec![0; LEN]).start().unwrap();
        (receive, peer.endpoint.tagged_send(name, tag, vec![9; LEN]).start().unwrap())
    });
    until(&[&victim], || victim.engine(|engine| engine.core.messages.under_way()[1] == 2).then_some(()));
    let draining = [&stopped, &resumed].map(|peer| drain_link(&victim, peer));
    let (queue, counter) = (CompletionQueue::default(), Counter::new());
    for (context, draining) in (0..).zip(&draining) {
        keep_closed(draining, context, &queue, vec![counter.clone()]);
    }
    // The counter counts an operation after it was reported to the queue.
    let reported = |count| {
        until(&[], || (counter.read_error() == count).then_some(()));
        queue.read_error().map(|error| error.entry.context)
    };
    until(&[&victim, &resumed], || draining[1].release().map(drop));
    assert_eq!(reported(1), Some(1));
    assert!(draining[0].release().is_none() && queue.read_error().is_none(), "the other peer may be copying still");
    until(&[&victim, &stopped], || draining[0].release().map(drop));
    assert_eq!(reported(2), Some(0));
    drop(operations);
}

/// Requirements: FLT-009.
#[test]
fn operations_are_reported_with_many_closed_endpoints_kept() {
    const CLOSED: u64 = 1100;
    let (victim, stopped) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
    let peer = connect(&stopped, &victim);
    let receive = victim.endpoint.tagged_recv(5, 0, vec![0; LEN]).start().unwrap();
    let send = stopped.endpoint.tagged_send(peer, 5, vec![9; LEN]).start().unwrap();
    until(&[&victim], || victim.engine(|engine| engine.core.messages.under_way()[1] > 0).then_some(()));
    let draining = drain_link(&victim, &stopped);
    // This state is the same as if several endpoints to which the peer may be copying had been closed one after the
    // other.
    let queue = CompletionQueue::default();
    for context in 0..CLOSED {
        keep_closed(&draining, context, &queue, Vec::new());
    }
    deferred_cleanup::settle();
    assert!(queue.read_error().is_none(), "the peer may be copying still");
    until(&[&victim, &stopped], || draining.release().map(drop));
    // From here on only the library's own thread checks.
    let mut reported = Vec::new();
    until(&[], || {
        reported.extend(std::iter::from_fn(|| queue.read_error()).map(|error| error.entry.context));
        (reported.len() as u64 == CLOSED).then_some(())
    });
    reported.sort_unstable();
    assert!(reported.into_iter().eq(0..CLOSED), "each once");
    drop((receive, send));
}
