//! Registers the tests of the suite. Writes the functions with `#[test]` that the test programs `conformance` and
//! `device` include.

mod registry;

use std::fs;
use std::path::{Path, PathBuf};

use registry::{Program, Source, Transports};

/// The tests.
const SUITE: &str = "src/suite";
/// The transports.
const FABRICS: &str = "src/fabric.rs";

fn main() {
    // Cargo watches all files below a directory.
    for input in ["build", SUITE, FABRICS] {
        println!("cargo::rerun-if-changed={input}");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR"));
    let written = registry::sources(Path::new(SUITE))
        .and_then(|sources| registered(&sources))
        .map(|programs| programs.into_iter().try_for_each(|(name, text)| fs::write(out.join(name), text)));
    match written {
        Ok(written) => written.expect("OUT_DIR can be written to"),
        Err(errors) => errors.iter().for_each(|error| println!("cargo::error={error}")),
    }
}

/// Returns the files to write, by name.
fn registered(sources: &[Source]) -> Result<[(&'static str, String); 2], Vec<String>> {
    let text = fs::read_to_string(FABRICS).map_err(|error| vec![format!("{FABRICS}: {error}")])?;
    let transports = Transports::parse(FABRICS, &text)?;
    let tests = registry::tests(sources, &transports)?;
    Ok([
        ("conformance.rs", registry::program(Program::Conformance, &tests, &transports)),
        ("device.rs", registry::program(Program::Device, &tests, &transports)),
    ])
}
