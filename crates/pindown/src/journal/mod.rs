//! The changes that a monitor has reported, and how many of them a cache has processed.
//!
//! *A cached registration may be used if no change was reported since the cache last processed the journal.* The
//! cache's position in the journal, `seen`, is one word. It is stored (Release) only after everything that was reported
//! before it has been removed from the cache. A hit loads `seen` first (Acquire), then looks up its entry, and then
//! compares the journal's head with `seen`. If both are equal, the hit has read the effects of every removal that the
//! journal requested up to that moment.
//!
//! `seen` is in memory that the kernel wipes in a forked child. There the comparison always fails, so the child does
//! not use its parent's registrations.

pub(crate) mod doorbell;
mod fork_wiped;
pub(crate) mod page;
mod process;
#[cfg(not(loom))]
pub(crate) mod unread_changes;
mod words;

pub(crate) use doorbell::{EventDoorbell, MonitorDoorbell, WaitingThread};
#[cfg(not(loom))]
pub(crate) use fork_wiped::ForkToken;
pub(crate) use fork_wiped::ForkWipedWord;
pub(crate) use page::{ChangedAddresses, JournalPage};
pub(crate) use process::PerProcess;

use std::os::fd::BorrowedFd;

#[cfg(not(loom))]
use crate::sync::fence;
use crate::sync::{AtomicU64, Ordering};

/// One cache's view of a monitor's page.
#[derive(Debug)]
pub(crate) struct Journal {
    /// The monitor's page; for a monitor that reports nothing, a page that never changes.
    page: &'static JournalPage,
    /// Whether changes may be reported.
    reported: bool,
    /// Whether the monitor marks the page before it has read which addresses changed: while the page is marked, the
    /// reports are not complete.
    waits: bool,
    /// The userfaultfd that hits must query first, if there is one.
    queried_uffd: Option<BorrowedFd<'static>>,
    /// The number of processed records, plus one; 0 in a forked child.
    seen: ForkWipedWord,
    /// The word of `seen`. If hits must make a system call first, a word that is always 0.
    seen_by_hits: &'static AtomicU64,
}

/// The result of processing the reported changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// All reported changes are processed.
    Settled,
    /// The monitor is in the middle of a report. The caller must process the journal again later.
    Unsettled,
}

impl Journal {
    /// Creates a cache's view of a page.
    ///
    /// # Errors
    /// The kernel cannot allocate memory for the word.
    pub(crate) fn new(
        page: Option<&'static JournalPage>,
        waits: bool,
        queried_uffd: Option<BorrowedFd<'static>>,
    ) -> std::io::Result<Self> {
        let seen = ForkWipedWord::new(1 + page.map_or(0, |page| page.head.load(Ordering::Acquire)))?;
        let seen_by_hits = if queried_uffd.is_some() { zero_word() } else { seen.word() };
        Ok(Self {
            page: page.unwrap_or_else(silent),
            reported: page.is_some(),
            waits,
            queried_uffd,
            seen,
            seen_by_hits,
        })
    }

    /// Returns whether this process is a forked child of the process that made the journal.
    #[inline]
    pub(crate) fn forked(&self) -> bool {
        self.seen.load(Ordering::Relaxed) == 0
    }

    /// Returns the cache's position, to be read before a look-up. Returns 0, which is not a position, if
    /// [`Self::seen_by_call`] must be called. With monitors that need a system call, the cost of a function call is
    /// small in comparison. With all others, hits need no branch.
    #[inline]
    pub(crate) fn seen(&self) -> u64 {
        self.seen_by_hits.load(Ordering::Acquire)
    }

    /// Like [`Self::seen`], but for monitors that need a system call first: returns 0 while a change is under way that
    /// has not been read. `None` for other monitors, for which [`Self::seen`] is sufficient.
    #[inline]
    pub(crate) fn seen_by_call(&self) -> Option<u64> {
        self.queried_uffd.is_some().then(|| if self.changing() { 0 } else { self.seen.load(Ordering::Acquire) })
    }

    /// Returns whether a change is under way that has not been read. Also returns true if the kernel cannot answer:
    /// from then on no cache of the process keeps a registration.
    #[cfg(not(loom))]
    #[inline]
    fn changing(&self) -> bool {
        use unread_changes::{UnreadChanges, ask};
        let Some(queried_uffd) = self.queried_uffd else { return false };
        let answer = ask(queried_uffd);
        // Later loads of the journal are not performed before the system call has returned: a system call does not
        // order loads by itself.
        fence(Ordering::Acquire);
        match answer {
            UnreadChanges::Settled => false,
            UnreadChanges::Changing => true,
            UnreadChanges::Unanswered => {
                self.page.end();
                true
            }
        }
    }

    #[cfg(loom)]
    fn changing(&self) -> bool {
        self.queried_uffd.is_some()
    }

    /// Returns whether no change was reported since `seen`. Called after a look-up that found its entry.
    #[inline]
    pub(crate) fn still(&self, seen: u64) -> bool {
        self.page.head.load(Ordering::Acquire).wrapping_add(1) == seen
    }

    /// Returns the number of times that pages were removed from the file watched at `slot`.
    #[inline]
    pub(crate) fn inode(&self, slot: u32) -> u64 {
        self.page.inodes.get(slot as usize).map_or(0, |count| count.load(Ordering::Acquire))
    }

    /// Returns whether the monitor's reports have ended.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.page.has_ended()
    }

    /// Returns whether a change is under way that was reported when it began and may not be reported again, or whether
    /// the reports have ended. A monitor that marks the page first reports the change afterwards, so its mark is
    /// ignored here.
    #[inline]
    pub(crate) fn busy(&self) -> bool {
        (!self.waits && self.marked()) || self.has_ended()
    }

    #[inline]
    fn marked(&self) -> bool {
        self.page.busy.load(Ordering::Acquire) != 0
    }

    /// Processes the reported changes by calling `apply` for each. Called by one thread at a time.
    #[expect(
        clippy::inline_always,
        reason = "called twice at each miss, saves 4 ns of 98: usually nothing was reported"
    )]
    #[inline(always)]
    pub(crate) fn drain(&self, apply: impl FnMut(ChangedAddresses)) -> Drained {
        if !self.reported {
            return Drained::Settled;
        }
        // While a change has not been read, the thread that makes it waits. But for other threads the change may
        // already be over, and they may map the addresses again.
        let changing = self.changing();
        // A monitor that has ended reports "everything" last.
        let ended = self.page.has_ended();
        if changing && !ended {
            return Drained::Unsettled;
        }
        let seen = self.seen.load(Ordering::Relaxed) - 1;
        let head = self.page.head.load(Ordering::Acquire);
        // Loaded after the head, so a mark that was set before a counted record is visible until the monitor clears it.
        if self.waits && self.marked() && !ended {
            return Drained::Unsettled;
        }
        if head != seen {
            self.take_in(seen, head, apply);
        }
        Drained::Settled
    }

    /// Separate from [`Self::drain`], because usually no change was reported.
    #[cold]
    #[inline(never)]
    fn take_in(&self, seen: u64, head: u64, mut apply: impl FnMut(ChangedAddresses)) {
        if head - seen > page::RECORDS as u64 {
            apply(ChangedAddresses::Everything);
        } else {
            for number in seen..head {
                let change = self.page.read(number);
                apply(change);
                if change == ChangedAddresses::Everything {
                    break;
                }
            }
        }
        self.seen.store(head + 1, Ordering::Release);
    }
}

/// Returns a word that is always 0.
fn zero_word() -> &'static AtomicU64 {
    #[cfg(not(loom))]
    {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        &NOWHERE
    }
    // Loom's atomics belong to one run of a model.
    #[cfg(loom)]
    Box::leak(Box::new(AtomicU64::new(0)))
}

/// Returns the page for caches with a monitor that reports nothing.
fn silent() -> &'static JournalPage {
    #[cfg(not(loom))]
    {
        static SILENT: PerProcess<&JournalPage> = PerProcess::new();
        *SILENT.lock(|| Box::leak(JournalPage::boxed()))
    }
    // Loom's atomics belong to one run of a model.
    #[cfg(loom)]
    Box::leak(JournalPage::boxed())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::range::Range;

    fn journal(waits: bool) -> (&'static JournalPage, Journal) {
        let page: &'static JournalPage = Box::leak(JournalPage::boxed());
        (page, Journal::new(Some(page), waits, None).expect("memory"))
    }

    fn drained(journal: &Journal) -> Vec<ChangedAddresses> {
        let mut changes = Vec::new();
        assert_eq!(journal.drain(|change| changes.push(change)), Drained::Settled);
        changes
    }

    fn range(start: u64) -> Range {
        Range::new(start, 10).expect("a range")
    }

    #[test]
    fn reports_are_processed_once_and_in_order() {
        let (page, journal) = journal(false);
        let seen = journal.seen();
        assert!(journal.still(seen));
        page.emit(ChangedAddresses::Of(range(10)));
        page.emit(ChangedAddresses::Of(range(30)));
        assert!(!journal.still(seen), "changes were reported since");
        assert_eq!(drained(&journal), [ChangedAddresses::Of(range(10)), ChangedAddresses::Of(range(30))]);
        assert!(journal.still(journal.seen()));
        assert_eq!(drained(&journal), []);
    }

    /// Requirements: MON-047.
    #[test]
    fn overrun_reader_receives_a_change_of_everything() {
        let (page, journal) = journal(false);
        for n in 0..page::RECORDS as u64 {
            page.emit(ChangedAddresses::Of(range(n)));
        }
        assert_eq!(drained(&journal).len(), page::RECORDS, "a full ring is read completely");
        for n in 0..=page::RECORDS as u64 {
            page.emit(ChangedAddresses::Of(range(n)));
        }
        assert_eq!(drained(&journal), [ChangedAddresses::Everything]);
        page.emit(ChangedAddresses::Everything);
        page.emit(ChangedAddresses::Of(range(1)));
        assert_eq!(drained(&journal), [ChangedAddresses::Everything], "other changes are not reported separately");
    }

    #[test]
    fn incomplete_record_is_a_change_of_everything() {
        let (page, journal) = journal(false);
        page.head.fetch_add(1, Ordering::AcqRel);
        assert_eq!(drained(&journal), [ChangedAddresses::Everything]);
    }

    #[test]
    fn busy_marking_monitor_is_awaited() {
        let (page, journal) = journal(true);
        let seen = journal.seen();
        page.busy.store(1, Ordering::Release);
        page.emit(ChangedAddresses::Of(range(0)));
        assert!(!journal.still(seen));
        assert_eq!(journal.drain(|change| panic!("unexpected change {change:?}")), Drained::Unsettled);
        assert!(!journal.still(journal.seen()), "no hit while the monitor reads");
        page.emit(ChangedAddresses::Of(range(50)));
        page.busy.store(0, Ordering::Release);
        assert_eq!(drained(&journal), [ChangedAddresses::Of(range(0)), ChangedAddresses::Of(range(50))]);
    }

    /// Requirements: MON-035.
    #[test]
    fn every_cache_detects_the_end_of_a_monitor() {
        for waits in [false, true] {
            let (page, one) = journal(waits);
            let other = Journal::new(Some(page), waits, None).expect("memory");
            let seen = [&one, &other].map(Journal::seen);
            // The monitor's thread was in the middle of a report.
            page.busy.store(u64::from(waits), Ordering::Release);
            page.end();
            page.end();
            for (journal, seen) in [&one, &other].into_iter().zip(seen) {
                assert!(!journal.still(seen));
                assert_eq!(drained(journal), [ChangedAddresses::Everything], "all memory is treated as changed");
                assert!(journal.busy(), "no registration is kept from now on");
            }
        }
    }
}

/// Loom model: a look-up reads the cache's position while another thread processes a change.
#[cfg(all(test, loom))]
mod model {
    use std::sync::Arc;

    use super::*;
    use crate::sync::explore;

    #[test]
    fn loom_a_position_is_read_before_the_removals_that_it_includes() {
        explore(None, 10, || {
            let page: &'static JournalPage = Box::leak(JournalPage::boxed());
            let journal = Arc::new(Journal::new(Some(page), false, None).expect("memory"));
            let before = journal.seen();
            let is_live = Arc::new(AtomicU64::new(1));
            // The removal loads the position before it stores it. In the spawned thread, that load would hide the
            // store's conflict with the look-up from loom.
            let look_up = loom::thread::spawn({
                let (journal, is_live) = (Arc::clone(&journal), Arc::clone(&is_live));
                move || {
                    let seen = journal.seen();
                    let is_found = is_live.load(Ordering::Relaxed) == 1;
                    if seen != before && journal.still(seen) {
                        assert!(!is_found, "a hit finds an entry that was removed before the position was stored");
                    }
                }
            });
            page.emit(ChangedAddresses::Everything);
            journal.drain(|_| is_live.store(0, Ordering::Relaxed));
            look_up.join().expect("no panic");
        });
    }
}
