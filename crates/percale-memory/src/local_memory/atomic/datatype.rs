//! Element types.

use std::fmt;

/// The type of the elements of an atomic operation (fi_atomic(3), `enum fi_datatype`). Elements have the byte order of
/// the machine, and their addresses are multiples of their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Datatype {
    /// 8 bits, signed
    I8,
    /// 8 bits, unsigned
    U8,
    /// 16 bits, signed
    I16,
    /// 16 bits, unsigned
    U16,
    /// 32 bits, signed
    I32,
    /// 32 bits, unsigned
    U32,
    /// 64 bits, signed
    I64,
    /// 64 bits, unsigned
    U64,
    /// IEEE 754 single precision
    F32,
    /// IEEE 754 double precision
    F64,
}

impl Datatype {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 10] =
        [Self::I8, Self::U8, Self::I16, Self::U16, Self::I32, Self::U32, Self::I64, Self::U64, Self::F32, Self::F64];

    /// Returns the size of one element in bytes.
    #[must_use]
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns whether elements are floating-point numbers.
    #[must_use]
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// Returns the number on the wire, which is libfabric's.
    #[must_use]
    #[inline]
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// Returns the type with that number on the wire.
    #[must_use]
    #[inline]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::I16 => "int16",
            Self::U16 => "uint16",
            Self::I32 => "int32",
            Self::U32 => "uint32",
            Self::I64 => "int64",
            Self::U64 => "uint64",
            Self::F32 => "float",
            Self::F64 => "double",
        })
    }
}
