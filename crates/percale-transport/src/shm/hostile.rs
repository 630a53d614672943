//! Changes of the shared memory of a link that a correct peer does not make, for tests of misbehaving peers.

use std::os::fd::BorrowedFd;

use super::link::ShmLink;
use super::pair::{PairMemory, SharedWord};
use super::ring::ForgedLine;
use crate::wire::head::{Flags, Head};

impl ShmLink {
    /// Returns all words of the control page, as seen from this side.
    pub fn shared_words(&mut self) -> Vec<SharedWord> {
        PairMemory::words(self.forged_parts().side)
    }

    /// Writes a value to a word of the control page.
    pub fn overwrite(&mut self, word: &SharedWord, value: u64) {
        self.forged_parts().pair.overwrite(word, value);
    }

    /// Writes the next line of the outbound ring, or one of the lines before it.
    pub fn forge_line(&mut self, line: &ForgedLine, back: u64) {
        self.forged_parts().sender.forge(line, back);
    }

    /// Writes to the page of the peer's doorbell.
    pub fn overwrite_doorbell(&mut self, offset: usize, value: u32) {
        self.forged_parts().sender.doorbell().overwrite(offset, value);
    }

    /// Returns the event descriptor of the peer's doorbell.
    pub fn doorbell_event(&mut self) -> BorrowedFd<'_> {
        self.forged_parts().sender.doorbell().event()
    }

    /// Returns the socket over which descriptors are passed.
    pub fn control_socket(&mut self) -> BorrowedFd<'_> {
        self.forged_parts().transfers.control()
    }

    /// Writes to an entry of the key page that this side shares with its peer. Returns whether there is a page.
    pub fn forge_key_entry(&mut self, entry: u32, generation: u64) -> bool {
        self.forged_parts().direct.forge_entry(entry, generation)
    }
}

impl ForgedLine {
    /// Creates the line of a frame with this head and a payload that fits into the line.
    ///
    /// # Panics
    /// If the payload does not fit.
    pub fn of(head: &Head, payload: &[u8]) -> Self {
        let mut words = vec![head.tag];
        if head.flags.contains(Flags::DATA) {
            words.push(head.data);
        }
        if head.flags.contains(Flags::ID) {
            words.push(u64::from(head.id));
        }
        for piece in payload.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            words.push(u64::from_le_bytes(word));
        }
        assert!(words.len() <= 7, "the payload does not fit into the line");
        words.resize(7, 0);
        let mut body = [0; 7];
        body.copy_from_slice(&words);
        Self { kind: head.kind as u8, flags: head.flags.bits(), len: head.len, lap: 0, body }
    }
}
