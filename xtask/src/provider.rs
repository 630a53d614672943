//! Builds the libfabric provider and puts it where libfabric can find it, with the headers of what it has beyond libfabric.

use crate::failure::{Failure, Outcome};
use crate::place::Place;
use crate::program::Program;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// libfabric loads only files with names that end like this.
pub(crate) const NAME: &str = "libpercale-fi.so";

/// What libfabric looks for in it.
const ENTRY: &str = "fi_prov_ini";

/// What C programs include that use more of it than libfabric knows.
const HEADERS: [&str; 2] = ["crates/percale-ofi/include/percale_fi_ext.h", "crates/pindown/include/pindown.h"];

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
    exports_only(&path, ENTRY)?;
    let headers = directory.join("include");
    fs::create_dir_all(&headers)?;
    for header in HEADERS {
        let from = place.root.join(header);
        let name = from.file_name().unwrap_or_default();
        fs::copy(&from, headers.join(name)).map_err(Failure::during(format!("copying {header}")))?;
    }
    Ok(directory)
}

/// A program may load other libraries with the names that this one has inside.
fn exports_only(library: &Path, entry: &str) -> Outcome<()> {
    let listed = Program::new("nm").args(["-D", "--defined-only"]).arg(library).output()?;
    let names: Vec<_> = listed.success()?.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    if names == [entry] { Ok(()) } else { Err(Failure::new(format!("{} exports {names:?}", library.display()))) }
}
