//! The target's record of one peer: its end of the peer's queue pair, and what was granted to it.
//!
//! It outlives its link as long as a region that was granted to the peer is being closed. Locks: a region's grants, then the record's
//! own; never the other way round.
//!
//! An *entry* is a grant's number. Once its registration has ended, the peer is told; until the peer has answered, the number is not used again,
//! and no other grant is made under the same remote key.

#![expect(unsafe_code, reason = "registers regions' memory; the block states its reason")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::super::{ProtectionDomain, QueuePair, Registration, Rights};
use crate::memory::forked::forked;
use crate::memory::region::{Access, Grantee, Grants, Registered};
use crate::memory::rundown::{Line, Snapshot};
use crate::memory::volatile::Segment;
use crate::wire::located::{Grant, Located};

/// Grants to one peer that there may be at a time, those that it has yet to forget among them.
pub(super) const GRANTS: usize = 4096;

/// A number that no grant has: of a registration that was never told of.
const NOBODYS: u32 = u32::MAX;

/// A grant's number, in use.
#[derive(Debug)]
enum Entry {
    Free,
    Granted {
        key: u64,
        region: Weak<Registered>,
        registration: Registration,
    },
    /// The registration has ended. The peer was told, or is to be told.
    Gone {
        key: u64,
        remote_key: u32,
        told: bool,
    },
}

#[derive(Debug, Default)]
struct Record {
    /// The end of the peer's queue pair, while the link stands.
    pair: Option<QueuePair>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Registrations that the device would not end.
    stuck: Vec<Registration>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct VerbsGrantee {
    domain: Arc<ProtectionDomain>,
    record: Mutex<Record>,
    /// The peer is to be told of grants that are gone.
    any_gone: AtomicBool,
}

impl VerbsGrantee {
    /// For a peer whose queue pair has its other end in this protection domain.
    pub(super) fn new(domain: Arc<ProtectionDomain>) -> Self {
        Self { domain, record: Mutex::default(), any_gone: AtomicBool::new(false) }
    }

    pub(super) const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another queue pair takes the place of the former, which is returned.
    pub(super) fn change_pair(&self, pair: Option<QueuePair>) -> Option<QueuePair> {
        std::mem::replace(&mut self.record().pair, pair)
    }

    /// Grants a region to the peer.
    pub(super) fn grant(self: &Arc<Self>, region: &Arc<Registered>) -> Located {
        let me: Arc<dyn Grantee> = Arc::clone(self) as _;
        let rights = region.rights();
        let (reads, writes) = (rights.contains(Access::REMOTE_READ), rights.contains(Access::REMOTE_WRITE));
        // Held until the grant is noted: who closes the region, or has its writes counted, then finds it, or was there before.
        let mut grants = region.grants();
        let Some(memory) = reachable(region).filter(|_| reads || writes) else { return Located::Executed };
        let address = memory.as_ptr().expose_provenance() as u64;
        let named = |number, remote_key| {
            let (base, len) = (region.base(), region.len());
            Located::Granted(Grant { number, reads, writes, remote_key, base, len, address })
        };
        if let Some(number) = grants.find(&me) {
            return match self.record().entries.get(number as usize) {
                Some(Entry::Granted { registration, .. }) => named(number, registration.keys().1),
                _ => Located::Unknown,
            };
        }
        if grants.is_closed() {
            return Located::Unknown;
        }
        let mut device = Rights::empty();
        device.set(Rights::REMOTE_READ, reads);
        device.set(Rights::REMOTE_WRITE | Rights::LOCAL_WRITE, writes);
        // SAFETY: the region's owner lets peers do that, and its memory stays there until the region is closed, which ends the
        // registration first.
        let registration = unsafe { Registration::new(&self.domain, memory.as_ptr(), memory.len(), device) };
        let registration = match registration {
            Ok(registration) => registration,
            Err(error) => {
                tracing::warn!(%error, len = region.len(), "a region is not registered: its accesses are executed");
                return Located::Executed;
            }
        };
        let (remote_key, mut record) = (registration.keys().1, self.record());
        let was_used = |entry: &Entry| matches!(entry, Entry::Gone { remote_key: other, .. } if *other == remote_key);
        if record.entries.iter().any(was_used) {
            record.end_untold(registration, &mut grants, me);
            return Located::Unknown; // Another time: late accesses may name this key.
        }
        let Some(number) = record.take() else {
            record.end_untold(registration, &mut grants, me);
            return Located::Executed;
        };
        if !grants.add(me, number) {
            unreachable!("it is not closed while its grants are held");
        }
        let (key, region) = (region.key(), Arc::downgrade(region));
        record.entries[number as usize] = Entry::Granted { key, region, registration };
        named(number, remote_key)
    }

    /// Whether a registration stands that should have ended: then there is no other queue pair to reach it by.
    pub(super) fn is_stuck(&self) -> bool {
        !self.record().stuck.is_empty()
    }

    /// Grants of which the peer is to be told that they are gone: their numbers and keys.
    pub(super) fn take_gone(&self) -> Vec<(u32, u64)> {
        if !self.any_gone.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let mut gone = Vec::new();
        for (number, entry) in (0..).zip(&mut self.record().entries) {
            if let Entry::Gone { key, told, .. } = entry
                && !std::mem::replace(told, true)
            {
                gone.push((number, *key));
            }
        }
        gone
    }

    /// Whether the peer is to be told of such.
    pub(super) fn has_gone(&self) -> bool {
        self.any_gone.load(Ordering::Relaxed)
    }

    /// Nothing of the peer's names a grant any more that is gone.
    ///
    /// # Errors
    /// If it was not told so.
    pub(super) fn forgotten(&self, number: u32) -> Result<(), &'static str> {
        let mut record = self.record();
        match record.entries.get_mut(number as usize) {
            Some(entry @ Entry::Gone { told: true, .. }) => {
                *entry = Entry::Free;
                record.free.push(number);
                Ok(())
            }
            _ => Err("it forgets what is not gone"),
        }
    }

    /// The link is gone: the queue pair first, then everything that was granted over it.
    pub(super) fn end(self: &Arc<Self>) {
        if forked() {
            return;
        }
        drop(self.change_pair(None));
        let granted: Vec<_> = {
            let record = self.record();
            let numbered = (0..).zip(&record.entries);
            numbered.filter_map(|(number, entry)| entry.region().map(|region| (number, region))).collect()
        };
        let me: Arc<dyn Grantee> = Arc::clone(self) as _;
        for (number, region) in granted {
            self.revoke(number);
            if self.record().stuck.is_empty() {
                region.grants().forget(number, &me);
            }
        }
    }
}

impl Entry {
    /// What is granted.
    fn region(&self) -> Option<Arc<Registered>> {
        match self {
            Self::Granted { region, .. } => region.upgrade(),
            Self::Free | Self::Gone { .. } => None,
        }
    }
}

impl Record {
    /// A number for a grant.
    fn take(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        if self.entries.len() >= GRANTS {
            return None;
        }
        self.entries.push(Entry::Free);
        Some(self.entries.len() as u32 - 1)
    }

    /// Ends a registration of a region of which the peer was not told. If the device refuses, who closes the region waits for it.
    fn end_untold(&mut self, registration: Registration, grants: &mut Grants, me: Arc<dyn Grantee>) {
        self.end(registration);
        if !self.stuck.is_empty() {
            let _open = grants.add(me, NOBODYS); // It is not closed while its grants are held.
        }
    }

    /// Ends a registration. If the device refuses, the queue pair is put in error, so that nothing comes over it any more.
    fn end(&mut self, registration: Registration) {
        let Err((registration, error)) = registration.end() else { return };
        tracing::error!(%error, "a registration does not end");
        self.stuck.push(registration);
        if let Some(pair) = &self.pair
            && let Err(error) = pair.fail()
        {
            tracing::error!(%error, "nor does its queue pair");
        }
    }
}

// What a peer reaches is in the device's hands: there is nothing to fence, and nothing announced.
impl Grantee for VerbsGrantee {
    fn revoke(&self, entry: u32) {
        let mut record = self.record();
        let Some(slot) = record.entries.get_mut(entry as usize) else { return };
        match std::mem::replace(slot, Entry::Free) {
            Entry::Granted { key, registration, .. } => {
                *slot = Entry::Gone { key, remote_key: registration.keys().1, told: false };
                record.end(registration);
                self.any_gone.store(true, Ordering::Release);
            }
            other => *slot = other,
        }
    }

    fn is_unfenced(&self) -> bool {
        false
    }

    fn ask_to_fence(&self) {}

    fn snapshot(&self) -> Snapshot {
        Line::default().snapshot()
    }

    fn has_retired(&self, _: Snapshot) -> bool {
        if forked() {
            return true;
        }
        let mut record = self.record();
        let stuck = std::mem::take(&mut record.stuck);
        record.stuck.extend(stuck.into_iter().filter_map(|one| one.end().err()).map(|(one, _)| one));
        record.stuck.is_empty()
    }

    fn release(&self, _: u32) {} // When the peer has forgotten it.
}

/// The memory of a region, if the device may reach it: it is there as long as the region, in one piece, and nobody is to be told of
/// what is written. Windows come and go too fast to be registered.
fn reachable(region: &Registered) -> Option<Segment> {
    let plain = region.is_backed() && region.device().is_none() && region.counter().is_none() && !region.is_window();
    region.place().only().filter(|memory| plain && memory.len() as u64 == region.len())
}
