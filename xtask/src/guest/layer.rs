//! Additional files that some programs need in the guest: a second file system of Debian's packages, which is placed on
//! top of the first if such a program runs. There is one for clients of the provider and one for programs under
//! valgrind.

use super::cpio::Archive;
use super::fetch::BuiltPart;
use super::image::{files_in, merged};
use super::kept::{FileKind, kept, unpacked};
use crate::failure::Outcome;
use crate::place::Repository;
use std::fs;
use std::path::{Path, PathBuf};

/// Documentation, and files that clients do not need.
const LEFT_OUT: [&str; 6] = [
    "/usr/share/doc",
    "/usr/share/man",
    "/usr/share/gdb",
    "/usr/share/lintian",
    "/usr/share/gcc",
    "/usr/share/binfmts",
];

/// The links that a package creates when it is installed.
const LINKS: [(&str, &str); 1] =
    [("/usr/lib/x86_64-linux-gnu/libpsm_infinipath.so.1", "/usr/lib/libpsm1/libpsm_infinipath.so.1.16")];

/// Documentation, files for compiling, and files for other uses of the C library. valgrind's other tools are excluded
/// by [`is_of_memcheck`].
const LEFT_OUT_OF_MEMCHECK: [&str; 6] = [
    "/usr/share",
    "/usr/include",
    "/usr/lib/x86_64-linux-gnu/gconv",
    "/usr/lib/x86_64-linux-gnu/audit",
    "/usr/lib/x86_64-linux-gnu/valgrind",
    "/usr/lib/locale",
];

/// A version number. It must be incremented when something else is built from the same packages.
const FORM: u32 = 2;

const ARCHIVE: &str = "layer.cpio";

/// Returns the archive for clients of the provider. Builds it if there is none.
pub(super) fn clients(place: &Repository, anew: bool) -> Outcome<PathBuf> {
    let kind =
        FileKind { part: BuiltPart::Clients, prefix: "clients-", known: "versions-of-clients", make: make_clients };
    Ok(kept(&place.target.join("guest"), &kind, &(LEFT_OUT, LINKS, FORM), anew)?.join(ARCHIVE))
}

/// Returns the archive for programs under valgrind's memcheck. Builds it if there is none.
pub(super) fn memcheck(place: &Repository, anew: bool) -> Outcome<PathBuf> {
    let kind =
        FileKind { part: BuiltPart::Memcheck, prefix: "memcheck-", known: "versions-of-memcheck", make: make_memcheck };
    Ok(kept(&place.target.join("guest"), &kind, &(LEFT_OUT_OF_MEMCHECK, FORM), anew)?.join(ARCHIVE))
}

fn make_clients(versions: &[String], directory: &Path) -> Outcome {
    make(
        versions,
        directory,
        &LEFT_OUT,
        |_| true,
        |archive| {
            for (at, target) in LINKS {
                archive.link(Path::new(at), target)?;
            }
            archive.file(Path::new("/etc/hosts"), 0o644, b"127.0.0.1 localhost guest\n")?;
            archive.file(Path::new("/etc/passwd"), 0o644, b"root:x:0:0:root:/root:/bin/sh\n")
        },
    )
}

fn make_memcheck(versions: &[String], directory: &Path) -> Outcome {
    make(versions, directory, &LEFT_OUT_OF_MEMCHECK, is_of_memcheck, |_| Ok(()))
}

/// Packs the wanted files of packages, and the additional entries.
fn make(
    versions: &[String],
    directory: &Path,
    left_out: &[&str],
    is_wanted: fn(&Path) -> bool,
    further: fn(&mut Archive) -> Outcome,
) -> Outcome {
    let root = unpacked(versions, directory)?;
    let mut archive = Archive::default();
    for (at, file) in files_in(&root, left_out)? {
        if is_wanted(&at) {
            archive.tree(&file, &merged(&at), &|_| true)?;
        }
    }
    further(&mut archive)?;
    fs::write(directory.join(ARCHIVE), archive.finish()?)?;
    fs::remove_dir_all(&root)?;
    Ok(())
}

/// Returns whether a file is wanted. Of valgrind's tools, only memcheck for this CPU is wanted. All files of other
/// packages are wanted.
fn is_of_memcheck(path: &Path) -> bool {
    const TOOLS: &str = "/usr/libexec/valgrind";
    const WANTED: [&str; 4] =
        ["default.supp", "memcheck-amd64-linux", "vgpreload_core-amd64-linux.so", "vgpreload_memcheck-amd64-linux.so"];
    !path.starts_with(TOOLS) || WANTED.iter().any(|wanted| path.ends_with(wanted))
}

#[cfg(test)]
mod tests {
    use super::is_of_memcheck;
    use std::path::Path;

    #[test]
    fn only_memcheck_files_are_included() {
        let tool = |name: &str| is_of_memcheck(&Path::new("/usr/libexec/valgrind").join(name));
        assert!(tool("memcheck-amd64-linux") && tool("default.supp"));
        assert!(!tool("memcheck-x86-linux") && !tool("callgrind-amd64-linux"));
        assert!(is_of_memcheck(Path::new("/usr/bin/valgrind.bin")));
    }
}
