//! Memory that peers may access, as the endpoints of a domain know it: the table of keys, rights and windows, grants to peers, and
//! revocation. The handles of the application are in [`memory`](crate::memory).
//!
//! * `keys`: the domain's table; `lines`, `hashed`, `rows`, `line`: how it is read; `registered`: a region as the table knows it
//! * `terms`: how memory is registered; `handle`: enabling, disabling and closing a region; `error`: errors
//! * `revocation`: taking one back; `parked`: memory that is kept until a revocation is over
//! * `on_device`: regions of a device's memory; `lease`: memory lent to one transfer
//! * `counters`: counters of writes by peers
//! * `via`: the endpoints and peers through which accesses may come; `local`: local keys
//! * `window`: memory windows; `windows`: how many are bound; `hold`, `slice`: what each of them has of its region
//! * `remote`: names of regions for peers; `raw_key`: long ones, and `mapped`: those of peers

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
