//! A growing table of 64-bit words that is read without a lock.
//!
//! Words are stored in pieces, each with twice as many words as the previous one. The first has room for the expected
//! number of words, but at least [`PAGE`] and at most [`MOST_AT_FIRST`], and its words are found without searching. No
//! piece is moved or freed before the table is, so a reader needs two loads to find its word. The system provides the
//! memory of a piece zeroed, page by page when it is first written, so a table takes only the memory of the pages that
//! it uses. Every word starts as 0.

use std::sync::atomic::AtomicU64;

use crate::local_memory::words::OnceWords;

/// The number of words of a *page*, the unit in which the table is searched: 4 KiB.
pub(super) const PAGE: usize = 512;
/// The number of pieces, enough for almost 2^33 words.
const PIECES: usize = 24;
/// The maximum number of words of a table.
pub(super) const LIMIT: usize = ((1 << PIECES) - 1) * PAGE;
/// The maximum number of words of the first piece. A piece of this size takes 128 MiB of address space, but not of
/// memory.
const MOST_AT_FIRST: usize = 1 << 24;

/// The table.
pub(super) struct Paged {
    /// The number of words of the first piece, a power of two.
    first: usize,
    pieces: [OnceWords; PIECES],
}

impl std::fmt::Debug for Paged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Paged").finish_non_exhaustive()
    }
}

impl Paged {
    /// Creates a table for the expected number of words, or more.
    pub(super) fn new(expected: usize) -> Self {
        let first = expected.clamp(PAGE, MOST_AT_FIRST).next_power_of_two();
        Self { first, pieces: std::array::from_fn(|piece| OnceWords::new(first << piece)) }
    }

    /// Returns the piece that contains a word, and the word's position in the piece.
    #[inline]
    const fn place(&self, index: usize) -> (usize, usize) {
        let shifted = index.saturating_add(self.first);
        let piece = shifted.ilog2() - self.first.trailing_zeros();
        (piece as usize, shifted - (self.first << piece))
    }

    /// Returns the words of the first piece, or an empty slice before it exists.
    #[inline]
    pub(super) fn near(&self) -> &[AtomicU64] {
        self.pieces[0].get()
    }

    /// Returns the words of one page if their piece exists.
    pub(super) fn page(&self, page: usize) -> Option<&[AtomicU64]> {
        let (piece, at) = self.place(page * PAGE);
        self.pieces.get(piece)?.get().get(at..at + PAGE)
    }

    /// Returns the word at `index` if its piece exists.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&AtomicU64> {
        let (piece, at) = self.place(index);
        self.pieces.get(piece)?.get().get(at)
    }

    /// Returns the word at `index`. Creates its piece if it does not exist. Returns `None` beyond the limit, or if
    /// there is no memory.
    #[inline]
    pub(super) fn make(&self, index: usize) -> Option<&AtomicU64> {
        self.get(index).or_else(|| self.make_piece(index))
    }

    fn make_piece(&self, index: usize) -> Option<&AtomicU64> {
        let (piece, at) = self.place(index);
        self.pieces.get(piece)?.make()?.get(at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn each_index_has_a_distinct_word() {
        let table = Paged::new(0);
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
        let table = Paged::new(0);
        let places: Vec<_> = [0, 511, 512, 1535, 1536, LIMIT - 1].map(|index| table.place(index)).into();
        assert_eq!(places, [(0, 0), (0, 511), (1, 0), (1, 1023), (2, 0), (PIECES - 1, (PAGE << (PIECES - 1)) - 1)]);
        let table = Paged::new(0);
        table.make(600).unwrap();
        assert!((0..4).map(|page| table.page(page).is_some()).eq([false, true, true, false]));
    }

    #[test]
    fn first_piece_holds_the_expected_number_of_words() {
        let table = Paged::new(3000);
        assert_eq!(
            [0, 4095, 4096, 12_287, 12_288].map(|at| table.place(at)),
            [(0, 0), (0, 4095), (1, 0), (1, 8191), (2, 0)]
        );
        assert!(table.near().is_empty());
        table.make(5).unwrap().store(7, Ordering::Relaxed);
        table.make(4096).unwrap().store(8, Ordering::Relaxed);
        assert_eq!(table.near()[5].load(Ordering::Relaxed), 7);
        assert_eq!(table.near().len(), 4096);
        assert_eq!(table.get(4096).unwrap().load(Ordering::Relaxed), 8);
        assert_eq!(Paged::new(usize::MAX).first, MOST_AT_FIRST);
    }
}
