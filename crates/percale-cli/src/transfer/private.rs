//! The directory of incomplete files: `.percale-parts`, in the directory of the final files.
//!
//! Only the user of this process can access it (its owner and mode are checked on its descriptor), so other users
//! cannot create files in it. The clients of a server cannot name a file in it, because the server rejects such paths.
//! Therefore every name in it was created by a process of this user.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// The name of the directory. A path of a client that contains this name is rejected.
pub(crate) const NAME: &str = ".percale-parts";

/// Opens or creates the directory of parts below `directory`.
///
/// # Errors
/// Fails if it cannot be created, is not a directory, or belongs to another user.
pub(super) fn open(directory: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        match rustix::fs::mkdirat(&directory, NAME, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let parts = match rustix::fs::openat(&directory, NAME, flags, Mode::empty()) {
            Ok(parts) => parts,
            // Another copy has removed the directory in the meantime, because it was empty.
            Err(Errno::NOENT) => continue,
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(refused("is not a directory")),
            Err(error) => return Err(error.into()),
        };
        let stat = rustix::fs::fstat(&parts)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(refused(&format!("belongs to user {}", stat.st_uid)));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(refused(&format!("is open to other users (mode {:o})", stat.st_mode & 0o777)));
        }
        return Ok(parts);
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::other(format!(
        "the directory {NAME} for incomplete copies {why}: remove it, or copy to another directory"
    ))
}

/// Removes the directory if it is empty.
pub(super) fn tidy(directory: impl AsFd) {
    // This fails if another copy is in progress or was interrupted. The directory is not empty in this case.
    let _removed: Result<(), Errno> = rustix::fs::unlinkat(directory, NAME, AtFlags::REMOVEDIR);
}

/// Returns whether an open directory is a directory of parts.
///
/// # Errors
/// Fails if a system call fails.
pub(crate) fn is(directory: impl AsFd) -> io::Result<bool> {
    let this = rustix::fs::fstat(&directory)?;
    match rustix::fs::statat(&directory, format!("../{NAME}"), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(parts) => Ok(same(&this, &parts)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether two results of stat(2) describe the same file.
pub(super) const fn same(one: &Stat, other: &Stat) -> bool {
    one.st_dev == other.st_dev && one.st_ino == other.st_ino
}

/// Returns whether `name` refers to this file.
///
/// # Errors
/// Fails if a system call fails.
pub(super) fn is_at(directory: impl AsFd, name: &OsStr, file: impl AsFd) -> io::Result<bool> {
    let ours = rustix::fs::fstat(file)?;
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(same(&stat, &ours)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the type of a file with this mode.
pub(super) const fn kind(mode: u32) -> FileType {
    FileType::from_raw_mode(mode)
}
