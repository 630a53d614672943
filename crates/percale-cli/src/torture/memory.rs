//! Memory of one kind that is registered and then changed.

use std::io;

use libc::c_int;
use pindown::Range;
use pindown::mapping::Mappings;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};

use super::fork::Fork;
use super::origins::{Chunks, Heap, Library, Segment, Stack};
use crate::limits::kernel::Foreign;
use crate::memory_range::{MemoryRange, READ_WRITE, range};

/// Memory of one kind. Dropping it frees its resources.
pub(super) struct Memory {
    /// The memory range that contains all addresses below.
    pub(super) memory_range: MemoryRange,
    /// The mapped range.
    pub(super) whole: Range,
    /// The registered part of the mapped range. Some mapped pages precede and follow it.
    pub(super) registered: Range,
    /// The size of a page in bytes.
    pub(super) unit: u64,
    /// Two ranges of the memory range directly after the mapped range, which are reserved with inaccessible pages.
    pub(super) spare: Option<[Range; 2]>,
    /// The flags of mmap(2) for such memory.
    pub(super) flags: c_int,
    /// The mapped file, if there is one that can be opened.
    pub(super) file: Option<OwnedFd>,
    /// The origin of memory that was not made by mmap(2) alone.
    pub(super) origin: Origin,
    /// Whether an operation removed access rights. They must be restored before the memory is checked.
    pub(super) lost_rights: bool,
    /// Processes that an operation started. They live as long as this value.
    pub(super) children: Vec<Fork>,
}

/// The origin of memory.
pub(super) enum Origin {
    Mapped,
    Segment(Segment),
    Heap(Heap),
    Stack(Stack),
    Chunks(Chunks),
    Library(Library),
    Sealed,
}

/// The size of memory, in pages of its kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryShape {
    pub(super) unit: u64,
    /// The number of mapped pages.
    pub(super) pages: u64,
    /// The first registered page, and the number of registered pages.
    pub(super) first: u64,
    pub(super) registered: u64,
    /// The alignment of the first address.
    pub(super) align: u64,
}

/// The size of a huge page in bytes.
pub(super) const HUGE: u64 = 2 << 20;

impl MemoryShape {
    /// Pages of the base size.
    pub(super) fn small() -> Self {
        let unit = pindown::page_size();
        Self { unit, pages: 16, first: 4, registered: 8, align: unit }
    }

    /// Pages of the base size that huge pages can replace.
    pub(super) fn huge_aligned() -> Self {
        let unit = pindown::page_size();
        Self { unit, pages: 2 * HUGE / unit, first: 0, registered: HUGE / unit, align: HUGE }
    }

    /// Huge pages.
    pub(super) fn huge() -> Self {
        Self { unit: HUGE, pages: 4, first: 1, registered: 2, align: HUGE }
    }

    /// Returns the number of mapped bytes.
    pub(super) fn bytes(self) -> u64 {
        self.unit * self.pages
    }

    /// Returns the registered part of memory that starts at `start`.
    pub(super) fn registered(self, start: u64) -> io::Result<Range> {
        range(start + self.first * self.unit, self.registered * self.unit)
    }
}

impl Memory {
    /// Makes a new mapping with these flags: an anonymous one, or a mapping of this file from its beginning.
    pub(super) fn mapped(shape: MemoryShape, flags: c_int, file: Option<OwnedFd>) -> io::Result<Self> {
        let mut memory = Self::reserved(shape, flags)?;
        memory.file = file;
        memory.establish(0)?;
        Ok(memory)
    }

    /// Reserves addresses for memory. Until the memory is established, the addresses are mapped with inaccessible
    /// pages.
    pub(super) fn reserved(shape: MemoryShape, flags: c_int) -> io::Result<Self> {
        let bytes = shape.bytes();
        let memory_range = MemoryRange::reserve(3 * bytes, shape.align)?;
        let start = memory_range.range().start();
        Ok(Self {
            whole: range(start, bytes)?,
            registered: shape.registered(start)?,
            unit: shape.unit,
            spare: Some([range(start + bytes, bytes)?, range(start + 2 * bytes, bytes)?]),
            flags,
            memory_range,
            file: None,
            origin: Origin::Mapped,
            lost_rights: false,
            children: Vec::new(),
        })
    }

    /// Takes over existing memory at the addresses `whole`, which only this program uses.
    pub(super) fn adopted(whole: Range, registered: Range, origin: Origin) -> Self {
        Self {
            memory_range: MemoryRange::adopt(whole),
            whole,
            registered,
            unit: pindown::page_size(),
            spare: None,
            flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            file: None,
            origin,
            lost_rights: false,
            children: Vec::new(),
        }
    }

    /// Maps the whole memory at its addresses. Existing mappings are replaced, unless `flags` has MAP_FIXED_NOREPLACE.
    pub(super) fn establish(&self, flags: c_int) -> io::Result<()> {
        if let Origin::Segment(segment) = &self.origin {
            // The memory is unmapped first, because SHM_REMAP is tested as a separate operation.
            self.memory_range.unmap(self.whole)?;
            return self.memory_range.attach(segment.id(), self.whole, 0);
        }
        self.map_same(self.whole, flags)
    }

    /// Maps a part of the memory again.
    pub(super) fn map_same(&self, at: Range, flags: c_int) -> io::Result<()> {
        let offset = at.start() - self.whole.start();
        let anonymous = self.flags & libc::MAP_ANONYMOUS != 0;
        let file = self.file.as_ref().filter(|_| !anonymous).map(|file| (file.as_fd(), offset));
        self.memory_range.map(at, READ_WRITE, self.flags | flags, file)
    }

    /// Writes to every page of the memory.
    pub(super) fn touch(&self) -> io::Result<()> {
        let process = rustix::process::getpid().as_raw_pid();
        let bytes: Vec<u8> = (0..self.whole.len()).map(|at| (at / self.unit + 1) as u8).collect();
        Foreign { process, address: self.whole.start() }.write(0, &bytes)
    }

    /// Returns page `number` of the registered part.
    pub(super) fn page(&self, number: u64) -> io::Result<Range> {
        range(self.registered.start() + number * self.unit, self.unit)
    }

    /// Returns the number of registered pages.
    pub(super) fn pages(&self) -> u64 {
        self.registered.len() / self.unit
    }

    /// Returns a page in the middle of the registered part.
    pub(super) fn middle(&self) -> io::Result<Range> {
        self.page(self.pages() / 2)
    }

    /// Returns the last page of the registered part.
    pub(super) fn last(&self) -> io::Result<Range> {
        self.page(self.pages() - 1)
    }

    /// Returns two ranges of addresses after the memory.
    pub(super) fn spare(&self) -> io::Result<[Range; 2]> {
        self.spare.ok_or_else(|| io::Error::other("no free addresses after the memory"))
    }

    /// Returns the mapped file.
    pub(super) fn file(&self) -> io::Result<&OwnedFd> {
        self.file.as_ref().ok_or_else(|| io::Error::other("its file cannot be opened"))
    }

    /// Returns a path at which every process of this user can open the mapped file.
    pub(super) fn path(&self) -> io::Result<String> {
        // The link contains the process ID in the PID namespace of the /proc mount, which may be a different one.
        let process = std::fs::read_link("/proc/self")?;
        Ok(format!("/proc/{}/fd/{}", process.display(), self.file()?.as_raw_fd()))
    }

    /// Returns the offset of the registered part in the file.
    pub(super) fn offset(&self) -> u64 {
        self.registered.start() - self.whole.start()
    }

    /// Opens the mapped file if the kernel permits it. There is no other descriptor of this file.
    pub(super) fn open_file(&mut self) {
        let path = format!("/proc/self/map_files/{:x}-{:x}", self.whole.start(), self.whole.end());
        self.file = std::fs::File::options().read(true).write(true).open(path).ok().map(OwnedFd::from);
    }

    /// Maps new memory in every hole of the registered part.
    pub(super) fn fill_holes(&self, mappings: &Mappings) -> io::Result<()> {
        if mappings.of(self.registered)?.is_some() {
            return Ok(());
        }
        for number in 0..self.pages() {
            let page = self.page(number)?;
            if mappings.of(page)?.is_none() {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                self.memory_range.map(page, READ_WRITE, flags, None)?;
            }
        }
        Ok(())
    }

    /// Releases the memory and keeps its addresses reserved.
    pub(super) fn retire(self) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.memory_range.map(self.memory_range.range(), libc::PROT_NONE, flags, None)?;
        let mut this = self;
        this.origin = Origin::Sealed;
        Ok(())
    }

    /// Restores access rights that an operation has removed.
    pub(super) fn give_rights_back(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.lost_rights) {
            self.memory_range.protect(self.registered, READ_WRITE)?;
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A thread's stack, the heap and similar memory are freed with their origin. Sealed memory cannot be freed.
        if matches!(self.origin, Origin::Mapped | Origin::Segment(_)) {
            // Sealed memory cannot be unmapped, so an error is ignored.
            self.memory_range.release().ok();
        }
    }
}
