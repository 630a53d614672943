//! Memory that is made by other means than mmap(2) alone.

#![expect(unsafe_code, reason = "asks malloc, brk, shmget and dlopen for memory; each block states why it is sound")]

use std::ffi::c_void;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use libc::c_int;
use pindown::Range;

use crate::lot::range;
use crate::torture::memory::{Memory, Origin, Shape};

/// The whole of memory that starts at the first page after `address`.
fn adopted(address: u64, origin: Origin) -> io::Result<Memory> {
    let shape = Shape::small();
    let start = address.next_multiple_of(shape.unit);
    Ok(Memory::adopted(range(start, shape.bytes())?, shape.registered(start)?, origin))
}

/// A System V segment, which is destroyed when no process has it attached.
pub(in crate::torture) struct Segment(c_int);

impl Segment {
    /// One of so many bytes.
    pub(in crate::torture) fn new(bytes: u64) -> io::Result<Self> {
        // SAFETY: makes a segment and touches no memory of the process.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, bytes as usize, libc::IPC_CREAT | 0o600) };
        if id < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(id)) }
    }

    pub(super) fn make() -> io::Result<Memory> {
        let shape = Shape::small();
        let mut memory = Memory::reserved(shape, libc::MAP_SHARED)?;
        memory.origin = Origin::Segment(Self::new(shape.bytes())?);
        memory.establish(0)?;
        memory.open_file();
        Ok(memory)
    }

    /// The segment's number.
    pub(in crate::torture) fn id(&self) -> c_int {
        self.0
    }

    /// shmdt(2) of a segment that is attached at `at`, in a lot.
    pub(in crate::torture) fn detach(at: Range) -> io::Result<()> {
        let address = std::ptr::without_provenance::<c_void>(at.start() as usize);
        // SAFETY: a segment that is attached in a lot, in which no value lies.
        if unsafe { libc::shmdt(address) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: marks the segment to be destroyed when the last mapping has gone; touches no memory.
        unsafe { libc::shmctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// Memory between malloc's and the program break.
pub(in crate::torture) struct Heap {
    /// The program break before and after.
    range: Range,
}

impl Heap {
    pub(super) fn make() -> io::Result<Memory> {
        calm_malloc();
        let shape = Shape::small();
        let base = program_break();
        let start = base.next_multiple_of(shape.unit);
        set_break(start + shape.bytes())?;
        let heap = Self { range: range(base, start + shape.bytes() - base)? };
        adopted(base, Origin::Heap(heap))
    }

    /// Moves the break, and puts it back.
    pub(in crate::torture) fn swing(&self, to: u64) -> io::Result<()> {
        if program_break() != self.range.end() {
            return Err(io::Error::other("malloc has moved the program break meanwhile"));
        }
        set_break(to)?;
        set_break(self.range.end())
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if program_break() == self.range.end() {
            // Memory that cannot be returned stays.
            set_break(self.range.start()).ok();
        }
    }
}

fn program_break() -> u64 {
    // SAFETY: asks only.
    unsafe { libc::sbrk(0) }.addr() as u64
}

/// brk(2), through the C library, which must know the break.
fn set_break(to: u64) -> io::Result<()> {
    // SAFETY: the break moves only within what the caller has added to it, in which no value lies.
    if unsafe { libc::brk(std::ptr::without_provenance_mut(to as usize)) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives malloc room below the break, so that it does not move the break for a while.
fn calm_malloc() {
    #[cfg(target_env = "gnu")]
    // SAFETY: changes what malloc does with memory that is free.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30)
    };
    map_from(32 << 20);
    // The compiler would remove an allocation that is only freed.
    // SAFETY: any size may be asked for.
    let room = std::hint::black_box(unsafe { libc::malloc(8 << 20) });
    // SAFETY: it is what malloc returned, or null, and has no other user.
    unsafe { libc::free(room) };
    map_from(128 << 10);
}

/// Sets the size from which on malloc maps a chunk separately. By default it raises that bound itself whenever such a
/// chunk is freed.
fn map_from(bytes: c_int) {
    #[cfg(target_env = "gnu")]
    // SAFETY: changes what malloc does when it is asked the next time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, bytes)
    };
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}

/// A waiting thread, with a stack that is unused below.
pub(in crate::torture) struct Stack(Option<(Sender<()>, JoinHandle<()>)>);

/// More than a C library keeps of the stacks of threads that have ended.
const STACK: usize = 64 << 20;

impl Stack {
    pub(super) fn make() -> io::Result<Memory> {
        let (address_out, address) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            let here = 0_u8;
            // The receiver may be gone: then the address is not needed.
            address_out.send((&raw const here).addr()).ok();
            ended.recv().ok();
        })?;
        let here = address.recv().map_err(io::Error::other)?;
        adopted((here - STACK / 2) as u64, Origin::Stack(Self(Some((end, thread)))))
    }

    /// Ends the thread, which frees its stack.
    pub(in crate::torture) fn end(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            // The thread cannot panic.
            thread.join().ok();
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.end();
    }
}

/// Chunks that malloc returned.
pub(in crate::torture) struct Chunks {
    /// Their addresses, as numbers, so that any thread may have them.
    chunks: Vec<usize>,
    bytes: usize,
}

/// A chunk for which malloc asks the kernel apart, since it has not so much left over, and how many of those that it
/// keeps together.
const BIG: usize = 64 << 20;
const SMALL: (usize, usize) = (100 << 10, 64);

impl Chunks {
    pub(super) fn big() -> io::Result<Memory> {
        map_from(128 << 10);
        Self { chunks: Vec::new(), bytes: BIG }.lent(1)
    }

    pub(super) fn small() -> io::Result<Memory> {
        Self { chunks: Vec::new(), bytes: SMALL.0 }.lent(SMALL.1)
    }

    fn lent(mut self, count: usize) -> io::Result<Memory> {
        self.take(count);
        let middle = self.chunks[count / 2] as u64;
        adopted(middle, Origin::Chunks(self))
    }

    fn take(&mut self, count: usize) {
        for _ in 0..count {
            // SAFETY: any size may be asked for.
            let chunk = unsafe { libc::malloc(self.bytes) };
            self.chunks.push(chunk.expose_provenance());
        }
    }

    /// free(3) of all.
    pub(in crate::torture) fn free(&mut self) {
        for chunk in self.chunks.drain(..) {
            // SAFETY: it is what malloc returned, and has no other user.
            unsafe { libc::free(std::ptr::with_exposed_provenance_mut(chunk)) };
        }
    }

    /// free(3) of all, then malloc_trim(3), then the same from malloc again.
    ///
    /// # Errors
    /// malloc has now something else at `whole`.
    pub(in crate::torture) fn trim(&mut self, whole: Range) -> io::Result<()> {
        let count = self.chunks.len();
        self.free();
        #[cfg(target_env = "gnu")]
        // SAFETY: gives back only what is free.
        unsafe {
            libc::malloc_trim(0)
        };
        self.take(count);
        let holds = |chunk: &usize| range(*chunk as u64, self.bytes as u64).is_ok_and(|chunk| chunk.contains(whole));
        if self.chunks.iter().any(holds) { Ok(()) } else { Err(io::Error::other("malloc gave other addresses")) }
    }

    /// realloc(3) of the one chunk to twice its size.
    pub(in crate::torture) fn grow(&mut self) {
        for chunk in &mut self.chunks {
            // SAFETY: it is what malloc returned, and has no other user.
            let grown = unsafe { libc::realloc(std::ptr::with_exposed_provenance_mut(*chunk), 2 * self.bytes) };
            if !grown.is_null() {
                *chunk = grown.expose_provenance();
            }
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.free();
    }
}

/// A library that was loaded for a test: its handle, 0 once it is closed.
pub(in crate::torture) struct Library(usize);

/// Small libraries that come with a C library and are not loaded.
const LIBRARIES: [&std::ffi::CStr; 4] =
    [c"libBrokenLocale.so.1", c"libthread_db.so.1", c"libanl.so.1", c"libutil.so.1"];

impl Library {
    pub(super) fn make() -> io::Result<Memory> {
        let loaded = std::fs::read_to_string("/proc/self/maps")?;
        for name in LIBRARIES.iter().filter(|name| !loaded.contains(&*name.to_string_lossy())) {
            // SAFETY: the library's initialisers are those of the C library's own parts, and do nothing here.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if handle.is_null() {
                continue;
            }
            let library = Self(handle.expose_provenance());
            if let Some(data) = data_of(&name.to_string_lossy())? {
                return Ok(Memory::adopted(data, data, Origin::Library(library)));
            }
        }
        Err(io::Error::other("no library to load"))
    }

    /// dlclose(3).
    pub(in crate::torture) fn close(&mut self) {
        let handle = std::mem::take(&mut self.0);
        if handle != 0 {
            // SAFETY: what dlopen returned, once; nothing of it is called.
            unsafe { libc::dlclose(std::ptr::with_exposed_provenance_mut(handle)) };
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        self.close();
    }
}

/// The addresses of the writable pages of a loaded library.
fn data_of(name: &str) -> io::Result<Option<Range>> {
    let text = std::fs::read_to_string("/proc/self/maps")?;
    let line = text.lines().find(|line| line.ends_with(name) && line.contains(" rw-p "));
    let bounds = line.and_then(|line| line.split_once(' ')?.0.split_once('-'));
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    Ok(bounds.and_then(|(start, end)| Range::between(hex(start)?, hex(end)?)))
}
