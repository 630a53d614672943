//! The arguments of `percale serve`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::host::host_and_port;

/// Arguments of `percale serve`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Clients read the files from this process's memory, or write them there (`percale cp`). Only regular files below DIR are \
opened; symbolic links may not lead out of it. A file that is written lies in the directory .percale-parts beside its \
final place until it is complete, where no client reaches it. It is permanent, under its name, when the client is told so. \
Nothing is encrypted, and without a key whoever reaches the port may copy.

There is a place for 64 clients. If all are taken a newcomer gets that of one who is idle.

Exit codes: 1 failed, 2 bad usage; otherwise it serves until it is interrupted.")]
pub(crate) struct ServeArgs {
    /// The directory
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Where to wait
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7471", value_parser = host_and_port)]
    pub(crate) listen: String,
    /// Let clients make and replace files
    #[arg(long)]
    pub(crate) writable: bool,
    /// Serve only clients that have the same key: the bytes of this file, which only its owner may read
    #[arg(long, value_name = "FILE")]
    pub(crate) authorization_key: Option<PathBuf>,
    /// Print one JSON object for each thing that happens
    #[arg(long)]
    pub(crate) json: bool,
}
