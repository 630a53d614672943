//! The tasks of the project, with one module each. `cargo xtask --help` lists them.
//!
//! A task runs other programs and parses their output. It keeps no state except files in the target directory
//! (`percale-results.json`, `bench/`, `tools/`). It requires only cargo. If it needs another program that is missing,
//! it reports the name.

mod api;
mod bpf;
mod budget;
mod capabilities;
mod client;
mod coverage;
mod failure;
mod fuzz;
mod guest;
mod interop;
mod layers;
mod libtest;
mod machine;
mod mutate;
mod package;
mod packages;
mod peers;
mod perf;
mod pindown;
mod place;
mod processes;
mod program;
mod provider;
mod report;
mod requirements;
mod results;
mod sanitize;
mod sanitizer;
mod search;
mod steps;
mod table;
mod test;
mod toolchain;
mod walk;

use clap::{Parser, Subcommand};
use failure::Outcome;
use place::Repository;
use std::process::ExitCode;

/// percale's tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", version, about)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// All checks: lints, layers, tests, loom models, examples, a run of the command, budgets, documentation
    Test(test::Arguments),
    /// The requirements that are proved by tests that ran and passed, by area, transport and API
    Coverage(coverage::Arguments),
    /// The unit and conformance tests on AArch64, in QEMU's emulation of a process
    Aarch64(test::AArch64Arguments),
    /// Compares the instructions per operation (valgrind) with their checked-in ceilings
    Budget(budget::Arguments),
    /// Runs the fuzz targets
    Fuzz(fuzz::Arguments),
    /// Random operations, closings and cancellations, checked against a model; prints seeds and rates
    Search(search::Arguments),
    /// Changes the sources in ways that a test must notice, and lists the changes that no test notices
    Mutate(mutate::Arguments),
    /// The tests and the searches with AddressSanitizer, ThreadSanitizer and Miri
    Sanitize(sanitize::Arguments),
    /// Checks the dependencies between modules and between crates against the list of allowed ones, and shows their layers
    Layers(layers::Arguments),
    /// Lists the public items of the published crates in docs/api, or compares the lists with the sources
    Api(api::Arguments),
    /// Compiles pindown's kernel programs, of which the objects are checked in, or compares the objects with the sources
    Bpf(bpf::Arguments),
    /// Compares percale with Debian's UCX, libfabric and Open MPI on this machine, in alternating runs
    Peers(peers::Arguments),
    /// Builds libpercale-fi.so for libfabric, and prints the environment variable by which libfabric finds it
    Provider(provider::Arguments),
    /// Builds libpindown and places it with its header and pkg-config file under a directory; --helper adds pindown-helper
    Pindown(pindown::Arguments),
    /// Builds the Debian packages and an archive with an install script; tests them on a bare machine
    Package(package::Arguments),
    /// Compares the interface of libpindown.so (symbols, versions, layouts) with docs/api/libpindown.txt
    Abi(pindown::AbiArguments),
    /// Unmodified clients over the provider: libfabric's programs, MPI libraries and their tests
    Interop(interop::Arguments),
    /// The provider under sanitizers: every call with unusual arguments, every order of closing, every level and API
    /// version
    Walk(walk::Arguments),
    /// Programs on a kernel with soft-RoCE, in a virtual machine
    Guest(guest::Arguments),
    /// Writes docs/benchmarks.md from runs of `percale perf` and `peers`
    Report(report::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    run(&arguments.task).unwrap_or_else(|failure| {
        eprintln!("xtask: {failure}");
        ExitCode::FAILURE
    })
}

/// Runs a task. If the task ran and found problems, the exit code is a failure, and no error is returned.
fn run(task: &Task) -> Outcome<ExitCode> {
    let place = Repository::find()?;
    let is_good = match task {
        Task::Test(arguments) => test::run(&place, arguments),
        Task::Coverage(arguments) => coverage::run(&place, arguments),
        Task::Aarch64(arguments) => test::aarch64(&place, arguments),
        Task::Budget(arguments) => budget::run(&place, arguments),
        Task::Fuzz(arguments) => fuzz::run(&place, arguments),
        Task::Search(arguments) => search::run(&place, arguments),
        Task::Mutate(arguments) => mutate::run(&place, arguments),
        Task::Sanitize(arguments) => sanitize::run(&place, arguments),
        Task::Layers(arguments) => layers::run(&place, arguments),
        Task::Api(arguments) => api::run(&place, arguments),
        Task::Bpf(arguments) => bpf::run(&place, arguments),
        Task::Peers(arguments) => peers::run(&place, arguments),
        Task::Provider(arguments) => provider::run(&place, arguments),
        Task::Pindown(arguments) => pindown::run(&place, arguments),
        Task::Package(arguments) => package::run(&place, arguments),
        Task::Abi(arguments) => pindown::run_abi(&place, arguments),
        Task::Interop(arguments) => interop::run(&place, arguments),
        Task::Walk(arguments) => walk::run(&place, arguments),
        // The exit code is that of another program.
        Task::Guest(arguments) => return guest::run(&place, arguments),
        Task::Report(arguments) => report::run(&place, arguments),
    }?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
