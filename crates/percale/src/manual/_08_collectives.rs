//! Collectives: operations of groups of endpoints.
//!
//! # A group
//! A group consists of endpoints that perform operations together. Every member builds an [`AddressSet`] of the same
//! addresses *in the same order*, itself included, and calls [`Endpoint::join`]. A member's position in the set is its
//! *rank*. The addresses are the ones that the members advertise ([`Endpoint::address`]).
//!
//! ```
//! # type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
//! use percale::{AddressSet, AtomicOp, Datatype, Domain, Endpoint, Info};
//! use std::net::SocketAddr;
//!
//! fn member(domain: &Domain, endpoint: &Endpoint, vector: &percale::AddressVector, addresses: &[SocketAddr]) -> Outcome<()> {
//!     let members: AddressSet = addresses.iter().map(|&address| vector.insert(address)).collect::<Result<_, _>>()?;
//!     let group = endpoint.join(&members)?.wait()?; // until all members have joined
//!
//!     group.barrier().wait()?;
//!
//!     let mine = (group.rank() as u64 + 1).to_ne_bytes().to_vec();
//!     let sum = group.allreduce(AtomicOp::Sum, Datatype::U64, mine).wait()?.into_vec();
//!     assert_eq!(u64::from_ne_bytes(sum.as_slice().try_into()?), 1 + 2 + 3);
//!
//!     let mut blocks = vec![0; 4 * group.size()]; // one block of 4 bytes for each member
//!     blocks[4 * group.rank()..][..4].copy_from_slice(&[group.rank() as u8; 4]);
//!     let all = group.allgather(blocks).wait()?.into_vec();
//!     assert_eq!(all, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
//!     Ok(())
//! }
//!
//! # fn main() -> Outcome<()> {
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoints = (0..3).map(|_| domain.endpoint().vector(&vector).bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
//! # let addresses: Vec<_> = endpoints.iter().map(Endpoint::address).collect();
//! // In this example the members are three threads.
//! # std::thread::scope(|scope| {
//! #     let (domain, vector, addresses) = (&domain, &vector, &addresses);
//! #     let threads: Vec<_> = endpoints.into_iter().map(|one| scope.spawn(move || member(domain, &one, vector, addresses))).collect();
//! #     threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
//! # })
//! # }
//! ```
//!
//! # Operations
//! | call | buffer of a member before | buffer afterwards |
//! |---|---|---|
//! | [`barrier`](crate::endpoint::safe::Group::barrier) | none | none; ends after every member has begun it |
//! | [`broadcast`](crate::endpoint::safe::Group::broadcast) | at the root: the bytes | the root's bytes |
//! | [`allreduce`](crate::endpoint::safe::Group::allreduce) | elements | the combined elements |
//! | [`reduce`](crate::endpoint::safe::Group::reduce) | elements | at the root: the combined elements; elsewhere unspecified |
//! | [`reduce_scatter`](crate::endpoint::safe::Group::reduce_scatter) | a block for each member | this member's block of the result; the others unspecified |
//! | [`allgather`](crate::endpoint::safe::Group::allgather) | a block for each member, its own filled | all members' blocks |
//! | [`alltoall`](crate::endpoint::safe::Group::alltoall) | a block for each member | a block from each member |
//! | [`scatter`](crate::endpoint::safe::Group::scatter) | at the root: a block for each member; elsewhere one block | this member's block |
//! | [`gather`](crate::endpoint::safe::Group::gather) | one block; at the root: a block for each member, its own filled | at the root: all blocks |
//!
//! Reductions support MIN, MAX, SUM, PROD and the logical and bitwise operations of [`AtomicOp`]. All members get
//! bit-identical results, also for floating-point types. A group has at most
//! [`MEMBER_LIMIT`](crate::collective::MEMBER_LIMIT) members (65,536).
//!
//! # Rules
//! 1. Every member posts the same operations in the same order, with buffers of matching length. If members post
//!    different operations, the group fails with [`ErrorCode::Protocol`] when a message of one member fits no
//!    operation of another. Operations that have ended before stay successful. Members that wait for each other
//!    because each names another one as the root send no messages, so they wait until one of them leaves the group.
//! 2. Operations of a group run one after another. Several may be posted at a time (`start`). Different groups run
//!    independently.
//! 3. A collective advances only while *all* members make progress. A member that computes delays the others, unless it
//!    uses automatic progress.
//! 4. Messages of collectives never match receives of the program.
//! 5. Dropping the handle of a collective does not cancel it, because other members depend on it. Dropping the
//!    [`Group`] leaves the group after its operations have ended.
//! 6. A collective can wait for a counter, as described in [chapter 7](super::_07_triggers).
//!
//! # Failure
//! If a member dies or closes its endpoint, or if a transfer fails, the running operation and all later ones end with
//! an error on *all* remaining members. No member waits forever as long as it makes progress. The group cannot be
//! repaired: drop it and join a new one with the remaining members. All of them must use the same new set, so agree on
//! it first, for example with a message from the lowest rank. If a join fails, it fails for all members that have
//! joined. A member that tries again is grouped with the other members that try again.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{AddressSet, Info};
//! # use std::time::Duration;
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let (one, two) = (domain.endpoint().vector(&vector).bind("127.0.0.1:0")?, domain.endpoint().vector(&vector).bind("127.0.0.1:0")?);
//! # let members: AddressSet = [vector.insert(one.address())?, vector.insert(two.address())?].into_iter().collect();
//! # let (mut joining, mut other) = (one.join(&members)?, two.join(&members)?);
//! # while !joining.is_ready() | !other.is_ready() {}
//! # let (group, others) = (joining.wait()?, other.wait()?);
//! let mut barrier = group.barrier().start()?;
//! # drop((others, other));
//! drop(two); // the other member closes its endpoint
//! let error = barrier.wait().unwrap_err();
//! println!("the group has failed: {error}");
//! assert!(group.barrier().wait().is_err()); // later operations too
//! # Ok(()) }
//! ```

// Imported for the links in this text.
use crate::*;
