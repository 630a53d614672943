//! The interface of libibverbs that percale uses: structures, constants, and functions. The functions are found at run
//! time.
//!
//! The declarations are written by hand, because a program must build and run on systems without the library. A test
//! compiles a C program against libibverbs' own headers and compares every size, offset and constant. This module
//! provides no safety and enforces no order of calls. The wrappers do that.

#[cfg(test)]
mod layout_tests;
mod library;
mod numbers;
mod types;

pub(super) use library::Library;
pub(super) use numbers::*;
pub use types::Sge;
pub(super) use types::*;
