//! Builds libpindown.so and installs it with its header and pkg-config file.

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The destination: DIR/lib, DIR/include and DIR/lib/pkgconfig
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
}

/// The library name in programs linked with it. Its number changes when existing programs cannot run with a new
/// library.
pub(crate) const SONAME: &str = "libpindown.so.0";

/// Returns the arguments of rustc with which the shared library is linked.
pub(crate) fn link_arguments() -> Vec<String> {
    vec!["-C".to_owned(), format!("link-arg=-Wl,-soname,{SONAME}")]
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    fs::create_dir_all(&arguments.prefix)?;
    let prefix = fs::canonicalize(&arguments.prefix)?;
    let build = ["rustc", "--release", "--quiet", "-p", "pindown", "--lib", "--crate-type", "cdylib", "--"];
    place.cargo().args(build).args(link_arguments()).passed()?;
    let package = place.root.join("crates/pindown");
    let template = fs::read_to_string(package.join("pindown.pc.in"))?;
    let described =
        template.replace("@prefix@", &prefix.display().to_string()).replace("@version@", env!("CARGO_PKG_VERSION"));
    let library = fs::read(place.target.join("release/libpindown.so"))?;
    put(&prefix.join("lib").join(SONAME), &library)?;
    let link = prefix.join("lib/libpindown.so");
    match fs::remove_file(&link) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => std::os::unix::fs::symlink(SONAME, &link)?,
    }
    put(&prefix.join("include/pindown.h"), &fs::read(package.join("include/pindown.h"))?)?;
    put(&prefix.join("lib/pkgconfig/pindown.pc"), described.as_bytes())?;
    println!("export PKG_CONFIG_PATH={}", prefix.join("lib/pkgconfig").display());
    Ok(true)
}

/// Writes a file. Running programs keep the old file mapped, because the new library is a new file.
fn put(path: &Path, bytes: &[u8]) -> Outcome<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes).map_err(Failure::during(format!("writing {}", fresh.display())))?;
    fs::rename(&fresh, path)?;
    Ok(())
}
