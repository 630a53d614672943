//! What the messages contain, so that a lost, repeated, swapped or torn one is noticed.
//!
//! Message `index` of a round consists of 64-bit words that count up by an odd constant from a start that depends on
//! the round, the index and the direction: no two messages of a run share a word in the same place. Making and
//! checking it runs at the speed of memory.

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const INDEX: u64 = 0xd134_2543_de82_ef95;
const ROUND: u64 = 0xbf58_476d_1ce4_e5b9;

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the process that measures.
    There,
    /// To it.
    Back,
}

/// How much of a message is written or checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// Nothing.
    Nothing,
    /// The first and the last 8 bytes: all that is affordable in a timed round.
    Ends,
    /// All of it.
    Whole,
}

/// The content of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    start: u64,
    index: u64,
    part: Part,
}

impl Content {
    /// Of message `index` of round `round`, going `way`; `part` of it is written or checked.
    #[inline]
    pub(crate) const fn new(round: u64, index: u64, way: Way, part: Part) -> Self {
        let start = round.wrapping_mul(ROUND).wrapping_add(index.wrapping_mul(INDEX)) ^ (way as u64);
        Self { start, index, part }
    }

    /// The word at byte `offset`, a multiple of 8.
    #[inline]
    const fn word(self, offset: usize) -> [u8; 8] {
        self.start.wrapping_add(STEP.wrapping_mul((offset / 8) as u64)).to_le_bytes()
    }

    /// Writes it to `bytes`.
    #[inline]
    pub(crate) fn fill(self, bytes: &mut [u8]) {
        if self.part == Part::Nothing {
            return;
        }
        if let Ok(bytes) = <&mut [u8; 8]>::try_from(&mut *bytes) {
            *bytes = self.word(0);
        } else if self.part == Part::Whole {
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

    /// Compares `bytes` with it.
    #[inline]
    pub(crate) fn check(self, bytes: &[u8]) -> Result<()> {
        let wrong = match self.part {
            Part::Nothing => None,
            Part::Whole => self.first_difference(bytes),
            Part::Ends => {
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

/// The length of the first word and the offset of the last, in a message of `len` bytes.
#[inline]
fn ends(len: usize) -> (usize, usize) {
    (len.min(8), len.saturating_sub(1) / 8 * 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_checks_at_every_length() {
        for len in [1, 7, 8, 9, 15, 16, 17, 64, 100, 4096] {
            for (fill, check) in [(Part::Whole, Part::Whole), (Part::Whole, Part::Ends), (Part::Ends, Part::Ends)] {
                let mut bytes = vec![0; len];
                Content::new(3, 5, Way::There, fill).fill(&mut bytes);
                Content::new(3, 5, Way::There, check).check(&bytes).unwrap();
            }
        }
    }

    #[test]
    fn another_round_message_or_way_is_noticed() {
        let mut bytes = [0; 24];
        Content::new(3, 5, Way::There, Part::Whole).fill(&mut bytes);
        for part in [Part::Ends, Part::Whole] {
            for other in [
                Content::new(4, 5, Way::There, part),
                Content::new(3, 6, Way::There, part),
                Content::new(3, 5, Way::Back, part),
            ] {
                assert!(matches!(other.check(&bytes), Err(Failure::Data(_))));
            }
        }
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let content = Content::new(1, 2, Way::Back, Part::Whole);
        for at in 0..43 {
            let mut bytes = [0; 43];
            content.fill(&mut bytes);
            bytes[at] ^= 1;
            let error = content.check(&bytes).unwrap_err().to_string();
            assert!(error.contains(&format!("at byte {}", at / 8 * 8)), "{error}");
        }
    }
}
