//! Makes and frees memory that is not made by mmap(2) alone.

#![expect(unsafe_code, reason = "gets memory from malloc, brk, shmget and dlopen; each block states why it is sound")]

use std::ffi::c_void;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use libc::c_int;
use pindown::Range;

use crate::memory_range::range;

/// A System V segment, which is destroyed when no process has attached it.
pub(super) struct Segment(c_int);

impl Segment {
    /// Makes a segment of `bytes` bytes.
    pub(super) fn new(bytes: u64) -> io::Result<Self> {
        // SAFETY: the call makes a segment and accesses no memory of the process.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, bytes as usize, libc::IPC_CREAT | 0o600) };
        if id < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(id)) }
    }

    /// Returns the ID of the segment.
    pub(super) fn id(&self) -> c_int {
        self.0
    }

    /// Detaches a segment that is attached at `at`, in a memory range, with shmdt(2).
    pub(super) fn detach(at: Range) -> io::Result<()> {
        let address = std::ptr::without_provenance::<c_void>(at.start() as usize);
        // SAFETY: the segment is attached in a memory range, which contains no Rust value.
        if unsafe { libc::shmdt(address) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the call marks the segment to be destroyed after its last mapping is removed. It accesses no memory.
        unsafe { libc::shmctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// Memory between the end of malloc's heap and the program break.
pub(super) struct Heap {
    /// From the previous program break to the new one.
    range: Range,
}

impl Heap {
    /// Raises the program break by at least `bytes` bytes. The memory begins at the next multiple of `unit`. Also
    /// returns the previous break.
    pub(super) fn new(unit: u64, bytes: u64) -> io::Result<(Self, u64)> {
        calm_malloc();
        let base = program_break();
        let start = base.next_multiple_of(unit);
        set_break(start + bytes)?;
        let heap = Self { range: range(base, start + bytes - base)? };
        Ok((heap, base))
    }

    /// Moves the program break to `to` and then restores it.
    pub(super) fn swing(&self, to: u64) -> io::Result<()> {
        if program_break() != self.range.end() {
            return Err(io::Error::other("malloc moved the program break meanwhile"));
        }
        set_break(to)?;
        set_break(self.range.end())
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if program_break() == self.range.end() {
            // If the memory cannot be returned, it stays allocated.
            set_break(self.range.start()).ok();
        }
    }
}

fn program_break() -> u64 {
    // SAFETY: an increment of 0 only returns the break.
    unsafe { libc::sbrk(0) }.addr() as u64
}

/// Calls brk(2) through the C library, so that the library's record of the break stays correct.
fn set_break(to: u64) -> io::Result<()> {
    // SAFETY: the break moves only within the memory that the caller has added to it, which contains no Rust value.
    if unsafe { libc::brk(std::ptr::without_provenance_mut(to as usize)) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Provides malloc with free memory below the break, so that malloc does not move the break for a while.
fn calm_malloc() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call changes only how malloc handles free memory.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30)
    };
    map_from(32 << 20);
    // Without `black_box`, the compiler would remove the allocation, because it is only freed.
    // SAFETY: malloc accepts any size.
    let room = std::hint::black_box(unsafe { libc::malloc(8 << 20) });
    // SAFETY: the pointer was returned by malloc, or is null, and has no other user.
    unsafe { libc::free(room) };
    map_from(128 << 10);
}

/// Sets the minimum size of a chunk that malloc maps separately. By default malloc raises this limit whenever such a
/// chunk is freed.
fn map_from(bytes: c_int) {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call changes only later calls of malloc.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, bytes)
    };
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}

/// A waiting thread. The lower part of its stack is unused.
pub(super) struct Stack(Option<(Sender<()>, JoinHandle<()>)>);

/// The size of the stack. It exceeds the C library's cache of the stacks of ended threads.
const STACK: usize = 64 << 20;

impl Stack {
    /// Starts the thread. Also returns an address in the unused part of its stack.
    pub(super) fn new() -> io::Result<(Self, u64)> {
        let (address_out, address) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            let here = 0_u8;
            // If the receiver is closed, the address is not needed.
            address_out.send((&raw const here).addr()).ok();
            ended.recv().ok();
        })?;
        let here = address.recv().map_err(io::Error::other)?;
        Ok((Self(Some((end, thread))), (here - STACK / 2) as u64))
    }

    /// Ends the thread, which frees its stack.
    pub(super) fn end(&mut self) {
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

/// Chunks returned by malloc.
pub(super) struct Chunks {
    /// The addresses as integers, so that the value can be sent to any thread.
    chunks: Vec<usize>,
    bytes: usize,
}

/// The size of a chunk for which malloc must request memory from the kernel, because it does not have as much free
/// memory. The size and the number of small chunks that malloc keeps together.
const BIG: usize = 64 << 20;
const SMALL: (usize, usize) = (100 << 10, 64);

impl Chunks {
    /// Allocates a chunk that malloc maps separately. Also returns its address.
    pub(super) fn big() -> (Self, u64) {
        map_from(128 << 10);
        Self { chunks: Vec::new(), bytes: BIG }.lent(1)
    }

    /// Allocates several chunks that malloc keeps among others. Also returns the address of one in the middle.
    pub(super) fn small() -> (Self, u64) {
        Self { chunks: Vec::new(), bytes: SMALL.0 }.lent(SMALL.1)
    }

    fn lent(mut self, count: usize) -> (Self, u64) {
        self.take(count);
        let middle = self.chunks[count / 2] as u64;
        (self, middle)
    }

    fn take(&mut self, count: usize) {
        for _ in 0..count {
            // SAFETY: malloc accepts any size.
            let chunk = unsafe { libc::malloc(self.bytes) };
            self.chunks.push(chunk.expose_provenance());
        }
    }

    /// Frees all chunks with free(3).
    pub(super) fn free(&mut self) {
        for chunk in self.chunks.drain(..) {
            // SAFETY: the pointer was returned by malloc, and has no other user.
            unsafe { libc::free(std::ptr::with_exposed_provenance_mut(chunk)) };
        }
    }

    /// Frees all chunks, calls malloc_trim(3), and allocates equal chunks again.
    ///
    /// # Errors
    /// Fails if malloc now uses the addresses `whole` for something else.
    pub(super) fn trim(&mut self, whole: Range) -> io::Result<()> {
        let count = self.chunks.len();
        self.free();
        #[cfg(target_env = "gnu")]
        // SAFETY: the call returns only free memory to the system.
        unsafe {
            libc::malloc_trim(0)
        };
        self.take(count);
        let holds = |chunk: &usize| range(*chunk as u64, self.bytes as u64).is_ok_and(|chunk| chunk.contains(whole));
        if self.chunks.iter().any(holds) { Ok(()) } else { Err(io::Error::other("malloc returned other addresses")) }
    }

    /// Resizes the single chunk to twice its size with realloc(3).
    pub(super) fn grow(&mut self) {
        for chunk in &mut self.chunks {
            // SAFETY: the pointer was returned by malloc, and has no other user.
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

/// A library that was loaded for a test: its handle, or 0 after it is closed.
pub(super) struct Library(usize);

/// Small libraries that belong to the C library and are not loaded yet.
const LIBRARIES: [&std::ffi::CStr; 4] =
    [c"libBrokenLocale.so.1", c"libthread_db.so.1", c"libanl.so.1", c"libutil.so.1"];

impl Library {
    /// Loads one of the libraries. Also returns the addresses of its data.
    pub(super) fn load() -> io::Result<(Self, Range)> {
        let loaded = std::fs::read_to_string("/proc/self/maps")?;
        for name in LIBRARIES.iter().filter(|name| !loaded.contains(&*name.to_string_lossy())) {
            // SAFETY: the library is a part of the C library, and its initializers have no effect here.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if handle.is_null() {
                continue;
            }
            let library = Self(handle.expose_provenance());
            if let Some(data) = data_of(&name.to_string_lossy())? {
                return Ok((library, data));
            }
        }
        Err(io::Error::other("no library to load"))
    }

    /// Closes the library with dlclose(3).
    pub(super) fn close(&mut self) {
        let handle = std::mem::take(&mut self.0);
        if handle != 0 {
            // SAFETY: the handle was returned by dlopen and is closed once. No function of the library is called.
            unsafe { libc::dlclose(std::ptr::with_exposed_provenance_mut(handle)) };
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns the addresses of the writable pages of a loaded library.
fn data_of(name: &str) -> io::Result<Option<Range>> {
    let text = std::fs::read_to_string("/proc/self/maps")?;
    let line = text.lines().find(|line| line.ends_with(name) && line.contains(" rw-p "));
    let bounds = line.and_then(|line| line.split_once(' ')?.0.split_once('-'));
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    Ok(bounds.and_then(|(start, end)| Range::between(hex(start)?, hex(end)?)))
}
