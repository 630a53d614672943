//! A table of rows that never move. They are allocated when they are needed, and live as long as the table.

use std::sync::OnceLock;

/// The binary logarithm of the number of rows in the first page. Each further page has twice as many rows as the one
/// before it.
const FIRST: u32 = if cfg!(loom) { 1 } else { 8 };
/// The number of pages, sufficient for 2^24 rows.
const PAGES: usize = 18;

/// A table of rows that are allocated when they are needed and never move.
#[derive(Debug)]
pub(super) struct Rows<R>([OnceLock<Box<[R]>>; PAGES]);

impl<R> Default for Rows<R> {
    #[inline]
    fn default() -> Self {
        Self([const { OnceLock::new() }; PAGES])
    }
}

/// Returns the page of a row and its index there, or `None` if the number is too large.
#[inline]
const fn place(number: u32) -> Option<(usize, usize)> {
    let Some(shifted) = number.checked_add(1 << FIRST) else { return None };
    let page = shifted.ilog2();
    Some(((page - FIRST) as usize, (shifted - (1 << page)) as usize))
}

impl<R: Default> Rows<R> {
    /// Returns a row, if its page is allocated.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&R> {
        let (page, at) = place(number)?;
        self.0.get(page)?.get()?.get(at)
    }

    /// Returns a row, and allocates its page if necessary. Returns `None` for numbers beyond the last row.
    #[inline]
    pub(super) fn make(&self, number: u32) -> Option<&R> {
        let (page, at) = place(number)?;
        let rows = 1_usize << (page as u32 + FIRST);
        self.0.get(page)?.get_or_init(|| (0..rows).map(|_| R::default()).collect()).get(at)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rows_have_distinct_positions() {
        let mut seen = std::collections::HashSet::new();
        for number in (0..5000).chain([1 << 20, (1 << 24) - 1]) {
            let (page, at) = place(number).unwrap();
            assert!(page < PAGES && at < 1 << (page as u32 + FIRST) && seen.insert((page, at)));
        }
        assert!(Rows::<u8>::default().make(1 << 26).is_none() && Rows::<u8>::default().get(u32::MAX).is_none());
    }
}
