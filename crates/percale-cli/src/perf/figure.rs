//! Results with their limits, formatted as JSON lines and as a table: the reports of `--triggers` and `--collectives`.

use std::path::Path;

use comfy_table::{Cell, Table};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::output::{print_line, progress_bar};
use crate::plot::{self, Across, Panel, Series};
use crate::statistics::Samples;
use crate::table::{RULED, left, right};
use crate::units;

/// The text of a cell without a value.
const NOTHING: &str = "–";

/// One result. Missing values are omitted from the JSON, and a column without any value is omitted from the table.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figure {
    /// The measured operation.
    pub(super) what: &'static str,
    /// The order of the thresholds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) thresholds: Option<&'static str>,
    /// The number of operations that waited at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) queued: Option<u64>,
    /// The number of participants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) processes: Option<usize>,
    /// The size of a message, or of a member's elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<usize>,
    /// The median time of one operation. `None` if it was not measured.
    pub(super) p50_ns: Option<f64>,
    /// The number of timed operations.
    pub(super) count: u64,
    /// The plain program that does the minimum work.
    pub(super) limit: Option<&'static str>,
    /// The median of the plain program.
    pub(super) limit_p50_ns: Option<f64>,
    /// percale's median divided by the limit's.
    pub(super) ratio: Option<f64>,
    /// The reason why the operation was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

impl Figure {
    /// Makes a result from samples of `each` operations each.
    pub(super) fn of(what: &'static str, samples: Samples, each: u64) -> Self {
        let summary = samples.summary();
        let count = summary.map_or(0, |summary| summary.count as u64 * each);
        Self { what, p50_ns: summary.map(|summary| summary.p50), count, ..Self::default() }
    }

    /// Adds the median of a plain program as the limit.
    pub(super) fn beside(mut self, limit: &'static str, limit_p50_ns: f64) -> Self {
        (self.limit, self.limit_p50_ns) = (Some(limit), Some(limit_p50_ns));
        self.ratio = self.p50_ns.map(|ours| ours / limit_p50_ns);
        self
    }
}

/// The results collected so far.
pub(super) struct FigureReport {
    json: bool,
    bar: ProgressBar,
    figures: Vec<Figure>,
}

impl FigureReport {
    /// Makes an empty report, for a number of steps.
    pub(super) fn new(json: bool, steps: usize) -> Result<Self> {
        Ok(Self { json, bar: progress_bar(steps as u64)?, figures: Vec::new() })
    }

    /// Shows what is being measured.
    pub(super) fn begin(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
        self.bar.tick();
    }

    /// Adds results. For JSON output, prints them immediately.
    pub(super) fn add(&mut self, figures: impl IntoIterator<Item = Figure>) -> Result<()> {
        for figure in figures {
            if self.json {
                print_line(&serde_json::to_string(&figure).map_err(Failure::system("writing JSON"))?)?;
            }
            self.figures.push(figure);
        }
        self.bar.inc(1);
        Ok(())
    }

    /// Prints the table with the notes about it, unless the output is JSON.
    pub(super) fn end(self, notes: &str) -> Result<Vec<Figure>> {
        self.bar.finish_and_clear();
        if !self.json {
            print_line(&format!("{}\n{notes}", table(&self.figures)))?;
            for (figure, why) in self.figures.iter().filter_map(|figure| Some((figure, figure.reason.as_ref()?))) {
                print_line(&format!("not measured: {}: {why}", figure.what))?;
            }
        }
        Ok(self.figures)
    }
}

/// A column that only some results have.
type Column = (&'static str, fn(&Figure) -> Option<Cell>);

const COLUMNS: [Column; 4] = [
    ("thresholds", |figure| figure.thresholds.map(left)),
    ("queued", |figure| figure.queued.map(|queued| right(units::count(queued)))),
    ("processes", |figure| figure.processes.map(right)),
    ("size", |figure| figure.bytes.map(|bytes| right(units::size(bytes)))),
];

fn table(figures: &[Figure]) -> Table {
    let columns: Vec<_> = COLUMNS.iter().filter(|(_, of)| figures.iter().any(|figure| of(figure).is_some())).collect();
    let mut table = Table::new();
    table.load_style(RULED);
    let head = columns.iter().map(|(name, _)| if *name == "thresholds" { left(name) } else { right(name) });
    let rest = [right("p50"), right("timed"), right("limit"), left("kind of limit"), right("ratio")];
    table.set_header(std::iter::once(left("what")).chain(head).chain(rest));
    let time = |time: Option<f64>| right(time.map_or_else(|| NOTHING.into(), units::time));
    for figure in figures {
        let own = columns.iter().map(|(_, of)| of(figure).unwrap_or_else(|| left("")));
        let rest = [
            time(figure.p50_ns),
            right(units::count(figure.count)),
            time(figure.limit_p50_ns),
            left(figure.limit.unwrap_or_default()),
            right(figure.ratio.map_or_else(|| NOTHING.into(), |ratio| format!("{ratio:.2}"))),
        ];
        table.add_row(std::iter::once(left(figure.what)).chain(own).chain(rest));
    }
    table
}

/// Makes a panel with the times of these results. `place` returns the horizontal position of a result.
pub(super) fn panel(
    title: &'static str,
    across: Across,
    figures: &[&Figure],
    place: fn(&Figure) -> Option<f64>,
) -> Panel {
    let mut series: Vec<Series> = Vec::new();
    let colors = [plot::BLUE, plot::ORANGE, plot::GREEN];
    for figure in figures {
        let names =
            [(figure.what, figure.p50_ns, false), (figure.limit.unwrap_or_default(), figure.limit_p50_ns, true)];
        for (name, value, limit) in names {
            let Some(point) = place(figure).zip(value) else { continue };
            let at = series.iter().position(|series| series.name == name).unwrap_or_else(|| {
                let drawn = series.iter().filter(|series| !series.dashed).count();
                let color = if limit { plot::GREY } else { colors[drawn % colors.len()] };
                series.push(Series { name: name.into(), color, dashed: limit, points: Vec::new() });
                series.len() - 1
            });
            // Several results may have the same limit.
            if series[at].points.iter().all(|there| there.0 != point.0) {
                series[at].points.push(point);
            }
        }
    }
    series.iter_mut().for_each(|series| series.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    Panel { title, across, axis: "time", show: plot::time, series }
}

/// Writes a plot, if one was requested.
pub(super) fn draw(file: Option<&Path>, title: &str, panels: &[Panel]) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let picture = plot::picture(title, panels)?;
    std::fs::write(file, picture).map_err(Failure::system(format!("writing {}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(what: &'static str, bytes: usize, ns: f64) -> Figure {
        let samples: Samples = [ns, ns, 2.0 * ns].into_iter().collect();
        Figure { bytes: Some(bytes), ..Figure::of(what, samples, 10) }.beside("a copy", 100.0)
    }

    #[test]
    fn figure_table_omits_empty_columns() {
        let missing = Figure { what: "a store", reason: Some("no device".into()), ..Figure::default() };
        let text = table(&[figure("a sum", 1 << 20, 150.0), missing.clone()]).to_string();
        for part in ["a sum", "1 MiB", "150 ns", "30", "100 ns", "a copy", "1.50", "a store", NOTHING] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        assert!(!text.contains("queued") && !text.contains("thresholds"), "{text}");
        let json = serde_json::to_string(&missing).unwrap();
        assert!(json.contains(r#""reason":"no device""#) && json.contains(r#""p50_ns":null"#), "{json}");
        assert!(!json.contains("queued"), "{json}");
    }

    #[test]
    fn a_panel_has_a_line_for_each_name_and_one_for_the_limit() {
        let all = [figure("a", 8, 150.0), figure("b", 8, 160.0), figure("a", 64, 170.0)];
        let all: Vec<&Figure> = all.iter().collect();
        let panel = panel("both", Across::Sizes, &all, |figure| figure.bytes.map(|bytes| bytes as f64));
        let of: Vec<_> =
            panel.series.iter().map(|series| (&*series.name, series.dashed, series.points.len())).collect();
        assert_eq!(of, [("a", false, 2), ("a copy", true, 2), ("b", false, 1)]);
    }
}
