//! Builds the C library: libpindown.a by cargo, and from it libpindown.so by the C compiler.
//!
//! rustc passes a list of symbols to the linker when it links a dynamic library. GNU ld does not combine this list with a
//! version script. So cargo builds only the static library, and the dynamic one is linked here, with symbol versions
//! (crates/pindown/libpindown.map) and the soname.

use super::header::Header;
use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::Program;
use std::fs;
use std::path::PathBuf;

/// The library name in programs linked with it. Its number changes when existing programs cannot run with a new
/// library.
pub(super) const SONAME: &str = "libpindown.so.0";

/// The libraries that the standard library of Rust needs. With glibc 2.34 and later, most of them are parts of libc.
pub(super) const NATIVE: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// The built libraries.
pub(super) struct Library {
    pub(super) shared: PathBuf,
    pub(super) archive: PathBuf,
}

/// Builds both libraries.
pub(super) fn build(place: &Repository, header: &Header) -> Outcome<Library> {
    let build = ["rustc", "--release", "--quiet", "-p", "pindown", "--lib", "--crate-type", "staticlib"];
    place.cargo().args(build).passed()?;
    let archive = place.target.join("release/libpindown.a");
    let directory = place.target.join("pindown");
    fs::create_dir_all(&directory).map_err(Failure::during(format!("creating {}", directory.display())))?;
    let shared = directory.join(SONAME);
    let versions = place.root.join("crates/pindown/libpindown.map");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let linked = Program::new(compiler)
        .args(["-shared", "-o"])
        .arg(&shared)
        .arg(format!("-Wl,-soname,{SONAME}"))
        .arg(format!("-Wl,--version-script={}", versions.display()))
        // Only the code that these functions reach becomes part of the library.
        .args(header.functions.iter().map(|function| format!("-Wl,--undefined={}", function.name)))
        .args(["-Wl,--gc-sections", "-Wl,--as-needed", "-Wl,--no-undefined", "-Wl,-z,relro", "-Wl,-z,now"])
        // Threads of the library execute its code until the process exits, so dlclose(3) must not remove it.
        .arg("-Wl,-z,nodelete")
        .arg(&archive)
        .args(NATIVE);
    linked.output()?.success()?;
    Ok(Library { shared, archive })
}
