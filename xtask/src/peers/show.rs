//! Prints a run of comparisons on the terminal. The report uses the same cells and verdicts.

use super::cases::{Comparison, Op, Variant};
use super::{BUSY, PeerRun};
use crate::table;

/// Prints a run.
pub(super) fn run(run: &PeerRun) {
    let heads = ["transport", "operation", "size", "buffers", "peer", "percale", "peer's", "ratio", "aim", ""];
    let mut shown = table::table(heads, 5);
    for row in &run.rows {
        shown.add_row(comparison(row));
    }
    println!("{shown}");
    println!(
        "one way (get, fetch-add-alone, compare-swap: the operation); medians of {} rounds; ratio: percale's value divided by the peer's; percale: {}; {}",
        run.rounds,
        run.api_text(),
        run.versions.join(", ")
    );
    if run.busy > BUSY {
        println!("other programs used up to {:.0} % of the machine: measure again when it is idle", run.busy * 100.0);
    }
    for problem in &run.problems {
        println!("not measured: {problem}");
    }
}

/// Returns the cells of one row, from the transport to the verdict.
pub(crate) fn comparison(row: &Comparison) -> Vec<String> {
    let figure = |value: Option<f64>| value.map_or("–".to_owned(), |value| in_its_unit(row.op, value));
    let ratio = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2}"));
    let sign = if row.op.is_time() { "≤ " } else { "≥ " };
    let peer = if row.peer_figure == "mean" { format!("{} (mean)", row.peer) } else { row.peer.clone() };
    vec![
        row.transport.clone(),
        row.op.name().to_owned(),
        table::size(row.bytes),
        row.variant.map_or("", buffers).to_owned(),
        peer,
        figure(row.percale_value),
        figure(row.peer_value),
        ratio(row.ratio),
        row.aim.map_or(String::new(), |aim| format!("{sign}{aim:.2}")),
        verdict(row).to_owned(),
    ]
}

fn in_its_unit(op: Op, value: f64) -> String {
    match op {
        op if op.is_time() => table::time(value),
        Op::TaggedRate => table::rate(value),
        _ => table::bandwidth(value),
    }
}

fn buffers(variant: Variant) -> &'static str {
    match (variant.is_percales_memory, variant.is_dirty) {
        (true, false) => "percale's",
        (true, true) => "percale's, dirty",
        (false, false) => "ordinary",
        (false, true) => "ordinary, dirty",
    }
}

fn verdict(row: &Comparison) -> &'static str {
    match row {
        row if row.percale_value.is_none() || row.peer_value.is_none() => "not measured",
        row if row.is_loss() => "LOSS",
        row if row.is_short() => "target missed",
        _ => "",
    }
}
