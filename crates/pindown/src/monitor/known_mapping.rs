//! The mapping that a monitor queried last.

use crate::journal::JournalPage;
use crate::range::Range;
use crate::sync::{AtomicU64, Ordering, fence};

/// A mapping that can be watched, cached until any change is reported: a mapping is replaced by another only after its
/// removal was reported. So many registrations in one mapping need only one query of the kernel.
///
/// Every miss reads the cached mapping, and only results of queries are written. So there is no lock: a version
/// indicates whether the words that were read belong together.
#[derive(Debug)]
pub(crate) struct KnownMapping {
    /// Odd while a thread writes the other words.
    version: AtomicU64,
    start: AtomicU64,
    /// 0 if no mapping is cached.
    end: AtomicU64,
    /// The page's head when the mapping was queried.
    head: AtomicU64,
}

/// The page's head before a query; `None` while a change is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueryPosition(Option<u64>);

impl QueryPosition {
    /// Reads the page's head; called before the query. While a change is under way, the result of a query is not
    /// cached.
    pub(crate) fn now(page: &JournalPage) -> Self {
        let head = page.head.load(Ordering::Acquire);
        Self((page.busy.load(Ordering::Acquire) == 0).then_some(head))
    }
}

impl Default for KnownMapping {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { version: zero(), start: zero(), end: zero(), head: zero() }
    }
}

impl KnownMapping {
    /// Returns whether the range is in the cached mapping, and this mapping is still valid. Returns `false` while
    /// another thread writes: that thread has just made a query, and the caller may also make one.
    pub(crate) fn has(&self, range: Range, now: QueryPosition) -> bool {
        let version = self.version.load(Ordering::Acquire);
        let [start, end, head] = [&self.start, &self.end, &self.head].map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        is_whole && now.0 == Some(head) && start <= range.start() && range.end() <= end
    }

    /// Caches `mapping`, a mapping that can be watched, as the result of a query that was made after `since`. If two
    /// threads store a result at the same time, one of the two is kept.
    pub(crate) fn learn(&self, mapping: Range, since: QueryPosition) {
        let version = self.version.load(Ordering::Relaxed);
        let is_free = version.is_multiple_of(2);
        let mine = || self.version.compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !is_free || !mine() {
            return;
        }
        // A thread that reads one of these words also reads a version that indicates the write.
        fence(Ordering::Release);
        let (start, end, head) = since.0.map_or((0, 0, 0), |head| (mapping.start(), mapping.end(), head));
        for (word, value) in [(&self.start, start), (&self.end, end), (&self.head, head)] {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::journal::ChangedAddresses;

    #[test]
    fn known_mapping_is_forgotten_after_any_change() {
        let page = JournalPage::boxed();
        let known = KnownMapping::default();
        let range = |start, len| Range::new(start, len).expect("a range");
        let before = QueryPosition::now(&page);
        assert!(!known.has(range(0x2000, 0x1000), before));
        known.learn(range(0x1000, 0x4000), before);
        assert!(known.has(range(0x2000, 0x1000), QueryPosition::now(&page)));
        assert!(!known.has(range(0x4000, 0x2000), QueryPosition::now(&page)), "longer than the known mapping");
        page.emit(ChangedAddresses::Of(range(0x9000, 0x1000)));
        assert!(!known.has(range(0x2000, 0x1000), QueryPosition::now(&page)));
        // The query was made before that change, so its result may be older than the change.
        known.learn(range(0x1000, 0x4000), before);
        assert!(!known.has(range(0x2000, 0x1000), QueryPosition::now(&page)));
        page.busy.store(1, Ordering::Release);
        known.learn(range(0x1000, 0x4000), QueryPosition::now(&page));
        assert!(!known.has(range(0x2000, 0x1000), QueryPosition::now(&page)), "a change is under way");
        page.busy.store(0, Ordering::Release);
        assert!(!known.has(range(0x2000, 0x1000), QueryPosition::now(&page)), "nothing was learnt during the change");
    }
}

/// Loom model: a thread queries a mapping and caches the result, while the mapping is replaced by another.
#[cfg(all(test, loom))]
mod model {
    use std::sync::Arc;

    use loom::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::journal::ChangedAddresses;
    use crate::sync::explore;

    /// A mapping, its monitor, and the cached mapping.
    struct World {
        page: &'static JournalPage,
        known: KnownMapping,
        /// The number of the current mapping, which determines the range that a query returns.
        mapping: AtomicU64,
        /// The number of changes that have not been read. Counted before the mapping is removed, as userfaultfd(2)
        /// does.
        unread: AtomicU64,
        /// The number of changes that have been reported in full, plus one.
        reported: AtomicU64,
    }

    fn world() -> Arc<World> {
        Arc::new(World {
            page: Box::leak(JournalPage::boxed()),
            known: KnownMapping::default(),
            mapping: AtomicU64::new(1),
            unread: AtomicU64::new(0),
            reported: AtomicU64::new(1),
        })
    }

    fn mapping(number: u64) -> Range {
        Range::new(0x1000, number * 0x1000).expect("a range")
    }

    impl World {
        /// A change under a monitor that marks the page before it reads a change, and reports the change afterwards.
        fn change_and_mark_first(&self) {
            self.unread.fetch_add(1, Ordering::SeqCst);
            self.mapping.fetch_add(1, Ordering::SeqCst);
            self.page.busy.store(1, Ordering::Release);
            self.page.emit(ChangedAddresses::Of(mapping(1)));
            // The change is read, so the thread that made it continues.
            self.unread.fetch_sub(1, Ordering::SeqCst);
            self.page.emit(ChangedAddresses::Of(mapping(1)));
            self.page.busy.store(0, Ordering::Release);
        }

        /// A change under a monitor that reports it when it is over, before the thread that made it continues.
        fn change_and_report(&self) {
            self.mapping.fetch_add(1, Ordering::SeqCst);
            self.page.emit(ChangedAddresses::Of(mapping(1)));
            self.reported.fetch_add(1, Ordering::SeqCst);
        }

        /// A change under a monitor that reports it when it begins, and marks the page until it is over (the kernel
        /// monitor, on kernels that free page tables early).
        fn report_and_change(&self) {
            self.page.busy.store(1, Ordering::Release);
            self.page.emit(ChangedAddresses::Of(mapping(1)));
            self.mapping.fetch_add(1, Ordering::SeqCst);
            self.page.busy.store(0, Ordering::Release);
        }

        /// Looks up the mapping as a miss does. Returns the cached mapping, if there is one.
        fn look(&self) -> Option<u64> {
            let now = (self.unread.load(Ordering::SeqCst) == 0).then(|| QueryPosition::now(self.page));
            let known = now.and_then(|now| (1..=3).rev().find(|number| self.known.has(mapping(*number), now)));
            if known.is_none() {
                let found = self.mapping.load(Ordering::SeqCst);
                if let Some(now) = now {
                    self.known.learn(mapping(found), now);
                }
            }
            known
        }
    }

    #[test]
    fn loom_a_known_mapping_against_its_change() {
        explore(None, 10, || {
            let world = world();
            world.look();
            let changer = loom::thread::spawn({
                let world = Arc::clone(&world);
                move || world.change_and_report()
            });
            // If the removal of a mapping was reported before the look-up began, the mapping no longer exists.
            let reported = world.reported.load(Ordering::SeqCst);
            assert!(world.look().is_none_or(|known| known >= reported));
            changer.join().expect("no panic");
            assert!(world.look().is_none_or(|known| known == 2));
            assert!(world.look().is_none_or(|known| known == 2));
        });
    }

    #[test]
    fn loom_a_known_mapping_against_a_monitor_that_reports_first() {
        explore(None, 1700, || {
            let world = world();
            world.look();
            let changer = loom::thread::spawn({
                let world = Arc::clone(&world);
                move || world.report_and_change()
            });
            world.look();
            let there = world.mapping.load(Ordering::SeqCst);
            assert!(
                world.look().is_none_or(|known| known >= there),
                "a mapping learnt during the change is not known afterwards"
            );
            changer.join().expect("no panic");
            assert!(world.look().is_none_or(|known| known == 2));
        });
    }

    #[test]
    fn loom_a_known_mapping_against_a_monitor_that_marks_first() {
        explore(Some(3), 1000, || {
            let world = world();
            world.look();
            let changer = loom::thread::spawn({
                let world = Arc::clone(&world);
                move || world.change_and_mark_first()
            });
            // This stands for another thread that has detected the new mapping, which it may have mapped there itself.
            let there = world.mapping.load(Ordering::SeqCst);
            assert!(world.look().is_none_or(|known| known >= there), "the mapping had already changed");
            assert!(world.look().is_none_or(|known| known >= there), "a mapping learnt meanwhile is the new one");
            changer.join().expect("no panic");
            assert!(world.look().is_none_or(|known| known == 2));
        });
    }

    /// A reader finds a range only in one of the mappings that were cached, and never in a mixture of two.
    #[test]
    fn loom_a_reader_of_a_known_mapping_against_its_writer() {
        explore(Some(3), 300, || {
            let now = QueryPosition(Some(0));
            let pages = |first: u64, count: u64| Range::new(first * 0x1000, count * 0x1000).expect("a range");
            let known = Arc::new(KnownMapping::default());
            known.learn(pages(1, 1), now);
            let reader = loom::thread::spawn({
                let known = Arc::clone(&known);
                move || assert!(!known.has(pages(1, 4), now), "the start of one mapping and the end of another")
            });
            known.learn(pages(3, 2), now);
            reader.join().expect("no panic");
            assert!(known.has(pages(3, 2), now) && !known.has(pages(1, 1), now));
        });
    }
}
