//! Changes that wait to be published, and the selection of those that may be made now.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::quota::Charge;

/// The maximum number of publishing threads that remove pages at once. The others are reserved for publishing new
/// pages, because callers wait for those.
const TAKING: usize = 2;

/// The state of a page with respect to the map of the kernel programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Published {
    Pending = 0,
    Done = 1,
    Refused = 2,
}

/// The [`Published`] state of a page, written by the publishing thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<AtomicU8>);

impl Progress {
    pub(super) fn get(&self) -> Published {
        match self.0.load(Ordering::Acquire) {
            0 => Published::Pending,
            1 => Published::Done,
            _ => Published::Refused,
        }
    }

    pub(super) fn set(&self, published: Published) {
        self.0.store(published as u8, Ordering::Release);
    }
}

/// A page to be inserted into the map in which the kernel programs look it up.
#[derive(Debug)]
pub(super) struct PageInsertion {
    pub(super) mm: u64,
    pub(super) name: u64,
    pub(super) page: Arc<OwnedFd>,
    pub(super) doorbell: Arc<OwnedFd>,
    pub(super) progress: Progress,
}

/// A page to be removed.
#[derive(Debug)]
pub(super) struct PageRemoval {
    pub(super) mm: u64,
    pub(super) name: u64,
    /// Released once the page is removed.
    pub(super) _charge: Option<Charge>,
}

/// Changes that a thread makes together. They take two grace periods, independent of their number.
#[derive(Debug)]
pub(super) enum Changes {
    Puts(Vec<PageInsertion>),
    Takes(Vec<PageRemoval>),
}

/// Changes that a thread has taken and must report as done.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) changes: Changes,
    /// The address spaces of the changes.
    spaces: BTreeSet<u64>,
}

/// The waiting changes, by address space. The changes of one address space are made in the order of the requests, one
/// at a time; those of different address spaces in any order.
///
/// For one address space at most one page waits to be removed, and one to be inserted after that: pages are inserted
/// and removed in turn, and a page that is to be removed before it was inserted is never inserted.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    takes: BTreeMap<u64, PageRemoval>,
    puts: BTreeMap<u64, PageInsertion>,
    /// The address spaces that threads are changing now.
    under_way: BTreeSet<u64>,
    /// The number of threads that are removing pages now.
    taking: usize,
}

impl PendingChanges {
    pub(super) fn put(&mut self, put: PageInsertion) {
        let other = self.puts.insert(put.mm, put);
        debug_assert!(other.is_none(), "the previous page is removed first");
    }

    /// Queues a removal. If the page still waits to be inserted, neither the insertion nor the removal is needed: drops
    /// the insertion and returns the removal.
    pub(super) fn take(&mut self, take: PageRemoval) -> Option<PageRemoval> {
        if self.puts.remove(&take.mm).is_some() {
            return Some(take);
        }
        let other = self.takes.insert(take.mm, take);
        debug_assert!(other.is_none(), "no other page was inserted since");
        None
    }

    /// Returns the changes that the calling thread may make now. The thread calls [`done`](Self::done) after it has
    /// made them.
    pub(super) fn next(&mut self) -> Option<Batch> {
        // If programs connect continuously, pages to be inserted always wait. If no thread removed pages during that
        // time, the map would fill up.
        let batch = if self.taking == 0 {
            self.next_takes().or_else(|| self.next_puts())
        } else {
            self.next_puts().or_else(|| self.next_takes())
        }?;
        self.under_way.extend(&batch.spaces);
        Some(batch)
    }

    fn next_puts(&mut self) -> Option<Batch> {
        let Self { takes, puts, under_way, .. } = self;
        let ready = puts.extract_if(.., |mm, _| !under_way.contains(mm) && !takes.contains_key(mm));
        let (spaces, ready): (BTreeSet<_>, Vec<_>) = ready.unzip();
        (!ready.is_empty()).then_some(Batch { changes: Changes::Puts(ready), spaces })
    }

    fn next_takes(&mut self) -> Option<Batch> {
        if self.taking == TAKING {
            return None;
        }
        let Self { takes, under_way, .. } = self;
        let (spaces, ready): (BTreeSet<_>, Vec<_>) = takes.extract_if(.., |mm, _| !under_way.contains(mm)).unzip();
        self.taking += usize::from(!ready.is_empty());
        (!ready.is_empty()).then_some(Batch { changes: Changes::Takes(ready), spaces })
    }

    /// Returns whether no change waits.
    pub(super) fn is_empty(&self) -> bool {
        self.takes.is_empty() && self.puts.is_empty()
    }

    /// Records that the changes were made.
    pub(super) fn done(&mut self, Batch { changes, spaces }: Batch) {
        self.under_way.retain(|mm| !spaces.contains(mm));
        self.taking -= usize::from(matches!(changes, Changes::Takes(_)));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn put(mm: u64, name: u64) -> PageInsertion {
        let file = || Arc::new(OwnedFd::from(File::open("/dev/null").expect("the device file exists")));
        PageInsertion { mm, name, page: file(), doorbell: file(), progress: Progress::default() }
    }

    fn take(mm: u64, name: u64) -> PageRemoval {
        PageRemoval { mm, name, _charge: None }
    }

    /// Returns "+" and the names of pages that are inserted, or "-" and the names of pages that are removed.
    fn names(batch: &Option<Batch>) -> String {
        match batch.as_ref().map(|batch| &batch.changes) {
            None => String::new(),
            Some(Changes::Puts(puts)) => format!("+{:?}", puts.iter().map(|put| put.name).collect::<Vec<_>>()),
            Some(Changes::Takes(takes)) => format!("-{:?}", takes.iter().map(|take| take.name).collect::<Vec<_>>()),
        }
    }

    #[test]
    fn updates_of_one_address_space_are_serialized() {
        let mut waiting = PendingChanges::default();
        waiting.put(put(1, 10));
        let first = waiting.next();
        assert_eq!(names(&first), "+[10]");
        assert!(waiting.take(take(1, 10)).is_none());
        waiting.put(put(1, 11));
        assert_eq!(names(&waiting.next()), "", "the page is not inserted yet");
        waiting.done(first.expect("a batch"));
        let second = waiting.next();
        assert_eq!(names(&second), "-[10]", "the previous page is still present");
        assert_eq!(names(&waiting.next()), "", "the page is not removed yet");
        waiting.done(second.expect("a batch"));
        assert_eq!(names(&waiting.next()), "+[11]");
    }

    #[test]
    fn page_removed_before_insertion_is_never_inserted() {
        let mut waiting = PendingChanges::default();
        waiting.put(put(1, 10));
        assert!(waiting.take(take(1, 10)).is_some());
        assert_eq!(names(&waiting.next()), "");
    }

    #[test]
    fn updates_of_different_address_spaces_are_concurrent() {
        let mut waiting = PendingChanges::default();
        waiting.take(take(1, 10));
        waiting.put(put(2, 20));
        waiting.put(put(3, 30));
        let batches = [waiting.next(), waiting.next()];
        assert_eq!(
            batches.each_ref().map(names),
            ["-[10]", "+[20, 30]"],
            "a page is removed although others are waiting to be inserted"
        );
        waiting.take(take(4, 40));
        let second = waiting.next();
        assert_eq!(names(&second), "-[40]");
        waiting.take(take(5, 50));
        assert_eq!(names(&waiting.next()), "", "some threads are left for new clients");
        waiting.put(put(6, 60));
        assert_eq!(
            names(&waiting.next()),
            "+[60]",
            "insertions come before removals while another thread removes pages"
        );
        waiting.done(second.expect("a batch"));
        assert_eq!(names(&waiting.next()), "-[50]");
    }
}
