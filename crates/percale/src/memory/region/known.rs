//! The objects that windows can be bound to, and their internal part.

use std::sync::Arc;

use super::{RawRegion, Region};
use crate::region::{Keys, Registered};

/// An object that windows can be bound to: a [`Region`] or a [`RawRegion`].
pub trait Bindable: Known {}

impl Bindable for Region {}
impl Bindable for RawRegion {}

/// A region as its domain knows it.
pub trait Known {
    /// Returns the region, and the domain's keys.
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
