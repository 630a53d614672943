//! A window's hold on its region.

use std::sync::Arc;

use super::registered::Registered;

/// A window holds its region: until it lets go, or this is dropped, the region's memory is in use.
#[derive(Debug)]
pub struct Hold {
    region: Arc<Registered>,
    held: bool,
}

impl Hold {
    /// Holds a region. `None` if it was closed.
    #[inline]
    pub fn on(region: &Arc<Registered>) -> Option<Self> {
        region.windows.enter().then(|| Self { region: Arc::clone(region), held: true })
    }

    /// Holds the same region again after [`let_go`](Self::let_go). False if it was closed.
    #[must_use]
    #[inline]
    pub fn again(&mut self) -> bool {
        self.held = self.held || self.region.windows.enter();
        self.held
    }

    /// Whether it is, or was, on this region.
    #[inline]
    pub fn is_on(&self, region: &Arc<Registered>) -> bool {
        Arc::ptr_eq(&self.region, region)
    }

    /// Lets go of the region.
    #[inline]
    pub fn let_go(&mut self) {
        if std::mem::take(&mut self.held) {
            self.region.windows.leave();
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.let_go();
    }
}
