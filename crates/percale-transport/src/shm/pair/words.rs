//! The words of the control page, which tests of misbehaving peers overwrite.

#![expect(unsafe_code, reason = "names words of shared memory; the block states its reason")]

use std::mem::offset_of;

use super::{
    Claims, ConsumerMarks, Control, CreditLine, DirectionState, PairMemory, ProducerMarks, PusherHalf, TransferHalf,
    TransferSlot,
};
use crate::local_memory::rundown::AnnouncementLine;
use crate::shm::ring::ConsumerProgress;
use crate::shm::sync::{AtomicU32, AtomicU64, Ordering};

/// A word of the memory that two endpoints share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedWord {
    /// The name of the word. It begins with "own" if the word belongs to the frames, pulls or accesses of the side that
    /// asked for it, and with "other" if it belongs to those of the other side.
    pub name: String,
    /// The position in the control page.
    offset: usize,
    /// Whether the word has 64 bits; otherwise it has 32.
    wide: bool,
}

impl PairMemory {
    /// Returns all words of the control page, as seen from `side`. Of the slots of each side, the first is included.
    pub(in crate::shm) fn words(side: usize) -> Vec<SharedWord> {
        let mut words = Vec::new();
        for (whose, side) in [("own", side), ("other", 1 - side)] {
            let mut add = |name: &str, offset: usize, wide: bool| {
                words.push(SharedWord { name: format!("{whose} {name}"), offset, wide });
            };
            let direction = offset_of!(Control, directions) + side * size_of::<DirectionState>();
            for (ring, at) in [("small", 0), ("large", 1)] {
                let progress = direction + offset_of!(DirectionState, credits) + offset_of!(CreditLine, 0);
                let progress = progress + at * size_of::<ConsumerProgress>();
                add(&format!("{ring} ring: consumed lines"), progress, true);
                add(&format!("{ring} ring: consumed bytes"), progress + size_of::<AtomicU64>(), true);
            }
            let (consumer, producer) =
                (direction + offset_of!(DirectionState, consumer), direction + offset_of!(DirectionState, producer));
            add("ring: cold", consumer + offset_of!(ConsumerMarks, cold), false);
            add("ring: barrier", consumer + offset_of!(ConsumerMarks, barrier), false);
            add("ring: unfenced", producer + offset_of!(ProducerMarks, unfenced), false);
            add("ring: wants room", producer + offset_of!(ProducerMarks, wants_room), false);
            let slot = offset_of!(Control, slots) + side * size_of::<[TransferSlot; super::SLOTS]>();
            let (puller, pusher) = (
                slot + offset_of!(TransferSlot, puller),
                slot + offset_of!(TransferSlot, pusher) + offset_of!(PusherHalf, 0),
            );
            add("pull: claimed chunks", slot + offset_of!(TransferSlot, claimed), true);
            add("pull: puller's bytes", puller + offset_of!(TransferHalf, done), true);
            add("pull: puller's state", puller + offset_of!(TransferHalf, state), false);
            add("pull: pusher's bytes", pusher + offset_of!(TransferHalf, done), true);
            add("pull: pusher's state", pusher + offset_of!(TransferHalf, state), false);
            // The line starts with its sequence, its manner and the permission of the target.
            let line = offset_of!(Control, announcements) + side * size_of::<AnnouncementLine>();
            add("accesses: sequence", line, true);
            add("accesses: manner", line + 8, false);
            add("accesses: may omit fences", line + 12, false);
            let claims = offset_of!(Control, claims) + side * size_of::<Claims>();
            add("long access: next chunk", claims + offset_of!(Claims, next), true);
            add("long access: finished chunks", claims + offset_of!(Claims, done), true);
            add("long access: failure", claims + offset_of!(Claims, failed), true);
            let gone = offset_of!(Control, gone) + side * size_of::<super::StoppedMark>();
            add("stopped mark", gone, false);
        }
        words
    }

    /// Writes a value to a word of the control page.
    pub(in crate::shm) fn overwrite(&self, word: &SharedWord, value: u64) {
        assert!(word.offset + 8 <= super::PAGE, "the word is in the control page");
        let at = self.mapping.as_ptr().wrapping_add(word.offset);
        if word.wide {
            // SAFETY: the word lies in the mapping, which lives as long as `self`, and is aligned: its offset is that
            // of a field of this type. All processes access it as an atomic.
            unsafe { &*at.cast::<AtomicU64>() }.store(value, Ordering::SeqCst);
        } else {
            // SAFETY: as above.
            unsafe { &*at.cast::<AtomicU32>() }.store(value as u32, Ordering::SeqCst);
        }
    }
}
