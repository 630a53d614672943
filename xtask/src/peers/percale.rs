//! Measures percale with `percale perf`.

use super::cases::{Op, PeerCase, Variant};
use crate::failure::{Failure, Outcome};
use crate::perf::Perf;
use std::time::Duration;

/// The measuring time, which is approximately that of the peers' programs.
const SECONDS: &str = "0.5";

/// The API of percale's program: the one that the manual shows.
pub(super) const API: &str = "safe";

/// The time limit of a case. All cases take less.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns the p50 of the one-way latency in nanoseconds, messages per second, or bytes per second.
pub(super) fn measure(perf: &Perf, case: &PeerCase, variant: Variant) -> Outcome<f64> {
    let bytes = case.bytes.to_string();
    if case.op == Op::Allreduce {
        let rows = perf.collectives(&["--size", &bytes, "--seconds", SECONDS], LIMIT)?;
        let row = rows.iter().find(|row| row.what == case.op.name() && row.bytes == Some(case.bytes));
        return row.and_then(|row| row.p50_ns).ok_or_else(|| Failure::new("percale perf measured no allreduce"));
    }
    let memory = if variant.is_percales_memory { "percale" } else { "ordinary" };
    let mut arguments = vec!["--api", API, "--transport", case.transport, "--op", case.op.name(), "--size", &bytes];
    // The peers' programs do not verify data either.
    arguments.extend(["--memory", memory, "--seconds", SECONDS, "--no-verify"]);
    if variant.is_dirty {
        arguments.push("--dirty");
    }
    let rows = perf.run(&arguments, LIMIT)?;
    let is_it = |row: &&crate::perf::MeasuredRow| {
        row.api.as_deref() == Some(API)
            && row.transport == case.transport
            && row.op == case.op.name()
            && row.bytes == case.bytes
            && row.dirty == variant.is_dirty
            && row.memory == memory
    };
    let row =
        rows.iter().find(is_it).ok_or_else(|| Failure::new("percale perf did not print the requested measurement"))?;
    if let Some(why) = row.nonsense() {
        return Err(Failure::new(format!("percale perf: {why}")));
    }
    let figure = match case.op {
        op if op.is_time() => row.p50_ns,
        Op::TaggedRate => row.rate,
        _ => row.bytes_per_s,
    };
    figure.ok_or_else(|| Failure::new(format!("percale perf printed no figure for {}", case.op.name())))
}
