//! What a process holds: descriptors, mappings, threads, memory.

use std::fs;
use std::io::{BufRead, BufReader};

use rustix::process::{Resource, Rlimit};

/// Descriptors, mappings and threads of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Open descriptors.
    pub descriptors: usize,
    /// Mappings of files and shared memory (the allocator's own come and go).
    pub mappings: usize,
    /// Threads.
    pub threads: usize,
}

impl Held {
    /// Now.
    ///
    /// # Panics
    /// Without `/proc`.
    #[must_use]
    pub fn now() -> Self {
        let entries = |path| fs::read_dir(path).expect("/proc is mounted").count();
        Self { descriptors: entries("/proc/self/fd"), mappings: mappings().len(), threads: entries("/proc/self/task") }
    }

    /// Whether nothing is more than it was.
    #[must_use]
    pub const fn is_within(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors && self.mappings <= before.mappings && self.threads <= before.threads
    }

    /// Now, once it is no more than `before`, or after a while (threads and closed peers take a moment to go).
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

/// This process's mappings of files and shared memory, as `/proc` has them.
///
/// # Panics
/// Without `/proc`.
#[must_use]
pub fn mappings() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let shared = |line: &&str| line.split_whitespace().nth(1).is_some_and(|rights| rights.ends_with('s'));
    maps.lines().filter(shared).map(str::to_owned).collect()
}

/// Raises this process's limit of descriptors to the hard limit, and returns that.
///
/// # Panics
/// If the system refuses that.
#[must_use]
pub fn most_descriptors() -> usize {
    let limits = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit { current: limits.maximum, maximum: limits.maximum };
    rustix::process::setrlimit(Resource::Nofile, most).expect("the most that is allowed");
    limits.maximum.map_or(usize::MAX, |most| most as usize)
}

/// What the open descriptors are, for the message of a test that found too many.
#[must_use]
pub fn descriptors() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| Some(fs::read_link(entry.path()).ok()?.display().to_string());
    entries.filter_map(name).collect()
}

/// A line of `/proc/self/status` in KiB.
///
/// # Panics
/// Without `/proc`, or without such a line.
#[must_use]
pub fn status_kib(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("/proc/self/status has {name}"))
}

/// Resident memory that is the process's own, in KiB.
#[must_use]
pub fn anonymous_kib() -> usize {
    status_kib("RssAnon")
}

/// Resident memory in all, shared memory included, in KiB.
#[must_use]
pub fn resident_kib() -> usize {
    status_kib("VmRSS")
}

/// Resident memory of mappings of files with this in their names, in KiB.
///
/// # Panics
/// Without `/proc`.
#[must_use]
pub fn mapped_kib(name: &str) -> usize {
    // Line by line: a copy of the whole text would show up in what is measured.
    let mut maps = BufReader::new(fs::File::open("/proc/self/smaps").expect("/proc is mounted"));
    let mut line = String::new();
    let mut ours = false;
    let mut sum = 0;
    while maps.read_line(&mut line).is_ok_and(|len| len > 0) {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if !first.ends_with(':') {
            ours = line.contains(name); // The head of the next mapping.
        } else if ours && first == "Rss:" {
            sum += words.next().and_then(|number| number.parse::<usize>().ok()).unwrap_or_default();
        }
        line.clear();
    }
    sum
}

/// What percale could leave behind in the file system.
#[must_use]
pub fn left_behind() -> Vec<String> {
    let names = |path: &str| -> Vec<String> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).filter(|name| name.contains("percale")).collect()
    };
    [names("/dev/shm"), names("/dev/mqueue"), names("/run")].concat()
}
