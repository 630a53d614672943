//! Results as tables.

use comfy_table::{Cell, CellAlignment, LineStyle, Table, TableStyle};

use crate::row::{Api, MeasuredOperation, Pattern, Row};
use crate::units;

/// The text of a cell without a value.
const NOTHING: &str = "–";

/// A table style with a line below the header and no other lines.
pub(crate) const RULED: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Formats the rows of `percale perf`. The limits are explained below the table.
pub(crate) fn perf(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(RULED);
    let both = rows.iter().any(|row| row.raw_p50_ns.is_some());
    let mut head = vec!["", "operation", "size", "memory", "p50", "p99", "rate", "bandwidth"];
    if both {
        head.extend(["raw p50", "raw p99", "to raw"]);
    }
    head.extend(["limit", "ratio"]);
    let is_left = |text: &str| matches!(text, "" | "operation" | "memory");
    table.set_header(head.into_iter().map(|text| if is_left(text) { left(text) } else { right(text) }));
    let ratio = |ratio: f64| format!("{ratio:.2}");
    for row in rows {
        let mut cells = vec![
            left(row.transport.name()),
            left(row.op.name()),
            right(units::size(row.bytes)),
            left(if row.dirty { format!("{}, dirty", row.memory.name()) } else { row.memory.name().into() }),
            right(shown(row.p50_ns, units::time)),
            right(shown(row.p99_ns, units::time)),
            right(shown(row.rate, units::rate)),
            right(shown(row.bytes_per_s, units::bandwidth)),
        ];
        if both {
            cells.push(right(shown(row.raw_p50_ns, units::time)));
            cells.push(right(shown(row.raw_p99_ns, units::time)));
            cells.push(right(shown(row.raw_ratio, ratio)));
        }
        cells.push(right(shown(row.limit_p50_ns, units::time)));
        cells.push(right(shown(row.ratio, ratio)));
        table.add_row(cells);
    }
    format!("{table}\n{}", notes(rows))
}

fn notes(rows: &[Row]) -> String {
    let mut text =
        String::from("p50, p99: half a round trip; for tagged-rate and bandwidth: time per message of a round.");
    let has = |wanted: &dyn Fn(&Row) -> bool| rows.iter().any(wanted);
    if has(&|row| row.op.pattern() == Pattern::Access) {
        text.push_str(
            "\n  put, get, fetch-add, fetch-add-alone, compare-swap: one operation until it has completed (below 4 KiB: 1/32 of 32 successive ones).",
        );
    }
    text.push_str(match rows.first().and_then(|row| row.api) {
        Some(Api::Safe) if has(&|row| row.raw_p50_ns.is_some()) => {
            "\n  They are those of the safe API. raw: the raw API (`unsafe` calls) in the same run; to raw: ratio of the p50s."
        }
        Some(Api::Safe) => "\n  They are those of the safe API.",
        Some(Api::Raw) => "\n  They are those of the raw API (`unsafe` calls).",
        None => "",
    });
    if has(&|row| row.op == MeasuredOperation::FetchAdd) {
        text.push_str("\n  fetch-add: while the other side also adds to the word, for percale and for the limit.");
    }
    text.push_str("\nlimit: p50 of a plain program in the same run.");
    let about = [
        ("ring", "lines of a ring in shared memory, 8 bytes and a mark each (longer messages: a copy in, a copy out)"),
        ("copy", "one processor copies a buffer that the other has written, or will read"),
        ("kernel", "one system call copies from or to the other process (process_vm_readv, process_vm_writev)"),
        ("word", "one locked instruction on a word in shared memory"),
        ("sockets", "plain non-blocking sockets; the best of the write sizes, buffer sizes and calls:"),
    ];
    for (name, what) in about {
        if has(&|row| row.limit.as_deref().is_some_and(|limit| limit.starts_with(name))) {
            text.push_str(&format!("\n  {name}: {what}"));
        }
    }
    if has(&|row| is_round_trip(row)) {
        text.push_str("\n  With ring and sockets, put, get, fetch-add and compare-swap take a whole round trip.");
    }
    let mut settings: Vec<(usize, Pattern, &str)> = Vec::new();
    for row in rows {
        if let Some((_, setting)) = row.limit.as_deref().and_then(|limit| limit.split_once(": ")) {
            settings.push((row.bytes, row.op.pattern(), setting));
        }
    }
    settings.sort_unstable();
    settings.dedup();
    for (bytes, pattern, setting) in settings {
        let how = match pattern {
            Pattern::PingPong => "",
            Pattern::Stream => " one way",
            Pattern::Access => " and an answer",
        };
        text.push_str(&format!("\n    {}{how}: {setting}", units::size(bytes)));
    }
    let verified: u64 = rows.iter().map(|row| row.verified).sum();
    text.push_str(&match verified {
        0 => "\nThe data was not checked.".into(),
        _ => format!("\nEvery byte of {verified} messages and the ends of all others were checked."),
    });
    text
}

/// Returns whether the row is an access, and its limit a request and an answer.
fn is_round_trip(row: &Row) -> bool {
    let goes_there = |limit: &str| limit.starts_with("ring") || limit.starts_with("sockets");
    row.op.pattern() == Pattern::Access && row.limit.as_deref().is_some_and(goes_there)
}

fn shown(number: Option<f64>, show: impl Fn(f64) -> String) -> String {
    number.map_or_else(|| NOTHING.into(), show)
}

pub(crate) fn left(text: impl ToString) -> Cell {
    Cell::new(text)
}

pub(crate) fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Transport;
    use crate::row::tests::row;

    #[test]
    fn a_row_is_shown_with_its_units_and_its_limit() {
        let mut tcp = row(Transport::Tcp, MeasuredOperation::Bandwidth, 1 << 20, 250_000.0, 200_000.0);
        tcp.limit = Some("sockets: writes 256 KiB".into());
        let mut alone = row(Transport::Shm, MeasuredOperation::TaggedRate, 8, 20.0, 16.0);
        (alone.limit, alone.limit_p50_ns, alone.ratio) = (None, None, None);
        let text = perf(&[row(Transport::Shm, MeasuredOperation::TaggedLatency, 8, 165.0, 150.0), tcp, alone]);
        for part in [
            "tagged-latency",
            "8 B",
            "165 ns",
            "150 ns",
            "1.10",
            "1 MiB",
            "250 µs",
            "4.19 GB/s",
            "1.25",
            NOTHING,
            "1 MiB one way: writes 256 KiB",
            "ring: lines",
            "50.0 M/s",
            "192 messages",
            "raw p50",
            "129 ns",
            "1.28",
            "the raw API (`unsafe` calls) in the same run",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        assert!(!text.contains("copy: ") && !text.contains("1/32 of"), "{text}");
    }

    #[test]
    fn one_api_has_no_columns_of_the_other() {
        for (api, name) in [(Api::Safe, "the safe API."), (Api::Raw, "the raw API (`unsafe` calls).")] {
            let mut row = row(Transport::Shm, MeasuredOperation::TaggedLatency, 8, 165.0, 150.0);
            (row.api, row.raw_p50_ns, row.raw_p99_ns, row.raw_ratio) = (Some(api), None, None, None);
            let text = perf(&[row]);
            assert!(text.contains(name) && !text.contains("raw p50") && !text.contains("to raw"), "{text}");
        }
    }

    #[test]
    fn accesses_are_explained_with_their_limits() {
        let with = |op, limit: &str| Row { limit: Some(limit.into()), ..row(Transport::Shm, op, 8, 60.0, 40.0) };
        let text = perf(&[with(MeasuredOperation::Put, "kernel"), with(MeasuredOperation::FetchAdd, "word")]);
        for part in ["fetch-add", "1/32 of", "also adds to the word", "kernel: one system call", "word: one locked"] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        assert!(!text.contains("whole round trip"), "{text}");
        let text = perf(&[with(MeasuredOperation::Get, "sockets: writes whole")]);
        assert!(text.contains("whole round trip") && text.contains("8 B and an answer: writes whole"), "{text}");
    }
}
