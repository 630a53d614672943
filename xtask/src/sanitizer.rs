//! Builds parts of the workspace with AddressSanitizer, and runs them.

use crate::failure::Outcome;
use crate::place::Repository;
use crate::program::Program;
use std::path::{Path, PathBuf};

/// The profile of instrumented programs: optimized, with debug assertions and overflow checks.
const PROFILE: &str = "search";

/// Builds the packages and targets that cargo's arguments select, and returns the directory of the results.
pub(crate) fn build(place: &Repository, selected: &[&str]) -> Outcome<PathBuf> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let target = place.target.join("asan");
    let build = place.cargo().args(["build", "--quiet", "--profile", PROFILE]).args(selected);
    // With a target of its own, the flag does not apply to build scripts and macros.
    let build = build.args(["--target", &triple]);
    // The flag is unstable, but the stable compiler supports it.
    let build = build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    build.env("CARGO_TARGET_DIR", &target).passed()?;
    Ok(target.join(triple).join(PROFILE))
}

/// Returns the program `name` that [`build`] built in this directory. A report ends the program.
pub(crate) fn program(directory: &Path, name: &str) -> Program {
    // Leaks are not reported, because workers and helper threads end without running destructors.
    let options = "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1";
    Program::new(directory.join(name)).env("ASAN_OPTIONS", options)
}
