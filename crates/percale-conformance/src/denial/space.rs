//! An address space limit (RLIMIT_AS) slightly above the size that the process has already mapped.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The numbers of additional bytes that a process may map. Some are smaller than a thread's stack. Some are slightly
/// larger than a stack, so that a started thread leaves no room for the memory of a pair or of a peer. The others are
/// larger.
pub const BEYOND: [u64; 11] = [
    0,
    64 << 10,
    1 << 20,
    (2 << 20) + (8 << 10),
    (2 << 20) + (128 << 10),
    (2 << 20) + (512 << 10),
    3 << 20,
    4 << 20,
    6 << 20,
    10 << 20,
    24 << 20,
];

/// The environment of a program with a heap for all allocations of the tests, because a Rust program aborts when
/// malloc(3) fails. The heap has one arena, grows by 64 MiB the first time, does not shrink, and maps no block
/// separately.
pub const HEAP: [(&str, &str); 4] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_TOP_PAD_", "67108864"),
    ("MALLOC_TRIM_THRESHOLD_", "1073741824"),
    ("MALLOC_MMAP_MAX_", "0"),
];

/// The error of a process that cannot map more memory contains one of these words.
pub const SAYS: [&str; 3] = ["memory", "thread", "ulimit -v"];

/// Limits the address space of this process to `beyond` bytes more than it has mapped.
///
/// # Errors
/// Fails if `/proc` does not report the mapped size, or if the system rejects the limit.
pub fn limit(beyond: u64) -> io::Result<()> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages = pages.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    let mapped = pages.ok_or(io::ErrorKind::InvalidData)? * rustix::param::page_size() as u64;
    let maximum = getrlimit(Resource::As).maximum;
    Ok(setrlimit(Resource::As, Rlimit { current: Some(mapped + beyond), maximum })?)
}
