//! libfabric's binary interface: hand-written declarations of the parts of its headers that a provider or its tests
//! use.
//!
//! Each topic of the headers has a file of the same name, so that the manual pages and this module use the same words.
//! Every structure has the size of the newest known release (2.6). A caller that was built for an older API passes a
//! shorter structure, so a reader must check the caller's API version. Structures only grow at the end, and the
//! documentation of each added field contains `2.x`. Enumerations that a caller passes are plain integers, because a
//! caller may pass any value. `layout` compares all declarations with installed headers.
//!
//! * Every structure has a constant `ZERO`, in which all fields are null or 0, like the result of `memset` in a C
//!   program.
//! * Every table of operations has a constant `REFUSING`: a complete table in which every operation returns -FI_ENOSYS
//!   (or null, or 0). A provider sets the operations that it implements and takes the other entries from this constant.
//!   libfabric's inline functions call many members without a check for null.

#![expect(non_camel_case_types, reason = "the names are those of libfabric's headers")]

#[macro_use]
mod declare;

mod atomic;
mod cm;
mod collective;
mod domain;
mod endpoint;
mod eq;
mod errno;
mod fabric;
mod flags;
mod info;
#[cfg(test)]
mod layout;
mod provider;
mod rma;
mod tagged;
mod trigger;

pub use self::atomic::*;
pub use self::cm::*;
pub use self::collective::*;
pub use self::declare::Refused;
pub use self::domain::*;
pub use self::endpoint::*;
pub use self::eq::*;
pub use self::errno::*;
pub use self::fabric::*;
pub use self::flags::*;
pub use self::info::*;
pub use self::provider::*;
pub use self::rma::*;
pub use self::tagged::*;
pub use self::trigger::*;

/// The address of a peer in an address vector, or [`FI_ADDR_UNSPEC`].
pub type fi_addr_t = u64;
/// A pointer to the common header of any object.
pub type fid_t = *mut fid;
