//! The owner's access to a region that peers may access at the same time, and parts of regions.

use std::ops::RangeBounds;

use super::{Access, Region, RemoteMemory, ScopedRegion};
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::memory_view::{MemoryView, MemoryViewExt as _, ViewError};
use crate::local_memory::volatile::{Segment, SegmentsExt as _};
use crate::types::span_of_memory;

impl Region {
    /// Returns a view of the memory, for typed and atomic access while peers may access it too. [`MemoryView`] states
    /// what is atomic, and which order accesses have.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use percale::{Access, Info};
    /// use std::sync::atomic::Ordering;
    ///
    /// # let domain = Info::discover()?.best()?.open()?;
    /// let region = domain.register(domain.allocate(4096)?, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    /// let view = region.view();
    /// view.write_at(64, [1_u32, 2, 3])?;
    /// view.atomic::<u64>(0)?.store(1, Ordering::Release); // a peer that fetches 1 then reads the numbers
    /// assert_eq!(view.read_at::<u32>(68)?, 2);
    /// # Ok(()) }
    /// ```
    #[must_use]
    #[inline]
    pub fn view(&self) -> MemoryView<'_> {
        let segment = self.handle.registered().place().only().unwrap_or(Segment::EMPTY);
        let writable = self.memory.as_ref().is_some_and(Buffer::is_writable);
        MemoryView::of(segment, writable, self.memory.as_ref().and_then(Buffer::as_allocation))
    }

    /// Returns a part of the region, with its description for peers and its view.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use percale::{Access, Info};
    /// # let domain = Info::discover()?.best()?.open()?;
    /// # let region = domain.register(domain.allocate(4096)?, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    /// let slot = region.slice(1024..2048)?;
    /// let name = slot.remote().to_bytes(); // to be sent to the peer that uses the slot
    /// slot.view().write_at(0, 7_u64)?; // the region's byte 1024
    /// # drop(name); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ViewError::Range`] if the range is not within the region.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<RegionSlice<'_>, ViewError> {
        RegionSlice { region: self, start: 0, len: self.len() }.slice(range)
    }
}

impl<'scope> ScopedRegion<'scope> {
    /// Returns a view of the memory, for typed and atomic access while peers may access it too.
    #[must_use]
    #[inline]
    pub fn view(&self) -> MemoryView<'scope> {
        MemoryView::of(self.segment, self.writable, None)
    }
}

/// A part of a [`Region`] ([`Region::slice`]). It has the key and the rights of the region, so a peer that has the
/// description of a part can access the whole region, within its rights. To limit a peer to a part, bind a
/// [window](crate::memory::window) to it.
#[derive(Clone, Copy)]
pub struct RegionSlice<'r> {
    region: &'r Region,
    /// The offset of the first byte in the region.
    start: usize,
    len: usize,
}

crate::short_debug!(RegionSlice<'_>, "RegionSlice", start: |this| this.start, len: |this| this.len);

impl<'r> RegionSlice<'r> {
    /// Returns the region.
    #[must_use]
    pub const fn region(&self) -> &'r Region {
        self.region
    }

    /// Returns the offset of the first byte in the region.
    #[must_use]
    pub const fn start(&self) -> usize {
        self.start
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is zero.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the rights, which are those of the region.
    #[must_use]
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// Returns the description that peers use to access the part.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        let all = self.region.remote();
        RemoteMemory { address: all.address.wrapping_add(self.start as u64), len: self.len as u64, ..all }
    }

    /// Returns a view of the part. Its offsets are counted from the first byte of the part.
    #[must_use]
    #[inline]
    pub fn view(&self) -> MemoryView<'r> {
        let view = self.region.view().slice(self.start..self.start + self.len);
        view.unwrap_or_else(|_| unreachable!("the part is within the region, whose length does not change"))
    }

    /// Returns a part of this part. The range is counted from its first byte.
    ///
    /// # Errors
    /// [`ViewError::Range`] if the range is not within this part.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, ViewError> {
        let (start, end) =
            span_of_memory(&range, self.len).map_err(|(start, end)| ViewError::Range { start, end, len: self.len })?;
        Ok(Self { region: self.region, start: self.start + start, len: end - start })
    }
}
