//! What operations say of their local memory (`desc`): which region it is in.
//!
//! A description is a number that the domain gave, never an address: what is no description is found out by looking, and nothing is read
//! through it (AMB-03). Only domains with FI_MR_LOCAL or FI_MR_COLLECTIVE look.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use percale::Access;

use super::request::Wanted;

/// The descriptions of a domain's regions.
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
    /// A new description, of a region if anybody looks.
    pub(super) fn give(&self, of: Option<&Arc<Wanted>>) -> *mut c_void {
        let number = self.given.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(wanted) = of {
            self.table.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(wanted));
        }
        std::ptr::without_provenance_mut(number)
    }

    /// The region is closed.
    pub(super) fn take_back(&self, description: *mut c_void) {
        self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&description.addr());
    }

    /// Whether a description is of a region that has these bytes, and one of these rights.
    pub(crate) fn cover(&self, description: *mut c_void, address: usize, len: usize, rights: Access) -> bool {
        self.cover_for(description, address, len, rights, false)
    }

    /// As [`cover`](Self::cover); the region is one for collectives too, if that is asked for.
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
