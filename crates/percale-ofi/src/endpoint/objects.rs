//! The client's objects for one endpoint: the endpoint and its aliases (fi_ep_alias(3)).
//!
//! Closing the last of them releases the endpoint. They may be closed in any order and by any threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::fid_t;

/// The client's objects for one endpoint.
#[derive(Debug, Default)]
pub(super) struct Objects(Mutex<ObjectsState>);

#[derive(Debug, Default)]
pub(super) struct ObjectsState {
    /// The addresses of the open objects, oldest first.
    open: Vec<usize>,
    /// Set if there were objects and all of them are closed.
    released: bool,
}

impl Objects {
    /// Locks the set. No object is opened or closed while the lock is held.
    pub(super) fn lock(&self) -> MutexGuard<'_, ObjectsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an open object. Returns false if the endpoint was released.
    pub(super) fn add(&self, object: fid_t) -> bool {
        let mut state = self.lock();
        if !state.released {
            state.open.push(object.expose_provenance());
        }
        !state.released
    }
}

impl ObjectsState {
    /// Returns the object that events name for the endpoint.
    pub(super) fn first(&self) -> Option<fid_t> {
        self.open.first().map(|object| std::ptr::with_exposed_provenance_mut(*object))
    }

    /// Returns whether this object is the only open one.
    pub(super) fn is_last(&self, object: fid_t) -> bool {
        self.open == [object.addr()]
    }

    /// Returns whether all objects were closed.
    pub(super) const fn is_released(&self) -> bool {
        self.released
    }

    /// Removes a closed object. Returns whether the endpoint must be released now.
    pub(super) fn remove(&mut self, object: fid_t) -> bool {
        self.open.retain(|other| *other != object.addr());
        let releases = self.open.is_empty() && !self.released;
        self.released |= releases;
        releases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_of_concurrently_closed_objects_releases() {
        for _ in 0..200 {
            let objects = Objects::default();
            let addresses: Vec<usize> = (1..=4).collect();
            for address in &addresses {
                assert!(objects.add(std::ptr::without_provenance_mut(*address)));
            }
            let start = std::sync::Barrier::new(addresses.len());
            let released: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = addresses
                    .iter()
                    .map(|address| {
                        let (objects, start) = (&objects, &start);
                        scope.spawn(move || {
                            start.wait();
                            usize::from(objects.lock().remove(std::ptr::without_provenance_mut(*address)))
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(released, 1);
            assert!(!objects.add(std::ptr::without_provenance_mut(9)), "it was released");
        }
    }
}
