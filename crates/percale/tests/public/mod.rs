//! The sources in which the public API of percale is declared, for tests that read them.

use std::path::{Path, PathBuf};

/// Files of internal crates from which percale exports nothing.
pub(crate) const NOT_EXPORTED: &[&str] = &[
    "percale-device/src/arriving.rs",
    "percale-device/src/copied.rs",
    "percale-device/src/mapped.rs",
    "percale-device/src/pinned.rs",
    "percale-region/src/counters.rs",
    "percale-region/src/handle.rs",
    "percale-region/src/keys/hashed.rs",
    "percale-region/src/hold.rs",
    "percale-region/src/keys/mod.rs",
    "percale-region/src/keys/line.rs",
    "percale-region/src/keys/lines.rs",
    "percale-region/src/local.rs",
    "percale-region/src/mapped.rs",
    "percale-region/src/on_device.rs",
    "percale-region/src/parked.rs",
    "percale-region/src/registered.rs",
    "percale-region/src/revocation.rs",
    "percale-region/src/keys/rows.rs",
    "percale-region/src/slice.rs",
    "percale-region/src/stuck.rs",
    "percale-region/src/properties.rs",
    "percale-region/src/access_origin.rs",
    "percale-region/src/windows.rs",
    "percale-region/src/keys/window/cell.rs",
    "percale-region/src/keys/window/table.rs",
];

/// Finds the source files below a folder.
pub(crate) fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}
