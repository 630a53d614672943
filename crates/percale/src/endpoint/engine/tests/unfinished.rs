//! Tests of transfers that do not finish, because a peer does not fetch the bytes or has none.

use zerocopy::IntoBytes;

use super::super::peers::LONG_BYTES;
use super::*;
use crate::local_memory::access::RefusalExt as _;
use crate::local_memory::buffer::BufferExt as _;
use crate::region::handle::RegionHandle;
use crate::region::properties::{MemoryProperties, RegistrationProperties};
use crate::region::{Access, Refusal, RemoteMemory};
use crate::wire::head::{Flags, Offer, RMA_EAGER, ReadHead};
use crate::{Buffer, ErrorCode};

/// The length of a transfer, which is longer than an answer in one frame may be.
const LEN: usize = 4 * RMA_EAGER;

const TRANSPORTS: [&str; 2] = ["tcp", "shm"];

/// Requests the bytes of a region, and does not fetch them. Returns the answer of the target.
fn read(from: &TestEndpoint, target: &TestEndpoint, remote: RemoteMemory, answer: FrameKind) -> Head {
    let request = ReadHead { len: (LEN as u64).into(), expected: 0.into() };
    ask(from, target, FrameKind::Read, remote, request.as_bytes(), answer)
}

/// Requests an access to a region. Returns the answer of the target, which is a frame of this kind.
fn ask(
    from: &TestEndpoint,
    target: &TestEndpoint,
    kind: FrameKind,
    remote: RemoteMemory,
    payload: &[u8],
    answer: FrameKind,
) -> Head {
    let flags = Flags::DATA | Flags::ID;
    let head = Head { kind, flags, data: remote.key, tag: remote.address, id: 9, ..Head::default() };
    from.forge(target, &head, payload);
    from.receive_frame(target, answer)
}

/// Requirements: FLT-008.
#[test]
fn bytes_that_were_not_fetched_are_released_when_their_peer_disconnects() {
    for transport in TRANSPORTS {
        let (reader, target) = (TestEndpoint::new(transport), TestEndpoint::new(transport));
        connect(&reader, &target);
        let region = target.domain.register(vec![7; LEN], Access::REMOTE_READ).unwrap();
        read(&reader, &target, region.remote(), FrameKind::ReadOffer);
        assert!(target.remains().contains(&("transfers from local regions", 1)), "{transport}");
        drop(reader);
        until(&[&target], || target.ended());
        let remains = target.remains();
        assert!(remains.is_empty(), "{transport}: {remains:?}");
        region.close().unwrap();
    }
}

/// Bytes of memory that only the kernel may touch are copied for each transfer.
///
/// Requirements: FLT-008.
#[test]
fn copies_that_a_peer_does_not_fetch_are_limited() {
    for transport in TRANSPORTS {
        let mut memory = Buffer::zeroed(LEN);
        let (initiator, target) = (TestEndpoint::new(transport), TestEndpoint::new(transport));
        connect(&initiator, &target);
        let place = Segments::one(memory.segment_for_receive().unwrap());
        let terms = RegistrationProperties::new(Access::REMOTE_READ | Access::REMOTE_WRITE);
        let untouched = MemoryProperties { backed: false, writable: true };
        let domain = &target.domain.inner;
        let mut region = RegionHandle::register(&domain.keys, &domain.secret, terms, place, untouched).unwrap();
        // The peer has begun transfers before, and may begin one more.
        let slot = target.slot(&initiator);
        target.engine(|engine| assert!(engine.core.peers.get_mut(slot).stage(2 * LONG_BYTES - LEN as u64)));
        read(&initiator, &target, region.remote(), FrameKind::ReadOffer);
        let refused = read(&initiator, &target, region.remote(), FrameKind::Done);
        assert_eq!(refused.tag, Refusal::Memory.number(), "{transport}");
        let offer = Offer { len: (LEN as u64).into(), ..Offer::default() };
        let (kind, offer) = (FrameKind::WriteOffer, offer.as_bytes());
        let refused = ask(&initiator, &target, kind, region.remote(), offer, FrameKind::Done);
        assert_eq!(refused.tag, Refusal::Memory.number(), "{transport}");
        region.close(None).unwrap();
    }
}

/// The sender gave up the message, so its bytes cannot be fetched.
///
/// Requirements: CMP-005.
#[test]
fn message_that_cannot_be_fetched_is_acknowledged_with_the_error() {
    const NUMBER: u32 = 12_345;
    for transport in TRANSPORTS {
        let (sender, receiver) = (TestEndpoint::new(transport), TestEndpoint::new(transport));
        connect(&sender, &receiver);
        let mut receive = receiver.endpoint.recv(vec![0; LEN]).start().unwrap();
        let offer = Offer { len: (LEN as u64).into(), pieces: 1.into(), ..Offer::default() };
        let (kind, flags) = (FrameKind::MessageOffer, Flags::ID | Flags::ACK);
        sender.forge(&receiver, &Head { kind, flags, id: NUMBER, ..Head::default() }, offer.as_bytes());
        // The sender's engine has no such message. It gets the request for the bytes, and makes no progress after the
        // end of the receive, so it does not get the acknowledgement.
        until(&[&sender, &receiver], || receive.is_ready().then_some(()));
        assert_eq!(receive.wait().unwrap_err().errno(), libc::ECANCELED, "{transport}");
        let acknowledgement = sender.receive_frame(&receiver, FrameKind::Ack);
        let error = ErrorCode::Canceled.errno() as u64;
        assert_eq!((acknowledgement.id, acknowledgement.tag), (NUMBER, error), "{transport}");
    }
}
