//! A file that is read: what it was when it was opened, and whether it still is that.
//!
//! A copy of a file that changes while it is read is torn: a part of it is old and a part new. Every write(2) and every change of the
//! metadata, also one that puts the modification time back, moves the file's change time. A store through a shared mapping does so only
//! on file systems that see it, and there only if the page was clean. So on those that are known to ([`SEES_STORES`]) the file's
//! pages are written first, which makes them clean; elsewhere, as on tmpfs, all blocks are read a second time when the last was read,
//! and compared by their checksums: if none has changed between its two readings, the file was the copy at the moment between.
//!
//! A time that is only just past could be that of two changes. So a file that was changed a moment ago is waited for until its time is past.
//!
//! What cannot be seen: content that changed and changed back between two looks; what hosts other than this one do to a file of a network
//! file system; writes to the disk below the file system.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::blocks::changed;
use super::private;

/// The kernel's times of files advance in steps of at most this.
const STEP: Duration = Duration::from_millis(20);

/// ext4, XFS, Btrfs, F2FS: a store to a clean page through a mapping moves the file's times.
const SEES_STORES: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// What to do with a file that is in use by a program that has a lease on it.
const LEASED: &str = "another program has a lease on it and keeps it: copy it when that program has closed it";

/// A regular file that is open to be read.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    before: Metadata,
    /// All blocks are to be looked at a second time.
    twice: bool,
}

impl Source {
    /// Opens the file that `path` is, which was opened only as a name (O_PATH): nothing but a regular file is opened to be read.
    ///
    /// # Errors
    /// If it is something else, or cannot be read.
    pub(crate) fn open(path: &OwnedFd) -> io::Result<Self> {
        let refuse = |why: &str| Err(io::Error::other(why));
        let stat = rustix::fs::fstat(path)?;
        match private::kind(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return refuse("it is a directory; only files are copied"),
            _ => return refuse("it is no regular file"),
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(CWD, format!("/proc/self/fd/{}", path.as_raw_fd()), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::AGAIN) => return refuse(LEASED),
            Err(Errno::NOENT) => return refuse("/proc is not mounted, without which files are not opened safely"),
            Err(error) => return Err(error.into()),
        };
        let (before, twice) = settle(&file)?;
        let source = Self { file, before, twice };
        source.ends_where_it_says()?;
        Ok(source)
    }

    /// The file.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// Its length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.before.len()
    }

    /// Its permissions.
    pub(crate) fn mode(&self) -> u32 {
        self.before.mode() & 0o777
    }

    /// Whether [`unchanged`](Self::unchanged) says all only after all blocks were read again.
    pub(crate) const fn needs_second_look(&self) -> bool {
        self.twice
    }

    /// That the file is what it was.
    ///
    /// # Errors
    /// If it is not, or the system does not say.
    pub(crate) fn unchanged(&self) -> io::Result<()> {
        let state = |of: &Metadata| (of.dev(), of.ino(), of.len(), (of.mtime(), of.mtime_nsec()), changed_at(of));
        let now = self.file.metadata()?;
        if state(&now) != state(&self.before) {
            return Err(changed());
        }
        self.ends_where_it_says()
    }

    /// Files of /proc have a length of 0 and content all the same.
    fn ends_where_it_says(&self) -> io::Result<()> {
        match self.file.read_at(&mut [0], self.size())? {
            0 => Ok(()),
            _ => Err(io::Error::other(
                "it has more content than its size says, as files of /proc do: copy its content to another file first",
            )),
        }
    }
}

/// Has the file's pages written, so that the next store through a mapping moves the change time. What the file is, and whether that can
/// be relied on: not on a file system that is not known to see stores, nor if the file changes all the time.
fn settle(file: &File) -> io::Result<(Metadata, bool)> {
    let sees_stores = rustix::fs::fstatfs(file).is_ok_and(|of| SEES_STORES.contains(&(of.f_type as u64)));
    let mut before = file.metadata()?;
    for _ in 0..4 {
        if is_fresh(&before) {
            std::thread::sleep(STEP);
            before = file.metadata()?;
            continue;
        }
        // Some files, of /proc for instance, cannot be written to a disk.
        if !sees_stores || file.sync_data().is_err() {
            break;
        }
        // A store between the writing of its page and now has made the page dirty again, after which others would not be seen.
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

/// Whether another change now might leave the file's change time as it is.
fn is_fresh(metadata: &Metadata) -> bool {
    let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) else { return true };
    let at = Duration::new(metadata.ctime().try_into().unwrap_or(0), metadata.ctime_nsec().try_into().unwrap_or(0));
    now < at + STEP
}
