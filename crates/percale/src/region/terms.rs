//! How memory is registered: the options of a region, and what its memory is.

use std::sync::Arc;

#[cfg(any(test, fuzzing))]
use super::Keys;
use super::via::Through;
use crate::completion::counter::Counter;
use crate::device::Device;
use crate::local_memory::access::Access;
#[cfg(any(test, fuzzing))]
use crate::local_memory::buffer::Buffer;
#[cfg(any(test, fuzzing))]
use crate::local_memory::buffer::BufferExt as _;
#[cfg(any(test, fuzzing))]
use crate::local_memory::volatile::Segments;

/// The options of a [`Registration`](crate::memory::region::Registration), without the domain.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) access: Access,
    pub(crate) key: Option<u64>,
    pub(crate) base: u64,
    pub(crate) counters: Vec<Arc<Counter>>,
    pub(crate) raw_key: bool,
    /// The endpoints through which accesses may come once it is enabled.
    pub(crate) through: Through,
    /// The authorization key of its users' endpoints: see [`authority`](crate::domain::Settings::authority).
    pub(crate) authority: u64,
    pub(crate) disabled: bool,
    pub(crate) windows: bool,
    pub(crate) local_write: Option<bool>,
    /// The device that the memory belongs to, if it is not the host's.
    pub(crate) device: Option<Device>,
}

/// The properties of a region's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// Mapped for as long as the region exists: our own threads may touch it.
    pub(crate) backed: bool,
    /// It may be changed.
    pub(crate) writable: bool,
}

impl Terms {
    /// A region of the domain with these rights, by a key that the domain chooses.
    pub(crate) const fn new(access: Access) -> Self {
        Self {
            access,
            key: None,
            base: 0,
            counters: Vec::new(),
            raw_key: false,
            through: Through::Domain,
            authority: 0,
            disabled: false,
            windows: true,
            local_write: None,
            device: None,
        }
    }
}

/// A table without a domain that holds one region, with this key, which peers may read; and that region's memory, which has to live as long.
#[cfg(any(test, fuzzing))]
pub(crate) fn table_of_one(key: u64, memory: impl Into<Buffer>) -> std::io::Result<(Arc<Keys>, Buffer)> {
    let mut memory = memory.into();
    let segment = memory.segment_for_receive().ok_or(std::io::ErrorKind::InvalidInput)?;
    let keys = Keys::new(std::time::Duration::ZERO, crate::system::forked::Process::current()?);
    let terms = Terms { key: Some(key), ..Terms::new(Access::REMOTE_READ) };
    let registered = keys.register(&terms, Segments::one(segment), Kept { backed: true, writable: true });
    registered.map_err(std::io::Error::other)?;
    Ok((Arc::new(keys), memory))
}
