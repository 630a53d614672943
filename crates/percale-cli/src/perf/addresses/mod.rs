//! `percale perf --addresses N`: the costs of addresses in an address vector, compared with libfabric's tcp provider.
//!
//! percale and libfabric insert the same addresses, in turns, for N addresses and for a hundredth and a tenth of N. The
//! results are the medians of the rounds. Bytes are the growth of the process's resident memory in the first round,
//! after the allocator has returned all free memory. The growth includes the opening of the vector, except for ranges.
//! Both are given the expected number of addresses. [`peer`] is libfabric's side.

mod measure;
mod peer;
mod sends;

use serde::Serialize;

use super::args::PerfArgs;
use crate::failure::{Failure, Result};
use crate::output::print_line;
use crate::plot::{self, Panel, Series};
use crate::{table, units};
use measure::{PEER_ROUNDS, ROUNDS, SERVICES};
use peer::Peer;

/// One result.
#[derive(Debug, Serialize)]
pub(crate) struct AddressLine {
    /// The measured operation.
    pub(crate) what: AddressOperation,
    /// The number of addresses.
    pub(crate) addresses: usize,
    /// Nanoseconds per address or lookup. For a range, nanoseconds for the whole range.
    pub(crate) ns: f64,
    /// Nanoseconds for reading a word of a plain array.
    pub(crate) limit_ns: Option<f64>,
    /// The growth of memory per address. For a range, the growth for the whole range.
    pub(crate) bytes: Option<f64>,
    /// Nanoseconds of libfabric's tcp provider.
    pub(crate) peer_ns: Option<f64>,
    /// Bytes of libfabric's tcp provider.
    pub(crate) peer_bytes: Option<f64>,
}

/// The operations that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AddressOperation {
    /// Insertion of IPv4 addresses in one call.
    Insert,
    /// Insertion of IPv6 addresses in one call.
    InsertV6,
    /// Lookups of random addresses, independent of each other.
    Lookup,
    /// Insertion of one symmetric range.
    Range,
    /// Lookups in the range.
    RangeLookup,
    /// Posting a message to one of the same 64 peers.
    Send,
}

impl AddressOperation {
    const fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert an IPv4 address",
            Self::InsertV6 => "insert an IPv6 address",
            Self::Lookup => "look up",
            Self::Range => "insert a whole symmetric range",
            Self::RangeLookup => "look up in a range",
            Self::Send => "post a message to one of 64 peers",
        }
    }
}

/// Runs the measurement.
pub(super) fn run(args: &PerfArgs, count: usize) -> Result<()> {
    let peer = Peer::open();
    let mut lines = Vec::new();
    let mut counts = vec![count, count / 10, count / 100];
    counts.retain(|count| *count >= SERVICES);
    // The largest number is measured first. Later numbers reuse freed memory.
    for &count in &counts {
        lines.extend(measure::measure(count / SERVICES * SERVICES, lines.is_empty(), peer.as_ref().ok())?);
    }
    let mut sizes = vec![count, 1000];
    sizes.dedup();
    for (ns, addresses) in sends::measure(&sizes)?.into_iter().zip(sizes) {
        let nothing = AddressLine {
            what: AddressOperation::Send,
            addresses,
            ns,
            limit_ns: None,
            bytes: None,
            peer_ns: None,
            peer_bytes: None,
        };
        lines.push(nothing);
    }
    for line in lines.iter().filter(|_| args.json) {
        print_line(&serde_json::to_string(&line).map_err(Failure::system("writing JSON"))?)?;
    }
    if !args.json {
        print_line(&text(&lines))?;
        print_line(&match &peer {
            Ok(peer) => {
                format!(
                    "libfabric {}, {PEER_ROUNDS} rounds; ratio: libfabric's value divided by percale's.",
                    peer.version()
                )
            }
            Err(why) => format!("libfabric's tcp provider is not measured: {why}"),
        })?;
    }
    if let Some(file) = &args.svg {
        let picture = picture(&lines)?;
        std::fs::write(file, picture).map_err(Failure::system(format!("writing {}", file.display())))?;
    }
    Ok(())
}

fn text(lines: &[AddressLine]) -> String {
    let mut all = comfy_table::Table::new();
    all.load_style(table::RULED);
    let head = ["addresses", "", "time", "limit", "memory", "libfabric tcp", "memory", "ratio", "memory"];
    all.set_header(head.map(|text| if text.is_empty() { table::left(text) } else { table::right(text) }));
    let or_nothing = |text: Option<String>| table::right(text.unwrap_or_else(|| "–".to_owned()));
    let bytes = |bytes: Option<f64>| or_nothing(bytes.map(memory));
    let ratio = |theirs: Option<f64>, ours: Option<f64>| {
        or_nothing(theirs.zip(ours).map(|(theirs, ours)| scale(theirs / ours)))
    };
    for line in lines {
        all.add_row([
            table::right(units::count(line.addresses as u64)),
            table::left(line.what.name()),
            table::right(units::time(line.ns)),
            or_nothing(line.limit_ns.map(units::time)),
            bytes(line.bytes),
            or_nothing(line.peer_ns.map(units::time)),
            bytes(line.peer_bytes),
            ratio(line.peer_ns, Some(line.ns)),
            ratio(line.peer_bytes, line.bytes),
        ]);
    }
    let limit = "limit: reading a random word of a plain array as large as the table";
    format!(
        "{all}\nMedians of {ROUNDS} rounds. Lookups include choosing a random address, and follow an untimed pass; {limit}."
    )
}

/// Formats a number of bytes, with one decimal if it is small, otherwise in megabytes: `8.4 B`, `166 MB`.
fn memory(bytes: f64) -> String {
    if bytes < 1000.0 { format!("{bytes:.1} B") } else { format!("{:.0} MB", bytes / 1e6) }
}

/// Formats a ratio with its significant digits.
fn scale(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.1}") } else { units::count(ratio.round() as u64) }
}

fn picture(lines: &[AddressLine]) -> Result<String> {
    let panel = |title, what| {
        let points = |of: fn(&AddressLine) -> Option<f64>| {
            let mut points: Vec<_> = lines
                .iter()
                .filter(|line| line.what == what)
                .filter_map(|line| of(line).map(|value| (line.addresses as f64, value)))
                .collect();
            points.reverse();
            points
        };
        let series = [
            ("percale", plot::BLUE, false, points(|line| Some(line.ns))),
            ("libfabric tcp", plot::ORANGE, false, points(|line| line.peer_ns)),
            ("a plain array", plot::GREY, true, points(|line| line.limit_ns)),
        ];
        let series = series.into_iter().filter(|(.., points)| !points.is_empty());
        let series = series.map(|(name, color, dashed, points)| Series { name: name.into(), color, dashed, points });
        let across = plot::Across::Addresses;
        Panel { title, across, axis: "time", show: plot::time, series: series.collect() }
    };
    plot::picture(
        "Address vectors",
        &[
            panel("insertion of an IPv4 address", AddressOperation::Insert),
            panel("lookup of a random address", AddressOperation::Lookup),
            panel("insertion of a whole symmetric range", AddressOperation::Range),
        ],
    )
}
