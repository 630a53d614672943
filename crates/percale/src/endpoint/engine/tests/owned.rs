//! Tests that operations own the memory that they use in every waiting state, and that a late answer never refers to
//! another operation.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::messages::SendAsked;
use super::super::types::Notify;
use super::*;
use crate::completion::counter::Condition;
use crate::completion::counter::Counter;
use crate::completion::entry::{Entry, ErrorCode, ErrorEntry};
use crate::endpoint::engine::reporting::Reporting;
use crate::endpoint::operation::RawOperation;
use crate::endpoint::posted::Posted;
use crate::endpoint::remote_work::{AtomicWork, RemotePieces, RmaWork};
use crate::endpoint::work::{OpFlags, ReceiveWork, SendWork};
use crate::local_memory::atomic::{AtomicOp, Datatype};
use crate::local_memory::buffer::Buffer;
use crate::local_memory::buffer::BufferExt as _;
use crate::local_memory::volatile::ViewExt as _;
use crate::region::Access;
use crate::transport::sim::{Network, SimOptions};
use crate::transport::{PullError, Sink};
use crate::wire::head::{Flags, FrameKind};

/// Allocates memory like a program that has posted an operation, so that freed memory is reused.
fn use_the_heap(len: usize) -> Vec<Vec<u8>> {
    (0..2000).map(|_| vec![0xEE; len]).collect()
}

#[test]
fn injected_messages_that_become_offers_keep_their_bytes() {
    const COUNT: u64 = 1000;
    for transport in ["shm", "tcp"] {
        let a = TestEndpoint::new(transport);
        let builder = Info::discover().unwrap().domain().transport(transport.parse().unwrap());
        let b = TestEndpoint::of(builder.unexpected_cap(1000).open().unwrap(), &CompletionQueue::default());
        let (to_b, _) = (a.peer(&b), b.peer(&a));
        for number in 0..COUNT {
            a.endpoint.tagged_inject(to_b, number, &[number as u8; 2000]).unwrap();
        }
        let slot = a.slot(&b);
        let waits = || a.engine(|engine| engine.core.peers.get(slot).waiting() > 0);
        until(&[&a, &b], || (!waits()).then_some(()));
        let offered = a.engine(|engine| engine.core.messages.sends().len());
        assert!(offered > 0, "{transport}: no message was offered, so the test has no effect");
        let _heap = use_the_heap(2000);
        for number in 0..COUNT {
            let before = b.finished();
            let mut receive = b.endpoint.tagged_recv(number, 0, vec![0; 2000]).start().unwrap();
            until(&[&a, &b], || (b.finished() > before).then_some(()));
            let bytes = receive.wait().unwrap().to_vec();
            assert!(bytes == vec![number as u8; 2000], "{transport}: message {number} is not what was injected");
        }
        until(&[&a, &b], || a.engine(|engine| engine.core.messages.sends().is_empty()).then_some(()));
    }
}

#[test]
fn injected_messages_longer_than_a_frame_keep_their_bytes() {
    let options = SimOptions { frame_limit: 64, window: 300, ..SimOptions::default() };
    let network = Network::new(11, options);
    let test_endpoint = |host| {
        let domain = Info::discover().unwrap().domain().simulated(&network).open().unwrap();
        let vector = domain.address_vector().build().unwrap();
        let events = EventQueue::default();
        let endpoint = domain.endpoint().vector(&vector).event_queue(&events);
        let endpoint = endpoint.bind(format!("10.0.0.{host}:1")).unwrap();
        TestEndpoint { endpoint, vector, events, domain }
    };
    let (a, b) = (test_endpoint(1), test_endpoint(2));
    let (to_b, _) = (a.peer(&b), b.peer(&a));
    let arrives = |number: u64, len: usize| {
        let before = b.finished();
        let mut receive = b.endpoint.tagged_recv(number, 0, vec![0; 2048]).start().unwrap();
        until(&[&a, &b], || {
            network.advance(1000);
            (b.finished() > before).then_some(())
        });
        assert!(
            receive.wait().unwrap().to_vec() == vec![number as u8; len],
            "message {number} is not what was injected"
        );
    };
    a.endpoint.tagged_inject(to_b, 1, &[1; 8]).unwrap();
    arrives(1, 8);
    let acknowledged = [OpFlags::empty(), OpFlags::DELIVERY_COMPLETE, OpFlags::MATCH_COMPLETE];
    for number in 2..60 {
        let len = [8, 64, 65, 94, 2048][number as usize % 5];
        let bytes = Buffer::from(vec![number as u8; len]);
        let flags = OpFlags::INJECT | acknowledged[number as usize % 3];
        let segments = Segments::one(bytes.segment_for_send());
        let work = SendWork { peer: to_b, segments, tag: Some(number), data: None, context: 0, flags };
        a.engine(|engine| engine.post_send(&work, Notify::Silent)).unwrap();
        drop(bytes);
        let _heap = use_the_heap(len);
        arrives(number, len);
    }
    until(&[&a, &b], || {
        network.advance(1000);
        a.engine(|engine| engine.core.messages.sends().is_empty()).then_some(())
    });
}

/// Returns the next result of an endpoint's own queue.
pub(super) fn next(queue: &mut Reporting) -> Option<Result<Entry, ErrorEntry>> {
    let mut entry = [Entry::default()];
    match queue.read(&mut entry) {
        Ok(0) => None,
        Ok(_) => Some(Ok(entry[0])),
        Err(_) => queue.read_error().map(Err),
    }
}

/// Like `next`, for a queue to which an endpoint's receives report.
pub(super) fn received(queue: &CompletionQueue) -> Option<Result<Entry, ErrorEntry>> {
    let mut entry = [Entry::default()];
    match queue.read(&mut entry) {
        Ok(0) => None,
        Ok(_) => Some(Ok(entry[0])),
        Err(_) => queue.read_error().map(Err),
    }
}

/// The way in which an injected operation waits.
#[derive(Clone, Copy, Debug)]
enum Waits {
    Unconnected,
    Fenced,
    Deferred,
}

#[test]
fn injected_compare_swap_copies_both_operands() {
    for transport in ["shm", "tcp"] {
        for waits in [Waits::Unconnected, Waits::Fenced, Waits::Deferred] {
            let (a, b) = (TestEndpoint::new(transport), TestEndpoint::new(transport));
            let memory = b.domain.register(5_u64.to_le_bytes().to_vec(), Access::REMOTE_READ | Access::REMOTE_WRITE);
            let memory = memory.unwrap();
            let to_b = if matches!(waits, Waits::Unconnected) { a.peer(&b) } else { connect(&a, &b) };
            b.peer(&a);
            let (operand, compare) =
                (Buffer::from(vec![9, 0, 0, 0, 0, 0, 0, 0]), Buffer::from(vec![5, 0, 0, 0, 0, 0, 0, 0]));
            let mut result = Buffer::zeroed(8);
            let mut work = AtomicWork {
                peer: to_b,
                op: AtomicOp::Cswap,
                datatype: Datatype::U64,
                operand: Segments::one(operand.segment_for_send()),
                compare: Some(Segments::one(compare.segment_for_send())),
                result: result.segment_for_receive().map(Segments::one),
                remote: memory.remote(),
                data: None,
                context: 7,
                flags: OpFlags::INJECT | OpFlags::COMPLETION,
            };
            let counter = Counter::new();
            let mut before_the_fence = None;
            let reported = a.engine(|engine| engine.core.reporting.results());
            match waits {
                Waits::Unconnected => {}
                Waits::Fenced => {
                    work.flags |= OpFlags::FENCE;
                    before_the_fence = Some(a.endpoint.tagged_send(to_b, 2, vec![1; 2 << 20]).start().unwrap());
                }
                Waits::Deferred => {}
            }
            a.engine(|engine| match waits {
                Waits::Deferred => {
                    let transfer = engine.transfer(&RawOperation::Atomic(work), None).unwrap();
                    engine.queue(transfer, &counter, Condition::Successes(1)).unwrap();
                }
                _ => engine.post_atomic(&work, Notify::Event).unwrap(),
            });
            drop((operand, compare));
            let _heap = use_the_heap(8);
            counter.add(1);
            if let Some(send) = before_the_fence {
                let receive = b.endpoint.tagged_recv(2, 0, vec![0; 2 << 20]).start().unwrap();
                let ended = || a.finished() > 0 && receive.is_ready() && send.is_ready();
                until(&[&a, &b], || ended().then_some(()));
            }
            until(&[&a, &b], || a.engine(|engine| engine.core.reporting.results() > reported).then_some(()));
            let mut now = [0; 8];
            memory.read(0, &mut now);
            assert_eq!(result.into_vec(), 5_u64.to_le_bytes(), "{transport} {waits:?}: the previous value");
            assert_eq!(
                now,
                9_u64.to_le_bytes(),
                "{transport} {waits:?}: the operation compared with bytes that were not passed"
            );
        }
    }
}

#[test]
fn injected_write_copies_its_buffer() {
    for transport in ["shm", "tcp"] {
        for waits in [Waits::Unconnected, Waits::Fenced] {
            let (a, b) = (TestEndpoint::new(transport), TestEndpoint::new(transport));
            let memory = b.domain.register(vec![0; 64], Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
            let to_b = if matches!(waits, Waits::Unconnected) { a.peer(&b) } else { connect(&a, &b) };
            b.peer(&a);
            let source = Buffer::from(vec![7; 64]);
            let mut work = RmaWork {
                peer: to_b,
                local: Segments::one(source.segment_for_send()),
                remote: RemotePieces::one(memory.remote()),
                data: None,
                context: 7,
                flags: OpFlags::INJECT | OpFlags::COMPLETION,
            };
            let mut before_the_fence = None;
            if matches!(waits, Waits::Fenced) {
                work.flags |= OpFlags::FENCE;
                before_the_fence = Some(a.endpoint.tagged_send(to_b, 2, vec![1; 2 << 20]).start().unwrap());
            }
            let reported = a.engine(|engine| engine.core.reporting.results());
            a.engine(|engine| engine.post_rma(true, &work, Notify::Event)).unwrap();
            drop(source);
            let _heap = use_the_heap(64);
            if let Some(send) = before_the_fence {
                let receive = b.endpoint.tagged_recv(2, 0, vec![0; 2 << 20]).start().unwrap();
                until(&[&a, &b], || (receive.is_ready() && send.is_ready()).then_some(()));
            }
            until(&[&a, &b], || a.engine(|engine| engine.core.reporting.results() > reported).then_some(()));
            let mut now = [0; 64];
            memory.read(0, &mut now);
            assert_eq!(now, [7; 64], "{transport} {waits:?}");
        }
    }
}

#[test]
fn late_answer_to_failed_send_ends_no_other_send() {
    for transport in ["shm", "tcp"] {
        let (a, b) = (TestEndpoint::new(transport), TestEndpoint::new(transport));
        let to_b = connect(&a, &b);
        let slot = a.slot(&b);
        let bytes: Vec<Buffer> = (0..3_u8).map(|number| Buffer::from(vec![number; 2 << 20])).collect();
        let work = |number: usize| SendWork {
            peer: to_b,
            segments: Segments::one(bytes[number].segment_for_send()),
            tag: Some(number as u64),
            data: None,
            context: number as u64,
            flags: OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE,
        };
        let post = |number| {
            a.engine(|engine| {
                let id = engine.core.messages.sends().next_wire();
                engine.post_send(&work(number), Notify::Event).unwrap();
                id
            })
        };
        let read = || a.engine(|engine| next(&mut engine.core.reporting));
        // The peer pulled the first message, and the transfer failed at this endpoint.
        let first = post(0);
        a.engine(|engine| {
            assert!(matches!(
                engine.core.messages.sends_mut().handle_pull_request(slot, first),
                SendAsked::Payload(..)
            ));
            engine.core.pushed(slot, first, Err(PullError::Fault));
        });
        assert_eq!(read().expect("the failure is reported at once").unwrap_err().error, ErrorCode::Fault);
        let second = post(1);
        assert_ne!(first, second);
        // Its answer arrives late, and twice.
        for _ in 0..2 {
            let head = Head { kind: FrameKind::Ack, flags: Flags::ID, tag: 5, id: first, ..Head::default() };
            a.engine(|engine| engine.core.frame(slot, &head, crate::local_memory::volatile::View::of(&[])));
        }
        assert!(read().is_none(), "{transport}: the answer to the first send ended the second");
        // Its pull arrives late too: the offer is still there.
        post(2);
        for (number, expected) in [(1, None), (2, None), (0, Some(libc::ECANCELED))] {
            let before = b.finished();
            let mut receive = b.endpoint.tagged_recv(number, 0, vec![0xAA; 2 << 20]).start().unwrap();
            until(&[&a, &b], || (b.finished() > before).then_some(()));
            match receive.wait() {
                Ok(message) => {
                    assert_eq!(expected, None, "{transport}: message {number} was received");
                    assert!(
                        message.to_vec() == vec![number as u8; 2 << 20],
                        "{transport}: the bytes of another message"
                    );
                }
                Err(error) => assert_eq!(Some(error.errno()), expected, "{transport}: message {number}"),
            }
        }
        for context in [1, 2] {
            let entry = until(&[&a, &b], read).unwrap();
            assert_eq!(entry.context, context, "{transport}");
        }
        until(&[&a, &b], || a.engine(|engine| engine.core.messages.sends().is_empty()).then_some(()));
    }
}

/// An event of a send, in the model and in the engine.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Post { offered: bool, ack: bool },
    Asked,
    Pushed(bool),
    Pulled,
    Acked(bool),
}

#[derive(Clone, Copy, Debug, Default)]
struct Model {
    offered: bool,
    leaving: bool,
    refused: bool,
    ack: bool,
    reported: Option<bool>,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        3 => (any::<bool>(), any::<bool>()).prop_map(|(offered, ack)| Happens::Post { offered, ack: ack || !offered }),
        2 => Just(Happens::Asked),
        2 => any::<bool>().prop_map(Happens::Pushed),
        1 => Just(Happens::Pulled),
        2 => any::<bool>().prop_map(Happens::Acked),
    ]
}

impl Model {
    /// Applies an event that a frame or a transport reports for this send, if the send still exists.
    fn step(&mut self, what: Happens) {
        if self.reported.is_some() {
            if matches!(what, Happens::Acked(_)) {
                self.ack = false;
            }
            return;
        }
        match what {
            Happens::Post { .. } => {}
            Happens::Asked if self.offered && !self.leaving => self.leaving = true,
            Happens::Asked => {}
            Happens::Pushed(_) if !self.leaving => {}
            Happens::Pushed(well) => {
                (self.offered, self.leaving) = (false, false);
                if self.refused {
                    self.ack = false;
                }
                if self.refused || !well {
                    self.reported = Some(false);
                }
            }
            // The engine treats these as protocol violations.
            Happens::Pulled if self.leaving || !self.offered => {}
            Happens::Acked(_) if !self.ack || self.refused => {}
            Happens::Pulled => self.offered = false,
            Happens::Acked(true) => self.ack = false,
            Happens::Acked(false) if self.leaving => self.refused = true,
            Happens::Acked(false) => (self.ack, self.reported) = (false, Some(false)),
        }
        if !self.offered && !self.leaving && !self.ack && self.reported.is_none() {
            self.reported = Some(true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    /// For all events of sends, in any order and with any delay: each send is reported once, as in the model, and its
    /// number is kept exactly until the peer has sent its last answer.
    #[test]
    fn send_ids_are_not_reused_while_answers_are_pending(steps in proptest::collection::vec((happens(), any::<prop::sample::Index>()), 1..200)) {
        let test_endpoint = TestEndpoint::new("tcp");
        let other = TestEndpoint::new("tcp");
        let slot = test_endpoint.slot(&other);
        let mut all: Vec<(u32, Model)> = Vec::new();
        let mut reports: HashMap<u64, Vec<bool>> = HashMap::new();
        for (what, which) in steps {
            test_endpoint.engine(|engine| -> Result<(), TestCaseError> {
                let core = &mut engine.core;
                if let Happens::Post { offered, ack } = what {
                    let work = SendWork {
                        peer: PeerAddress(0),
                        segments: Segments::EMPTY,
                        tag: None,
                        data: None,
                        context: all.len() as u64,
                        flags: OpFlags::empty(),
                    };
                    let wire = core.messages.sends().next_wire();
                    core.messages.sends_mut().add(slot, Posted::lent(work), Notify::Event, offered, ack);
                    all.push((wire, Model { offered, ack, ..Model::default() }));
                    return Ok(());
                }
                if all.is_empty() {
                    return Ok(());
                }
                let (id, model) = which.get_mut(&mut all);
                let head = |kind, tag| Head { kind, flags: Flags::ID, tag, id: *id, ..Head::default() };
                match what {
                    Happens::Post { .. } => {}
                    Happens::Asked => core.frame(slot, &head(FrameKind::Pull, 0), crate::local_memory::volatile::View::of(&[0; 8])),
                    Happens::Pushed(true) => core.pushed(slot, *id, Ok(())),
                    Happens::Pushed(false) => core.pushed(slot, *id, Err(PullError::Fault)),
                    Happens::Pulled => core.frame(slot, &head(FrameKind::Pulled, 0), crate::local_memory::volatile::View::of(&[])),
                    Happens::Acked(well) => {
                        let error = if well { 0 } else { ErrorCode::Io.errno() as u64 };
                        core.frame(slot, &head(FrameKind::Ack, error), crate::local_memory::volatile::View::of(&[]));
                    }
                }
                model.step(what);
                core.peers.drop_actions();
                while let Some(result) = next(&mut core.reporting) {
                    let (context, well) = match result {
                        Ok(Entry { context, .. }) => (context, true),
                        Err(error) => (error.entry.context, false),
                    };
                    reports.entry(context).or_default().push(well);
                }
                for (context, (id, model)) in all.iter().enumerate() {
                    let seen = reports.get(&(context as u64)).map_or(&[][..], Vec::as_slice);
                    prop_assert_eq!(seen, model.reported.as_slice(), "send {}", context);
                    let kept = model.reported.is_none() || model.reported == Some(false) && model.ack;
                    prop_assert_eq!(core.messages.sends().has(*id), kept, "number of send {}", context);
                }
                Ok(())
            })?;
        }
    }
}

/// A receive with this context and flags, of tag 3.
fn receive(context: u64, into: &mut Buffer, flags: OpFlags) -> ReceiveWork {
    ReceiveWork {
        from: PeerAddress::UNSPECIFIED,
        segments: into.segment_for_receive().map_or(Segments::EMPTY, Segments::one),
        tag: Some((3, 0)),
        context,
        flags: flags | OpFlags::COMPLETION,
    }
}

#[test]
fn claim_is_bound_to_its_operation_not_to_an_equal_id() {
    let queue = CompletionQueue::default();
    let (a, b) = (TestEndpoint::new("tcp"), TestEndpoint::reporting("tcp", Trust::SameUser, &queue));
    let to_b = connect(&a, &b);
    a.endpoint.tagged_inject(to_b, 3, b"claimed").unwrap();
    let mut into = Buffer::zeroed(16);
    let mut peek = || {
        let work = receive(0, &mut into, OpFlags::PEEK | OpFlags::CLAIM);
        b.engine(|engine| engine.post_receive(&work, Notify::Event).unwrap());
        received(&queue).unwrap().ok()
    };
    until(&[&a, &b], || peek().map(drop));
    let claim = receive(0, &mut into, OpFlags::CLAIM);
    // An operation of the library may have the context 0 too.
    for notify in [Notify::Triggered, Notify::Operation] {
        let refused = b.engine(|engine| engine.post_receive(&claim, notify));
        assert_eq!(refused, Err(crate::PostError::NotClaimed), "{notify:?}");
    }
    b.engine(|engine| engine.post_receive(&claim, Notify::Event).unwrap());
    assert_eq!(received(&queue).unwrap().unwrap().len, 7);
    assert_eq!(&into.into_vec()[..7], b"claimed");
}

#[test]
fn cancel_finds_waiting_operation_with_context_of_a_started_one() {
    let queue = CompletionQueue::default();
    let (a, b) = (TestEndpoint::reporting("tcp", Trust::SameUser, &queue), TestEndpoint::new("tcp"));
    let to_b = connect(&a, &b);
    let long = Buffer::from(vec![1; 2 << 20]);
    let work = SendWork {
        peer: to_b,
        segments: Segments::one(long.segment_for_send()),
        tag: Some(9),
        data: None,
        context: 7,
        flags: OpFlags::COMPLETION,
    };
    let counter = Counter::new();
    a.engine(|engine| {
        let transfer = engine.transfer(&RawOperation::Send(work), None).unwrap();
        engine.queue(transfer, &counter, Condition::Successes(1)).unwrap();
    });
    counter.add(1);
    // The send has begun and cannot be canceled, because it was offered to its peer.
    until(&[&a], || a.engine(|engine| !engine.core.messages.sends().is_empty()).then_some(()));
    let mut into = Buffer::zeroed(16);
    let waits = receive(7, &mut into, OpFlags::empty());
    a.engine(|engine| engine.post_receive(&waits, Notify::Event).unwrap());
    assert!(a.engine(|engine| engine.core.cancel(7, false)), "a receive waits");
    assert_eq!(received(&queue).unwrap().unwrap_err().error, ErrorCode::Canceled);
    assert!(!a.engine(|engine| engine.core.cancel(7, false)), "no receive waits");
    let before = b.finished();
    let mut receive = b.endpoint.tagged_recv(9, 0, vec![0; 2 << 20]).start().unwrap();
    until(&[&a, &b], || (b.finished() > before).then_some(()));
    assert!(receive.wait().unwrap().to_vec() == vec![1; 2 << 20]);
}
