//! Toolchains other than the one that runs, and those that can build the standard library from its sources: with a
//! sanitizer, or for another processor.

use crate::failure::{Failure, Outcome};
use crate::packages::{self, Needed};
use crate::place::Repository;
use crate::program::Program;
use std::path::Path;

/// The sources of the standard library, and a compiler of the same version, as Debian packages.
const DEBIAN: [Needed; 3] = [
    Needed { program: "/usr/bin/cargo", package: "cargo-web" },
    Needed { program: "/usr/bin/rustc", package: "rustc-web" },
    Needed { program: "/usr/lib/rustlib/src/rust/library/Cargo.lock", package: "rust-web-src" },
];

/// A file of the sources, in the directory of a toolchain.
const SOURCES: &str = "lib/rustlib/src/rust/library/Cargo.lock";

/// A toolchain that can build the standard library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SourceToolchain {
    /// The nightly toolchain of rustup, with the component `rust-src`.
    Nightly,
    /// Debian's compiler. It has no runtimes of sanitizers.
    Debian,
}

impl SourceToolchain {
    /// Returns the nightly toolchain.
    ///
    /// # Errors
    /// If it is not installed, or without the sources of the library.
    pub(crate) fn nightly() -> Outcome<Self> {
        let root = nightly("rustc").args(["--print", "sysroot"]).output()?;
        if root.status.success() && Path::new(root.stdout.trim()).join(SOURCES).exists() {
            return Ok(Self::Nightly);
        }
        let missing = "the nightly toolchain with the sources of the standard library is not installed: rustup \
                       toolchain install nightly --component rust-src";
        Err(Failure::new(missing))
    }

    /// Returns the nightly toolchain if it has the sources of the library, or else Debian's compiler, which is installed
    /// if needed.
    ///
    /// # Errors
    /// If neither is installed and Debian's packages cannot be installed.
    pub(crate) fn find() -> Outcome<Self> {
        if let Ok(found) = Self::nightly() {
            return Ok(found);
        }
        packages::ensure(&DEBIAN).map_err(Failure::during(
            "the sources of the standard library (rustup toolchain install nightly --component rust-src, or Debian \
             packages)",
        ))?;
        Ok(Self::Debian)
    }

    /// Returns the cargo of the toolchain, with this command, which builds the standard library too.
    pub(crate) fn cargo(self, place: &Repository, command: &str) -> Program {
        let cargo = match self {
            Self::Nightly => nightly("cargo"),
            Self::Debian => elsewhere("/usr/bin/cargo").env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1"),
        };
        cargo.within(&place.root).args([command, "-Zbuild-std"])
    }
}

/// Returns a program of the nightly toolchain.
pub(crate) fn nightly(name: &str) -> Program {
    elsewhere(name).arg("+nightly")
}

/// Returns a program of another toolchain than the one that runs.
fn elsewhere(name: &str) -> Program {
    // Within a run of cargo, these variables name its toolchain.
    Program::new(name).without("CARGO").without("RUSTC").without("RUSTUP_TOOLCHAIN")
}
