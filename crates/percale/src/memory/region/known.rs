//! The objects to which windows can be bound, and their internal part.

use std::sync::Arc;

use super::{RawRegion, Region, TypedRegion};
use crate::local_memory::typed_memory::TypedMemory;
use crate::region::{Keys, Registered};

/// An object to which windows can be bound: a [`Region`], a [`TypedRegion`] or a [`RawRegion`].
pub trait Bindable: Known {}

impl Bindable for Region {}
impl Bindable for RawRegion {}
impl<M: TypedMemory> Bindable for TypedRegion<M> {}

/// An object that refers to a region of a domain.
pub trait Known {
    /// Returns the region and the domain's keys.
    fn known(&self) -> Parts<'_>;
}

/// A region and its domain's keys, as returned by [`Known::known`].
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub(crate) region: &'a Arc<Registered>,
    pub(crate) keys: &'a Arc<Keys>,
}

crate::short_debug!(Parts<'_>, "Parts");

impl Known for Region {
    fn known(&self) -> Parts<'_> {
        Parts { region: self.handle.registered(), keys: self.handle.keys() }
    }
}

impl<M: TypedMemory> Known for TypedRegion<M> {
    fn known(&self) -> Parts<'_> {
        Region::known(self)
    }
}

impl Known for RawRegion {
    fn known(&self) -> Parts<'_> {
        Parts { region: self.handle.registered(), keys: self.handle.keys() }
    }
}
