//! Runs `percale perf`, which prints one JSON object per row on standard output.

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::Program;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// One measured row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredRow {
    pub(crate) transport: String,
    pub(crate) op: String,
    pub(crate) bytes: u64,
    /// The one-way latency in nanoseconds. Rates may not have one.
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    /// Messages per second.
    pub(crate) rate: Option<f64>,
    pub(crate) bytes_per_s: Option<f64>,
    /// The latency of a plain program on this machine in the same run.
    pub(crate) limit_p50_ns: Option<f64>,
    /// "percale" (allocated by the library) or "ordinary".
    #[serde(default)]
    pub(crate) memory: String,
    /// Whether the source was written before each send.
    #[serde(default)]
    pub(crate) dirty: bool,
    /// The API of percale that the values without a prefix are for: "safe" or "raw". Rows of older versions, which
    /// measured only the raw one, do not have it.
    pub(crate) api: Option<String>,
    /// The raw API in the same run, if both were measured.
    pub(crate) raw_p50_ns: Option<f64>,
    pub(crate) raw_p99_ns: Option<f64>,
    /// `p50_ns / raw_p50_ns`.
    pub(crate) raw_ratio: Option<f64>,
}

/// Returns the name of an API in texts. `None`: a run of an older version.
pub(crate) fn api(name: Option<&str>) -> &'static str {
    if name == Some("safe") { "the safe API" } else { "the raw API (`unsafe` calls)" }
}

/// One measured row of `--collectives`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Collective {
    pub(crate) what: String,
    /// The size of a member's elements in bytes. A barrier has none.
    pub(crate) bytes: Option<u64>,
    /// The time of one collective in nanoseconds.
    pub(crate) p50_ns: Option<f64>,
}

/// The built command.
pub(crate) struct Perf(PathBuf);

impl Perf {
    /// Builds the command with optimizations.
    pub(crate) fn build(place: &Repository) -> Outcome<Self> {
        place.cargo().args(["build", "--release", "--quiet", "-p", "percale-cli"]).passed()?;
        Ok(Self(place.target.join("release").join("percale")))
    }

    /// Takes the command as it was built for the tests. Its figures mean little.
    pub(crate) fn tested(place: &Repository) -> Outcome<Self> {
        Ok(Self(place.tested()?.join("percale")))
    }

    /// Runs `percale perf --json` with additional arguments.
    pub(crate) fn run(&self, arguments: &[&str], limit: Duration) -> Outcome<Vec<MeasuredRow>> {
        self.rows(arguments, limit)
    }

    /// Runs `percale perf --json --collectives` with additional arguments.
    pub(crate) fn collectives(&self, arguments: &[&str], limit: Duration) -> Outcome<Vec<Collective>> {
        self.rows(&[&["--collectives"], arguments].concat(), limit)
    }

    fn rows<T: DeserializeOwned>(&self, arguments: &[&str], limit: Duration) -> Outcome<Vec<T>> {
        let program = Program::new(&self.0).args(["perf", "--json"]).args(arguments).limit(limit);
        let shown = program.shown();
        let output = program.output()?;
        rows(output.success()?).map_err(Failure::during(format!("reading what `{shown}` printed")))
    }
}

/// Reads rows from a sequence of JSON objects or of arrays of them.
fn rows<T: DeserializeOwned>(text: &str) -> Outcome<Vec<T>> {
    let mut found = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match value? {
            Value::Array(values) => {
                for value in values {
                    found.push(serde_json::from_value(value)?);
                }
            }
            value => found.push(serde_json::from_value(value)?),
        }
    }
    if found.is_empty() { Err(Failure::new("the output contains no rows")) } else { Ok(found) }
}

impl MeasuredRow {
    /// Returns a description of a value in this row that is impossible on any machine, if there is one. Times are not
    /// checked.
    pub(crate) fn nonsense(&self) -> Option<&'static str> {
        let is_good = |figure: Option<f64>| figure.is_none_or(|value| value.is_finite() && value > 0.0);
        let figures = [self.p50_ns, self.p99_ns, self.rate, self.bytes_per_s, self.limit_p50_ns];
        let raw = [self.raw_p50_ns, self.raw_p99_ns, self.raw_ratio];
        if !figures.into_iter().chain(raw).all(is_good) {
            Some("a figure is zero, negative or infinite")
        } else if self.transport.is_empty() || self.op.is_empty() {
            Some("the transport or the operation is missing")
        } else if self.p50_ns.is_none() && self.rate.is_none() {
            Some("it has neither a time nor a rate")
        } else if [(self.p50_ns, self.p99_ns), (self.raw_p50_ns, self.raw_p99_ns)]
            .iter()
            .any(|pair| matches!(pair, (Some(p50), Some(p99)) if p50 > p99))
        {
            Some("p50 is above p99")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Collective, MeasuredRow, rows};

    const LINE: &str = r#"{"transport":"shm","op":"tagged-latency","bytes":8,"p50_ns":152.0,"p99_ns":310.0,
        "rate":6.5e6,"bytes_per_s":5.2e7,"limit_p50_ns":146.0,"memory":"percale","dirty":false,"verified":true,
        "api":"safe","raw_p50_ns":150.0,"raw_p99_ns":300.0,"raw_ratio":1.01}"#;

    #[test]
    fn rows_are_read_from_lines_and_from_arrays() {
        assert_eq!(rows::<MeasuredRow>(&format!("{LINE}\n{LINE}\n")).unwrap().len(), 2);
        assert_eq!(rows::<MeasuredRow>(&format!("[{LINE},{LINE}]")).unwrap().len(), 2);
        assert_eq!(rows::<MeasuredRow>(LINE).unwrap()[0].raw_ratio, Some(1.01));
        assert!(rows::<MeasuredRow>("").is_err());
        assert!(rows::<MeasuredRow>("percale 0.1").is_err());
    }

    #[test]
    fn collectives_are_read() {
        let barrier = r#"{"what":"barrier","processes":2,"p50_ns":207.75,"count":240000,"ratio":2.0}"#;
        let sum = r#"{"what":"allreduce","processes":2,"bytes":8,"p50_ns":197.5,"count":300000}"#;
        let found = rows::<Collective>(&format!("{barrier}\n{sum}\n")).unwrap();
        assert_eq!(
            found.iter().map(|row| (row.bytes, row.p50_ns)).collect::<Vec<_>>(),
            [(None, Some(207.75)), (Some(8), Some(197.5))]
        );
    }

    #[test]
    fn nonsense_is_noticed() {
        let row: MeasuredRow = rows(LINE).unwrap().remove(0);
        assert_eq!(row.nonsense(), None);
        let mut wrong = row.clone();
        wrong.p99_ns = Some(1.0);
        assert!(wrong.nonsense().is_some());
        wrong = row.clone();
        wrong.raw_p99_ns = Some(1.0);
        assert!(wrong.nonsense().is_some());
        wrong = row.clone();
        wrong.rate = Some(0.0);
        assert!(wrong.nonsense().is_some());
        wrong = row;
        (wrong.p50_ns, wrong.rate) = (None, None);
        assert!(wrong.nonsense().is_some());
    }
}
