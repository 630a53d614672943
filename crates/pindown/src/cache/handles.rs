//! The table of the registrations that the application makes and removes itself.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use slab::Slab;

use super::pending_unpin::PendingUnpin;
use super::tree::Tree;
use crate::journal::Journal;
use crate::monitor::{Refusal, WatchedInode};
use crate::range::Range;

/// Identifies a registration that [`Cache::register`](super::Cache::register) made. A process never uses a handle again,
/// in any cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(u64);

impl Handle {
    /// Returns the handle as a number, for other languages.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the handle with this number. A number that no call has returned does not identify a registration.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// A registration that the application made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registration {
    /// The handle, which [`Cache::check`](super::Cache::check) returns and
    /// [`Cache::deregister`](super::Cache::deregister) takes.
    pub handle: Handle,
    /// The local key, for work requests of this process.
    pub local_key: u64,
    /// The remote key, for peers.
    pub remote_key: u64,
    /// The reason why changes of the memory will not be reported; `None` if they will.
    pub unwatched: Option<Refusal>,
}

/// The error for a handle that does not identify a registration, or no longer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a registration of this cache, or was already deregistered")]
pub struct UnknownHandle(pub Handle);

impl UnknownHandle {
    /// Returns the positive errno that corresponds to the error in C.
    #[must_use]
    pub const fn errno(self) -> i32 {
        libc::ENOENT
    }
}

#[derive(Debug)]
struct Own<P> {
    pin: P,
    /// The file of a shared mapping, with the value of the file's change counter from before the pages were pinned.
    inode: Option<WatchedInode>,
    /// The range that the monitor keeps locked for the registration.
    locked: Option<Range>,
    handle: Handle,
    reported: bool,
}

impl<P> Own<P> {
    fn out(self) -> PendingUnpin<P> {
        PendingUnpin { pin: self.pin, inode: self.inode.map(|inode| inode.slot), locked: self.locked }
    }
}

/// The application's own registrations in a cache, protected by the cache's lock.
#[derive(Debug)]
pub(super) struct Handles<P> {
    all: Slab<Own<P>>,
    tree: Tree,
    /// Registrations that have changed and were not reported yet. Room for all registrations is reserved.
    changed: VecDeque<Handle>,
    /// The index in `all` of each registration.
    numbers: HashMap<Handle, u32>,
}

/// The first handle. Its lower 32 bits are 0, so that a program that stores only the lower half fails at its first
/// registration.
const FIRST: u64 = 1 << 32;

/// The next handle of the process. All caches share the counter, so a handle of one cache does not identify a
/// registration of another, or of one that is opened later. A counter of 64 bits never wraps.
static NEXT: AtomicU64 = AtomicU64::new(FIRST);

impl<P> Handles<P> {
    pub(super) fn new() -> Self {
        let (all, tree, changed) = (Slab::new(), Tree::new(), VecDeque::new());
        Self { all, tree, changed, numbers: HashMap::new() }
    }

    /// Queues the registrations that overlap the range. Allocates no memory.
    pub(super) fn invalidate(&mut self, range: Range) {
        let Self { all, tree, changed, .. } = self;
        tree.overlapping(range, &mut |number| {
            if let Some(own) = all.get_mut(number as usize)
                && !std::mem::replace(&mut own.reported, true)
            {
                changed.push_back(own.handle);
            }
            true
        });
    }

    /// Queues the registrations of files from which pages were removed since they were registered.
    pub(super) fn compare_files(&mut self, journal: &Journal) {
        for (_, own) in &mut self.all {
            let changed = own.inode.is_some_and(|inode| journal.inode(inode.slot) != inode.count);
            if changed && !std::mem::replace(&mut own.reported, true) {
                self.changed.push_back(own.handle);
            }
        }
    }

    pub(super) fn insert(
        &mut self,
        pin: P,
        range: Range,
        (inode, locked): (Option<WatchedInode>, Option<Range>),
        changed: bool,
    ) -> Handle {
        let handle = Handle(NEXT.fetch_add(1, Ordering::Relaxed));
        let number = self.all.insert(Own { pin, inode, locked, handle, reported: changed }) as u32;
        self.numbers.insert(handle, number);
        self.tree.insert(number, range);
        self.changed.reserve(self.all.len());
        if changed {
            self.changed.push_back(handle);
        }
        handle
    }

    pub(super) fn remove(&mut self, handle: Handle) -> Option<PendingUnpin<P>> {
        let number = self.numbers.remove(&handle)?;
        self.tree.remove(number);
        self.changed.retain(|changed| *changed != handle);
        self.all.try_remove(number as usize).map(Own::out)
    }

    /// Returns the next registration that has changed and was not reported yet.
    pub(super) fn next_changed(&mut self) -> Option<Handle> {
        self.changed.pop_front()
    }

    pub(super) fn into_pins(self) -> impl Iterator<Item = PendingUnpin<P>> {
        self.all.into_iter().map(|(_, own)| own.out())
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_not_used_again_after_four_billion_registrations() {
        let mut handles = Handles::new();
        let range = Range::new(0x1000, 0x1000).expect("a range");
        let first = handles.insert((), range, (None, None), false);
        assert!(handles.remove(first).is_some());
        NEXT.fetch_add(u64::from(u32::MAX), Ordering::Relaxed); // As if that many registrations had been made.
        let second = handles.insert((), range, (None, None), false);
        assert_ne!(second, first);
        assert!(handles.remove(first).is_none(), "the handle refers to another registration now");
        assert!(handles.remove(second).is_some() && handles.len() == 0);
    }

    #[test]
    fn a_handle_of_one_cache_is_unknown_to_another() {
        let range = Range::new(0x1000, 0x1000).expect("a range");
        let [mut one, mut other] = [Handles::new(), Handles::new()];
        let [first, second] = [&mut one, &mut other].map(|handles| handles.insert((), range, (None, None), false));
        assert!(one.remove(second).is_none() && other.remove(first).is_none());
        assert_eq!((one.len(), other.len()), (1, 1));
    }
}
