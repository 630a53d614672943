//! The addresses of peers.
//!
//! A peer has a network address ([`std::net::SocketAddr`], an IP address and a port). In each address vector into which
//! it was inserted it also has a number, its [`PeerAddress`], which operations use to name it.
//!
//! * [`name`]: the text form of network addresses, and name resolution; [`bytes`]: their byte form, for programs that
//!   exchange addresses.
//! * [`vector`]: address vectors; [`inserted`]: the outcome of an insertion; [`inserter`]: asynchronous insertion.

pub mod inserter;

pub use self::inserter::Inserter;
pub use crate::address_vector::inserted::Inserted;
pub use crate::address_vector::{VectorBuilder, bytes, error, inserted, name, vector};
pub use crate::types::PeerAddress;
