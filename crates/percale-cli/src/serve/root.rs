//! The directory that is served, and nothing outside of it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The directory.
#[derive(Debug)]
pub(super) struct Root {
    directory: OwnedFd,
}

/// Where the kernel may not go.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

impl Root {
    /// Opens the directory.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { directory: rustix::fs::openat(CWD, path, flags, Mode::empty())? })
    }

    /// Opens a regular file to be read.
    pub(super) fn read(&self, path: &str) -> io::Result<File> {
        check(path)?;
        // NONBLOCK: opening a pipe would wait for a writer.
        let file = self.beneath(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC)?;
        match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(File::from(file)),
            FileType::Directory => Err(io::Error::other("it is a directory; only files are copied")),
            _ => Err(io::Error::other("it is no regular file")),
        }
    }

    /// The directory of a file to be written, and the file's name there.
    pub(super) fn place(&self, path: &str) -> io::Result<(OwnedFd, OsString)> {
        check(path)?;
        let parts = Path::new(path);
        // `check` lets through names and dots; a path of dots only has no name.
        let name = parts.file_name().filter(|_| !path.ends_with('/') && !path.ends_with("/."));
        let name = name.ok_or_else(|| io::Error::other("it is a directory; name the file"))?.to_owned();
        let parent = parts.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = self.beneath(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
        Ok((directory, name))
    }

    fn beneath(&self, path: impl AsRef<Path>, flags: OFlags) -> io::Result<OwnedFd> {
        loop {
            match rustix::fs::openat2(&self.directory, path.as_ref(), flags, Mode::empty(), BENEATH) {
                Ok(file) => return Ok(file),
                // Something was renamed meanwhile, so the kernel could not tell.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::XDEV) => return Err(io::Error::other("it leads out of the served directory")),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Refuses by words what the kernel would refuse by number.
fn check(path: &str) -> io::Result<()> {
    let refuse = |why: &str| Err(io::Error::other(why));
    if path.is_empty() {
        return refuse("no path was given");
    }
    if path.contains('\0') {
        return refuse("the path has a zero byte");
    }
    for component in Path::new(path).components() {
        match component {
            Component::Normal(_) | Component::CurDir => {}
            Component::ParentDir => return refuse("'..' is not allowed: only what is below the served directory"),
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

    #[test]
    fn paths_that_leave_are_refused_in_words() {
        for (path, why) in [
            ("", "no path"),
            ("/etc/passwd", "absolute"),
            ("..", "'..'"),
            ("a/../../b", "'..'"),
            ("a/b/../c", "'..'"),
            ("a\0b", "zero byte"),
        ] {
            let error = check(path).unwrap_err().to_string();
            assert!(error.contains(why), "{path:?}: {error}");
        }
        for path in ["a", "a/b", "./a", "..a/b..", "a//b"] {
            check(path).unwrap();
        }
    }

    #[test]
    fn only_regular_files_below_are_opened() {
        let root = Root::open(Path::new("/proc/self")).unwrap();
        // A magic link: it leads to whatever the process has open.
        assert!(root.read("exe").is_err());
        assert!(root.read("fd").unwrap_err().to_string().contains("directory"));
        assert!(root.place("status/").is_err() && root.place(".").is_err() && root.place("fd/.").is_err());
        assert_eq!(root.place("status").unwrap().1, "status");
        let dev = Root::open(Path::new("/dev")).unwrap();
        assert!(dev.read("null").unwrap_err().to_string().contains("no regular file"));
    }
}
