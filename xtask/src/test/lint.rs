//! The steps that check the source without running it.

use crate::failure::Outcome;
use crate::place::Repository;
use crate::program::on_path;
use crate::steps::Findings;

pub(super) fn format(place: &Repository) -> Outcome<Findings> {
    if on_path("rustfmt").is_none() {
        return Ok(Findings::skipped("rustfmt is not installed: rustup component add rustfmt"));
    }
    place.cargo().args(["fmt", "--all", "--check"]).passed()?;
    Ok(Findings::default())
}

pub(super) fn clippy(place: &Repository) -> Outcome<Findings> {
    if on_path("cargo-clippy").is_none() {
        return Ok(Findings::skipped("clippy is not installed: rustup component add clippy"));
    }
    place.cargo().args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]).passed()?;
    Ok(Findings::default())
}

/// Builds only the documentation of libraries, because the command and the library have the same name and would use the
/// same pages.
pub(super) fn docs(place: &Repository) -> Outcome<Findings> {
    let program = place.cargo().args(["doc", "--quiet", "--workspace", "--no-deps", "--lib"]);
    program.env("RUSTDOCFLAGS", "-D warnings").passed()?;
    Ok(Findings::default())
}
