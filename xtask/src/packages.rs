//! System packages that some checks need in addition to Rust. They are installed if possible.

use crate::failure::{Failure, Outcome};
use crate::program::{Program, on_path};
use std::path::Path;
use std::time::Duration;

/// A program, a compiler that must be able to link with an option, or a file with an absolute path. Each has the Debian
/// package that contains it.
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
pub(crate) const LIBFABRIC_HEADERS: Needed = Needed { program: "/usr/include/rdma/fabric.h", package: "libfabric-dev" };
pub(crate) const CLANG: Needed = Needed { program: "clang", package: "clang" };
pub(crate) const SANITIZERS: Needed =
    Needed { program: "clang -fsanitize=address,undefined", package: "libclang-rt-dev" };
const VERBS_HEADERS: Needed = Needed { program: "/usr/include/infiniband/verbs.h", package: "libibverbs-dev" };
const VENV: Needed = Needed { program: "/usr/share/doc/python3-venv/copyright", package: "python3-venv" };
const JEMALLOC: Needed = Needed { program: "/usr/lib/LIBRARIES/libjemalloc.so.2", package: "libjemalloc2" };
const MIMALLOC: Needed = Needed { program: "/usr/lib/LIBRARIES/libmimalloc.so.2", package: "libmimalloc2.0" };

/// The packages that `cargo xtask test` needs in addition to Rust and a C linker, each with the checks that need it.
pub(crate) const TESTS: [(Needed, &str); 13] = [
    (CLANG, "compiling pindown's kernel programs again; the C tests under AddressSanitizer"),
    (SANITIZERS, "the walk: the provider under AddressSanitizer and UndefinedBehaviorSanitizer"),
    (LIBFABRIC_HEADERS, "the libfabric provider's tests"),
    (LIBFABRIC, "libfabric's own programs over the provider"),
    (OPEN_MPI, "MPI programs over the provider"),
    (OPEN_MPI_COMPILER, "the same"),
    (VERBS_HEADERS, "the comparison of libibverbs' layouts with ours"),
    (IP, "tests on several hosts (network namespaces)"),
    (STRACE, "tests that count system calls"),
    (VALGRIND, "instruction budgets, and the provider under valgrind"),
    (VENV, "MPICH and Intel MPI over the provider"),
    (JEMALLOC, "pindown under jemalloc"),
    (MIMALLOC, "pindown under mimalloc"),
];

impl Needed {
    pub(crate) fn is_here(self) -> bool {
        if let Some((compiler, option)) = self.program.split_once(' ') {
            return links(compiler, option);
        }
        match self.program.split_once("LIBRARIES") {
            // The directory of a library depends on the machine's architecture.
            Some((before, after)) => {
                let library = format!("{before}{}-linux-gnu{after}", std::env::consts::ARCH);
                Path::new(&library).exists()
            }
            None => on_path(self.program).is_some(),
        }
    }
}

/// Returns whether a compiler can build a program with this option. Libraries that the option needs may be missing.
fn links(compiler: &str, option: &str) -> bool {
    let probe = format!("echo 'int main(void) {{ return 0; }}' | {compiler} {option} -x c - -o /dev/null");
    let output = Program::new("sh").args(["-c", &probe]).limit(Duration::from_secs(60)).output();
    output.is_ok_and(|output| output.status.success())
}

/// Ensures that these programs are installed. As root on Debian, installs the missing ones. Otherwise fails with a list
/// of them.
///
/// # Errors
/// Fails with the packages that are still missing and the command that installs them.
pub(crate) fn ensure(needed: &[Needed]) -> Outcome {
    let missing = || needed.iter().copied().filter(|n| !n.is_here());
    if missing().next().is_none() {
        return Ok(());
    }
    let packages: Vec<&str> = missing().map(|n| n.package).collect();
    let by_hand = format!("apt-get install -y {}", packages.join(" "));
    if !rustix::process::geteuid().is_root() || on_path("apt-get").is_none() {
        return Err(Failure::new(format!("missing; run as root: {by_hand}")));
    }
    eprintln!("  installing {}", packages.join(" "));
    let apt = |arguments: &[&str]| {
        let program = Program::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive");
        let program = program.args(["-qq", "-o", "DPkg::Lock::Timeout=120"]).args(arguments);
        program.limit(Duration::from_secs(600)).output()?.success().map(drop)
    };
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(&packages);
    // The package lists of a machine may already be current. A new machine has no lists.
    if apt(&install).is_err() {
        apt(&["update"]).and_then(|()| apt(&install)).map_err(Failure::during(&by_hand))?;
    }
    match missing().next() {
        None => Ok(()),
        Some(n) => Err(Failure::new(format!("{} was installed, but `{}` is still missing", n.package, n.program))),
    }
}

#[cfg(test)]
mod tests {
    use super::Needed;

    #[test]
    fn compiler_option_is_available_if_it_links() {
        let needed = |program| Needed { program, package: "none" };
        assert!(needed("cc -O1").is_here());
        assert!(!needed("cc -lno-such-library").is_here());
        assert!(!needed("no-such-compiler -O1").is_here());
    }
}
