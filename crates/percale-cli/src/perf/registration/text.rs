//! Formats the lines as tables.

use comfy_table::{Cell, Table};

use super::lines::{Figures, RegistrationLine, Work, WorkingProcess};
use crate::table::{RULED, left, right};
use crate::units;

/// A table: its title, its column titles, a function that returns the cells of a line of the table, and a note.
type Shown = (&'static str, &'static [&'static str], fn(&RegistrationLine) -> Option<Vec<Cell>>, &'static str);

/// Formats all tables that have lines, one below the other.
pub(super) fn text(lines: &[RegistrationLine]) -> String {
    let tables: [Shown; 6] = [
        (
            "Transfers",
            &[
                "monitor",
                "size",
                "in advance",
                "each time",
                "cached",
                "p99",
                "p99",
                "p99",
                "bandwidth",
                "bandwidth",
                "bandwidth",
                "each/adv",
                "cached/adv",
            ],
            transfer,
            "Into memory that was registered in advance, that is registered and deregistered for each transfer, and that is\n\
             looked up in the cache: p50, p99 and bandwidth (of the p50) of each, and the ratios of the p50s.",
        ),
        (
            "Registrations",
            &["monitor", "size", "register", "missed", "p99", "p99", "ratio", "and deregister", "watched", "ratio"],
            registration,
            "Registration by the device alone, and by a look-up that misses. Registration and deregistration by the device alone,\n\
             and by the cache's functions for explicit registration.",
        ),
        (
            "Fresh memory in each iteration",
            &["monitor", "size", "deregistered", "p50", "p99", "ratio"],
            change,
            "Mapped, filled, registered, received into, unmapped. Deregistered explicitly, by a check for changes, or by a thread\n\
             that waits for changes.",
        ),
        (
            "Hits",
            &["monitor", "entries", "threads", "a hit", "slow", "its ioctl", "ratio"],
            hit,
            "Random look-ups, including the end of each use. Slow look-ups took the lock. The ioctl is the query of a hit alone,\n\
             in one thread and in the same number of threads.",
        ),
        (
            "Misses and changes, without pinning",
            &["monitor", "", "each", "a query"],
            piece,
            "The miss with the monitor imported is the overhead of the cache itself. A query is one PROCMAP_QUERY,\n\
             made once for a mapping until it changes.",
        ),
        (
            "System calls that do not involve registrations",
            &["monitor", "process", "what", "without", "with", "ratio"],
            other,
            "getppid, and mmap and munmap of 16 pages, without the monitor and with it: in a process with a cache, and in another.\n\
             Records alone: the cost of bpf on kernels that free page tables late and need no report of when a call begins.",
        ),
    ];
    let mut parts = Vec::new();
    for line in lines {
        if let RegistrationLine::Monitor { monitor, available: false, reason } = line {
            parts.push(format!("{monitor} is not available here: {reason}"));
        }
    }
    for (title, head, row, notes) in tables {
        let mut table = Table::new();
        table.load_style(RULED);
        let is_left = |text: &str| matches!(text, "monitor" | "" | "process" | "pages" | "deregistered");
        table.set_header(head.iter().map(|text| if is_left(text) { left(text) } else { right(text) }));
        let rows: Vec<_> = lines.iter().filter_map(row).collect();
        if !rows.is_empty() {
            rows.into_iter().for_each(|row| {
                table.add_row(row);
            });
            parts.push(format!("{title}\n{table}\n{notes}"));
        }
    }
    parts.join("\n\n")
}

fn transfer(line: &RegistrationLine) -> Option<Vec<Cell>> {
    let RegistrationLine::Transfer {
        monitor, bytes, in_advance, each_time, cached, each_time_ratio, cached_ratio, ..
    } = line
    else {
        return None;
    };
    let sides = [in_advance, each_time, cached];
    let mut cells = vec![left(monitor), right(units::size(*bytes))];
    cells.extend(sides.map(p50));
    cells.extend(sides.map(p99));
    cells.extend(sides.map(|side| right(units::bandwidth(*bytes as f64 * 1e9 / side.p50_ns))));
    cells.extend([ratio(*each_time_ratio), ratio(*cached_ratio)]);
    Some(cells)
}

fn registration(line: &RegistrationLine) -> Option<Vec<Cell>> {
    let RegistrationLine::Registration {
        monitor,
        bytes,
        plain,
        missed,
        ratio: once,
        plain_and_back,
        watched_and_back,
        and_back_ratio,
    } = line
    else {
        return None;
    };
    let mut cells = vec![left(monitor), right(units::size(*bytes)), p50(plain), p50(missed), p99(plain), p99(missed)];
    cells.extend([ratio(*once), p50(plain_and_back), p50(watched_and_back), ratio(*and_back_ratio)]);
    Some(cells)
}

fn change(line: &RegistrationLine) -> Option<Vec<Cell>> {
    let RegistrationLine::Change { monitor, bytes, way, figures, ratio: times } = line else { return None };
    let cells =
        [left(monitor), right(units::size(*bytes)), left(way.name()), p50(figures), p99(figures), ratio(*times)];
    Some(cells.into())
}

fn hit(line: &RegistrationLine) -> Option<Vec<Cell>> {
    let RegistrationLine::Hit { monitor, entries, threads, ns, slow, ioctl_ns } = line else { return None };
    let shown = |number: Option<Cell>| number.unwrap_or_else(|| right("–"));
    Some(vec![
        left(monitor),
        right(units::count((*entries).into())),
        right(threads),
        right(units::time(*ns)),
        right(format!("{:.1} %", slow * 100.0)),
        shown(ioctl_ns.map(|ioctl| right(units::time(ioctl)))),
        shown(ioctl_ns.map(|ioctl| ratio(ns / ioctl))),
    ])
}

fn piece(line: &RegistrationLine) -> Option<Vec<Cell>> {
    match line {
        RegistrationLine::Miss { monitor, ns, query_ns } => {
            Some(vec![left(monitor), left("a miss"), right(units::time(*ns)), right(units::time(*query_ns))])
        }
        RegistrationLine::Invalidation { monitor, entries, ns_each } => {
            let what = format!("a change of {} registrations", units::count((*entries).into()));
            Some(vec![left(monitor), left(what), right(units::time(*ns_each)), right("–")])
        }
        _ => None,
    }
}

fn other(line: &RegistrationLine) -> Option<Vec<Cell>> {
    let (alone, monitor, process, work, without, with, times) = match line {
        RegistrationLine::Other { monitor, process, work, without, with, ratio } => {
            ("", monitor, process, work, without, with, ratio)
        }
        RegistrationLine::RecordsAlone { monitor, process, work, without, with, ratio } => {
            (", records alone", monitor, process, work, without, with, ratio)
        }
        _ => return None,
    };
    let process = match process {
        WorkingProcess::Client => "client",
        WorkingProcess::Other => "other",
    };
    let work = match work {
        Work::Call => "a system call",
        Work::Mapping => "mmap and munmap",
        Work::FilledMapping => "mmap and munmap, filled",
    };
    Some(vec![left(format!("{monitor}{alone}")), left(process), left(work), p50(without), p50(with), ratio(*times)])
}

fn p50(figures: &Figures) -> Cell {
    right(units::time(figures.p50_ns))
}

fn p99(figures: &Figures) -> Cell {
    right(units::time(figures.p99_ns))
}

/// Formats a ratio with three decimals, because two are not enough for differences of 2 %.
fn ratio(ratio: f64) -> Cell {
    right(format!("{ratio:.3}"))
}

#[cfg(test)]
mod tests {
    use super::super::lines::DeregistrationMethod;
    use super::super::lines::tests::{figures, transfer};
    use super::*;

    #[test]
    fn every_line_has_its_table_and_no_table_is_empty() {
        let (monitor, bytes) = (String::from("bpf"), 4096);
        let (without, with) = (figures(1600.0), figures(1760.0));
        let lines = [
            RegistrationLine::Monitor { monitor: "sealed".into(), available: false, reason: "no mseal".into() },
            transfer("bpf", bytes, 1000.0, 1500.0, 1010.0),
            RegistrationLine::Change {
                monitor: monitor.clone(),
                bytes,
                way: DeregistrationMethod::Thread,
                figures: with,
                ratio: 0.987,
            },
            RegistrationLine::Hit {
                monitor: monitor.clone(),
                entries: 65_536,
                threads: 2,
                ns: 136.0,
                slow: 0.001,
                ioctl_ns: Some(130.0),
            },
            RegistrationLine::Miss { monitor: monitor.clone(), ns: 240.0, query_ns: 230.0 },
            RegistrationLine::Invalidation { monitor: monitor.clone(), entries: 1000, ns_each: 41.0 },
            RegistrationLine::Other {
                monitor,
                process: WorkingProcess::Other,
                work: Work::FilledMapping,
                without,
                with,
                ratio: 1.1,
            },
        ];
        let text = text(&lines);
        for part in [
            "sealed is not available here: no mseal",
            "1.500",
            "1.010",
            "4.06 GB/s",
            "0.987",
            "65,536",
            "1.046",
            "a change of 1,000 registrations",
            "1.76 µs",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        assert!(!text.contains("Registrations\n"), "{text}");
    }
}
