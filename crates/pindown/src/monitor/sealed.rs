//! Memory that cannot change: allocated here, and sealed against changes by any code in the process.
//!
//! A memfd that can neither shrink nor grow, and that can be written only through the one mapping that exists, which in turn
//! cannot be unmapped, moved, replaced or protected otherwise (mseal(2), kernel 6.10). Its descriptor is closed. So its pages
//! are the same for as long as the process lives, and a registration of them needs no watching at all. The price is that the
//! memory is never given back to the kernel: what is dropped is used for the next [`Sealed`].
//!
//! A forked child shares the memory with its parent. The child has a pool of its own, so neither process allocates what the other has; but
//! memory that the child inherits belongs to both, and their code has to prevent conflicting use ([`Sealed`]).

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

use super::{Monitor, Refusal, Watched};
use crate::access::Access;
use crate::calls::named;
use crate::journal::{Bell, OfProcess, Page};
use crate::range::{Range, page_size};

/// Sealed memory: zeroed, page-aligned, whole pages, for one owner.
///
/// The memory is shared with forked children, not copied: each process sees what the other writes. A program that forks (which is `unsafe`
/// in Rust; this is one of the obligations) must ensure that the child does not use the memory that it inherits. The child may drop it,
/// which does nothing there.
pub struct Sealed {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: in this process the memory belongs to the value's owner alone, on whichever thread.
unsafe impl Send for Sealed {}

// SAFETY: shared references only read it.
unsafe impl Sync for Sealed {}

impl Sealed {
    /// Allocates at least so many bytes.
    ///
    /// # Errors
    /// `Unsupported` where the kernel cannot seal mappings (before 6.10), and what the kernel says when memory is short.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let len = bytes.max(1).checked_next_multiple_of(page_size() as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        let start = pool().take(len)?;
        let mut sealed = Self { start, len };
        // The previous owner's bytes are still there.
        sealed.fill(0);
        Ok(sealed)
    }

    /// The addresses of the memory.
    #[must_use]
    pub fn range(&self) -> Range {
        Range::between(self.start.addr().get() as u64, (self.start.addr().get() + self.len) as u64)
            .unwrap_or(Range::ALL)
    }
}

impl Deref for Sealed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped for ever and initialised. In this process they are this owner's alone; another process has them
        // only if it is a fork of this one, or this one of it, and the code that forks ensures that not both use them, as the type's
        // documentation requires.
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
    /// Every arena.
    arenas: Vec<Range>,
    /// Free ranges by their start: adjoining ranges of one arena are merged.
    free: BTreeMap<usize, (Ptr, usize)>,
}

/// The address of free memory of the pool.
#[derive(Clone, Copy, Debug)]
struct Ptr(NonNull<u8>);

// SAFETY: only an address; the thread that takes it from the pool has it alone.
unsafe impl Send for Ptr {}

static POOL: OfProcess<Pool> = OfProcess::new();

/// This process' pool.
fn pool() -> MutexGuard<'static, Pool> {
    // No system call: each miss asks here.
    POOL.lock(|| Pool { arenas: Vec::new(), free: BTreeMap::new() })
}

/// Bytes of an arena, unless more are asked for.
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
            // SAFETY: the rest lies in the same mapping.
            let rest = unsafe { at.0.add(len) };
            self.free.insert(start + len, (Ptr(rest), free - len));
        }
        Ok(at.0)
    }

    fn give(&mut self, at: NonNull<u8>, len: usize) {
        let start = at.addr().get();
        // A fork that drops what it inherited: the parent still has it.
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

    /// Whether both addresses lie in one arena: neighbours of two may touch, but are two mappings.
    fn one_arena(&self, one: usize, other: usize) -> bool {
        let inside = |arena: &&Range| arena.start() <= one as u64 && (one as u64) < arena.end();
        self.arenas.iter().find(inside).is_some_and(|arena| (other as u64) < arena.end())
    }

    fn holds(&self, range: Range) -> bool {
        self.arenas.iter().any(|arena| arena.contains(range))
    }
}

/// A sealed mapping.
fn arena(len: usize) -> io::Result<NonNull<u8>> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"pindown", flags).map_err(named("memfd_create"))?;
    // The kernel ends a process by SIGXFSZ that makes a file longer than it may.
    let may_be =
        crate::calls::limit(libc::RLIMIT_FSIZE).map(|limits| limits.rlim_cur).is_none_or(|limit| len as u64 <= limit);
    let resized = if may_be { rustix::fs::ftruncate(&file, len as u64) } else { Err(Errno::FBIG) };
    resized.map_err(named("ftruncate"))?;
    // Now rather than by SIGBUS at the first touch.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64).map_err(named("fallocate"))?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0) }
        .map_err(named("mmap"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let sealed =
        rustix::fs::fcntl_add_seals(&file, seals).map_err(named("fcntl")).and_then(|()| mseal(start.addr(), len));
    if let Err(error) = sealed {
        // SAFETY: the mapping was made above, and no other code knows its address.
        unsafe { rustix::mm::munmap(start, len) }?;
        return Err(error);
    }
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// mseal(2): libc has no number for it yet; it is the same on every architecture.
fn mseal(start: usize, len: usize) -> io::Result<()> {
    const SYS_MSEAL: libc::c_long = 462;
    // SAFETY: sealing takes rights away and touches no byte.
    if unsafe { libc::syscall(SYS_MSEAL, start, len, 0) } == 0 {
        return Ok(());
    }
    let error = crate::calls::last("mseal");
    if crate::calls::errno(&error) == Some(libc::ENOSYS) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel cannot seal mappings: mseal(2) came with 6.10",
        ));
    }
    Err(error)
}

/// Watches nothing, since nothing of what it answers for can change.
#[derive(Debug)]
pub(crate) struct SealedMonitor;

impl SealedMonitor {
    /// # Errors
    /// Why memory cannot be sealed here.
    pub(crate) fn probe() -> io::Result<Self> {
        Sealed::new(1).map(|_| Self)
    }

    /// Whether the range is sealed memory.
    pub(crate) fn holds(range: Range) -> bool {
        pool().holds(range)
    }
}

impl Monitor for SealedMonitor {
    fn name(&self) -> &'static str {
        "sealed"
    }

    fn page(&self) -> Option<&'static Page> {
        None
    }

    fn bell(&self) -> Option<&dyn Bell> {
        None
    }

    fn watch(&self, range: Range, _access: Access) -> Result<Watched, Refusal> {
        if Self::holds(range) { Ok(Watched::default()) } else { Err(Refusal::NotWatchable) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocates sealed memory. `None` on a kernel without mseal, with the reason printed: the test is then skipped.
    fn sealed(bytes: usize) -> Option<Sealed> {
        match Sealed::new(bytes) {
            Ok(sealed) => Some(sealed),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn mon_031_sealed_memory_cannot_change_under_its_owner() {
        let Some(mut memory) = sealed(3 * page_size() as usize) else { return };
        memory.fill(7);
        let start = memory.as_mut_ptr();
        let len = memory.len();
        assert_eq!(len as u64, 3 * page_size());
        let refused = |what: &str, result: libc::c_int| {
            assert_eq!(result, -1, "{what}");
            assert!(memory.iter().all(|byte| *byte == 7), "{what}");
        };
        // SAFETY: the calls are refused, which is what is tested; had one succeeded, the test would fail before any use.
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
    fn what_is_dropped_is_used_again_and_zeroed() {
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
