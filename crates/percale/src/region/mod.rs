//! The internal part of regions, as used by the endpoints of a domain: the table of keys, rights and windows, grants to
//! peers, and revocation. The handles of the application are in [`memory`](crate::memory).
//!
//! * `keys`: the domain's table; `lines`, `hashed`, `rows`, `line`: reading it without a lock; `registered`: a region
//!   in the table
//! * `terms`: the options of a registration; `handle`: enabling, disabling and closing a region; `error`: errors
//! * `revocation`: the revocation of a region; `parked`: memory that is kept until a revocation has completed
//! * `on_device`: regions of a device's memory; `lease`: memory lent to one transfer
//! * `counters`: counters of writes by peers
//! * `via`: the endpoints and peers through which accesses may arrive; `local`: local keys
//! * `window`: memory windows; `windows`: the number of bound windows; `hold`, `slice`: a window's reference to its
//!   region, and its part of it
//! * `remote`: the names of regions for peers; `raw_key`: long names, and `mapped`: those of peers

mod counters;
mod error;
pub(crate) mod handle;
mod hashed;
mod hold;
mod keys;
pub(crate) mod lease;
mod line;
mod lines;
mod local;
pub(crate) mod mapped;
mod on_device;
mod parked;
pub(crate) mod raw_key;
mod registered;
mod remote;
mod revocation;
mod rows;
mod slice;
#[cfg(all(test, not(loom)))]
pub(crate) mod stuck;
pub(crate) mod terms;
pub(crate) mod via;
pub(crate) mod window;
mod windows;

pub use self::error::{CloseError, RegisterError};
pub(crate) use self::hold::Hold;
pub(crate) use self::keys::Keys;
pub(crate) use self::lines::Lines;
pub use self::mapped::MapError;
pub(crate) use self::mapped::{Keyring, Mapped, above_small_numbers};
pub(crate) use self::raw_key::Secret;
pub use self::raw_key::{RAW_KEY_BYTES, RawKey};
pub(crate) use self::registered::Grantee;
pub use self::registered::Registered;
pub use self::remote::{RemoteMemory, RemoteMemoryError};
pub(crate) use self::revocation::{Revocation, wait_until};
pub(crate) use self::slice::Slice;
#[cfg(any(test, fuzzing))]
pub(crate) use self::terms::table_of_one;
pub(crate) use self::via::{Through, Via};
pub(crate) use crate::local_memory::access::{Access, Refusal, admit};
