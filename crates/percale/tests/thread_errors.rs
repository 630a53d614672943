//! Tests the text of the compiler's errors for programs that would share an endpoint of one owner between threads. The
//! programs are compiled against the library that was built for this test.
#![cfg(not(any(miri, loom)))]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// Compiles a program against a library. Returns the text of the errors, or `None` if there are none.
fn errors(library: &Path, program: &str) -> Option<String> {
    use std::io::Write as _;
    let libraries = library.parent().expect("a directory");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", "--crate-type", "lib", "--crate-name", "program", "--emit", "metadata"]);
    // The compiler replaces its output file, so that must not be a device.
    rustc.arg("--out-dir").arg(env!("CARGO_TARGET_TMPDIR"));
    rustc.arg("-L").arg(format!("dependency={}", libraries.display()));
    rustc.arg("--extern").arg(format!("percale={}", library.display())).arg("-");
    let rustc = rustc.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut rustc = rustc.spawn().expect("a compiler");
    rustc.stdin.take().expect("a pipe").write_all(program.as_bytes()).expect("the compiler reads the program");
    let output = rustc.wait_with_output().expect("the compiler ends");
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns the library with which this test was built: the newest one for which a program compiles.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let files = std::fs::read_dir(test.parent().expect("a directory")).expect("the directory of this test");
    let is_library = |path: &PathBuf| {
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("libpercale-") && path.extension() == Some(OsStr::new("rlib"))
    };
    let mut libraries: Vec<_> = files.flatten().map(|file| file.path()).filter(is_library).collect();
    let built = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    libraries.sort_by_key(|path| std::cmp::Reverse(built(path)));
    let program = "pub fn f(endpoint: percale::SharedEndpoint) { std::thread::spawn(move || endpoint.progress()); }";
    let found = libraries.iter().find(|library| errors(library, program).is_none());
    found.unwrap_or_else(|| panic!("no library compiles this program: {libraries:?}")).clone()
}

/// Checks that a program is rejected with one error, which leads to `SharedEndpoint`.
#[track_caller]
fn check(library: &Path, program: &str) {
    let text = errors(library, program).expect("the program is rejected");
    assert_eq!(text.lines().filter(|line| line.starts_with("error")).count(), 2, "one error and the summary: {text}");
    for part in ["`SharedEndpoint`", "`bind_shared`", "`Endpoint::share`", "one thread"] {
        assert!(text.contains(part), "{part} is not in the text: {text}");
    }
    assert!(!text.contains("RwLock") && !text.contains("RefCell"), "{text}");
}

#[test]
fn sharing_an_endpoint_of_one_owner_is_an_error_that_names_the_shared_one() {
    let library = library();
    // A borrowed endpoint.
    check(
        &library,
        "pub fn f(endpoint: &percale::Endpoint) {
            std::thread::scope(|threads| { threads.spawn(|| endpoint.progress()); });
        }",
    );
    check(
        &library,
        "pub fn f(endpoint: percale::Endpoint) {
            let endpoint = std::sync::Arc::new(endpoint);
            std::thread::spawn(move || endpoint.progress());
        }",
    );
    // The bounds of `tokio::spawn`.
    let spawn = "fn spawn<F: Future<Output: Send + 'static> + Send + 'static>(_: F) {}";
    check(
        &library,
        &format!(
            "{spawn}
            async fn task(endpoint: percale::Endpoint, peer: percale::PeerAddress) {{
                drop(endpoint.send(peer, vec![1]).await);
            }}
            pub fn f(endpoint: percale::Endpoint, peer: percale::PeerAddress) {{ spawn(task(endpoint, peer)); }}"
        ),
    );
    check(
        &library,
        &format!(
            "{spawn}
            pub fn f(endpoint: &'static percale::Endpoint, peer: percale::PeerAddress) {{
                spawn(endpoint.send(peer, vec![1]).start().expect(\"posted\"));
            }}"
        ),
    );
}

#[test]
fn programs_that_move_or_share_endpoints_compile() {
    let library = library();
    for program in [
        "pub fn f(endpoint: percale::Endpoint) { std::thread::spawn(move || endpoint.progress()); }",
        "pub fn f(endpoint: &percale::SharedEndpoint) {
            std::thread::scope(|threads| { threads.spawn(|| endpoint.progress()); });
        }",
    ] {
        assert_eq!(errors(&library, program), None);
    }
}
