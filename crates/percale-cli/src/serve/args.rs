//! The arguments of `percale serve`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::host::host_and_port;

/// Arguments of `percale serve`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Clients copy files with `percale cp`: they read or write the memory of this process. Only regular files below DIR are opened; \
symbolic links that lead outside are rejected. A file that a client writes is kept in the directory .percale-parts beside its \
final place until it is complete; clients cannot access it there. When the client receives the confirmation of the copy, the \
file is on disk under its name. Nothing is encrypted. Without a key, every process that can connect to the port can copy files.

At most 64 clients are served at a time. If the limit is reached, a new client replaces an idle one, or is rejected \
if none is idle.

Exit codes: 1 failed, 2 bad usage; otherwise it serves until it is interrupted.")]
pub(crate) struct ServeArgs {
    /// The directory with the files to serve
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// The address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7471", value_parser = host_and_port)]
    pub(crate) listen: String,
    /// Allow clients to create and replace files
    #[arg(long)]
    pub(crate) writable: bool,
    /// Serve only clients with the same key: the content of this file, which must be readable only by its owner
    #[arg(long, value_name = "FILE")]
    pub(crate) authorization_key: Option<PathBuf>,
    /// Print one JSON object for each event
    #[arg(long)]
    pub(crate) json: bool,
}
