//! Registrations that hits may find: where they lie and what they allow, one cache line each.
//!
//! Entries are never moved or freed, and are used again. A reader holds no lock: it has announced
//! itself ([`super::grace`]), and an entry is filled again only when everybody who had announced himself before it was
//! taken out has gone. So what a reader finds LIVE is one whole registration, and stays it until the reader is done.

use std::io;

use crate::access::Access;
use crate::range::Range;
use crate::registrar::Pinned;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Valid as long as the monitor has told nothing of it; a state without it is not in use, being filled, or no longer valid.
const LIVE: u32 = 1 << 31;

/// Valid only while the watched file's count stands.
const WATCHED: u32 = 1 << 30;

/// One registration. All zero is none.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros, zerocopy::KnownLayout))]
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// [`LIVE`], [`WATCHED`] and the rights, in one word so that one comparison asks for all.
    state: AtomicU32,
    /// When it was last used, in misses of the cache.
    touched: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
    local_key: AtomicU64,
    remote_key: AtomicU64,
    /// The count of the watched file when the pages were pinned.
    inode: AtomicU64,
    /// Which watched file, plus one; 0 for none.
    inode_slot: AtomicU64,
    /// The rights, while it is not live yet.
    access: AtomicU64,
}

/// The watched file of a shared mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchedInode {
    /// Which counter of the monitor's page.
    pub(crate) slot: u32,
    /// What it read before the pages were pinned.
    pub(crate) count: u64,
}

/// How an entry serves a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    Plainly,
    /// If its [watched file's](Entry::inode) count stands.
    Watched,
}

impl Entry {
    #[cfg(loom)]
    fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            touched: AtomicU32::new(0),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            local_key: AtomicU64::new(0),
            remote_key: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            inode_slot: AtomicU64::new(0),
            access: AtomicU64::new(0),
        }
    }

    /// Fills an entry that nobody can find.
    pub(crate) fn fill<P>(&self, range: Range, access: Access, pinned: &Pinned<P>, inode: Option<WatchedInode>) {
        self.access.store(u64::from(access.bits()), Ordering::Relaxed);
        self.start.store(range.start(), Ordering::Relaxed);
        self.end.store(range.end(), Ordering::Relaxed);
        self.local_key.store(pinned.local_key, Ordering::Relaxed);
        self.remote_key.store(pinned.remote_key, Ordering::Relaxed);
        self.inode.store(inode.map_or(0, |inode| inode.count), Ordering::Relaxed);
        self.inode_slot.store(inode.map_or(0, |inode| u64::from(inode.slot) + 1), Ordering::Relaxed);
    }

    /// From now on hits find it.
    pub(crate) fn publish(&self, now: u32) {
        self.touched.store(now, Ordering::Relaxed);
        let access = self.access.load(Ordering::Relaxed) as u32;
        let watched = if self.inode_slot.load(Ordering::Relaxed) == 0 { 0 } else { WATCHED };
        self.state.store(LIVE | watched | access, Ordering::Release);
    }

    /// From now on no hit finds it. Whether it was live.
    pub(crate) fn kill(&self) -> bool {
        // Only under the table's lock, so this needs no exchange.
        let live = self.is_live();
        self.state.store(0, Ordering::Release);
        live
    }

    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) & LIVE != 0
    }

    /// Whether it is live and allows this.
    #[inline]
    pub(crate) fn serves(&self, range: Range, access: Access) -> bool {
        self.how_serves(range, access).is_some()
    }

    /// The same, and whether a file is watched for it as well.
    #[inline]
    pub(crate) fn how_serves(&self, range: Range, access: Access) -> Option<Serves> {
        let wanted = LIVE | access.bits();
        let state = self.state.load(Ordering::Acquire);
        let serves = state & wanted == wanted
            && self.start.load(Ordering::Relaxed) <= range.start()
            && range.end() <= self.end.load(Ordering::Relaxed);
        serves.then_some(if state & WATCHED == 0 { Serves::Plainly } else { Serves::Watched })
    }

    /// What it allows.
    pub(crate) fn rights(&self) -> Access {
        Access::from_bits_truncate(self.access.load(Ordering::Relaxed) as u32)
    }

    /// Marks it used at this time. Writes only when the time has changed: threads that hit the same entry share its line.
    #[inline]
    pub(crate) fn touch(&self, now: u32) {
        if self.touched.load(Ordering::Relaxed) != now {
            self.touched.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn touched(&self) -> u32 {
        self.touched.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn keys(&self) -> (u64, u64) {
        (self.local_key.load(Ordering::Relaxed), self.remote_key.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn inode(&self) -> Option<WatchedInode> {
        let slot = self.inode_slot.load(Ordering::Relaxed).checked_sub(1)?;
        Some(WatchedInode { slot: slot as u32, count: self.inode.load(Ordering::Relaxed) })
    }

    pub(crate) fn range(&self) -> Range {
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        Range::between(start, end).unwrap_or(Range::ALL)
    }
}

/// All entries, by number: as many as the cache may keep, after one that is never valid, which stands for none. They take
/// no memory before they are used.
#[derive(Debug)]
pub(crate) struct Entries(Box<[Entry]>);

impl Entries {
    /// As many as there can be.
    pub(crate) const MOST: u32 = 1 << 24;

    /// # Errors
    /// No memory.
    pub(crate) fn new(count: u32) -> io::Result<Self> {
        #[cfg(not(loom))]
        let entries = <[Entry] as zerocopy::FromZeros>::new_box_zeroed_with_elems(count as usize + 1);
        #[cfg(loom)]
        let entries = Ok::<_, io::Error>((0..=count).map(|_| Entry::new()).collect());
        entries.map(Self).map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    /// Entry `number`, if there is one.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Entry> {
        self.0.get(number as usize + 1)
    }

    /// The entry whose number plus one this is; one that is never valid for 0.
    #[inline]
    pub(crate) fn after(&self, number: u32) -> Option<&Entry> {
        self.0.get(number as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len() - 1
    }
}

#[cfg(all(test, not(loom)))]
const _: () = assert!(size_of::<Entry>() == 64);
