//! Address vectors and their parts. [`address`](crate::address) exports these modules.
//!
//! * [`name`]: the text form of network addresses, and name resolution; [`bytes`]: their byte form.
//! * [`vector`]: address vectors; [`inserted`]: the outcome of an insertion; [`error`]: the errors.
//!
//! Private modules: `table` finds, reads and writes entries. An entry is a word (`entry`) in a `store`, or an address
//! of a symmetric `block` in a `range`. `cells` contains the table's counts and marks. A store is `local`, or `shared`
//! with other processes, which find it through `names`. `symmetric` creates blocks of consecutive nodes and services.
//! `paged` is a table that grows without moving. `family` is the family of a network address.

mod block;
mod builder;
pub mod bytes;
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
