//! Address vectors, and what they are made of. [`address`](crate::address) gives these modules their public names.
//!
//! * [`name`]: the text form of network addresses, and resolving names.
//! * [`vector`]: address vectors; [`inserted`]: the outcome of an insertion; [`error`]: why there is none.
//!
//! Private modules: `table` finds, reads and writes entries, which are words (`entry`) in a `store`, or, in a `range`,
//! addresses of a symmetric `block`; `cells` are the numbers that it keeps about itself. A store is `local`, or `shared` with other
//! processes, which find it by `names`. `symmetric` makes blocks of nodes and services that count up; `paged` is a table that grows
//! without moving; `family` is the family of a network address.

mod block;
mod builder;
mod cells;
mod entry;
pub mod error;
mod family;
pub mod inserted;
mod local;
pub mod name;
mod names;
mod paged;
mod range;
mod shared;
mod store;
pub(crate) mod symmetric;
mod table;
pub mod vector;

pub use self::builder::VectorBuilder;
