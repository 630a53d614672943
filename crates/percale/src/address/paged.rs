//! A growing table of 64-bit words that is read without a lock.
//!
//! Words live in pages of 512, pages in directories of 1, 2, 4, … pages. Nothing is ever moved or freed before the
//! table is, so a reader needs no more than the loads that lead to its word, and a table takes the memory of the pages
//! that it uses, to the page. Every word starts as 0; a word whose page does not exist reads as 0.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words in a page, which is then 4 KiB.
const PAGE: usize = 512;
/// Enough for almost 2^33 words.
const DIRECTORIES: usize = 24;
/// Words that a table can have.
pub(super) const LIMIT: usize = ((1 << DIRECTORIES) - 1) * PAGE;

type Page = Box<[AtomicU64; PAGE]>;

/// The table.
pub(super) struct Paged {
    directories: [OnceLock<Box<[OnceLock<Page>]>>; DIRECTORIES],
}

impl std::fmt::Debug for Paged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Paged").finish_non_exhaustive()
    }
}

/// Which directory, and which place in it, has a page.
fn place(page: usize) -> (usize, usize) {
    let directory = (page + 1).ilog2() as usize;
    (directory, page + 1 - (1 << directory))
}

impl Paged {
    pub(super) fn new() -> Self {
        Self { directories: [const { OnceLock::new() }; DIRECTORIES] }
    }

    /// One page, if it exists.
    fn page(&self, page: usize) -> Option<&[AtomicU64; PAGE]> {
        let (directory, at) = place(page);
        self.directories.get(directory)?.get()?[at].get().map(|page| &**page)
    }

    /// The word at `index`, if its page exists.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&AtomicU64> {
        self.page(index / PAGE).map(|page| &page[index % PAGE])
    }

    /// The word at `index`, whose page is made if it does not exist; `None` past the limit.
    pub(super) fn make(&self, index: usize) -> Option<&AtomicU64> {
        let (directory, at) = place(index / PAGE);
        let pages = self
            .directories
            .get(directory)?
            .get_or_init(|| std::iter::repeat_with(OnceLock::new).take(1 << directory).collect());
        let page = pages[at].get_or_init(|| Box::new([const { AtomicU64::new(0) }; PAGE]));
        Some(&page[index % PAGE])
    }

    /// Calls `f` with the index and value of each of the first `len` words until it finds something.
    pub(super) fn find<R>(&self, len: usize, mut f: impl FnMut(usize, u64) -> Option<R>) -> Option<R> {
        for start in (0..len).step_by(PAGE) {
            let Some(page) = self.page(start / PAGE) else { continue };
            for (at, word) in page.iter().enumerate().take(len - start) {
                if let Some(found) = f(start + at, word.load(Ordering::Acquire)) {
                    return Some(found);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(table.find(5000, |index, word| (word == 4000).then_some(index)), Some(3999));
        assert_eq!(table.find(100, |index, word| (word == 4000).then_some(index)), None);
        assert!(table.get(usize::MAX).is_none());
        assert!(table.make(LIMIT).is_none());
    }

    #[test]
    fn pages_fill_the_directories_without_gaps() {
        let places: Vec<_> = (0..7).map(place).collect();
        assert_eq!(places, [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3)]);
    }
}
