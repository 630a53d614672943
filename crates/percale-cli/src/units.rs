//! Formats numbers, and parses sizes.

/// The maximum length of a message that the command measures.
pub(crate) const LONGEST: usize = 64 << 20;

/// Parses a size: `8`, `4K`, `1M` (binary multiples).
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    let size = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(factor));
    match size {
        Some(size) if (1..=LONGEST).contains(&size) => Ok(size),
        _ => Err("a size is a number of bytes from 1 to 64M, such as 8, 4K or 1M".into()),
    }
}

/// Formats a size: `8 B`, `4 KiB`, `1 MiB`.
pub(crate) fn size(bytes: usize) -> String {
    if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) {
        format!("{} MiB", bytes >> 20)
    } else if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) {
        format!("{} KiB", bytes >> 10)
    } else {
        format!("{bytes} B")
    }
}

/// Formats a number with thousands separators: `1,048,576`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time: `152 ns`, `3.05 µs`, `1.20 ms`.
pub(crate) fn time(nanoseconds: f64) -> String {
    scaled(nanoseconds, &["ns", "µs", "ms", "s"])
}

/// Formats a rate of messages: `18.7 M/s`.
pub(crate) fn rate(per_second: f64) -> String {
    scaled(per_second, &["/s", "k/s", "M/s", "G/s"])
}

/// Formats a bandwidth: `5.20 GB/s` (decimal multiples, as is usual for memory and networks).
pub(crate) fn bandwidth(bytes_per_second: f64) -> String {
    scaled(bytes_per_second, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

/// Formats a number with three significant digits and a suitable unit.
fn scaled(mut number: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // 999.5 would be printed as 1000.
    while number >= 999.5 && unit + 1 < units.len() {
        number /= 1000.0;
        unit += 1;
    }
    let decimals = match number {
        n if n >= 99.95 => 0,
        n if n >= 9.995 => 1,
        _ => 2,
    };
    format!("{number:.decimals$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [("8", 8), ("512", 512), ("4K", 4096), ("64k", 65536), ("1M", 1 << 20)] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for text in ["", "0", "K", "-1", "1.5K", "65M", "1G", "99999999999999999999M", "ü"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(size(8), "8 B");
        assert_eq!(size(1000), "1000 B");
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(1 << 20), "1 MiB");
        assert_eq!(size(1536 << 10), "1536 KiB");
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(time(152.4), "152 ns");
        assert_eq!(time(3.049), "3.05 ns");
        assert_eq!(time(999.7), "1.00 µs");
        assert_eq!(time(34_000.0), "34.0 µs");
        assert_eq!(rate(18.7e6), "18.7 M/s");
        assert_eq!(bandwidth(5.2e9), "5.20 GB/s");
        assert_eq!(bandwidth(2e15), "2000 TB/s");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1,000");
        assert_eq!(count(1_048_576), "1,048,576");
    }
}
