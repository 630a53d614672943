//! A posted operation together with its memory.
//!
//! An operation takes several forms while it waits for a connection or a counter, waits behind a fence, is offered to
//! the peer, or is executed in parts. [`Posted`] moves from one form to the next as a whole, so no form can lose the
//! memory that the work refers to. Memory that the application lent stays in place until the completion of the
//! operation is reported. For an injected operation, everything that the operation reads is copied to one buffer. This
//! buffer is freed with the value, in whichever form the operation ends.

use super::remote_work::{AtomicWork, RmaWork};
use super::work::{INJECT_LIMIT, SendWork};
use crate::local_memory::atomic::AtomicOp;
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::volatile::{Segments, SegmentsExt as _};

/// The memory that an operation refers to.
#[derive(Debug)]
enum PostedMemory {
    /// The application keeps the memory in place until the completion of the operation is reported.
    Lent,
    /// The operation reads this copy.
    Owned(#[expect(dead_code, reason = "the work refers to this memory, which is freed with it")] Buffer),
}

/// An operation and its memory. The copy of an injected operation can be accessed only through the work.
#[derive(Debug)]
pub(crate) struct Posted<W> {
    work: W,
    bytes: PostedMemory,
}

/// Work that can be injected.
pub(crate) trait Constant {
    /// Returns the segment lists that the operation reads.
    fn constant(&mut self) -> [Option<&mut Segments>; 2];
}

impl<W> Posted<W> {
    /// Creates work on memory that the application lends.
    #[inline]
    pub(crate) const fn lent(work: W) -> Self {
        Self { work, bytes: PostedMemory::Lent }
    }

    /// Returns the work.
    #[inline]
    pub(crate) const fn work(&self) -> &W {
        &self.work
    }

    /// Frees the copy of an injected operation that has ended. The work must not be used any more.
    pub(crate) fn free(&mut self) {
        self.bytes = PostedMemory::Lent;
    }

    /// Converts the work to a description of another type that uses the same memory.
    pub(crate) fn map<V>(self, f: impl FnOnce(W) -> V) -> Posted<V> {
        Posted { work: f(self.work), bytes: self.bytes }
    }
}

impl<W: Constant> Posted<W> {
    /// Creates work on a copy of everything that it reads, so that the application may reuse its memory.
    ///
    /// # Errors
    /// Returns the length in bytes of a segment list that is too long to be injected.
    pub(crate) fn injected(mut work: W) -> Result<Self, usize> {
        let mut copy = Vec::new();
        for list in work.constant().into_iter().flatten() {
            if list.len() > INJECT_LIMIT {
                return Err(list.len());
            }
            copy.extend(list.to_vec());
        }
        let copy = Buffer::from(copy);
        let whole = Segments::one(copy.segment_for_send());
        let mut start = 0;
        for list in work.constant().into_iter().flatten() {
            let len = list.len();
            *list = whole.slice(start, len);
            start += len;
        }
        Ok(Self { work, bytes: PostedMemory::Owned(copy) })
    }
}

impl Constant for SendWork {
    fn constant(&mut self) -> [Option<&mut Segments>; 2] {
        [Some(&mut self.segments), None]
    }
}

impl Constant for AtomicWork {
    fn constant(&mut self) -> [Option<&mut Segments>; 2] {
        // An atomic read has no operand, so the list may contain anything.
        [(self.op != AtomicOp::Read).then_some(&mut self.operand), self.compare.as_mut()]
    }
}

impl RmaWork {
    /// Like [`Constant::constant`], for a write or a read.
    pub(crate) const fn constant(&mut self, write: bool) -> [Option<&mut Segments>; 2] {
        [if write { Some(&mut self.local) } else { None }, None]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PeerAddress;
    use crate::endpoint::work::OpFlags;
    use crate::local_memory::atomic::Datatype;
    use crate::region::RemoteMemory;

    fn atomic(op: AtomicOp, operand: &Buffer, compare: Option<&Buffer>) -> AtomicWork {
        AtomicWork {
            peer: PeerAddress(0),
            op,
            datatype: Datatype::U64,
            operand: Segments::one(operand.segment_for_send()),
            compare: compare.map(|compare| Segments::one(compare.segment_for_send())),
            result: None,
            remote: RemoteMemory::default(),
            data: None,
            context: 0,
            flags: OpFlags::INJECT,
        }
    }

    #[test]
    fn injected_operation_owns_every_buffer_it_reads() {
        let (operand, compare) = (Buffer::from(vec![9; 16]), Buffer::from(vec![5; 16]));
        let posted = Posted::injected(atomic(AtomicOp::Cswap, &operand, Some(&compare))).unwrap();
        drop((operand, compare));
        // Allocations that reuse freed memory do not change what the operation reads.
        let _others: Vec<Vec<u8>> = (0..64).map(|_| vec![0xEE; 16]).collect();
        let moved = Box::new(posted.map(Some));
        let work = moved.work().as_ref().unwrap();
        assert_eq!(work.operand.to_vec(), [9; 16]);
        assert_eq!(work.compare.unwrap().to_vec(), [5; 16]);
        assert_eq!(work.operand.as_slice()[0].as_ptr().addr() % 8, 0, "elements are aligned");
        assert_eq!(work.compare.unwrap().as_slice()[0].as_ptr().addr() % 8, 0);
    }

    #[test]
    fn inject_copies_only_the_operands_that_are_read() {
        let long = Buffer::from(vec![1; INJECT_LIMIT + 1]);
        let read = atomic(AtomicOp::Read, &long, None);
        assert!(Posted::injected(read).is_ok(), "a read has no operand");
        let sum = atomic(AtomicOp::Sum, &long, None);
        assert_eq!(Posted::injected(sum).err(), Some(INJECT_LIMIT + 1));
    }
}
