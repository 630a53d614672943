//! libibverbs as percale sees it: its structures, its constants, and its functions, found at run time.
//!
//! Written by hand, because a program must build and run where the library is missing. A test compiles a C program against
//! libibverbs' own headers and compares every size, offset and constant. Nothing here is safe or keeps an order: that
//! is the wrappers' business.

#[cfg(test)]
mod layout_tests;
mod library;
mod numbers;
mod types;

pub(super) use library::Library;
pub(super) use numbers::*;
pub use types::Sge;
pub(super) use types::*;
