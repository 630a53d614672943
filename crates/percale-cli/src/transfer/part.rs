//! An incomplete file.
//!
//! It is in a [`private`] directory, under its final name. Therefore it cannot be mistaken for the complete file, and
//! the copy can be resumed. Invariants:
//!
//! 1. One copy at a time uses it. A lock on the file ensures this.
//! 2. It is a file of this user, created here, with one name. Any other file of that name is removed and not written
//!    to.
//! 3. Until it is committed, its mode is [`MARK`]. A server checks this on the descriptor of a requested file.
//! 4. A copy is resumed only with data that was read from the disk: when a part is opened, its pages are written and
//!    dropped from the page cache. After a failed fsync, the kernel may consider pages clean that are not on the disk,
//!    so such a part is removed. If the process was killed between the failure and the removal, the content of the part
//!    is the content on the disk.
//! 5. The file that gets the final name is the file that was written, even if its name refers to another file by then.
//!    The name is given to the inode of the descriptor.
//! 6. The file is durable before it gets its name, and its name is durable when [`PartialFile::commit`] returns.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::private::{self, is_at, kind};

/// The mode of a part: access only for the owner, with a bit that has no meaning for files.
const MARK: u32 = 0o1600;

/// The prefix of the temporary names of a file that is about to get its final name.
const COMMIT: &str = "commit.";

/// The maximum number of attempts to give a file another name.
const TRIES: u32 = 64;

/// An incomplete file, locked against other copies.
#[derive(Debug)]
pub(crate) struct PartialFile {
    directory: OwnedFd,
    parts: OwnedFd,
    name: OsString,
    file: File,
}

impl PartialFile {
    /// Opens or creates the part of `name` in a directory. `size` is the size of the complete file. A longer part is
    /// truncated.
    ///
    /// # Errors
    /// Returns `WouldBlock` if another copy to this file is in progress. Returns other errors if the part cannot be
    /// opened, or if `name` is not a file.
    pub(crate) fn open(directory: OwnedFd, name: &OsStr, size: u64) -> io::Result<Self> {
        check_target(&directory, name)?;
        for _ in 0..TRIES {
            let parts = private::open(&directory)?;
            let Some(file) = open_or_make(&parts, name)? else { continue };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, "another copy to this file is under way"));
                }
                Err(error) => return Err(error.into()),
            }
            // The previous owner may have renamed the file to its final name between the two calls.
            if !is_at(&parts, name, &file)? {
                continue;
            }
            if !is_sound(&parts, &file)? || !can_be_continued(&file) {
                unlink(&parts, name)?;
                continue;
            }
            if file.metadata()?.len() > size {
                file.set_len(size)?;
            }
            return Ok(Self { directory, parts, name: name.to_owned(), file });
        }
        Err(io::Error::other("its partial file was replaced repeatedly"))
    }

    /// Returns the file.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// Returns the length of the part. Its content has not been verified.
    pub(crate) fn held(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Completes the file: makes it durable, gives it its name and permissions, and makes the name durable. An existing
    /// file of that name is replaced.
    ///
    /// # Errors
    /// Fails if a system call fails, or if the part was removed or replaced. If the content cannot be made durable, it
    /// is unreliable, and the part is removed. If only the name cannot be made durable, the file already has its final
    /// name. In all other cases the part is kept.
    pub(crate) fn commit(&self, size: u64, mode: u32) -> io::Result<()> {
        check_target(&self.directory, &self.name)?;
        self.file.set_len(size)?;
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode & 0o777))?;
        if let Err(error) = self.file.sync_all() {
            self.discard();
            let why = format!("cannot sync the copy to disk ({error}); it is discarded: copy the file again");
            return Err(io::Error::new(error.kind(), why));
        }
        if !is_at(&self.parts, &self.name, &self.file)? {
            return Err(io::Error::other(
                "its partial file was removed or replaced during the copy; copy the file again",
            ));
        }
        self.give_name()?;
        if is_at(&self.parts, &self.name, &self.file)? {
            unlink(&self.parts, &self.name)?;
        }
        rustix::fs::fsync(&self.directory).map_err(|error| {
            let why = format!("the copy is complete, but its name may be lost in a crash ({error}); run sync");
            io::Error::new(error.kind(), why)
        })?;
        private::tidy(&self.directory);
        Ok(())
    }

    /// Gives the final name to this file and to no other.
    fn give_name(&self) -> io::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (process, descriptor) = (std::process::id(), format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        for _ in 0..TRIES {
            let name = format!("{COMMIT}{process}.{}", NEXT.fetch_add(1, Ordering::Relaxed));
            match rustix::fs::linkat(CWD, &descriptor, &self.parts, &name, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                // On a file system without hard links, there can be no other name for this file, and only this user can
                // change this directory.
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK | Errno::NOENT) => {
                    return Ok(rustix::fs::renameat(&self.parts, &self.name, &self.directory, &self.name)?);
                }
                Err(error) => return Err(error.into()),
            }
            match rustix::fs::renameat(&self.parts, &name, &self.directory, &self.name) {
                Ok(()) => return Ok(()),
                // Another copy removed the temporary name, because the name was mistaken for a stale one.
                Err(Errno::NOENT) => {}
                Err(error) => {
                    unlink(&self.parts, OsStr::new(&name))?;
                    return Err(error.into());
                }
            }
        }
        Err(io::Error::other("cannot rename the copy to its final name"))
    }

    /// Removes the part, because its content is unreliable.
    fn discard(&self) {
        let removed = is_at(&self.parts, &self.name, &self.file)
            .and_then(|is_ours| if is_ours { unlink(&self.parts, &self.name) } else { Ok(()) });
        // If the part cannot be removed, it is truncated. A copy is resumed only with data from the disk, so an empty
        // part is harmless.
        let _emptied: io::Result<()> = removed.and_then(|()| self.file.set_len(0));
    }
}

/// Opens or creates the file of this name for reading and writing. Returns `None` if the caller must try again.
fn open_or_make(parts: &OwnedFd, name: &OsStr) -> io::Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let made = rustix::fs::openat(parts, name, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR);
    match made {
        Ok(file) => {
            rustix::fs::fchmod(&file, Mode::from_raw_mode(MARK))?;
            return Ok(Some(File::from(file)));
        }
        Err(Errno::EXIST) => {}
        // The directory was removed in the meantime, because it was empty.
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let stat = match rustix::fs::statat(parts, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match kind(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(io::Error::other(format!("in {}: it is a directory", private::NAME))),
        // The type is checked before opening, because opening a pipe or a device has side effects.
        _ => {
            unlink(parts, name)?;
            return Ok(None);
        }
    }
    match rustix::fs::openat(parts, name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(Errno::NOENT) => Ok(None),
        // The process that wrote it ended after setting the final permissions, which do not allow the owner to open it.
        Err(Errno::ACCESS | Errno::LOOP | Errno::NXIO) => {
            unlink(parts, name)?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns whether a part belongs to this user and has one name. Removes names that were left by a process that ended
/// in [`PartialFile::commit`].
fn is_sound(parts: &OwnedFd, file: &File) -> io::Result<bool> {
    let stat = rustix::fs::fstat(file)?;
    if kind(stat.st_mode) != FileType::RegularFile || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    if stat.st_nlink != 1 {
        for entry in Dir::read_from(parts)? {
            let entry = entry?;
            let name = OsStr::new(entry.file_name().to_str().unwrap_or_default());
            if name.as_encoded_bytes().starts_with(COMMIT.as_bytes()) && is_at(parts, name, file)? {
                unlink(parts, name)?;
            }
        }
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(MARK))?;
    Ok(rustix::fs::fstat(file)?.st_nlink == 1)
}

/// Writes the pages of the file and drops them from the page cache, so that later reads return the content of the disk.
fn can_be_continued(file: &File) -> bool {
    if !file.metadata().is_ok_and(|metadata| metadata.len() > 0) {
        return true;
    }
    let written = file.sync_data().is_ok();
    // On a file system without a disk, no pages are dropped and no data is lost.
    let _dropped: Result<(), Errno> = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
    written
}

fn unlink(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Fails if the target exists and is not a regular file or a symbolic link.
fn check_target(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match kind(stat.st_mode) {
            FileType::RegularFile | FileType::Symlink => Ok(()),
            FileType::Directory => Err(io::Error::other("it is a directory; name the file")),
            _ => Err(io::Error::other("not a regular file")),
        },
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether an open file, possibly opened with O_PATH, is a part.
///
/// # Errors
/// Fails if a system call fails.
pub(crate) fn is(file: &OwnedFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(file)?;
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
    Ok(is_ours && kind(stat.st_mode) == FileType::RegularFile && stat.st_mode & 0o7777 == MARK)
}
