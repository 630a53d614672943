//! Ranges of addresses. They are half open, never empty, and never extend past the end of the address space.

use std::fmt;

/// The addresses `start..end` of this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    start: u64,
    end: u64,
}

/// The error for an invalid range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The range contains no byte.
    #[error("cannot register a range of 0 bytes at {0:#x}; pass at least one byte")]
    Empty(u64),
    /// The end of the range, which is the address after the last, exceeds `u64::MAX`.
    #[error("{length} bytes at {address:#x} exceed the address space")]
    Wraps {
        /// The start address.
        address: u64,
        /// The length in bytes.
        length: u64,
    },
}

impl RangeError {
    /// Returns the positive errno that corresponds to the error in C.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        libc::EINVAL
    }
}

impl Range {
    /// All addresses except `u64::MAX`, which no range can contain.
    pub const ALL: Self = Self { start: 0, end: u64::MAX };

    /// Creates a range of `length` bytes from `address`.
    ///
    /// # Errors
    /// [`RangeError::Empty`] if `length` is 0, [`RangeError::Wraps`] if the end of the range exceeds `u64::MAX`.
    #[inline]
    pub const fn new(address: u64, length: u64) -> Result<Self, RangeError> {
        if length == 0 {
            return Err(RangeError::Empty(address));
        }
        match address.checked_add(length) {
            Some(end) => Ok(Self { start: address, end }),
            None => Err(RangeError::Wraps { address, length }),
        }
    }

    /// Creates the range `start..end`. Returns `None` if that range is empty.
    #[must_use]
    pub fn between(start: u64, end: u64) -> Option<Self> {
        (start < end).then_some(Self { start, end })
    }

    /// Returns the range that these values occupy now.
    ///
    /// # Errors
    /// [`RangeError::Empty`] for an empty slice.
    pub fn of<T>(values: &[T]) -> Result<Self, RangeError> {
        Self::new(values.as_ptr().addr() as u64, size_of_val(values) as u64)
    }

    /// Returns the first address.
    #[inline]
    #[must_use]
    pub fn start(self) -> u64 {
        self.start
    }

    /// Returns the address after the last.
    #[inline]
    #[must_use]
    pub fn end(self) -> u64 {
        self.end
    }

    /// Returns the length in bytes, at least one.
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    #[inline]
    #[must_use]
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Returns whether this range contains all of `other`.
    #[inline]
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns whether the ranges have at least one address in common.
    #[inline]
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Returns the smallest range that contains both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// Returns the whole pages that contain these bytes. A registration pins these pages.
    #[must_use]
    pub fn pages(self) -> Self {
        let page = page_size();
        let end = self.end.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        Self { start: self.start - self.start % page, end }
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

/// Returns the size of a page in bytes.
#[inline]
#[must_use]
pub fn page_size() -> u64 {
    // On architectures with only one page size, it is a constant, because a miss would wait for a load of it.
    if cfg!(target_arch = "x86_64") { 4096 } else { rustix::param::page_size() as u64 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn range_must_be_nonempty_and_not_wrap() {
        assert_eq!(Range::new(5, 0), Err(RangeError::Empty(5)));
        assert_eq!(Range::new(u64::MAX, 2), Err(RangeError::Wraps { address: u64::MAX, length: 2 }));
        assert_eq!(Range::new(4, 6).map(|range| (range.start(), range.end(), range.len())), Ok((4, 10, 6)));
        assert_eq!(Range::of::<u64>(&[]).map(Range::len).unwrap_err().to_string().split(' ').nth(5), Some("0"));
        assert_eq!(Range::of(&[1_u32, 2]).map(Range::len), Ok(8));
    }

    #[test]
    fn page_size_matches_the_kernel() {
        assert_eq!(page_size(), rustix::param::page_size() as u64);
    }

    #[test]
    fn pages_cover_the_range() {
        let page = page_size();
        let of = |start, len| Range::new(start, len).expect("a range").pages();
        assert_eq!(of(page + 1, 1), of(page, page));
        assert_eq!(of(2 * page - 1, 2), of(page, 2 * page));
        assert_eq!(of(u64::MAX - 1, 1).end(), u64::MAX);
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let of = |start, len| Range::new(start, len).expect("a range");
        assert!(of(0, 10).overlaps(of(9, 1)));
        assert!(!of(0, 10).overlaps(of(10, 1)));
        assert!(of(0, 10).contains(of(0, 10)));
        assert!(!of(0, 10).contains(of(5, 6)));
        assert_eq!(of(3, 1).union(of(8, 2)), of(3, 7));
    }
}
