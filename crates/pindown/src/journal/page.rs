//! The page in which a monitor reports changes: a ring of ranges, and counters of watched files.
//!
//! One monitor writes the page (the kernel programs, or a thread), and every cache of the process reads it. A record is
//! valid if its number and its check agree. Readers load a record that is being written only a limited number of times.
//! They treat a record that they cannot read as a change of everything. The layout is shared with the kernel programs
//! (bpf/page.h).

use crate::range::Range;
use crate::sync::{AtomicU64, Ordering, fence};

/// The number of records in the ring. A reader that falls further behind drops all cached registrations.
#[cfg(not(loom))]
pub(crate) const RECORDS: usize = 1024;
#[cfg(loom)]
pub(crate) const RECORDS: usize = 2;

/// The number of files that can be watched at a time.
#[cfg(not(loom))]
pub(crate) const INODES: usize = 64;
#[cfg(loom)]
pub(crate) const INODES: usize = 1;

/// The number of times that a reader loads a record that is being written.
#[cfg(not(loom))]
const LOOKS: u32 = 1000;
#[cfg(loom)]
const LOOKS: u32 = 0;

/// Identifies the layout of a page. It is also part of every record's check, so that zeroed memory is not a valid
/// record.
pub(crate) const SALT: u64 = 0x7069_6e64_6f77_6e31;

/// The bit of [`JournalPage::busy`] that is set permanently when reports have ended.
pub(crate) const ENDED: u64 = 1 << 62;

/// The addresses with changed pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangedAddresses {
    /// The pages of this range changed.
    Of(Range),
    /// The changed addresses are unknown: no cached registration may be used again.
    Everything,
}

/// A record of one range.
#[derive(Debug)]
#[repr(C)]
struct Record {
    /// The record's number plus one; 0 while the record is being written.
    number: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    /// The exclusive or of the words above (the number without the added one) and [`SALT`].
    check: AtomicU64,
}

/// The page that a monitor writes and caches read.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct JournalPage {
    /// The number of records that were written or are being written.
    pub(crate) head: AtomicU64,
    unused: [u64; 7],
    /// Not 0 while a change is under way that may not have been reported yet. Then no registration may be inserted.
    pub(crate) busy: AtomicU64,
    /// Used by the kernel programs only.
    own: [u64; 2],
    /// [`SALT`].
    layout: AtomicU64,
    /// Used by the kernel programs only.
    doorbell: u64,
    unused_too: [u64; 3],
    /// For each watched file, the number of times that pages were removed from it.
    pub(crate) inodes: [AtomicU64; INODES],
    fill: [u64; FILL],
    records: [Record; RECORDS],
}

/// Pads to the ring, which begins at byte 4,096.
#[cfg(not(loom))]
const FILL: usize = 512 - 16 - INODES;
#[cfg(loom)]
const FILL: usize = 0;

#[cfg(not(loom))]
const _: () =
    assert!(std::mem::offset_of!(JournalPage, records) == 4096 && size_of::<JournalPage>() == 4096 + RECORDS * 32);

impl JournalPage {
    /// Allocates an empty page on the heap, for monitors that are not in the kernel.
    pub(crate) fn boxed() -> Box<Self> {
        let zero = |_| AtomicU64::new(0);
        let empty = |n| Record { number: zero(n), start: zero(n), end: zero(n), check: zero(n) };
        Box::new(Self {
            head: AtomicU64::new(0),
            unused: [0; 7],
            busy: AtomicU64::new(0),
            own: [0; 2],
            layout: AtomicU64::new(SALT),
            doorbell: 0,
            unused_too: [0; 3],
            inodes: std::array::from_fn(zero),
            fill: [0; FILL],
            records: std::array::from_fn(empty),
        })
    }

    /// Returns whether the page has the layout that this code expects.
    #[cfg(not(loom))]
    pub(crate) fn is_known(&self) -> bool {
        self.layout.load(Ordering::Relaxed) == SALT
    }

    /// Returns whether the reports have ended, so that no registration may be kept.
    pub(crate) fn has_ended(&self) -> bool {
        self.busy.load(Ordering::Acquire) & ENDED != 0
    }

    /// Ends the reports. Every cache of the process detects it at its next look-up. For pages on the heap.
    #[cfg(not(loom))]
    pub(crate) fn end(&self) {
        if self.busy.fetch_or(ENDED, Ordering::AcqRel) & ENDED == 0 {
            self.emit(ChangedAddresses::Everything);
        }
    }

    /// Reports a change. May be called by any number of threads at once. Does not allocate or wait.
    pub(crate) fn emit(&self, change: ChangedAddresses) {
        let range = match change {
            ChangedAddresses::Of(range) => range,
            ChangedAddresses::Everything => Range::ALL,
        };
        self.write(self.head.fetch_add(1, Ordering::AcqRel), range);
    }

    fn write(&self, number: u64, range: Range) {
        let record = &self.records[number as usize % RECORDS];
        record.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        record.start.store(range.start(), Ordering::Relaxed);
        record.end.store(range.end(), Ordering::Relaxed);
        record.check.store(range.start() ^ range.end() ^ number ^ SALT, Ordering::Relaxed);
        record.number.store(number + 1, Ordering::Release);
    }

    /// Reads record `number`. Returns [`ChangedAddresses::Everything`] if the record has been overwritten, or is still
    /// being written after several loads: a writer needs only a fraction of a microsecond, but may be preempted.
    pub(crate) fn read(&self, number: u64) -> ChangedAddresses {
        let record = &self.records[number as usize % RECORDS];
        let mut looks = 0;
        loop {
            let found = record.number.load(Ordering::Acquire);
            if found == number + 1 {
                break;
            }
            looks += 1;
            if found > number || looks > LOOKS {
                return ChangedAddresses::Everything;
            }
            std::hint::spin_loop();
        }
        let (start, end) = (record.start.load(Ordering::Relaxed), record.end.load(Ordering::Relaxed));
        let check = record.check.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // The writer of a later record in this place may be overtaken by the writer of this one, which then writes the
        // number. It has advanced the head before.
        let is_last_here = self.head.load(Ordering::Relaxed).wrapping_sub(number) <= RECORDS as u64;
        let unchanged = is_last_here && record.number.load(Ordering::Relaxed) == number + 1;
        match Range::between(start, end) {
            Some(range) if unchanged && check == start ^ end ^ number ^ SALT && range != Range::ALL => {
                ChangedAddresses::Of(range)
            }
            _ => ChangedAddresses::Everything,
        }
    }
}

/// Loom models: records are read while monitors write them.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::explore;

    /// Ranges whose ends have the same exclusive or, so that the check of one of them is valid for the others too.
    fn range(number: u64) -> Range {
        Range::new(0x4000 + number * 0x2000, 0x1000).expect("a range")
    }

    fn change(number: u64) -> ChangedAddresses {
        ChangedAddresses::Of(range(number))
    }

    /// A monitor writes a record again that a cache reads. The cache reads one of the two changes as a whole, or a
    /// change of everything.
    #[test]
    fn loom_a_record_that_is_written_again_is_not_read_in_part() {
        explore(None, 100, || {
            let page: &'static JournalPage = Box::leak(JournalPage::boxed());
            page.emit(change(0));
            let reader = loom::thread::spawn(|| [0, RECORDS as u64].map(|number| page.read(number)));
            for number in 1..=RECORDS as u64 {
                page.emit(change(number));
            }
            let read = reader.join().expect("no panic");
            for (read, number) in read.into_iter().zip([0, RECORDS as u64]) {
                assert!(read == change(number) || read == ChangedAddresses::Everything, "record {number}: {read:?}");
            }
        });
    }

    /// A thread that has its number is overtaken by another one, which writes the same place. A cache reads the change of
    /// the first, or a change of everything, but not the range of the second.
    #[test]
    fn loom_an_overtaken_writer_does_not_give_its_number_to_another_change() {
        explore(Some(3), 100, || {
            let page: &'static JournalPage = Box::leak(JournalPage::boxed());
            let number = page.head.fetch_add(1, Ordering::AcqRel);
            let overtaken = loom::thread::spawn(move || page.write(number, range(0)));
            for later in 1..=RECORDS as u64 {
                page.emit(change(later));
            }
            overtaken.join().expect("no panic");
            let read = page.read(number);
            assert!(read == change(0) || read == ChangedAddresses::Everything, "{read:?}");
        });
    }
}
