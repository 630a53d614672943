//! What client and server tell each other: tagged messages, a JSON object each. The bytes of files are not among them.
//!
//! The client greets; the server answers with [`Reply::Welcome`] once it has the client's address from the connection itself, and only
//! then takes requests, so that nobody is believed who he is. Then the client opens a file, may compare blocks that both sides have
//! ([`Request::Hash`]), has blocks put into slots and reads them, or writes them into slots and has them stored, and says that this was
//! all. A slot is a region of one block, the client's alone. Each request has one reply; requests are not ordered among themselves.

use percale::RemoteMemory;
use serde::{Deserialize, Serialize};

use super::blocks::Digest;

/// The version of this protocol.
pub(crate) const PROTOCOL: u32 = 2;

/// The tag of all its messages.
pub(crate) const TAG: u64 = 0x7065_7263_6669_6c65;

/// The longest message: a path of 4096 bytes, each written in six.
pub(crate) const LINE: usize = 32 << 10;

/// Slots of a client.
pub(crate) const SLOTS: usize = 4;

/// How many replies a client may be owed.
pub(crate) const OUTSTANDING: usize = 16;

/// What the client asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// I am here.
    Hello,
    /// Open this file to be read.
    Get { path: String },
    /// Open this file to be written: so many bytes, with these permissions.
    Put { path: String, size: u64, mode: u32 },
    /// What is the checksum of this block as you have it?
    Hash { block: u64 },
    /// Put this block into this slot.
    Fill { block: u64, slot: usize },
    /// This block is in this slot: store it.
    Store { block: u64, slot: usize, digest: Digest },
    /// That was all; the checksum of the whole file is this.
    Finish { digest: Digest },
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// To the greeting: I know who you are, and speak this version.
    Welcome { protocol: u32 },
    /// The file is open. Of one to be written, `held` bytes are there from an earlier attempt.
    Opened { size: u64, mode: u32, held: u64, slots: Vec<Slot> },
    /// The checksum of a block.
    Hashed { block: u64, digest: Digest },
    /// The block can be read from its slot.
    Filled { block: u64, slot: usize, digest: Digest },
    /// The block is stored, its slot free.
    Stored { block: u64, slot: usize },
    /// The checksums agree; what was written has its name.
    Finished,
    /// It did not work, or may not be. Ends the transfer.
    Failed { why: String },
}

/// The name of a region.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slot([u8; RemoteMemory::BYTES]);

impl From<RemoteMemory> for Slot {
    fn from(memory: RemoteMemory) -> Self {
        Self(memory.to_bytes())
    }
}

impl From<Slot> for RemoteMemory {
    fn from(slot: Slot) -> Self {
        Self::from_bytes(&slot.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_messages_fit() {
        let path = "\u{1}".repeat(4096);
        let longest = serde_json::to_vec(&Request::Put { path, size: u64::MAX, mode: u32::MAX }).unwrap();
        assert!(longest.len() <= LINE, "{}", longest.len());
        let slot = Slot::from(RemoteMemory { key: u64::MAX, address: u64::MAX, len: u64::MAX });
        let opened = Reply::Opened { size: u64::MAX, mode: u32::MAX, held: u64::MAX, slots: vec![slot; SLOTS] };
        let bytes = serde_json::to_vec(&opened).unwrap();
        assert!(bytes.len() <= LINE, "{}", bytes.len());
        assert_eq!(serde_json::from_slice::<Reply>(&bytes).unwrap(), opened);
        assert_eq!(RemoteMemory::from(slot).key, u64::MAX);
    }
}
