//! The operations on an element, and the kinds of calls.

use std::fmt;

use crate::local_memory::access::Access;

/// The operation on each element of the target (fi_atomic(3), `enum fi_op`). The [module](super) defines each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AtomicOp {
    /// The smaller of target and operand
    Min,
    /// The larger of target and operand
    Max,
    /// Target plus operand
    Sum,
    /// Target times operand
    Prod,
    /// Logical or
    Lor,
    /// Logical and
    Land,
    /// Bitwise or
    Bor,
    /// Bitwise and
    Band,
    /// Logical exclusive or
    Lxor,
    /// Bitwise exclusive or
    Bxor,
    /// Leaves the target unchanged (only for fetching)
    Read,
    /// The operand
    Write,
    /// The operand, if the compare operand equals the target
    Cswap,
    /// The operand, if the compare operand does not equal the target
    CswapNe,
    /// The operand, if the compare operand is less than or equal to the target
    CswapLe,
    /// The operand, if the compare operand is less than the target
    CswapLt,
    /// The operand, if the compare operand is greater than or equal to the target
    CswapGe,
    /// The operand, if the compare operand is greater than the target
    CswapGt,
    /// The operand's bits where the compare operand has ones, otherwise the target's bits
    Mswap,
}

/// The kind of an operation, which determines its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicKind {
    /// An operand and no result (fi_atomic)
    Plain,
    /// An operand, and the target's old value as result (fi_fetch_atomic)
    Fetch,
    /// An operand and a compare operand, and the target's old value as result (fi_compare_atomic)
    Compare,
}

impl AtomicOp {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 19] = [
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Prod,
        Self::Lor,
        Self::Land,
        Self::Bor,
        Self::Band,
        Self::Lxor,
        Self::Bxor,
        Self::Read,
        Self::Write,
        Self::Cswap,
        Self::CswapNe,
        Self::CswapLe,
        Self::CswapLt,
        Self::CswapGe,
        Self::CswapGt,
        Self::Mswap,
    ];

    /// Returns whether the operation has a compare operand ([`AtomicKind::Compare`]).
    #[must_use]
    #[inline]
    pub const fn compares(self) -> bool {
        self as u8 >= Self::Cswap as u8
    }

    /// Returns whether the operation works on single bits. Such operations are invalid for floats.
    #[must_use]
    #[inline]
    pub const fn is_bitwise(self) -> bool {
        matches!(self, Self::Bor | Self::Band | Self::Bxor | Self::Mswap)
    }

    /// Returns the number on the wire, which is libfabric's.
    #[must_use]
    #[inline]
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// Returns the operation with that number on the wire.
    #[must_use]
    #[inline]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for AtomicOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Min => "min",
            Self::Max => "max",
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Lor => "lor",
            Self::Land => "land",
            Self::Bor => "bor",
            Self::Band => "band",
            Self::Lxor => "lxor",
            Self::Bxor => "bxor",
            Self::Read => "read",
            Self::Write => "write",
            Self::Cswap => "cswap",
            Self::CswapNe => "cswap_ne",
            Self::CswapLe => "cswap_le",
            Self::CswapLt => "cswap_lt",
            Self::CswapGe => "cswap_ge",
            Self::CswapGt => "cswap_gt",
            Self::Mswap => "mswap",
        })
    }
}

/// The rights that an [`AtomicKind`] of atomic operations needs. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait KindExt: Sized {
    /// Returns the rights to a region that such an operation needs. They are the right to change the memory, and the
    /// right to read it if the operation fetches.
    fn rights(self, op: AtomicOp) -> Access;
}

impl KindExt for AtomicKind {
    #[inline]
    fn rights(self, op: AtomicOp) -> Access {
        match (op, self) {
            (AtomicOp::Read, _) => Access::REMOTE_FETCH,
            (_, Self::Plain) => Access::REMOTE_ATOMIC,
            (_, Self::Fetch | Self::Compare) => Access::REMOTE_FETCH.union(Access::REMOTE_ATOMIC),
        }
    }
}
