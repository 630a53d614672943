//! The messages between client and server: tagged messages with one JSON object each. The messages do not contain data
//! of files.
//!
//! The server welcomes each client that connects ([`ServerReply::Welcome`], with the number [`GREETING`]) once it can
//! identify the connection. It accepts requests only after that, so it never trusts the address that a client
//! advertises. Then the client opens a file. It may compare blocks that both sides have ([`ClientRequest::Hash`]). To
//! download, it requests blocks in slots and reads them. To upload, it writes blocks to slots and requests that they be
//! stored. Finally it finishes the copy. A slot is a region with the size of a block, and is accessible only to this
//! client.
//!
//! Each request has a number, which the client chooses and uses once. It has one reply, with the same number. Requests
//! are executed and answered in any order. A reply of a kind that does not answer its request is a protocol violation.

use std::fmt;

use percale::RemoteMemory;
use serde::{Deserialize, Serialize};

use super::blocks::Digest;
use super::path::ServedPath;

/// The version of this protocol.
pub(crate) const PROTOCOL: u32 = 3;

/// The tag of all messages.
pub(crate) const TAG: u64 = 0x7065_7263_6669_6c65;

/// The maximum length of a message in bytes. A path of 4096 bytes fits in it, even if each byte is encoded in six. A
/// server has one buffer of this length for each client.
pub(crate) const LINE: usize = 32 << 10;

/// The number of slots of a client.
pub(crate) const SLOTS: usize = 4;

/// The maximum number of unanswered requests of a client.
pub(crate) const OUTSTANDING: usize = 16;

/// The number of the greeting.
pub(crate) const GREETING: u64 = 0;

/// A request with its number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NumberedRequest {
    pub(crate) number: u64,
    pub(crate) request: ClientRequest,
}

/// A reply with its request's number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NumberedReply {
    pub(crate) number: u64,
    pub(crate) reply: ServerReply,
}

/// The requests of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ClientRequest {
    /// Greets the server.
    Hello,
    /// Opens this file for reading.
    Get { path: ServedPath },
    /// Opens this file for writing, with this size and these permissions.
    Put { path: ServedPath, size: u64, mode: u32 },
    /// Requests the checksum of this block on the server.
    Hash { block: u64 },
    /// Copies this block into this slot.
    Fill { block: u64, slot: usize },
    /// Stores the block that is in this slot.
    Store { block: u64, slot: usize, digest: Digest },
    /// Finishes the copy. `digest` is the checksum of the complete file.
    Finish { digest: Digest },
}

/// The replies of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ServerReply {
    /// Answers the greeting: the server can identify the connection, and uses this protocol version.
    Welcome { protocol: u32 },
    /// The file is open. For a file to be written, `held` bytes exist from an earlier attempt.
    Opened { size: u64, mode: u32, held: u64, slots: Vec<RegionDescription> },
    /// The checksum of a block.
    Hashed { block: u64, digest: Digest },
    /// The block can be read from its slot.
    Filled { block: u64, slot: usize, digest: Digest },
    /// The block is stored, and its slot is free.
    Stored { block: u64, slot: usize },
    /// The checksums are equal. A written file has its final name.
    Finished,
    /// The request failed or was rejected, which ends the transfer. `again` means that a retry may soon succeed.
    Failed { why: String, again: bool },
}

impl ServerReply {
    /// Returns whether this is a reply to `request`.
    pub(crate) fn answers(&self, request: &ClientRequest) -> bool {
        match (self, request) {
            (Self::Failed { .. }, _)
            | (Self::Welcome { .. }, ClientRequest::Hello)
            | (Self::Opened { .. }, ClientRequest::Get { .. })
            | (Self::Finished, ClientRequest::Finish { .. }) => true,
            (Self::Opened { size, .. }, ClientRequest::Put { size: requested, .. }) => size == requested,
            (Self::Hashed { block, .. }, ClientRequest::Hash { block: requested }) => block == requested,
            (Self::Filled { block, slot, .. }, ClientRequest::Fill { block: requested, slot: into }) => {
                (block, slot) == (requested, into)
            }
            (Self::Stored { block, slot }, ClientRequest::Store { block: requested, slot: from, .. }) => {
                (block, slot) == (requested, from)
            }
            _ => false,
        }
    }
}

/// Formats the request for messages. The text contains only numbers from the data that the other side sent.
impl fmt::Display for ClientRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello => f.write_str("a greeting"),
            Self::Get { .. } => f.write_str("a request to open a file for reading"),
            Self::Put { size, .. } => write!(f, "a request to open a file of {size} bytes for writing"),
            Self::Hash { block } => write!(f, "a request for the checksum of block {block}"),
            Self::Fill { block, slot } => write!(f, "a request to put block {block} into slot {slot}"),
            Self::Store { block, slot, .. } => write!(f, "a request to store block {block} from slot {slot}"),
            Self::Finish { .. } => f.write_str("a request to finish the copy"),
        }
    }
}

/// Formats the reply for messages. The text contains only numbers from the data that the other side sent.
impl fmt::Display for ServerReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Welcome { protocol } => write!(f, "a welcome of protocol version {protocol}"),
            Self::Opened { size, slots, .. } => write!(f, "an open file of {size} bytes with {} slots", slots.len()),
            Self::Hashed { block, .. } => write!(f, "the checksum of block {block}"),
            Self::Filled { block, slot, .. } => write!(f, "block {block} in slot {slot}"),
            Self::Stored { block, slot } => write!(f, "block {block} stored from slot {slot}"),
            Self::Finished => f.write_str("the end of the copy"),
            Self::Failed { .. } => f.write_str("a failure"),
        }
    }
}

/// The description of a slot's region.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RegionDescription([u8; RemoteMemory::BYTES]);

impl From<RemoteMemory> for RegionDescription {
    fn from(memory: RemoteMemory) -> Self {
        Self(memory.to_bytes())
    }
}

impl From<RegionDescription> for RemoteMemory {
    fn from(slot: RegionDescription) -> Self {
        Self::from_bytes(&slot.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_messages_fit() {
        for byte in [1, b'a', 0xff] {
            let path = ServedPath::from(vec![byte; super::super::path::LONGEST]);
            let request = ClientRequest::Put { path, size: u64::MAX, mode: u32::MAX };
            let longest = serde_json::to_vec(&NumberedRequest { number: u64::MAX, request }).unwrap();
            assert!(longest.len() <= LINE, "{}", longest.len());
        }
        let slot = RegionDescription([u8::MAX; RemoteMemory::BYTES]);
        let reply = ServerReply::Opened { size: u64::MAX, mode: u32::MAX, held: u64::MAX, slots: vec![slot; SLOTS] };
        let opened = NumberedReply { number: u64::MAX, reply };
        let bytes = serde_json::to_vec(&opened).unwrap();
        assert!(bytes.len() <= LINE, "{}", bytes.len());
        assert_eq!(serde_json::from_slice::<NumberedReply>(&bytes).unwrap(), opened);
        let memory = RemoteMemory { key: u64::MAX, address: 1 << 46, len: 1 << 20 };
        assert_eq!(RemoteMemory::from(RegionDescription::from(memory)), memory);
    }

    #[test]
    fn reply_matches_only_its_request() {
        let digest = [0; 32];
        let fill = ClientRequest::Fill { block: 1, slot: 2 };
        assert!(ServerReply::Filled { block: 1, slot: 2, digest }.answers(&fill));
        for other in [
            ServerReply::Filled { block: 2, slot: 2, digest },
            ServerReply::Filled { block: 1, slot: 1, digest },
            ServerReply::Stored { block: 1, slot: 2 },
            ServerReply::Finished,
            ServerReply::Welcome { protocol: PROTOCOL },
        ] {
            assert!(!other.answers(&fill), "{other:?}");
        }
        assert!(ServerReply::Failed { why: String::new(), again: false }.answers(&fill));
    }
}
