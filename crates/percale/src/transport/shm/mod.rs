//! Shared memory: connections between processes of one machine and one user.
//!
//! A pair of endpoints shares one sealed memfd ([`pair_memory`]) with a ring each way; each endpoint has a doorbell
//! ([`Bell`]) that its peers map. A [`ShmLink`] is one end. Small frames are copied into the ring and out of it; the
//! payloads of offers are copied once, by both sides, from memory to memory (`transfer`).
//!
//! # Rooms
//! * `ring`: lines, byte ring, credits. `bell`: who is watching, who sleeps. `pair`: what lies where. `parts`: what the set-up hands over.
//! * `sender`: the ring we write, and when to fence, to look, to grow. `link`: the whole, as a `Link`.
//! * `transfer`: large payloads: mapped arenas, CMA, or frames.
//! * `direct`: regions of the peer's, read and written without it.
//! * `sync`: the switch to loom. `cache`: hints. `connection_end`: what the watcher reports to a link. `residue`: what
//!   waits for a peer that may still be copying.
//!
//! # Trust
//! Everything in a pair's memory may be written by the peer at any time. Words are read once, checked, and the copy is
//! used; a payload is a [`View`](crate::memory::volatile::View). Nothing of the peer's decides where we read or write in
//! our own memory: places in the ring follow from checked lengths, chunks of a transfer lie within our own segments.

mod bell;
mod cache;
mod connection_end;
mod direct;
mod link;
mod pair;
mod parts;
mod residue;
mod ring;
mod sender;
mod sync;
mod transfer;

#[cfg(any(test, fuzzing))]
mod fuzz;

pub use bell::{BELL_BITS, BELL_BYTES, Bell, Rouse};
pub use connection_end::ConnectionEnd;
pub(crate) use direct::{ASSISTED, DirectError, GrantIndex, LongAccess, Lookup};
#[cfg(any(test, fuzzing))]
pub use fuzz::fuzz_ring;
pub(crate) use link::Glance;
pub use link::ShmLink;
pub use pair::Mappings;
pub use pair::{PAIR_BYTES, pair_memory};
pub use parts::{Parts, SetUpError};
pub(crate) use residue::Residue;
