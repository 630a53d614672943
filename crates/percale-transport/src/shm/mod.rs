//! Shared memory: connections between processes of one machine and one user.
//!
//! A pair of endpoints shares one sealed memfd ([`pair_memory`]) with a ring in each direction, and each endpoint has a
//! doorbell ([`Doorbell`]) that its peers map. A [`ShmLink`] is one end of the connection. Small frames are copied into
//! the ring and out of it. The payloads of offers are copied once, from memory to memory, by both sides (`transfer`).
//!
//! # Modules
//! * `ring`: lines, byte ring, credits
//! * `pair`: the layout of the pair's memory
//! * `parts`: the parts of a link that connection set-up provides
//! * `sender`: the outbound ring; when to fence, to check the peer's state, and to grow
//! * `link`: one end of a connection, as a `Link`
//! * `transfer`: large payloads, through mapped arenas, CMA, or frames
//! * `direct`: direct reads and writes of the peer's regions
//! * `sync`: the switch to loom
//! * `cache`: cache hints
//! * `connection_end`: the watcher's report to a link
//! * `draining_link`: operations that wait for a peer that may still be copying
//!
//! # Trust
//! The peer may write anything to the pair's memory at any time. Each word is read once, and only the copy that was
//! read is checked and used. A payload is a [`View`](crate::local_memory::volatile::View). No value from the peer
//! determines where this process reads or writes in its own memory: positions in the ring follow from checked lengths,
//! and chunks of a transfer lie within this side's own segments.

mod cache;
mod connection_end;
mod direct;
mod draining_link;
mod link;
mod pair;
mod parts;
mod ring;
mod sender;
mod sync;
mod transfer;

#[cfg(any(test, fuzzing))]
mod fuzz;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
mod hostile;

pub use crate::local_memory::doorbell::{DOORBELL_BITS, DOORBELL_BYTES, Doorbell, WakeMethod};
pub use connection_end::ConnectionEnd;
pub use direct::{ASSISTED, DirectError, GrantIndex, LongAccess, Lookup};
pub use draining_link::DrainingLink;
#[cfg(any(test, fuzzing))]
pub use fuzz::fuzz_ring;
pub use link::PeekResult;
pub use link::ShmLink;
pub use pair::Mappings;
pub use pair::{PAIR_BYTES, pair_memory};
pub use parts::{SetUpError, ShmLinkParts};
#[cfg(all(any(test, feature = "testing"), not(loom)))]
#[doc(hidden)]
pub use {pair::SharedWord, ring::ForgedLine};
