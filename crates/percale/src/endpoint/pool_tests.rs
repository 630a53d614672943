//! Tests a pool and its members without endpoints.

use std::sync::Mutex;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::*;
use crate::address_vector::vector::VectorOptions;
use crate::completion::entry::ErrorCode;
use crate::endpoint::safe::Cause;
use crate::local_memory::buffer::BufferExt as _;
use crate::transport::shm::WakeMethod;
use crate::{Segment, SharedReceive};

/// Creates a member, and the handle of a message that it stores.
fn member(shared: &SharedReceive) -> (Membership, HeldMessage) {
    (shared.pool.join(None, &Arc::new(Doorbell::new().unwrap())), held_message())
}

fn held_message() -> HeldMessage {
    Matching::<(), ()>::new().hold(Envelope { tag: 0, source: 0 }, ())
}

/// Creates a peer that was not reached at any address.
fn sender() -> SenderPeer {
    SenderPeer { slot: 1, at: None, incarnation: 7 }
}

/// Creates a peer that was reached at an address with this number.
fn peer(number: u16) -> SenderPeer {
    let at = Some((std::net::SocketAddr::from(([127, 0, 0, 1], number)), 0));
    SenderPeer { slot: 1, at, incarnation: number.into() }
}

/// Describes an untagged receive from any sender.
fn receive(context: u64, segment: Segment, flags: OpFlags) -> ReceiveWork {
    ReceiveWork {
        from: PeerAddress::UNSPECIFIED,
        segments: Segments::one(segment),
        tag: None,
        context,
        flags: flags | OpFlags::COMPLETION,
    }
}

fn post(shared: &SharedReceive, context: u64, segment: Segment, flags: OpFlags) {
    shared.pool.post(&receive(context, segment, flags), &mut None).unwrap();
}

/// Gives the receive of the only note back to the pool. Returns the receive if it has ended.
fn give_back(member: &Membership) -> Option<PostedReceive> {
    match member.take_notes().pop() {
        Some(MemberNote::Fill(ReservedReceive { tagged, receive, pattern, .. })) => {
            member.give_back(tagged, pattern, receive)
        }
        other => panic!("{other:?}"),
    }
}

/// Requirements: CTX-008.
#[test]
fn dropped_receive_of_lost_message_matches_no_other() {
    let shared = SharedReceive::new();
    let (member, held) = member(&shared);
    assert!(member.announce(sender(), false, 0, 8, held).is_none());
    drop(shared.recv(vec![0; 8]).unwrap());
    assert!(give_back(&member).is_none());
    assert!(member.meet(sender(), false, 0, 8).is_none(), "an abandoned receive matched a message");
}

/// Requirements: CTX-007.
#[test]
fn receive_of_lost_message_precedes_later_receives() {
    let shared = SharedReceive::new();
    let (member, held) = member(&shared);
    assert!(member.announce(sender(), false, 0, 8, held).is_none());
    (0..4).for_each(|context| post(&shared, context, Segment::EMPTY, OpFlags::empty()));
    assert!(give_back(&member).is_none());
    for context in 0..4 {
        assert_eq!(member.meet(sender(), false, 0, 8).map(|receive| receive.context), Some(context));
    }
}

/// After the loss, the receive would match a message that arrived after the message of a later receive.
///
/// Requirements: CTX-007.
#[test]
fn receive_of_lost_message_ends_if_a_later_receive_matched() {
    let shared = SharedReceive::new();
    let (member, held) = member(&shared);
    assert!(member.announce(sender(), false, 0, 8, held).is_none());
    (0..3).for_each(|context| post(&shared, context, Segment::EMPTY, OpFlags::empty()));
    let meet = || member.meet(sender(), false, 0, 8).map(|receive| receive.context);
    assert_eq!(meet(), Some(1));
    assert_eq!(give_back(&member).map(|receive| receive.context), Some(0));
    assert_eq!((meet(), meet()), (Some(2), None));
}

/// An earlier receive with another tag may be matched last. It does not hide that a later receive was matched before.
///
/// Requirements: CTX-007.
#[test]
fn receive_of_lost_message_ends_if_an_earlier_receive_matched_last() {
    let shared = SharedReceive::new();
    let (member, held) = member(&shared);
    let post = |context| {
        let work = ReceiveWork { tag: Some((context, 0)), ..receive(context, Segment::EMPTY, OpFlags::empty()) };
        shared.pool.post(&work, &mut None).unwrap();
    };
    let meet = |tag| member.meet(sender(), true, tag, 8).map(|receive| receive.context);
    assert!(member.announce(sender(), true, 1, 8, held).is_none());
    (0..3).for_each(post);
    assert_eq!((meet(2), meet(0)), (Some(2), Some(0)));
    assert_eq!(give_back(&member).map(|receive| receive.context), Some(1));
    assert_eq!(meet(1), None);
}

/// A member that leaves fills the receives that it had to fill. None of them is queued again behind later receives.
///
/// Requirements: CTX-008.
#[test]
fn receive_ends_when_the_context_and_its_endpoints_are_gone() {
    let shared = SharedReceive::new();
    let (member, _) = member(&shared);
    let receiving = shared.recv(vec![1, 2, 3]).unwrap();
    drop(shared);
    assert!(!receiving.is_ready(), "an endpoint is there");
    drop(member);
    let error = receiving.take().expect("the receive has ended").unwrap_err();
    let Cause::Completion(entry) = error.cause() else { panic!("{error}") };
    assert_eq!(entry.error, ErrorCode::Closed);
    assert_eq!(error.into_buffer().expect("the buffer").into_vec(), [1, 2, 3]);
}

#[test]
fn leaving_member_keeps_receives_matched_to_its_messages() {
    let shared = SharedReceive::new();
    let ((first, held), (second, other)) = (member(&shared), member(&shared));
    assert!(first.announce(sender(), false, 0, 8, held).is_none());
    assert!(second.announce(sender(), false, 0, 8, other).is_none());
    (0..3).for_each(|context| post(&shared, context, Segment::EMPTY, OpFlags::empty()));
    let promises = first.leave();
    assert_eq!(promises.iter().map(|promise| promise.receive.context).collect::<Vec<_>>(), [0]);
    drop(first);
    assert_eq!(second.meet(sender(), false, 0, 8).map(|receive| receive.context), Some(2));
    drop(promises);
}

/// The endpoints of a context may come and go for as long as the context exists.
#[test]
fn messages_of_leaving_member_are_withdrawn() {
    let shared = SharedReceive::new();
    let ((first, held), (second, other)) = (member(&shared), member(&shared));
    let stored = || shared.pool.lock().unwrap().tables.iter().map(Matching::unexpected_len).sum::<usize>();
    for tagged in [false, true] {
        assert!(first.announce(sender(), tagged, 0, 8, held).is_none());
        assert!(second.announce(sender(), tagged, 0, 8, other).is_none());
    }
    assert!(first.leave().is_empty());
    assert_eq!(stored(), 2, "only the messages of the other member are left");
    assert!(second.leave().is_empty());
    assert_eq!(stored(), 0);
    post(&shared, 1, Segment::EMPTY, OpFlags::empty());
    assert!([first, second].iter().all(|member| member.take_notes().is_empty()), "a receive of a lost message");
}

/// Requirements: CTX-008.
#[test]
fn cancel_without_endpoint_is_reported_by_the_next_endpoint() {
    let shared = SharedReceive::new();
    post(&shared, 9, Segment::EMPTY, OpFlags::empty());
    assert!(shared.cancel(9) && !shared.cancel(9));
    // A member that leaves without reading its notes passes them to another member.
    drop(member(&shared));
    let (member, _) = member(&shared);
    let notes = member.take_notes();
    assert!(matches!(&notes[..], [MemberNote::Canceled { receive, .. }] if receive.context == 9), "{notes:?}");
}

/// Requirements: CTX-008.
#[test]
fn empty_message_has_a_position_in_a_multi_receive_buffer() {
    let shared = SharedReceive::new();
    let (member, _) = member(&shared);
    let mut buffer = Buffer::from(vec![0; 256]);
    let whole = buffer.segment_for_receive().unwrap();
    post(&shared, 1, whole, OpFlags::MULTI_RECEIVE);
    for (used, len) in [(0, 0), (0, 16), (16, 0)] {
        let part = member.meet(sender(), false, 0, len).unwrap();
        let place = part.segments.as_slice()[0];
        assert_eq!((place.as_ptr(), place.len() as u64), (whole.slice(used, 8).as_ptr(), len));
    }
}

/// Requirements: CTX-008.
#[test]
fn multi_receive_buffer_is_released_if_its_last_message_is_lost() {
    let shared = SharedReceive::new();
    let (member, held) = member(&shared);
    assert!(member.announce(sender(), false, 0, 8, held).is_none());
    let mut buffer = Buffer::from(vec![0; 16]);
    post(&shared, 1, buffer.segment_for_receive().unwrap(), OpFlags::MULTI_RECEIVE);
    assert!(give_back(&member).is_none());
    let notes = member.take_notes();
    assert!(matches!(&notes[..], [MemberNote::Canceled { receive, .. }] if receive.context == 1), "{notes:?}");
}

/// Requirements: CTX-008.
#[test]
fn multi_receive_buffer_is_released_by_its_last_part() {
    let mut buffer = Buffer::from(vec![0; 256]);
    let whole = Segments::one(buffer.segment_for_receive().unwrap());
    for _ in 0..20 {
        let (many, ends, began) = (Many::default(), Mutex::new(Vec::new()), std::sync::Barrier::new(2));
        for _ in 0..2 {
            many.part(&whole, 8, 64);
        }
        assert!(!many.close(), "two parts are in use");
        let report = |released| ends.lock().unwrap().push(released);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                many.end_part(|released| {
                    began.wait();
                    // Gives the other part time to report its end before this one, if that is possible.
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    report(released);
                });
            });
            scope.spawn(|| {
                began.wait();
                many.end_part(report);
            });
        });
        assert_eq!(ends.into_inner().unwrap(), [false, true], "the releasing completion is the last in the queue");
    }
}

#[test]
fn addresses_of_lost_peers_are_dropped_unless_messages_remain() {
    let shared = SharedReceive::new();
    let (member, held) = member(&shared);
    let (first, names) = (peer(1), || shared.pool.lock().unwrap().names.len());
    member.connected(first);
    assert!(member.announce(first, true, 5, 8, held).is_none());
    assert!(member.disconnected(first).is_empty());
    for number in 2..20_000 {
        member.connected(peer(number));
        assert!(member.disconnected(peer(number)).is_empty());
        assert!(names() <= 2 * NAMES, "{} addresses are kept", names());
    }
    // The message that remains from the first sender still has its address as source.
    let mut state = shared.pool.lock().unwrap();
    let source = state.source_at(first.at.unwrap());
    assert!(state.tables[1].find(&Pattern { tag: 5, ignore: 0, source: SourceFilter::From(source) }).is_some());
}

/// The address of a peer to which no endpoint is connected is kept while a receive waits for that peer.
///
/// Requirements: CTX-007.
#[test]
fn directed_receive_waits_while_addresses_of_other_peers_are_dropped() {
    let shared = SharedReceive::new();
    let vector = AddressVector::new(VectorOptions::default()).unwrap();
    let member = shared.pool.join(Some(&vector), &Arc::new(Doorbell::new().unwrap()));
    let from = vector.insert(peer(1).at.unwrap().0).unwrap();
    let work = ReceiveWork { from, ..receive(9, Segment::EMPTY, OpFlags::empty()) };
    shared.pool.post(&work, &mut None).unwrap();
    for number in 2..2 * NAMES as u16 {
        member.connected(peer(number));
        assert!(member.disconnected(peer(number)).is_empty());
    }
    member.connected(peer(1));
    assert_eq!(member.meet(peer(1), false, 0, 8).map(|receive| receive.context), Some(9));
}

/// A receive is posted by any thread, and the endpoint that stores its message may be asleep.
#[test]
fn posted_receive_wakes_the_endpoint_that_stores_its_message() {
    let (shared, doorbell) = (SharedReceive::new(), Arc::new(Doorbell::new().unwrap()));
    let is_awake = || {
        let (event, now) = (doorbell.event_fd(), Timespec { tv_sec: 0, tv_nsec: 0 });
        rustix::event::poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&now)).unwrap() == 1
    };
    let member = shared.pool.join(None, &doorbell);
    assert!(member.announce(sender(), false, 0, 8, held_message()).is_none());
    doorbell.arm(WakeMethod::Event);
    assert!(!is_awake());
    post(&shared, 1, Segment::EMPTY, OpFlags::empty());
    assert!(is_awake() && matches!(&member.take_notes()[..], [MemberNote::Fill(_)]));
}
