//! The resources of a process: descriptors, mappings, threads, memory.

use std::fs;
use std::io::{BufRead, BufReader};

use rustix::process::{Resource, Rlimit};

/// The numbers of descriptors, mappings and threads of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceCounts {
    /// The number of open descriptors.
    pub descriptors: usize,
    /// The number of mappings of files and shared memory. The allocator's mappings are not counted, because their
    /// number changes.
    pub mappings: usize,
    /// The number of threads.
    pub threads: usize,
}

impl ResourceCounts {
    /// Returns the current numbers.
    ///
    /// # Panics
    /// Panics if `/proc` is not mounted.
    #[must_use]
    pub fn now() -> Self {
        let entries = |path| fs::read_dir(path).expect("/proc is mounted").count();
        Self { descriptors: entries("/proc/self/fd"), mappings: mappings().len(), threads: entries("/proc/self/task") }
    }

    /// Returns whether none of the numbers is larger than in `before`.
    #[must_use]
    pub const fn is_within(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors && self.mappings <= before.mappings && self.threads <= before.threads
    }

    /// Waits until none of the numbers is larger than in `before`, for a limited time, because threads and closed peers
    /// end with a delay. Returns the current numbers.
    #[must_use]
    pub fn settled(before: &Self) -> Self {
        for _ in 0..500 {
            let now = Self::now();
            if now.is_within(before) {
                return now;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Self::now()
    }
}

/// Returns this process's mappings of files and shared memory as lines of `/proc/self/maps`.
///
/// # Panics
/// Panics if `/proc` is not mounted.
#[must_use]
pub fn mappings() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let shared = |line: &&str| line.split_whitespace().nth(1).is_some_and(|rights| rights.ends_with('s'));
    maps.lines().filter(shared).map(str::to_owned).collect()
}

/// Raises this process's descriptor limit to the hard limit, and returns that limit.
///
/// # Panics
/// Panics if the system rejects the new limit.
#[must_use]
pub fn most_descriptors() -> usize {
    let limits = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit { current: limits.maximum, maximum: limits.maximum };
    rustix::process::setrlimit(Resource::Nofile, most).expect("the most that is allowed");
    limits.maximum.map_or(usize::MAX, |most| most as usize)
}

/// Describes the open descriptors, for the failure message of a test that found too many.
#[must_use]
pub fn descriptors() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| Some(fs::read_link(entry.path()).ok()?.display().to_string());
    entries.filter_map(name).collect()
}

/// Returns the value of a field of `/proc/self/status` in KiB.
///
/// # Panics
/// Panics if `/proc` is not mounted, or if there is no such field.
#[must_use]
pub fn status_kib(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("/proc/self/status has {name}"))
}

/// Returns the resident anonymous memory of the process in KiB.
#[must_use]
pub fn anonymous_kib() -> usize {
    status_kib("RssAnon")
}

/// Returns the total resident memory in KiB, including shared memory.
#[must_use]
pub fn resident_kib() -> usize {
    status_kib("VmRSS")
}

/// Returns the resident memory, in KiB, of mappings of files with `name` in their names.
///
/// # Panics
/// Panics if `/proc` is not mounted.
#[must_use]
pub fn mapped_kib(name: &str) -> usize {
    // Read line by line, because a copy of the whole text would change the measured memory.
    let mut maps = BufReader::new(fs::File::open("/proc/self/smaps").expect("/proc is mounted"));
    let mut line = String::new();
    let mut ours = false;
    let mut sum = 0;
    while maps.read_line(&mut line).is_ok_and(|len| len > 0) {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if !first.ends_with(':') {
            ours = line.contains(name); // The header of the next mapping.
        } else if ours && first == "Rss:" {
            sum += words.next().and_then(|number| number.parse::<usize>().ok()).unwrap_or_default();
        }
        line.clear();
    }
    sum
}

/// Lists the files that percale could leave behind in the file system.
#[must_use]
pub fn left_behind() -> Vec<String> {
    let names = |path: &str| -> Vec<String> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).filter(|name| name.contains("percale")).collect()
    };
    [names("/dev/shm"), names("/dev/mqueue"), names("/run")].concat()
}
