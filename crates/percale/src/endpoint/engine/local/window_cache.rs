//! The windows that were recently bound through an endpoint. A thread that invalidates one of them finds it without a
//! lock.

use std::sync::Arc;

use crate::region::window::WindowCell;

/// The number of windows that are kept: one for each value of the window's index modulo this number.
const PLACES: usize = 64;

/// The windows that were recently bound through an endpoint. This is only a cache: other windows are in the domain's
/// table, and windows in this cache may be deallocated.
#[derive(Debug, Default)]
pub(crate) struct BoundWindowCache(Option<Box<[Option<Arc<WindowCell>>; PLACES]>>);

impl BoundWindowCache {
    /// Records a window that is bound.
    #[inline]
    pub(super) fn note(&mut self, cell: &Arc<WindowCell>) {
        let places = self.0.get_or_insert_with(|| Box::new([const { None }; PLACES]));
        let place = &mut places[cell.index() as usize % PLACES];
        if !place.as_ref().is_some_and(|old| Arc::ptr_eq(old, cell)) {
            *place = Some(Arc::clone(cell));
        }
    }

    /// Returns the window that may be bound with this key.
    #[inline]
    pub(super) fn find(&self, key: u32) -> Option<&Arc<WindowCell>> {
        let index = key >> 8;
        self.0.as_ref()?[index as usize % PLACES].as_ref().filter(|cell| cell.index() == index)
    }

    /// Returns whether any window was ever bound.
    pub(super) const fn any(&self) -> bool {
        self.0.is_some()
    }
}
