//! Ranges of indices that a caller gives in any of Rust's forms.

use std::ops::{Bound, RangeBounds};

/// Returns the start and the end of a range within `len` elements. An open start is 0, and an open end is `len`.
///
/// # Errors
/// Returns the start and the end, clipped to 64 bits, if the start is after the end or the end is after `len`.
#[inline]
pub fn span(range: &impl RangeBounds<u64>, len: u64) -> Result<(u64, u64), (u64, u64)> {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end)),
        _ => Err((start.unwrap_or(u64::MAX), end.unwrap_or(u64::MAX))),
    }
}

/// Like [`span`], for ranges of `usize`.
///
/// # Errors
/// As for [`span`].
#[inline]
pub fn span_of_memory(range: &impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), (usize, usize)> {
    let wide = |bound: Bound<&usize>| bound.map(|at| *at as u64);
    let both = |(start, end): (u64, u64)| (start as usize, end as usize);
    span(&(wide(range.start_bound()), wide(range.end_bound())), len as u64).map(both).map_err(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_range_is_checked() {
        assert_eq!(span(&(..), 10), Ok((0, 10)));
        assert_eq!(span(&(3..), 10), Ok((3, 10)));
        assert_eq!(span(&(..=9), 10), Ok((0, 10)));
        assert_eq!(span(&(10..10), 10), Ok((10, 10)));
        assert_eq!(span(&(11..), 10), Err((11, 10)));
        assert_eq!(span(&(0..=10), 10), Err((0, 11)));
        assert_eq!(span(&(0..=u64::MAX), u64::MAX), Err((0, u64::MAX)));
        assert_eq!(span(&(Bound::Excluded(u64::MAX), Bound::Unbounded), u64::MAX), Err((u64::MAX, u64::MAX)));
        #[expect(clippy::reversed_empty_ranges, reason = "it is what is tested")]
        let reversed = 5..4;
        assert_eq!(span(&reversed, 10), Err((5, 4)));
        assert_eq!(span_of_memory(&(2..=3), 4), Ok((2, 4)));
        assert_eq!(span_of_memory(&(..usize::MAX), 4), Err((0, usize::MAX)));
    }
}
