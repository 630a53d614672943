//! The files in which libfabric may be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::FILE;

/// The maximum number of files that are examined.
const MOST: usize = 16;

/// The files that are examined.
#[derive(Debug, Default)]
pub(in crate::doctor) struct Candidates {
    /// The names and paths to load. The first is the name alone, for which the loader chooses a file, unless the user
    /// has named directories.
    pub(in crate::doctor) files: Vec<PathBuf>,
    /// The paths from which the loader chooses, in its order.
    pub(super) of_loader: Vec<PathBuf>,
    /// The directories that the user has named.
    pub(super) named: Vec<PathBuf>,
}

impl Candidates {
    /// Returns the text that no file is in the directories that the user has named, if this is so.
    pub(in crate::doctor) fn none_in_named(&self) -> Option<String> {
        let names: Vec<String> = self.named.iter().map(|path| path.display().to_string()).collect();
        (!names.is_empty() && self.files.is_empty()).then(|| format!("no {FILE} in {}", names.join(", ")))
    }
}

/// Returns the files to examine.
pub(in crate::doctor) fn candidates(named: &[PathBuf]) -> Candidates {
    if !named.is_empty() {
        return Candidates { files: files_in(named.to_vec()), of_loader: Vec::new(), named: named.to_vec() };
    }
    let mut directories = ["/usr/lib64", "/usr/local/lib", "/usr/local/lib64"].map(PathBuf::from).to_vec();
    directories.extend(below(Path::new("/usr/lib")));
    // /opt/PACKAGE/lib and /opt/VENDOR/PACKAGE/lib.
    for package in below(Path::new("/opt")) {
        for inner in below(&package).into_iter().chain([package]) {
            directories.extend(["lib", "lib64"].map(|name| inner.join(name)));
        }
    }
    // The program takes few descriptors, so that their limit does not hide the cache.
    let listed = Command::new("/sbin/ldconfig").arg("-p").stdin(Stdio::inherit()).stderr(Stdio::inherit()).output();
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let of_loader = distinct(files_in(directories_of("LD_LIBRARY_PATH")).into_iter().chain(in_cache(&listed)));
    let mut files = vec![PathBuf::from(FILE)];
    files.extend(distinct(of_loader.iter().cloned().chain(files_in(directories))));
    files.truncate(MOST);
    Candidates { files, of_loader, named: Vec::new() }
}

/// Returns the directories that a variable names.
pub(super) fn directories_of(variable: &str) -> Vec<PathBuf> {
    let value = std::env::var_os(variable).unwrap_or_default();
    std::env::split_paths(&value).filter(|path| path.is_absolute()).collect()
}

/// Returns the paths of libfabric in the output of `ldconfig -p`.
fn in_cache(listed: &str) -> impl Iterator<Item = PathBuf> {
    listed.lines().filter_map(|line| {
        let (name, path) = line.trim().split_once(" => ")?;
        (name.split(' ').next() == Some(FILE)).then(|| PathBuf::from(path))
    })
}

/// Returns the directories in a directory, in the order of their names.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort_unstable();
    found
}

fn files_in(directories: Vec<PathBuf>) -> Vec<PathBuf> {
    distinct(directories.into_iter().map(|directory| directory.join(FILE)).filter(|path| path.exists()))
}

/// Removes other paths of a file that precedes them.
fn distinct(paths: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for path in paths {
        let path = fs::canonicalize(&path).unwrap_or(path);
        if !all.contains(&path) {
            all.push(path);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_cache_is_read() {
        let listed = "2 libs found in cache\n\tlibfabric.so.1 (libc6,x86-64) => /lib/x/libfabric.so.1\n\
                      \tlibfabric.so (libc6,x86-64) => /lib/x/libfabric.so\n\tlibz.so.1 (libc6) => /lib/libz.so.1\n";
        assert_eq!(in_cache(listed).collect::<Vec<_>>(), [PathBuf::from("/lib/x/libfabric.so.1")]);
        assert_eq!(in_cache("").count(), 0);
    }

    #[test]
    fn named_directories_are_the_only_ones() {
        let root = std::env::temp_dir().join(format!("percale-doctor-search-{}", std::process::id()));
        let [one, other, empty] = ["a", "b", "c"].map(|name| root.join(name));
        for directory in [&one, &other, &empty] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(one.join(FILE), "").unwrap();
        std::os::unix::fs::symlink(one.join(FILE), other.join(FILE)).unwrap();
        let none = candidates(std::slice::from_ref(&empty)).none_in_named();
        assert_eq!(none, Some(format!("no {FILE} in {}", empty.display())));
        let found = candidates(&[one.clone(), other, empty]).files;
        let expected = fs::canonicalize(one.join(FILE)).unwrap();
        assert_eq!(below(&root).len(), 3);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [expected], "the link leads to the same file");
        assert_eq!(candidates(&[]).files[0], Path::new(FILE), "the loader's choice is first");
    }
}
