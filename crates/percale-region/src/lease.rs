//! Memory that is lent to one transfer.
//!
//! A transfer takes many calls, and another thread may close the region of its memory in the meantime. So a thread that
//! copies enters the lease first, and leaves it before its call returns. Entering fails once the region is revoked, and
//! closing waits until no thread is inside. If bytes of a device are still being copied to the memory, entering waits
//! for the bytes that will be accessed.

use std::sync::Arc;

use super::registered::Registered;
use crate::local_memory::access::{Access, Refusal};
use crate::local_memory::rundown::Inside;
use crate::local_memory::volatile::Segments;
use percale_device::Arriving;

/// Memory that is lent to one transfer. The transfer enters it for each copy.
#[derive(Clone)]
pub struct Lease {
    segments: Segments,
    condition: AccessCondition,
}

crate::short_debug!(Lease, "Lease");

/// The condition for accessing the memory.
#[derive(Clone, Debug)]
enum AccessCondition {
    /// There is no condition. Memory of an operation stays valid until the operation ends.
    None,
    /// The memory belongs to this region.
    Region(Arc<Registered>),
    /// Bytes from a device are still being copied to the memory.
    Arriving(Arc<Arriving>),
}

/// Proof that the memory of a lease may be accessed. It is held within one call, and never between two calls.
#[derive(Debug)]
pub struct Held<'a> {
    _inside: Option<Inside<'a>>,
}

impl Lease {
    /// Creates a lease of the memory of a local operation, which stays valid until the operation ends.
    #[must_use]
    #[doc(hidden)]
    #[inline]
    pub fn own(segments: &Segments) -> Self {
        Self { segments: *segments, condition: AccessCondition::None }
    }

    /// Creates a lease of memory of a region.
    #[doc(hidden)]
    #[inline]
    pub fn of(region: &Arc<Registered>, segments: Segments) -> Self {
        Self { segments, condition: AccessCondition::Region(Arc::clone(region)) }
    }

    /// Creates a lease of the memory of a local operation, which is read while bytes from a device arrive in it. Only
    /// this process may copy it.
    #[doc(hidden)]
    #[inline]
    pub fn arriving(arriving: &Arc<Arriving>) -> Self {
        Self { segments: Segments::one(arriving.segment()), condition: AccessCondition::Arriving(Arc::clone(arriving)) }
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Returns whether the length is zero.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns whether the memory may be revoked, or has not arrived completely. In both cases only this process may
    /// copy it.
    #[doc(hidden)]
    #[inline]
    pub const fn is_revocable(&self) -> bool {
        !matches!(self.condition, AccessCondition::None)
    }

    /// Returns a lease of the `len` bytes that start at `offset`, or of fewer bytes if there are not that many.
    #[must_use]
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        Self { segments: self.segments.slice(offset, len), condition: self.condition.clone() }
    }

    /// Returns the memory and the proof that it may be accessed. Returns `None` once the region was revoked, or if the
    /// bytes from the device cannot be copied.
    #[inline]
    #[doc(hidden)]
    pub fn enter(&self) -> Option<(&Segments, Held<'_>)> {
        self.enter_part(0, usize::MAX)
    }

    /// Like [`enter`](Self::enter), for an access to only the `len` bytes that start at `offset`.
    #[inline]
    #[doc(hidden)]
    pub fn enter_part(&self, offset: usize, len: usize) -> Option<(&Segments, Held<'_>)> {
        let inside = match &self.condition {
            AccessCondition::None => None,
            AccessCondition::Region(region) => Some(region.pin().enter()?),
            AccessCondition::Arriving(arriving) => {
                if !arriving.wait_for(&self.segments.slice(offset, len)) {
                    return None;
                }
                None
            }
        };
        Some((&self.segments, Held { _inside: inside }))
    }

    /// Returns the addresses of the memory for queries. The memory must not be accessed through the result.
    #[doc(hidden)]
    #[inline]
    pub const fn place(&self) -> &Segments {
        &self.segments
    }
}

#[doc(hidden)]
impl Registered {
    /// Lends memory to a long transfer. This is not possible for regions that only the kernel may access.
    #[inline]
    pub fn lease(self: &Arc<Self>, address: u64, len: u64, wanted: Access) -> Result<Lease, Refusal> {
        let offset = self.check(address, len, wanted)?;
        if !self.is_backed() {
            return Err(Refusal::Fault); // A transfer would access it with instructions of this process.
        }
        Ok(Lease::of(self, self.place().slice(offset as usize, len as usize)))
    }
}
