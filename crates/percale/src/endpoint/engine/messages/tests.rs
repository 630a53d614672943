//! Tests of messages without an engine and without links.

use super::super::types::{Short, UnexpectedPayload};
use super::*;
use crate::completion::entry::{Entry, ErrorCode};
use crate::endpoint::matching::{Pattern, SourceFilter};
use crate::endpoint::posted::Posted;
use crate::endpoint::work::{OpFlags, SendWork};
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::volatile::{Segment, Segments};
use crate::types::PeerAddress;
use crate::wire::head::FrameKind;

const FROM: ConnectionId = 3;
/// Another peer.
const OTHER: ConnectionId = 4;

fn head(kind: FrameKind, tag: u64) -> Head {
    Head { kind, tag, ..Head::default() }
}

fn any(tag: u64) -> Pattern {
    Pattern { tag, ignore: 0, source: SourceFilter::Any }
}

fn receive(segment: Segment, context: u64) -> Receive {
    Receive { place: ReceiveDestination::One(segment), context, notify: Notify::Queue, multi: None }
}

fn unexpected(tag: u64) -> Unexpected {
    let body = UnexpectedPayload::Short(Short::of(View::of(&[1, 2])));
    Unexpected { from: FROM, head: head(FrameKind::Tagged, tag), len: 2, body }
}

fn envelope_of(tag: u64) -> Envelope {
    envelope(FROM, &head(FrameKind::Tagged, tag))
}

/// Adds a send to `FROM` and returns its number.
fn send(sends: &mut Sends, context: u64, offered: bool, ack: bool) -> u32 {
    let (peer, segments, flags) = (PeerAddress::UNSPECIFIED, Segments::EMPTY, OpFlags::empty());
    let work = SendWork { peer, segments, tag: None, data: None, context, flags };
    let wire = sends.next_wire();
    sends.add(FROM, Posted::lent(work), Notify::Queue, offered, ack);
    wire
}

#[test]
fn a_message_is_delivered_to_the_oldest_receive_that_it_fits() {
    let mut messages = Messages::new(64);
    let mut buffer = Buffer::zeroed(4);
    let segment = buffer.segment_for_receive().unwrap();
    messages.table(true).post(any(1), receive(segment, 10));
    messages.table(true).post(any(1), receive(segment, 11));
    assert!(messages.has_receives());
    let mut deliver =
        |tagged, bytes: &[u8], takes| messages.deliver(tagged, envelope_of(1), View::of(bytes), |_| takes);
    assert_eq!(deliver(false, &[9; 4], true), None, "the receives are tagged");
    assert_eq!(deliver(true, &[9; 5], true), None, "the message does not fit");
    assert_eq!(deliver(true, &[9; 4], false), None, "it is reported elsewhere");
    assert_eq!(deliver(true, &[9; 4], true), Some((10, Notify::Queue)));
    assert_eq!(messages.match_posted(FROM, &head(FrameKind::Tagged, 1), 4).map(|receive| receive.context), Some(11));
    assert!(messages.match_posted(FROM, &head(FrameKind::Tagged, 1), 4).is_none() && !messages.has_receives());
    assert_eq!(buffer.into_vec(), [9; 4]);
}

#[test]
fn receive_reporting_elsewhere_skips_the_fast_path() {
    let mut messages = Messages::new(64);
    let notify = Notify::Shared;
    messages.table(true).post(any(1), Receive { notify, ..receive(Segment::EMPTY, 10) });
    let takes = |notify| matches!(notify, Notify::Queue | Notify::Operation);
    assert_eq!(messages.deliver(true, envelope_of(1), View::of(&[]), takes), None);
    assert!(messages.match_posted(FROM, &head(FrameKind::Tagged, 1), 0).is_some(), "the receive is still posted");
}

#[test]
fn multi_receive_buffer_is_released_after_its_last_message() {
    let mut messages = Messages::new(4);
    let mut buffer = Buffer::zeroed(10);
    let whole = Segments::one(buffer.segment_for_receive().unwrap());
    let multi = messages.memory_mut().add_multi(whole, 7, Notify::Queue);
    let place = messages.memory_mut().place(&whole);
    let posted = Receive { place, context: 7, notify: Notify::Queue, multi: Some(multi) };
    messages.table(true).post(any(1), posted);
    let mut take = |len| messages.match_posted(FROM, &head(FrameKind::Tagged, 1), len);
    assert_eq!(take(3).map(|part| part.place.len()), Some(3));
    assert_eq!(take(0).map(|part| part.place.len()), Some(0), "an empty message also uses the buffer");
    assert_eq!(take(9).map(|part| part.place.len()), Some(7), "a longer message gets the remaining bytes");
    assert!(take(1).is_none(), "less than the minimum is left");
    let released = [(); 3].map(|()| messages.memory_mut().part_over(multi));
    assert_eq!(released, [false, false, true]);
    assert!(!messages.memory_mut().part_over(multi), "the buffer is already released");
}

#[test]
fn canceled_multi_receive_waits_for_messages_in_flight() {
    let mut messages = Messages::new(1);
    let mut buffer = Buffer::zeroed(10);
    let whole = Segments::one(buffer.segment_for_receive().unwrap());
    let memory = messages.memory_mut();
    let idle = memory.add_multi(whole, 7, Notify::Queue);
    assert!(memory.close(idle));
    let busy = memory.add_multi(whole, 7, Notify::Queue);
    let (part, closed) = memory.take_part(busy, 4);
    assert!(!closed && !memory.close(busy));
    assert!(memory.take_shared_part(busy).is_none(), "the buffer belongs to this endpoint");
    assert!(memory.part_over(part.multi.unwrap()));
}

#[test]
fn multi_segment_receive_has_a_slot_until_released() {
    let mut messages = Messages::new(1);
    let mut buffers = [Buffer::zeroed(2), Buffer::zeroed(3)];
    let several = buffers.each_mut().map(|buffer| buffer.segment_for_receive().unwrap());
    let segments = Segments::new(&several).unwrap();
    let place = messages.memory_mut().place(&segments);
    assert_eq!(place.len(), 5);
    messages.memory().put(View::of(&[1, 2, 3, 4, 5]), place);
    assert_eq!(messages.memory().segments(place).as_slice().len(), 2);
    messages.memory_mut().leave(place);
    assert_eq!(buffers.map(Buffer::into_vec), [vec![1, 2], vec![3, 4, 5]]);
}

#[test]
fn a_claimed_message_is_found_only_by_the_operation_that_claimed_it() {
    let mut messages = Messages::new(1);
    let held = messages.table(true).hold(envelope_of(1), unexpected(1));
    let [one, other] = [Notify::Queue, Notify::Operation].map(|notify| OperationIdentity::of(notify, 5));
    assert!(messages.claim(one, true, held) && !messages.claim(one, true, held));
    assert!(messages.table(true).find(&any(1)).is_none());
    assert!(messages.take_claim(other, true).is_none(), "the same context of another class");
    assert!(messages.take_claim(one, false).is_none(), "the claimed message is tagged");
    messages.rename_claim(one, other);
    assert!(messages.take_claim(one, true).is_none());
    assert_eq!(messages.take_claim(other, true), Some(held));
    assert!(messages.table(true).take(held).is_some());
}

#[test]
fn arrivals_and_pulls_are_found_only_by_their_peer() {
    let mut messages = Messages::new(1);
    let arrival = |receive| StreamArrival {
        from: FROM,
        head: head(FrameKind::Tagged, 1),
        receive,
        heap: None,
        held: None,
        region: None,
    };
    let first = messages.begin_arrival(arrival(None));
    let held = messages.table(true).hold(envelope_of(1), unexpected(1));
    messages.hold_arrival(first, held);
    messages.forget_arrival(first);
    messages.give_arrival(first, receive(Segment::EMPTY, 10));
    let landed = messages.take_arrival(first.to_wire()).unwrap();
    assert!(landed.held.is_none() && landed.receive.is_some_and(|receive| receive.context == 10));
    assert!(messages.take_arrival(first.to_wire()).is_none(), "the arrival was already taken");
    messages.begin_arrival(arrival(None));
    assert!(messages.take_arrivals_of(OTHER).is_empty());
    assert_eq!(messages.take_arrivals_of(FROM).len(), 1);

    let pull = |context| PayloadPull::Message {
        from: FROM,
        head: head(FrameKind::Tagged, 1),
        len: 2,
        receive: receive(Segment::EMPTY, context),
    };
    let expected = messages.next_pull();
    let token = messages.begin_pull(pull(1));
    assert_eq!(token, expected);
    assert!(messages.take_pull(OTHER, token).is_none());
    assert!(messages.take_pull(FROM, token).is_some() && messages.take_pull(FROM, token).is_none());
    let tokens = [2, 3].map(|context| messages.begin_pull(pull(context)));
    assert_eq!(messages.take_pulls_of(FROM, |token| token == tokens[1]).len(), 1);
    assert_eq!(messages.under_way(), [0, 1]);
}

#[test]
fn send_ends_after_payload_transfer_and_answer() {
    let mut sends = Sends::default();
    let wire = send(&mut sends, 1, true, true);
    assert!(matches!(sends.handle_pull_request(OTHER, wire), SendAsked::Gone));
    assert!(matches!(sends.handle_pull_request(FROM, wire), SendAsked::Payload(Notify::Queue, 1, _)));
    assert!(matches!(sends.handle_pull_request(FROM, wire), SendAsked::Nothing));
    assert!(sends.not_pulled(FROM, wire).is_err(), "the message is being pulled");
    assert!(sends.acknowledged(FROM, wire, None).unwrap().is_none(), "a transport reads the memory");
    assert!(sends.acknowledged(FROM, wire, None).is_err(), "one acknowledgement was requested");
    let end = sends.pushed(FROM, wire, None).unwrap();
    assert_eq!((end.to, end.entry.context, end.failure), (FROM, 1, None));
    assert!(sends.is_empty());
}

#[test]
fn rejected_send_ends_when_no_transport_reads_its_buffer() {
    let mut sends = Sends::default();
    let refusal = refusal_of(ErrorCode::Io.errno() as u64);
    assert!(refusal.is_some() && refusal_of(0).is_none());
    let offered = send(&mut sends, 1, true, true);
    let end = sends.acknowledged(FROM, offered, refusal).unwrap().unwrap();
    assert_eq!((end.entry.context, end.failure), (1, refusal));
    let leaving = send(&mut sends, 2, true, true);
    assert!(matches!(sends.handle_pull_request(FROM, leaving), SendAsked::Payload(..)));
    assert!(sends.acknowledged(FROM, leaving, refusal).unwrap().is_none());
    assert!(sends.acknowledged(FROM, leaving, refusal).is_err(), "the message was refused already");
    assert_eq!(sends.pushed(FROM, leaving, None).and_then(|end| end.failure), refusal);
    assert!(sends.is_empty());
}

#[test]
fn answers_that_were_not_requested_are_errors() {
    let mut sends = Sends::default();
    let offered = send(&mut sends, 1, true, false);
    assert!(sends.acknowledged(FROM, offered, None).is_err(), "no acknowledgement was requested");
    assert!(sends.acknowledged(FROM, offered, refusal_of(ErrorCode::Io.errno() as u64)).is_err());
    let eager = send(&mut sends, 2, false, true);
    assert!(sends.not_pulled(FROM, eager).is_err(), "nothing was offered");
    assert!(sends.not_pulled(OTHER, eager).unwrap().is_none() && sends.has(eager), "the number of another peer");
}

#[test]
fn failed_send_keeps_its_id_until_the_peer_answers() {
    let mut sends = Sends::default();
    let wire = send(&mut sends, 1, true, true);
    assert!(matches!(sends.handle_pull_request(FROM, wire), SendAsked::Payload(..)));
    let failure = (ErrorCode::Fault, "for a test");
    assert_eq!(sends.pushed(FROM, wire, Some(failure)).and_then(|end| end.failure), Some(failure));
    assert!(sends.has(wire) && sends.pushed(FROM, wire, None).is_none(), "the failure was already reported");
    assert!(sends.acknowledged(FROM, wire, None).unwrap().is_none() && !sends.has(wire));
    // No answer arrives after the connection has ended.
    let [first, second] = [2, 3].map(|context| send(&mut sends, context, true, true));
    assert!(matches!(sends.handle_pull_request(FROM, first), SendAsked::Payload(..)));
    sends.pushed(FROM, first, Some(failure));
    let contexts: Vec<u64> = sends.take_of(FROM).iter().map(|end| end.entry.context).collect();
    assert_eq!((contexts, sends.has(first), sends.has(second)), (vec![3], false, false));
}

#[test]
fn sends_complete_in_order_after_their_last_byte() {
    let mut messages = Messages::new(1);
    let unsent = messages.unsent();
    for (end, context) in [(10, 1), (20, 2), (30, 3)] {
        unsent.keep(FROM, end, Notify::Queue, Entry { context, ..Entry::default() });
    }
    let left = |unsent: &mut UnsentSends, at| {
        std::iter::from_fn(|| unsent.take_sent(FROM, at)).map(|(_, entry)| entry.context).collect::<Vec<_>>()
    };
    assert_eq!(left(unsent, 9), []);
    assert_eq!(left(unsent, 20), [1, 2]);
    assert!(unsent.any() && unsent.take_sent(OTHER, 100).is_none());
    assert_eq!(unsent.take_lost(FROM).map(|(_, entry)| entry.context).collect::<Vec<_>>(), [3]);
    assert!(!unsent.any());
}
