//! The command line. Each subcommand defines its own arguments.

use std::path::PathBuf;

use clap::Parser;

use crate::cp::CpArgs;
use crate::doctor::{DoctorArgs, Probe};
use crate::generate::GenerateArgs;
use crate::perf::PerfArgs;
use crate::serve::ServeArgs;
use crate::torture::TortureArgs;

/// Moves bytes between the memories of processes.
#[derive(Debug, Parser)]
#[command(name = "percale", version, arg_required_else_help = true, propagate_version = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) subcommand: Subcommand,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Show which transports, devices and limits this machine has, and why a transport or device is not available
    Info {
        /// Print one JSON object for each line
        #[arg(long)]
        json: bool,
    },
    /// Check what of percale works on this machine and why not, and print the command that mends each problem
    Doctor(DoctorArgs),
    /// Measure the speed of messages and one-sided operations on this machine, compared with the limits of the machine,
    /// or the cost of triggers, collectives, addresses, windows or registrations
    Perf(Box<PerfArgs>),
    /// Serve a directory: clients copy files from it, or to it
    Serve(ServeArgs),
    /// Copy a file from or to a machine where `percale serve` runs
    Cp(CpArgs),
    /// Check that the registration cache stays correct on this machine while memory mappings change
    Torture(TortureArgs),
    /// Write the manual pages and the completions of bash, zsh and fish below a directory
    Generate(GenerateArgs),
    /// A process of `percale doctor`
    #[command(name = crate::doctor::PART, hide = true)]
    DoctorPart {
        /// The checks that it makes
        probe: Probe,
        /// The libfabric that it loads
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// A process of `percale torture`
    #[command(name = crate::torture::PART, hide = true)]
    TorturePart {
        /// The role of the process
        part: crate::torture::WorkerRole,
    },
    /// The measured process that has a registration cache
    #[command(name = crate::perf::registration::PART, hide = true)]
    RegistrationPart,
    /// One of several processes that run a measurement together
    #[command(name = crate::perf::team::PART, hide = true)]
    TeamPart {
        /// The work of the processes
        part: crate::perf::team::TeamTask,
        /// Pin to this processor
        #[arg(long)]
        processor: Option<usize>,
    },
    /// The second process of a measurement
    #[command(name = crate::perf::session::SECOND_PROCESS, hide = true)]
    SecondProcess {
        /// Pin to this processor
        #[arg(long)]
        processor: Option<usize>,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Args::command().debug_assert();
    }
}
