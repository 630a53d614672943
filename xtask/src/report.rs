//! Writes docs/benchmarks.md: percale compared with the machine's limits and with its peers, including the cases in
//! which percale is slower.
//!
//! No part of that file is written manually. The results come from `percale perf` and `cargo xtask peers`, from runs
//! made now or from their last runs in the target directory, and from the last measuring run of `cargo xtask guest`.

use crate::failure::{Failure, Outcome};
use crate::guest::figures;
use crate::machine;
use crate::peers;
use crate::perf::{MeasuredRow, Perf};
use crate::place::Repository;
use crate::table;
use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::fs;
use std::time::Duration;

const PERF_FILE: &str = "bench/perf.json";
const DOCUMENT: &str = "docs/benchmarks.md";

/// A result that exceeds its limit by this factor is marked, because improvements are most useful there.
const FAR: f64 = 1.25;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Measures again even if there are earlier runs
    #[arg(long)]
    fresh: bool,
    /// Rounds of the comparison with the peers
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Prints the figures as JSON and writes no document
    #[arg(long)]
    json: bool,
}

/// A finished run of `percale perf`.
#[derive(Serialize, Deserialize)]
struct Measured {
    date: String,
    commit: String,
    rows: Vec<MeasuredRow>,
}

#[derive(Serialize)]
struct Figures<'a> {
    perf: &'a Measured,
    peers: &'a peers::PeerRun,
    guest: Option<&'a figures::CommandRun>,
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let earlier = if arguments.fresh { None } else { place.load(PERF_FILE)? };
    let perf = earlier.map_or_else(|| measure(place), Ok)?;
    let earlier = if arguments.fresh { None } else { place.load(peers::FILE)? };
    let peers = match earlier {
        Some(run) => run,
        None => peers::measure(place, &peers::Arguments::all(arguments.rounds))?,
    };
    // These results need a virtual machine. `cargo xtask guest` measures them.
    let guest: Option<figures::CommandRun> = place.load(figures::FILE)?;
    if arguments.json {
        let figures = Figures { perf: &perf, peers: &peers, guest: guest.as_ref() };
        println!("{}", serde_json::to_string_pretty(&figures)?);
        return Ok(true);
    }
    let text = document(&perf, &peers, guest.as_ref()).map_err(Failure::during("writing the report"))?;
    fs::write(place.root.join(DOCUMENT), text)?;
    println!("wrote {DOCUMENT}");
    Ok(peers.problems.is_empty())
}

fn measure(place: &Repository) -> Outcome<Measured> {
    let perf = Perf::build(place)?;
    let mut rows = Vec::new();
    for arguments in [&[][..], &["--dirty", "--op", "tagged-latency"][..]] {
        eprintln!("percale perf {}", arguments.join(" "));
        rows.extend(perf.run(arguments, Duration::from_secs(20 * 60))?);
    }
    let measured = Measured { date: machine::date(), commit: machine::commit(place), rows };
    place.save(PERF_FILE, &measured)?;
    Ok(measured)
}

fn document(
    perf: &Measured,
    peers: &peers::PeerRun,
    guest: Option<&figures::CommandRun>,
) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    writeln!(text, "# Benchmarks\n\nWritten by `cargo xtask report`; every figure can be taken again with it.\n")?;
    writeln!(text, "## Machine\n")?;
    for line in machine::description() {
        writeln!(text, "- {line}")?;
    }
    writeln!(text, "- peers: {}", peers.versions.join(", "))?;
    writeln!(
        text,
        "- measured {} (commit {}) and, with the peers, {} (commit {})",
        perf.date, perf.commit, peers.date, peers.commit
    )?;
    text.push_str(METHOD);
    let losses = peers.rows.iter().filter(|row| row.is_loss()).count();
    let compared = peers.rows.iter().filter(|row| row.ratio.is_some()).count();
    writeln!(text, "\n## Beside its peers\n\n{compared} comparisons; the peer is better in {losses}, marked LOSS.\n")?;
    writeln!(text, "{}", peers_table(peers))?;
    if peers.busy > peers::BUSY {
        let percent = peers.busy * 100.0;
        writeln!(text, "\nOthers used up to {percent:.0} % of the machine meanwhile: these figures are poor.")?;
    }
    for problem in &peers.problems {
        writeln!(text, "\nNot measured: {}", problem.lines().next().unwrap_or_default())?;
    }
    writeln!(text, "\n## Beside the machine's limits\n\n{LIMITS}\n")?;
    writeln!(text, "{}", limits_table(perf))?;
    writeln!(text, "\n## Registrations and windows on an emulated RDMA device\n")?;
    match guest {
        Some(run) => writeln!(text, "{}", run.shown(markdown))?,
        None => writeln!(text, "Not measured: `cargo xtask guest --only figures` does it.")?,
    }
    Ok(text)
}

const METHOD: &str = "
## How it is measured

- Two processes, each pinned to a core of its own. Times are one way: half a round trip. Rates are streams one way.
- put, get, fetch-add, fetch-add-alone and compare-swap are one operation on the other process' memory until it has completed; percale's
  below 4 KiB are timed 32 in turn. put-latency is half a round trip of writes, each side polling its own memory.
- fetch-add: the other side adds to the same word by itself meanwhile, for percale and for its limit. The peers' programs
  have no such case; fetch-add-alone and compare-swap are without others on all sides.
- Times are medians of all round trips of a run (p50), except libfabric's, whose program prints a mean only.
- The sides of a comparison take turns within each round, the order turned around every round; the median of the
  rounds counts. So noise hits all sides alike; still, a ratio between 0.95 and 1.05 says little.
- \"Dirty\": the sender writes the whole source before each send, as programs do. The peers' programs never write
  theirs, so a dirty row is held against the peer's clean figure.
- The peers' programs look at no byte that arrives; beside them percale's does not either. Beside the machine's limits the
  ends of every message are written and checked.
- \"percale's\" buffers are allocated by the library, so that a peer of the same user can map them; \"ordinary\" ones
  come from the heap.
- UCX: `ucx_perftest` with UCX_TLS=posix,cma (shm) or UCX_TLS=tcp on the loopback device. Its one-sided operations
  access memory that UCX allocated; \"UCX posix\" is UCX_TLS=posix alone: mapped memory, and no check of an access.
  libfabric: `fi_pingpong`, tagged, reliable datagrams, provider shm or tcp. Both are Debian's packages.
";

const LIMITS: &str = "\
A limit is a program of a few plain lines that does nothing but move the bytes: for small shared-memory messages a ring
each way with a mark; for copies a memcpy of a buffer that the other core has just written; for TCP plain non-blocking
sockets with the best of several settings. For one-sided operations it is a copy to or from a buffer that both map, the
kernel's system call on ordinary memory of the other process (process_vm_readv, process_vm_writev), or a locked
instruction on a word that both map; for atomic operations on ordinary memory, which only its owner can make, a round trip
of the ring; over TCP a round trip, the bytes one way and 8 the other. It runs in the same run as the row beside it. Rows more than 25 % above
their limit are marked.";

fn peers_table(peers: &peers::PeerRun) -> Table {
    let heads = ["transport", "operation", "size", "buffers", "peer", "percale", "peer's", "ratio", "aim", ""];
    let mut shown = markdown(&heads, 5);
    for row in &peers.rows {
        let mut cells = peers::show_comparison(row);
        if let Some(verdict) = cells.last_mut().filter(|verdict| verdict.as_str() == "LOSS") {
            *verdict = "**LOSS**".to_owned();
        }
        shown.add_row(cells);
    }
    shown
}

fn limits_table(perf: &Measured) -> Table {
    let heads =
        ["transport", "operation", "size", "buffers", "p50", "p99", "rate", "bandwidth", "limit p50", "ratio", ""];
    let mut shown = markdown(&heads, 4);
    for row in &perf.rows {
        let figure = |value: Option<f64>, in_its_unit: fn(f64) -> String| value.map_or("–".to_owned(), in_its_unit);
        let ratio = row.p50_ns.zip(row.limit_p50_ns).map(|(p50, limit)| p50 / limit);
        let dirty = if row.dirty { ", dirty" } else { "" };
        shown.add_row([
            row.transport.clone(),
            row.op.clone(),
            table::size(row.bytes),
            format!("{}{dirty}", if row.memory.is_empty() { "ordinary" } else { &row.memory }),
            figure(row.p50_ns, table::time),
            figure(row.p99_ns, table::time),
            figure(row.rate, table::rate),
            figure(row.bytes_per_s, table::bandwidth),
            figure(row.limit_p50_ns, table::time),
            ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            if ratio.is_some_and(|ratio| ratio > FAR) { "**far**" } else { "" }.to_owned(),
        ]);
    }
    shown
}

fn markdown(heads: &[&str], text: usize) -> Table {
    let mut shown = table::table(heads.iter().copied(), text);
    shown.load_style(presets::ASCII_MARKDOWN);
    shown
}

#[cfg(test)]
mod tests {
    use super::{Measured, document};
    use crate::peers::{Comparison, Op, PeerRun};
    use crate::perf::MeasuredRow;

    #[test]
    fn losses_are_printed() {
        let row = MeasuredRow {
            transport: "shm".into(),
            op: "tagged-latency".into(),
            bytes: 8,
            p50_ns: Some(300.0),
            p99_ns: Some(900.0),
            rate: None,
            bytes_per_s: None,
            limit_p50_ns: Some(150.0),
            memory: "percale".into(),
            dirty: true,
        };
        let perf = Measured { date: "2026-01-31".into(), commit: "0123".into(), rows: vec![row] };
        let loss = Comparison {
            transport: "shm".into(),
            op: Op::TaggedLatency,
            bytes: 8,
            peer: "UCX".into(),
            peer_figure: "p50".into(),
            variant: None,
            peer_value: Some(200.0),
            percale_value: Some(300.0),
            peer_rounds: vec![200.0],
            percale_rounds: vec![300.0],
            ratio: Some(1.5),
            aim: Some(0.7),
        };
        let (date, commit, problems) = ("2026-01-31".into(), "0123".into(), vec!["tcp: no loopback".into()]);
        let peers = PeerRun {
            date,
            commit,
            rounds: 1,
            busy: 0.5,
            versions: vec!["UCX 1.13".into()],
            rows: vec![loss],
            problems,
        };
        let text = document(&perf, &peers, None).unwrap();
        assert!(text.contains("| **LOSS** |") && text.contains("better in 1"), "{text}");
        assert!(text.contains("**far**") && text.contains(" 2.00 |"), "{text}");
        assert!(text.contains("up to 50 % of the machine"), "{text}");
        assert!(text.contains("Not measured: tcp: no loopback"), "{text}");
        assert!(text.contains("Not measured: `cargo xtask guest"), "{text}");
    }
}
