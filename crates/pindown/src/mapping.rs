//! The kernel's list of the process's mappings, with the kind of memory of each.
//!
//! Uses the ioctl PROCMAP_QUERY if the kernel has it (Linux 6.11), and otherwise reads /proc/self/maps.

#![expect(unsafe_code, reason = "one ioctl; each block states its own reason")]

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

use crate::range::{Range, page_size};

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses of the mapping.
    pub range: Range,
    /// Whether the process may read the memory.
    pub readable: bool,
    /// Whether the process may write the memory.
    pub writable: bool,
    /// Whether writes are visible to other processes that map the same memory.
    pub shared: bool,
    /// The page size in bytes, if the kernel reports it. For hugetlb it is larger than the machine's page size.
    pub page_size: Option<u64>,
    /// The object that is mapped.
    pub backing: Backing,
}

/// The object behind a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Private anonymous memory.
    Anonymous,
    /// A file of any file system. Memfds, shared anonymous memory and System V segments are also files.
    File {
        /// Major and minor number of the device.
        device: (u32, u32),
        /// The inode number on the device.
        inode: u64,
        /// The name that the kernel reports.
        name: String,
    },
}

/// The list of the process's mappings.
#[derive(Debug)]
pub struct Mappings {
    file: File,
    /// Whether the kernel has the ioctl.
    query: AtomicBool,
    /// Serializes reads, which move the position of the file.
    reading: Mutex<()>,
}

impl Mappings {
    /// Opens /proc/self/maps.
    ///
    /// # Errors
    /// Errors of openat(2), for example if /proc is not mounted.
    pub fn open() -> io::Result<Self> {
        let file = File::open("/proc/self/maps").map_err(|why| {
            let errno = rustix::io::Errno::from_io_error(&why).unwrap_or(rustix::io::Errno::IO);
            crate::calls::named("openat of /proc/self/maps")(errno)
        })?;
        Ok(Self { file, query: AtomicBool::new(true), reading: Mutex::new(()) })
    }

    /// Like [`Self::open`], but without the ioctl, as before Linux 6.11.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub(crate) fn open_to_read() -> io::Result<Self> {
        let mappings = Self::open()?;
        mappings.query.store(false, Ordering::Relaxed);
        Ok(mappings)
    }

    /// Returns the mappings of a range, in order; `None` if a part of the range is not mapped.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn of(&self, range: Range) -> io::Result<Option<Vec<Mapping>>> {
        let found = self.before_gap(range)?;
        let end = found.last().map_or(0, |last| last.range.end());
        Ok((end >= range.end()).then_some(found))
    }

    /// Returns the mappings of a range, in order, up to the first address that is not mapped.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub(crate) fn before_gap(&self, range: Range) -> io::Result<Vec<Mapping>> {
        if self.query.load(Ordering::Relaxed) {
            match self.query_all(range) {
                Err(error) if is_unknown(&error) => self.query.store(false, Ordering::Relaxed),
                known => return known,
            }
        }
        self.read_all(range)
    }

    /// Returns the mapping that contains the range, with one system call, if it is private anonymous memory of ordinary
    /// pages. Returns `None` for other memory, or if the kernel has no PROCMAP_QUERY (before 6.11).
    pub(crate) fn plain(&self, range: Range) -> Option<Range> {
        if !self.query.load(Ordering::Relaxed) {
            return None;
        }
        let requested =
            ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, query_addr: range.start(), ..Default::default() };
        let fields = match query_fields(&self.file, Query { fields: requested, name: Vec::new() }) {
            Ok(Query { fields, .. }) => fields,
            Err(error) => {
                if is_unknown(&error.into()) {
                    self.query.store(false, Ordering::Relaxed);
                }
                return None;
            }
        };
        let no_file = fields.inode == 0 && fields.dev_major == 0 && fields.dev_minor == 0;
        let plain = no_file && fields.vma_flags & VMA_SHARED == 0 && fields.vma_page_size == page_size();
        Range::between(fields.vma_start, fields.vma_end).filter(|mapping| plain && mapping.contains(range))
    }

    /// Returns whether the process may read all of the range now, and write it if `writes`. Allocates no memory if the
    /// kernel has PROCMAP_QUERY (6.11).
    pub(crate) fn allow(&self, range: Range, writes: bool) -> bool {
        if !self.query.load(Ordering::Relaxed) {
            let enough = |mapping: &Mapping| mapping.readable && (mapping.writable || !writes);
            return matches!(self.of(range), Ok(Some(all)) if all.iter().all(enough));
        }
        let wanted = VMA_READABLE | if writes { VMA_WRITABLE } else { 0 };
        let mut next = range.start();
        while next < range.end() {
            let requested =
                ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, query_addr: next, ..Default::default() };
            match query_fields(&self.file, Query { fields: requested, name: Vec::new() }) {
                Ok(Query { fields, .. }) if fields.vma_flags & wanted == wanted && fields.vma_end > next => {
                    next = fields.vma_end;
                }
                Ok(_) => return false,
                Err(error) if is_unknown(&error.into()) => {
                    self.query.store(false, Ordering::Relaxed);
                    return self.allow(range, writes);
                }
                Err(_) => return false,
            }
        }
        true
    }

    fn query_all(&self, range: Range) -> io::Result<Vec<Mapping>> {
        let mut found: Vec<Mapping> = Vec::new();
        let mut next = range.start();
        while next < range.end() {
            match query(&self.file, next) {
                Ok(mapping) => {
                    next = mapping.range.end();
                    found.push(mapping);
                }
                Err(rustix::io::Errno::NOENT) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    fn read_all(&self, range: Range) -> io::Result<Vec<Mapping>> {
        let _alone = self.reading.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut text = String::new();
        (&self.file).rewind()?;
        (&self.file).read_to_string(&mut text)?;
        let mut next = range.start();
        let mut found = Vec::new();
        for mapping in text.lines().filter_map(parse).filter(|mapping| mapping.range.overlaps(range)) {
            if mapping.range.start() > next {
                break;
            }
            next = mapping.range.end();
            found.push(mapping);
        }
        Ok(found)
    }
}

/// Returns whether this is the error of a kernel without the ioctl.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS))
}

/// Parses a line of /proc/self/maps; see proc_pid_maps(5).
fn parse(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let range = Range::between(hex(start)?, hex(end)?)?;
    let rights = words.next()?.as_bytes();
    let right = |place: usize, letter| rights.get(place) == Some(&letter);
    words.next()?;
    let (major, minor) = words.next()?.split_once(':')?;
    let device = (hex(major)? as u32, hex(minor)? as u32);
    let inode: u64 = words.next()?.parse().ok()?;
    let name = words.next().unwrap_or("").trim_start().to_owned();
    let backing = if inode == 0 { Backing::Anonymous } else { Backing::File { device, inode, name } };
    let (readable, writable, shared) = (right(0, b'r'), right(1, b'w'), right(3, b's'));
    Some(Mapping { range, readable, writable, shared, page_size: None, backing })
}

/// `struct procmap_query` of <linux/fs.h>.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const VMA_READABLE: u64 = 1;
const VMA_WRITABLE: u64 = 2;
const VMA_SHARED: u64 = 8;

/// The size of the buffer for a name: the kernel's PATH_MAX.
const NAME: usize = 4096;

/// PROCMAP_QUERY, with or without a buffer for the name.
struct Query {
    fields: ProcmapQuery,
    name: Vec<u8>,
}

// SAFETY: the opcode is PROCMAP_QUERY, which takes the structure that the pointer refers to. The kernel writes the
// structure and at most as many bytes of a name as the size of the name buffer in the structure.
unsafe impl Ioctl for &mut Query {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<ProcmapQuery>(b'f', 17)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        // The kernel writes through an address that is passed as an integer.
        self.fields.vma_name_addr = self.name.as_mut_ptr().expose_provenance() as u64;
        self.fields.vma_name_size = self.name.len() as u32;
        if self.name.is_empty() {
            self.fields.vma_name_addr = 0;
        }
        (&raw mut self.fields).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Makes one query.
fn query_fields(maps: &File, mut query: Query) -> rustix::io::Result<Query> {
    // SAFETY: the ioctl is made on /proc/self/maps, where this opcode means PROCMAP_QUERY or is unknown.
    unsafe { rustix::ioctl::ioctl(maps.as_fd(), &mut query) }?;
    Ok(query)
}

/// Returns the mapping at `address`. Queries its name only if it maps a file.
fn query(maps: &File, address: u64) -> rustix::io::Result<Mapping> {
    let requested = ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, query_addr: address, ..Default::default() };
    let mut query = query_fields(maps, Query { fields: requested, name: Vec::new() })?;
    if query.fields.inode != 0 {
        query = query_fields(maps, Query { fields: requested, name: vec![0; NAME] })?;
    }
    let Query { fields, mut name } = query;
    // The size that the kernel returns includes the final zero.
    name.truncate((fields.vma_name_size as usize).saturating_sub(1));
    let name = String::from_utf8_lossy(&name).into_owned();
    let device = (fields.dev_major, fields.dev_minor);
    let file = Backing::File { device, inode: fields.inode, name };
    Ok(Mapping {
        range: Range::between(fields.vma_start, fields.vma_end).ok_or(rustix::io::Errno::NOENT)?,
        readable: fields.vma_flags & VMA_READABLE != 0,
        writable: fields.vma_flags & VMA_WRITABLE != 0,
        shared: fields.vma_flags & VMA_SHARED != 0,
        page_size: Some(fields.vma_page_size),
        backing: if fields.inode == 0 { Backing::Anonymous } else { file },
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn both_query_methods_agree_on_heap_stack_and_code() {
        let mappings = Mappings::open().expect("/proc");
        let boxed = vec![0_u8; 3 << 20];
        let here = [0_u8; 16];
        let code = Range::new(parse as fn(&str) -> Option<Mapping> as usize as u64, 1).expect("a range");
        for (range, anonymous, writable) in [
            (Range::of(&boxed).expect("a range"), true, true),
            (Range::of(&here).expect("a range"), true, true),
            (code, false, false),
        ] {
            let read = mappings.read_all(range).expect("read");
            assert!(read.iter().all(|mapping| (mapping.backing == Backing::Anonymous) == anonymous), "{read:?}");
            assert!(read.iter().all(|mapping| mapping.writable == writable && !mapping.shared), "{read:?}");
            assert!(read[0].range.start() <= range.start() && range.end() <= read[read.len() - 1].range.end());
            match mappings.query_all(range) {
                Ok(requested) => {
                    // Threads of other tests may have extended the mapping in the meantime.
                    assert_eq!(requested.len(), read.len());
                    for (requested, read) in requested.into_iter().zip(read) {
                        assert!(requested.range.overlaps(read.range));
                        assert_eq!(requested.page_size, Some(page_size()));
                        assert_eq!(
                            requested,
                            Mapping { range: requested.range, page_size: requested.page_size, ..read }
                        );
                    }
                }
                Err(error) => assert!(is_unknown(&error), "{error}"),
            }
        }
    }

    #[test]
    fn only_private_anonymous_memory_is_plain() {
        use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
        let mappings = Mappings::open().expect("/proc");
        let page = page_size() as usize;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: new mappings at addresses that the kernel chooses.
        let plain = unsafe { mmap_anonymous(none, 4 * page, both, MapFlags::PRIVATE) }.expect("memory");
        // SAFETY: as above.
        let shared = unsafe { mmap_anonymous(none, page, both, MapFlags::SHARED) }.expect("memory");
        let file = File::open("/proc/self/exe").expect("this program");
        // SAFETY: as above.
        let of_file = unsafe { mmap(none, page, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }.expect("mapped");
        let zero = File::open("/dev/zero").expect("always there");
        // SAFETY: as above.
        let of_zero = unsafe { mmap(none, page, both, MapFlags::PRIVATE, &zero, 0) }.expect("mapped");
        let at =
            |start: *mut c_void, pages: u64| Range::new(start.addr() as u64, pages * page_size()).expect("a range");
        // The kernel may lack the ioctl: then no mapping is known to be plain.
        let is_known = mappings.query_all(at(plain, 4)).is_ok();
        assert_eq!(mappings.plain(at(plain, 4)).is_some_and(|all| all.contains(at(plain, 4))), is_known);
        for other in [shared, of_file, of_zero] {
            assert_eq!(mappings.plain(at(other, 1)), None);
        }
        // SAFETY: the range is part of the first mapping, which contains no object.
        unsafe { mprotect(plain.wrapping_byte_add(2 * page), page, rustix::mm::MprotectFlags::READ) }
            .expect("protected");
        assert_eq!(mappings.plain(at(plain, 4)), None, "several mappings");
        assert_eq!(mappings.plain(at(plain, 2)).is_some(), is_known);
        for (start, pages) in [(plain, 4), (shared, 1), (of_file, 1), (of_zero, 1)] {
            // SAFETY: mapped above, only for this test.
            unsafe { munmap(start, pages * page) }.expect("unmapped");
        }
        assert_eq!(mappings.plain(at(plain, 2)), None, "nothing");
    }

    /// Requirements: MON-014.
    #[test]
    fn rights_cover_every_page_with_both_query_methods() {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
        let page = page_size() as usize;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), 4 * page, both, MapFlags::PRIVATE) }.expect("memory");
        for (number, rights) in [(2, MprotectFlags::READ), (3, MprotectFlags::empty())] {
            // SAFETY: the range is part of that mapping, which contains no object.
            unsafe { mprotect(start.wrapping_byte_add(number * page), page, rights) }.expect("protected");
        }
        let part = |first: u64, pages: u64| {
            Range::new(start.addr() as u64 + first * page_size(), pages * page_size()).expect("a range")
        };
        let asking = Mappings::open().expect("/proc");
        let reading = Mappings::open_to_read().expect("/proc");
        for mappings in [&asking, &reading] {
            let rights = |first, pages| [false, true].map(|writes| mappings.allow(part(first, pages), writes));
            assert_eq!(rights(0, 2), [true, true]);
            assert_eq!(rights(0, 3), [true, false], "one of the pages is read-only");
            assert_eq!(rights(2, 2), [false, false], "another page cannot even be read");
            assert_eq!(rights(1, 1), [true, true]);
        }
        // SAFETY: mapped above, only for this test.
        unsafe { munmap(start, 4 * page) }.expect("unmapped");
        // The kernel maps nothing at the first page of the address space.
        let nowhere = Range::new(0, 1).expect("a range");
        assert!(!asking.allow(nowhere, false) && !reading.allow(nowhere, false));
    }

    #[test]
    fn range_with_a_hole_has_no_mapping() {
        let mappings = Mappings::open().expect("/proc");
        let low = Range::new(page_size(), page_size()).expect("a range");
        assert_eq!(mappings.of(low).expect("asked"), None);
        assert_eq!(mappings.read_all(low).expect("read"), []);
        let huge = Range::new(Range::of(&[0_u8; 8]).expect("a range").start(), 1 << 46).expect("a range");
        assert_eq!(mappings.of(huge).expect("asked"), None);
    }

    #[test]
    fn mappings_behind_a_hole_do_not_belong_to_a_range() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let page = page_size() as usize;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // The kernel does not choose these addresses itself, so no other thread maps memory in the hole.
        let start = std::ptr::without_provenance_mut::<c_void>(0x575a << 32);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: the mapping replaces no other.
        let mapped = unsafe { mmap_anonymous(start, 3 * page, rights, flags) }.expect("free addresses");
        assert_eq!(mapped, start);
        // SAFETY: the range is part of that mapping, which contains no object.
        unsafe { munmap(start.wrapping_byte_add(page), page) }.expect("unmapped");
        let part = |first: u64, pages: u64| {
            Range::new(start.addr() as u64 + first * page_size(), pages * page_size()).expect("a range")
        };
        for mappings in [Mappings::open(), Mappings::open_to_read()].map(|mappings| mappings.expect("/proc")) {
            let before = |range| {
                let found = mappings.before_gap(range).expect("asked");
                found.into_iter().map(|mapping| mapping.range).collect::<Vec<_>>()
            };
            assert_eq!(mappings.of(part(0, 3)).expect("asked"), None, "the second page is not mapped");
            assert_eq!(mappings.of(part(1, 2)).expect("asked"), None, "the first page is not mapped");
            assert_eq!((before(part(0, 3)), before(part(1, 2))), (vec![part(0, 1)], vec![]));
            assert_eq!(
                [part(0, 3), part(1, 2), part(2, 1)].map(|range| mappings.allow(range, true)),
                [false, false, true]
            );
        }
        for number in [0, 2] {
            // SAFETY: mapped above, only for this test.
            unsafe { munmap(start.wrapping_byte_add(number * page), page) }.expect("unmapped");
        }
    }

    #[test]
    fn lines_of_the_kernels_list_are_read() {
        let line = "7f0c2a000000-7f0c2a021000 rw-s 00000000 00:01 2054                       /memfd:a b (deleted)";
        let mapping = parse(line).expect("a mapping");
        assert_eq!((mapping.range.start(), mapping.range.len()), (0x7f0c_2a00_0000, 0x21000));
        assert_eq!((mapping.readable, mapping.writable, mapping.shared), (true, true, true));
        let name = "/memfd:a b (deleted)".to_owned();
        assert_eq!(mapping.backing, Backing::File { device: (0, 1), inode: 2054, name });
        assert_eq!(parse("no mapping"), None);
    }
}
