//! The mapped page that the kernel programs write and a client reads: [`crate::journal::JournalPage`].
#![expect(unsafe_code, reason = "maps the page; each block states its own reason")]

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap_fixed, munmap};

use crate::journal;

pub(super) use crate::journal::page::{ENDED, SALT};
/// The number of records that fit before the oldest is overwritten.
pub const RECORDS: usize = journal::page::RECORDS;
/// The number of inodes that one page can watch.
pub const SLOTS: usize = journal::page::INODES;

/// The size in bytes of a page in the kernel: nine memory pages.
pub(super) const SIZE: usize = size_of::<journal::JournalPage>();
/// Index of the word that identifies the layout.
pub(super) const LAYOUT: usize = 11;
/// Index of the word that identifies the page, and the ring that wakes waiting threads.
pub(super) const NAME: usize = 12;

/// A change of the address space, as reported to a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These addresses may now have other pages, no pages, or fewer permissions. Ends are multiples of 4096.
    Range(Range<u64>),
    /// Any address may have changed.
    Everything,
}

/// The kernel's reports on one address space, in a mapping that only the kernel programs can write.
///
/// A hit loads, in this order: the position that the cache has drained to ([`Ordering::Acquire`]), the entry (and, for
/// shared memory, [`Page::inode`], which is compared with the entry's), and then [`Page::head`], which must equal the
/// position. Inserting requires more; see [`super::Monitor`].
pub struct Page {
    base: NonNull<journal::JournalPage>,
}

// SAFETY: the mapping is read only by atomic loads and stays until the value is dropped.
unsafe impl Send for Page {}
// SAFETY: as for Send; no method writes.
unsafe impl Sync for Page {}

impl Page {
    /// Maps the page behind `map`, a descriptor of the kernel's map.
    ///
    /// # Errors
    /// Errors of mmap(2); `InvalidData` if the map has another layout than this build expects.
    pub(super) fn open(map: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap(ptr::null_mut(), SIZE, ProtFlags::READ, MapFlags::SHARED, map, 0) }?;
        let base = NonNull::new(base.cast::<journal::JournalPage>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let page = Self { base };
        if !page.journal().is_known() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the page of reports has an unknown layout"));
        }
        Ok(page)
    }

    /// Returns the page.
    #[inline]
    pub(crate) fn journal(&self) -> &journal::JournalPage {
        // SAFETY: the memory is mapped and aligned as long as `self` exists. All writers write it atomically, and it is
        // read atomically. It cannot be written through this mapping: its words are only loaded. For loads from such
        // memory, std::sync::atomic guarantees relaxed loads of a word. This code relies on acquire loads being plain
        // loads with an ordering: on x86-64 they are the same instruction, on aarch64 another load (LDAR).
        unsafe { self.base.as_ref() }
    }

    /// Ends the page for this process, regardless of later writes by the kernel: a page that is marked as ended
    /// replaces it in one step.
    ///
    /// # Errors
    /// There is not enough memory, or there are too many mappings.
    pub(super) fn end(&self) -> io::Result<()> {
        let last = journal::JournalPage::boxed();
        // This is beyond every position that a reader has read.
        last.head.store(self.head() + (1 << 62), Ordering::Release);
        last.busy.store(ENDED, Ordering::Release);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let new = unsafe { mmap_anonymous(ptr::null_mut(), SIZE, rights, MapFlags::PRIVATE) }?;
        // SAFETY: the mapping is large enough, page-aligned, and used only by this function.
        unsafe { new.cast::<journal::JournalPage>().write(*last) };
        // SAFETY: the mapping at `base` belongs to this value and is read only by atomic loads, which find either the
        // old words or the new ones. The new mapping belongs to this function.
        let moved = unsafe { mremap_fixed(new, SIZE, SIZE, MremapFlags::MAYMOVE, self.base.as_ptr().cast()) };
        if let Err(why) = moved {
            // SAFETY: the mapping was made above and still belongs to this function.
            unsafe { munmap(new, SIZE) }?;
            return Err(why.into());
        }
        Ok(())
    }

    /// Returns the number of records written so far. It increases with each reported change of the address space, so an
    /// unchanged value means that there was no such change. Pages that are removed from a watched inode are counted by
    /// [`Page::inode`].
    #[inline]
    #[must_use]
    pub fn head(&self) -> u64 {
        self.journal().head.load(Ordering::Acquire)
    }

    /// Returns whether a change has begun that will not be reported when it ends, or the reports have ended. Memory
    /// that is pinned now may be used once, and must not be kept.
    #[inline]
    #[must_use]
    pub fn busy(&self) -> bool {
        self.journal().busy.load(Ordering::Acquire) != 0
    }

    /// Returns whether the reports have ended, permanently: the address space has ended, or reports may be missing.
    pub(super) fn has_ended(&self) -> bool {
        self.journal().has_ended()
    }

    /// Returns the number of pages that were removed from the page cache of the inode that `slot` watches. An entry of
    /// a shared mapping is valid as long as this value is the one from before its memory was pinned.
    #[inline]
    #[must_use]
    pub fn inode(&self, slot: Slot) -> u64 {
        self.journal().inodes[usize::from(slot.0)].load(Ordering::Acquire)
    }

    /// Returns the changes since `seen` (a head from earlier). When the cache has processed all of them, it has drained
    /// to [`Drain::head`].
    #[must_use]
    pub fn drain(&self, seen: u64) -> Drain<'_> {
        let head = self.head();
        // A position beyond the head is an error of the caller; "everything" is correct in that case too.
        let lost = head.wrapping_sub(seen) > RECORDS as u64;
        Drain { page: self, at: seen, head, lost, over: false }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and there are no more borrows of it.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), SIZE) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("head", &self.head()).field("busy", &self.busy()).finish_non_exhaustive()
    }
}

/// The number of a watched inode in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(u8);

impl Slot {
    /// Converts `index` to a slot, if a page has that many slots.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        u8::try_from(index).ok().filter(|&i| usize::from(i) < SLOTS).map(Self)
    }

    /// Returns the slot's number, which is less than [`SLOTS`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Changes in the order in which they were reported. Ends after [`Change::Everything`], which includes all later
/// changes.
#[derive(Debug)]
pub struct Drain<'a> {
    page: &'a Page,
    at: u64,
    head: u64,
    lost: bool,
    over: bool,
}

impl Drain<'_> {
    /// Returns the position of a cache that has processed all changes of this drain.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head
    }
}

impl Iterator for Drain<'_> {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        if self.over || (self.at == self.head && !self.lost) {
            return None;
        }
        let change = if self.lost { journal::ChangedAddresses::Everything } else { self.page.journal().read(self.at) };
        self.at = self.at.wrapping_add(1);
        Some(match change {
            journal::ChangedAddresses::Of(range) => Change::Range(range.start()..range.end()),
            journal::ChangedAddresses::Everything => {
                self.over = true;
                Change::Everything
            }
        })
    }
}
