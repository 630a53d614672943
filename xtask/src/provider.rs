//! Builds the libfabric provider and puts it where libfabric can find it.

use crate::failure::{Failure, Outcome};
use crate::place::Place;
use std::fs;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// libfabric loads only files whose names end like this one's.
const NAME: &str = "libpercale-fi.so";

pub(crate) fn run(place: &Place, _arguments: &Arguments) -> Outcome<bool> {
    println!("export FI_PROVIDER_PATH={}", build(place)?.display());
    Ok(true)
}

/// Builds it; returns the directory to name in FI_PROVIDER_PATH.
pub(crate) fn build(place: &Place) -> Outcome<PathBuf> {
    place.cargo().args(["build", "--release", "--quiet", "-p", "percale-ofi", "--lib"]).passed()?;
    let built = place.target.join("release").join("libpercale_fi.so");
    let directory = place.target.join("provider");
    fs::create_dir_all(&directory)?;
    let path = directory.join(NAME);
    // A program that has the old one mapped keeps it: the new one is another file.
    let fresh = path.with_extension("new");
    fs::copy(&built, &fresh).map_err(Failure::during(format!("copying {}", built.display())))?;
    fs::rename(&fresh, &path)?;
    Ok(directory)
}
