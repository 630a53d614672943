//! The objects to which windows can be bound, and their internal part.

use std::sync::Arc;

use super::{RawRegion, Region};
use crate::region::{Keys, Registered};

/// An object to which windows can be bound: a [`Region`] or a [`RawRegion`].
pub trait Bindable: Known {}

impl Bindable for Region {}
impl Bindable for RawRegion {}

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

impl Known for RawRegion {
    fn known(&self) -> Parts<'_> {
        Parts { region: self.handle.registered(), keys: self.handle.keys() }
    }
}
