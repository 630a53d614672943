//! Threads that look up ranges of many sizes while entries are taken out and filled again: each key is that of a registration
//! with the bytes and rights that were asked for, and it is not unpinned while it is used.

use std::sync::atomic::AtomicU64;

use super::*;

/// Keys that are in use at a time at most: a registration's key is used again long after it was unpinned.
const KEYS: usize = 1 << 20;

/// Look-ups of each thread.
const LOOK_UPS: u64 = 150_000;

const THREADS: u64 = 8;

/// What each key stands for. A word for each: 0 if nothing, else the first page, the number of pages and the rights.
struct Ledger {
    made: AtomicU64,
    registrations: Box<[AtomicU64]>,
}

/// A registration in one word.
fn packed(range: Range, access: Access) -> u64 {
    let page = page_size();
    range.start() / page << 20 | range.len() / page << 8 | u64::from(access.bits()) << 1 | 1
}

impl Ledger {
    fn new() -> Arc<Self> {
        let registrations = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { made: AtomicU64::new(0), registrations })
    }

    /// What a look-up was given wrongly, if anything.
    fn fault(&self, used: &Use, range: Range, access: Access) -> Option<String> {
        let key = used.local_key();
        let word = self.registrations[key as usize % KEYS].load(Ordering::SeqCst);
        let (start, count, rights) = (word >> 20, word >> 8 & 0xfff, word >> 1 & 0x7f);
        let page = page_size();
        let holds = start * page <= range.start() && range.end() <= (start + count) * page;
        let allows = u64::from(access.bits()) & !rights == 0;
        let fits = word != 0 && holds && allows && used.remote_key() == !key;
        let given = || format!("asked for {range} with {access:?}, given key {key}: {count} pages of page {start:#x}");
        (!fits).then(given)
    }
}

impl Registrar for Arc<Ledger> {
    type Pin = u64;

    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<u64>> {
        let key = self.made.fetch_add(1, Ordering::Relaxed);
        let before = self.registrations[key as usize % KEYS].swap(packed(range, access), Ordering::SeqCst);
        assert_eq!(before, 0, "more than {KEYS} registrations at a time");
        Ok(Pinned { pin: key, local_key: key, remote_key: !key })
    }

    fn unpin(&self, key: u64) {
        assert_ne!(self.registrations[key as usize % KEYS].swap(0, Ordering::SeqCst), 0, "unpinned twice");
    }
}

/// Twenty ranges: five sizes on each of the first four pages, so that many begin where others do.
fn ranges() -> Vec<Range> {
    let sizes = [1, 2, 5, 11, 16];
    (0..20).map(|n| pages(0x100_0000 + n % 4, sizes[n as usize / 4])).collect()
}

/// Looks up at random; what was wrong.
fn look_up(ledger: &Ledger, cache: &Cache<Arc<Ledger>>, notifier: &Notifier, seed: u64) -> Vec<String> {
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
        // Mostly hits, which are what races: the same again.
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

fn race(merging: bool) {
    let ledger = Ledger::new();
    let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let cache = Cache::builder(Arc::clone(&ledger)).monitor(Choice::Imported(imported)).max_count(8);
    let cache = cache.merging(merging).open().expect("opens");
    let faults: Vec<String> = std::thread::scope(|scope| {
        let (ledger, cache, notifier) = (&*ledger, &cache, &notifier);
        let threads = (0..THREADS).map(|seed| scope.spawn(move || look_up(ledger, cache, notifier, seed)));
        let threads = Vec::from_iter(threads);
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    let stats = cache.stats();
    assert!(stats.hits > 0 && stats.evictions > 0 && stats.flushes == 0 && stats.invalidations > 0, "{stats:?}");
    assert!(faults.is_empty(), "{} wrong, the first: {}; {stats:?}", faults.len(), faults[0]);
    drop(cache);
    assert!(ledger.registrations.iter().all(|word| word.load(Ordering::Relaxed) == 0), "all is unpinned");
}

#[test]
fn rcache_003_mon_004_racing_look_ups_of_many_sizes_are_given_keys_of_registrations_that_hold_them() {
    race(false);
}

#[test]
fn rcache_003_mon_004_racing_look_ups_beside_merges_are_given_keys_of_registrations_that_hold_them() {
    race(true);
}
