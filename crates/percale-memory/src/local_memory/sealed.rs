//! Memory that percale allocates so that peers on this machine can map it.
//!
//! An [`Allocation`] is a part of an *arena*, which is a sealed memfd with all its pages, mapped once. Small
//! allocations share arenas, and a large allocation has its own arena. When the last allocation of an arena is dropped,
//! the arena is unmapped and closed, except that one empty shared arena is kept. Peers that have mapped an arena keep
//! its pages allocated, but not the mapping in this process. If the system does not provide a memfd, an arena is
//! ordinary memory of this process. It can be used like any other memory, but peers do not map it.
//!
//! Invariants:
//! * A peer may write an arena at any time, so percale stores no data of its own in arenas. The free lists are ordinary
//!   memory, and bytes are only copied in and out.
//! * The number of an arena is never used again in this process, so a peer may identify its mapping by that number.
//! * An arena's address range is in the registry exactly as long as code may refer to it: it is added before the first
//!   allocation is returned, and removed before the arena is unmapped.
//!
//! One lock protects the registry and the free lists. It is never held during a system call. [`locate`] first compares
//! with two plain bounds, so a query about ordinary memory usually costs two loads. (A child inherits its parent's
//! bounds. So it may search its own registry unnecessarily until it has arenas of its own.)
//!
//! A forked child does not inherit arenas, only their addresses, at which it may have mapped other memory. It has its
//! own registry, and reading or writing its parent's allocations panics in the child.

#![expect(unsafe_code, reason = "madvise, and copies to and from memory that peers may write")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::Advice;

use super::free_list::FreeList;
use super::kernel;
use super::mapping::{Mapping, back, sealed_memfd};
use super::volatile::{Segment, Segments, View};
use crate::local_memory::volatile::{SegmentsExt as _, ViewExt as _};
use crate::system::call;
use crate::system::forked::PerProcess;

/// The size of an arena that small allocations share: one huge page.
const SHARED: usize = 2 << 20;
/// The minimum size of an allocation that has an arena of its own.
const LARGE: usize = 512 << 10;
/// The minimum size of an allocation that starts at a page.
const PAGED: usize = 64 << 10;
/// The size of a cache line, at which small allocations start.
pub(super) const LINE: usize = 64;

/// The reasons why memory was not allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// The size exceeds the memory of this machine.
    #[error("{0} bytes exceed the memory of this machine")]
    TooLarge(usize),
    /// The system did not provide memory or a descriptor.
    #[error("cannot allocate memory: {0}")]
    System(io::Error),
    /// This process has used all of its 2^32 arena numbers.
    #[error("no arena numbers are left in this process; reuse large allocations instead of replacing them")]
    Exhausted,
    /// The pool would have more buffers, or longer ones, than a pool can have.
    #[error(
        "a pool has fewer than 2^32 buffers of less than 2^32 bytes, so it cannot have {count} buffers of {len} bytes; \
         use several pools, or Domain::allocate for longer buffers"
    )]
    Pool {
        /// The number of buffers.
        count: usize,
        /// The length of each buffer in bytes.
        len: usize,
    },
}

impl From<io::Error> for AllocateError {
    #[inline]
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl AllocateError {
    /// Returns libfabric's positive code for this error.
    #[must_use]
    #[inline]
    pub fn errno(&self) -> i32 {
        match self {
            Self::System(error) => call::errno(error).unwrap_or(libc::ENOMEM),
            Self::Pool { .. } => libc::EINVAL,
            _ => libc::ENOMEM,
        }
    }
}

/// A mapped memfd.
#[derive(Debug)]
struct Arena {
    id: u32,
    /// The memfd. If it is `None`, memory cannot be shared, and the arena is private memory of this process.
    fd: Option<Arc<OwnedFd>>,
    mapping: Mapping,
}

impl Arena {
    /// Creates and maps an arena of `size` bytes, a multiple of the page size. If it can be shared, all its pages are
    /// present.
    fn new(size: usize) -> Result<Self, AllocateError> {
        let shared = sealed_memfd("percale-arena", size, 0).and_then(|fd| Ok((Mapping::of(fd.as_fd(), size)?, fd)));
        let (mapping, fd) = match shared {
            Ok((mapping, fd)) => (mapping, Some(fd)),
            Err(error) => {
                crate::later::later!(debug: %error, "cannot allocate shared memory; using private memory, which peers cannot map");
                (Mapping::private(size)?, None)
            }
        };
        let start = mapping.as_ptr().cast();
        if size >= SHARED {
            // The advice fails if the system's settings exclude huge pages. In this case ordinary pages are used.
            // SAFETY: the range is this arena's new mapping; the advice changes no contents.
            let advised = unsafe { rustix::mm::madvise(start, size, Advice::LinuxHugepage) };
            crate::later::later!(trace: size, ?advised, "huge pages for an arena");
        }
        // Page faults follow the advice and fill the page table, which fallocate does not do. But only the result of
        // fallocate shows whether every page is present.
        // SAFETY: as above.
        let filled = unsafe { rustix::mm::madvise(start, size, Advice::LinuxPopulateWrite) };
        crate::later::later!(trace: size, ?filled, "page table of an arena");
        if let Some(fd) = &fd {
            // If fallocate fails although populating succeeded, all pages are still present. (Ordinary memory behaves
            // as in any process: if the system runs out of it, the process is killed.)
            back(fd.as_fd(), 0, size).or_else(|error| filled.map_err(|_| error))?;
        }
        let id = new_number().ok_or(AllocateError::Exhausted)?;
        Ok(Self { id, fd: fd.map(Arc::new), mapping })
    }

    fn start(&self) -> usize {
        self.mapping.as_ptr().addr()
    }
}

/// Returns a new number for memory that peers may map. It is never 0, and never used again in this process. Returns
/// `None` if all numbers are used up.
#[inline]
pub fn new_number() -> Option<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.try_update(Ordering::Relaxed, Ordering::Relaxed, |number| number.checked_add(1)).ok()
}

/// An arena in the registry.
#[derive(Debug)]
struct Registered {
    arena: Arc<Arena>,
    free: FreeList,
    /// Whether small allocations share the arena.
    shared: bool,
}

/// All arenas of this process, indexed by address.
#[derive(Debug, Default)]
struct Registry {
    arenas: BTreeMap<usize, Registered>,
}

static REGISTRY: PerProcess<Mutex<Registry>> = PerProcess::new();
/// The lower and the upper bound of the addresses of all arenas. They are written under the lock. A reader that may
/// validly query an allocation got the allocation from a thread that saw its arena being added, so the bounds that it
/// reads include the arena.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

impl Registry {
    /// Locks the registry of this process, if it ever had an arena.
    fn lock() -> Option<MutexGuard<'static, Self>> {
        REGISTRY.get().map(|registry| registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn enter(&mut self, arena: Arc<Arena>, shared: bool) -> Option<&mut Registered> {
        let (start, size) = (arena.start(), arena.mapping.len());
        // The arena is new, so no other arena has its range.
        self.arenas.insert(start, Registered { arena, free: FreeList::new(size), shared });
        self.bound();
        self.arenas.get_mut(&start)
    }

    fn leave(&mut self, start: usize) -> Option<Registered> {
        let gone = self.arenas.remove(&start)?;
        self.bound();
        Some(gone)
    }

    /// Updates the bounds.
    fn bound(&self) {
        let ends = self.arenas.last_key_value().map(|(start, last)| start + last.arena.mapping.len());
        LOWEST.store(self.arenas.keys().next().copied().unwrap_or(usize::MAX), Ordering::Relaxed);
        HIGHEST.store(ends.unwrap_or(0), Ordering::Relaxed);
    }

    fn take_shared(&mut self, len: usize) -> Option<Allocation> {
        self.arenas.values_mut().filter(|registered| registered.shared).find_map(|registered| registered.take(len))
    }

    /// Returns an allocation's memory to its arena. If the arena is no longer needed, returns it, to be dropped without
    /// the lock.
    fn give(&mut self, start: usize, offset: usize, taken: usize) -> Option<Registered> {
        let registered = self.arenas.get_mut(&start)?;
        registered.free.give(offset, taken);
        let spare = |other: &Registered| other.shared && other.free.is_unused();
        if !registered.free.is_unused() || (registered.shared && self.arenas.values().filter(|a| spare(a)).count() < 2)
        {
            return None;
        }
        self.leave(start)
    }
}

impl Registered {
    fn take(&mut self, len: usize) -> Option<Allocation> {
        let taken = reserved(len);
        let offset = self.free.take(taken, alignment(len))?;
        Some(Allocation {
            block: Box::new(Block { arena: Arc::clone(&self.arena), offset, len, taken, shortened: false }),
        })
    }
}

/// Returns the alignment of an allocation of `len` bytes.
fn alignment(len: usize) -> usize {
    if len >= PAGED { rustix::param::page_size() } else { LINE }
}

/// Returns the number of bytes that an allocation of `len` bytes takes up.
pub(super) fn reserved(len: usize) -> usize {
    len.max(1).next_multiple_of(alignment(len))
}

/// Allocates `len` bytes, all 0, which local peers can map. They start at a cache line or, for 64 KiB and more, at a
/// page. Accesses to memory that peers can map never fail later, because every page of it is present when this function
/// returns.
///
/// # Errors
/// See [`AllocateError`].
pub fn allocate(len: usize) -> Result<Allocation, AllocateError> {
    if len < LARGE {
        // This is a separate statement, so that the lock is released before an arena is created.
        let reused = Registry::lock().and_then(|mut registry| registry.take_shared(len));
        let mut allocation = match reused {
            Some(allocation) => allocation,
            None => Registry::enter_new(SHARED, true, len)?,
        };
        allocation.fill(0);
        return Ok(allocation);
    }
    let memory = kernel::system_memory().map_or(u64::MAX, |(memory, _)| memory);
    if len as u64 > memory {
        return Err(AllocateError::TooLarge(len));
    }
    Registry::enter_new(reserved(len), false, len)
}

impl Registry {
    /// Creates an arena and takes its first `len` bytes.
    fn enter_new(size: usize, shared: bool, len: usize) -> Result<Allocation, AllocateError> {
        let arena = Arc::new(Arena::new(size)?);
        let registry = REGISTRY.get_or_make()?;
        let mut registry = registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.enter(arena, shared).and_then(|registered| registered.take(len)).ok_or(AllocateError::TooLarge(len))
    }
}

/// Memory that percale allocated. It is freed when dropped.
///
/// Peers that have mapped the memory may write it at any time, so it does not dereference to a slice. Bytes are copied
/// in and out.
pub struct Allocation {
    // Boxed, so that a `Buffer` of any kind consists of three words, which are cheap to move.
    block: Box<Block>,
}

/// The memory of an [`Allocation`].
struct Block {
    arena: Arc<Arena>,
    offset: usize,
    len: usize,
    /// The number of bytes that the allocation takes up in the arena.
    taken: usize,
    /// Whether the length was reduced.
    shortened: bool,
}

crate::short_debug!(Allocation, "Allocation");

impl Allocation {
    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.block.len
    }

    /// Returns whether the allocation has no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.block.len == 0
    }

    /// Returns the address of the first byte, for raw operations. It is valid until the allocation is dropped.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.block.arena.mapping.as_ptr().wrapping_add(self.block.offset)
    }

    /// Copies the bytes starting at `offset` into `to`.
    ///
    /// # Panics
    /// If there are fewer than `to.len()` bytes starting at `offset`, or in a forked child of the process that
    /// allocated the memory.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        Segments::one(self.segment()).copy_to(offset, to);
    }

    /// Copies `from` to the bytes starting at `offset`.
    ///
    /// # Panics
    /// If there are fewer than `from.len()` bytes starting at `offset`, or in a forked child of the process that
    /// allocated the memory.
    #[inline]
    pub fn write(&mut self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        View::of(from).copy_into(&Segments::one(self.segment()), offset);
    }

    /// Sets every byte to `value`.
    ///
    /// # Panics
    /// In a forked child of the process that allocated the memory.
    #[inline]
    pub fn fill(&mut self, value: u8) {
        self.check_here();
        // SAFETY: the range belongs to this allocation, and is mapped and writable. `&mut self` excludes other users in
        // this process.
        unsafe { std::ptr::write_bytes(self.as_ptr(), value, self.block.len) };
    }

    /// Returns a copy of all bytes.
    ///
    /// # Panics
    /// In a forked child of the process that allocated the memory.
    #[must_use]
    #[inline]
    pub fn to_vec(&self) -> Vec<u8> {
        Segments::one(self.segment()).to_vec()
    }

    /// Panics in a forked child, where other memory may be at the address.
    #[inline]
    #[track_caller]
    pub(in crate::local_memory) fn check_here(&self) {
        assert!(
            self.exists_here(),
            "the memory belongs to the parent process of this fork; allocate memory in this process"
        );
    }

    /// Returns whether this is the process that allocated the memory, and not a forked child of it.
    #[inline]
    pub(in crate::local_memory) fn exists_here(&self) -> bool {
        self.block.arena.mapping.is_here()
    }

    /// Reduces the length. All of the memory is freed with the allocation.
    pub(super) fn truncate(&mut self, len: usize) {
        if len < self.block.len {
            self.block.len = len;
            self.block.shortened = true;
        }
    }

    /// Returns whether the length was reduced.
    pub(super) const fn is_shortened(&self) -> bool {
        self.block.shortened
    }

    #[track_caller]
    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.block.len),
            "{len} bytes at {offset} are out of range for an allocation of {} bytes",
            self.block.len
        );
    }
}

/// Lends an [`Allocation`] to an operation. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait AllocationExt: Sized {
    /// Returns the whole allocation as a segment for an operation. The caller keeps the allocation until that operation
    /// has completed.
    ///
    /// # Panics
    /// In a forked child of the process that allocated the memory.
    fn segment(&self) -> Segment;
}

impl AllocationExt for Allocation {
    #[inline]
    fn segment(&self) -> Segment {
        self.check_here();
        // SAFETY: the memory is mapped and writable as long as the allocation lives, and the caller (the engine, which
        // owns it during the operation) keeps it alive. Because the caller owns it, no other code in this process
        // accesses it.
        unsafe { Segment::new(self.as_ptr(), self.block.len) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.exists_here() {
            return;
        }
        // Both the arena in the registry and this value's handle are dropped after the lock is released, because
        // unmapping takes time.
        let unneeded = Registry::lock()
            .and_then(|mut all| all.give(self.block.arena.start(), self.block.offset, self.block.taken));
        drop(unneeded);
    }
}

/// The position of memory within an arena.
#[derive(Clone)]
pub struct Located {
    /// The arena's number, which is never 0 and never used again in this process.
    pub arena: u32,
    /// The offset of the first byte in the arena.
    pub offset: u64,
    /// The size of the whole arena.
    pub size: usize,
    /// The arena's sealed memfd.
    pub fd: Arc<OwnedFd>,
}

crate::short_debug!(Located, "Located");

/// Returns the arena that contains all of the `len` bytes at `ptr`. Returns `None` for ordinary memory. Never
/// dereferences `ptr`.
#[must_use]
#[inline]
pub fn locate(ptr: *const u8, len: usize) -> Option<Located> {
    let start = ptr.addr();
    if start < LOWEST.load(Ordering::Relaxed) || start >= HIGHEST.load(Ordering::Relaxed) {
        return None;
    }
    let registry = Registry::lock()?;
    let (&base, registered) = registry.arenas.range(..=start).next_back()?;
    let (offset, size) = (start - base, registered.arena.mapping.len());
    if offset.checked_add(len)? > size || offset == size {
        return None;
    }
    let fd = Arc::clone(registered.arena.fd.as_ref()?);
    Some(Located { arena: registered.arena.id, offset: offset as u64, size, fd })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::forked::{in_a_child, refuse_calls};
    use proptest::prelude::*;
    use rustix::mm::{MapFlags, ProtFlags};

    #[test]
    fn memory_is_zeroed_aligned_and_found_again_through_its_descriptor() {
        for len in [0, 1, 64, 1000, PAGED - 1, PAGED, PAGED + 1, LARGE - 1, LARGE, SHARED + 5] {
            let mut memory = allocate(len).unwrap();
            assert_eq!(memory.to_vec(), vec![0; len]);
            assert_eq!(memory.as_ptr().addr() % alignment(len), 0);
            memory.fill(7);
            let found = locate(memory.as_ptr(), len).unwrap();
            let peer = Mapping::of(found.fd.as_fd(), found.size).unwrap();
            let offset = usize::try_from(found.offset).unwrap();
            // SAFETY: the mapping is alive, and the view covers only memory of this test.
            let view = unsafe { View::new(peer.as_ptr().wrapping_add(offset), len) };
            assert_eq!(view.to_vec(), vec![7; len]);
        }
    }

    #[test]
    fn ordinary_memory_and_ranges_that_leave_an_arena_are_not_found() {
        let memory = allocate(LARGE).unwrap();
        let heap = [0u8; 16];
        assert!(locate(heap.as_ptr(), 16).is_none());
        assert!(locate(std::ptr::null(), 1).is_none());
        assert!(locate(memory.as_ptr(), LARGE).is_some());
        assert!(locate(memory.as_ptr(), LARGE + 1).is_none());
        assert!(locate(memory.as_ptr(), usize::MAX).is_none());
    }

    /// Memory without pages would be a reason for SIGBUS when it is used.
    #[test]
    fn memory_whose_pages_cannot_be_allocated_is_an_error() {
        let populate = (libc::SYS_madvise, Some(libc::MADV_POPULATE_WRITE as u32));
        let both = [populate, (libc::SYS_fallocate, None)];
        if !in_a_child(|| refuse_calls(&both)) {
            return println!("skipped (seccomp): the kernel refuses a filter");
        }
        assert!(in_a_child(|| refuse_calls(&[populate]) && allocate(LARGE).is_ok()), "fallocate is sufficient");
        assert!(in_a_child(|| refuse_calls(&both) && matches!(allocate(LARGE), Err(AllocateError::System(_)))));
    }

    /// The length of the allocation is not a multiple of the size of a page.
    #[test]
    fn arena_is_unmapped_with_its_last_allocation() {
        let memory = allocate(LARGE + 1).unwrap();
        let at = memory.as_ptr();
        let arena = locate(at, LARGE + 1).unwrap().arena;
        drop(memory);
        // Another test may have an arena at the same address now.
        assert!(locate(at, 1).is_none_or(|found| found.arena != arena));
    }

    #[test]
    fn a_freed_arena_is_forgotten_and_its_number_is_not_used_again() {
        let first = allocate(LARGE).unwrap();
        let found = locate(first.as_ptr(), 1).unwrap();
        drop(first);
        let second = allocate(LARGE).unwrap();
        assert_ne!(locate(second.as_ptr(), 1).unwrap().arena, found.arena);
    }

    /// Requirements: FLT-010.
    #[test]
    fn child_finds_no_parent_arena_and_allocates_new_ones() {
        let (small, large) = (allocate(1000).unwrap(), allocate(LARGE).unwrap());
        let inherited = locate(small.as_ptr(), 1000).unwrap().arena;
        assert!(crate::system::forked::in_a_child(|| {
            let none = || locate(small.as_ptr(), 1).is_none() && locate(large.as_ptr(), LARGE).is_none();
            let before = none();
            let mut own = allocate(1000).unwrap();
            own.fill(7);
            let found = locate(own.as_ptr(), 1000).unwrap();
            // The arena of the child may have the same address as the parent's arena.
            let after =
                own.as_ptr() == small.as_ptr() || locate(small.as_ptr(), 1).is_none_or(|at| at.arena == found.arena);
            before && after && found.arena != inherited && own.to_vec() == [7; 1000]
        }));
        assert_eq!(locate(small.as_ptr(), 1000).unwrap().arena, inherited);
    }

    /// Requirements: FLT-010.
    #[test]
    fn child_releases_parent_memory_but_keeps_new_mappings() {
        let mut memory = Some(allocate(LARGE).unwrap());
        let start = memory.as_ref().unwrap().as_ptr();
        assert!(crate::system::forked::in_a_child(|| {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, which does not replace another one.
            let own = unsafe { rustix::mm::mmap_anonymous(start.cast(), LARGE, protection, flags) }.unwrap();
            // SAFETY: this many bytes were just mapped.
            unsafe { own.cast::<u8>().write_bytes(9, LARGE) };
            // SAFETY: as above, and they are no longer written.
            let own = unsafe { std::slice::from_raw_parts(own.cast::<u8>(), LARGE) };
            drop(memory.take());
            own.iter().all(|&byte| byte == 9) && locate(own.as_ptr(), LARGE).is_none()
        }));
        assert_eq!(memory.unwrap().to_vec(), vec![0; LARGE]);
    }

    #[test]
    fn absurd_sizes_are_refused() {
        assert!(matches!(allocate(isize::MAX.unsigned_abs()), Err(AllocateError::TooLarge(_))));
        assert_eq!(allocate(usize::MAX).unwrap_err().errno(), libc::ENOMEM);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn access_past_the_end_panics() {
        allocate(10).unwrap().read(8, &mut [0; 3]);
    }

    #[test]
    fn threads_may_allocate_at_once() {
        std::thread::scope(|scope| {
            for seed in 0..4u8 {
                scope.spawn(move || {
                    for round in 0..50usize {
                        let mut memory = allocate(round * 911).unwrap();
                        memory.fill(seed);
                        assert!(memory.to_vec().iter().all(|&byte| byte == seed));
                    }
                });
            }
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn live_allocations_never_overlap(
            steps in proptest::collection::vec((0usize..200_000, any::<bool>(), any::<prop::sample::Index>()), 1..60)
        ) {
            let mut live: Vec<(Allocation, u8)> = Vec::new();
            for (number, (len, free, which)) in (0u8..).zip(steps) {
                if free && !live.is_empty() {
                    let (memory, mark) = live.swap_remove(which.index(live.len()));
                    prop_assert_eq!(memory.to_vec(), vec![mark; memory.len()]);
                } else {
                    let mut memory = allocate(len).unwrap();
                    prop_assert!(memory.to_vec().iter().all(|&byte| byte == 0));
                    memory.fill(number);
                    live.push((memory, number));
                }
            }
            for (memory, mark) in live {
                prop_assert_eq!(memory.to_vec(), vec![mark; memory.len()]);
            }
        }
    }
}
