//! The only module that maps and unmaps pages shared with other processes.
//!
//! A [`Mapping`] is a shared mapping of a sealed memfd (or, on systems that cannot share memory, private memory). The
//! size of a sealed memfd can never change (the process that creates it sets F_SEAL_SHRINK and F_SEAL_GROW, and each
//! process that receives it checks them), so no access within the mapping can raise SIGBUS because of a truncation. A
//! process can still punch holes in it. A hole reads as zero, as long as the system has memory for another page.
//! Because no huge page may be left, a memfd of huge pages is not mapped.
//!
//! A mapping is MADV_DONTFORK, because a forked child must not use its parent's rings. In the child the mapping is only
//! an address, at which the child may have mapped other memory in the meantime.

#![expect(unsafe_code, reason = "mmap, munmap and madvise; each block states its own reason")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::kernel;
use crate::system::call::{call, named};
use crate::system::forked::Process;
use crate::system::interrupted::uninterrupted;

/// The file system of memfds of huge pages (HUGETLBFS_MAGIC).
const HUGE_PAGES: rustix::fs::FsWord = 0x9584_58F6;

/// A mapping of a whole sealed memfd, or of private memory.
#[derive(Debug)]
pub struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    /// The only process in which the memory is mapped.
    process: Process,
}

// SAFETY: a mapping is an address range that stays valid until it is dropped, on any thread.
unsafe impl Send for Mapping {}
// SAFETY: the value only returns its address; its users order their accesses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all `len` bytes of `fd`. The memfd must be sealed against changes of its size and have exactly this size.
    ///
    /// # Errors
    /// `InvalidData` if the memfd does not have that size, is not sealed, or uses huge pages; otherwise the error of
    /// the system call that failed (EINVAL of `fcntl` if the descriptor is not a memfd).
    pub fn of(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::map(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Like [`of`](Self::of), but read-only: a write to it raises SIGSEGV.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub fn read_only(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::map(fd, len, ProtFlags::READ)
    }

    fn map(fd: BorrowedFd<'_>, len: usize, allowed: ProtFlags) -> io::Result<Self> {
        let seals = call("fcntl", || rustix::fs::fcntl_get_seals(fd))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory is not sealed against resizing"));
        }
        if call("fstatfs", || rustix::fs::fstatfs(fd))?.f_type == HUGE_PAGES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "memory of huge pages is not accepted"));
        }
        if usize::try_from(call("fstat", || rustix::fs::fstat(fd))?.st_size) != Ok(len) || len == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory does not have the announced size"));
        }
        let process = Process::current()?;
        let ptr = call("mmap", || {
            // SAFETY: a new mapping at an address of the kernel's choice does not affect existing memory.
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, allowed, MapFlags::SHARED, fd, 0) }
        })?;
        Self { ptr: NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len, process }.kept_from_children()
    }

    /// Maps `len` bytes of private memory, all 0, for systems that cannot share memory.
    ///
    /// # Errors
    /// The error of `mmap` or `madvise`.
    pub fn private(len: usize) -> io::Result<Self> {
        let (process, allowed) = (Process::current()?, ProtFlags::READ | ProtFlags::WRITE);
        let ptr = call("mmap", || {
            // SAFETY: a new mapping at an address of the kernel's choice does not affect existing memory.
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, allowed, MapFlags::PRIVATE) }
        })?;
        Self { ptr: NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len, process }.kept_from_children()
    }

    fn kept_from_children(self) -> io::Result<Self> {
        call("madvise", || {
            // SAFETY: the range was just mapped and belongs to this value; DONTFORK only changes what a child inherits.
            unsafe { rustix::mm::madvise(self.ptr.as_ptr().cast(), self.len, Advice::LinuxDontFork) }
        })?;
        Ok(self)
    }

    /// Makes the pages that contain `len` bytes starting at `offset` present, so that reading them cannot fail for lack
    /// of memory.
    ///
    /// # Errors
    /// `InvalidInput` if the range is not within the mapping; otherwise the error of `madvise`.
    pub fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The advice is given for whole pages, and the offset need not be a multiple of the system's page size. A
        // mapping starts at a page.
        let (first, len) = kernel::whole_pages(offset, len, rustix::param::page_size()).ok_or(Errno::INVAL)?;
        let start = self.as_ptr().wrapping_add(first).cast();
        Ok(uninterrupted(|| {
            // SAFETY: the pages contain a part of this mapping, and a mapping has whole pages; the advice does not
            // change any contents.
            unsafe { rustix::mm::madvise(start, len, Advice::LinuxPopulateRead) }
        })?)
    }

    /// Returns the address of the first byte. It is valid until the mapping is dropped. Other processes may write the
    /// memory at any time.
    #[must_use]
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Returns whether this is the process in which the memory is mapped, and not a forked child of it.
    #[must_use]
    #[inline]
    pub fn is_here(&self) -> bool {
        self.process.is_here()
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns false, because a mapping has at least one byte.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_here() {
            return; // A child never had the mapping (DONTFORK), and other memory may be at its address.
        }
        // SAFETY: the whole range belongs to this value, and no user keeps its address longer than the mapping.
        if let Err(error) = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast::<c_void>(), self.len) } {
            crate::later::later!(error: %error, "munmap of a shared mapping failed");
        }
    }
}

/// Creates a memfd of `len` bytes, sealed against changes of its size. The first `backed` bytes are allocated at once.
/// The rest is allocated when it is first accessed (or by [`back`]).
///
/// # Errors
/// The error of `memfd_create`, `ftruncate`, `fallocate` or `fcntl`.
pub fn sealed_memfd(name: &str, len: usize, backed: usize) -> io::Result<OwnedFd> {
    let fd = resizable_memfd(name, len)?;
    back(fd.as_fd(), 0, backed)?;
    seal(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Creates a memfd of `len` bytes, sealed against changes of its size, that can be written only through the returned
/// mapping. It has no pages yet.
///
/// # Errors
/// As for [`sealed_memfd`], or the error of `mmap`.
pub fn published_memfd(name: &str, len: usize) -> io::Result<(OwnedFd, Mapping)> {
    let fd = resizable_memfd(name, len)?;
    seal(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    let mapping = Mapping::of(fd.as_fd(), len)?;
    seal(&fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
    Ok((fd, mapping))
}

fn resizable_memfd(name: &str, len: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = call("memfd_create", || rustix::fs::memfd_create(name, flags))?;
    resize(&fd, len as u64)?;
    Ok(fd)
}

/// Sets the length of a file. A length beyond RLIMIT_FSIZE is an error, and does not cause a signal.
///
/// # Errors
/// The error of `ftruncate`.
pub fn resize(file: &OwnedFd, len: u64) -> io::Result<()> {
    check_file_size(len).map_err(named("ftruncate"))?;
    call("ftruncate", || rustix::fs::ftruncate(file, len))
}

/// Checks that a file of this process may have this length. The kernel terminates a process with SIGXFSZ if it makes a
/// file longer than its limit. This includes memfds.
///
/// # Errors
/// EFBIG if the file may not have this length.
fn check_file_size(len: u64) -> rustix::io::Result<()> {
    let limit = kernel::limit(libc::RLIMIT_FSIZE);
    if limit.is_some_and(|limit| len > limit) { Err(Errno::FBIG) } else { Ok(()) }
}

fn seal(fd: &OwnedFd, seals: SealFlags) -> io::Result<()> {
    call("fcntl", || rustix::fs::fcntl_add_seals(fd, seals))
}

/// The number of bytes for which one call allocates pages. A signal undoes the work of a call, so a call should be
/// short.
const BACK_STEP: usize = 1 << 20;

/// Allocates pages for `len` bytes of a memfd starting at `offset`, so that accessing them cannot fail for lack of
/// memory.
///
/// # Errors
/// The error of `fallocate`.
pub fn back(fd: BorrowedFd<'_>, offset: usize, len: usize) -> io::Result<()> {
    for done in (0..len).step_by(BACK_STEP) {
        let (from, len) = (offset + done, BACK_STEP.min(len - done));
        call("fallocate", || rustix::fs::fallocate(fd, FallocateFlags::empty(), from as u64, len as u64))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_only_sealed_memory_of_the_announced_size() {
        let fd = sealed_memfd("percale-test", 8192, 4096).unwrap();
        let (a, b) = (Mapping::of(fd.as_fd(), 8192).unwrap(), Mapping::of(fd.as_fd(), 8192).unwrap());
        let at = |mapping: &Mapping| mapping.as_ptr().wrapping_add(5000);
        // SAFETY: the mapping is alive and long enough, and has no other user.
        unsafe { at(&a).write_volatile(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { at(&b).read_volatile() }, 7);
        assert_eq!(Mapping::of(fd.as_fd(), 4096).unwrap_err().kind(), io::ErrorKind::InvalidData);
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
            let fd = resizable_memfd("percale-test", 4096).unwrap();
            seal(&fd, seals).unwrap();
            for map in [Mapping::of, Mapping::read_only] {
                assert_eq!(map(fd.as_fd(), 4096).unwrap_err().kind(), io::ErrorKind::InvalidData, "{seals:?}");
            }
        }
        for len in [100, 10_000] {
            assert!(rustix::fs::ftruncate(&fd, len).is_err(), "sealed");
        }
    }

    #[test]
    fn dropped_mapping_is_unmapped() {
        let fd = sealed_memfd("percale-unmapped", 8192, 0).unwrap();
        let count = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("percale-unmapped").count();
        let mappings = [Mapping::of, Mapping::read_only].map(|map| map(fd.as_fd(), 8192).unwrap());
        assert_eq!(count(), 2);
        drop(mappings);
        assert_eq!(count(), 0);
    }

    #[test]
    fn memory_of_huge_pages_is_not_mapped() {
        // No huge page is allocated before the memory is mapped, so this test also runs on machines without huge pages.
        let made = rustix::fs::memfd_create("percale-test", MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB);
        let Ok(fd) = made else { return println!("skipped (huge pages): the kernel has no memfds of huge pages") };
        if let Err(error) = rustix::fs::ftruncate(&fd, 2 << 20) {
            return println!("skipped (huge pages): huge pages of another size: {error}");
        }
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let refused = Mapping::of(fd.as_fd(), 2 << 20).unwrap_err();
        assert!(refused.to_string().contains("huge pages"), "{refused}");
    }

    #[test]
    fn published_memory_is_writable_only_by_its_creator() {
        let (fd, ours) = published_memfd("percale-test", 8192).unwrap();
        back(fd.as_fd(), 4096, 4096).unwrap();
        assert!(Mapping::of(fd.as_fd(), 8192).is_err(), "mapped for writing through the published descriptor");
        assert!(rustix::io::pwrite(&fd, &[1], 0).is_err(), "written through the descriptor");
        let theirs = Mapping::read_only(fd.as_fd(), 8192).unwrap();
        // Neither the offset nor the length is a multiple of a page.
        for (offset, len) in [(4096, 4096), (5000, 1), (8191, 1), (0, 8192)] {
            theirs.populate(offset, len).unwrap();
        }
        assert_eq!(theirs.populate(4096, 4097).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // SAFETY: the mapping is alive and long enough, and has no other user.
        unsafe { ours.as_ptr().wrapping_add(5000).write_volatile(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.as_ptr().wrapping_add(5000).read_volatile() }, 7);
    }
}
