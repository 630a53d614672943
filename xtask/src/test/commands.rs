//! The steps that run the examples and the command, as a user does.

use crate::failure::{Failure, Outcome};
use crate::perf::Perf;
use crate::place::Place;
use crate::steps::Findings;
use std::time::{Duration, Instant};

/// The time limit of an example. Each one takes only a moment.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(60);

/// The measuring time of each row: long enough to measure something, too short to check it.
const SECONDS: &str = "0.05";

/// Runs every example of the library, in the profile in which the tests are already built.
pub(super) fn examples(place: &Place) -> Outcome<Findings> {
    let names = place.targets("percale", "example");
    if names.is_empty() {
        return Err(Failure::new("the library has no examples"));
    }
    // The library is built with the simulation, as for the test suite, so that it is not compiled again.
    let library = ["--quiet", "--profile", "test", "-p", "percale", "--features", "sim"];
    place.cargo().arg("build").args(library).arg("--examples").passed()?;
    let mut failed = 0;
    for name in &names {
        let start = Instant::now();
        let program = place.cargo().arg("run").args(library).args(["--example", name]);
        let output = program.limit(EXAMPLE_LIMIT).output();
        let word = match output.and_then(|output| output.success().map(drop)) {
            Ok(()) => "ok".to_owned(),
            Err(failure) => {
                failed += 1;
                format!("FAILED: {failure}")
            }
        };
        println!("  {name:<44} {:>7.1} s {word}", start.elapsed().as_secs_f64());
    }
    Ok(Findings::new(names.len() - failed, failed, ""))
}

/// Runs `percale perf` for a moment. Each row must be plausible, and shared memory and TCP must be among the rows.
pub(super) fn perf(place: &Place) -> Outcome<Findings> {
    let rows = Perf::build(place)?.run(&["--seconds", SECONDS], Duration::from_secs(300))?;
    let mut failed = 0;
    for row in &rows {
        if let Some(why) = row.nonsense() {
            failed += 1;
            println!("  {} {} {} B: {why}", row.transport, row.op, row.bytes);
        }
    }
    for transport in ["shm", "tcp"] {
        if !rows.iter().any(|row| row.transport == transport) {
            return Err(Failure::new(format!("no row was measured over {transport}; `percale info` says why")));
        }
    }
    Ok(Findings::new(rows.len() - failed, failed, "rows"))
}
