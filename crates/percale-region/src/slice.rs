//! Parts of regions with separate keys, which are the content of windows.

use std::sync::{Arc, OnceLock, PoisonError};

use super::access_origin::AccessScope;
use super::registered::{RegionGrants, Registered};
use super::windows::WindowCounts;
use crate::local_memory::access::{Access, AccessExt as _};
use crate::local_memory::rundown::Pin;
use crate::local_memory::volatile::Segments;

/// The part of a region to which a window is bound.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// The key of the window.
    pub key: u64,
    /// The offset of the first byte in the region.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The rights of peers.
    pub access: Access,
    /// The endpoints through which accesses may be made.
    pub through: AccessScope,
}

#[doc(hidden)]
impl Registered {
    /// Returns whether this was not granted to any peer, so that no peer accesses it directly or can begin to.
    #[inline]
    pub fn was_never_granted(&mut self) -> bool {
        self.grants.get_mut().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Creates an entry for a part of a region, with a separate key. The caller has checked the range. The addresses
    /// are those of the region.
    pub fn slice(region: &Arc<Self>, slice: &Slice) -> Self {
        let mut made = Self {
            key: 0,
            access: Access::empty(),
            rights: Access::empty(),
            windows: WindowCounts::default(),
            beneath: Some(Arc::downgrade(region)),
            local: OnceLock::new(),
            through: AccessScope::Nobody,
            authority: region.authority,
            base: 0,
            len: 0,
            memory: Segments::EMPTY,
            backed: region.backed,
            device: region.device,
            located: region.located.clone(),
            pin: Pin::default(),
            grants: RegionGrants::default().into(),
            generation: OnceLock::new(),
            counters: region.counters.clone(),
            process: region.process,
        };
        made.slice_copy(region, slice);
        made
    }

    /// Changes this entry to another part of the same region. No thread may have entered it, and it must not have been
    /// granted to any peer.
    pub fn slice_copy(&mut self, region: &Self, slice: &Slice) {
        let Slice { key, offset, len, access, through } = *slice;
        (self.key, self.through) = (key, through);
        self.generation = OnceLock::new();
        (self.access, self.rights) = (access, access.remote_rights());
        (self.base, self.len) = (region.base.wrapping_add(offset), len);
        self.memory = region.memory.slice(offset as usize, len as usize);
        if let (Some(ours), Some(all)) = (&mut self.located, &region.located) {
            ours.offset = all.offset + offset;
        }
        self.counters = region.counters.clone();
    }
}
