//! The descriptors of local memory that operations pass (`desc`). Each descriptor identifies a region.
//!
//! A descriptor is a number that the domain assigned, never an address. The lookup detects an invalid descriptor, and
//! no memory is read through it (AMB-03). Only domains with FI_MR_LOCAL or FI_MR_COLLECTIVE look up descriptors.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use percale::Access;

use super::Wanted;

/// The descriptors of a domain's regions.
#[derive(Default)]
pub(crate) struct Descriptions {
    table: RwLock<HashMap<usize, Arc<Wanted>>>,
    given: AtomicUsize,
}

impl std::fmt::Debug for Descriptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Descriptions")
    }
}

impl Descriptions {
    /// Returns a new descriptor. It is stored for a region only if the domain looks up descriptors.
    pub(crate) fn give(&self, of: Option<&Arc<Wanted>>) -> *mut c_void {
        let number = self.given.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(wanted) = of {
            self.table.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(wanted));
        }
        std::ptr::without_provenance_mut(number)
    }

    /// Removes the descriptor of a closed region.
    pub(crate) fn take_back(&self, description: *mut c_void) {
        self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&description.addr());
    }

    /// Returns whether a descriptor belongs to a region that contains these bytes and has one of these access rights.
    pub(crate) fn cover(&self, description: *mut c_void, address: usize, len: usize, rights: Access) -> bool {
        self.cover_for(description, address, len, rights, false)
    }

    /// Like [`cover`](Self::cover). If `collective` is set, the region must also be registered for collectives.
    pub(crate) fn cover_for(
        &self,
        description: *mut c_void,
        address: usize,
        len: usize,
        rights: Access,
        collective: bool,
    ) -> bool {
        if len == 0 {
            return true;
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let found = table.get(&description.addr());
        found.is_some_and(|wanted| {
            wanted.access.intersects(rights) && (wanted.collective || !collective) && wanted.pieces.hold(address, len)
        })
    }
}
