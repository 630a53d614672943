//! A growing table of 64-bit words that is read without a lock.
//!
//! Words live in pieces of 512, 1024, 2048, … words. Nothing is ever moved or freed before the table is, so a reader needs
//! two loads to its word. A piece is memory that the system gives zeroed and page by page as it is first written, so a table
//! takes the memory of the pages that it uses. Every word starts as 0.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use zerocopy::FromZeros;

/// Words of the first piece, and of a *page*: what is looked through at a time. 4 KiB.
pub(super) const PAGE: usize = 512;
/// Enough for almost 2^33 words.
const PIECES: usize = 24;
/// Words that a table can have.
pub(super) const LIMIT: usize = ((1 << PIECES) - 1) * PAGE;

/// The table.
pub(super) struct Paged {
    pieces: [OnceLock<Box<[AtomicU64]>>; PIECES],
}

impl std::fmt::Debug for Paged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Paged").finish_non_exhaustive()
    }
}

/// Which piece, and which place in it, has a word.
#[inline]
const fn place(index: usize) -> (usize, usize) {
    let shifted = index.saturating_add(PAGE);
    let piece = shifted.ilog2() - PAGE.ilog2();
    (piece as usize, shifted - (PAGE << piece))
}

impl Paged {
    pub(super) fn new() -> Self {
        Self { pieces: [const { OnceLock::new() }; PIECES] }
    }

    /// The words of one page, if their piece exists.
    pub(super) fn page(&self, page: usize) -> Option<&[AtomicU64]> {
        let (piece, at) = place(page * PAGE);
        self.pieces.get(piece)?.get()?.get(at..at + PAGE)
    }

    /// The word at `index`, if its piece exists.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&AtomicU64> {
        let (piece, at) = place(index);
        self.pieces.get(piece)?.get()?.get(at)
    }

    /// The word at `index`, whose piece is made if it does not exist; `None` past the limit, or if there is no memory.
    #[inline]
    pub(super) fn make(&self, index: usize) -> Option<&AtomicU64> {
        self.get(index).or_else(|| self.make_piece(index))
    }

    #[cold]
    fn make_piece(&self, index: usize) -> Option<&AtomicU64> {
        let (piece, at) = place(index);
        let cell = self.pieces.get(piece)?;
        if cell.get().is_none() {
            // If somebody else was first, theirs counts.
            let _theirs = cell.set(<[AtomicU64]>::new_box_zeroed_with_elems(PAGE << piece).ok()?);
        }
        cell.get()?.get(at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn each_index_has_a_word_of_its_own() {
        let table = Paged::new();
        assert!(table.get(0).is_none());
        for index in 0..5000u64 {
            let word = table.make(usize::try_from(index).unwrap()).unwrap();
            assert_eq!(word.swap(index + 1, Ordering::Relaxed), 0);
        }
        assert!((0..5000).all(|index| table.get(index).unwrap().load(Ordering::Relaxed) == index as u64 + 1));
        assert!(table.get(usize::MAX).is_none());
        assert!(table.make(LIMIT).is_none());
    }

    #[test]
    fn words_fill_the_pieces_without_gaps() {
        let places: Vec<_> = [0, 511, 512, 1535, 1536, LIMIT - 1].map(place).into();
        assert_eq!(places, [(0, 0), (0, 511), (1, 0), (1, 1023), (2, 0), (PIECES - 1, (PAGE << (PIECES - 1)) - 1)]);
        let table = Paged::new();
        table.make(600).unwrap();
        assert!((0..4).map(|page| table.page(page).is_some()).eq([false, true, true, false]));
    }
}
