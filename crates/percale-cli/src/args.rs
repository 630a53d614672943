//! The command line: the subcommands, each of which defines its arguments itself.

use clap::Parser;

use crate::cp::CpArgs;
use crate::perf::PerfArgs;
use crate::serve::ServeArgs;
use crate::torture::TortureArgs;

/// percale: moves bytes between the memories of processes.
#[derive(Debug, Parser)]
#[command(name = "percale", version, arg_required_else_help = true, propagate_version = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) subcommand: Subcommand,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Show which transports, devices and limits are here, and why others are not
    Info {
        /// Print one JSON object for each line
        #[arg(long)]
        json: bool,
    },
    /// Measure how fast messages and one-sided operations are here, beside what the machine could do at best; or what triggers, collectives,
    /// addresses, windows or registering memory cost
    Perf(Box<PerfArgs>),
    /// Let others copy files from, or to, a directory
    Serve(ServeArgs),
    /// Copy a file from or to a machine where `percale serve` runs
    Cp(CpArgs),
    /// Show whether the registration cache is correct on this machine, whatever happens to the memory
    Torture(TortureArgs),
    /// A process that changes its memory for `percale torture`
    #[command(name = crate::torture::PART, hide = true)]
    TorturePart {
        /// Which part it plays
        part: crate::torture::Part,
    },
    /// A process with a registration cache that is measured
    #[command(name = crate::perf::registration::PART, hide = true)]
    RegistrationPart,
    /// One of several processes that do something together
    #[command(name = crate::perf::team::PART, hide = true)]
    TeamPart {
        /// What they do
        part: crate::perf::team::Part,
        /// Stay on this processor
        #[arg(long)]
        processor: Option<usize>,
    },
    /// The second process of a measurement
    #[command(name = crate::perf::session::SECOND_PROCESS, hide = true)]
    SecondProcess {
        /// Stay on this processor
        #[arg(long)]
        processor: Option<usize>,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }
}
