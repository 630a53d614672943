//! Memory that cannot change: it is allocated here and sealed against changes by any code in the process.
//!
//! The memory is a memfd that can neither shrink nor grow. It can be written only through its single mapping, which
//! cannot be unmapped, moved, replaced or protected differently (mseal(2), kernel 6.10). The descriptor is closed. So
//! the pages are the same for as long as the process lives, and registrations of them need not be watched. But the
//! memory is never returned to the kernel: a [`Sealed`] that is dropped is reused for later ones.
//!
//! A forked child shares the memory with its parent. The child has its own pool, so neither process allocates memory of
//! the other. But memory that the child inherits belongs to both processes, and their code must prevent conflicting use
//! ([`Sealed`]).

#![expect(unsafe_code, reason = "one mapping and its seals; each block states its own reason")]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::MutexGuard;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{MonitorBackend, Refusal, Watched};
use crate::access::Access;
use crate::calls::named;
use crate::journal::{JournalPage, MonitorDoorbell, PerProcess};
use crate::range::{Range, page_size};

/// Sealed memory: zeroed, page-aligned, in whole pages, with one owner.
///
/// The memory is shared with forked children, not copied: the writes of each process are visible to the other. A
/// program that forks (which is `unsafe` in Rust; this is one of its obligations) must ensure that the child does not
/// use the memory that it inherits. The child may drop it, which has no effect in the child.
pub struct Sealed {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: in this process the memory belongs only to the value's owner, on any thread.
unsafe impl Send for Sealed {}

// SAFETY: shared references only read it.
unsafe impl Sync for Sealed {}

impl Sealed {
    /// Allocates at least `bytes` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// `Unsupported` if the kernel cannot seal mappings (before 6.10), or an error of the system calls if there is not
    /// enough memory.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let len = bytes.max(1).checked_next_multiple_of(page_size() as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        let start = pool().take(len)?;
        let mut sealed = Self { start, len };
        // The bytes of the previous owner are still in the memory.
        sealed.fill(0);
        Ok(sealed)
    }

    /// Returns the addresses of the memory.
    #[must_use]
    pub fn range(&self) -> Range {
        Range::between(self.start.addr().get() as u64, (self.start.addr().get() + self.len) as u64)
            .unwrap_or(Range::ALL)
    }
}

impl Deref for Sealed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped permanently and initialised. In this process only this value's owner uses
        // them. Another process has them only if one of the two is a fork of the other, and the code that forks ensures
        // that only one of them uses them, as the type's documentation requires.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Sealed {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the owner is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        pool().give(self.start, self.len);
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({})", self.range())
    }
}

/// All sealed memory of the process.
#[derive(Debug)]
struct Pool {
    /// All arenas.
    arenas: Vec<Range>,
    /// Free ranges by their start. Adjoining ranges of one arena are merged.
    free: BTreeMap<usize, (Ptr, usize)>,
}

/// The address of free memory of the pool.
#[derive(Clone, Copy, Debug)]
struct Ptr(NonNull<u8>);

// SAFETY: the value is only an address; the thread that takes it from the pool is its only user.
unsafe impl Send for Ptr {}

static POOL: PerProcess<Pool> = PerProcess::new();

/// Locks the pool of this process.
fn pool() -> MutexGuard<'static, Pool> {
    // Each miss may lock the pool, so a lock without contention makes no system call.
    POOL.lock(|| Pool { arenas: Vec::new(), free: BTreeMap::new() })
}

/// The size of an arena in bytes, unless a larger allocation is requested.
const ARENA: usize = 4 << 20;

impl Pool {
    fn take(&mut self, len: usize) -> io::Result<NonNull<u8>> {
        let fits = |free: &BTreeMap<usize, (Ptr, usize)>| {
            free.iter().find(|(_, (_, free))| *free >= len).map(|(start, (at, free))| (*start, *at, *free))
        };
        let (start, at, free) = match fits(&self.free) {
            Some(found) => found,
            None => {
                let bytes = len.max(ARENA);
                let arena = arena(bytes)?;
                let start = arena.addr().get();
                self.arenas.extend(Range::new(start as u64, bytes as u64));
                self.free.insert(start, (Ptr(arena), bytes));
                (start, Ptr(arena), bytes)
            }
        };
        self.free.remove(&start);
        if free > len {
            // SAFETY: the address is in the same mapping.
            let rest = unsafe { at.0.add(len) };
            self.free.insert(start + len, (Ptr(rest), free - len));
        }
        Ok(at.0)
    }

    fn give(&mut self, at: NonNull<u8>, len: usize) {
        let start = at.addr().get();
        // In a forked child that drops inherited memory, the range is not in the pool, because the parent still has it.
        if !self.holds(Range::between(start as u64, (start + len) as u64).unwrap_or(Range::ALL)) {
            return;
        }
        let (mut at, mut start, mut len) = (at, start, len);
        if let Some((_, next)) = self.one_arena(start, start + len).then(|| self.free.remove(&(start + len))).flatten()
        {
            len += next;
        }
        if let Some((&before, &(before_at, before_len))) = self.free.range(..start).next_back()
            && before + before_len == start
            && self.one_arena(before, start)
        {
            self.free.remove(&before);
            (at, start, len) = (before_at.0, before, before_len + len);
        }
        self.free.insert(start, (Ptr(at), len));
    }

    /// Returns whether both addresses are in one arena. Two arenas may adjoin, but are two mappings.
    fn one_arena(&self, one: usize, other: usize) -> bool {
        let inside = |arena: &&Range| arena.start() <= one as u64 && (one as u64) < arena.end();
        self.arenas.iter().find(inside).is_some_and(|arena| (other as u64) < arena.end())
    }

    fn holds(&self, range: Range) -> bool {
        self.arenas.iter().any(|arena| arena.contains(range))
    }
}

/// Maps and seals an arena.
fn arena(len: usize) -> io::Result<NonNull<u8>> {
    // The kernel would provide the pages of a longer file one after another, and end processes when none are left.
    if crate::calls::system_memory().is_some_and(|memory| len as u64 > memory) {
        return Err(named("fallocate")(Errno::NOMEM));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"pindown", flags).map_err(named("memfd_create"))?;
    // The kernel sends SIGXFSZ to a process that makes a file longer than the process's limit.
    let may_be =
        crate::calls::limit(libc::RLIMIT_FSIZE).map(|limits| limits.rlim_cur).is_none_or(|limit| len as u64 <= limit);
    let resized = if may_be { rustix::fs::ftruncate(&file, len as u64) } else { Err(Errno::FBIG) };
    resized.map_err(named("ftruncate"))?;
    // Allocate the pages now, so that a lack of memory is not reported by SIGBUS at the first access.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64).map_err(named("fallocate"))?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses does not affect existing mappings.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0) }
        .map_err(named("mmap"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let sealed =
        rustix::fs::fcntl_add_seals(&file, seals).map_err(named("fcntl")).and_then(|()| mseal(start.addr(), len));
    if let Err(error) = sealed {
        // SAFETY: the mapping was made above, and no other code has its address.
        unsafe { rustix::mm::munmap(start, len) }?;
        return Err(error);
    }
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// mseal(2). libc does not define its number yet, which is the same on every architecture.
fn mseal(start: usize, len: usize) -> io::Result<()> {
    const SYS_MSEAL: libc::c_long = 462;
    // SAFETY: sealing only removes rights and changes no bytes.
    if unsafe { libc::syscall(SYS_MSEAL, start, len, 0) } == 0 {
        return Ok(());
    }
    let error = crate::calls::last("mseal");
    if crate::calls::errno(&error) == Some(libc::ENOSYS) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel cannot seal mappings: mseal(2) needs Linux 6.10",
        ));
    }
    Err(error)
}

/// The monitor that watches nothing, because the memory that it accepts cannot change.
#[derive(Debug)]
pub(crate) struct SealedMonitor;

impl SealedMonitor {
    /// Checks that memory can be sealed.
    ///
    /// # Errors
    /// The reason why memory cannot be sealed.
    pub(crate) fn probe() -> io::Result<Self> {
        Sealed::new(1).map(|_| Self)
    }

    /// Returns whether the range is sealed memory.
    pub(crate) fn holds(range: Range) -> bool {
        pool().holds(range)
    }
}

impl MonitorBackend for SealedMonitor {
    fn name(&self) -> &'static str {
        "sealed"
    }

    fn page(&self) -> Option<&'static JournalPage> {
        None
    }

    fn doorbell(&self) -> Option<&dyn MonitorDoorbell> {
        None
    }

    fn watch(&self, range: Range, _access: Access) -> Result<Watched, Refusal> {
        if Self::holds(range) { Ok(Watched::default()) } else { Err(Refusal::NotWatchable) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocates sealed memory. Returns `None` on a kernel without mseal and prints the reason; the test is then
    /// skipped.
    fn sealed(bytes: usize) -> Option<Sealed> {
        match Sealed::new(bytes) {
            Ok(sealed) => Some(sealed),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                println!("skipped (mseal): {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Requirements: MON-031.
    #[test]
    fn sealed_memory_cannot_change_under_its_owner() {
        let Some(mut memory) = sealed(3 * page_size() as usize) else { return };
        memory.fill(7);
        let start = memory.as_mut_ptr();
        let len = memory.len();
        assert_eq!(len as u64, 3 * page_size());
        let refused = |what: &str, result: libc::c_int| {
            assert_eq!(result, -1, "{what}");
            assert!(memory.iter().all(|byte| *byte == 7), "{what}");
        };
        // SAFETY: the test expects the kernel to reject these calls. If one succeeded, the test would fail before any
        // use.
        refused("munmap", unsafe { libc::munmap(start.cast(), len) });
        // SAFETY: as above.
        refused("mprotect", unsafe { libc::mprotect(start.cast(), len, libc::PROT_READ) });
        // SAFETY: as above.
        refused("punch", unsafe { libc::madvise(start.cast(), len, libc::MADV_REMOVE) });
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: as above.
        let over = unsafe { libc::mmap(start.cast(), len, libc::PROT_READ, flags, -1, 0) };
        refused("mmap", if over == libc::MAP_FAILED { -1 } else { 0 });
        // SAFETY: as above.
        let moved = unsafe { libc::mremap(start.cast(), len, 2 * len, libc::MREMAP_MAYMOVE) };
        refused("mremap", if moved == libc::MAP_FAILED { -1 } else { 0 });
    }

    #[test]
    fn more_memory_than_the_machine_has_is_rejected() {
        let Some(_) = sealed(1) else { return };
        for len in [1 << 46, usize::MAX >> 1] {
            assert_eq!(crate::calls::errno_for(&Sealed::new(len).unwrap_err()), libc::ENOMEM, "{len} bytes");
        }
    }

    /// The memory before and after an arena can change.
    #[test]
    fn range_that_leaves_its_arena_is_not_sealed() {
        let Some(memory) = sealed(1) else { return };
        let (own, page) = (memory.range(), page_size());
        let arena = *pool().arenas.iter().find(|arena| arena.contains(own)).expect("an arena contains the memory");
        let watched = |start, end| {
            let range = Range::between(start, end).expect("a range");
            assert_eq!(SealedMonitor::holds(range), SealedMonitor.watch(range, Access::empty()).is_ok(), "{range}");
            SealedMonitor::holds(range)
        };
        assert!(watched(arena.start(), arena.end()) && watched(own.start(), own.end()));
        for beyond in [1, page, 1 << 40] {
            assert!(!watched(own.start(), arena.end() + beyond), "{beyond} bytes behind the arena");
            assert!(!watched(arena.end() - 1, arena.end() + beyond), "{beyond} bytes behind the arena");
        }
        assert!(!watched(arena.start() - page, own.end()) && !watched(arena.start() - 1, arena.end()));
        assert!(!watched(arena.start() - 1, arena.end() + 1));
    }

    /// Two arenas may adjoin. A range is then handed out from one of them, whatever was given back first.
    #[test]
    fn free_memory_of_adjoining_arenas_is_not_merged() {
        let page = page_size() as usize;
        let first = NonNull::<u8>::dangling().with_addr(std::num::NonZeroUsize::new(16 * page).expect("an address"));
        let (one, other) = (first, first.with_addr(first.addr().saturating_add(2 * page)));
        for order in [[one, other], [other, one]] {
            let arenas = [one, other].map(|at| Range::new(at.addr().get() as u64, 2 * page as u64).expect("an arena"));
            let mut pool = Pool { arenas: arenas.to_vec(), free: BTreeMap::new() };
            for at in order {
                // In two parts, which are merged again.
                pool.give(at.map_addr(|start| start.saturating_add(page)), page);
                pool.give(at, page);
            }
            let free: Vec<_> = pool.free.iter().map(|(start, (_, len))| (*start, *len)).collect();
            assert_eq!(free, [(one.addr().get(), 2 * page), (other.addr().get(), 2 * page)]);
        }
    }

    #[test]
    fn dropped_sealed_memory_is_reused_and_zeroed() {
        let Some(mut one) = sealed(100) else { return };
        one.fill(9);
        drop(one);
        let many: Vec<_> = (1..200).filter_map(|n| sealed(n * 1000)).collect();
        assert!(many.iter().all(|sealed| sealed.iter().all(|byte| *byte == 0)));
        for (n, one) in many.iter().enumerate() {
            assert!(many[..n].iter().all(|other| !one.range().overlaps(other.range())));
            assert!(SealedMonitor::holds(one.range()));
        }
        drop(many);
        let pool = pool();
        let arenas: u64 = pool.arenas.iter().map(|arena| arena.len()).sum();
        assert!(arenas <= 64 << 20, "{arenas} bytes for 20 MB at a time");
    }
}
