//! Tests of valid heads that announce more than their kind may carry. They are rejected before any of the payload is
//! received.

use super::*;
use crate::wire::control::CONTROL_BYTES;
use crate::wire::head::{HEAD_BYTES, RMA_EAGER};

/// The longest payload of each kind that is sent over a stream. The length of `Data` is also limited by its pull.
const LIMITS: [(FrameKind, usize); 25] = [
    (FrameKind::Message, TcpLink::EAGER_LIMIT),
    (FrameKind::Tagged, TcpLink::EAGER_LIMIT),
    (FrameKind::Collective, TcpLink::EAGER_LIMIT),
    (FrameKind::Write, TcpLink::EAGER_LIMIT),
    (FrameKind::Data, DATA_LIMIT),
    (FrameKind::ReadData, RMA_EAGER + 64),
    (FrameKind::Atomic, RMA_EAGER + 64),
    (FrameKind::Control, CONTROL_BYTES),
    (FrameKind::MessageOffer, 64),
    (FrameKind::TaggedOffer, 64),
    (FrameKind::CollectiveOffer, 64),
    (FrameKind::Pull, 64),
    (FrameKind::Pulled, 64),
    (FrameKind::Ack, 64),
    (FrameKind::Offers, 64),
    (FrameKind::Bye, 64),
    (FrameKind::Nothing, 64),
    (FrameKind::WriteOffer, 64),
    (FrameKind::Read, 64),
    (FrameKind::ReadOffer, 64),
    (FrameKind::Done, 64),
    (FrameKind::Wrote, 64),
    (FrameKind::Counts, 64),
    (FrameKind::QueuePair, 64),
    (FrameKind::Locate, 64),
];

/// Returns a stream with the head of this frame and `there` bytes of its payload.
fn stream(kind: FrameKind, len: usize, there: usize) -> Vec<u8> {
    let mut bytes = vec![255, 255];
    bytes.extend_from_slice(Head { len: len as u32, ..plain(kind) }.to_bytes().as_bytes());
    assert_eq!(bytes.len(), 2 + HEAD_BYTES);
    bytes.resize(bytes.len() + there, 0);
    bytes
}

/// Requirements: FLT-008.
#[test]
fn payload_length_is_limited_per_frame_kind() {
    for (kind, limit) in LIMITS {
        for len in [limit + 1, limit * 2, u32::MAX as usize] {
            let mut notes = Notes::keeping(0);
            let ended = receive(&stream(kind, len, 0), &mut notes);
            let Err(Broken::Protocol(why)) = ended else { panic!("{kind:?} of {len} bytes: {ended:?}") };
            assert!(why.contains("payload bytes") && why.contains(&len.to_string()), "{kind:?}: {why}");
            assert_eq!((notes.reported.len(), notes.begun), (0, 0), "{kind:?} of {len} bytes");
        }
        // A payload of the maximum length is accepted, if it satisfies the other rules of its kind.
        let ended = receive(&stream(kind, limit, limit), &mut Notes::keeping(0));
        let refused = matches!(&ended, Err(Broken::Protocol(why)) if why.contains("payload bytes in a"));
        assert!(!refused, "{kind:?} of {limit} bytes: {ended:?}");
    }
    for kind in [FrameKind::Transport, FrameKind::Resolve, FrameKind::Resolved, FrameKind::Assist] {
        let ended = receive(&stream(kind, 0, 0), &mut Notes::keeping(0));
        assert!(matches!(ended, Err(Broken::Protocol(_))), "{kind:?}: {ended:?}");
    }
}
