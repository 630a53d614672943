//! Tests that code that runs under a lock, or in a thread that other threads wait for, records its log events and does
//! not emit them itself.

use std::path::Path;

/// Code that runs under the lock of an endpoint, or in a thread that other threads wait for, emits no events itself.
#[test]
fn code_under_locks_and_in_library_threads_defers_log_events() {
    fn files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for folder in [
        "endpoint/engine",
        "../../percale-transport/src/shm",
        "../../percale-transport/src/tcp",
        "../../percale-transport/src/verbs",
        "../../percale-verbs/src",
        "../../percale-transport/src/loopback",
        "../../percale-transport/src/connect",
    ] {
        files(&root.join(folder), &mut found);
    }
    found.extend(["endpoint/reactor.rs", "../../percale-transport/src/background.rs"].map(|file| root.join(file)));
    assert!(found.len() > 50);
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        for level in ["trace", "debug", "info", "warn", "error"] {
            assert!(!text.contains(&format!("tracing::{level}!")), "{} logs under a lock", path.display());
        }
    }
}
