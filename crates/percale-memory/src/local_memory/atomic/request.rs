//! An atomic operation executed on behalf of a peer.

#![expect(unsafe_code, reason = "passes checked memory to the operations; the block states its reason")]

use super::{AtomicKind, AtomicOp, Datatype, Misaligned, execute};
use crate::local_memory::access::Access;
use crate::local_memory::atomic::KindExt as _;
use crate::local_memory::volatile::Segment;

/// A checked request. The operands and the compare values, if the operation uses them, have the total length of the
/// elements.
#[derive(Clone, Copy, Debug)]
pub struct AtomicRequest<'a> {
    /// The operation.
    pub op: AtomicOp,
    /// The type of the elements.
    pub datatype: Datatype,
    /// The kind of the operation.
    pub kind: AtomicKind,
    /// The number of elements.
    pub count: usize,
    /// The operands, unless the operation is a read.
    pub operand: &'a [u8],
    /// The compare values, if the operation compares.
    pub compare: &'a [u8],
}

/// The representation of an [`AtomicKind`] on the wire. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait KindWireExt: Sized {
    /// Returns the wire representation.
    fn to_u8(self) -> u8;

    /// Decodes the wire representation. Returns `None` if the value is invalid.
    fn from_u8(number: u8) -> Option<Self>;
}

impl KindWireExt for AtomicKind {
    #[inline]
    fn to_u8(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Fetch => 1,
            Self::Compare => 2,
        }
    }

    #[inline]
    fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Plain,
            1 => Self::Fetch,
            2 => Self::Compare,
            _ => return None,
        })
    }
}

impl AtomicRequest<'_> {
    /// Returns the size of the elements in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a number of bytes, not a container")]
    pub fn len(&self) -> usize {
        self.count * self.datatype.size()
    }

    /// Executes the operation on the first [`Self::len`] bytes of `target`. The previous values are stored in
    /// `fetched`, unless the operation is plain.
    #[inline]
    pub fn apply(&self, target: Segment, fetched: &mut [u8]) -> Result<(), Misaligned> {
        let len = self.len();
        let result = if self.kind == AtomicKind::Plain { std::ptr::null_mut() } else { fetched.as_mut_ptr() };
        assert!(target.len() >= len, "the target is as long as the elements");
        assert!(self.op == AtomicOp::Read || self.operand.len() >= len, "an operand for each element");
        assert!(self.kind != AtomicKind::Compare || self.compare.len() >= len, "a compare value for each element");
        assert!(self.kind == AtomicKind::Plain || fetched.len() >= len, "room for each value");
        // SAFETY: each of the four pointers that the operation uses refers to at least `len` bytes, as was just
        // checked. The caller has entered the target's region, so the memory is present.
        unsafe {
            execute(
                self.op,
                self.datatype,
                target.as_ptr(),
                self.operand.as_ptr(),
                self.compare.as_ptr(),
                result,
                self.count,
            )
        }
    }
}

/// An operation of this process on a peer's memory to which it has direct access.
#[expect(clippy::len_without_is_empty, reason = "a number of bytes, not a container")]
pub trait DirectOperation {
    /// Returns the size of the elements in bytes.
    fn len(&self) -> usize;

    /// Returns the rights that the operation needs.
    fn rights(&self) -> Access;

    /// Executes the operation on the elements at `target`. Does not panic.
    ///
    /// # Errors
    /// If the target is misaligned. In this case nothing was changed.
    ///
    /// # Safety
    /// `target` points to [`Self::len`] bytes that are mapped until this function returns, and that are
    /// writable if the [rights](Self::rights) include changing them. Other threads and processes may access them.
    unsafe fn apply(&self, target: *mut u8) -> Result<(), Misaligned>;
}

/// An operation with its operands. Each operand that it uses has the total length of the elements.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    op: AtomicOp,
    datatype: Datatype,
    kind: AtomicKind,
    len: usize,
    operand: Segment,
    compare: Segment,
    result: Segment,
}

impl Operands {
    /// Creates an operation on `len` bytes. The segments are lent until the operation is done, and the segments that it
    /// uses have this length. A read does not use the operand, an operation that does not compare does not use the
    /// compare value, and an operation that does not fetch does not use the result.
    #[inline]
    pub fn new(
        (op, datatype, kind): (AtomicOp, Datatype, AtomicKind),
        len: usize,
        [operand, compare, result]: [Segment; 3],
    ) -> Self {
        assert!(op == AtomicOp::Read || operand.len() == len, "an operand for each element");
        assert!(kind != AtomicKind::Compare || compare.len() == len, "a compare value for each element");
        assert!(kind == AtomicKind::Plain || result.len() == len, "room for each value");
        Self { op, datatype, kind, len, operand, compare, result }
    }
}

impl DirectOperation for Operands {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn rights(&self) -> Access {
        self.kind.rights(self.op)
    }

    #[inline]
    unsafe fn apply(&self, target: *mut u8) -> Result<(), Misaligned> {
        let Self { op, datatype, kind, len, operand, compare, result } = *self;
        let into = if kind == AtomicKind::Plain { std::ptr::null_mut() } else { result.as_ptr() };
        let count = len / datatype.size();
        // SAFETY: the caller guarantees the target; the segments are lent to this operation, and have the length that
        // `new` checked.
        unsafe { execute(op, datatype, target, operand.as_ptr(), compare.as_ptr(), into, count) }
    }
}
