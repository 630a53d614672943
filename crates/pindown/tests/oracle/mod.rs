//! A registrar that uses the fixed buffers of io_uring to test which pages a registration accesses. The kernel pins
//! their pages as it does for an RDMA adapter, and a transfer through a buffer accesses these pages, independent of the
//! current mapping at the address. So a stale registration is detected by comparing the transferred bytes with those
//! that the processor reads at the address.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(unsafe_code, reason = "io_uring, mappings and raw system calls; each block states its own reason")]

use std::ffi::c_long;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_uring::{IoUring, opcode, types};
use pindown::monitor::Choice;
use pindown::{Access, Cache, Lane, Pinned, Range, Registrar, Use};

/// The unit of the tests in bytes: a page, or on processors with several page sizes the largest one, which is several
/// pages on a system with smaller pages.
pub(crate) const PAGE: u64 = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };
pub(crate) const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
pub(crate) const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const NO_FILE: u64 = u64::MAX;
/// The number of buffers that the ring can hold.
const BUFFERS: u32 = 4096;

/// Makes a raw system call, without the C library's wrapper. Returns its result or its errno.
pub(crate) fn call(number: c_long, arguments: [u64; 6]) -> Result<u64, i32> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the tests pass memory that they made for this, and calls that the program survives.
    let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if answer == -1 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(answer as u64) }
}

/// Like [`call`], but the call must succeed.
pub(crate) fn must(number: c_long, arguments: [u64; 6]) -> u64 {
    call(number, arguments).unwrap_or_else(|error| panic!("system call {number} failed with {error}"))
}

/// Like [`must`], but discards the result.
pub(crate) fn done(number: c_long, arguments: [u64; 6]) {
    must(number, arguments);
}

pub(crate) fn unmap(at: u64, len: u64) {
    done(libc::SYS_munmap, [at, len, 0, 0, 0, 0]);
}

/// Maps new memory at exactly this address.
pub(crate) fn map_at(at: u64, len: u64, flags: i32, fd: u64, offset: u64) {
    let flags = (flags | libc::MAP_FIXED) as u64;
    assert_eq!(must(libc::SYS_mmap, [at, len, READ_WRITE, flags, fd, offset]), at);
}

/// Like [`map_at`], for memory without a file.
pub(crate) fn map_anew(at: u64, len: u64) {
    map_at(at, len, ANONYMOUS, NO_FILE, 0);
}

pub(crate) fn advise(at: u64, len: u64, advice: i32) {
    done(libc::SYS_madvise, [at, len, advice as u64, 0, 0, 0]);
}

/// Creates a memfd.
pub(crate) fn memfd(len: u64) -> u64 {
    let fd = must(libc::SYS_memfd_create, [c"pindown".as_ptr() as u64, 0, 0, 0, 0, 0]);
    done(libc::SYS_ftruncate, [fd, len, 0, 0, 0, 0]);
    fd
}

/// Returns addresses that were never used before, far below those that the kernel chooses. So mappings that other
/// threads of the harness make at the same time are never placed in a hole that a test makes there and closes again.
/// Sanitizers leave them to the program.
pub(crate) fn far_addresses(len: u64) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x57 << 40);
    NEXT.fetch_add(len.next_multiple_of(1 << 20), Ordering::Relaxed)
}

/// Mapped memory between two inaccessible pages. All memory at these addresses is unmapped when the value is dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Memory {
    pub(crate) fn new(pages: u64) -> Self {
        Self::of(pages, ANONYMOUS, NO_FILE)
    }

    /// Maps a file.
    pub(crate) fn of(pages: u64, flags: i32, fd: u64) -> Self {
        let len = pages * PAGE;
        let hole = far_addresses(len + 2 * PAGE);
        let nothing = (ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
        done(libc::SYS_mmap, [hole, len + 2 * PAGE, 0, nothing, NO_FILE, 0]);
        let start = hole + PAGE;
        map_at(start, len, flags, fd, 0);
        Self { start, len }
    }

    /// Maps a new memfd, shared.
    pub(crate) fn shared(pages: u64) -> (Self, u64) {
        let fd = memfd(pages * PAGE);
        (Self::of(pages, libc::MAP_SHARED, fd), fd)
    }

    pub(crate) fn page(&self, number: u64) -> u64 {
        self.start + number * PAGE
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        call(libc::SYS_munmap, [self.start - PAGE, self.len + 2 * PAGE, 0, 0, 0, 0]).ok();
    }
}

/// Returns bytes that differ from page to page and from seed to seed.
pub(crate) fn pattern(len: u64, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8 ^ (n / PAGE) as u8 ^ seed.wrapping_mul(37)).collect()
}

/// Stores bytes at an address, as the program does.
pub(crate) fn store(at: u64, bytes: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
    // SAFETY: the tests pass their own writable memory, which contains no Rust value.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// Returns the bytes that the program reads.
pub(crate) fn load(at: u64, len: u64) -> Vec<u8> {
    let from = std::ptr::with_exposed_provenance::<u8>(at as usize);
    let mut bytes = vec![0; len as usize];
    // SAFETY: as for `store`.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

/// Returns the kilobytes that the kernel counts as pinned for this process.
pub(crate) fn pinned_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("the status has this line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

struct Table {
    ring: IoUring,
    free: Vec<u32>,
}

struct Inner {
    table: Mutex<Table>,
    /// The file that transfers read and write.
    wire: u64,
}

/// The registrar. Clones share one state.
#[derive(Clone)]
pub(crate) struct Oracle(Arc<Inner>);

impl Oracle {
    pub(crate) fn new() -> Self {
        let ring = IoUring::new(4).expect("io_uring is available");
        ring.submitter().register_buffers_sparse(BUFFERS).expect("a table");
        let table = Mutex::new(Table { ring, free: (0..BUFFERS).rev().collect() });
        Self(Arc::new(Inner { table, wire: memfd(0) }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current number of registrations.
    pub(crate) fn registered(&self) -> u32 {
        BUFFERS - self.table().free.len() as u32
    }

    fn update(&self, table: &Table, slot: u32, start: u64, len: u64) -> io::Result<()> {
        let iov_base = std::ptr::with_exposed_provenance_mut(start as usize);
        let buffer = libc::iovec { iov_base, iov_len: len as usize };
        // SAFETY: the kernel pins the pages; transfers into them write memory that the tests own.
        unsafe { table.ring.submitter().register_buffers_update(slot, &[buffer], None) }
    }

    /// Returns the bytes that the device sends through the registration `key`.
    pub(crate) fn carry(&self, key: u64, at: u64, len: u64) -> Vec<u8> {
        let mut table = self.table();
        let from = std::ptr::with_exposed_provenance::<u8>(at as usize);
        let wire = types::Fd(self.0.wire as i32);
        transfer(&mut table.ring, &opcode::WriteFixed::new(wire, from, len as u32, key as u16).build(), len);
        let mut bytes = vec![0_u8; len as usize];
        assert_eq!(must(libc::SYS_pread64, [self.0.wire, bytes.as_mut_ptr() as u64, len, 0, 0, 0]), len);
        bytes
    }

    /// Makes the device receive these bytes through the registration.
    pub(crate) fn deliver(&self, key: u64, at: u64, bytes: &[u8]) {
        let mut table = self.table();
        let len = bytes.len() as u64;
        assert_eq!(must(libc::SYS_pwrite64, [self.0.wire, bytes.as_ptr() as u64, len, 0, 0, 0]), len);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
        let wire = types::Fd(self.0.wire as i32);
        transfer(&mut table.ring, &opcode::ReadFixed::new(wire, to, len as u32, key as u16).build(), len);
    }
}

fn transfer(ring: &mut IoUring, entry: &io_uring::squeue::Entry, len: u64) {
    // SAFETY: the kernel checks the addresses against the registered buffer, which stays until it is unregistered.
    unsafe { ring.submission().push(entry) }.expect("there is room");
    ring.submit_and_wait(1).expect("the request is submitted");
    let completion = ring.completion().next().expect("a completion");
    assert_eq!(completion.result(), len as i32, "the transfer is complete");
}

impl Registrar for Oracle {
    type Pin = u32;

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<u32>> {
        let mut table = self.table();
        let slot = table.free.pop().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?;
        match self.update(&table, slot, range.start(), range.len()) {
            Ok(()) => Ok(Pinned { pin: slot, local_key: slot.into(), remote_key: slot.into() }),
            Err(error) => {
                table.free.push(slot);
                Err(error)
            }
        }
    }

    fn unpin(&self, slot: u32) {
        let mut table = self.table();
        self.update(&table, slot, 0, 0).expect("a buffer is taken out of the table");
        table.free.push(slot);
    }
}

/// Runs one test at a time, because all share the address space.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cache with the kernel monitor, and with the oracle as registrar.
pub(crate) struct World {
    pub(crate) lane: Lane<Oracle>,
    pub(crate) cache: Cache<Oracle>,
    pub(crate) oracle: Oracle,
    _alone: MutexGuard<'static, ()>,
}

/// The effect of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The earlier registration is still used, correctly.
    Kept,
    /// A new registration is used, and is necessary.
    Renewed,
    /// A new registration is used, although the earlier one was still valid.
    Needlessly,
}

impl World {
    /// Opens the cache. Returns `None` and prints the reason if the kernel monitor is not available.
    pub(crate) fn open() -> Option<Self> {
        let alone = alone();
        let oracle = Oracle::new();
        match Cache::builder(oracle.clone()).monitor(Choice::Bpf).open() {
            Ok(cache) => Some(Self { lane: cache.lane(), cache, oracle, _alone: alone }),
            Err(why) => {
                eprintln!("skipped (bpf): {why}");
                None
            }
        }
    }

    /// Makes one look-up for sending and receiving.
    pub(crate) fn get(&self, at: u64, len: u64) -> Use {
        let range = Range::new(at, len).expect("a range");
        self.lane.get(range, Access::LOCAL_WRITE).expect("the memory can be registered")
    }

    /// Makes look-ups until one returns a registration that is kept: other threads of the harness may prevent this by
    /// their own changes.
    pub(crate) fn kept(&self, at: u64, len: u64) -> Use {
        for _ in 0..1000 {
            let found = self.get(at, len);
            if !found.is_single() {
                return found;
            }
            self.lane.end(found);
            std::thread::yield_now();
        }
        panic!("{len} bytes at {at:#x} are not kept: {:?}", self.cache.stats());
    }

    /// Returns the bytes that a transfer from this address sends.
    pub(crate) fn send(&self, at: u64, len: u64) -> Vec<u8> {
        let used = self.get(at, len);
        let sent = self.oracle.carry(used.local_key(), at, len);
        self.lane.end(used);
        sent
    }

    /// Makes a transfer to this address.
    pub(crate) fn receive(&self, at: u64, bytes: &[u8]) {
        let used = self.get(at, bytes.len() as u64);
        self.oracle.deliver(used.local_key(), at, bytes);
        self.lane.end(used);
    }

    /// Stores new bytes and checks that they are transferred, in both directions.
    pub(crate) fn transfers(&self, at: u64, len: u64, seed: u8) {
        store(at, &pattern(len, seed));
        assert!(self.send(at, len) == pattern(len, seed), "the sent bytes differ from those at {at:#x}");
        self.receive(at, &pattern(len, seed ^ 0x55));
        assert!(load(at, len) == pattern(len, seed ^ 0x55), "the received bytes are not at {at:#x}");
    }

    /// Registers memory, runs `change`, and transfers from it and to it again. An earlier operation that is still under
    /// way continues to use its original pages.
    pub(crate) fn across(&self, at: u64, len: u64, change: impl FnOnce()) -> Outcome {
        store(at, &pattern(len, 1));
        let old = self.kept(at, len);
        assert!(self.oracle.carry(old.local_key(), at, len) == pattern(len, 1), "other memory was registered");
        change();
        store(at, &pattern(len, 2));
        let new = self.get(at, len);
        let sent = self.oracle.carry(new.local_key(), at, len);
        assert!(sent == pattern(len, 2), "stale: sent other bytes than those at {at:#x}");
        self.oracle.deliver(new.local_key(), at, &pattern(len, 3));
        assert!(load(at, len) == pattern(len, 3), "stale: the received bytes are not at {at:#x}");
        let good = self.oracle.carry(old.local_key(), at, len) == pattern(len, 3);
        let outcome = match (new.local_key() == old.local_key(), good) {
            (true, _) => Outcome::Kept,
            (false, false) => Outcome::Renewed,
            (false, true) => Outcome::Needlessly,
        };
        self.lane.end(old);
        self.lane.end(new);
        // Later changes of the memory are not tested.
        self.cache.flush();
        self.cache.sweep();
        assert_eq!(self.oracle.registered(), 0, "unused registrations are unpinned");
        outcome
    }
}

/// Runs an ignored test of this program in a separate process, and returns its output. It must succeed.
pub(crate) fn in_child(test: &str, environment: &[(&str, &str)]) -> String {
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.envs(environment.iter().copied()).output().expect("the process starts");
    let message = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{test}: {}\n{message}", output.status);
    assert!(message.contains("1 passed"), "there is no test {test}: {message}");
    message
}
