//! Copies made by the kernel, with process_vm_readv and process_vm_writev, so that an invalid address causes an error
//! and not a signal.
//!
//! [`cross`] makes the call, to and from any process that permits it. The rest of the module copies memory of this
//! process that may be unmapped, with the same call on this process. If a sandbox forbids the call, the memory is
//! copied through a pipe: reading from a pipe into invalid memory, or writing invalid memory to a pipe, fails as well.

#![expect(unsafe_code, reason = "system calls on addresses that the kernel checks; each block states its own reason")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use super::short_bytes::ShortBytes;
use super::volatile::{Segment, Segments, View};
use crate::local_memory::volatile::ViewExt as _;
use crate::system::call::call;

/// The direction of a copy. The caller either reads from the remote memory or writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the remote memory.
    Read,
    /// To the remote memory.
    Write,
}

/// Makes one system call that copies between local memory and `remote` of process `pid`. Returns the number of bytes
/// copied, at least one.
///
/// # Safety
/// The caller lends the memory of the local vectors, for writing if the call reads, otherwise for reading. If `pid` is
/// this process, the caller also lends the mapped part of `remote` for the opposite access.
#[inline]
pub unsafe fn cross(pid: i32, direction: Direction, local: &[libc::iovec], remote: libc::iovec) -> io::Result<usize> {
    let (vectors, count) = (local.as_ptr(), local.len() as libc::c_ulong);
    let copied = match direction {
        // SAFETY: guaranteed by the caller; the kernel checks the remote vector.
        Direction::Read => unsafe { libc::process_vm_readv(pid, vectors, count, &raw const remote, 1, 0) },
        // SAFETY: guaranteed by the caller; the kernel checks the remote vector.
        Direction::Write => unsafe { libc::process_vm_writev(pid, vectors, count, &raw const remote, 1, 0) },
    };
    match usize::try_from(copied) {
        Ok(0) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Ok(copied) => Ok(copied),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Makes one system call that copies between local memory and the address space that an open `/proc/PID/mem` file
/// refers to, at address `remote`. Returns the number of bytes copied. This is 0 once no process has that address space
/// any more.
///
/// # Safety
/// As for [`cross`].
#[inline]
pub unsafe fn through(
    space: BorrowedFd<'_>,
    direction: Direction,
    local: &[libc::iovec],
    remote: u64,
) -> io::Result<usize> {
    // No process has memory at such an address.
    let remote = libc::off_t::try_from(remote).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
    let (vectors, count) = (local.as_ptr(), local.len() as libc::c_int);
    let copied = match direction {
        // SAFETY: guaranteed by the caller; the kernel checks the remote address.
        Direction::Read => unsafe { libc::preadv(space.as_raw_fd(), vectors, count, remote) },
        // SAFETY: guaranteed by the caller; the kernel checks the remote address.
        Direction::Write => unsafe { libc::pwritev(space.as_raw_fd(), vectors, count, remote) },
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// Reads `remote` of process `pid` into `local`, and then the word at `proof` of the same address space. One system
/// call looks up the process ID only once, so the word proves which process's memory was read. Returns true if all
/// bytes were read and the word is `value`.
///
/// # Safety
/// As for [`cross`]; `local` has room for one vector after those that are used.
pub unsafe fn read_with_proof(
    pid: i32,
    local: &mut [libc::iovec],
    remote: libc::iovec,
    (proof, value): (u64, u64),
) -> io::Result<bool> {
    let mut word = !value;
    if let Some(last) = local.last_mut() {
        *last = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
    }
    let remotes =
        [remote, libc::iovec { iov_base: std::ptr::without_provenance_mut(proof as usize), iov_len: size_of::<u64>() }];
    let (vectors, count) = (local.as_ptr(), local.len() as libc::c_ulong);
    // SAFETY: guaranteed by the caller, and the last vector is the word of this call; the kernel checks the remote
    // vectors.
    let copied = unsafe { libc::process_vm_readv(pid, vectors, count, remotes.as_ptr(), 2, 0) };
    let copied = usize::try_from(copied).map_err(|_| io::Error::last_os_error())?;
    Ok(copied == remote.iov_len + size_of::<u64>() && word == value)
}

/// Returns whether the process of this pidfd has been waited for, so that its process id may belong to another process.
/// Returns false if the kernel does not report this.
#[inline]
pub fn is_reaped(process: BorrowedFd<'_>) -> bool {
    // SAFETY: signal 0 is not delivered to any process; no memory is passed.
    let sent = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), 0, std::ptr::null::<libc::siginfo_t>(), 0)
    };
    sent == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Writes `local` to `remote` of process `pid`, after the word at `guard`, which is set to the value that it already
/// has. The kernel stops at the first address that is not mapped, so nothing is written to a process without that word.
/// Returns how many bytes were written after the word, or `None` if not even the word was written.
///
/// # Safety
/// As for [`cross`]; the first vector of `local` is reserved for this call.
pub unsafe fn write_guarded_by_word(
    pid: i32,
    local: &mut [libc::iovec],
    remote: libc::iovec,
    (guard, value): (u64, u64),
) -> io::Result<Option<usize>> {
    if let Some(first) = local.first_mut() {
        *first = libc::iovec { iov_base: (&raw const value).cast_mut().cast(), iov_len: size_of::<u64>() };
    }
    let remotes =
        [libc::iovec { iov_base: std::ptr::without_provenance_mut(guard as usize), iov_len: size_of::<u64>() }, remote];
    let (vectors, count) = (local.as_ptr(), local.len() as libc::c_ulong);
    // SAFETY: guaranteed by the caller, and the first vector is the word of this call; the kernel checks the remote
    // vectors.
    let copied = unsafe { libc::process_vm_writev(pid, vectors, count, remotes.as_ptr(), 2, 0) };
    let copied = usize::try_from(copied).map_err(|_| io::Error::last_os_error())?;
    Ok(copied.checked_sub(size_of::<u64>()))
}

/// Reads the word at an address of a process, to check that it can be read.
pub fn word_at(pid: i32, address: u64) -> io::Result<u64> {
    let mut word = 0_u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), ..local };
    // SAFETY: the word belongs to this call.
    match unsafe { cross(pid, Direction::Read, &[local], remote) }? {
        8 => Ok(word),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

/// Returns a limit of this process (`RLIMIT_*`). Returns `None` if there is no limit, or if the kernel does not report
/// it.
#[inline]
pub fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limits = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` is valid, and every bit pattern is a valid value of its type.
    let read = unsafe { libc::getrlimit64(resource, &raw mut limits) };
    (read == 0 && limits.rlim_cur != libc::RLIM64_INFINITY).then_some(limits.rlim_cur)
}

/// Returns the sizes in bytes of this machine's memory and of its swap, or `None` if the kernel does not report them.
#[inline]
pub fn system_memory() -> Option<(u64, u64)> {
    // SAFETY: every bit pattern is a valid value, including zeros.
    let mut system: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: `system` is valid.
    let read = unsafe { libc::sysinfo(&raw mut system) };
    let bytes = |units: libc::c_ulong| units.saturating_mul(system.mem_unit.into());
    (read == 0).then(|| (bytes(system.totalram), bytes(system.totalswap)))
}

/// Copies `from` to `to`, which has the same length.
pub fn store(to: &Segments, from: View<'_>) -> io::Result<()> {
    let bytes = from.to_vec();
    each(to, &mut |offset, piece| {
        let source = &bytes[offset..offset + piece.len()];
        copy(piece, source.as_ptr().cast_mut(), Direction::Write)
    })
}

/// Returns a copy of the bytes of `from`.
pub fn load(from: &Segments) -> io::Result<ShortBytes> {
    let mut bytes = ShortBytes::try_zeroed(from.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let start = bytes.as_mut_ptr();
    each(from, &mut |offset, piece| copy(piece, start.wrapping_add(offset), Direction::Read))?;
    Ok(bytes)
}

/// Makes the pages of `memory` present and writable, for an instruction that the kernel cannot execute on behalf of
/// this process. The owner of the memory has guaranteed not to unmap them at the same time.
pub fn populate(memory: Segment) -> io::Result<()> {
    fault_in(memory, rustix::mm::Advice::LinuxPopulateWrite)
}

/// Makes the pages of `memory` present and readable. If `writable` is set, also makes them writable.
pub fn check(memory: Segment, writable: bool) -> io::Result<()> {
    if memory.is_empty() {
        return Ok(());
    }
    let advice = if writable { rustix::mm::Advice::LinuxPopulateWrite } else { rustix::mm::Advice::LinuxPopulateRead };
    match fault_in(memory, advice) {
        // The right may be missing, the memory may be device memory, or the kernel is older than 5.14 and does not
        // support this advice.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => check_maps(memory, writable),
        result => result,
    }
}

/// Checks that the process's mappings cover all of `memory`, with these rights.
fn check_maps(memory: Segment, writable: bool) -> io::Result<()> {
    let (mut at, end) = (memory.as_ptr().addr(), memory.as_ptr().addr().saturating_add(memory.len()));
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        // A line reads "55e0c000-55e0d000 rw-p ..."; lines are in the order of addresses.
        let (Some((range, rest)), true) = (line.split_once(' '), at < end) else { break };
        let parsed =
            range.split_once('-').map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)));
        let Some((Ok(from), Ok(to))) = parsed else { return Err(io::ErrorKind::InvalidData.into()) };
        if to <= at {
            continue;
        }
        if from > at || !rest.starts_with('r') || writable && rest.as_bytes().get(1) != Some(&b'w') {
            break;
        }
        at = to;
    }
    if at >= end { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
}

fn fault_in(memory: Segment, advice: rustix::mm::Advice) -> io::Result<()> {
    let (start, len) = whole_pages(memory.as_ptr().addr(), memory.len(), rustix::param::page_size())
        .ok_or(rustix::io::Errno::FAULT)?;
    // SAFETY: this advice does not change any contents, and fails if the memory is not mapped.
    unsafe { rustix::mm::madvise(std::ptr::without_provenance_mut(start), len, advice) }?;
    Ok(())
}

/// Returns the start and the length of the pages that contain `len` bytes at `start`. Returns `None` if the end of the
/// last page cannot be represented as an address, as for a region of the whole address space.
pub(super) fn whole_pages(start: usize, len: usize, page: usize) -> Option<(usize, usize)> {
    let first = start & !(page - 1);
    let end = start.checked_add(len)?.checked_next_multiple_of(page)?;
    Some((first, end - first))
}

fn each(segments: &Segments, piece: &mut dyn FnMut(usize, Segment) -> io::Result<()>) -> io::Result<()> {
    let mut offset = 0;
    for segment in segments.as_slice() {
        piece(offset, *segment)?;
        offset += segment.len();
    }
    Ok(())
}

/// Copies between `theirs`, which may be unmapped, and `ours`, which is mapped and has the same length.
fn copy(theirs: Segment, ours: *mut u8, direction: Direction) -> io::Result<()> {
    let mut done = 0;
    while done < theirs.len() {
        let len = theirs.len() - done;
        let local = libc::iovec { iov_base: ours.wrapping_add(done).cast(), iov_len: len };
        let remote = libc::iovec { iov_base: theirs.as_ptr().wrapping_add(done).cast(), iov_len: len };
        let pid = std::process::id().cast_signed();
        // SAFETY: `ours` is lent for this many bytes, and so is `theirs`, as far as it is mapped.
        match unsafe { cross(pid, direction, &[local], remote) } {
            Ok(copied) => done += copied,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                return through_pipe(theirs.slice(done, len), ours.wrapping_add(done), direction);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Like [`copy`], but through a pipe, for systems on which the kernel may not copy between processes.
fn through_pipe(theirs: Segment, ours: *mut u8, direction: Direction) -> io::Result<()> {
    let (source, sink) = call("pipe2", || rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK))?;
    let (from, to) = match direction {
        Direction::Read => (theirs.as_ptr(), ours),
        Direction::Write => (ours, theirs.as_ptr()),
    };
    let (mut written, mut read) = (0, 0);
    while read < theirs.len() {
        // The pipe is empty at this point, so the write makes progress.
        let (at, left) = (from.wrapping_add(written).cast(), theirs.len() - written);
        // SAFETY: the kernel checks the addresses that it reads.
        written += moved("write", || unsafe { libc::write(sink.as_raw_fd(), at, left) })?;
        while read < written {
            let (at, left) = (to.wrapping_add(read).cast(), written - read);
            // SAFETY: the kernel checks the addresses that it writes; the caller lends the memory at both ends.
            read += moved("read", || unsafe { libc::read(source.as_raw_fd(), at, left) })?;
        }
    }
    Ok(())
}

/// Makes a call, and returns the number of bytes that it copied. Returns an error if this number is 0.
fn moved(name: &'static str, make: impl Fn() -> isize) -> io::Result<usize> {
    let moved = call(name, || match usize::try_from(make()) {
        Ok(moved) => Ok(moved),
        Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    })?;
    if moved == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(moved) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::call::errno;

    /// Returns the address of a mapped page that is followed by an unmapped page, and the page size.
    fn edge() -> (*mut u8, usize) {
        let page = rustix::param::page_size();
        // SAFETY: this creates a new anonymous mapping, at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                2 * page,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE,
            )
        }
        .unwrap();
        // SAFETY: this is the second page of that mapping, which is not used.
        unsafe { rustix::mm::munmap(start.wrapping_byte_add(page), page) }.unwrap();
        (start.cast(), page)
    }

    /// The variable states the page size that an emulator or a guest should have.
    #[test]
    fn page_size_is_the_stated_one() {
        if let Ok(size) = std::env::var("PERCALE_PAGE_SIZE") {
            assert_eq!(rustix::param::page_size().to_string(), size);
        }
    }

    #[test]
    fn whole_pages_contain_the_range_at_every_page_size() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for start in [0, 1, 4096, page - 1, page, 3 * page + 4096, usize::MAX - 3 * page] {
                for len in [0, 1, 4096, page, page + 1] {
                    let (first, bytes) = whole_pages(start, len, page).unwrap();
                    assert!(first.is_multiple_of(page) && bytes.is_multiple_of(page));
                    assert!(first <= start && start - first < page);
                    assert!(start + len <= first + bytes && first + bytes - (start + len) < page);
                }
            }
            assert_eq!(whole_pages(1, usize::MAX - 1, page), None);
            assert_eq!(whole_pages(2, usize::MAX, page), None);
        }
    }

    fn segment(ptr: *mut u8, len: usize) -> Segment {
        // SAFETY: the segment is only passed to the kernel, which checks it.
        unsafe { Segment::new(ptr, len) }
    }

    /// Requirements: MR-041.
    #[test]
    fn unmapped_or_protected_memory_is_detected() {
        let (start, page) = edge();
        assert!(check(segment(start, page), true).is_ok());
        assert!(check(segment(start, page + 1), false).is_err() && check(segment(start, 0), true).is_ok());
        for (rights, reads, writes) in
            [(rustix::mm::MprotectFlags::READ, true, false), (rustix::mm::MprotectFlags::empty(), false, false)]
        {
            // SAFETY: the page belongs to this test and is not used.
            unsafe { rustix::mm::mprotect(start.cast(), page, rights) }.unwrap();
            for looks in [check, check_maps] {
                assert_eq!(looks(segment(start.wrapping_add(5), 9), false).is_ok(), reads);
                assert_eq!(looks(segment(start.wrapping_add(5), 9), true).is_ok(), writes);
            }
        }
        // SAFETY: as above.
        unsafe { rustix::mm::munmap(start.cast(), page) }.unwrap();
        assert!(check_maps(segment(start, 1), false).is_err());
        let (all, here) = (segment(std::ptr::without_provenance_mut(1), usize::MAX - 1), [0_u8; 100_000]);
        assert!(check_maps(all, false).is_err());
        assert!(check_maps(segment(here.as_ptr().cast_mut(), here.len()), true).is_ok());
    }

    /// Requirements: MR-028.
    #[test]
    fn a_copy_of_unmapped_memory_is_an_error() {
        let (start, page) = edge();
        let within = Segments::one(segment(start, page));
        store(&within, View::of(&vec![7; page])).unwrap();
        assert_eq!(*load(&within).unwrap(), vec![7; page]);
        let over = Segments::one(segment(start.wrapping_add(page - 10), 20));
        assert!(store(&over, View::of(&[1; 20])).is_err());
        assert!(load(&over).is_err());
        let mut bytes = [0; 20];
        for direction in [Direction::Read, Direction::Write] {
            let error = through_pipe(segment(start.wrapping_add(page), 20), bytes.as_mut_ptr(), direction).unwrap_err();
            assert_eq!(errno(&error), Some(libc::EFAULT));
            through_pipe(segment(start, 20), bytes.as_mut_ptr(), direction).unwrap();
        }
        assert_eq!(bytes, [7; 20]);
        let own = std::process::id().cast_signed();
        assert_eq!(word_at(own, start.expose_provenance() as u64).unwrap(), u64::from_ne_bytes([7; 8]));
        assert!(word_at(own, start.addr() as u64 + page as u64 - 4).is_err(), "a word is read only as a whole");
    }
}
