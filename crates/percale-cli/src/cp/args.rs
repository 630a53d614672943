//! The arguments of `percale cp`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::row::Transport;

/// Arguments of `percale cp`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
One of SRC and DST is HOST:PORT/PATH, where PATH is below the directory that is served there; the other is a local \
file (write ./a:1/b if it looks like the former). Permissions are kept as far as the umask of the side that writes lets them. \
Until it is complete the copy lies in .percale-parts beside DST; a copy that was interrupted goes on from there when it is \
repeated, as far as both sides have the same on their disks. When percale cp says that it copied, the copy is permanent \
under its name (fsync of the file and of its directory).

Both sides compute checksums of what they read or write, and compare them. The whole file's, blake3 in the output of \
--json, is what b3sum tells of it. A source that is changed while it is copied is an error: its change time is compared, and \
where stores through a mapping do not move that, as on tmpfs, its content is read again. What cannot be seen: content that \
changed and changed back between two looks, and what other hosts do to a file of a network file system.

Exit codes: 0 copied, 1 failed, 2 bad usage.")]
pub(crate) struct CpArgs {
    /// The file to copy
    #[arg(value_name = "SRC")]
    pub(crate) source: OsString,
    /// Its copy, replaced if it is there
    #[arg(value_name = "DST")]
    pub(crate) target: OsString,
    /// The server's key: the bytes of this file, which only its owner may read
    #[arg(long, value_name = "FILE")]
    pub(crate) authorization_key: Option<PathBuf>,
    /// Use only this transport [default: what is best]
    #[arg(long, value_name = "NAME")]
    pub(crate) transport: Option<Transport>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
