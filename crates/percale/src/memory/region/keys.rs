//! A domain's regions, by key.
//!
//! One lock, taken for reading by accesses that the target executes, for writing by registration and close. Memory whose
//! region was dropped while peers were still at it is parked here until they retired: that is looked for now and then, by
//! endpoints of the domain as they make progress, and whenever a region comes or goes.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use super::access::Refusal;
use super::mapped::is_reserved;
use super::registered::{Grants, Registered};
use super::revocation::Revocation;
use super::via::{Through, Via};
use super::{RegisterError, Registration};
use crate::memory::buffer::Buffer;
use crate::memory::rundown::Pin;
use crate::memory::sealed;
use crate::memory::volatile::Segments;

/// See the module.
#[derive(Debug)]
pub(crate) struct Keys {
    table: RwLock<HashMap<u64, Arc<Registered>>>,
    parked: Mutex<Vec<Parked>>,
    /// Whether anything is parked, for those who only look.
    any_parked: AtomicBool,
    revoke_timeout: Duration,
}

/// Memory that nobody may use again before its peers retired.
#[derive(Debug)]
struct Parked {
    revocation: Revocation,
    memory: Option<Buffer>,
}

impl Keys {
    pub(crate) fn new(revoke_timeout: Duration) -> Self {
        Self { table: RwLock::default(), parked: Mutex::default(), any_parked: AtomicBool::new(false), revoke_timeout }
    }

    /// How long closing a region waits for peers that are at it.
    pub(crate) const fn revoke_timeout(&self) -> Duration {
        self.revoke_timeout
    }

    /// The region with this key, if accesses may come to it through these.
    #[inline]
    pub(crate) fn find(&self, key: u64, via: Via) -> Result<Arc<Registered>, Refusal> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&key).filter(|region| region.admits(via)).cloned().ok_or(Refusal::Key)
    }

    /// Registers memory.
    pub(super) fn register(
        &self,
        registration: &Registration<'_>,
        memory: Segments,
        backed: bool,
    ) -> Result<Arc<Registered>, RegisterError> {
        self.free_parked();
        let len = memory.len() as u64;
        if len == 0 {
            return Err(RegisterError::Empty);
        }
        // An address that peers can name must fit 64 bits; the end of the last byte may be 2^64 itself.
        if registration.base.checked_add(len - 1).is_none() {
            return Err(RegisterError::Range);
        }
        let located = match memory.as_slice() {
            [only] => sealed::locate(only.as_ptr(), only.len()),
            _ => None,
        };
        let mut region = Registered {
            key: 0,
            access: registration.access,
            through: if registration.disabled { Through::Nobody } else { registration.through },
            authority: registration.authority,
            base: registration.base,
            len,
            memory,
            backed: backed || located.is_some(),
            located,
            pin: Pin::default(),
            grants: Mutex::new(Grants::default()),
            counter: OnceLock::new(),
        };
        if let Some(counter) = &registration.counter {
            region.counter.get_or_init(|| Arc::clone(counter));
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        loop {
            let key = match registration.key {
                Some(key) => key,
                None => random_key()?,
            };
            match table.entry(key) {
                Slot::Vacant(slot) => {
                    region.key = key;
                    return Ok(Arc::clone(slot.insert(Arc::new(region))));
                }
                Slot::Occupied(_) if registration.key.is_some() => return Err(RegisterError::KeyTaken(key)),
                Slot::Occupied(_) => {}
            }
        }
    }

    /// Puts the same region in its own place, for others to come through, with neither grants nor a pin that anybody has entered.
    pub(super) fn replace(&self, region: &Registered, through: Through) -> Arc<Registered> {
        let new = Arc::new(region.anew(through));
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.insert(new.key, Arc::clone(&new));
        new
    }

    /// Takes a region out of the table: no access begins any more once this returns.
    pub(super) fn revoke(&self, region: &Arc<Registered>) -> Revocation {
        self.free_parked();
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.remove(&region.key);
        drop(table);
        Revocation::start(region)
    }

    /// Keeps memory until its peers retired.
    pub(super) fn park(&self, mut revocation: Revocation, memory: Option<Buffer>) {
        if revocation.is_over() {
            return;
        }
        let mut parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        parked.push(Parked { revocation, memory });
        self.any_parked.store(true, Ordering::Release);
    }

    /// Frees what is parked, as far as its peers have retired. Costs a load if nothing is parked.
    #[inline]
    pub(crate) fn free_parked(&self) {
        if self.any_parked.load(Ordering::Acquire) {
            self.free_retired();
        }
    }

    #[cold]
    fn free_retired(&self) {
        let mut parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        let retired = parked.extract_if(.., |parked| parked.revocation.is_over()).collect::<Vec<_>>();
        self.any_parked.store(!parked.is_empty(), Ordering::Release);
        drop(parked);
        drop(retired); // Unmapping takes its time.
    }
}

impl Drop for Keys {
    /// What peers may still write is given to nobody: it leaks.
    fn drop(&mut self) {
        for mut parked in std::mem::take(self.parked.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            if !parked.revocation.is_over() {
                tracing::warn!("a peer has not retired from a region's memory, which is therefore never freed");
                std::mem::forget(parked.memory.take());
            }
        }
    }
}

/// Keys that the domain chooses cannot be guessed, are none of those of 32 bits, and none that stands for something else (KEY-004).
fn random_key() -> Result<u64, RegisterError> {
    loop {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| RegisterError::System(std::io::Error::other(error)))?;
        let key = u64::from_ne_bytes(bytes);
        if key >> 32 != 0 && !is_reserved(key) {
            return Ok(key);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::registered::Grantee;
    use super::*;
    use crate::domain::{Domain, DomainBuilder};
    use crate::memory::region::{Access, Region};
    use crate::memory::rundown::{Line, Snapshot};
    use crate::transport::sim::{Network, SimOptions};

    /// A peer that is at everything it was granted, until it is told otherwise.
    #[derive(Debug, Default)]
    struct Stuck {
        line: Line,
        retired: AtomicBool,
    }

    impl Grantee for Stuck {
        fn revoke(&self, _: u32) {}

        fn snapshot(&self) -> Snapshot {
            self.line.snapshot()
        }

        fn has_retired(&self, _: Snapshot) -> bool {
            self.retired.load(Ordering::Acquire)
        }

        fn release(&self, _: u32) {}
    }

    /// A region of a few bytes that a peer is stuck in.
    fn stuck() -> (Domain, Arc<Stuck>, Region, std::sync::Weak<[u8]>) {
        let network = Network::new(1, SimOptions::default());
        let domain = DomainBuilder::new(false, false, false, String::new()).simulated(&network).open().unwrap();
        let memory = Arc::<[u8]>::from([7; 16]);
        let weak = Arc::downgrade(&memory);
        let region = domain.register(memory, Access::REMOTE_READ).unwrap();
        let peer = Arc::<Stuck>::default();
        let registered = domain.inner.keys.find(region.key(), Via::default()).unwrap();
        assert!(registered.grants().add(Arc::clone(&peer) as _, 0));
        (domain, peer, region, weak)
    }

    #[test]
    fn rev_002_parked_memory_is_freed_by_an_endpoint_that_makes_progress() {
        let (domain, peer, region, memory) = stuck();
        let vector = domain.address_vector().build().unwrap();
        let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0").unwrap();
        let turn = || (0..100).for_each(|_| _ = endpoint.progress());
        drop(region);
        turn();
        assert!(memory.upgrade().is_some(), "memory was freed while a peer was at it");
        peer.retired.store(true, Ordering::Release);
        turn();
        assert!(memory.upgrade().is_none(), "parked memory is kept though its peer retired");
    }

    #[test]
    fn rev_002_parked_memory_is_freed_when_another_region_comes_or_goes() {
        for comes in [true, false] {
            let (domain, peer, region, memory) = stuck();
            let other = domain.register(vec![0; 8], Access::REMOTE_READ).unwrap();
            drop(region);
            assert!(memory.upgrade().is_some());
            peer.retired.store(true, Ordering::Release);
            if comes {
                domain.register(vec![0; 8], Access::REMOTE_READ).unwrap();
            } else {
                drop(other.close().unwrap());
            }
            assert!(memory.upgrade().is_none(), "comes: {comes}");
        }
    }
}
