//! Maps each key to its registration. The registrar adds the registrations, and every lookup is checked against them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pindown::{Access, Pinned, Range, Use};

/// The existing registrations, by local key. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Ledger(Arc<Mutex<HashMap<u64, LedgerEntry>>>);

/// A registration.
#[derive(Clone, Copy, Debug)]
struct LedgerEntry {
    /// The remote key, which is unique for each registration.
    number: u64,
    range: Range,
    access: Access,
}

impl Ledger {
    fn entries(&self) -> MutexGuard<'_, HashMap<u64, LedgerEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn made<P>(&self, pinned: &Pinned<P>, range: Range, access: Access) {
        self.entries().insert(pinned.local_key, LedgerEntry { number: pinned.remote_key, range, access });
    }

    /// Removes the registration with this local key.
    pub(super) fn ends(&self, local_key: u64) {
        self.entries().remove(&local_key);
    }

    /// Checks that the keys of this use belong to a registration that covers the range and has the rights. Returns
    /// `None` if they do, otherwise the reason.
    pub(super) fn fault(&self, used: &Use, range: Range, access: Access) -> Option<String> {
        let (local, number) = (used.local_key(), used.remote_key());
        let requested = format!("asked for {range} with {access:?}, given keys {local} and {number}");
        match self.entries().get(&local) {
            None => Some(format!("{requested}: that registration has ended")),
            Some(entry) if entry.number != number => {
                Some(format!("{requested}: keys of two registrations ({entry:?})"))
            }
            Some(entry) if !entry.range.contains(range) || !entry.access.contains(access) => {
                Some(format!("{requested}: the keys belong to another registration ({entry:?})"))
            }
            Some(_) => None,
        }
    }
}
