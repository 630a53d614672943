//! The kinds of memory, as data.

mod special;

use std::fs::File;
use std::io;
use std::path::Path;

use libc::{MAP_ANONYMOUS, MAP_HUGETLB, MAP_PRIVATE, MAP_SHARED};
use pindown::monitor::sealed::Sealed;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

use super::memory::{Memory, MemoryShape, Origin};

/// A kind of memory.
pub(super) struct MemoryKind {
    pub(super) name: &'static str,
    /// The properties that operations may require.
    pub(super) traits: &'static [Trait],
    /// Makes memory of this kind.
    ///
    /// # Errors
    /// Returns the reason why such memory is not available here.
    pub(super) make: fn() -> io::Result<Memory>,
}

/// The properties of memory that operations require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trait {
    /// Only this program uses the addresses, so anything can be mapped there.
    Own,
    /// The memory can be made by mmap(2) alone, at any address.
    Mapped,
    /// The pages belong to a file, from which other processes can remove them.
    File,
    /// The pages can have more than one mapping.
    Shared,
    /// A System V segment.
    Segment,
    Heap,
    Stack,
    /// A chunk that malloc has mapped separately.
    BigChunk,
    /// A chunk that malloc keeps among others.
    SmallChunk,
    Library,
    /// The mapping is sealed (mseal(2)), so most operations are not possible.
    Sealed,
}

use Trait::{BigChunk, Heap as IsHeap, Library as IsLibrary, Mapped, Own, SmallChunk};
use Trait::{File as HasFile, Sealed as IsSealed, Segment as IsSegment, Shared, Stack as IsStack};

/// All kinds.
pub(super) const ALL: &[MemoryKind] = &[
    MemoryKind { name: "private anonymous", traits: &[Own, Mapped], make: || plain(MAP_PRIVATE | MAP_ANONYMOUS) },
    MemoryKind { name: "transparent huge page", traits: &[Own, Mapped], make: transparent },
    MemoryKind { name: "shared anonymous", traits: &[Own, Mapped, Shared, HasFile], make: shared_anonymous },
    MemoryKind { name: "heap (brk)", traits: &[Own, IsHeap], make: special::heap },
    MemoryKind { name: "stack of a thread", traits: &[Own, IsStack], make: special::stack },
    MemoryKind { name: "memfd shared", traits: &[Own, Mapped, Shared, HasFile], make: || memfd(MAP_SHARED) },
    MemoryKind { name: "memfd private", traits: &[Own, Mapped, HasFile], make: || memfd(MAP_PRIVATE) },
    MemoryKind { name: "memfd sealed", traits: &[Own, Mapped, Shared, HasFile], make: memfd_sealed },
    MemoryKind { name: "file on tmpfs shared", traits: &[Own, Mapped, Shared, HasFile], make: || tmpfs(MAP_SHARED) },
    MemoryKind { name: "file on tmpfs private", traits: &[Own, Mapped, HasFile], make: || tmpfs(MAP_PRIVATE) },
    MemoryKind { name: "file on disk shared", traits: &[Own, Mapped, Shared, HasFile], make: || disk(MAP_SHARED) },
    MemoryKind { name: "file on disk private", traits: &[Own, Mapped, HasFile], make: || disk(MAP_PRIVATE) },
    MemoryKind { name: "/dev/zero private", traits: &[Own, Mapped], make: || dev_zero(MAP_PRIVATE) },
    MemoryKind { name: "/dev/zero shared", traits: &[Own, Mapped, Shared, HasFile], make: || dev_zero(MAP_SHARED) },
    MemoryKind { name: "System V", traits: &[Own, Mapped, Shared, HasFile, IsSegment], make: special::segment },
    MemoryKind { name: "hugetlb private", traits: &[Own, Mapped], make: || huge(MAP_PRIVATE) },
    MemoryKind { name: "hugetlb shared", traits: &[Own, Mapped, Shared, HasFile], make: || huge(MAP_SHARED) },
    MemoryKind {
        name: "hugetlb memfd shared",
        traits: &[Own, Mapped, Shared, HasFile],
        make: || huge_memfd(MAP_SHARED),
    },
    MemoryKind { name: "hugetlb memfd private", traits: &[Own, Mapped, HasFile], make: || huge_memfd(MAP_PRIVATE) },
    MemoryKind { name: "sealed by pindown", traits: &[Own, IsSealed], make: sealed },
    MemoryKind { name: "malloc big", traits: &[BigChunk], make: special::big_chunk },
    MemoryKind { name: "malloc small", traits: &[SmallChunk], make: special::small_chunks },
    MemoryKind { name: "library's data", traits: &[IsLibrary], make: special::library },
];

impl MemoryKind {
    /// Returns the kind with this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|kind| kind.name == name)
    }
}

fn plain(flags: i32) -> io::Result<Memory> {
    Memory::mapped(MemoryShape::small(), flags, None)
}

fn shared_anonymous() -> io::Result<Memory> {
    let mut memory = plain(MAP_SHARED | MAP_ANONYMOUS)?;
    memory.open_file();
    Ok(memory)
}

fn transparent() -> io::Result<Memory> {
    let memory = Memory::mapped(MemoryShape::huge_aligned(), MAP_PRIVATE | MAP_ANONYMOUS, None)?;
    memory.memory_range.advise(memory.whole, libc::MADV_HUGEPAGE)?;
    memory.touch()?;
    if !is_huge(memory.whole.start())? {
        return Err(io::Error::other("no transparent huge page is available"));
    }
    Ok(memory)
}

/// Returns whether the mapping at `start` has huge pages, according to /proc/self/smaps.
fn is_huge(start: u64) -> io::Result<bool> {
    let text = std::fs::read_to_string("/proc/self/smaps")?;
    let mapping = text.lines().skip_while(|line| !line.starts_with(&format!("{start:x}-")));
    let huge = mapping.into_iter().find_map(|line| line.strip_prefix("AnonHugePages:"));
    Ok(huge.is_some_and(|size| !size.trim_start().starts_with("0 ")))
}

/// Makes memory that maps an empty file.
fn of_file(shape: MemoryShape, flags: i32, file: OwnedFd) -> io::Result<Memory> {
    rustix::fs::ftruncate(&file, shape.bytes())?;
    Memory::mapped(shape, flags, Some(file))
}

fn memfd(flags: i32) -> io::Result<Memory> {
    of_file(MemoryShape::small(), flags, rustix::fs::memfd_create(c"percale-torture", MemfdFlags::CLOEXEC)?)
}

fn memfd_sealed() -> io::Result<Memory> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = of_file(MemoryShape::small(), MAP_SHARED, rustix::fs::memfd_create(c"percale-torture", flags)?)?;
    rustix::fs::fcntl_add_seals(memory.file()?, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(memory)
}

/// The type of tmpfs in statfs(2).
const TMPFS: i64 = 0x0102_1994;

/// Makes a file without a name and writes its pages. The directory must be on tmpfs if and only if `on_tmpfs` is set.
fn nameless(directory: &Path, on_tmpfs: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
    let file = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)?;
    if (i128::from(rustix::fs::fstatfs(&file)?.f_type) == i128::from(TMPFS)) != on_tmpfs {
        let wrong = if on_tmpfs { "is not a tmpfs" } else { "is a tmpfs (set TMPDIR to a directory on a disk)" };
        return Err(io::Error::other(format!("{} {wrong}", directory.display())));
    }
    let bytes = vec![1; MemoryShape::small().bytes() as usize];
    rustix::io::pwrite(&file, &bytes, 0)?;
    Ok(file)
}

fn tmpfs(flags: i32) -> io::Result<Memory> {
    of_file(MemoryShape::small(), flags, nameless(Path::new("/dev/shm"), true)?)
}

fn disk(flags: i32) -> io::Result<Memory> {
    of_file(MemoryShape::small(), flags, nameless(&std::env::temp_dir(), false)?)
}

fn dev_zero(flags: i32) -> io::Result<Memory> {
    let zero = File::options().read(true).write(true).open("/dev/zero")?;
    let mut memory = Memory::mapped(MemoryShape::small(), flags, Some(zero.into()))?;
    if flags == MAP_SHARED {
        // The device itself cannot be truncated. The memory object that the kernel has substituted for it can be
        // truncated, and mapping it again maps the same memory.
        memory.open_file();
    }
    Ok(memory)
}

/// Checks that there are huge pages. This must be done first: without huge pages a mapping may succeed, and an access
/// to it kills the process.
fn huge_pages() -> io::Result<()> {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")?;
    // 16 pages are sufficient for memory that is mapped, moved, and mapped again.
    if free.trim().parse().unwrap_or(0) < 16 {
        let what = "fewer than 16 free huge pages (/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages)";
        return Err(io::Error::other(what));
    }
    Ok(())
}

fn huge(flags: i32) -> io::Result<Memory> {
    huge_pages()?;
    let mut memory = Memory::mapped(MemoryShape::huge(), flags | MAP_ANONYMOUS | MAP_HUGETLB, None)?;
    if flags == MAP_SHARED {
        memory.open_file();
    }
    Ok(memory)
}

fn huge_memfd(flags: i32) -> io::Result<Memory> {
    huge_pages()?;
    let file = rustix::fs::memfd_create(c"percale-torture", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB)?;
    of_file(MemoryShape::huge(), flags, file)
}

fn sealed() -> io::Result<Memory> {
    let shape = MemoryShape::small();
    let sealed = Sealed::new(shape.bytes() as usize)?;
    let whole = sealed.range();
    // Dropping the object would return the memory to pindown's pool. Its addresses must never be reused.
    std::mem::forget(sealed);
    Ok(Memory::adopted(whole, shape.registered(whole.start())?, Origin::Sealed))
}
