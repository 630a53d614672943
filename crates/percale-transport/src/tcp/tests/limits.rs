//! Tests of valid heads that announce more than their kind may carry. They are rejected before any of the payload is
//! received.

use super::*;
use crate::wire::control::CONTROL_BYTES;
use crate::wire::head::{HEAD_BYTES, RMA_EAGER};

/// The flags and the longest payload of each kind that is sent over a stream. The length of `Data` is also limited by
/// its pull.
const LIMITS: [(FrameKind, Flags, usize); 25] = [
    (FrameKind::Message, Flags::empty(), TcpLink::EAGER_LIMIT),
    (FrameKind::Tagged, Flags::empty(), TcpLink::EAGER_LIMIT),
    (FrameKind::Collective, Flags::DATA, TcpLink::EAGER_LIMIT),
    (FrameKind::Write, REQUEST, TcpLink::EAGER_LIMIT),
    (FrameKind::Data, Flags::ID, DATA_LIMIT),
    (FrameKind::ReadData, Flags::ID, RMA_EAGER + 64),
    (FrameKind::Atomic, REQUEST, RMA_EAGER + 64),
    (FrameKind::Control, Flags::ID, CONTROL_BYTES),
    (FrameKind::MessageOffer, Flags::ID, 32),
    (FrameKind::TaggedOffer, Flags::ID, 32),
    (FrameKind::CollectiveOffer, REQUEST, 32),
    (FrameKind::Pull, Flags::ID, 8),
    (FrameKind::Pulled, Flags::ID, 0),
    (FrameKind::Ack, Flags::ID, 0),
    (FrameKind::Offers, Flags::ID, 0),
    (FrameKind::Bye, Flags::empty(), 0),
    (FrameKind::Nothing, Flags::empty(), 0),
    (FrameKind::WriteOffer, REQUEST, 32),
    (FrameKind::Read, REQUEST, 16),
    (FrameKind::ReadOffer, Flags::ID, 32),
    (FrameKind::Done, Flags::ID, 0),
    (FrameKind::Wrote, Flags::ID, 16),
    (FrameKind::Counts, Flags::ID, 0),
    (FrameKind::QueuePair, Flags::ID, 32),
    (FrameKind::Locate, Flags::ID, 0),
];

const REQUEST: Flags = Flags::DATA.union(Flags::ID);

/// Returns a stream with the head of this frame and `there` bytes of its payload.
fn stream(kind: FrameKind, flags: Flags, len: usize, there: usize) -> Vec<u8> {
    let mut bytes = vec![255, 255];
    bytes.extend_from_slice(Head { flags, len: len as u32, ..plain(kind) }.to_bytes().as_bytes());
    assert_eq!(bytes.len(), 2 + HEAD_BYTES);
    bytes.resize(bytes.len() + there, 0);
    bytes
}

/// Requirements: FLT-008.
#[test]
fn payload_length_is_limited_per_frame_kind() {
    for (kind, flags, limit) in LIMITS {
        for len in [limit + 1, limit * 2 + 1, u32::MAX as usize] {
            let mut notes = Notes::keeping(0);
            let ended = receive(&stream(kind, flags, len, 0), &mut notes);
            let Err(Broken::Protocol(why)) = ended else { panic!("{kind:?} of {len} bytes: {ended:?}") };
            assert!(why.contains("payload bytes") && why.contains(&len.to_string()), "{kind:?}: {why}");
            assert_eq!((notes.reported.len(), notes.begun), (0, 0), "{kind:?} of {len} bytes");
        }
        // A payload of the maximum length is accepted, if it satisfies the other rules of its kind.
        let ended = receive(&stream(kind, flags, limit, limit), &mut Notes::keeping(0));
        let refused = matches!(&ended, Err(Broken::Protocol(why)) if why.contains("payload bytes than"));
        assert!(!refused, "{kind:?} of {limit} bytes: {ended:?}");
    }
    for kind in [FrameKind::Transport, FrameKind::Resolve, FrameKind::Resolved, FrameKind::Assist] {
        let ended = receive(&stream(kind, Flags::empty(), 0, 0), &mut Notes::keeping(0));
        assert!(matches!(ended, Err(Broken::Protocol(_))), "{kind:?}: {ended:?}");
    }
}
