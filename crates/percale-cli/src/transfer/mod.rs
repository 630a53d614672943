//! The parts shared by `percale serve` and `percale cp`.
//!
//! A file is transferred in [`blocks`]. Both sides compute the checksum of each block from the data that they read or
//! write. The client requests every step ([`protocol`]), and transfers the data itself by reading from, or writing to,
//! the server's regions.
//!
//! * [`source`]: a file that is read, and the detection of changes
//! * [`part`]: an incomplete file in a [`private`] directory
//! * [`path`]: the path of a served file
//! * [`pool`]: threads for disk I/O and checksums
//! * [`key`]: the authorization key
//! * [`visible`]: escapes text of the other side for a terminal

use rustix::fs::Mode;

pub(crate) mod blocks;
pub(crate) mod key;
pub(crate) mod part;
pub(crate) mod path;
pub(crate) mod pool;
pub(crate) mod private;
pub(crate) mod protocol;
pub(crate) mod source;
pub(crate) mod visible;

/// Returns the umask of this process. Must be called before there are other threads, which might create files
/// meanwhile.
pub(crate) fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask);
    mask.bits()
}
