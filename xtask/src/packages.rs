//! System packages: what some checks need besides Rust, installed where that is possible.

use crate::failure::{Failure, Outcome};
use crate::program::{Program, on_path};
use std::time::Duration;

/// A program and the Debian package that brings it.
#[derive(Clone, Copy)]
pub(crate) struct Needed {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

pub(crate) const VALGRIND: Needed = Needed { program: "valgrind", package: "valgrind" };
pub(crate) const IP: Needed = Needed { program: "ip", package: "iproute2" };
pub(crate) const STRACE: Needed = Needed { program: "strace", package: "strace" };
pub(crate) const UCX: Needed = Needed { program: "ucx_perftest", package: "ucx-utils" };
pub(crate) const LIBFABRIC: Needed = Needed { program: "fi_pingpong", package: "libfabric-bin" };

pub(crate) const OPEN_MPI: Needed = Needed { program: "mpirun.openmpi", package: "openmpi-bin" };
pub(crate) const OPEN_MPI_COMPILER: Needed = Needed { program: "mpicc.openmpi", package: "libopenmpi-dev" };
/// No program, but a file by its whole path.
pub(crate) const LIBFABRIC_HEADERS: Needed = Needed { program: "/usr/include/rdma/fabric.h", package: "libfabric-dev" };

impl Needed {
    pub(crate) fn is_here(self) -> bool {
        on_path(self.program).is_some()
    }
}

/// Sees that these programs are here: installs the missing ones as root on Debian, else says what to install.
///
/// # Errors
/// If some are still missing: names them and the command that brings them.
pub(crate) fn ensure(needed: &[Needed]) -> Outcome {
    let missing = || needed.iter().copied().filter(|n| !n.is_here());
    if missing().next().is_none() {
        return Ok(());
    }
    let packages: Vec<&str> = missing().map(|n| n.package).collect();
    let by_hand = format!("apt-get install -y {}", packages.join(" "));
    if !rustix::process::geteuid().is_root() || on_path("apt-get").is_none() {
        return Err(Failure::new(format!("missing; as root: {by_hand}")));
    }
    eprintln!("  installing {}", packages.join(" "));
    let apt = |arguments: &[&str]| {
        let program = Program::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive");
        let program = program.args(["-qq", "-o", "DPkg::Lock::Timeout=120"]).args(arguments);
        program.limit(Duration::from_secs(600)).output()?.success().map(drop)
    };
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(&packages);
    // A machine's package lists may be fresh already; a new one has none.
    if apt(&install).is_err() {
        apt(&["update"])?;
        apt(&install)?;
    }
    match missing().next() {
        None => Ok(()),
        Some(n) => Err(Failure::new(format!("{} brought no `{}`", n.package, n.program))),
    }
}
