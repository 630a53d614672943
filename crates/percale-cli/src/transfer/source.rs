//! A file that is read: its state when it was opened, and the detection of later changes.
//!
//! A copy of a file that changes while it is read is torn: one part is old and another is new. Every write(2) and every
//! change of the metadata, including one that sets the modification time back, updates the change time of the file. A
//! store through a shared mapping does so only on file systems that detect it, and only if the page was clean.
//! Therefore, on file systems that are known to detect stores ([`SEES_STORES`]), the pages of the file are written
//! first, which makes them clean. On others, such as tmpfs, all blocks are read a second time after the last was read,
//! and their checksums are compared. If no block changed between its two readings, the copy equals the file at a time
//! between the two passes.
//!
//! A recent change time might represent two changes. Therefore, if a file was changed very recently, opening it waits
//! until the change time is old enough.
//!
//! The following are not detected: content that changed and changed back between two checks, changes by other hosts to
//! a file on a network file system, and writes to the disk below the file system.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::blocks::changed;
use super::private;

/// The maximum granularity of the kernel's file times.
const STEP: Duration = Duration::from_millis(20);

/// ext4, XFS, Btrfs, F2FS: a store to a clean page through a mapping updates the file's times.
const SEES_STORES: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// The message for a file on which another program holds a lease.
const LEASED: &str = "another program holds a lease on the file: copy it after that program has closed it";

/// A regular file that is open for reading.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    before: Metadata,
    /// Whether all blocks must be read a second time.
    twice: bool,
}

impl Source {
    /// Opens the file that `path` refers to, a descriptor opened with O_PATH. Only a regular file is opened for
    /// reading.
    ///
    /// # Errors
    /// Fails if it is not a regular file, or cannot be read.
    pub(crate) fn open(path: &OwnedFd) -> io::Result<Self> {
        let refuse = |why: &str| Err(io::Error::other(why));
        let stat = rustix::fs::fstat(path)?;
        match private::kind(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return refuse("it is a directory; only files are copied"),
            _ => return refuse("not a regular file"),
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(CWD, format!("/proc/self/fd/{}", path.as_raw_fd()), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::AGAIN) => return refuse(LEASED),
            Err(Errno::NOENT) => return refuse("/proc is not mounted; it is needed to open files safely"),
            Err(error) => return Err(error.into()),
        };
        let (before, twice) = settle(&file)?;
        let source = Self { file, before, twice };
        source.ends_where_it_says()?;
        Ok(source)
    }

    /// Returns the file.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// Returns the length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.before.len()
    }

    /// Returns the permissions.
    pub(crate) fn mode(&self) -> u32 {
        self.before.mode() & 0o777
    }

    /// Returns whether all blocks must be read again for [`unchanged`](Self::unchanged) to be reliable.
    pub(crate) const fn needs_second_look(&self) -> bool {
        self.twice
    }

    /// Checks that the file has not changed.
    ///
    /// # Errors
    /// Fails if it has changed, or if a system call fails.
    pub(crate) fn unchanged(&self) -> io::Result<()> {
        let state = |of: &Metadata| (of.dev(), of.ino(), of.len(), (of.mtime(), of.mtime_nsec()), changed_at(of));
        let now = self.file.metadata()?;
        if state(&now) != state(&self.before) {
            return Err(changed());
        }
        self.ends_where_it_says()
    }

    /// Fails if the file has more content than its size states, as files of /proc do.
    fn ends_where_it_says(&self) -> io::Result<()> {
        match self.file.read_at(&mut [0], self.size())? {
            0 => Ok(()),
            _ => Err(io::Error::other(
                "its content is longer than its size, as for files in /proc: copy the content to another file first",
            )),
        }
    }
}

/// Writes the pages of the file, so that the next store through a mapping updates the change time. Returns the
/// metadata, and whether the blocks must be read twice. Reading them twice is necessary if the file system is not known
/// to detect stores, or if the file keeps changing.
fn settle(file: &File) -> io::Result<(Metadata, bool)> {
    let sees_stores = rustix::fs::fstatfs(file).is_ok_and(|of| SEES_STORES.contains(&(of.f_type as u64)));
    let mut before = file.metadata()?;
    for _ in 0..4 {
        if is_fresh(&before) {
            std::thread::sleep(STEP);
            before = file.metadata()?;
            continue;
        }
        // Some files, such as those of /proc, cannot be written to a disk.
        if !sees_stores || file.sync_data().is_err() {
            break;
        }
        // A store after its page was written has made the page dirty again. Further stores to the page would not be
        // detected.
        let now = file.metadata()?;
        if changed_at(&now) == changed_at(&before) {
            return Ok((now, false));
        }
        before = now;
    }
    Ok((before, true))
}

fn changed_at(metadata: &Metadata) -> (i64, i64) {
    (metadata.ctime(), metadata.ctime_nsec())
}

/// Returns whether another change now might leave the file's change time unchanged.
fn is_fresh(metadata: &Metadata) -> bool {
    let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) else { return true };
    let at = Duration::new(metadata.ctime().try_into().unwrap_or(0), metadata.ctime_nsec().try_into().unwrap_or(0));
    now < at + STEP
}
