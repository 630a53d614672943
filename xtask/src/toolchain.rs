//! Parts of Rust's toolchain that not every machine has.

use crate::failure::{Failure, Outcome};
use crate::packages::{self, Needed};
use crate::place::Repository;
use crate::program::Program;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns a program of the nightly toolchain.
pub(crate) fn nightly(name: &str) -> Program {
    // Within a run of cargo, these variables name its toolchain.
    Program::new(name).without("CARGO").without("RUSTC").without("RUSTUP_TOOLCHAIN").arg("+nightly")
}

/// Checks whether the nightly toolchain has the sources of the standard library.
///
/// # Errors
/// If it is not installed, or without the sources.
pub(crate) fn nightly_has_sources() -> Outcome {
    let root = nightly("rustc").args(["--print", "sysroot"]).output()?;
    let sources = Path::new(root.stdout.trim()).join("lib/rustlib/src/rust/library/Cargo.lock");
    if root.status.success() && sources.exists() {
        return Ok(());
    }
    let missing = "the nightly toolchain with the sources of the standard library is not installed: rustup toolchain \
                   install nightly --component rust-src";
    Err(Failure::new(missing))
}

/// The server of Rust's releases, unless the variable of rustup names another one.
const SERVER: (&str, &str) = ("RUSTUP_DIST_SERVER", "https://static.rust-lang.org");

const NEEDED: [Needed; 2] =
    [Needed { program: "curl", package: "curl" }, Needed { program: "xz", package: "xz-utils" }];

/// The time limit of a download.
const LIMIT: Duration = Duration::from_secs(180);

/// Returns the options with which cargo builds for `target`. If the toolchain lacks the standard library for it, rustup
/// adds it. Without rustup, the release's archive is downloaded into the target directory.
///
/// # Errors
/// If the library can be had in neither way.
pub(crate) fn target_options(place: &Repository, target: &str) -> Outcome<Vec<String>> {
    let mut options = vec!["--target".to_owned(), target.to_owned()];
    if !has_library(place, target) {
        // Without rustup, this fails.
        Program::new("rustup").within(&place.root).args(["target", "add", target]).limit(LIMIT).output().ok();
    }
    if !has_library(place, target) {
        let root = library(place, target)?;
        options
            .extend(["--config".to_owned(), format!("target.{target}.rustflags=[\"--sysroot={}\"]", root.display())]);
    }
    Ok(options)
}

/// Returns whether the toolchain has the standard library for a target.
fn has_library(place: &Repository, target: &str) -> bool {
    let found =
        Program::new("rustc").within(&place.root).args(["--print", "target-libdir", "--target", target]).output();
    let Ok(entries) = found.map(|found| Path::new(found.stdout.trim()).read_dir()) else { return false };
    entries.is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("libstd-")))
    })
}

/// Downloads the standard library of the compiler's release for a target, unless it is there. Returns the directory in
/// which the compiler finds it (`--sysroot`).
fn library(place: &Repository, target: &str) -> Outcome<PathBuf> {
    let output = Program::new("rustc").within(&place.root).arg("--version").output()?;
    let release = output.success()?.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let name = format!("rust-std-{release}-{target}");
    let directory = place.target.join("toolchain");
    let root = directory.join(&name).join(format!("rust-std-{target}"));
    // The file exists when the library is complete.
    let complete = directory.join(format!("{name}.complete"));
    if complete.exists() {
        return Ok(root);
    }
    println!("  downloading the standard library for {target}");
    packages::ensure(&NEEDED)?;
    fs::create_dir_all(&directory)?;
    let server = std::env::var(SERVER.0).unwrap_or_else(|_| SERVER.1.to_owned());
    let (archive, sum) = (format!("{name}.tar.xz"), format!("{name}.tar.xz.sha256"));
    for file in [&sum, &archive] {
        let curl = Program::new("curl").args(["--fail", "--silent", "--show-error", "--location", "--retry", "3"]);
        let curl = curl.args(["--output", file]).arg(format!("{server}/dist/{file}"));
        curl.within(&directory).limit(LIMIT).output()?.success()?;
    }
    // Some servers leave out the name of the file behind the checksum.
    let expected = fs::read_to_string(directory.join(&sum))?;
    let found = Program::new("sha256sum").arg(&archive).within(&directory).output()?;
    if found.success()?.split_whitespace().next() != expected.split_whitespace().next() {
        return Err(Failure::new(format!("{archive} has not the checksum that {server}/dist/{sum} states")));
    }
    Program::new("tar").args(["--extract", "--xz", "--file"]).arg(&archive).within(&directory).output()?.success()?;
    fs::remove_file(directory.join(&archive))?;
    fs::write(&complete, "")?;
    Ok(root)
}
