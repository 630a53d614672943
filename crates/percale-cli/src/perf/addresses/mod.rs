//! `percale perf --addresses N`: what addresses cost in an address vector, beside libfabric's tcp provider.
//!
//! Both insert the same addresses, in turn, at N and at a hundredth and a tenth of it; the medians of the rounds count. Bytes
//! are what the process's resident memory grew by in the first round, before anything was given back. [`peer`] is the other side.

mod peer;

use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use percale::PeerAddress;
use percale::address::vector::{AddressVector, VectorOptions};
use serde::Serialize;

use super::print_line;
use crate::args::PerfArgs;
use crate::failure::{Failure, Result, percale};
use crate::plot::{self, Panel, Series};
use crate::{table, units};
use peer::Peer;

/// Rounds of each comparison.
const ROUNDS: usize = 5;
/// Services of each node of a symmetric insertion.
const SERVICES: usize = 100;
/// Lookups that are timed.
const LOOKUPS: u64 = 2_000_000;
/// Ranges that are timed together, each in a vector of its own: one by itself is mostly the time of finding it out.
const RANGES: usize = 1000;
/// Where addresses begin: 10.0.0.0.
const FIRST: u32 = 0x0a00_0000;
/// The port of those that are inserted one by one.
const PORT: u16 = 7471;

/// One result.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    /// What was done.
    pub(crate) what: What,
    /// How many addresses.
    pub(crate) addresses: usize,
    /// Nanoseconds: of an address or a lookup, or of the whole range.
    pub(crate) ns: f64,
    /// What memory grew by for each address, or for the whole range.
    pub(crate) bytes: Option<f64>,
    /// The same of libfabric's tcp provider.
    pub(crate) peer_ns: Option<f64>,
    /// The same.
    pub(crate) peer_bytes: Option<f64>,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    /// IPv4 addresses in one call.
    Insert,
    /// IPv6 addresses in one call.
    InsertV6,
    /// Lookups of any of them, none of which needs the one before.
    Lookup,
    /// One symmetric range.
    Range,
    /// Lookups in it.
    RangeLookup,
}

impl What {
    const fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert IPv4, an address",
            Self::InsertV6 => "insert IPv6, an address",
            Self::Lookup => "look up",
            Self::Range => "insert a symmetric range, all of it",
            Self::RangeLookup => "look up in a range",
        }
    }
}

/// Runs it.
pub(super) fn run(args: &PerfArgs, count: usize) -> Result<()> {
    let peer = Peer::open();
    let mut lines = Vec::new();
    let mut counts = vec![count / 100, count / 10, count];
    counts.retain(|count| *count >= SERVICES);
    // The largest comes first, while nothing has been given back that would be used again.
    for count in counts.into_iter().rev() {
        for line in measure(count / SERVICES * SERVICES, lines.is_empty(), peer.as_ref().ok())? {
            if args.json {
                print_line(&serde_json::to_string(&line).map_err(Failure::system("writing JSON"))?)?;
            }
            lines.push(line);
        }
    }
    if !args.json {
        print_line(&text(&lines))?;
        if let Err(why) = &peer {
            print_line(&format!("libfabric's tcp provider is not measured: {why}"))?;
        }
    }
    if let Some(file) = &args.svg {
        let picture = picture(&lines)?;
        std::fs::write(file, picture).map_err(Failure::system(format!("writing {}", file.display())))?;
    }
    Ok(())
}

/// What rounds gave.
#[derive(Debug, Default)]
struct Rounds {
    ns: Vec<f64>,
    bytes: Option<f64>,
}

impl Rounds {
    /// Times `f`, whose result stays until memory was looked at.
    fn add<T>(&mut self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = resident()?;
        let start = Instant::now();
        let kept = f()?;
        self.ns.push(start.elapsed().as_nanos() as f64);
        let grown = resident()?.saturating_sub(before) as f64;
        self.bytes.get_or_insert(grown);
        Ok(kept)
    }

    fn median(&self) -> Option<f64> {
        let mut sorted = self.ns.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

fn vector() -> Result<AddressVector> {
    AddressVector::new(VectorOptions::default()).map_err(percale("making an address vector"))
}

/// One number of addresses. Memory is only looked at for the largest, which comes first.
fn measure(count: usize, largest: bool, peer: Option<&Peer>) -> Result<Vec<Line>> {
    let v4: Vec<SocketAddr> =
        (FIRST..).take(count).map(|bits| SocketAddr::new(Ipv4Addr::from_bits(bits).into(), PORT)).collect();
    let v6: Vec<SocketAddr> = (0xfd00u128 << 112..)
        .take(count)
        .map(|bits| SocketAddr::new(Ipv6Addr::from_bits(bits + 1).into(), PORT))
        .collect();
    let nodes = count / SERVICES;
    let [mut insert, mut insert_v6, mut lookup, mut range, mut range_lookup]: [Rounds; 5] = Default::default();
    let [mut peer_insert, mut peer_lookup, mut peer_range]: [Rounds; 3] = Default::default();
    for round in 0..ROUNDS {
        let (flat, six) = (vector()?, vector()?);
        let symmetric = (0..RANGES).map(|_| vector()).collect::<Result<Vec<_>>>()?;
        let check = |inserted: percale::address::Inserted| {
            let all = inserted.count() == count as u64;
            if all { Ok(()) } else { Err(Failure::Data("not all addresses were inserted".into())) }
        };
        let put = |vector: &AddressVector, all: &[SocketAddr]| -> Result<()> {
            vector.insert_many(all).map_err(percale("inserting addresses")).and_then(check)
        };
        insert.add(|| put(&flat, &v4))?;
        insert_v6.add(|| put(&six, &v6))?;
        range.add(|| {
            symmetric.iter().try_for_each(|vector| {
                let inserted = vector.insert_symmetric("10.0.0.0", nodes, "5000", SERVICES);
                inserted.map_err(percale("inserting a range")).and_then(check)
            })
        })?;
        lookup.add(|| Ok(look_up(&flat, count as u64)))?;
        range_lookup.add(|| Ok(look_up(&symmetric[0], count as u64)))?;
        // The other side takes some seconds for a million: it has fewer rounds.
        if let Some(peer) = peer.filter(|_| round < 3) {
            let table = peer.vector(count)?;
            peer_insert.add(|| table.insert(FIRST, PORT, count))?;
            peer_lookup.add(|| table.look_up(count as u64, LOOKUPS))?;
            drop(table);
            let table = peer.vector(count)?;
            peer_range.add(|| table.insert_symmetric(c"10.0.0.0", nodes, c"5000", SERVICES))?;
        }
    }
    let line = |what, rounds: &Rounds, each: f64, other: Option<(&Rounds, f64)>, memory: bool| Line {
        what,
        addresses: count,
        ns: rounds.median().unwrap_or_default() / each,
        bytes: rounds.bytes.filter(|_| memory).map(|bytes| bytes / each),
        peer_ns: other.and_then(|(other, each)| other.median().map(|ns| ns / each)),
        peer_bytes: other.and_then(|(other, each)| other.bytes.filter(|_| memory).map(|bytes| bytes / each)),
    };
    let each = count as f64;
    Ok(vec![
        line(What::Insert, &insert, each, Some((&peer_insert, each)), largest),
        line(What::InsertV6, &insert_v6, each, None, largest),
        line(What::Lookup, &lookup, LOOKUPS as f64, Some((&peer_lookup, LOOKUPS as f64)), false),
        line(What::Range, &range, RANGES as f64, Some((&peer_range, 1.0)), largest),
        line(What::RangeLookup, &range_lookup, LOOKUPS as f64, None, false),
    ])
}

/// Looks up any of the addresses, many times.
fn look_up(vector: &AddressVector, count: u64) -> u64 {
    let mut state = 1u64;
    let mut ports = 0u64;
    for _ in 0..LOOKUPS {
        let found = vector.lookup(PeerAddress(next(&mut state, count)));
        ports += found.map_or(0, |address| u64::from(address.port()));
    }
    black_box(ports)
}

/// Any number below `count`, cheaply (Knuth's multiplicative generator, its upper half).
const fn next(state: &mut u64, count: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 32) * count) >> 32
}

/// Resident memory of this process, in bytes.
fn resident() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/self/statm").map_err(Failure::system("reading /proc/self/statm"))?;
    let pages: Option<usize> = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.map(|pages| pages * rustix::param::page_size()).ok_or_else(|| Failure::Data("/proc/self/statm".into()))
}

fn text(lines: &[Line]) -> String {
    let mut all = comfy_table::Table::new();
    all.load_style(table::RULED);
    all.set_header(["addresses", "", "time", "memory", "libfabric tcp", "memory", "ratio"]);
    let bytes = |bytes: Option<f64>| bytes.map_or_else(|| "–".to_owned(), |bytes| format!("{bytes:.1} B"));
    for line in lines {
        all.add_row([
            line.addresses.to_string(),
            line.what.name().to_owned(),
            units::time(line.ns),
            bytes(line.bytes),
            line.peer_ns.map_or_else(|| "–".to_owned(), units::time),
            bytes(line.peer_bytes),
            line.peer_ns.map_or_else(|| "–".to_owned(), |ns| format!("{:.0}", ns / line.ns)),
        ]);
    }
    format!("{all}\nMedians of {ROUNDS} rounds (libfabric: 3), done in turn. Lookups include choosing one of them.")
}

fn picture(lines: &[Line]) -> Result<String> {
    let panel = |title, what| {
        let points = |of: fn(&Line) -> Option<f64>| {
            let mut points: Vec<_> = lines
                .iter()
                .filter(|line| line.what == what)
                .filter_map(|line| of(line).map(|value| (line.addresses as f64, value)))
                .collect();
            points.reverse();
            points
        };
        let series = [
            ("percale", plot::BLUE, points(|line| Some(line.ns))),
            ("libfabric tcp", plot::ORANGE, points(|line| line.peer_ns)),
        ];
        let series = series.into_iter().filter(|(.., points)| !points.is_empty());
        let series = series.map(|(name, color, points)| Series { name: name.into(), color, limit: false, points });
        Panel { title, axis: "time", show: plot::time, series: series.collect() }
    };
    plot::picture(
        "Address vectors",
        &[panel("insertion, an address", What::Insert), panel("a symmetric range, all of it", What::Range)],
    )
}
