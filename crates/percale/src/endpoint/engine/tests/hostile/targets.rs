//! Tests of targets that answer requests that were not made, answer in invalid ways, or answer twice. The initiator
//! ends that connection. The operation under way ends once, in error, and the memory of its result keeps its content.

use zerocopy::IntoBytes;

use super::*;
use crate::completion::entry::ErrorCode;
use crate::domain::Trust;
use crate::endpoint::engine::remote::PART;
use crate::endpoint::safe::{Cause, OperationError};
use crate::region::{Access, RemoteMemory};
use crate::wire::head::{Flags, FrameKind, Offer};

/// The operation that the initiator has under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    ShortRead,
    LongRead,
    ShortWrite,
    LongWrite,
    Fetch,
    Message,
}

/// A frame. Its other fields follow from the operation under way.
#[derive(Clone, Copy, Debug)]
enum Frame {
    /// The end of a part, with this refusal. The number of the part under way is XORed with the second value.
    Done(u64, u32),
    /// Bytes for a part.
    ReadData(usize, u32),
    /// An offer of this number of bytes for a part.
    ReadOffer(usize),
    /// A pull of a part.
    Pull,
    /// An acknowledgement of a message, with this error.
    Acked(u64, u32),
}

const OWN: u32 = 0;
const LONG: usize = 2 << 20;
const UNTOUCHED: u8 = 0xEE;

impl Asks {
    const fn len(self) -> usize {
        match self {
            Self::ShortRead | Self::ShortWrite | Self::Fetch => 8,
            Self::LongRead | Self::LongWrite | Self::Message => LONG,
        }
    }
}

/// Returns the token and the payload of a pull in the format of this transport.
fn pull(transport: &str, len: usize) -> (u64, Vec<u8>) {
    if transport == "tcp" {
        return (7 << 32, (len as u64).to_le_bytes().to_vec());
    }
    let mut request = vec![0; 40];
    request[4..8].copy_from_slice(&(128_u32 << 10).to_le_bytes());
    request[8..16].copy_from_slice(&(len as u64).to_le_bytes());
    (7, request)
}

/// Answers operation `id` of the victim with this frame.
fn forge(transport: &str, from: &TestEndpoint, to: &TestEndpoint, asks: Asks, id: u32, frame: Frame) {
    let head = |kind, id| Head { kind, flags: Flags::ID, id, ..Head::default() };
    let (head, payload) = match frame {
        Frame::Done(refusal, other) => (Head { tag: refusal, ..head(FrameKind::Done, id ^ other) }, Vec::new()),
        Frame::ReadData(len, other) => (head(FrameKind::ReadData, id ^ other), vec![9; len]),
        Frame::ReadOffer(len) => {
            let offer = Offer { len: (len as u64).into(), ..Offer::default() };
            (Head { tag: 1 << 30, ..head(FrameKind::ReadOffer, id) }, offer.as_bytes().to_vec())
        }
        Frame::Acked(error, other) => (Head { tag: error, ..head(FrameKind::Ack, id ^ other) }, Vec::new()),
        Frame::Pull => {
            let (tag, payload) = pull(transport, asks.len());
            (Head { tag, ..head(FrameKind::Pull, id) }, payload)
        }
    };
    from.forge(to, &head, &payload);
}

/// Returns how an operation of the victim ended, and the content of its memory.
fn outcome(result: Result<Vec<u8>, OperationError>) -> (Option<ErrorCode>, Vec<u8>) {
    match result {
        Ok(bytes) => (None, bytes),
        Err(error) => match error.into_parts() {
            (Cause::Completion(entry), buffer) => {
                (Some(entry.error), buffer.map(crate::Buffer::into_vec).unwrap_or_default())
            }
            (cause, _) => panic!("the operation was not posted: {cause}"),
        },
    }
}

/// Sends these answers to the victim and returns why it ends the connection. Checks that both can connect again
/// afterwards.
fn answered(transport: &str, asks: Asks, frames: &[Frame], succeeds: bool) -> String {
    // The target executes all accesses, so the requests are sent to it.
    let (victim, hostile) = (TestEndpoint::new(transport), TestEndpoint::trusting(transport, Trust::None));
    let peer = connect(&victim, &hostile);
    let memory = hostile.domain.register(vec![1; LONG], Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
    let all = memory.remote();
    // From here on the initiator has the location of this key.
    let before = victim.finished();
    let mut first = victim.endpoint.read(peer, all.at(0..8), vec![0; 8]).start().unwrap();
    until(&[&victim, &hostile], || (victim.finished() > before).then_some(()));
    assert_eq!(first.wait().unwrap().into_vec(), [1; 8]);
    let part = all.at(0..asks.len() as u64);
    let word = RemoteMemory { len: 8, ..all };
    let endpoint = &victim.endpoint;
    let mut ends: Box<dyn FnOnce() -> Result<Vec<u8>, OperationError>> = match asks {
        Asks::ShortRead | Asks::LongRead => {
            let mut read = endpoint.read(peer, part, vec![UNTOUCHED; asks.len()]).start().unwrap();
            Box::new(move || read.wait().map(crate::Buffer::into_vec))
        }
        Asks::ShortWrite | Asks::LongWrite => {
            let mut write = endpoint.write(peer, vec![UNTOUCHED; asks.len()], part).start().unwrap();
            Box::new(move || write.wait().map(crate::Buffer::into_vec))
        }
        Asks::Fetch => {
            let mut fetch = endpoint.fetch_add(peer, word, 1_u64).start().unwrap();
            Box::new(move || fetch.wait().map(|value| value.to_le_bytes().to_vec()))
        }
        Asks::Message => {
            let mut send = endpoint.tagged_send(peer, 5, vec![UNTOUCHED; LONG]).start().unwrap();
            Box::new(move || send.wait().map(|_| Vec::new()))
        }
    };
    let id = victim.engine(|engine| match asks {
        Asks::Message => engine.core.messages.sends().first(),
        _ => engine.core.remote.first_part(),
    });
    let id = id.expect("an operation in progress");
    let before = victim.finished();
    for frame in frames {
        forge(transport, &hostile, &victim, asks, id, *frame);
    }
    let why = until(&[&victim], || victim.ended());
    // The memory is not returned before the hostile peer can no longer write to it.
    until(&[&victim, &hostile], || (victim.finished() > before).then_some(()));
    let (error, bytes) = outcome(std::mem::replace(&mut ends, Box::new(|| unreachable!()))());
    if succeeds {
        assert_eq!(error, None, "{asks:?} {frames:?}");
    } else {
        assert_eq!(error, Some(ErrorCode::Protocol), "{asks:?} {frames:?}");
        assert!(matches!(asks, Asks::Fetch) || bytes.iter().all(|byte| *byte == UNTOUCHED), "{asks:?} {frames:?}");
    }
    victim.engine(|engine| {
        let core = &engine.core;
        assert!(core.remote.counts() == [0; 3] && core.messages.sends().is_empty());
    });
    // Nothing but that connection was affected.
    until(&[&victim, &hostile], || hostile.ended());
    connect(&victim, &hostile);
    why
}

/// Runs every case over both transports.
fn all(cases: &[(Asks, &[Frame], &str)]) {
    for transport in ["shm", "tcp"] {
        for (asks, frames, expected) in cases {
            let why = answered(transport, *asks, frames, false);
            assert!(why.contains(expected), "{transport} {asks:?} {frames:?}: {why}");
        }
    }
}

/// Requirements: FLT-008.
#[test]
fn invalid_access_completions_end_the_connection() {
    use Asks::{Fetch, LongRead, LongWrite, ShortRead, ShortWrite};
    use Frame::Done;
    all(&[
        (ShortWrite, &[Done(0, PART)], "reply to an access that was not requested"),
        (ShortWrite, &[Done(7, OWN)], "unknown error code in a reply"),
        (LongWrite, &[Done(u64::MAX, OWN)], "unknown error code in a reply"),
        (ShortRead, &[Done(0, OWN)], "end of a read without data"),
        (LongRead, &[Done(0, OWN)], "end of a read without data"),
        (Fetch, &[Done(0, OWN)], "end of a read without data"),
        // The memory is not returned while a pull reads it.
        (LongWrite, &[Frame::Pull, Done(1, OWN), Done(1, PART)], "reply to an access that was not requested"),
    ]);
}

/// Requirements: FLT-008.
#[test]
fn unrequested_read_data_ends_the_connection() {
    use Asks::{Fetch, LongRead, LongWrite, Message, ShortRead, ShortWrite};
    use Frame::{ReadData, ReadOffer};
    all(&[
        (ShortWrite, &[ReadData(8, OWN)], "for an unknown read"),
        (LongWrite, &[ReadData(8, OWN)], "for an unknown read"),
        (Message, &[ReadData(8, OWN)], "for an unknown read"),
        (ShortRead, &[ReadData(8, PART)], "for an unknown read"),
        (ShortRead, &[ReadData(7, OWN)], "data for a read has the wrong length"),
        (ShortRead, &[ReadData(9, OWN)], "data for a read has the wrong length"),
        (ShortRead, &[ReadData(0, OWN)], "data for a read has the wrong length"),
        (Fetch, &[ReadData(16, OWN)], "data for a read has the wrong length"),
        (ShortRead, &[ReadOffer(9)], "offer with a wrong length for a read"),
        (ShortWrite, &[ReadOffer(8)], "for an unknown read"),
    ]);
    for transport in ["shm", "tcp"] {
        // On a stream the bytes are expected already, and arrive only as the data of a pull.
        let why = answered(transport, LongRead, &[ReadOffer(LONG), ReadOffer(LONG)], false);
        assert!(why.contains("offer for an unknown read"), "{transport}: {why}");
        let why = answered(transport, LongRead, &[ReadOffer(LONG), ReadData(8, OWN)], false);
        assert!(why.contains("for an unknown read"), "{transport}: {why}");
    }
    assert!(answered("tcp", LongRead, &[ReadOffer(LONG)], false).contains("for an unknown read"));
    assert!(answered("tcp", LongRead, &[Frame::Done(1, OWN)], false).contains("reply to a read in progress"));
}

/// Numbers of operations that no longer exist, or that never existed, are treated as stale: they change nothing, and do
/// not end the connection. The last frame ends it, because its number is not that of a part.
#[test]
fn stale_operation_ids_are_ignored() {
    use Asks::{Fetch, LongWrite, Message, ShortRead, ShortWrite};
    use Frame::{Done, ReadData};
    // The numbers are those of another generation of the same slot, and of another slot.
    const OLDER: u32 = 1 << 20;
    const OTHER: u32 = 1;
    for transport in ["shm", "tcp"] {
        let end = Done(0, PART);
        for other in [OLDER, OTHER, OLDER | OTHER] {
            for asks in [ShortRead, ShortWrite, LongWrite, Fetch] {
                let why = answered(transport, asks, &[Done(1, other), ReadData(8, other), end], false);
                assert!(why.contains("reply to an access that was not requested"), "{transport} {asks:?}: {why}");
            }
            let end = Done(0, OWN);
            let why = answered(transport, Message, &[Frame::Acked(5, other), Frame::Acked(0, other), end], false);
            assert!(why.contains("reply to an access that was not requested"), "{transport}: {why}");
        }
        // The first answer was valid.
        let why = answered(transport, ShortRead, &[ReadData(8, OWN), ReadData(8, OWN), Done(1, OWN), end], true);
        assert!(why.contains("reply to an access that was not requested"), "{transport}: {why}");
        let why = answered(transport, ShortWrite, &[Done(0, OWN), Done(1, OWN), end], true);
        assert!(why.contains("reply to an access that was not requested"), "{transport}: {why}");
    }
}

/// Requirements: FLT-008.
#[test]
fn a_second_pull_of_the_same_bytes_ends_the_connection() {
    use Asks::{LongRead, LongWrite, Message, ShortRead};
    use Frame::Pull;
    all(&[
        (LongWrite, &[Pull, Pull], "operation without an offer"),
        (Message, &[Pull, Pull], "operation without an offer"),
        (ShortRead, &[Pull], "operation without an offer"),
        (LongRead, &[Pull], "operation without an offer"),
    ]);
}
