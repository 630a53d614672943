//! Threads look up ranges of many sizes while entries are removed and filled again. Each returned key must belong to a
//! registration with the requested bytes and rights, which is not unpinned while it is used.
//!
//! Signals interrupt the threads continuously, at any instruction. Their handler yields the processor to another
//! thread. So an error that occurs only if a thread stops between two particular instructions is found within seconds.
#![expect(unsafe_code, reason = "signals to threads; each block states its own reason")]

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pindown::monitor::Choice;
use pindown::monitor::imported::Notifier;
use pindown::{Access, Cache, Pinned, Range, Registrar, Use, page_size};

const READ: Access = Access::empty();

/// Returns `count` pages from page number `start`.
fn pages(start: u64, count: u64) -> Range {
    Range::new(start * page_size(), count * page_size()).expect("a range")
}

/// The number of keys that are distinguished: the key of a registration is reused long after it was unpinned.
const KEYS: usize = 1 << 20;

/// The number of look-ups of each thread.
const LOOK_UPS: u64 = 150_000;

const THREADS: u64 = 8;

/// A registrar that records the registration of each key. Clones share one record.
#[derive(Clone)]
struct Ledger(Arc<Keys>);

/// A word for each key: 0 if it has no registration, otherwise the first page, the number of pages and the rights.
struct Keys {
    made: AtomicU64,
    registrations: Box<[AtomicU64]>,
}

/// Encodes a registration in one word.
fn packed(range: Range, access: Access) -> u64 {
    let page = page_size();
    (range.start() / page) << 20 | (range.len() / page) << 8 | u64::from(access.bits()) << 1 | 1
}

impl Ledger {
    fn new() -> Self {
        let registrations = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Keys { made: AtomicU64::new(0), registrations }))
    }

    /// Returns an error text if a look-up returned a wrong registration.
    fn fault(&self, used: &Use, range: Range, access: Access) -> Option<String> {
        let key = used.local_key();
        let word = self.0.registrations[key as usize % KEYS].load(Ordering::SeqCst);
        let (start, count, rights) = (word >> 20, word >> 8 & 0xfff, word >> 1 & 0x7f);
        let page = page_size();
        let holds = start * page <= range.start() && range.end() <= (start + count) * page;
        let allows = u64::from(access.bits()) & !rights == 0;
        let fits = word != 0 && holds && allows && used.remote_key() == !key;
        let given = || format!("asked for {range} with {access:?}, given key {key}: {count} pages of page {start:#x}");
        (!fits).then(given)
    }
}

impl Registrar for Ledger {
    type Pin = u64;

    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<u64>> {
        // Uses a key that no registration has, because some registrations are kept for as long as the test runs.
        let word = packed(range, access);
        let key = loop {
            let key = self.0.made.fetch_add(1, Ordering::Relaxed);
            let slot = &self.0.registrations[key as usize % KEYS];
            if slot.compare_exchange(0, word, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                break key;
            }
        };
        Ok(Pinned { pin: key, local_key: key, remote_key: !key })
    }

    fn unpin(&self, key: u64) {
        if self.0.registrations[key as usize % KEYS].swap(0, Ordering::SeqCst) == 0 {
            // The cache catches panics, so the process is aborted.
            eprintln!("a pin is undone twice");
            std::process::abort();
        }
    }
}

/// Returns twenty ranges: five sizes on each of the first four pages, so that several begin on the same page.
fn ranges() -> Vec<Range> {
    let sizes = [1, 2, 5, 11, 16];
    (0..20).map(|n| pages(0x100_0000 + n % 4, sizes[n as usize / 4])).collect()
}

/// Makes random look-ups. Returns the errors.
fn look_up(ledger: &Ledger, cache: &Cache<Ledger>, notifier: &Notifier, seed: u64) -> Vec<String> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let (lane, ranges) = (cache.lane(), ranges());
    let mut faults = Vec::new();
    for _ in 0..LOOK_UPS {
        let range = ranges[random(ranges.len() as u64) as usize];
        let access = if random(4) == 0 { Access::LOCAL_WRITE } else { READ };
        // Looks up the same range again. Most of these look-ups are hits, which race with the removals.
        for _ in 0..random(4) {
            let used = lane.get(range, access).expect("registered");
            faults.extend(ledger.fault(&used, range, access));
            let used = if random(64) == 0 { lane.hold(used) } else { used };
            if random(256) == 0 {
                std::thread::yield_now();
            }
            faults.extend(ledger.fault(&used, range, access));
            lane.end(used);
        }
        match random(256) {
            0 => cache.flush(),
            1 => notifier.changed(range),
            2..8 => cache.sweep(),
            _ => {}
        }
    }
    faults
}

/// The signal handler, which lets other threads run.
extern "C" fn give_way(_signal: libc::c_int) {
    std::thread::sleep(Duration::from_micros(100));
}

fn open(merging: bool) -> (Ledger, Cache<Ledger>, Notifier) {
    // SAFETY: the handler only sleeps, which is allowed in a signal handler.
    unsafe { libc::signal(libc::SIGUSR1, give_way as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    let ledger = Ledger::new();
    let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let cache = Cache::builder(ledger.clone()).monitor(Choice::Imported(imported)).max_count(8);
    (ledger, cache.merging(merging).open().expect("opens"), notifier)
}

/// Interrupts the threads until all have ended. Returns their results.
fn interrupted(threads: Vec<JoinHandle<Vec<String>>>) -> Vec<String> {
    while threads.iter().any(|thread| !thread.is_finished()) {
        for thread in &threads {
            // SAFETY: the thread has not been joined; if it has ended, no signal is sent.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
}

fn race(merging: bool) {
    let (ledger, cache, notifier) = open(merging);
    let threads = (0..THREADS).map(|seed| {
        let (ledger, cache, notifier) = (ledger.clone(), cache.clone(), notifier.clone());
        std::thread::spawn(move || look_up(&ledger, &cache, &notifier, seed))
    });
    let faults = interrupted(threads.collect());
    let stats = cache.stats();
    // A thread that is stopped for a long time may fall behind the changes, and then drops all registrations; `flushes`
    // counts this.
    assert!(stats.hits > 0 && stats.evictions > 0 && stats.invalidations > 0, "{stats:?}");
    assert!(faults.is_empty(), "{} wrong, the first: {}; {stats:?}", faults.len(), faults[0]);
    drop(cache);
    assert!(ledger.0.registrations.iter().all(|word| word.load(Ordering::Relaxed) == 0), "all is unpinned");
}

/// The number of rounds. In each round, all entries are removed, and the shortest range is registered at the address of
/// the longest.
const ROUNDS: u64 = 30_000;

/// The number of rounds after which other ranges are used.
const TURN: u64 = 1_000;

/// Some threads look up the longest range at a place and others look up the shorter ones, while all entries are removed
/// repeatedly. A thread with short uses of other memory delays the freeing of removed entries. So look-ups of the
/// longest range find dead entries, until these are filled with a shorter range.
///
/// Requirements: RCACHE-003, MON-004.
#[test]
fn longest_range_never_gets_the_key_of_a_shorter_one() {
    let (ledger, cache, _notifier) = open(false);
    let round = Arc::new(AtomicU64::new(0));
    let thread = |work: fn(&Ledger, &Cache<Ledger>, u64, Range) -> Vec<String>, which: usize| {
        let (ledger, cache, round) = (ledger.clone(), cache.clone(), Arc::clone(&round));
        std::thread::spawn(move || {
            let mut faults = Vec::new();
            let ranges = ranges();
            while let now @ 0..ROUNDS = round.load(Ordering::Relaxed) {
                // Uses the pages in turn, each with the range of that size.
                let range = ranges[which * 4 + (now / TURN % 4) as usize];
                faults.extend(work(&ledger, &cache, now, range));
            }
            faults
        })
    };
    let looks: fn(&Ledger, &Cache<Ledger>, u64, Range) -> Vec<String> = |ledger, cache, _, range| {
        let lane = cache.lane();
        let look = |_: i32| {
            let used = lane.get(range, READ).expect("registered");
            let fault = ledger.fault(&used, range, READ);
            lane.end(used);
            fault
        };
        (0..1000).filter_map(look).collect()
    };
    let rests: fn(&Ledger, &Cache<Ledger>, u64, Range) -> Vec<String> = |_, cache, _, _| {
        let lane = cache.lane();
        for _ in 0..100 {
            let used = lane.get(pages(0x200_0000, 1), READ).expect("registered");
            std::thread::sleep(Duration::from_micros(20));
            lane.end(used);
        }
        Vec::new()
    };
    let mut threads: Vec<_> = [4, 4, 4, 3, 2, 1, 0].map(|size| thread(looks, size)).into();
    threads.push(thread(rests, 0));
    let clearing: JoinHandle<()> = std::thread::spawn({
        let (cache, round) = (cache.clone(), Arc::clone(&round));
        move || {
            let lane = cache.lane();
            let ranges = ranges();
            for now in 0..ROUNDS {
                cache.flush();
                lane.end(lane.get(ranges[(now / TURN % 4) as usize], READ).expect("registered"));
                cache.sweep();
                round.fetch_add(1, Ordering::Relaxed);
                // In the meantime, the other threads find their ranges next to the dead entries.
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    });
    let faults = interrupted(threads);
    clearing.join().expect("no panic");
    assert!(faults.is_empty(), "{} wrong, the first: {}; {:?}", faults.len(), faults[0], cache.stats());
}

/// Requirements: RCACHE-003, MON-004.
#[test]
fn racing_lookups_get_keys_of_covering_registrations() {
    race(false);
}

/// Requirements: RCACHE-003, MON-004.
#[test]
fn racing_lookups_during_merges_get_covering_registrations() {
    race(true);
}
