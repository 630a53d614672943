//! A file that is not complete yet: it has another name until it is, so that nobody takes it for the whole, and it can be continued.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// What is added to the name.
const SUFFIX: &str = ".percale-part";

/// How long another copy to the same file may take to end. One whose process was killed ends at once.
const PATIENCE: Duration = Duration::from_secs(3);

/// A file on its way, locked against other copies.
#[derive(Debug)]
pub(crate) struct Part {
    directory: OwnedFd,
    name: OsString,
    part: OsString,
    file: File,
}

impl Part {
    /// Opens the part file of `name` in a directory, or makes it. `size` is what the whole file will have; what is longer is cut.
    ///
    /// # Errors
    /// If it cannot be opened, another copy to it is under way, or `name` is something else than a file.
    pub(crate) fn open(directory: OwnedFd, name: &OsStr, size: u64) -> io::Result<Self> {
        check_target(&directory, name)?;
        let mut part = name.to_owned();
        part.push(SUFFIX);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let start = Instant::now();
        loop {
            let file = rustix::fs::openat(&directory, &part, flags, Mode::RUSR | Mode::WUSR)?;
            if kind(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
                return Err(io::Error::other(format!("{} is no regular file", part.display())));
            }
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The former owner may have given it its final name between our two calls.
                Ok(()) if is_at(&directory, &part, &file)? => {
                    let file = File::from(file);
                    if file.metadata()?.len() > size {
                        file.set_len(size)?;
                    }
                    return Ok(Self { directory, name: name.to_owned(), part, file });
                }
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
                Err(Errno::WOULDBLOCK) => return Err(io::Error::other("another copy to this file is under way")),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The file.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// How many bytes it has, right or wrong.
    pub(crate) fn held(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// It is complete: makes it permanent, then gives it its name and permissions, in place of what had that name.
    ///
    /// # Errors
    /// If the system refuses; the part stays.
    pub(crate) fn commit(&self, size: u64, mode: u32) -> io::Result<()> {
        check_target(&self.directory, &self.name)?;
        self.file.set_len(size)?;
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode & 0o777))?;
        self.file.sync_all()?;
        rustix::fs::renameat(&self.directory, &self.part, &self.directory, &self.name)?;
        Ok(())
    }
}

/// Refuses to replace what is no file.
fn check_target(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match kind(stat.st_mode) {
            FileType::RegularFile | FileType::Symlink => Ok(()),
            FileType::Directory => Err(io::Error::other("it is a directory; name the file")),
            _ => Err(io::Error::other("it is no regular file")),
        },
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether `name` is this very file.
fn is_at(directory: &OwnedFd, name: &OsStr, file: &OwnedFd) -> io::Result<bool> {
    let ours = rustix::fs::fstat(file)?;
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok((stat.st_dev, stat.st_ino) == (ours.st_dev, ours.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn kind(mode: u32) -> FileType {
    FileType::from_raw_mode(mode)
}
