//! The served directory. Files outside of it are not accessible.
//!
//! Access checks use descriptors. The kernel resolves a path beneath the directory (openat2). The file is checked
//! before it is opened for reading. The directory of incomplete copies and its files are recognized by their
//! attributes, even if a link leads to them. The path itself is checked only to return better messages than the
//! kernel's error numbers.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::transfer::part;
use crate::transfer::path::{LONGEST, ServedPath};
use crate::transfer::private;
use crate::transfer::source::Source;

/// The served directory.
#[derive(Debug)]
pub(super) struct Root {
    directory: OwnedFd,
}

/// The restrictions on the kernel's path resolution.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// The number of times that the kernel may fail to resolve a path because of a concurrent rename.
const TRIES: u32 = 64;

impl Root {
    /// Opens the directory.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { directory: rustix::fs::openat(CWD, path, flags, Mode::empty())? })
    }

    /// Opens a regular file for reading.
    pub(super) fn read(&self, path: &ServedPath) -> io::Result<Source> {
        check(path)?;
        let file = self.beneath(path.path(), OFlags::PATH | OFlags::CLOEXEC)?;
        if part::is(&file)? {
            return Err(io::Error::other("the file is incomplete: a copy to it is in progress or was interrupted"));
        }
        Source::open(&file)
    }

    /// Returns the directory of a file to be written, and the name of the file in that directory.
    pub(super) fn place(&self, path: &ServedPath) -> io::Result<(OwnedFd, OsString)> {
        check(path)?;
        let parts = path.path();
        // `check` accepts names and dots. A path with only dots has no name.
        let name = parts.file_name().filter(|_| !path.bytes().ends_with(b"/") && !path.bytes().ends_with(b"/."));
        let name = name.ok_or_else(|| io::Error::other("it is a directory; name the file"))?.to_owned();
        let parent = parts.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = self.beneath(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
        if private::is(&directory)? {
            return Err(io::Error::other("its directory is reserved for incomplete copies"));
        }
        Ok((directory, name))
    }

    fn beneath(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        for _ in 0..TRIES {
            match rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), BENEATH) {
                Ok(file) => return Ok(file),
                // A concurrent rename prevented the kernel from resolving the path.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::XDEV) => return Err(io::Error::other("the path leaves the served directory")),
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("its directories are being renamed; try again"))
    }
}

/// Rejects, with a message, paths that the kernel would reject with an error number.
fn check(path: &ServedPath) -> io::Result<()> {
    let refuse = |why: &str| Err(io::Error::other(why));
    if path.bytes().is_empty() {
        return refuse("no path was given");
    }
    if path.bytes().len() >= LONGEST {
        return refuse("the path is too long: 4095 bytes at most");
    }
    if path.bytes().contains(&0) {
        return refuse("the path contains a zero byte");
    }
    for component in path.path().components() {
        match component {
            Component::Normal(name) if name == private::NAME => {
                return refuse("it is in a directory that is reserved for incomplete copies");
            }
            Component::Normal(_) | Component::CurDir => {}
            Component::ParentDir => return refuse("'..' is not allowed: only files below the served directory"),
            Component::RootDir | Component::Prefix(_) => {
                return refuse("absolute paths are not allowed: paths begin at the served directory");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ServedPath {
        ServedPath::from(text.as_bytes().to_vec())
    }

    #[test]
    fn paths_outside_the_root_are_rejected_with_a_reason() {
        let long = "a/".repeat(2048);
        for (text, why) in [
            ("", "no path"),
            ("/etc/passwd", "absolute"),
            ("..", "'..'"),
            ("a/../../b", "'..'"),
            ("a/b/../c", "'..'"),
            ("a\0b", "zero byte"),
            (long.as_str(), "too long"),
            ("a/.percale-parts/b", "incomplete"),
        ] {
            let error = check(&path(text)).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
        for text in ["a", "a/b", "./a", "..a/b..", "a//b"] {
            check(&path(text)).unwrap();
        }
        check(&ServedPath::from(b"\xff\xfe/\x80".to_vec())).unwrap();
    }

    #[test]
    fn only_regular_files_below_the_root_are_opened() {
        let root = Root::open(Path::new("/proc/self")).unwrap();
        // A magic link to a file that the process has open.
        assert!(root.read(&path("exe")).is_err());
        assert!(root.read(&path("fd")).unwrap_err().to_string().contains("directory"));
        let place = |text| root.place(&path(text));
        assert!(place("status/").is_err() && place(".").is_err() && place("fd/.").is_err());
        assert_eq!(place("status").unwrap().1, "status");
        // A file of size 0 with content.
        assert!(root.read(&path("status")).unwrap_err().to_string().contains("longer than its size"));
        let dev = Root::open(Path::new("/dev")).unwrap();
        assert!(dev.read(&path("null")).unwrap_err().to_string().contains("not a regular file"));
    }
}
