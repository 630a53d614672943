//! The page that the kernel's programs write and a client reads, mapped: [`crate::journal::Page`].
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
/// How many records fit before the oldest is overwritten.
pub const RECORDS: usize = journal::page::RECORDS;
/// How many inodes one page can watch.
pub const SLOTS: usize = journal::page::INODES;

/// Bytes of a page as the kernel keeps it: nine pages of memory.
pub(super) const SIZE: usize = size_of::<journal::Page>();
/// Index of the word that identifies the layout.
pub(super) const LAYOUT: usize = 11;
/// Index of the word that names the page, and the ring that wakes waiting threads.
pub(super) const NAME: usize = 12;

/// A change of the address space, as a cache has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These addresses may lie on other pages now, or on none, or lost a permission. Ends are multiples of 4096.
    Range(Range<u64>),
    /// Any address may.
    Everything,
}

/// What the kernel has reported of one address space: a mapping that only the kernel's programs can write.
///
/// The check on a hit needs two loads, in this order: the position that the cache has drained to ([`Ordering::Acquire`]),
/// the entry (and, of shared memory, [`Page::inode`] against the entry's), then [`Page::head`], which must equal the
/// position. Inserting needs more, see [`super::Monitor`].
pub struct Page {
    base: NonNull<journal::Page>,
}

// SAFETY: the mapping is read by atomic loads alone and stays until the value is dropped.
unsafe impl Send for Page {}
// SAFETY: as for Send; no method writes.
unsafe impl Sync for Page {}

impl Page {
    /// Maps the page that `map` (a descriptor of the kernel's map) holds.
    ///
    /// # Errors
    /// Those of mmap(2); `InvalidData` if the map has another layout than this build expects.
    pub(super) fn open(map: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap(ptr::null_mut(), SIZE, ProtFlags::READ, MapFlags::SHARED, map, 0) }?;
        let base = NonNull::new(base.cast::<journal::Page>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let page = Self { base };
        if !page.journal().is_known() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the page of reports has another layout"));
        }
        Ok(page)
    }

    /// The page itself.
    #[inline]
    pub(crate) fn journal(&self) -> &journal::Page {
        // SAFETY: mapped and aligned while `self` is; all writers write it atomically, and it is read atomically. It cannot be written
        // here: its words are loaded and nothing else. Of loads from such memory std::sync::atomic vouches for relaxed ones of a word; that
        // acquiring ones are no more than a load (and an order) is relied upon: on x86-64 it is the same instruction.
        unsafe { self.base.as_ref() }
    }

    /// Ends the page for this process, whatever the kernel writes to it from here on: a page that is marked as ended replaces it in one
    /// step.
    ///
    /// # Errors
    /// No memory, or too many mappings.
    pub(super) fn end(&self) -> io::Result<()> {
        let last = journal::Page::boxed();
        // Farther on than any reader has read.
        last.head.store(self.head() + (1 << 62), Ordering::Release);
        last.busy.store(ENDED, Ordering::Release);
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let new = unsafe { mmap_anonymous(ptr::null_mut(), SIZE, rights, MapFlags::PRIVATE) }?;
        // SAFETY: as many bytes, aligned for a page, of this function alone.
        unsafe { new.cast::<journal::Page>().write(*last) };
        // SAFETY: the mapping at `base` is this value's, and is read by atomic loads alone, which find the old words or the new ones; the new
        // mapping is this function's alone.
        let moved = unsafe { mremap_fixed(new, SIZE, SIZE, MremapFlags::MAYMOVE, self.base.as_ptr().cast()) };
        if let Err(why) = moved {
            // SAFETY: mapped above, and still this function's alone.
            unsafe { munmap(new, SIZE) }?;
            return Err(why.into());
        }
        Ok(())
    }

    /// How many records were written so far. It moves with each change; equal means that none happened.
    #[inline]
    #[must_use]
    pub fn head(&self) -> u64 {
        self.journal().head.load(Ordering::Acquire)
    }

    /// Whether a change has begun that will not be reported when it ends, or the reports have ended: what is pinned now
    /// may be used once and not be kept.
    #[inline]
    #[must_use]
    pub fn busy(&self) -> bool {
        self.journal().busy.load(Ordering::Acquire) != 0
    }

    /// Whether nothing is reported on it any more: the address space has ended, or reports may be missing. It stays so.
    pub(super) fn has_ended(&self) -> bool {
        self.journal().has_ended()
    }

    /// How many pages left the page cache of the inode that `slot` watches. An entry of a shared mapping is valid while
    /// this is what it was before its memory was pinned.
    #[inline]
    #[must_use]
    pub fn inode(&self, slot: Slot) -> u64 {
        self.journal().inodes[usize::from(slot.0)].load(Ordering::Acquire)
    }

    /// What happened since `seen` (a head from earlier). When all of it has been seen to, [`Drain::head`] is what the
    /// cache has drained to.
    #[must_use]
    pub fn drain(&self, seen: u64) -> Drain<'_> {
        let head = self.head();
        // A position from the future is an error of the caller: "everything" is correct then, too.
        let lost = head.wrapping_sub(seen) > RECORDS as u64;
        Drain { page: self, at: seen, head, lost, over: false }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no borrow of it is left.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), SIZE) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("head", &self.head()).field("busy", &self.busy()).finish_non_exhaustive()
    }
}

/// Number of a watched inode in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(u8);

impl Slot {
    /// `index` as a slot, if a page has that many.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        u8::try_from(index).ok().filter(|&i| usize::from(i) < SLOTS).map(Self)
    }

    /// Its number, below [`SLOTS`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Changes in the order they happened. Ends after [`Change::Everything`], which includes all later changes.
#[derive(Debug)]
pub struct Drain<'a> {
    page: &'a Page,
    at: u64,
    head: u64,
    lost: bool,
    over: bool,
}

impl Drain<'_> {
    /// The position that this drain leads to.
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
        let change = if self.lost { journal::Change::Everything } else { self.page.journal().read(self.at) };
        self.at = self.at.wrapping_add(1);
        Some(match change {
            journal::Change::Of(range) => Change::Range(range.start()..range.end()),
            journal::Change::Everything => {
                self.over = true;
                Change::Everything
            }
        })
    }
}
