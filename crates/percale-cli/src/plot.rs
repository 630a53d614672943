//! Plots (SVG): panels of lines that show a value as a function of a size, with logarithmic axes. The plot of latencies
//! has a panel for each transport.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;

use crate::failure::{Failure, Result};
use crate::row::{MeasuredOperation, MessageMemory, Row, Transport};
use crate::units;

const PANEL: (u32, u32) = (640, 520);
const HEAD: u32 = 60;
const FONT: &str = "sans-serif";
pub(crate) const GREY: RGBColor = RGBColor(110, 110, 110);

pub(crate) const BLUE: RGBColor = RGBColor(31, 119, 180);
pub(crate) const ORANGE: RGBColor = RGBColor(214, 96, 20);
pub(crate) const GREEN: RGBColor = RGBColor(44, 140, 60);

/// One line of a panel.
#[derive(Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) color: RGBColor,
    /// Whether the line is dashed: a limit, which is grey, or the raw API beside the safe one.
    pub(crate) dashed: bool,
    /// The points: sizes in bytes (or other horizontal values), and the displayed values.
    pub(crate) points: Vec<(f64, f64)>,
}

/// The quantity on the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Across {
    /// Sizes in bytes.
    Sizes,
    /// Numbers of addresses.
    Addresses,
    /// Numbers of waiting operations.
    Queued,
}

impl Across {
    const fn name(self) -> &'static str {
        match self {
            Self::Sizes => "size",
            Self::Addresses => "addresses",
            Self::Queued => "queued",
        }
    }

    fn powers(self, values: impl Iterator<Item = f64>) -> Powers {
        match self {
            Self::Sizes => Powers::around(values, 8.0, |size| units::size(size.round() as usize)),
            Self::Addresses | Self::Queued => Powers::around(values, 10.0, |count| units::count(count.round() as u64)),
        }
    }
}

/// One coordinate system of a plot.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) across: Across,
    /// The title of the vertical axis.
    pub(crate) axis: &'static str,
    pub(crate) show: fn(f64) -> String,
    pub(crate) series: Vec<Series>,
}

/// Formats a time at a tick with few digits.
pub(crate) fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        t if t >= 0.9e9 => format!("{:.0} s", t / 1e9),
        t if t >= 0.9e6 => format!("{:.0} ms", t / 1e6),
        t if t >= 0.9e3 => format!("{:.0} µs", t / 1e3),
        t => format!("{t:.0} ns"),
    }
}

/// Draws panels side by side.
pub(crate) fn picture(title: &str, panels: &[Panel]) -> Result<String> {
    let mut picture = String::new();
    draw(&mut picture, title, panels).map_err(|error| Failure::System {
        what: "drawing the plot".into(),
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(picture)
}

/// Draws all latencies of the rows.
///
/// # Errors
/// Fails if there are none.
pub(crate) fn latencies(rows: &[Row]) -> Result<String> {
    let panel = |transport| {
        let title = match transport {
            Transport::Shm => "shared memory",
            Transport::Tcp => "TCP",
        };
        Panel { title, across: Across::Sizes, axis: "time", show: time, series: series(rows, transport) }
    };
    let panels: Vec<Panel> =
        [Transport::Shm, Transport::Tcp].map(panel).into_iter().filter(|panel| !panel.series.is_empty()).collect();
    if panels.is_empty() {
        return Err(Failure::Usage("there is no latency to plot".into()));
    }
    picture("Latency of a message, one way (p50, half a round trip)", &panels)
}

fn series(rows: &[Row], transport: Transport) -> Vec<Series> {
    let of = |op: MeasuredOperation| rows.iter().filter(move |row| row.transport == transport && row.op == op);
    let mut all = Vec::new();
    let mut add = |name: String, color, dashed, points: Vec<(f64, Option<f64>)>| {
        let mut points: Vec<(f64, f64)> = points.into_iter().filter_map(|(x, y)| Some((x, y?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.dedup_by(|a, b| a.0 == b.0);
        if !points.is_empty() {
            all.push(Series { name, color, dashed, points });
        }
    };
    let limit = |row: &Row| (row.bytes as f64, row.limit_p50_ns);
    let latencies = [
        (MeasuredOperation::TaggedLatency, "tagged", BLUE, RGBColor(148, 199, 232)),
        (MeasuredOperation::MessageLatency, "message", ORANGE, RGBColor(244, 178, 124)),
        (MeasuredOperation::PutLatency, "put", GREEN, RGBColor(152, 214, 160)),
    ];
    // If the raw API was measured beside the safe one, each line has another of the same color that is dashed.
    type Value = fn(&Row) -> Option<f64>;
    let apis: [(&str, bool, Value); 2] = [("", false, |row| row.p50_ns), (", raw", true, |row| row.raw_p50_ns)];
    for (op, name, color, light) in latencies {
        // If both kinds of memory were measured, each has its own line. Otherwise one line has all sizes.
        let both = of(op).any(|row| row.memory == MessageMemory::Percale)
            && of(op).any(|row| row.memory == MessageMemory::Ordinary);
        let first = of(op).filter(|row| row.memory == MessageMemory::Percale).map(|row| row.bytes).min().unwrap_or(0);
        for (api, dashed, value) in apis {
            let point = |row: &Row| (row.bytes as f64, value(row));
            if both {
                let percale = of(op).filter(|row| row.memory == MessageMemory::Percale || row.bytes < first);
                add(format!("percale, {name}{api}"), color, dashed, percale.map(point).collect());
                let ordinary = of(op).filter(|row| row.memory == MessageMemory::Ordinary && row.bytes >= first);
                add(format!("percale, {name}, ordinary memory{api}"), light, dashed, ordinary.map(point).collect());
            } else {
                add(format!("percale, {name}{api}"), color, dashed, of(op).map(point).collect());
            }
        }
    }
    // If several operations have the same size, the first limit is drawn.
    let limits = latencies.iter().flat_map(|&(op, ..)| of(op));
    add("limit of the machine".into(), GREY, true, limits.map(limit).collect());
    all
}

/// A logarithmic axis with a tick at each power of `base`, or at fewer powers if there would be more than about seven
/// ticks.
struct Powers {
    low: f64,
    high: f64,
    base: f64,
    show: fn(f64) -> String,
}

impl Powers {
    /// Makes an axis that extends from the power below the smallest value to the power above the largest.
    fn around(values: impl Iterator<Item = f64>, base: f64, show: fn(f64) -> String) -> Self {
        let (low, high) = values.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        let low = base.powf(low.log(base).floor());
        let high = base.powf(high.log(base).ceil()).max(low * base);
        Self { low, high, base, show }
    }
}

impl Ranged for Powers {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = (value / self.low).ln() / (self.high / self.low).ln();
        limit.0 + (f64::from(limit.1 - limit.0) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        let powers = (self.high / self.low).log(self.base).round() as i32;
        let step = (powers / 7 + 1).max(1);
        (0..=powers).step_by(step.cast_unsigned() as usize).map(|power| self.low * self.base.powi(power)).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Powers {
    fn format_ext(&self, value: &f64) -> String {
        (self.show)(*value)
    }
}

fn draw(picture: &mut String, title: &str, panels: &[Panel]) -> Result<(), Box<dyn std::error::Error>> {
    let width = PANEL.0 * panels.len() as u32;
    let area = SVGBackend::with_string(picture, (width, PANEL.1 + HEAD)).into_drawing_area();
    area.fill(&WHITE)?;
    let area = area.margin(10, 0, 0, 0);
    let area = area.titled(title, (FONT, 24))?;
    for (area, panel) in area.split_evenly((1, panels.len())).iter().zip(panels) {
        draw_panel(area, panel)?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    Panel { title, across, axis, show, series }: &Panel,
) -> Result<(), Box<dyn std::error::Error>>
where
    DB::ErrorType: 'static,
{
    let points = || series.iter().flat_map(|series| &series.points);
    let sizes = across.powers(points().map(|point| point.0));
    let values = Powers::around(points().map(|point| point.1), 10.0, *show);
    let mut chart = ChartBuilder::on(area)
        .caption(*title, (FONT, 18))
        .margin(14)
        .margin_right(32)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(sizes, values)?;
    chart
        .configure_mesh()
        .x_desc(across.name())
        .y_desc(*axis)
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 14))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    for Series { name, color, dashed, points } in series {
        let style = color.stroke_width(2);
        let entry = if *dashed {
            chart.draw_series(DashedLineSeries::new(points.iter().copied(), 6, 4, style))?
        } else {
            chart.draw_series(LineSeries::new(points.iter().copied(), style))?
        };
        let dash = if *dashed { 6 } else { 26 };
        entry.label(name).legend(move |(x, y)| DashedPathElement::new([(x, y), (x + 26, y)], dash, 4, style));
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .margin(12)
        .legend_area_size(34)
        .label_font((FONT, 13))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::row;

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for (transport, scale) in [(Transport::Shm, 150.0), (Transport::Tcp, 3000.0)] {
            for bytes in [8, 64, 512, 4096, 65536, 1 << 20] {
                let time = scale + bytes as f64 / 20.0;
                rows.push(row(transport, MeasuredOperation::TaggedLatency, bytes, time * 1.2, time));
                rows.push(row(transport, MeasuredOperation::MessageLatency, bytes, time * 1.1, time));
            }
            rows.push(row(transport, MeasuredOperation::Bandwidth, 1 << 20, 1e6, 1e6));
        }
        rows
    }

    #[test]
    fn plot_contains_every_series_and_axis_label() {
        let mut rows = rows();
        let mut own = row(Transport::Shm, MeasuredOperation::TaggedLatency, 65536, 2000.0, 1500.0);
        own.memory = MessageMemory::Percale;
        rows.push(own);
        let picture = latencies(&rows).unwrap();
        for text in [
            "<svg",
            "percale, tagged",
            "percale, message",
            "percale, tagged, ordinary memory",
            "percale, tagged, raw",
            "limit of the machine",
            "shared memory",
            "TCP",
            "size",
            "time",
            "1 µs",
            "64 B",
            "256 KiB",
        ] {
            assert!(picture.contains(text), "no {text}");
        }
        // There must be a circle for each point.
        let points: usize =
            [Transport::Shm, Transport::Tcp].iter().flat_map(|&t| series(&rows, t)).map(|s| s.points.len()).sum();
        assert_eq!(picture.matches("<circle").count(), points);
    }

    #[test]
    fn plot_draws_a_single_point_without_limit() {
        let mut only = row(Transport::Tcp, MeasuredOperation::MessageLatency, 8, 3000.0, 1.0);
        (only.limit_p50_ns, only.raw_p50_ns) = (None, None);
        assert_eq!(latencies(&[only]).unwrap().matches("<circle").count(), 1);
    }

    #[test]
    fn plot_without_latencies_is_an_error() {
        let rows = [row(Transport::Shm, MeasuredOperation::Bandwidth, 8, 1.0, 1.0)];
        assert!(matches!(latencies(&rows), Err(Failure::Usage(_))));
    }
}
