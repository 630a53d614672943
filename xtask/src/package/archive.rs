//! The archive for other distributions: all files, with an install script.

use super::debian::{description, same_times};
use super::release::Release;
use super::source::Source;
use super::stage::Stage;
use crate::failure::{Failure, Outcome};
use crate::program::Program;
use std::fs;
use std::path::Path;

/// Strips the programs and libraries below `$1` as debhelper does.
const STRIP: &str = "set -eu
strip --remove-section=.comment --remove-section=.note \"$1\"/bin/* \"$1\"/sbin/*
strip --strip-unneeded --remove-section=.comment --remove-section=.note \"$1\"/lib/libpindown.so.0 \"$1\"/lib/libfabric/*.so
strip --strip-debug --enable-deterministic-archives \"$1\"/lib/libpindown.a";

/// Writes the archive to `results`.
pub(super) fn build(source: &Source, stage: &Stage, release: &Release, results: &Path) -> Outcome {
    println!("  building the archive");
    let name = format!("percale-{}-linux-{}", release.version, std::env::consts::ARCH);
    let root = source.root.join(&name);
    let copy = |from: &Path, to: &Path| -> Outcome {
        Program::new("cp").arg("-R").arg(from).arg(to).output()?.success().map(drop)
    };
    copy(&stage.root, &root)?;
    fs::remove_file(root.join("pindown.pc"))?;
    copy(&source.root.join("crates/pindown/packaging"), &root.join("service"))?;
    copy(&source.root.join("packaging/install.sh"), &root.join("install.sh"))?;
    // The script fills in the prefix.
    let template = fs::read_to_string(source.root.join("crates/pindown/pindown.pc.in"))?;
    fs::write(root.join("pindown.pc.in"), description(&template, &release.version, "@prefix@", None))?;
    Program::new("sh").args(["-c", STRIP, "strip"]).arg(&root).output()?.success()?;
    Program::new("chmod").arg("-R").arg("u=rwX,go=rX").arg(&root).output()?.success()?;
    same_times(&root, release)?;
    let tar = Program::new("tar").args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    let plain = results.join(format!("{name}.tar"));
    let tar = tar.args(["--format=ustar", "--file"]).arg(&plain).arg("--directory").arg(&source.root).arg(&name);
    tar.output()?.success()?;
    let gzip = Program::new("gzip").args(["--force", "--no-name", "-9"]).arg(&plain).output()?;
    gzip.success().map(drop).map_err(Failure::during("compressing the archive"))
}
