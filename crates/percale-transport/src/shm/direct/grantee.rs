//! The target's record of one peer: the key page that it shares with this peer, and the grants in it.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
#![expect(unsafe_code, reason = "names entries in the key page; the block states its reason")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{ENTRIES, PAGE_BYTES};
use crate::local_memory::mapping::{Mapping, back, published_memfd};
use crate::local_memory::rundown::{AnnouncementLine, KeyPageEntry, Snapshot, fence_after_revoking, fence_initiators};
use crate::local_memory::sealed;
use crate::peer_process::PeerProcess;
use crate::region::{Grantee, Registered};
use crate::shm::pair::PairMemory;

/// The entries are backed with memory in steps of this many bytes, the size of the smallest page. Larger pages contain
/// several steps.
const BACKED_STEP: usize = 4096;

/// A mapped key page, of this process or of a peer.
#[derive(Debug)]
pub(super) struct KeyPage {
    mapping: Arc<Mapping>,
}

impl KeyPage {
    /// Creates a key page from its mapping. Returns `None` if the mapping does not have the size of a key page.
    pub(super) fn new(mapping: Arc<Mapping>) -> Option<Self> {
        (mapping.len() == PAGE_BYTES).then_some(Self { mapping })
    }

    /// Returns the entry with this number. Its memory must have been made present by [`prepare`](Self::prepare) (or
    /// [`back`]).
    #[inline]
    pub(super) fn entry(&self, index: u32) -> Option<&KeyPageEntry> {
        if index as usize >= ENTRIES {
            return None;
        }
        let entry = self.mapping.as_ptr().cast::<KeyPageEntry>().wrapping_add(index as usize);
        // SAFETY: the entry lies in the mapping, which is page-aligned, PAGE_BYTES long and lives as long as this
        // reference. An entry is an atomic, so other threads and processes may write to it. A peer's page cannot be
        // written by this process: its entries are only loaded. For loads from read-only memory std::sync::atomic
        // guarantees only relaxed loads of a word. This code relies on the assumption that acquire loads of a word are
        // also plain loads (with an order): processors with 64-bit words have such a load. On x86-64 it is the same
        // instruction, on AArch64 it is LDAR, which does not write.
        Some(unsafe { &*entry })
    }

    /// Makes the memory of the entry present.
    pub(super) fn prepare(&self, index: u32) -> io::Result<()> {
        let offset = (index as usize).saturating_mul(size_of::<KeyPageEntry>()) & !(BACKED_STEP - 1);
        self.mapping.populate(offset, BACKED_STEP)
    }
}

/// The target's record of one peer: its key page and the grants in it. It outlives its link while regions that were
/// granted to the peer are open.
#[derive(Debug)]
pub(super) struct ShmGrantee {
    pair: Arc<PairMemory>,
    /// This side. The peer announces its accesses in the line of the other side.
    side: usize,
    process: Option<Arc<PeerProcess>>,
    /// The number under which the page is given to the peer.
    number: u32,
    fd: Arc<OwnedFd>,
    page: KeyPage,
    granted: Mutex<Granted>,
}

#[derive(Debug, Default)]
struct Granted {
    /// All entries that were ever used, with the generation and the region of each.
    entries: Vec<(u64, Weak<Registered>)>,
    free: Vec<u32>,
}

impl ShmGrantee {
    /// Creates the key page for the peer of a link. `pair` is the link's memory, `side` this end of it.
    ///
    /// # Errors
    /// If memory or a descriptor cannot be allocated.
    pub(super) fn new(pair: &Arc<PairMemory>, side: usize, process: Option<&Arc<PeerProcess>>) -> io::Result<Self> {
        let number = sealed::new_number().ok_or(io::ErrorKind::OutOfMemory)?;
        let (fd, mapping) = published_memfd("percale-keys", PAGE_BYTES)?;
        let page = KeyPage::new(Arc::new(mapping)).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            pair: Arc::clone(pair),
            side,
            process: process.cloned(),
            number,
            fd: Arc::new(fd),
            page,
            granted: Mutex::default(),
        })
    }

    /// Returns the number, the size and the memfd with which the page is given to the peer.
    pub(super) fn page(&self) -> (u32, usize, &Arc<OwnedFd>) {
        (self.number, PAGE_BYTES, &self.fd)
    }

    /// Grants a region, and returns the entry and its generation. Returns `Ok(None)` if the region was closed, and
    /// `Err` if the page is full.
    pub(super) fn grant(self: &Arc<Self>, region: &Arc<Registered>) -> Result<Option<(u32, u64)>, KeyPageFull> {
        let me: Arc<dyn Grantee> = Arc::clone(self) as _;
        // Locked until the entry is valid. So a thread that closes the region either finds the grant or has finished
        // before the grant is made.
        let mut grants = region.grants();
        if let Some(entry) = grants.find(&me) {
            return Ok(self.granted().entries.get(entry as usize).map(|(generation, _)| (entry, *generation)));
        }
        let (index, generation) = self.take(region).ok_or(KeyPageFull)?;
        if !grants.add(me, index) {
            self.release(index);
            return Ok(None);
        }
        let entry = self.page.entry(index).ok_or(KeyPageFull)?;
        entry.grant(generation);
        Ok(Some((index, generation)))
    }

    /// Writes to an entry of the key page. Returns whether there is such an entry.
    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn forge_entry(&self, entry: u32, generation: u64) -> bool {
        self.page.entry(entry).map(|entry| entry.grant(generation)).is_some()
    }

    /// Returns the generation under which a region is granted to this peer, or `None` if it is not granted.
    pub(super) fn generation_of(self: &Arc<Self>, region: &Registered) -> Option<u64> {
        let me: Arc<dyn Grantee> = Arc::clone(self) as _;
        let entry = region.grants().find(&me)?;
        self.granted().entries.get(entry as usize).map(|(generation, _)| *generation)
    }

    /// Takes a free entry. Returns it with the region's generation, which no other region of this process has had.
    fn take(&self, region: &Arc<Registered>) -> Option<(u32, u64)> {
        let mut granted = self.granted();
        let index = match granted.free.pop() {
            Some(index) => index,
            None => {
                let index = granted.entries.len();
                let offset = index.saturating_mul(size_of::<KeyPageEntry>());
                if index >= ENTRIES || (offset.is_multiple_of(BACKED_STEP) && self.back(offset).is_err()) {
                    return None;
                }
                granted.entries.push((0, Weak::new()));
                index as u32
            }
        };
        let generation = region.generation();
        *granted.entries.get_mut(index as usize)? = (generation, Arc::downgrade(region));
        Some((index, generation))
    }

    fn back(&self, offset: usize) -> io::Result<()> {
        back(self.fd.as_fd(), offset, BACKED_STEP)
    }

    fn granted(&self) -> MutexGuard<'_, Granted> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) -> &AnnouncementLine {
        self.pair.announcements(self.side ^ 1)
    }

    /// Returns whether the peer's process has ended. If so, none of its threads is in the middle of an access any more.
    fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.ended().is_some())
    }

    /// Returns whether every access that was announced at the time of the snapshot has ended. Also returns true if the
    /// peer's process has ended.
    fn has_left(&self, then: Snapshot) -> bool {
        !self.pair.is_here() || self.line().has_retired(then) || self.has_ended()
    }

    /// Revokes all grants, because the link has ended. The regions drop the grants, unless the peer is in the middle of
    /// an access. In that case they keep the grants until they are closed.
    pub(super) fn end(self: &Arc<Self>) {
        if !self.pair.is_here() {
            return;
        }
        let granted: Vec<_> = {
            let granted = self.granted();
            let numbered = (0_u32..).zip(&granted.entries);
            numbered.filter_map(|(index, (_, region))| Some((index, region.upgrade()?))).collect()
        };
        for (index, _) in &granted {
            self.revoke(*index);
        }
        fence_after_revoking();
        if (self.is_unfenced() && !fence_initiators()) || !self.has_left(self.snapshot()) {
            return;
        }
        let me: Arc<dyn Grantee> = Arc::clone(self) as _;
        for (index, region) in granted {
            region.grants().forget(index, &me);
        }
    }
}

/// The key page has no free entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyPageFull;

// In a forked child neither the page nor the line is mapped, and peers cannot reach the child's copy of a region.
impl Grantee for ShmGrantee {
    fn revoke(&self, entry: u32) {
        if self.pair.is_here()
            && let Some(entry) = self.page.entry(entry)
        {
            entry.revoke();
        }
    }

    fn is_unfenced(&self) -> bool {
        self.pair.is_here() && self.line().is_unfenced() && !self.has_ended()
    }

    fn ask_to_fence(&self) {
        if self.pair.is_here() {
            self.line().ask_to_fence();
        }
    }

    fn snapshot(&self) -> Snapshot {
        if self.pair.is_here() { self.line().snapshot() } else { AnnouncementLine::default().snapshot() }
    }

    fn has_retired(&self, _: u32, snapshot: Snapshot) -> bool {
        self.has_left(snapshot)
    }

    fn release(&self, entry: u32) {
        let mut granted = self.granted();
        if let Some(slot) = granted.entries.get_mut(entry as usize) {
            *slot = (0, Weak::new());
            granted.free.push(entry);
        }
    }
}
