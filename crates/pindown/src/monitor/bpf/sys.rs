//! The parts of bpf(2) that the loader's library does not offer: maps that clients share, iterators over one process,
//! test runs, and attaching by descriptor.
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper; each block states its own reason")]

use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROG_TEST_RUN: libc::c_int = 10;
const OBJECT_INFO: libc::c_int = 15;
#[cfg(feature = "bpf")]
const ATTACH: libc::c_int = 17;
const MAP_FREEZE: libc::c_int = 22;
const MAP_UPDATE_BATCH: libc::c_int = 26;
const MAP_DELETE_BATCH: libc::c_int = 27;
const LINK_CREATE: libc::c_int = 28;
const ITER_CREATE: libc::c_int = 33;

const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_RINGBUF: u32 = 27;
const MMAPABLE: u32 = 1 << 10;
const ATTACH_ITER: u32 = 28;
/// The offset of `recursion_misses` in `struct bpf_prog_info`; the kernel has the field if its structure is longer than
/// this.
const RECURSION_MISSES: usize = 208;

/// Space for any attribute that is used here. The kernel requires fields that it does not support to be zero.
#[repr(C, align(8))]
struct Attribute([u8; 128]);

impl Attribute {
    fn new() -> Self {
        Self([0; 128])
    }

    fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Self {
        self.u32(at, fd.as_raw_fd().cast_unsigned())
    }
}

/// Makes the system call bpf(2) with `len` bytes of the attribute.
///
/// # Safety
/// Every address in `attribute` must point to as much memory as the command and the sizes in the attribute specify.
unsafe fn bpf(command: libc::c_int, attribute: &mut Attribute, len: usize) -> io::Result<libc::c_int> {
    // SAFETY: the attribute is longer than `len`; the caller guarantees the memory that it points to.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, attribute.0.as_mut_ptr(), len) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as libc::c_int) }
}

fn owned(fd: libc::c_int) -> OwnedFd {
    // SAFETY: the kernel has just made the descriptor for this call.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Creates an array with one value, which can be mapped.
pub(super) fn create_page(bytes: usize) -> io::Result<OwnedFd> {
    let mut a = Attribute::new().u32(0, MAP_TYPE_ARRAY).u32(4, 4).u32(8, bytes as u32).u32(12, 1).u32(16, MMAPABLE);
    // SAFETY: the attribute contains no addresses.
    unsafe { bpf(MAP_CREATE, &mut a, 20) }.map(owned)
}

/// Creates a ring of `bytes` bytes, which must be a power of two and a multiple of the page size.
pub(super) fn create_ring(bytes: usize) -> io::Result<OwnedFd> {
    let mut a = Attribute::new().u32(0, MAP_TYPE_RINGBUF).u32(12, bytes as u32);
    // SAFETY: the attribute contains no addresses.
    unsafe { bpf(MAP_CREATE, &mut a, 20) }.map(owned)
}

/// Freezes the map: from now on, processes cannot write to it, not even as root.
pub(super) fn freeze(map: BorrowedFd<'_>) -> io::Result<()> {
    let mut a = Attribute::new().fd(0, map);
    // SAFETY: the attribute contains no addresses.
    unsafe { bpf(MAP_FREEZE, &mut a, 4) }.map(drop)
}

fn element(map: BorrowedFd<'_>, key: *const u8, value: u64, flags: u64) -> Attribute {
    Attribute::new().fd(0, map).u64(8, key as u64).u64(16, value).u64(24, flags)
}

/// Writes an element. Key and value must have the sizes of the map.
pub(super) fn update(map: BorrowedFd<'_>, key: &[u8], value: &[u8], only_new: bool) -> io::Result<()> {
    let mut a = element(map, key.as_ptr(), value.as_ptr() as u64, u64::from(only_new));
    // SAFETY: key and value live through the call and have the map's sizes (attach.rs checks the sizes of the loaded
    // maps).
    unsafe { bpf(MAP_UPDATE, &mut a, 32) }.map(drop)
}

/// Reads an element into `value`.
pub(super) fn lookup(map: BorrowedFd<'_>, key: &[u8], value: &mut [u8]) -> io::Result<()> {
    let mut a = element(map, key.as_ptr(), value.as_mut_ptr() as u64, 0);
    // SAFETY: as for update; the kernel writes as many bytes as the map's value has.
    unsafe { bpf(MAP_LOOKUP, &mut a, 32) }.map(drop)
}

/// Removes an element.
pub(super) fn delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    let mut a = element(map, key.as_ptr(), 0, 0);
    // SAFETY: as for update.
    unsafe { bpf(MAP_DELETE, &mut a, 32) }.map(drop)
}

/// Removes elements by their keys, in the order of `keys`, until a key is not found. For a map of maps this takes one
/// RCU grace period of the kernel; separate removals take one each.
pub(super) fn delete_all(map: BorrowedFd<'_>, keys: &[u64]) -> io::Result<()> {
    let mut a = Attribute::new().u64(16, keys.as_ptr() as u64).u32(32, keys.len() as u32).fd(36, map);
    // SAFETY: the keys live through the call; the map's keys have eight bytes (publish.rs calls this only for such
    // maps).
    unsafe { bpf(MAP_DELETE_BATCH, &mut a, 56) }.map(drop)
}

/// Writes elements of a map of maps: for each key the descriptor of a map. Like [`delete_all`], this takes one grace
/// period.
pub(super) fn update_all(map: BorrowedFd<'_>, keys: &[u64], maps: &[libc::c_int]) -> io::Result<()> {
    let count = keys.len().min(maps.len()) as u32;
    let attribute = Attribute::new().u64(16, keys.as_ptr() as u64).u64(24, maps.as_ptr() as u64);
    let mut a = attribute.u32(32, count).fd(36, map);
    // SAFETY: keys and values live through the call; the map's keys have eight bytes, its values are descriptors of four.
    unsafe { bpf(MAP_UPDATE_BATCH, &mut a, 56) }.map(drop)
}

/// Returns the key and value sizes of a map, in bytes.
#[cfg(feature = "bpf")]
pub(super) fn sizes(map: BorrowedFd<'_>) -> io::Result<(usize, usize)> {
    let mut info = [0_u8; 24];
    object_info(map, &mut info)?;
    Ok((word(&info, 8) as usize, word(&info, 12) as usize))
}

/// Returns the kernel's unique ID of a program or a map.
pub(super) fn number(object: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = [0_u8; 8];
    object_info(object, &mut info)?;
    Ok(word(&info, 4))
}

/// Returns a program's [`number`], and the number of times that the kernel skipped the program because it was already
/// running on that processor.
pub(super) fn number_and_misses(program: BorrowedFd<'_>) -> io::Result<(u32, u64)> {
    let mut info = [0_u8; RECURSION_MISSES + 8];
    object_info(program, &mut info)?;
    let misses = u64::from(word(&info, RECURSION_MISSES)) | u64::from(word(&info, RECURSION_MISSES + 4)) << 32;
    Ok((word(&info, 4), misses))
}

fn object_info(object: BorrowedFd<'_>, info: &mut [u8]) -> io::Result<()> {
    let mut a = Attribute::new().fd(0, object).u32(4, info.len() as u32).u64(8, info.as_mut_ptr() as u64);
    // SAFETY: `info` is as long as the attribute specifies; a zeroed one requests no further arrays.
    unsafe { bpf(OBJECT_INFO, &mut a, 16) }?;
    if word(&a.0, 4) as usize == info.len() { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Attaches a program to the tracepoint that it was loaded for. It stays attached as long as any copy of the descriptor
/// is open.
#[cfg(feature = "bpf")]
pub(super) fn attach(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut a = Attribute::new().fd(8, program);
    // SAFETY: the name is null, which means that the program specifies its tracepoint.
    unsafe { bpf(ATTACH, &mut a, 16) }.map(owned)
}

/// Runs a raw tracepoint program once, with these arguments. Returns its result.
pub(super) fn run(program: BorrowedFd<'_>, arguments: &[u64]) -> io::Result<u32> {
    let bytes = size_of_val(arguments) as u32;
    let mut a = Attribute::new().fd(0, program).u32(40, bytes).u64(48, arguments.as_ptr() as u64);
    // SAFETY: the arguments live through the call and are as long as the attribute specifies.
    unsafe { bpf(PROG_TEST_RUN, &mut a, 80) }?;
    Ok(word(&a.0, 4))
}

/// Runs an iterator program over the threads of the process that `pidfd` refers to.
pub(super) fn iterate(program: BorrowedFd<'_>, pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let info: [u32; 4] = [0, 0, pidfd.as_raw_fd().cast_unsigned(), 0];
    let mut a = Attribute::new().fd(0, program).u32(8, ATTACH_ITER).u64(16, info.as_ptr() as u64).u32(24, 12);
    // SAFETY: `info` lives through the call and has the 12 bytes that the attribute specifies.
    let link = unsafe { bpf(LINK_CREATE, &mut a, 28) }.map(owned)?;
    let mut a = Attribute::new().u32(0, link.as_raw_fd().cast_unsigned());
    // SAFETY: the attribute contains no addresses.
    let iterator = unsafe { bpf(ITER_CREATE, &mut a, 8) }.map(owned)?;
    let mut message = Vec::new();
    std::fs::File::from(iterator).read_to_end(&mut message).map(drop)
}
