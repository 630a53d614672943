//! Tables on the terminal and in documents, and the formatting of numbers in them.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Creates an empty table with these column titles. The first `text` columns contain text. The others contain numbers,
/// which are aligned to the right.
pub(crate) fn table<S: Into<String>>(heads: impl IntoIterator<Item = S>, text: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heads.into_iter().map(Into::into).collect::<Vec<String>>());
    for column in table.column_iter_mut().skip(text) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Formats a time: in nanoseconds below 10 µs, otherwise in microseconds.
pub(crate) fn time(ns: f64) -> String {
    if ns < 10_000.0 { format!("{ns:.0} ns") } else { format!("{:.1} µs", ns / 1e3) }
}

/// Formats a rate in events per second.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second < 1e6 { format!("{:.0} k/s", per_second / 1e3) } else { format!("{:.2} M/s", per_second / 1e6) }
}

/// Formats a bandwidth in bytes per second.
pub(crate) fn bandwidth(per_second: f64) -> String {
    format!("{:.2} GB/s", per_second / 1e9)
}

/// Formats the size of a message.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn figures_carry_their_unit() {
        assert_eq!(super::size(8), "8 B");
        assert_eq!(super::size(65536), "64 KiB");
        assert_eq!(super::size(1 << 20), "1 MiB");
        assert_eq!(super::time(152.4), "152 ns");
        assert_eq!(super::time(18_400.0), "18.4 µs");
        assert_eq!(super::rate(640e3), "640 k/s");
    }
}
