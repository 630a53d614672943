//! libfabric's binary interface, written by hand: what its headers declare and a provider or its tests touch.
//!
//! One file for each topic of the headers, with their names, so that a manual page and this room use the same words. Every
//! structure is as long as the newest release knows it (2.6). Who reads a structure of a caller must know that a caller of an
//! older API has a shorter one: growth is always at the tail, and each such field says `2.x`. Enumerations that a
//! caller passes are plain integers, since a caller may pass anything. `layout` compares it all with installed headers.
//!
//! * Every structure has `ZERO`, all null and 0: what a C program gets from `memset`.
//! * Every table of operations has `REFUSING`, complete and answering -FI_ENOSYS (or null, or 0) everywhere; a provider names
//!   what it has, and takes the rest from there. libfabric's inline functions call many members without looking.

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

/// A number that an address vector gave for a peer; or [`FI_ADDR_UNSPEC`].
pub type fi_addr_t = u64;
/// Any object, by its common head.
pub type fid_t = *mut fid;
