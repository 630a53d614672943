//! Builds the C library: libpindown.a by cargo, and from it libpindown.so by the C compiler.
//!
//! rustc passes a list of symbols to the linker when it links a dynamic library. GNU ld does not combine this list with a
//! version script. So cargo builds only the static library, and the dynamic one is linked here, with symbol versions
//! (crates/pindown/libpindown.map) and the soname.

use super::header;
use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::Program;
use std::fs;
use std::path::{Path, PathBuf};

/// The library name in programs linked with it. Its number changes when existing programs cannot run with a new
/// library.
pub(crate) const SONAME: &str = "libpindown.so.0";

/// The built libraries.
pub(super) struct Library {
    pub(super) shared: PathBuf,
    pub(super) archive: PathBuf,
}

/// Builds both libraries.
pub(super) fn build(place: &Repository) -> Outcome<Library> {
    let build = ["rustc", "--release", "--quiet", "-p", "pindown", "--lib", "--crate-type", "staticlib"];
    place.cargo().args(build).passed()?;
    let archive = place.target.join("release/libpindown.a");
    let directory = place.target.join("pindown");
    fs::create_dir_all(&directory).map_err(Failure::during(format!("creating {}", directory.display())))?;
    let shared = directory.join(SONAME);
    link_shared(&place.root, &archive, &shared)?;
    Ok(Library { shared, archive })
}

/// Links the shared library from the static one. `root` is the repository that the static one was built from.
pub(crate) fn link_shared(root: &Path, archive: &Path, shared: &Path) -> Outcome {
    let package = root.join("crates/pindown");
    let read =
        |path: PathBuf| fs::read_to_string(&path).map_err(Failure::during(format!("reading {}", path.display())));
    let header = header::parse(&read(package.join("include/pindown.h"))?)?;
    let description = read(package.join("pindown.pc.in"))?;
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let linked = Program::new(compiler)
        .args(["-shared", "-o"])
        .arg(shared)
        .arg(format!("-Wl,-soname,{SONAME}"))
        .arg(format!("-Wl,--version-script={}", package.join("libpindown.map").display()))
        // Only the code that these functions reach becomes part of the library.
        .args(header.functions.iter().map(|function| format!("-Wl,--undefined={}", function.name)))
        .args(["-Wl,--gc-sections", "-Wl,--as-needed", "-Wl,--no-undefined", "-Wl,-z,relro", "-Wl,-z,now"])
        // Threads of the library execute its code until the process exits, so dlclose(3) must not remove it.
        .arg("-Wl,-z,nodelete")
        .arg(archive)
        .args(private_libraries(&description));
    linked.output()?.success().map(drop)
}

/// Returns the libraries that the static library needs, as pindown.pc.in lists them. With glibc 2.34 and later, most of
/// them are parts of libc.
fn private_libraries(description: &str) -> impl Iterator<Item = &str> {
    let list = description.lines().find_map(|line| line.strip_prefix("Libs.private:"));
    list.unwrap_or_default().split_whitespace()
}

#[cfg(test)]
mod tests {
    use super::private_libraries;

    #[test]
    fn private_libraries_are_those_of_the_description() {
        let description = "prefix=/usr\nLibs: -lpindown\nLibs.private: -lgcc_s -lm\nCflags:\n";
        assert_eq!(private_libraries(description).collect::<Vec<_>>(), ["-lgcc_s", "-lm"]);
    }
}
