//! A window's reference to its region, which keeps the region's memory in use.

use std::sync::Arc;

use super::registered::Registered;

/// The reference of a window to its region. The region's memory is in use until [`let_go`](Self::let_go) is called or
/// this object is dropped.
#[derive(Debug)]
pub struct Hold {
    region: Arc<Registered>,
    held: bool,
}

impl Hold {
    /// Creates a reference to a region. Returns `None` if the region was closed.
    #[inline]
    pub fn on(region: &Arc<Registered>) -> Option<Self> {
        region.windows.enter().then(|| Self { region: Arc::clone(region), held: true })
    }

    /// References the same region again after [`let_go`](Self::let_go). Returns false if the region was closed.
    #[must_use]
    #[inline]
    pub fn again(&mut self) -> bool {
        self.held = self.held || self.region.windows.enter();
        self.held
    }

    /// Returns whether this is a reference to the region, even if it was released.
    #[inline]
    pub fn is_on(&self, region: &Arc<Registered>) -> bool {
        Arc::ptr_eq(&self.region, region)
    }

    /// Releases the reference to the region.
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
