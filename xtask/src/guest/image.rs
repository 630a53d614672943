//! The guest's kernel and first file system. They are built from packages once and stored in the target directory.

use super::cpio::Archive;
use super::fetch::BuiltPart;
use super::kept::{FileKind, kept, unpacked};
use super::modules;
use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::Program;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Files that are not copied to the guest: documentation, character sets, and files for other boot methods.
const LEFT_OUT: [&str; 7] = [
    "/usr/share",
    "/usr/lib/x86_64-linux-gnu/gconv",
    "/usr/lib/locale",
    "/lib/modules",
    "/boot",
    "/bin/busybox",
    "/usr/include",
];

/// A kernel and a file system, ready to boot.
pub(super) struct Image {
    pub(super) kernel: PathBuf,
    /// The file system, which is the same in every boot.
    pub(super) base: PathBuf,
    /// The kernel's version, as in the name of its package.
    pub(super) version: String,
    /// The names of the libraries in the file system.
    libraries: Vec<String>,
}

impl Image {
    /// Returns the existing image, or builds a new one. If `anew` is set, the image is built from Debian's current
    /// packages.
    pub(super) fn prepare(place: &Repository, anew: bool) -> Outcome<Self> {
        let kind = FileKind { part: BuiltPart::Guest, prefix: "image-", known: "versions", make };
        Self::load(&kept(&place.target.join("guest"), &kind, &(modules::WANTED, LEFT_OUT, FORM), anew)?)
    }

    fn load(directory: &Path) -> Outcome<Self> {
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read_to_string(&path).map_err(Failure::during(format!("reading {}", path.display())))
        };
        Ok(Self {
            kernel: directory.join("vmlinuz"),
            base: directory.join("base.cpio"),
            version: read("kernel")?.trim().to_owned(),
            libraries: read("libraries")?.lines().map(str::to_owned).collect(),
        })
    }

    /// Returns whether the image has a library of this name.
    pub(super) fn has_library(&self, name: &str) -> bool {
        self.libraries.iter().any(|library| library == name)
    }
}

/// A version number. It must be incremented when `make` builds something else from the same packages.
const FORM: u32 = 1;

fn make(versions: &[String], directory: &Path) -> Outcome {
    let root = unpacked(versions, directory)?;
    let (version, kernel) = kernel_of(&root)?;
    fs::rename(&kernel, directory.join("vmlinuz"))?;
    fs::write(directory.join("kernel"), version + "\n")?;
    let mut archive = Archive::default();
    // Debian's packages contain files in /bin, /sbin and /lib, which are links to directories in /usr.
    for name in ["bin", "sbin", "lib", "lib64"] {
        archive.link(&Path::new("/").join(name), &format!("usr/{name}"))?;
    }
    let mut libraries = Vec::new();
    for (at, file) in files_in(&root, &LEFT_OUT)? {
        if let Some(name) = at.file_name().and_then(|name| name.to_str()).filter(|name| name.contains(".so")) {
            libraries.push(name.to_owned());
        }
        archive.tree(&file, &merged(&at), &|_| true)?;
    }
    archive.file(Path::new("/usr/bin/busybox"), 0o755, &fs::read(root.join("bin/busybox"))?)?;
    add_modules(&mut archive, &root.join("lib/modules"))?;
    fs::write(directory.join("base.cpio"), archive.finish()?)?;
    fs::write(directory.join("libraries"), libraries.join("\n") + "\n")?;
    fs::remove_dir_all(&root)?;
    Ok(())
}

/// Returns the path of a package's file on a system where /bin and similar directories are links.
pub(super) fn merged(path: &Path) -> PathBuf {
    let usr = Path::new("/usr");
    let is_old = ["/bin", "/sbin", "/lib", "/lib64"].iter().any(|old| path.starts_with(old));
    if is_old { usr.join(path.strip_prefix("/").unwrap_or(path)) } else { path.to_owned() }
}

/// Returns the installed path and the current path of every file and link of an unpacked tree, except those that are
/// left out.
pub(super) fn files_in(root: &Path, left_out: &[&str]) -> Outcome<BTreeMap<PathBuf, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next)? {
            let entry = entry?;
            let path = entry.path();
            let installed = Path::new("/").join(path.strip_prefix(root).unwrap_or(&path));
            if left_out.iter().any(|out| installed.starts_with(out)) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                left.push(path);
            } else {
                found.insert(installed, path);
            }
        }
    }
    Ok(found)
}

/// Returns the version and the file of the kernel in an unpacked tree.
fn kernel_of(root: &Path) -> Outcome<(String, PathBuf)> {
    let kernels = fs::read_dir(root.join("boot"))?.collect::<Result<Vec<_>, _>>()?;
    let found = kernels.iter().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some((name.strip_prefix("vmlinuz-")?.to_owned(), entry.path()))
    });
    found.ok_or_else(|| Failure::new("the kernel's package contains no kernel"))
}

/// Adds the modules in /modules, and the order in which they are loaded.
fn add_modules(archive: &mut Archive, directory: &Path) -> Outcome {
    let found = modules::find(directory)?;
    let mut read = BTreeMap::new();
    let order = modules::order(&modules::WANTED, |name| {
        // Modules that are built into the kernel have no file.
        let Some(path) = found.get(name) else {
            return Err(Failure::new(format!("the kernel's package has no module {name}")));
        };
        let module = plain(path)?;
        let needs = modules::needs(&module);
        read.insert(name.to_owned(), module);
        Ok(needs)
    })?;
    for (name, module) in &read {
        archive.file(&Path::new("/modules").join(name), 0o644, module)?;
    }
    archive.file(Path::new("/modules/order"), 0o644, (order.join("\n") + "\n").as_bytes())
}

/// Reads a module and decompresses it, because the program that loads it cannot decompress.
fn plain(path: &Path) -> Outcome<Vec<u8>> {
    if path.extension().is_some_and(|kind| kind == "xz") {
        Program::new("xz").arg("-dk").arg(path).output()?.success()?;
    }
    Ok(fs::read(path.with_extension("").with_extension("ko"))?)
}

#[cfg(test)]
mod tests {
    use super::merged;
    use std::path::Path;

    #[test]
    fn merged_directories_are_below_usr() {
        assert_eq!(merged(Path::new("/sbin/ip")), Path::new("/usr/sbin/ip"));
        assert_eq!(merged(Path::new("/library/x")), Path::new("/library/x"));
        assert_eq!(merged(Path::new("/etc/x")), Path::new("/etc/x"));
    }
}
