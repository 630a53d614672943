//! The terms of a registration: the options of a region, and the properties of its memory.

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
    /// The endpoints through which accesses may arrive once the region is enabled.
    pub(crate) through: Through,
    /// The authorization key that the endpoints must have: see [`authority`](crate::domain::Settings::authority).
    pub(crate) authority: u64,
    pub(crate) disabled: bool,
    pub(crate) windows: bool,
    pub(crate) local_write: Option<bool>,
    /// The device to which the memory belongs, if it is not host memory.
    pub(crate) device: Option<Device>,
}

/// The properties of a region's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// Whether the memory is mapped for as long as the region exists, so that threads of this process may access it.
    pub(crate) backed: bool,
    /// Whether the memory may be changed.
    pub(crate) writable: bool,
}

impl Terms {
    /// Creates the options of a region with these rights, whose key the domain chooses.
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

/// Creates a table without a domain that contains one region with this key, which peers may read. Also returns the
/// memory of the region, which has to live as long as the table.
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
