//! Compares percale with other libraries as packaged by Debian: UCX, libfabric, and Open MPI for collectives.
//!
//! Every result is measured in rounds. Each round runs all programs of a case one after another. The order is reversed
//! after every round, so that other load on the machine affects all of them equally. The result is the median of the
//! rounds. All programs have their two processes pinned to the first two cores (`percale perf` pins them itself).

mod cases;
mod libfabric;
mod openmpi;
mod pair;
mod percale;
mod show;
mod ucx;

pub(crate) use cases::{Comparison, Op};
pub(crate) use show::comparison as show_comparison;

use crate::failure::{Failure, Outcome};
use crate::packages::{self, LIBFABRIC, OPEN_MPI, OPEN_MPI_COMPILER, UCX};
use crate::perf::Perf;
use crate::place::Repository;
use cases::{PeerCase, Variant};
use openmpi::OpenMpi;
use serde::{Deserialize, Serialize};
use std::time::Instant;
use ucx::Setup;

/// The file of the last run, in the target directory.
pub(crate) const FILE: &str = "bench/peers.json";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The number of runs of each program in each case
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only this transport: shm or tcp
    #[arg(long)]
    transport: Option<String>,
    /// Only this operation
    #[arg(long, value_enum)]
    op: Option<Op>,
    /// Only this size in bytes
    #[arg(long)]
    size: Option<u64>,
    /// Only the peers, without percale
    #[arg(long)]
    without_percale: bool,
    /// Prints the run as JSON instead of tables
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Returns the arguments for all cases, which the report needs.
    pub(crate) fn all(rounds: usize) -> Self {
        Self { rounds, transport: None, op: None, size: None, without_percale: false, json: false }
    }

    fn wants(&self, case: &PeerCase) -> bool {
        self.transport.as_deref().is_none_or(|its| its == case.transport)
            && self.op.is_none_or(|its| its == case.op)
            && self.size.is_none_or(|its| its == case.bytes)
    }
}

/// The fraction of the machine used by other processes above which results are unreliable. Rates and means are affected
/// first.
pub(crate) const BUSY: f64 = 0.1;

/// A finished run.
#[derive(Serialize, Deserialize)]
pub(crate) struct PeerRun {
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) rounds: usize,
    /// The largest fraction of the machine that other processes used, from 0 to 1, measured before each case.
    pub(crate) busy: f64,
    /// The API that percale's program uses: "safe" or "raw". Runs of older versions, which used the raw one, do not
    /// have it.
    pub(crate) api: Option<String>,
    /// The versions that the peers report.
    pub(crate) versions: Vec<String>,
    pub(crate) rows: Vec<Comparison>,
    /// The cases that could not be measured, with the reasons.
    pub(crate) problems: Vec<String>,
}

impl PeerRun {
    /// Returns the API of percale's programs. Collectives are measured with the raw one.
    pub(crate) fn api_text(&self) -> String {
        let exception = if self.api.as_deref() == Some("safe") { " (allreduce: the raw API)" } else { "" };
        format!("{}{exception}", crate::perf::api(self.api.as_deref()))
    }
}

/// A program that can measure a case.
enum Side {
    Ucx(Setup),
    Libfabric,
    OpenMpi,
    Percale(Variant),
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let run = measure(place, arguments)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&run)?);
    } else {
        show::run(&run);
    }
    Ok(run.problems.is_empty())
}

/// Measures all cases that the arguments select. The run is stored if they select all cases.
pub(crate) fn measure(place: &Repository, arguments: &Arguments) -> Outcome<PeerRun> {
    if arguments.rounds == 0 {
        return Err(Failure::new("--rounds 0 measures nothing"));
    }
    packages::ensure(&[UCX, LIBFABRIC])?;
    let perf = if arguments.without_percale { None } else { Some(Perf::build(place)?) };
    let cases: Vec<PeerCase> = PeerCase::all().into_iter().filter(|case| arguments.wants(case)).collect();
    let openmpi = if cases.iter().any(openmpi::measures) {
        packages::ensure(&[OPEN_MPI, OPEN_MPI_COMPILER])?;
        Some(OpenMpi::build(place)?)
    } else {
        None
    };
    let programs = Programs { openmpi, perf };
    let (mut rows, mut problems) = (Vec::new(), Vec::new());
    let mut busy = 0_f64;
    for (number, case) in cases.iter().enumerate() {
        busy = busy.max(crate::machine::busy());
        let start = Instant::now();
        eprint!("[{}/{}] {case} ... ", number + 1, cases.len());
        rows.extend(compare(case, &programs, arguments.rounds, &mut problems));
        eprintln!("{:.1} s", start.elapsed().as_secs_f64());
    }
    if rows.is_empty() && problems.is_empty() {
        return Err(Failure::new("no case matches"));
    }
    let run = PeerRun {
        date: crate::machine::date(),
        commit: crate::machine::commit(place),
        rounds: arguments.rounds,
        busy,
        api: Some(percale::API.into()),
        versions: [ucx::version(), libfabric::version(), openmpi::version()].into_iter().flatten().collect(),
        rows,
        problems,
    };
    if cases.len() == PeerCase::all().len() && programs.perf.is_some() {
        place.save(FILE, &run)?;
    }
    Ok(run)
}

/// The programs that this task builds.
struct Programs {
    openmpi: Option<OpenMpi>,
    perf: Option<Perf>,
}

/// Runs all programs of one case in rounds. Returns one comparison for each peer and each variant of percale.
fn compare(case: &PeerCase, programs: &Programs, rounds: usize, problems: &mut Vec<String>) -> Vec<Comparison> {
    let mut sides: Vec<_> = ucx::setups(case).iter().map(|&setup| (Side::Ucx(setup), Vec::new())).collect();
    if libfabric::measures(case) {
        sides.push((Side::Libfabric, Vec::new()));
    }
    if openmpi::measures(case) {
        sides.push((Side::OpenMpi, Vec::new()));
    }
    if programs.perf.is_some() {
        sides.extend(case.variants().into_iter().map(|variant| (Side::Percale(variant), Vec::new())));
    }
    for _ in 0..rounds {
        for (side, figures) in &mut sides {
            let figure = match (&*side, programs) {
                (Side::Ucx(setup), _) => ucx::measure(case, *setup),
                (Side::Libfabric, _) => libfabric::measure(case),
                (Side::OpenMpi, Programs { openmpi: Some(openmpi), .. }) => openmpi.measure(case),
                (Side::Percale(variant), Programs { perf: Some(perf), .. }) => percale::measure(perf, case, *variant),
                (Side::OpenMpi | Side::Percale(_), _) => continue,
            };
            match figure {
                Ok(figure) => figures.push(figure),
                Err(failure) => {
                    let problem = format!("{case}: {failure}");
                    if !problems.contains(&problem) {
                        problems.push(problem);
                    }
                }
            }
        }
        sides.reverse();
    }
    // After an odd number of rounds the order is reversed.
    if rounds % 2 == 1 {
        sides.reverse();
    }
    cases::comparisons(case, &sides)
}
