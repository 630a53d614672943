//! The tags, requests and answers of the protocol.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use crate::region::RemoteMemory;

/// The number of bits of a tag that hold the number of the call.
const CALL: u32 = 47;
/// The bits that a server's receives ignore.
pub(super) const ANY_CALL: u64 = (1 << CALL) - 1;
/// The bit that is set in the tags of answers.
const ANSWER: u64 = 1 << CALL;
/// The length of the head of an answer in bytes: the kind and a length.
pub(super) const ANSWER_HEAD: usize = 16;

/// Returns the tag of a request.
pub(super) fn request_tag(service: u16, call: u64) -> u64 {
    u64::from(service) << 48 | call & ANY_CALL
}

/// Returns the tag of the answer to the request with this tag.
pub(super) const fn answer_tag(request: u64) -> u64 {
    request | ANSWER
}

/// Returns the message of a request: the memory for a long answer (of length 0 if there is none), and the bytes.
pub(super) fn request(room: &RemoteMemory, bytes: &[u8]) -> Vec<u8> {
    [&room.to_bytes()[..], bytes].concat()
}

/// Returns the memory for a long answer, and the offset of the bytes in the message. `None` if the message is invalid.
pub(super) fn parse_request(message: &[u8]) -> Option<(RemoteMemory, usize)> {
    let room = message.get(..RemoteMemory::BYTES)?;
    Some((RemoteMemory::from_bytes(room).ok()?, RemoteMemory::BYTES))
}

/// The result of a request, as the server sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The answer follows.
    Inline,
    /// The answer, of this length, was written into the memory of the client.
    Written(u64),
    /// The answer has this length, for which the client has no room.
    AnswerTooLong(u64),
    /// The request was longer than this limit.
    RequestTooLong(u64),
    /// The answer could not be written.
    NotWritten,
}

impl Status {
    /// Returns the message of an answer.
    pub(super) fn to_message(self, bytes: &[u8]) -> Vec<u8> {
        let (kind, len) = match self {
            Self::Inline => (0_u64, bytes.len() as u64),
            Self::Written(len) => (1, len),
            Self::AnswerTooLong(len) => (2, len),
            Self::RequestTooLong(limit) => (3, limit),
            Self::NotWritten => (4, 0),
        };
        [&kind.to_le_bytes()[..], &len.to_le_bytes(), bytes].concat()
    }

    /// Decodes the head of an answer. Returns `None` if it is invalid.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        let word = |from: usize, to: usize| Some(u64::from_le_bytes(message.get(from..to)?.try_into().ok()?));
        let (kind, len) = (word(0, 8)?, word(8, ANSWER_HEAD)?);
        match kind {
            0 if len == message.len().checked_sub(ANSWER_HEAD)? as u64 => Some(Self::Inline),
            1 => Some(Self::Written(len)),
            2 => Some(Self::AnswerTooLong(len)),
            3 => Some(Self::RequestTooLong(len)),
            4 => Some(Self::NotWritten),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_short_ones_are_invalid() {
        let room = RemoteMemory { key: 1, address: 2, len: 3 };
        let message = request(&room, b"abc");
        assert_eq!(parse_request(&message), Some((room, message.len() - 3)));
        assert_eq!(parse_request(&message[..RemoteMemory::BYTES - 1]), None);
        for status in [Status::Written(5), Status::AnswerTooLong(6), Status::RequestTooLong(7), Status::NotWritten] {
            assert_eq!(Status::parse(&status.to_message(b"")), Some(status));
        }
        let message = Status::Inline.to_message(b"abc");
        assert_eq!((Status::parse(&message), &message[ANSWER_HEAD..]), (Some(Status::Inline), &b"abc"[..]));
        assert!((0..message.len()).all(|len| Status::parse(&message[..len]).is_none()));
        assert_eq!(Status::parse(&[9; 16]), None);
    }

    #[test]
    fn requests_and_answers_of_services_have_different_tags() {
        let tags = [(1, 5), (1, 6), (2, 5)].map(|(service, call)| request_tag(service, call));
        assert!(tags.iter().all(|tag| answer_tag(*tag) != *tag && !tags.contains(&answer_tag(*tag))));
        assert_eq!(tags[0] & !ANY_CALL, tags[1] & !ANY_CALL);
        assert_ne!(tags[0] & !ANY_CALL, tags[2] & !ANY_CALL);
        assert_ne!(tags[0] & !ANY_CALL, answer_tag(tags[0]) & !ANY_CALL);
    }
}
