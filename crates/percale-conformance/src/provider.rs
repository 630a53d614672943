//! The libfabric provider that cargo built with a test program, and libfabric's headers for C programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Copies the provider to a directory, under the name by which libfabric finds it there (FI_PROVIDER_PATH). Creates the
/// directory if it is missing. There may be a dynamic library next to the test and one in the parent directory. The
/// newer one is copied.
///
/// # Panics
/// Panics if there is none, or if it cannot be copied.
pub fn copy_to(directory: &Path) {
    fs::create_dir_all(directory).expect("a directory");
    fs::copy(built(), directory.join("libpercale-fi.so")).expect("a copy of the provider");
}

fn built() -> PathBuf {
    let test = std::env::current_exe().expect("the name of this program");
    let near = test.ancestors().skip(1).take(2).map(|directory| directory.join("libpercale_fi.so"));
    let made = |file: &PathBuf| fs::metadata(file).and_then(|file| file.modified()).ok();
    let newest = near.filter(|file| file.exists()).max_by_key(made);
    newest.expect("cargo builds the dynamic library with the package's tests")
}

/// Returns whether libfabric's headers are installed.
#[must_use]
pub fn has_headers() -> bool {
    let mut check = Command::new("cc");
    check.args(["-E", "-include", "rdma/fabric.h", "-x", "c", "/dev/null", "-o", "/dev/null"]);
    check.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
