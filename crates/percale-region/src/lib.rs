//! An internal crate of [percale](https://docs.rs/percale). Its API is not stable: programs use `percale`.
//!
//! Memory that peers may access, in the form that the endpoints of a domain use: the table of keys, rights and windows,
//! grants to peers, and revocation. The handles of the application are in `memory` of percale.
//!
//! * `keys`: the domain's table
//! * `registered`: an entry of the table for one region
//! * `properties`: the options of a registration
//! * `handle`: enabling, disabling and closing a region
//! * `error`: errors
//! * `revocation`: revoking a region
//! * `parked`: memory that is kept until a revocation has ended
//! * `on_device`: regions of a device's memory
//! * `lease`: memory that is lent to one transfer
//! * `counters`: counters of writes by peers, as a trait
//! * `access_origin`: the endpoints and peers through which accesses may be made
//! * `local`: local keys
//! * [`window`]: memory windows
//! * `windows`: the number of windows that are bound to a region
//! * `hold`: the reference of a window to its region
//! * `slice`: the part of a region to which a window is bound
//! * `remote`: names of regions for peers
//! * `raw_key`: raw keys
//! * `serialized`: the forms of names and raw keys in data formats (feature `serde`)
//! * `mapped`: mapped raw keys of peers

// Labels on docs.rs the items that need a feature.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod access_origin;
mod counters;
mod error;
pub mod handle;
mod hold;
mod keys;
pub mod lease;
mod local;
pub mod mapped;
mod on_device;
mod parked;
pub mod properties;
pub mod raw_key;
mod registered;
mod remote;
mod revocation;
#[cfg(feature = "serde")]
mod serialized;
mod slice;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
#[doc(hidden)]
pub mod stuck;
mod windows;

// Modules of the crate below are re-exported under their names.
use percale_memory::{later, local_memory, short_debug, sync, system};

pub use self::access_origin::{AccessOrigin, AccessScope};
pub use self::counters::AccessCounter;
pub use self::error::{CloseError, MapError, RegisterError};
pub use self::hold::Hold;
#[cfg(any(test, fuzzing, feature = "testing"))]
#[doc(hidden)]
pub use self::keys::table_of_one;
pub use self::keys::{KeyLines, Keys, window};
pub use self::mapped::{Keyring, MappedKeys, above_small_numbers};
pub use self::raw_key::Secret;
pub use self::raw_key::{RAW_KEY_BYTES, RawKey};
pub use self::registered::{Grantee, RegionGrant, RegionGrants, Registered};
pub use self::remote::{RemoteMemory, RemoteMemoryError};
pub use self::revocation::{Revocation, wait_until};
pub use self::slice::Slice;
pub use percale_memory::local_memory::access::{Access, Refusal, admit};
