//! The arguments of `percale cp`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::row::Transport;

/// Arguments of `percale cp`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
One of SRC and DST is HOST:PORT/PATH, where PATH is relative to the served directory. The other is a local file (write \
./a:1/b for a local path that contains a colon). Permissions are preserved, except for those that the umask of the writing \
side removes. An incomplete copy is in .percale-parts beside DST. If a copy is interrupted, repeat the command: it continues \
with the data that is on disk and equal on both sides. When percale cp reports success, the copy is on disk under its name \
(fsync of the file and of its directory).

Both sides compute checksums of the data that they read or write, and compare them. The checksum of the whole file (blake3 in \
the output of --json) is the one that b3sum prints. A source that changes during the copy is an error. The change time is \
compared; on file systems where stores through a mapping do not update it, such as tmpfs, the content is read again. Not \
detected: content that changes and changes back between two checks, and changes by other hosts to a file on a network file \
system.

Exit codes: 0 copied, 1 failed, 2 bad usage.")]
pub(crate) struct CpArgs {
    /// The file to copy
    #[arg(value_name = "SRC")]
    pub(crate) source: OsString,
    /// The copy; an existing file is replaced
    #[arg(value_name = "DST")]
    pub(crate) target: OsString,
    /// The server's key: the content of this file, which must be readable only by its owner
    #[arg(long, value_name = "FILE")]
    pub(crate) authorization_key: Option<PathBuf>,
    /// Use only this transport [default: the best available]
    #[arg(long, value_name = "NAME")]
    pub(crate) transport: Option<Transport>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
