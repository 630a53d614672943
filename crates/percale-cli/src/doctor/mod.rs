//! `percale doctor`: what of percale works on this machine and why not, and the command that mends each problem.
//!
//! The [`checks`] are a list of data. Processes of their own make most of them, a group each ([`probe`]), because a
//! check may end its process, and write [`finding`]s. [`diagnosis`] starts these processes and puts the findings
//! together; [`checks::attribute`] finds the causes, so that a machine with one fault has one item to mend, however
//! many checks fail. [`report`] prints the results. Remedies depend on the [`surroundings`].
//!
//! Checks try the operation that percale makes and do not judge by version numbers, as discovery does
//! (`percale::Info`), whose results they contain. The groups:
//!
//! * [`environment`], [`resources`]: the kernel, the user, the container; limits and /dev/shm
//! * [`calls`]: the system call filter
//! * [`user_namespace`]: user namespaces
//! * [`transports`]: shared memory, TCP, and addresses; [`exchange`] sends a message over both transports
//! * [`kernel_monitor`], [`monitors`]: the monitors of the registration cache, and pindown-helper
//! * [`devices`]: RDMA devices, io_uring, CUDA
//! * [`libfabric`]: each version of libfabric, and whether it sees the provider

mod args;
mod calls;
mod checks;
mod devices;
mod diagnosis;
mod environment;
mod exchange;
mod finding;
mod kernel_monitor;
mod libfabric;
mod monitors;
mod probe;
mod report;
mod resources;
mod surroundings;
mod transports;
mod user_namespace;

use crate::failure::{Failure, Result};
use crate::output::print_line;
pub(crate) use args::DoctorArgs;
use diagnosis::Diagnosis;
pub(crate) use probe::{Probe, run as part};

/// The name of the hidden subcommand that makes a group of checks.
pub(crate) const PART: &str = "doctor-part";

/// Runs the subcommand.
///
/// # Errors
/// Fails if something essential is missing or could not be checked, or if the results cannot be written.
pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let diagnosis = Diagnosis::make(&args.libfabric);
    print(&diagnosis, args.json).map_err(|error| Failure::Undiagnosed(error.to_string()))?;
    match (&diagnosis.essential_missing()[..], &diagnosis.essential_unknown()[..]) {
        ([], []) => Ok(()),
        ([], unknown) => {
            Err(Failure::Undiagnosed(format!("something essential was not checked: {}", unknown.join(", "))))
        }
        (missing, _) => Err(Failure::EssentialMissing(missing.join(", "))),
    }
}

fn print(diagnosis: &Diagnosis, json: bool) -> Result<()> {
    if !json {
        return print_line(&report::text(diagnosis));
    }
    for line in report::lines(diagnosis) {
        print_line(&serde_json::to_string(&line).map_err(Failure::system("writing JSON"))?)?;
    }
    Ok(())
}
