//! The terms of a registration: the options of a region, and the properties of its memory.

use std::sync::Arc;

use super::access_origin::AccessScope;
use super::counters::AccessCounter;
use crate::local_memory::access::Access;
use percale_device::Device;

/// The options of a `Registration`, without the domain.
#[derive(Clone, Debug)]
pub struct RegistrationProperties {
    /// The rights of peers.
    pub access: Access,
    /// The key, or `None` if the domain chooses one.
    pub key: Option<u64>,
    /// The address that peers use for the first byte.
    pub base: u64,
    /// The counters of writes by peers.
    pub counters: Vec<Arc<dyn AccessCounter>>,
    /// Whether the region has a raw key.
    pub raw_key: bool,
    /// The endpoints through which accesses may arrive once the region is enabled.
    pub through: AccessScope,
    /// The authorization key of the endpoints of its users (see `authority`).
    pub authority: u64,
    /// Whether the region is disabled at first.
    pub disabled: bool,
    /// Whether windows may be bound to the region.
    pub windows: bool,
    /// Whether the owner may write to the memory. If `None`, this depends on the memory.
    pub local_write: Option<bool>,
    /// The device to which the memory belongs, if it is not host memory.
    pub device: Option<Device>,
}

/// The properties of a region's memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryProperties {
    /// Whether the memory is mapped for as long as the region exists, so that threads of this process may access it.
    pub backed: bool,
    /// Whether the memory may be changed.
    pub writable: bool,
}

impl RegistrationProperties {
    /// Creates the options of a region with these rights and a key that the domain chooses.
    pub const fn new(access: Access) -> Self {
        Self {
            access,
            key: None,
            base: 0,
            counters: Vec::new(),
            raw_key: false,
            through: AccessScope::Domain,
            authority: 0,
            disabled: false,
            windows: true,
            local_write: None,
            device: None,
        }
    }
}
