//! Memory lent to one transfer.
//!
//! A transfer takes many calls, and while it is under way the region that its memory belongs to may be closed, by another
//! thread. So whoever copies enters the lease first, and leaves it before the call returns: entering fails once the region
//! is revoked, and whoever closes waits until nobody is inside.

use std::sync::Arc;

use super::region::Registered;
use super::rundown::Inside;
use super::volatile::Segments;

/// See the module.
#[derive(Clone, Debug)]
pub struct Lease {
    segments: Segments,
    /// The region that the memory belongs to; `None` for an operation's own memory, which stays until the operation ends.
    region: Option<Arc<Registered>>,
}

/// Proof that the memory of a lease may be touched now. Held within one call, never between two.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    _inside: Option<Inside<'a>>,
}

impl Lease {
    /// Memory of an operation of our own, which stays until it ends.
    #[must_use]
    pub fn own(segments: &Segments) -> Self {
        Self { segments: *segments, region: None }
    }

    /// Memory of a region.
    pub(crate) fn of(region: &Arc<Registered>, segments: Segments) -> Self {
        Self { segments, region: Some(Arc::clone(region)) }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether the memory may be taken away meanwhile: then nobody but this process may copy.
    pub(crate) const fn is_revocable(&self) -> bool {
        self.region.is_some()
    }

    /// `len` bytes from `offset` on, or as many of them as there are.
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        Self { segments: self.segments.slice(offset, len), region: self.region.clone() }
    }

    /// The memory, while it may be touched; `None` once the region was revoked.
    #[inline]
    pub(crate) fn enter(&self) -> Option<(&Segments, Held<'_>)> {
        let inside = match &self.region {
            None => None,
            Some(region) => Some(region.pin().enter()?),
        };
        Some((&self.segments, Held { _inside: inside }))
    }

    /// The memory's place, for questions about it; not to be touched through this.
    pub(crate) const fn place(&self) -> &Segments {
        &self.segments
    }
}
