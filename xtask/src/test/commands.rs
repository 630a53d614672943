//! The steps that run what a user would run: the examples and the command.

use crate::failure::{Failure, Outcome};
use crate::perf::Perf;
use crate::place::Place;
use crate::steps::Findings;
use std::time::{Duration, Instant};

/// No example works longer than a moment; this ends one that hangs.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(60);

/// Time for each row: enough to measure something, too little to judge it.
const SECONDS: &str = "0.05";

/// Runs every example of the library, in the profile that the tests have built already.
pub(super) fn examples(place: &Place) -> Outcome<Findings> {
    let names = place.targets("percale", "example");
    if names.is_empty() {
        return Err(Failure::new("the library has no examples"));
    }
    // With the simulation, as the suite of the tests has the library: then it is not compiled once more.
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

/// Runs `percale perf` for a moment: each row must make sense, and shared memory and TCP must be among them.
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
