//! What windows can be bound to, and what of it only the library knows.

use std::sync::Arc;

use super::{Keys, RawRegion, Region, Registered};

/// What windows can be bound to: a [`Region`] or a [`RawRegion`].
pub trait Bindable: Known {}

impl Bindable for Region {}
impl Bindable for RawRegion {}

/// A region as its domain knows it.
pub trait Known {
    /// It, and the domain's keys.
    fn known(&self) -> Parts<'_>;
}

/// See [`Known`].
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub(crate) region: &'a Arc<Registered>,
    pub(crate) keys: &'a Arc<Keys>,
}

crate::short_debug!(Parts<'_>, "Parts");

impl Known for Region {
    fn known(&self) -> Parts<'_> {
        Parts { region: &self.handle.registered, keys: &self.handle.keys }
    }
}

impl Known for RawRegion {
    fn known(&self) -> Parts<'_> {
        Parts { region: &self.handle.registered, keys: &self.handle.keys }
    }
}
