//! Tests of valid heads that announce more than their kind may carry. They are rejected before any of the payload is
//! received.

use super::*;
use crate::wire::control::CONTROL_BYTES;
use crate::wire::head::{HEAD_BYTES, RMA_EAGER};

/// The longest payload of each kind that is sent over a stream. The length of `Data` is also limited by its pull.
const LIMITS: [(Kind, usize); 25] = [
    (Kind::Message, TcpLink::EAGER_LIMIT),
    (Kind::Tagged, TcpLink::EAGER_LIMIT),
    (Kind::Collective, TcpLink::EAGER_LIMIT),
    (Kind::Write, TcpLink::EAGER_LIMIT),
    (Kind::Data, DATA_LIMIT),
    (Kind::ReadData, RMA_EAGER + 64),
    (Kind::Atomic, RMA_EAGER + 64),
    (Kind::Control, CONTROL_BYTES),
    (Kind::MessageOffer, 64),
    (Kind::TaggedOffer, 64),
    (Kind::CollectiveOffer, 64),
    (Kind::Pull, 64),
    (Kind::Pulled, 64),
    (Kind::Ack, 64),
    (Kind::Offers, 64),
    (Kind::Bye, 64),
    (Kind::Nothing, 64),
    (Kind::WriteOffer, 64),
    (Kind::Read, 64),
    (Kind::ReadOffer, 64),
    (Kind::Done, 64),
    (Kind::Wrote, 64),
    (Kind::Counts, 64),
    (Kind::QueuePair, 64),
    (Kind::Locate, 64),
];

/// Returns a stream with the head of this frame and `there` bytes of its payload.
fn stream(kind: Kind, len: usize, there: usize) -> Vec<u8> {
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
            assert_eq!((notes.told.len(), notes.begun), (0, 0), "{kind:?} of {len} bytes");
        }
        // A payload of the maximum length is accepted, if it satisfies the other rules of its kind.
        let ended = receive(&stream(kind, limit, limit), &mut Notes::keeping(0));
        let refused = matches!(&ended, Err(Broken::Protocol(why)) if why.contains("payload bytes in a"));
        assert!(!refused, "{kind:?} of {limit} bytes: {ended:?}");
    }
    for kind in [Kind::Transport, Kind::Resolve, Kind::Resolved, Kind::Assist] {
        let ended = receive(&stream(kind, 0, 0), &mut Notes::keeping(0));
        assert!(matches!(ended, Err(Broken::Protocol(_))), "{kind:?}: {ended:?}");
    }
}
