//! `cargo xtask test`: all checks that must pass before a change is merged, in one command.
//!
//! The steps are independent and can be run separately (`--only`). Fast steps are first.

mod aarch64;
mod commands;
mod features;
mod lint;
mod suite;
mod supply;

pub(crate) use aarch64::{Arguments as AArch64Arguments, run as aarch64};
pub(crate) use suite::{DOUBLE, MODELS, VERBS, harness};

use crate::failure::Outcome;
use crate::packages;
use crate::place::Repository;
use crate::steps::{Findings, Steps};
use clap::ValueEnum;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these steps
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Step>,
    /// Leaves out the slow steps: tests on AArch64, loom models, the search, the run of the command, other programs'
    /// runs, the walk, budgets, publishing, packages
    #[arg(long)]
    quick: bool,
    /// The long forms of tests and of the walk, which take hours: every rejected call, every API version, millions of
    /// operations
    #[arg(long, conflicts_with = "quick")]
    all: bool,
    /// Only tests with this text in their path
    #[arg(long)]
    filter: Option<String>,
}

/// A step of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Step {
    /// System packages that some tests need
    Packages,
    /// The source is formatted
    Format,
    /// Modules and crates depend on each other only as xtask/layers.txt allows
    Layers,
    /// The checked-in kernel programs of pindown are those of their sources
    Bpf,
    /// Clippy reports no warnings
    Clippy,
    /// The library compiles without features and with each alone, and has few dependencies
    Features,
    /// Unit, integration and documentation tests
    Tests,
    /// The same tests over RDMA, on a test double of libibverbs
    Verbs,
    /// The sources compile for AArch64, and unit tests pass there, in QEMU's emulation of a process
    Aarch64,
    /// Loom models: every interleaving of the lock-free parts
    Loom,
    /// Random operations and random lifecycle events, on fixed and new seeds
    Search,
    /// Each example runs and exits successfully
    Examples,
    /// The command runs over shm and tcp and prints plausible results
    Perf,
    /// Unmodified clients run over the libfabric provider
    Interop,
    /// The provider under sanitizers: unusual arguments, orders of closing
    Walk,
    /// Instructions per operation stay below their ceilings
    Budgets,
    /// The documentation of the code builds without a warning
    Docs,
    /// The public items are those that docs/api lists
    Api,
    /// Licenses, sources and known vulnerabilities of the dependencies (cargo-deny)
    Deny,
    /// The workspace builds with the oldest compiler that the manifests name
    Msrv,
    /// The crates are complete and can be published, and build from what is published
    Publish,
    /// Debian packages and the archive are built, and installed, used and removed on a bare machine
    Package,
    /// The C library's interface is the one that docs/api lists, and its example builds with pkg-config and runs
    Abi,
}

impl Step {
    fn is_slow(self) -> bool {
        use Step::{Aarch64, Budgets, Interop, Loom, Package, Perf, Publish, Search, Walk};
        matches!(self, Aarch64 | Loom | Search | Perf | Interop | Walk | Budgets | Publish | Package)
    }

    fn run(self, place: &Repository, arguments: &Arguments, steps: &mut Steps) {
        match self {
            Self::Packages => steps.run("packages", "packages that some tests need in addition to Rust", needed),
            Self::Format => steps.run("format", "cargo fmt", || lint::format(place)),
            Self::Layers => steps.run("layers", "dependencies of modules and crates", || crate::layers::check(place)),
            Self::Bpf => steps.run("bpf", "pindown's compiled kernel programs", || crate::bpf::check(place)),
            Self::Clippy => steps.run("clippy", "no warning in any target", || lint::clippy(place)),
            Self::Features => {
                steps.run("features", "the library without features, and with each alone", || features::check(place))
            }
            Self::Tests => steps.run("tests", "unit, integration and documentation tests", || {
                suite::tests(place, arguments.filter.as_deref(), arguments.all)
            }),
            Self::Verbs => steps.run("verbs", "RDMA tests on a test double of libibverbs", || {
                suite::verbs(place, arguments.filter.as_deref(), arguments.all)
            }),
            Self::Aarch64 => steps.run("aarch64", "tests on AArch64, emulated", || {
                aarch64::step(place, arguments.filter.as_deref(), arguments.all)
            }),
            Self::Loom => {
                steps.run("loom", "every interleaving of the lock-free parts", || suite::loom(place, arguments.all))
            }
            Self::Search => steps
                .run("search", "random operations and lifecycle events", || crate::search::check(place, arguments.all)),
            Self::Examples => steps.run("examples", "every example runs successfully", || commands::examples(place)),
            Self::Perf => steps
                .run("perf", "short runs of the command on every transport", || commands::perf(place, arguments.all)),
            Self::Interop => steps.run("interop", "unmodified clients of libfabric", || crate::interop::quick(place)),
            Self::Walk => {
                steps.run("walk", "the provider under sanitizers", || crate::walk::check(place, arguments.all))
            }
            Self::Budgets => steps.run("budgets", "instructions per operation", || crate::budget::check(place)),
            Self::Docs => steps.run("docs", "the documentation of the code", || lint::docs(place)),
            Self::Api => steps.run("api", "the lists of public items", || crate::api::check(place)),
            Self::Deny => steps.run("deny", "licenses and sources of the dependencies", || supply::deny(place)),
            Self::Msrv => steps.run("msrv", "the oldest compiler", || supply::oldest_compiler(place)),
            Self::Publish => steps.run("publish", "the crates as they are published", || supply::publish(place)),
            Self::Package => {
                steps.run("package", "packages on a bare machine", || crate::package::check(place, arguments.all))
            }
            Self::Abi => steps.run("abi", "libpindown from C programs", || crate::pindown::check(place)),
        }
    }
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let wanted = |step: &Step| {
        let is_named = arguments.only.is_empty() || arguments.only.contains(step);
        is_named && !(arguments.quick && step.is_slow())
    };
    let chosen: Vec<Step> = Step::value_variants().iter().copied().filter(wanted).collect();
    let mut steps = Steps::new(chosen.len()).strict(crate::machine::is_ci());
    for step in chosen {
        step.run(place, arguments, &mut steps);
    }
    Ok(steps.finish())
}

/// Installs the packages that tests need. Tests that lack a package report this and are counted as skipped.
fn needed() -> Outcome<Findings> {
    let wanted = packages::TESTS.map(|(needed, _)| needed);
    Ok(match packages::ensure(&wanted) {
        Ok(()) => Findings::new(0, 0, format!("{} packages are installed", wanted.len())),
        Err(why) => {
            let without = packages::TESTS.iter().filter(|(needed, _)| !needed.is_here());
            let without = without.map(|(needed, what)| format!("without {}: {what}", needed.package)).collect();
            Findings::skipped(why.to_string()).with_remarks(without)
        }
    })
}
