//! The measurement with one number of addresses.

use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use percale::PeerAddress;
use percale::address::vector::{AddressVector, VectorOptions};

use super::peer::{Peer, give_back};
use super::{AddressLine, AddressOperation};
use crate::failure::{Failure, Result, percale};
use crate::perf::generator::next;

/// The number of rounds of each comparison.
pub(super) const ROUNDS: usize = 5;
/// The number of rounds of libfabric. For a million addresses, each takes several seconds.
pub(super) const PEER_ROUNDS: usize = 3;
/// The number of services of each node of a symmetric insertion.
pub(super) const SERVICES: usize = 100;
/// The number of lookups that are timed.
const LOOKUPS: u64 = 2_000_000;
/// The number of ranges that are timed together, each in a separate vector. For a single range, mostly the cost of
/// timing would be measured.
const RANGES: usize = 1000;
/// The first address: 10.0.0.0.
const FIRST: u32 = 0x0a00_0000;
/// The port of the addresses that are inserted one by one.
const PORT: u16 = 7471;

/// The results of the rounds.
#[derive(Debug, Default)]
struct Rounds {
    ns: Vec<f64>,
    bytes: Option<f64>,
}

impl Rounds {
    /// Times `f` on the result of `make`. Records how much the resident memory has grown during both calls.
    fn add<T>(&mut self, make: impl FnOnce() -> Result<T>, f: impl FnOnce(&T) -> Result<()>) -> Result<T> {
        // Free memory that the allocator keeps would be reused, which would hide the growth.
        give_back();
        let before = resident()?;
        let made = make()?;
        self.time(|| f(&made))?;
        let grown = resident()?.saturating_sub(before) as f64;
        self.bytes.get_or_insert(grown);
        Ok(made)
    }

    fn time<T>(&mut self, f: impl FnOnce() -> Result<T>) -> Result<()> {
        let start = Instant::now();
        let kept = f()?;
        self.ns.push(start.elapsed().as_nanos() as f64);
        drop(kept);
        Ok(())
    }

    /// Times the second of two passes. The first pass loads the data into the caches.
    fn time_again<T>(&mut self, mut f: impl FnMut() -> Result<T>) -> Result<()> {
        f()?;
        self.time(f)
    }

    fn each(&self, parts: f64) -> Option<f64> {
        median(&self.ns).map(|ns| ns / parts)
    }
}

/// Returns the median.
pub(super) fn median(of: &[f64]) -> Option<f64> {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Makes a vector for an expected number of addresses (libfabric's vector is made for the same number).
pub(super) fn vector(expected: usize) -> Result<AddressVector> {
    AddressVector::new(VectorOptions { expected, ..VectorOptions::default() })
        .map_err(percale("creating an address vector"))
}

/// Returns `count` IPv4 addresses.
pub(super) fn addresses(count: usize) -> Vec<SocketAddr> {
    (FIRST..).take(count).map(|bits| SocketAddr::new(Ipv4Addr::from_bits(bits).into(), PORT)).collect()
}

/// Measures one number of addresses. Memory is reported only for the largest number, which is measured first.
pub(super) fn measure(count: usize, largest: bool, peer: Option<&Peer>) -> Result<Vec<AddressLine>> {
    let v4 = addresses(count);
    let v6 = (0xfd00u128 << 112..).take(count).map(|bits| SocketAddr::new(Ipv6Addr::from_bits(bits + 1).into(), PORT));
    let v6: Vec<SocketAddr> = v6.collect();
    let plain: Vec<u64> = (0..count as u64).collect();
    let nodes = count / SERVICES;
    let [mut insert, mut insert_v6, mut lookup, mut range, mut range_lookup, mut limit]: [Rounds; 6] =
        Default::default();
    let [mut peer_insert, mut peer_lookup, mut peer_range]: [Rounds; 3] = Default::default();
    let check = |inserted: percale::address::Inserted| {
        let all = inserted.count() == count as u64;
        if all { Ok(()) } else { Err(Failure::Data("not all addresses were inserted".into())) }
    };
    let put = |vector: &AddressVector, all: &[SocketAddr]| -> Result<()> {
        vector.insert_many(all).map_err(percale("inserting addresses")).and_then(check)
    };
    let put_range = |vector: &AddressVector| {
        let inserted = vector.insert_symmetric("10.0.0.0", nodes, "5000", SERVICES);
        inserted.map_err(percale("inserting a range")).and_then(check)
    };
    for round in 0..ROUNDS {
        let flat = insert.add(|| vector(count), |vector| put(vector, &v4))?;
        let _six = insert_v6.add(|| vector(count), |vector| put(vector, &v6))?;
        // Empty vectors also use memory. Only the memory that a range adds is counted.
        let empty = (0..RANGES).map(|_| vector(count)).collect::<Result<Vec<_>>>()?;
        let symmetric = range.add(|| Ok(empty), |all| all.iter().try_for_each(put_range))?;
        lookup.time_again(|| Ok(look_up(&flat, count as u64)))?;
        limit.time_again(|| Ok(read(&plain)))?;
        range_lookup.time_again(|| Ok(look_up(&symmetric[0], count as u64)))?;
        if let Some(peer) = peer.filter(|_| round < PEER_ROUNDS) {
            let table = peer_insert.add(|| peer.vector(count), |table| table.insert(FIRST, PORT, count))?;
            peer_lookup.time_again(|| table.look_up(count as u64, LOOKUPS))?;
            drop(table);
            let range = |table: &super::peer::Vector| table.insert_symmetric(c"10.0.0.0", nodes, c"5000", SERVICES);
            peer_range.add(|| peer.vector(count), range)?;
        }
    }
    let each = count as f64;
    let line = |what, rounds: &Rounds, parts: f64| AddressLine {
        what,
        addresses: count,
        ns: rounds.each(parts).unwrap_or_default(),
        limit_ns: None,
        bytes: rounds.bytes.filter(|_| largest).map(|bytes| bytes / parts),
        peer_ns: None,
        peer_bytes: None,
    };
    let beside = |line: AddressLine, other: &Rounds, parts: f64| AddressLine {
        peer_ns: other.each(parts),
        peer_bytes: other.bytes.filter(|_| largest).map(|bytes| bytes / parts),
        ..line
    };
    let lookups = LOOKUPS as f64;
    let limit = limit.each(lookups);
    Ok(vec![
        beside(line(AddressOperation::Insert, &insert, each), &peer_insert, each),
        line(AddressOperation::InsertV6, &insert_v6, each),
        AddressLine {
            limit_ns: limit,
            ..beside(line(AddressOperation::Lookup, &lookup, lookups), &peer_lookup, lookups)
        },
        beside(line(AddressOperation::Range, &range, RANGES as f64), &peer_range, 1.0),
        line(AddressOperation::RangeLookup, &range_lookup, lookups),
    ])
}

/// Looks up [`LOOKUPS`] random addresses out of `count`.
fn look_up(vector: &AddressVector, count: u64) -> u64 {
    let mut state = 1u64;
    let mut ports = 0u64;
    for _ in 0..LOOKUPS {
        let found = vector.lookup(PeerAddress(next(&mut state, count)));
        ports += found.map_or(0, |address| u64::from(address.port()));
    }
    black_box(ports)
}

/// The limit of lookups: reads random words of an array with the size of a table of IPv4 addresses.
fn read(words: &[u64]) -> u64 {
    let words = black_box(words);
    let mut state = 1u64;
    let mut sum = 0u64;
    for _ in 0..LOOKUPS {
        sum = sum.wrapping_add(words[next(&mut state, words.len() as u64) as usize]);
    }
    black_box(sum)
}

/// Returns the resident memory of this process in bytes, not including files (such as its code). /proc/self/statm is
/// not used, because its value may lag behind by several hundred KiB.
fn resident() -> Result<usize> {
    let file = "/proc/self/smaps_rollup";
    let text = std::fs::read_to_string(file).map_err(Failure::system(format!("reading {file}")))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let kib: Option<usize> = line.and_then(|rest| rest.trim().split(' ').next()?.parse().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| Failure::Data(file.into()))
}
