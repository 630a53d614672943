//! Memory that other threads or processes may read or write at the same time as this process.
//!
//! Two rules make accesses to such memory valid:
//!
//! 1. Such memory is never a `&[u8]` or `&mut [u8]`: a reference guarantees that there are no other writers, and peers
//!    do not keep this guarantee. It is a [`Segment`] (memory of this process, lent by the caller that posted an
//!    operation) or a [`View`] (received bytes). Both only copy bytes.
//! 2. Data is checked after it was copied, never before, because the original may change in between. Values that are
//!    checked are copied by volatile reads (`View::read`), which a compiler must not repeat. Payloads are copied by
//!    ordinary copies. These do not guarantee an order, or the value of a byte that changes during the copy. The bytes
//!    are copied to private memory, and the original is not read again.
//!
//! A segment has no lifetime, so only percale's crates copy through a segment, and only on behalf of an operation or a
//! region. The owner of the operation or region guarantees the memory. Programs only pass segments to operations to
//! identify memory, and access this memory by other means.
//!
//! Words that synchronize two processes are atomics and belong to the module of their protocol (such as
//! `transport::shm`).
//!
//! `segment` is memory of this process, `view` is received bytes, `copy` copies bytes, and `vectors` contains copies
//! that the kernel makes for a socket.

mod copy;
mod segment;
mod vectors;
mod view;

pub use copy::copy_short;
pub use segment::{IOV_LIMIT, Segment, SegmentExt, Segments, SegmentsExt};
pub use vectors::SegmentsSocketExt;
pub use view::{View, ViewExt};

#[cfg(test)]
#[expect(unsafe_code, reason = "lends the tests' own memory")]
mod tests {
    use super::*;

    fn lend(bytes: &mut [u8]) -> Segment {
        // SAFETY: the tests keep the slice alive and do not access it while the segment is used.
        unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    #[test]
    fn segments_gather_and_scatter_as_if_end_to_end() {
        let (mut a, mut b, mut c) = ([1u8, 2, 3], [4u8], [5u8, 6, 7, 8]);
        let all = Segments::new(&[lend(&mut a), lend(&mut b), lend(&mut c)]).unwrap();
        assert_eq!(all.to_vec(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(all.slice(2, 4).to_vec(), [3, 4, 5, 6]);
        assert_eq!(all.slice(7, 9).to_vec(), [8]);
        assert!(all.slice(8, 1).is_empty());
        assert_eq!(View::of(&[9, 9, 9]).copy_into(&all, 2), 3);
        assert_eq!(all.to_vec(), [1, 2, 9, 9, 9, 6, 7, 8]);
        let (mut d, mut e) = ([0u8; 5], [0u8; 9]);
        let other = Segments::new(&[lend(&mut d), lend(&mut e)]).unwrap();
        assert_eq!(other.copy_from(&all), 8);
        assert_eq!(other.to_vec()[..9], [1, 2, 9, 9, 9, 6, 7, 8, 0]);
    }

    #[test]
    fn too_many_segments_are_refused() {
        assert!(Segments::new(&[Segment::EMPTY; IOV_LIMIT + 1]).is_none());
    }

    #[test]
    fn a_view_reads_values_only_within_itself() {
        let view = View::of(&[1, 0, 0, 0, 2]);
        assert_eq!(view.read::<u32>(0), Some(1));
        assert_eq!(view.read::<[u8; 5]>(0), Some([1, 0, 0, 0, 2]));
        assert_eq!(
            View::of(&[3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]).read::<[u8; 10]>(1),
            Some([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
        );
        assert_eq!(view.read::<u32>(2), None);
        assert_eq!(view.read::<u64>(usize::MAX), None);
    }
}
