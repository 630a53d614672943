//! What makes memory by other means than mmap(2) alone, and frees it.

#![expect(unsafe_code, reason = "asks malloc, brk, shmget and dlopen for memory; each block states why it is sound")]

use std::ffi::c_void;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use libc::c_int;
use pindown::Range;

use crate::lot::range;

/// A System V segment, which is destroyed when no process has it attached.
pub(super) struct Segment(c_int);

impl Segment {
    /// One of so many bytes.
    pub(super) fn new(bytes: u64) -> io::Result<Self> {
        // SAFETY: makes a segment and touches no memory of the process.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, bytes as usize, libc::IPC_CREAT | 0o600) };
        if id < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(id)) }
    }

    /// The segment's number.
    pub(super) fn id(&self) -> c_int {
        self.0
    }

    /// shmdt(2) of a segment that is attached at `at`, in a lot.
    pub(super) fn detach(at: Range) -> io::Result<()> {
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
pub(super) struct Heap {
    /// The program break before and after.
    range: Range,
}

impl Heap {
    /// Moves the program break so far that there are so many bytes in whole pages of `unit` bytes. Also returns the break before.
    pub(super) fn new(unit: u64, bytes: u64) -> io::Result<(Self, u64)> {
        calm_malloc();
        let base = program_break();
        let start = base.next_multiple_of(unit);
        set_break(start + bytes)?;
        let heap = Self { range: range(base, start + bytes - base)? };
        Ok((heap, base))
    }

    /// Moves the break, and puts it back.
    pub(super) fn swing(&self, to: u64) -> io::Result<()> {
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
pub(super) struct Stack(Option<(Sender<()>, JoinHandle<()>)>);

/// More than a C library keeps of the stacks of threads that have ended.
const STACK: usize = 64 << 20;

impl Stack {
    /// Starts the thread. Also returns an address in the unused part of its stack.
    pub(super) fn new() -> io::Result<(Self, u64)> {
        let (address_out, address) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            let here = 0_u8;
            // The receiver may be gone: then the address is not needed.
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

/// Chunks that malloc returned.
pub(super) struct Chunks {
    /// Their addresses, as numbers, so that any thread may have them.
    chunks: Vec<usize>,
    bytes: usize,
}

/// A chunk for which malloc asks the kernel apart, since it has not so much left over, and how many of those that it
/// keeps together.
const BIG: usize = 64 << 20;
const SMALL: (usize, usize) = (100 << 10, 64);

impl Chunks {
    /// One that malloc maps separately. Also returns its address.
    pub(super) fn big() -> (Self, u64) {
        map_from(128 << 10);
        Self { chunks: Vec::new(), bytes: BIG }.lent(1)
    }

    /// Several that malloc has among others. Also returns the address of one in the middle.
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
            // SAFETY: any size may be asked for.
            let chunk = unsafe { libc::malloc(self.bytes) };
            self.chunks.push(chunk.expose_provenance());
        }
    }

    /// free(3) of all.
    pub(super) fn free(&mut self) {
        for chunk in self.chunks.drain(..) {
            // SAFETY: it is what malloc returned, and has no other user.
            unsafe { libc::free(std::ptr::with_exposed_provenance_mut(chunk)) };
        }
    }

    /// free(3) of all, then malloc_trim(3), then the same from malloc again.
    ///
    /// # Errors
    /// malloc has now something else at `whole`.
    pub(super) fn trim(&mut self, whole: Range) -> io::Result<()> {
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
    pub(super) fn grow(&mut self) {
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
pub(super) struct Library(usize);

/// Small libraries that come with a C library and are not loaded.
const LIBRARIES: [&std::ffi::CStr; 4] =
    [c"libBrokenLocale.so.1", c"libthread_db.so.1", c"libanl.so.1", c"libutil.so.1"];

impl Library {
    /// Loads one. Also returns the addresses of its data.
    pub(super) fn load() -> io::Result<(Self, Range)> {
        let loaded = std::fs::read_to_string("/proc/self/maps")?;
        for name in LIBRARIES.iter().filter(|name| !loaded.contains(&*name.to_string_lossy())) {
            // SAFETY: the library's initialisers are those of the C library's own parts, and do nothing here.
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

    /// dlclose(3).
    pub(super) fn close(&mut self) {
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
