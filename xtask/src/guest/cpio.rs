//! Archives that the kernel unpacks as its first file system, in cpio's "new ASCII" format. They are written file by
//! file.

use crate::failure::{Failure, Outcome};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

/// An archive in memory. Paths are absolute. Directories above a file are added automatically, and all files are owned
/// by root.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    /// The directories and files in the archive.
    known: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// Returns whether the archive has an entry with this path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.known.contains(path.trim_start_matches('/'))
    }

    /// Adds an empty directory.
    pub(super) fn directory(&mut self, path: &Path) -> Outcome {
        self.parents(&path.join("x"))
    }

    /// Adds a file with these contents.
    pub(super) fn file(&mut self, path: &Path, mode: u32, contents: &[u8]) -> Outcome {
        self.parents(path)?;
        self.entry(&name_of(path)?, REGULAR | mode, contents)
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &Path, target: &str) -> Outcome {
        self.parents(path)?;
        self.entry(&name_of(path)?, LINK | 0o777, target.as_bytes())
    }

    /// Adds a file, link or directory of this machine (`from`) with all of its contents, except the paths that `wanted`
    /// rejects.
    pub(super) fn tree(&mut self, from: &Path, to: &Path, wanted: &impl Fn(&Path) -> bool) -> Outcome {
        if !wanted(to) {
            return Ok(());
        }
        let about = fs::symlink_metadata(from).map_err(Failure::during(from.display()))?;
        if about.is_symlink() {
            let target = fs::read_link(from)?;
            return self.link(to, &target.to_string_lossy());
        }
        if about.is_dir() {
            let mut entries: Vec<_> = fs::read_dir(from)?.collect::<Result<_, _>>()?;
            entries.sort_by_key(fs::DirEntry::file_name);
            let mut each = entries.iter().map(fs::DirEntry::file_name);
            return each.try_for_each(|name| self.tree(&from.join(&name), &to.join(&name), wanted));
        }
        let contents = fs::read(from).map_err(Failure::during(from.display()))?;
        self.file(to, about.permissions().mode() & 0o777, &contents)
    }

    /// Returns the complete archive.
    pub(super) fn finish(mut self) -> Outcome<Vec<u8>> {
        self.entry("TRAILER!!!", 0, &[])?;
        Ok(self.bytes)
    }

    fn parents(&mut self, path: &Path) -> Outcome {
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        for directory in above.into_iter().rev() {
            let name = name_of(directory)?;
            if !name.is_empty() && !self.known.contains(&name) {
                self.entry(&name, DIRECTORY | 0o755, &[])?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) -> Outcome {
        if !self.known.insert(name.to_owned()) {
            return Ok(());
        }
        let len = u32::try_from(contents.len()).map_err(|_| Failure::new(format!("{name}: longer than 4 GiB")))?;
        self.entries += 1;
        // Inode, mode, user, group, links, time, length, four device numbers, the length of the name, and a checksum. A
        // magic number precedes them.
        let fields = [self.entries, mode, 0, 0, 1, 0, len, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes().chain([0]));
        self.pad();
        self.bytes.extend(contents);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Returns the name of an absolute path in an archive, which is the path without its first slash.
fn name_of(path: &Path) -> Outcome<String> {
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let name = path.to_str().and_then(|path| path.strip_prefix('/')).filter(|_| is_plain);
    name.map(str::to_owned)
        .ok_or_else(|| Failure::new(format!("{}: not an absolute path in UTF-8 without `..`", path.display())))
}

#[cfg(test)]
mod tests {
    use super::Archive;
    use std::path::Path;

    #[test]
    fn entries_are_aligned_and_directories_come_first() {
        let mut archive = Archive::default();
        archive.file(Path::new("/a/b/c"), 0o755, b"12345").unwrap();
        archive.file(Path::new("/a/b/d"), 0o644, b"").unwrap();
        archive.link(Path::new("/l"), "a/b").unwrap();
        assert!(archive.has("/a/b") && archive.has("/a/b/d") && !archive.has("/a/b/e"));
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let heads: Vec<usize> =
            (0..bytes.len() - 5).step_by(4).filter(|&at| bytes[at..].starts_with(b"070701")).collect();
        let field = |at: usize, number: usize| {
            let start = at + 6 + 8 * number;
            u32::from_str_radix(std::str::from_utf8(&bytes[start..start + 8]).unwrap(), 16).unwrap()
        };
        let name =
            |at: usize| String::from_utf8_lossy(&bytes[at + 110..at + 109 + field(at, 11) as usize]).into_owned();
        let names: Vec<_> = heads.iter().map(|&at| name(at)).collect();
        assert_eq!(names, ["a", "a/b", "a/b/c", "a/b/d", "l", "TRAILER!!!"]);
        assert_eq!((field(heads[0], 1), field(heads[2], 1), field(heads[2], 6)), (0o040_755, 0o100_755, 5));
    }

    #[test]
    fn existing_archive_entries_are_kept() {
        let mut archive = Archive::default();
        archive.file(Path::new("/a"), 0o755, b"1").unwrap();
        archive.file(Path::new("/a"), 0o755, b"22").unwrap();
        assert!(!archive.finish().unwrap().windows(2).any(|two| two == b"22"));
    }

    #[test]
    fn paths_must_be_absolute() {
        assert!(Archive::default().file(Path::new("a"), 0, b"").is_err());
        assert!(Archive::default().file(Path::new("/a/../b"), 0, b"").is_err());
    }
}
