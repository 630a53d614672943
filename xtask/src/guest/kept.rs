//! Files that are built from packages once, and stored in the target directory until the packages change.

use super::fetch::{self, BuiltPart};
use crate::failure::Outcome;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// A set of files that `kept` builds.
pub(super) struct FileKind<'a> {
    pub(super) part: BuiltPart,
    /// The prefix of the names of its directories.
    pub(super) prefix: &'a str,
    /// The file with the list of packages from which the latest directory was built.
    pub(super) known: &'a str,
    /// Builds the files from these packages, in this directory, which does not exist yet.
    pub(super) make: fn(&[String], &Path) -> Outcome,
}

/// Returns the existing directory, or builds a new one. `what` contains the inputs other than the packages. If `anew`
/// is set, the directory is built from Debian's current packages.
pub(super) fn kept(top: &Path, kind: &FileKind<'_>, what: &impl Hash, anew: bool) -> Outcome<PathBuf> {
    let known = top.join(kind.known);
    let made = |versions: &[String]| top.join(format!("{}{:016x}", kind.prefix, digest(versions, what)));
    if let (false, Ok(text)) = (anew, fs::read_to_string(&known)) {
        let versions: Vec<String> = text.lines().map(str::to_owned).collect();
        if made(&versions).exists() {
            return Ok(made(&versions));
        }
    }
    let versions = fetch::versions(kind.part)?;
    let directory = made(&versions);
    if !directory.exists() {
        let fresh = top.join("fresh");
        if fresh.exists() {
            fs::remove_dir_all(&fresh)?;
        }
        (kind.make)(&versions, &fresh)?;
        remove(top, kind.prefix)?;
        fs::rename(&fresh, &directory)?;
    }
    fs::write(&known, versions.join("\n") + "\n")?;
    Ok(directory)
}

/// Returns a hash for the name of a directory. It changes with the versions of the packages and with the other inputs.
fn digest(versions: &[String], what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    versions.hash(&mut hasher);
    what.hash(&mut hasher);
    hasher.finish()
}

/// Removes the directories of other versions, which are large and no longer needed.
fn remove(top: &Path, prefix: &str) -> Outcome {
    for entry in fs::read_dir(top)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Creates a directory, downloads packages, and unpacks them below `root` in this directory. Returns this root.
pub(super) fn unpacked(versions: &[String], directory: &Path) -> Outcome<PathBuf> {
    let (packages, root) = (directory.join("packages"), directory.join("root"));
    fs::create_dir_all(&packages)?;
    eprintln!("  fetching {} packages", versions.len());
    fetch::download(versions, &packages)?;
    eprintln!("  unpacking the packages");
    fetch::unpack(versions, &packages, &root)?;
    fs::remove_dir_all(&packages)?;
    Ok(root)
}
