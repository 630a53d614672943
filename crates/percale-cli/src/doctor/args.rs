//! The arguments of `percale doctor`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// Arguments of `percale doctor`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Each check tries the operation that percale makes, most of them in processes of their own. Run the command in the \
environment of the program and as its user: in the container, in the job, under the service manager.

  yes      it works
  partly   it works with a restriction
  no       it does not work
  -        this machine does not have it, and percale works without it
  ?        it could not be checked

Below the table is a list of what to mend, with the command for each item. A check that fails because of another one \
names it, and is not in the list. The transports shared-memory and tcp are essential.

Examples:
  percale doctor
  percale doctor --json
  docker run IMAGE percale doctor
  percale doctor --libfabric /opt/mpi/lib,/usr/lib/x86_64-linux-gnu

Exit codes: 0 nothing essential is missing, 1 something essential is missing, 2 bad usage, 3 something essential could \
not be checked, or the results could not be written.")]
pub(crate) struct DoctorArgs {
    /// Print one JSON object for each line
    #[arg(long)]
    pub(crate) json: bool,
    /// Look for libfabric only in these directories [default: those of the loader, and those below /usr/lib,
    /// /usr/local and /opt]
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    pub(crate) libfabric: Vec<PathBuf>,
}
