//! stub
#![allow(missing_docs)]
#![allow(unsafe_code)]
mod request;
pub(crate) use request::{Operands, Request};
pub(crate) unsafe fn execute(
    _: AtomicOp,
    _: Datatype,
    _: *mut u8,
    _: *const u8,
    _: *const u8,
    _: *mut u8,
    _: usize,
) -> Result<(), Misaligned> {
    Ok(())
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datatype {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    Max,
    Min,
    Bor,
    Band,
    Mswap,
    Sum,
    Read,
    Cswap,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Fetch,
    Compare,
}
impl Kind {
    pub fn from_u8(_: u8) -> Option<Self> {
        None
    }
}
impl AtomicOp {
    pub fn from_u8(_: u8) -> Option<Self> {
        None
    }
}
impl std::fmt::Display for AtomicOp {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}
impl std::fmt::Display for Datatype {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}
impl Datatype {
    pub fn size(self) -> usize {
        8
    }
    pub fn from_u8(_: u8) -> Option<Self> {
        None
    }
}
pub fn is_valid(_: Kind, _: AtomicOp, _: Datatype) -> bool {
    true
}
#[derive(Debug)]
pub struct Misaligned;
