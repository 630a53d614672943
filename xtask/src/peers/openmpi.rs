//! Measures Open MPI over its own shared memory. A program of this project is used, because Open MPI does not contain a
//! benchmark.

use super::cases::{Op, PeerCase};
use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::Program;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// The program.
pub(super) struct OpenMpi(PathBuf);

/// Returns whether the program measures a case. It measures the cases that the programs of the other peers do not
/// measure.
pub(super) fn measures(case: &PeerCase) -> bool {
    case.op == Op::Allreduce
}

impl OpenMpi {
    /// Compiles the program.
    pub(super) fn build(place: &Repository) -> Outcome<Self> {
        let directory = place.target.join("bench");
        fs::create_dir_all(&directory)?;
        let program = directory.join("allreduce-openmpi");
        let compile = Program::new("mpicc.openmpi").args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        compile
            .arg(place.root.join("xtask/src/peers/c/allreduce.c"))
            .limit(Duration::from_secs(60))
            .output()?
            .success()?;
        Ok(Self(program))
    }

    /// Returns the p50 of the slower of two ranks in nanoseconds. Each rank runs on one core.
    pub(super) fn measure(&self, case: &PeerCase) -> Outcome<f64> {
        let program = launcher().args(["-n", "2", "--bind-to", "core"]);
        // Selects Open MPI's shared memory, regardless of the available networks.
        let program = program.args(["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]);
        let output = program.arg(&self.0).arg(case.bytes.to_string()).limit(Duration::from_secs(120)).output()?;
        let printed = output.success()?;
        nanoseconds(printed).ok_or_else(|| Failure::new(format!("unexpected output of the program: {printed}")))
    }
}

/// Returns Open MPI's launcher, with permission to run as root.
fn launcher() -> Program {
    let program = Program::new("mpirun.openmpi").env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    program.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
}

fn nanoseconds(printed: &str) -> Option<f64> {
    let line = printed.lines().find(|line| line.starts_with("allreduce of "))?;
    line.split_once(": ")?.1.strip_suffix(" ns")?.parse().ok()
}

/// Returns the version, for the document.
pub(super) fn version() -> Option<String> {
    let output = launcher().arg("--version").output().ok()?;
    let line = output.stdout.lines().find(|line| line.starts_with("mpirun"))?;
    Some(format!("Open MPI {}", line.split_whitespace().last()?))
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn the_time_is_read() {
        assert_eq!(nanoseconds("a warning\nallreduce of 8 bytes: 255.3 ns\n"), Some(255.3));
        assert_eq!(nanoseconds("nothing"), None);
    }
}
