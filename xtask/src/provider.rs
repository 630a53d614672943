//! Builds the libfabric provider and places it where libfabric can find it, with the headers of its extensions.

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::Program;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// libfabric loads only files whose names have this ending.
pub(crate) const NAME: &str = "libpercale-fi.so";

/// The symbol that libfabric looks up in the provider.
const ENTRY: &str = "fi_prov_ini";

/// The headers of the provider's extensions, which C programs include.
const HEADERS: [&str; 2] = ["crates/percale-ofi/include/percale_fi_ext.h", "crates/pindown/include/pindown.h"];

pub(crate) fn run(place: &Repository, _arguments: &Arguments) -> Outcome<bool> {
    println!("export FI_PROVIDER_PATH={}", build(place)?.display());
    Ok(true)
}

/// Builds the provider. Returns the directory for FI_PROVIDER_PATH.
pub(crate) fn build(place: &Repository) -> Outcome<PathBuf> {
    place.cargo().args(["build", "--release", "--quiet", "-p", "percale-ofi", "--lib"]).passed()?;
    let built = place.target.join("release").join("libpercale_fi.so");
    let directory = place.target.join("provider");
    fs::create_dir_all(&directory)?;
    let path = directory.join(NAME);
    // A running program keeps the old file mapped, because the new library is a new file.
    let fresh = path.with_extension("new");
    fs::copy(&built, &fresh).map_err(Failure::during(format!("copying {}", built.display())))?;
    fs::rename(&fresh, &path)?;
    exports_entry_only(&path)?;
    let headers = directory.join("include");
    fs::create_dir_all(&headers)?;
    for header in HEADERS {
        let from = place.root.join(header);
        let name = from.file_name().unwrap_or_default();
        fs::copy(&from, headers.join(name)).map_err(Failure::during(format!("copying {header}")))?;
    }
    Ok(directory)
}

/// Checks that the library exports only its entry point. A program may load other libraries that define the same
/// internal names.
pub(crate) fn exports_entry_only(library: &Path) -> Outcome<()> {
    let listed = Program::new("nm").args(["-D", "--defined-only"]).arg(library).output()?;
    let names: Vec<_> = listed.success()?.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    if names == [ENTRY] { Ok(()) } else { Err(Failure::new(format!("{} exports {names:?}", library.display()))) }
}
