//! Parses the last output line of the program of the walk.

use std::fmt;
use std::str::FromStr;

/// The counts and findings of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WalkFindings {
    pub(super) calls: usize,
    /// The number of table entries, and the entries that were never called.
    pub(super) entries: usize,
    pub(super) missed: usize,
    /// The number of processes that exited successfully.
    pub(super) cases: usize,
    /// The number of orders in which a scenario's objects were closed.
    pub(super) orders: usize,
    pub(super) levels: usize,
    pub(super) versions: usize,
    /// The number of cases that were ended by a sanitizer, returned a wrong result, crashed or hung.
    pub(super) reports: usize,
}

impl WalkFindings {
    /// Adds the findings of a run with another libfabric.
    pub(super) fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.entries = self.entries.max(other.entries);
        self.missed += other.missed;
        self.cases += other.cases;
        self.orders += other.orders;
        self.levels = self.levels.max(other.levels);
        // The versions of the newer libfabric include those of the older one.
        self.versions = self.versions.max(other.versions);
        self.reports += other.reports;
    }
}

impl fmt::Display for WalkFindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, entries, missed, orders, levels, versions, reports, .. } = self;
        let called = entries.saturating_sub(*missed);
        write!(
            f,
            "{calls} calls of {called} of {entries} entries, {orders} close orders, {levels} levels, {versions} versions, {reports} reports"
        )
    }
}

impl FromStr for WalkFindings {
    type Err = ();

    /// Parses `walk: ..., N calls, N entries, ...`.
    fn from_str(line: &str) -> Result<Self, ()> {
        let words: Vec<&str> = line.strip_prefix("walk: ").ok_or(())?.split(", ").collect();
        let number = |name: &str| {
            let of = |word: &&str| word.strip_suffix(name)?.trim_end().parse().ok();
            words.iter().find_map(of).ok_or(())
        };
        Ok(Self {
            calls: number("calls")?,
            entries: number("entries")?,
            missed: number("never called")?,
            cases: number("cases")?,
            orders: number("orders")?,
            levels: number("levels")?,
            versions: number("versions")?,
            reports: number("reports")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::WalkFindings;

    const LINE: &str = "walk: sanitized yes, 3064 calls, 679 entries, 2 never called, 10 cases, 80 orders, 900 closings, 300 refused, \
                        6 levels, 18 versions, 1 reports";

    #[test]
    fn the_last_line_is_read() {
        let found: WalkFindings = LINE.parse().unwrap();
        assert_eq!((found.calls, found.entries, found.missed, found.cases), (3064, 679, 2, 10));
        assert_eq!((found.orders, found.levels, found.versions, found.reports), (80, 6, 18, 1));
        assert!("walk: nothing".parse::<WalkFindings>().is_err() && "REPORT  alias".parse::<WalkFindings>().is_err());
    }

    #[test]
    fn findings_of_two_libfabrics_are_added() {
        let mut both: WalkFindings = LINE.parse().unwrap();
        both.add(LINE.replace("18 versions", "29 versions").parse().unwrap());
        assert_eq!((both.calls, both.entries, both.orders, both.versions, both.reports), (6128, 679, 160, 29, 2));
    }
}
