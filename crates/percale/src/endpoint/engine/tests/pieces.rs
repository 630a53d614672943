//! Tests of frames that arrive in two pieces, and of events between the two.

use zerocopy::IntoBytes;

use super::super::peers::HEAD;
use super::*;
use crate::local_memory::access::RefusalExt as _;
use crate::region::{Access, Refusal};
use crate::wire::head::Flags;

/// The length of the payloads.
const LEN: usize = 1000;

/// Sends the first half of a frame, and waits until it has arrived. Returns the second half.
fn send_half(from: &TestEndpoint, to: &TestEndpoint, head: Head) -> Vec<u8> {
    let head = Head { len: LEN as u32, ..head };
    let mut frame = [head.to_bytes().as_bytes(), &[7; LEN]].concat();
    let rest = frame.split_off(frame.len() / 2);
    from.write_bytes(to, &frame);
    until(&[to], || to.engine(|engine| engine.core.messages.under_way()[0] == 1).then_some(()));
    rest
}

/// The bytes of a message that has a receive are not charged, so nothing is released when its connection ends.
///
/// Requirements: FLT-008.
#[test]
fn lost_part_of_an_expected_message_releases_no_charge() {
    const UNEXPECTED: usize = 100;
    let (sender, receiver) = (TestEndpoint::new("tcp"), TestEndpoint::new("tcp"));
    connect(&sender, &receiver);
    let slot = receiver.slot(&sender);
    let charged = || receiver.engine(|engine| engine.core.peers.get(slot).held());
    let head = |tag| Head { kind: FrameKind::Tagged, tag, ..Head::default() };
    sender.forge(&receiver, &head(5), &[5; UNEXPECTED]);
    let mut expected = receiver.endpoint.tagged_recv(6, 0, vec![0; LEN]).start().unwrap();
    send_half(&sender, &receiver, head(6));
    assert_eq!(charged(), UNEXPECTED + HEAD);
    drop(sender);
    until(&[&receiver], || receiver.ended());
    expected.wait().unwrap_err();
    assert_eq!(charged(), UNEXPECTED + HEAD, "bytes that were not charged were released");
    let mut unexpected = receiver.endpoint.tagged_recv(5, 0, vec![0; UNEXPECTED]).start().unwrap();
    until(&[&receiver], || unexpected.is_ready().then_some(()));
    assert_eq!(unexpected.wait().unwrap().to_vec(), [5; UNEXPECTED]);
    assert_eq!(charged(), 0);
}

/// Requirements: RMA-008.
#[test]
fn write_to_a_region_that_is_closed_while_it_arrives_is_rejected() {
    let (writer, target) = (TestEndpoint::new("tcp"), TestEndpoint::new("tcp"));
    connect(&writer, &target);
    let region = target.domain.register(vec![0; LEN], Access::REMOTE_WRITE).unwrap();
    let (kind, flags, remote) = (FrameKind::Write, Flags::DATA | Flags::ID, region.remote());
    let head = Head { kind, flags, data: remote.key, tag: remote.address, id: 9, ..Head::default() };
    let rest = send_half(&writer, &target, head);
    let memory = region.close().unwrap().into_vec();
    writer.write_bytes(&target, &rest);
    let answer = writer.receive_frame(&target, FrameKind::Done);
    assert_eq!((answer.id, answer.tag), (9, Refusal::Key.number()));
    assert_eq!(memory[LEN - 1], 0, "the second piece arrived in memory that was returned");
}
