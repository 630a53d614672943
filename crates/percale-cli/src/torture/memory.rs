//! Memory of one kind that is registered and then changed.

use std::io;

use libc::c_int;
use pindown::Range;
use pindown::mapping::Mappings;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};

use super::fork::Fork;
use super::origins::{Chunks, Heap, Library, Segment, Stack};
use crate::limits::kernel::Foreign;
use crate::lot::{Lot, READ_WRITE, range};

/// Some memory. Dropping it frees what it is made of.
pub(super) struct Memory {
    /// The lot that contains all addresses below.
    pub(super) lot: Lot,
    /// The mapped range.
    pub(super) whole: Range,
    /// The registered part of it, with some mapped pages before and behind.
    pub(super) registered: Range,
    /// Bytes of a page of it.
    pub(super) unit: u64,
    /// Addresses of the lot right behind it, and as many again, which are reserved by pages that cannot be accessed.
    pub(super) spare: Option<[Range; 2]>,
    /// The flags of mmap(2) for such memory.
    pub(super) flags: c_int,
    /// The mapped file, if there is one that can be opened.
    pub(super) file: Option<OwnedFd>,
    /// The origin of memory that mmap(2) alone has not made.
    pub(super) origin: Origin,
    /// An operation took rights away, which must be given back before the memory is checked.
    pub(super) lost_rights: bool,
    /// Processes that an operation started and that live as long as this.
    pub(super) children: Vec<Fork>,
}

/// The origin of memory, apart from mmap(2).
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
pub(super) struct Shape {
    pub(super) unit: u64,
    /// Pages that are mapped.
    pub(super) pages: u64,
    /// The range of registered pages among them.
    pub(super) first: u64,
    pub(super) registered: u64,
    /// The alignment of the first address.
    pub(super) align: u64,
}

/// Bytes of a huge page.
pub(super) const HUGE: u64 = 2 << 20;

impl Shape {
    /// Ordinary pages.
    pub(super) fn small() -> Self {
        let unit = pindown::page_size();
        Self { unit, pages: 16, first: 4, registered: 8, align: unit }
    }

    /// Ordinary pages that huge ones can replace.
    pub(super) fn huge_aligned() -> Self {
        let unit = pindown::page_size();
        Self { unit, pages: 2 * HUGE / unit, first: 0, registered: HUGE / unit, align: HUGE }
    }

    /// Huge pages.
    pub(super) fn huge() -> Self {
        Self { unit: HUGE, pages: 4, first: 1, registered: 2, align: HUGE }
    }

    /// Bytes that are mapped.
    pub(super) fn bytes(self) -> u64 {
        self.unit * self.pages
    }

    /// The registered part of memory that starts at `start`.
    pub(super) fn registered(self, start: u64) -> io::Result<Range> {
        range(start + self.first * self.unit, self.registered * self.unit)
    }
}

impl Memory {
    /// Makes a new mapping with these flags: anonymous, or of this file from its beginning.
    pub(super) fn mapped(shape: Shape, flags: c_int, file: Option<OwnedFd>) -> io::Result<Self> {
        let mut memory = Self::reserved(shape, flags)?;
        memory.file = file;
        memory.establish(0)?;
        Ok(memory)
    }

    /// Reserves addresses for it; until it is established there are only pages that cannot be accessed.
    pub(super) fn reserved(shape: Shape, flags: c_int) -> io::Result<Self> {
        let bytes = shape.bytes();
        let lot = Lot::reserve(3 * bytes, shape.align)?;
        let start = lot.range().start();
        Ok(Self {
            whole: range(start, bytes)?,
            registered: shape.registered(start)?,
            unit: shape.unit,
            spare: Some([range(start + bytes, bytes)?, range(start + 2 * bytes, bytes)?]),
            flags,
            lot,
            file: None,
            origin: Origin::Mapped,
            lost_rights: false,
            children: Vec::new(),
        })
    }

    /// Takes over existing memory: the addresses `whole`, of which only the torture uses any.
    pub(super) fn adopted(whole: Range, registered: Range, origin: Origin) -> Self {
        Self {
            lot: Lot::adopt(whole),
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

    /// Maps the whole of it at its addresses, over existing mappings, or with MAP_FIXED_NOREPLACE if there are none.
    pub(super) fn establish(&self, flags: c_int) -> io::Result<()> {
        if let Origin::Segment(segment) = &self.origin {
            // SHM_REMAP is an operation of its own.
            self.lot.unmap(self.whole)?;
            return self.lot.attach(segment.id(), self.whole, 0);
        }
        self.map_same(self.whole, flags)
    }

    /// Maps the same memory as before at a part of it.
    pub(super) fn map_same(&self, at: Range, flags: c_int) -> io::Result<()> {
        let offset = at.start() - self.whole.start();
        let anonymous = self.flags & libc::MAP_ANONYMOUS != 0;
        let file = self.file.as_ref().filter(|_| !anonymous).map(|file| (file.as_fd(), offset));
        self.lot.map(at, READ_WRITE, self.flags | flags, file)
    }

    /// Writes to every page of it.
    pub(super) fn touch(&self) -> io::Result<()> {
        let process = rustix::process::getpid().as_raw_pid();
        let bytes: Vec<u8> = (0..self.whole.len()).map(|at| (at / self.unit + 1) as u8).collect();
        Foreign { process, address: self.whole.start() }.write(0, &bytes)
    }

    /// Page `number` of the registered part.
    pub(super) fn page(&self, number: u64) -> io::Result<Range> {
        range(self.registered.start() + number * self.unit, self.unit)
    }

    /// Pages that are registered.
    pub(super) fn pages(&self) -> u64 {
        self.registered.len() / self.unit
    }

    /// A page in the middle of those.
    pub(super) fn middle(&self) -> io::Result<Range> {
        self.page(self.pages() / 2)
    }

    /// The last page of those.
    pub(super) fn last(&self) -> io::Result<Range> {
        self.page(self.pages() - 1)
    }

    /// Addresses behind it, and others behind them.
    pub(super) fn spare(&self) -> io::Result<[Range; 2]> {
        self.spare.ok_or_else(|| io::Error::other("no free addresses behind it"))
    }

    /// The mapped file.
    pub(super) fn file(&self) -> io::Result<&OwnedFd> {
        self.file.as_ref().ok_or_else(|| io::Error::other("its file cannot be opened here"))
    }

    /// The path by which every process of this user can open the mapped file.
    pub(super) fn path(&self) -> io::Result<String> {
        // The number in the PID namespace that /proc was mounted in, which may be another one.
        let process = std::fs::read_link("/proc/self")?;
        Ok(format!("/proc/{}/fd/{}", process.display(), self.file()?.as_raw_fd()))
    }

    /// The offset of the registered part in the file.
    pub(super) fn offset(&self) -> u64 {
        self.registered.start() - self.whole.start()
    }

    /// Opens the mapped file although no descriptor of it exists, where the kernel permits that.
    pub(super) fn open_file(&mut self) {
        let path = format!("/proc/self/map_files/{:x}-{:x}", self.whole.start(), self.whole.end());
        self.file = std::fs::File::options().read(true).write(true).open(path).ok().map(OwnedFd::from);
    }

    /// Maps new memory wherever none is left in the registered part.
    pub(super) fn fill_holes(&self, mappings: &Mappings) -> io::Result<()> {
        if mappings.of(self.registered)?.is_some() {
            return Ok(());
        }
        for number in 0..self.pages() {
            let page = self.page(number)?;
            if mappings.of(page)?.is_none() {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                self.lot.map(page, READ_WRITE, flags, None)?;
            }
        }
        Ok(())
    }

    /// Releases the memory, but keeps its addresses reserved.
    pub(super) fn retire(self) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.lot.map(self.lot.range(), libc::PROT_NONE, flags, None)?;
        let mut this = self;
        this.origin = Origin::Sealed;
        Ok(())
    }

    /// Gives back the rights that an operation took.
    pub(super) fn give_rights_back(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.lost_rights) {
            self.lot.protect(self.registered, READ_WRITE)?;
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A thread's stack, the heap and the like are freed with their origin. Sealed memory cannot be freed.
        if matches!(self.origin, Origin::Mapped | Origin::Segment(_)) {
            // Sealed memory stays.
            self.lot.release().ok();
        }
    }
}
