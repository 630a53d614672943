//! The lines of a domain's keys: found without a lock, in about two cache misses where there are a million.
//!
//! Lines live in pages that never move. A window's line is known by its index. Regions' lines hang in chains by hash, which are
//! changed under the table's lock. A line that is taken out of its chain still leads on, into its own chain or, if it was used
//! again, into another one. So what is found is always right (it says its key), and what is not found is only believed if no chain was
//! changed meanwhile; else the reader begins again. (Loom models below.)

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use super::line::{Line, Said};
use super::registered::Registered;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The first page has 2^this lines; each further one as many as all before it.
const FIRST: u32 = if cfg!(loom) { 1 } else { 8 };
/// Pages for 2^24 lines and more.
const PAGES: usize = 18;
/// A reader that was in the way of writers so often lets others run.
const SPINS: u32 = 64;

/// A line, and what it is about. Readers take it by a lock of its own, which nobody holds for long.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C))]
pub(super) struct Row {
    pub(super) line: Line,
    region: RwLock<Option<Arc<Registered>>>,
}

impl Row {
    fn set(&self, said: &Said, region: Option<&Arc<Registered>>) {
        *self.region.write().unwrap_or_else(PoisonError::into_inner) = region.cloned();
        self.line.write(said);
    }

    pub(super) fn region(&self) -> Option<Arc<Registered>> {
        self.region.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Rows that never move.
#[derive(Debug)]
struct Rows([OnceLock<Box<[Row]>>; PAGES]);

impl Default for Rows {
    fn default() -> Self {
        Self([const { OnceLock::new() }; PAGES])
    }
}

/// The page of a row, and its place there.
#[inline]
const fn place(number: u32) -> (usize, usize) {
    let shifted = number + (1 << FIRST);
    let page = shifted.ilog2();
    ((page - FIRST) as usize, (shifted - (1 << page)) as usize)
}

impl Rows {
    /// A row, if its page is there.
    #[inline]
    fn get(&self, number: u32) -> Option<&Row> {
        let (page, at) = place(number);
        self.0.get(page)?.get()?.get(at)
    }

    /// A row, whose page is made if need be; `None` beyond the last.
    fn make(&self, number: u32) -> Option<&Row> {
        let (page, at) = place(number);
        let rows = 1_usize << (page as u32 + FIRST);
        self.0.get(page)?.get_or_init(|| (0..rows).map(|_| Row::default()).collect()).get(at)
    }
}

/// Chains of the lines of one size of table: numbers and 1 of the first lines, or 0.
type Heads = Box<[AtomicU32]>;

/// Rows by key.
#[derive(Debug)]
struct Chains {
    rows: Rows,
    /// By the logarithm of their number, from [`FIRST`] on; the last one that was made is the one in use.
    heads: [OnceLock<Heads>; PAGES],
    level: AtomicU32,
    /// Grows with each change; odd while one is made.
    changes: AtomicU64,
}

impl Default for Chains {
    fn default() -> Self {
        let chains = Self {
            rows: Rows::default(),
            heads: [const { OnceLock::new() }; PAGES],
            level: AtomicU32::new(0),
            changes: AtomicU64::new(0),
        };
        chains.make_level(0);
        chains
    }
}

/// Keys may be chosen by whoever likes long chains: not by peers, who register nothing here.
#[inline]
const fn hash(key: u64) -> u64 {
    (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline]
fn head(heads: &[AtomicU32], key: u64) -> &AtomicU32 {
    let bits = heads.len().ilog2();
    &heads[(hash(key) >> (64 - bits)) as usize]
}

impl Chains {
    fn make_level(&self, level: usize) -> Option<&Heads> {
        let heads = 1_usize << (level as u32 + FIRST);
        Some(self.heads.get(level)?.get_or_init(|| (0..heads).map(|_| AtomicU32::new(0)).collect()))
    }

    #[inline]
    fn heads(&self) -> Option<&Heads> {
        self.heads.get(self.level.load(Ordering::Acquire) as usize)?.get()
    }

    /// The row of this key, and what it said; `Err` if it must be looked for again.
    #[inline]
    fn look(&self, key: u64) -> Result<Option<(&Row, Said)>, ()> {
        let before = self.changes.load(Ordering::Acquire);
        let mut at = self.heads().map_or(0, |heads| head(heads, key).load(Ordering::Acquire));
        // A reader that is led about by changes stops when it has seen more than any chain has.
        let mut steps = 0_u32;
        while let Some(number) = at.checked_sub(1) {
            let Some(row) = self.rows.get(number) else { return Err(()) };
            match row.line.read() {
                Some(said) if said.is(key) => return Ok(Some((row, said))),
                Some(_) => {}
                None => return Err(()),
            }
            at = row.line.next.load(Ordering::Acquire);
            steps += 1;
            if steps > 1 << 10 && self.changes.load(Ordering::Acquire) != before {
                return Err(());
            }
        }
        fence(Ordering::Acquire);
        let same = before & 1 == 0 && self.changes.load(Ordering::Relaxed) == before;
        if same { Ok(None) } else { Err(()) }
    }

    /// Makes a change, which readers notice. One thread at a time does so.
    fn change<R>(&self, change: impl FnOnce() -> R) -> R {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let result = change();
        self.changes.store(changes.wrapping_add(2), Ordering::Release);
        result
    }

    /// Hangs a row, whose line is written, in its chain.
    fn hang(&self, heads: &[AtomicU32], number: u32, key: u64) {
        let (Some(row), first) = (self.rows.get(number), head(heads, key)) else { return };
        row.line.next.store(first.load(Ordering::Relaxed), Ordering::Release);
        first.store(number + 1, Ordering::Release);
    }

    /// Takes a row out of its chain.
    fn unhang(&self, number: u32, key: u64) {
        let (Some(heads), Some(row)) = (self.heads(), self.rows.get(number)) else { return };
        let mut link = head(heads, key);
        loop {
            match link.load(Ordering::Relaxed) {
                0 => return,
                at if at == number + 1 => return link.store(row.line.next.load(Ordering::Relaxed), Ordering::Release),
                at => match self.rows.get(at - 1) {
                    Some(row) => link = &row.line.next,
                    None => return,
                },
            }
        }
    }

    /// Makes twice as many chains.
    fn grow(&self, live: impl Iterator<Item = (u32, u64)>) {
        let level = self.level.load(Ordering::Relaxed) + 1;
        let Some(heads) = self.make_level(level as usize) else { return };
        self.change(|| {
            for (number, key) in live {
                self.hang(heads, number, key);
            }
            self.level.store(level, Ordering::Release);
        });
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    windows: Rows,
    regions: Chains,
}

/// What writers know of regions' rows, under the table's lock.
#[derive(Debug, Default)]
pub(super) struct Used {
    free: Vec<u32>,
    next: u32,
}

impl Lines {
    /// The row of a key, and what it says.
    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<(&Row, Said)> {
        let mut tries = 0;
        loop {
            if let Ok(found) = self.try_find(key) {
                return found;
            }
            tries += 1;
            if tries % SPINS == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }

    #[inline]
    fn try_find(&self, key: u64) -> Result<Option<(&Row, Said)>, ()> {
        if let Some(place) = crate::memory::window::place_of(key)
            && let Some(row) = self.windows.get(place)
        {
            let said = row.line.read().ok_or(())?;
            if said.is_owned() {
                return Ok(said.is(key).then_some((row, said)));
            }
        }
        self.regions.look(key)
    }

    /// A window is allocated, or bound, or neither. Under the window's lock or, while it is not allocated, the table's.
    pub(crate) fn set_window(&self, place: u32, owned: bool, bound: Option<&Arc<Registered>>) {
        let Some(row) = self.windows.make(place) else { return };
        match bound {
            Some(window) => row.set(&said(window), bound),
            None => row.set(&if owned { Said::owned() } else { Said::default() }, None),
        }
    }

    /// A region is there; its row. Under the table's lock, which knows what is live.
    pub(super) fn add(
        &self,
        used: &mut Used,
        region: &Arc<Registered>,
        live: impl Iterator<Item = (u32, u64)>,
    ) -> Option<u32> {
        let number = used.free.pop().unwrap_or(used.next);
        let row = self.regions.rows.make(number)?;
        used.next = used.next.max(number + 1);
        row.set(&said(region), Some(region));
        let heads = self.regions.heads()?;
        self.regions.change(|| self.regions.hang(heads, number, region.key));
        if (used.next as usize - used.free.len()) > heads.len() {
            self.regions.grow(live.chain([(number, region.key)]));
        }
        Some(number)
    }

    /// The region of a row is another one, under the same key. Under the table's lock.
    pub(super) fn replace(&self, number: u32, region: &Arc<Registered>) {
        if let Some(row) = self.regions.rows.get(number) {
            row.set(&said(region), Some(region));
        }
    }

    /// A region is gone.
    pub(super) fn remove(&self, used: &mut Used, number: u32, key: u64) {
        let Some(row) = self.regions.rows.get(number) else { return };
        self.regions.change(|| {
            self.regions.unhang(number, key);
            row.set(&Said::default(), None);
        });
        used.free.push(number);
    }
}

fn said(region: &Registered) -> Said {
    Said::live(region.key, region.rights, (region.base, region.len), region.through).under(region.authority)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::memory::region::Registered;
    use crate::memory::volatile::Segments;

    fn region(key: u64) -> Arc<Registered> {
        let mut region = Registered::for_test(Segments::EMPTY);
        Arc::get_mut(&mut region).unwrap().key = key;
        region
    }

    #[test]
    fn rows_have_places_of_their_own() {
        let mut seen = std::collections::HashSet::new();
        for number in (0..5000).chain([1 << 20, (1 << 24) - 1]) {
            let (page, at) = place(number);
            assert!(page < PAGES && at < 1 << (page as u32 + FIRST) && seen.insert((page, at)));
        }
    }

    /// Random keys come and go; a map says which are there. Others look meanwhile, and always find those that stay.
    #[test]
    fn key_004_mr_032_keys_are_found_while_others_come_and_go() {
        let (lines, mut used) = (Lines::default(), Used::default());
        let mut live: HashMap<u64, u32> = HashMap::new();
        let stay: Vec<u64> = (1..200).map(|key| key * 0x1_0000_0001).collect();
        for key in &stay {
            let rows: Vec<_> = live.iter().map(|(key, row)| (*row, *key)).collect();
            live.insert(*key, lines.add(&mut used, &region(*key), rows.into_iter()).unwrap());
        }
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let seek = || {
                let mut looks = 0_u64;
                while !over.load(std::sync::atomic::Ordering::Relaxed) || looks == 0 {
                    for key in &stay {
                        let (row, said) = lines.find(*key).expect("a key that stays");
                        assert!(said.is(*key) && row.region().is_some_and(|region| region.key == *key));
                        looks += 1;
                    }
                }
            };
            scope.spawn(seek);
            let mut random = 9_u64;
            for _ in 0..30_000 {
                random = hash(random + 1);
                let key = random % 3000 + (1 << 40);
                assert_eq!(lines.find(key).is_some(), live.contains_key(&key));
                if let Some(row) = live.remove(&key) {
                    lines.remove(&mut used, row, key);
                    assert!(lines.find(key).is_none());
                } else {
                    let rows: Vec<_> = live.iter().map(|(key, row)| (*row, *key)).collect();
                    live.insert(key, lines.add(&mut used, &region(key), rows.into_iter()).unwrap());
                    assert!(lines.find(key).is_some());
                }
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(lines.regions.level.load(Ordering::Relaxed) > 2, "the table never grew");
    }
}

#[cfg(all(test, loom))]
#[path = "lines_model.rs"]
mod model;
