//! A hash table from keys to lists. It files the entries of one class of patterns under the words that the class
//! compares.
//!
//! A bin exists while its list has entries. Bins are chained from buckets, and there are always at least as many
//! buckets as bins. Buckets and bins are reused, and their number grows only when more keys are in use at the same time
//! than ever before.
//!
//! Peers choose the tags of their messages, so the hash is seeded. A peer cannot choose tags that share a bucket.

use std::hash::{BuildHasher, RandomState};

use super::arena::{List, NIL};
use super::key::MatchKey;
use super::steps::step;

#[derive(Debug)]
struct Bin {
    key: MatchKey,
    hash: u32,
    /// The next bin of this bucket, or of the list of free bins.
    next: u32,
    list: List,
}

/// Lists by key.
#[derive(Debug)]
pub(super) struct Bins {
    /// The first bin of each chain. The length is 0 or a power of two.
    buckets: Vec<u32>,
    bins: Vec<Bin>,
    free: u32,
    live: usize,
    seeds: [u64; 3],
}

impl Bins {
    const FIRST_BUCKETS: usize = 32;

    pub(super) fn new() -> Self {
        let random = RandomState::new();
        let seeds = [0_u64, 1, 2].map(|number| random.hash_one(number));
        Self { buckets: Vec::new(), bins: Vec::new(), free: NIL, live: 0, seeds }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns the bin of this key, if an entry is filed under it.
    #[inline]
    pub(super) fn find(&self, key: MatchKey) -> Option<u32> {
        if self.live == 0 {
            return None;
        }
        let hash = self.hash(key);
        self.find_hashed(key, hash)
    }

    #[inline]
    fn find_hashed(&self, key: MatchKey, hash: u32) -> Option<u32> {
        let mut bin = *self.buckets.get(self.bucket(hash))?;
        while bin != NIL {
            step();
            let candidate = &self.bins[bin as usize];
            if candidate.key == key {
                return Some(bin);
            }
            bin = candidate.next;
        }
        None
    }

    /// Returns the bin of this key, and creates it if it does not exist. The caller adds an entry to it.
    #[inline]
    pub(super) fn find_or_make(&mut self, key: MatchKey) -> u32 {
        let hash = self.hash(key);
        match self.find_hashed(key, hash) {
            Some(bin) => bin,
            None => self.make(key, hash),
        }
    }

    fn make(&mut self, key: MatchKey, hash: u32) -> u32 {
        if self.live == self.buckets.len() {
            self.grow();
        }
        let bucket = self.bucket(hash);
        let made = Bin { key, hash, next: self.buckets[bucket], list: List::EMPTY };
        let mut bin = self.free;
        if let Some(free) = self.bins.get_mut(bin as usize) {
            self.free = free.next;
            *free = made;
        } else {
            // There are never more bins than entries, and the arena limits entries to fewer than NIL.
            bin = self.bins.len() as u32;
            self.bins.push(made);
        }
        self.buckets[bucket] = bin;
        self.live += 1;
        bin
    }

    /// Doubles the number of buckets. It is called when every bin is in use, because there are then as many bins as
    /// buckets.
    #[cold]
    fn grow(&mut self) {
        let wanted = (self.buckets.len() * 2).max(Self::FIRST_BUCKETS);
        self.buckets.clear();
        self.buckets.resize(wanted, NIL);
        for (index, bin) in self.bins.iter_mut().enumerate().filter(|(_, bin)| !bin.list.is_empty()) {
            let bucket = &mut self.buckets[bin.hash as usize & (wanted - 1)];
            bin.next = std::mem::replace(bucket, index as u32);
        }
    }

    #[inline]
    pub(super) fn list(&self, bin: u32) -> &List {
        &self.bins[bin as usize].list
    }

    #[inline]
    pub(super) fn list_mut(&mut self, bin: u32) -> &mut List {
        &mut self.bins[bin as usize].list
    }

    /// Frees the bin if it is empty.
    #[inline]
    pub(super) fn release_if_empty(&mut self, bin: u32) {
        if self.bins[bin as usize].list.is_empty() {
            self.release(bin);
        }
    }

    fn release(&mut self, bin: u32) {
        let Bin { hash, next, .. } = self.bins[bin as usize];
        let bucket = self.bucket(hash);
        if self.buckets[bucket] == bin {
            self.buckets[bucket] = next;
        } else {
            let mut before = self.buckets[bucket];
            while self.bins[before as usize].next != bin {
                step();
                before = self.bins[before as usize].next;
            }
            self.bins[before as usize].next = next;
        }
        self.bins[bin as usize].next = self.free;
        self.free = bin;
        self.live -= 1;
    }

    #[inline]
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & self.buckets.len().wrapping_sub(1)
    }

    /// Combines two folded products. One is not enough: if one word of the keys is constant (tags from any sender), the
    /// product has a constant factor, and for some seeds hundreds of keys then have the same low bits.
    #[inline]
    fn hash(&self, key: MatchKey) -> u32 {
        /// 2^64 divided by the golden ratio. Successive multiples of it are spread evenly.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let words = folded(key.tag ^ self.seeds[0], key.source ^ self.seeds[1]);
        folded(words ^ self.seeds[2], SPREAD) as u32
    }
}

/// Returns the exclusive or of the two halves of the product.
#[inline]
fn folded(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}
