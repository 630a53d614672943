//! The contents of messages. They make lost, repeated, swapped and torn messages detectable.
//!
//! Message `index` of a round consists of 64-bit words that increase by an odd constant from a start value. The start
//! value depends on the round, the index and the direction, so no two messages of a run have the same word at the same
//! offset. The contents are generated and checked at memory bandwidth.

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const INDEX: u64 = 0xd134_2543_de82_ef95;
const ROUND: u64 = 0xbf58_476d_1ce4_e5b9;

/// The size of the stack buffer for a message that is not a slice.
const CHUNK: usize = 4096;

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageDirection {
    /// From the measuring process to the other.
    There,
    /// From the other process to the measuring one.
    Back,
}

/// How much of a message is written or checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CheckedPart {
    /// Nothing.
    Nothing,
    /// The first and the last 8 bytes. A timed round cannot check more without affecting the result.
    Ends,
    /// The whole message.
    Whole,
}

/// The content of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    start: u64,
    index: u64,
    part: CheckedPart,
}

impl Content {
    /// Makes the content of message `index` of round `round` in direction `way`. `part` is the part that is written or
    /// checked.
    #[inline]
    pub(crate) const fn new(round: u64, index: u64, way: MessageDirection, part: CheckedPart) -> Self {
        let start = round.wrapping_mul(ROUND).wrapping_add(index.wrapping_mul(INDEX)) ^ (way as u64);
        Self { start, index, part }
    }

    /// Returns the word at byte `offset`, a multiple of 8.
    #[inline]
    const fn word(self, offset: usize) -> [u8; 8] {
        self.start.wrapping_add(STEP.wrapping_mul((offset / 8) as u64)).to_le_bytes()
    }

    /// Writes the content to `bytes`.
    #[inline]
    pub(crate) fn fill(self, bytes: &mut [u8]) {
        if self.part == CheckedPart::Nothing {
            return;
        }
        if let Ok(bytes) = <&mut [u8; 8]>::try_from(&mut *bytes) {
            *bytes = self.word(0);
        } else if self.part == CheckedPart::Whole {
            self.fill_whole(bytes);
        } else {
            let (first, last) = ends(bytes.len());
            bytes[..first].copy_from_slice(&self.word(0)[..first]);
            let rest = bytes.len() - last;
            bytes[last..].copy_from_slice(&self.word(last)[..rest]);
        }
    }

    fn fill_whole(self, bytes: &mut [u8]) {
        let mut word = self.start;
        let mut words = bytes.chunks_exact_mut(8);
        for chunk in &mut words {
            chunk.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(STEP);
        }
        let rest = words.into_remainder();
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    }

    /// Compares `bytes` with the content.
    #[inline]
    pub(crate) fn check(self, bytes: &[u8]) -> Result<()> {
        let wrong = match self.part {
            CheckedPart::Nothing => None,
            CheckedPart::Whole => self.first_difference(bytes),
            CheckedPart::Ends => {
                let (first, last) = ends(bytes.len());
                if bytes[..first] != self.word(0)[..first] {
                    Some(0)
                } else if bytes[last..] != self.word(last)[..bytes.len() - last] {
                    Some(last)
                } else {
                    None
                }
            }
        };
        match wrong {
            None => Ok(()),
            Some(at) => Err(self.complaint(at, bytes.len())),
        }
    }

    /// Writes the content of a message of `len` bytes that is not a slice. Calls `put` with offsets and bytes.
    #[inline]
    pub(crate) fn write_to(self, len: usize, mut put: impl FnMut(usize, &[u8])) {
        match self.part {
            CheckedPart::Nothing => {}
            CheckedPart::Ends => {
                let (first, last) = ends(len);
                put(0, &self.word(0)[..first]);
                if last > 0 {
                    put(last, &self.word(last)[..len - last]);
                }
            }
            CheckedPart::Whole => {
                let mut chunk = [0; CHUNK];
                for at in (0..len).step_by(CHUNK) {
                    let chunk = &mut chunk[..CHUNK.min(len - at)];
                    self.from(at).fill_whole(chunk);
                    put(at, chunk);
                }
            }
        }
    }

    /// Compares a message of `len` bytes that is not a slice with the content. `get` copies the bytes at an offset.
    #[inline]
    pub(crate) fn check_from(self, len: usize, mut get: impl FnMut(usize, &mut [u8])) -> Result<()> {
        match self.part {
            CheckedPart::Nothing => {}
            CheckedPart::Ends => {
                let (first, last) = ends(len);
                for (at, len) in [(0, first), (last, len - last)] {
                    let mut word = [0; 8];
                    get(at, &mut word[..len]);
                    // Compare a whole word with one instruction, because this runs for every message of a stream.
                    let wanted = self.word(at);
                    let same = if len == 8 { word == wanted } else { word[..len] == wanted[..len] };
                    if !same {
                        return Err(self.complaint(at, len));
                    }
                }
            }
            CheckedPart::Whole => {
                let mut chunk = [0; CHUNK];
                for at in (0..len).step_by(CHUNK) {
                    let chunk = &mut chunk[..CHUNK.min(len - at)];
                    get(at, chunk);
                    if let Some(difference) = self.from(at).first_difference(chunk) {
                        return Err(self.complaint(at + difference, len));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the content from byte `offset`, a multiple of 8.
    const fn from(self, offset: usize) -> Self {
        Self { start: self.start.wrapping_add(STEP.wrapping_mul((offset / 8) as u64)), ..self }
    }

    fn first_difference(self, bytes: &[u8]) -> Option<usize> {
        let mut word = self.start;
        for (index, chunk) in bytes.chunks(8).enumerate() {
            if *chunk != word.to_le_bytes()[..chunk.len()] {
                return Some(index * 8);
            }
            word = word.wrapping_add(STEP);
        }
        None
    }

    #[cold]
    fn complaint(self, at: usize, len: usize) -> Failure {
        Failure::Data(format!("message {} of {len} bytes differs from what was sent at byte {at}", self.index))
    }
}

/// Returns the length of the first word and the offset of the last in a message of `len` bytes.
#[inline]
fn ends(len: usize) -> (usize, usize) {
    (len.min(8), len.saturating_sub(1) / 8 * 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_content_passes_the_check_at_every_length() {
        for len in [1, 7, 8, 9, 15, 16, 17, 64, 100, 4096] {
            for (fill, check) in [
                (CheckedPart::Whole, CheckedPart::Whole),
                (CheckedPart::Whole, CheckedPart::Ends),
                (CheckedPart::Ends, CheckedPart::Ends),
            ] {
                let mut bytes = vec![0; len];
                Content::new(3, 5, MessageDirection::There, fill).fill(&mut bytes);
                Content::new(3, 5, MessageDirection::There, check).check(&bytes).unwrap();
            }
        }
    }

    #[test]
    fn content_of_another_round_message_or_direction_is_detected() {
        let mut bytes = [0; 24];
        Content::new(3, 5, MessageDirection::There, CheckedPart::Whole).fill(&mut bytes);
        for part in [CheckedPart::Ends, CheckedPart::Whole] {
            for other in [
                Content::new(4, 5, MessageDirection::There, part),
                Content::new(3, 6, MessageDirection::There, part),
                Content::new(3, 5, MessageDirection::Back, part),
            ] {
                assert!(matches!(other.check(&bytes), Err(Failure::Data(_))));
            }
        }
    }

    #[test]
    fn raw_memory_gets_the_same_content_as_a_slice() {
        for len in [1, 8, 9, 4096, 4097, 10_000] {
            for part in [CheckedPart::Ends, CheckedPart::Whole] {
                let content = Content::new(9, 1, MessageDirection::Back, part);
                let (mut slice, mut other) = (vec![0; len], vec![0; len]);
                content.fill(&mut slice);
                content.write_to(len, |at, bytes| other[at..at + bytes.len()].copy_from_slice(bytes));
                assert_eq!(slice, other);
                let get = |from: &[u8], at: usize, to: &mut [u8]| to.copy_from_slice(&from[at..at + to.len()]);
                content.check_from(len, |at, to| get(&other, at, to)).unwrap();
                other[len - 1] ^= 1;
                content.check_from(len, |at, to| get(&other, at, to)).unwrap_err();
            }
        }
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let content = Content::new(1, 2, MessageDirection::Back, CheckedPart::Whole);
        for at in 0..43 {
            let mut bytes = [0; 43];
            content.fill(&mut bytes);
            bytes[at] ^= 1;
            let error = content.check(&bytes).unwrap_err().to_string();
            assert!(error.contains(&format!("at byte {}", at / 8 * 8)), "{error}");
        }
    }
}
