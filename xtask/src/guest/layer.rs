//! What clients of the provider run with in the guest: a second file system of Debian's packages, laid over the first one
//! where a client runs.

use super::cpio::Archive;
use super::fetch::Part;
use super::image::{files_in, merged};
use super::kept::{Kind, kept, unpacked};
use crate::failure::Outcome;
use crate::place::Place;
use std::fs;
use std::path::{Path, PathBuf};

/// Documents, and what others than clients want.
const LEFT_OUT: [&str; 6] = [
    "/usr/share/doc",
    "/usr/share/man",
    "/usr/share/gdb",
    "/usr/share/lintian",
    "/usr/share/gcc",
    "/usr/share/binfmts",
];

/// Links that a package makes when it is installed.
const LINKS: [(&str, &str); 1] =
    [("/usr/lib/x86_64-linux-gnu/libpsm_infinipath.so.1", "/usr/lib/libpsm1/libpsm_infinipath.so.1.16")];

/// Grows when `make` makes something else of the same packages.
const FORM: u32 = 1;

/// The archive: the one made earlier, else a new one.
pub(super) fn prepare(place: &Place, anew: bool) -> Outcome<PathBuf> {
    let kind = Kind { part: Part::Clients, prefix: "clients-", known: "versions-of-clients", make };
    let directory = kept(&place.target.join("guest"), &kind, &(LEFT_OUT, LINKS, FORM), anew)?;
    Ok(directory.join("clients.cpio"))
}

fn make(versions: &[String], directory: &Path) -> Outcome {
    let root = unpacked(versions, directory)?;
    let mut archive = Archive::default();
    for (at, file) in files_in(&root, &LEFT_OUT)? {
        archive.tree(&file, &merged(&at), &|_| true)?;
    }
    for (at, target) in LINKS {
        archive.link(Path::new(at), target)?;
    }
    archive.file(Path::new("/etc/hosts"), 0o644, b"127.0.0.1 localhost guest\n")?;
    archive.file(Path::new("/etc/passwd"), 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
    fs::write(directory.join("clients.cpio"), archive.finish()?)?;
    fs::remove_dir_all(&root)?;
    Ok(())
}
