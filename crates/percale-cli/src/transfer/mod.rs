//! What `percale serve` and `percale cp` share.
//!
//! A file travels in [`blocks`], each with a checksum that both sides compute from what they read or write. The client asks for every
//! step ([`protocol`]); the bytes themselves it reads from, or writes into, the server's regions. [`source`]: a file that is read, and
//! whether it changed meanwhile; [`part`]: a file that is not complete yet, in a [`private`] directory; [`path`]: how a served file is
//! named; [`pool`]: threads for disk and checksums; [`key`]: the authorization key; [`visible`]: what the other side wrote, for a terminal.

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

/// The permissions that files of this process do not get. To be asked before there are other threads, which might make files meanwhile.
pub(crate) fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask);
    mask.bits()
}
