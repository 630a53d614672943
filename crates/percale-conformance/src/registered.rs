//! Tests of the build script: the tests that it registers, and the sources that it rejects.

#[path = "../build/registry.rs"]
mod registry;

use std::path::Path;

use registry::{Program, Source, Test, Transports};

const FABRICS: &str = "
    pub trait Fabric {}
    pub struct Shm;
    impl Fabric for Shm {}
    impl Transport for Shm {}
    impl Peers for Shm {}
    impl Devices for Shm {}
    pub struct Bounced;
    impl Fabric for Bounced {}
    impl Bounced { fn name() {} }
    impl Default for World {}
";

fn transports() -> Transports {
    Transports::parse("fabric.rs", FABRICS).expect("transports")
}

fn source(text: &str) -> Source {
    Source { file: "src/suite/messages.rs".into(), module: vec!["messages".into()], text: text.into() }
}

fn found(text: &str) -> Result<Vec<Test>, Vec<String>> {
    registry::tests(&[source(text)], &transports())
}

/// Returns the public functions of these sources that the programs do not call. Compares only lines of text,
/// independently of the registry.
fn unregistered(sources: &[Source], programs: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for source in sources {
        let functions = source.text.lines().filter_map(|line| line.trim_start().strip_prefix("pub fn "));
        for name in functions.filter_map(|rest| rest.split_once("<F: ")).map(|(name, _)| name) {
            let path: String = source.module.iter().map(|module| format!("{module}::")).collect();
            if !programs.contains(&format!("suite::{path}{name}::<")) {
                missing.push(format!("{path}{name}"));
            }
        }
    }
    missing
}

fn suite() -> Vec<Source> {
    registry::sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/suite")).expect("the sources of the suite")
}

#[test]
fn every_public_function_of_the_suite_is_registered() {
    let programs = [
        include_str!(concat!(env!("OUT_DIR"), "/conformance.rs")),
        include_str!(concat!(env!("OUT_DIR"), "/device.rs")),
    ];
    let sources = suite();
    assert!(sources.len() > 30, "{} files", sources.len());
    assert_eq!(unregistered(&sources, &programs.concat()), <[String; 0]>::default());
}

#[test]
fn a_function_that_is_not_registered_is_found() {
    let programs = "fabric::run::<fabric::Shm>(suite::messages::one::<fabric::Shm>);";
    let sources =
        [source("pub fn one<F: Fabric>() {}\n\npub fn on<F: Fabric>() {}\n    pub fn two<F: Peers + Real>() {}\n")];
    assert_eq!(unregistered(&sources, programs), ["messages::on", "messages::two"]);
}

#[test]
fn a_test_runs_on_each_transport_with_its_bounds() {
    let text = "
        /// Documented.
        pub fn every<F: Fabric>() {}
        pub fn peers<F: Peers + Transport>() { helper::<F>(1) }
        pub fn device<F: Devices>() {}
        fn helper<F: Fabric>(count: usize) {}
        fn lengths<F: Fabric>() -> Vec<usize> { Vec::new() }
        fn check() {}
        pub(super) fn shared<F: Fabric>(count: usize) {}
    ";
    let tests = found(text).expect("tests");
    assert_eq!(
        tests.iter().map(|test| &*test.path).collect::<Vec<_>>(),
        ["messages::every", "messages::peers", "messages::device"]
    );
    let names = |program| {
        let text = registry::program(program, &tests, &transports());
        let mut module = String::new();
        let mut names = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("mod ").filter(|name| *name != "rust {") {
                module = name.trim_end_matches(" {").to_owned();
            }
            if let Some(name) = line.strip_prefix("fn ") {
                names.push(format!("{module} {}", name.trim_end_matches("() {")));
            }
        }
        names
    };
    assert_eq!(names(Program::Conformance), ["bounced every", "shm every", "shm peers"]);
    assert_eq!(names(Program::Device), ["shm device"]);
}

#[test]
fn test_like_function_that_would_not_run_is_rejected() {
    for (text, reason) in [
        ("fn one<F: Fabric>() {}", "fn one: this looks like a test but would not run"),
        ("pub(super) fn one<F: Fabric>() {}", "fn one: this looks like a test but would not run"),
        ("pub fn one<F: Fabric>(count: usize) {}", "fn one: a public function is a test"),
        ("pub fn one<F: Fabric>() -> usize { 1 }", "fn one: a public function is a test"),
        ("pub fn one<F>() where F: Fabric {}", "fn one: a public function is a test"),
        ("pub fn one<F: Fabric + 'static>() {}", "fn one: a public function is a test"),
        ("pub fn one<F: Fabric, G: Fabric>() {}", "fn one: a public function is a test"),
        ("pub fn one() {}", "fn one: a public function is a test"),
        ("pub async fn one<F: Fabric>() {}", "fn one: a public function is a test"),
        ("pub fn one<F: Fabric + Real>() {}", "fn one: no transport of fabric.rs has all traits"),
        ("#[cfg(loom)] pub fn one<F: Fabric>() {}", "fn one: a test has no other attributes"),
        ("pub mod inner { pub fn one<F: Fabric>() {} }", "mod inner: tests in an inline module"),
        ("#[path = \"x.rs\"] pub mod other;", "mod other: tests in a module with attributes"),
        ("each! { pub fn one<F: Fabric>() {} }", "each!: a public function that a macro makes"),
        ("pub fn one<F: Fabric>() {", "cannot parse string into token stream"),
    ] {
        let errors = found(&format!("\n{text}\npub fn good<F: Fabric>() {{}}")).expect_err(text);
        let [error] = &errors[..] else { panic!("one error of {text}: {errors:?}") };
        assert!(error.starts_with("src/suite/messages.rs:") && error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn each_error_line_contains_its_location() {
    let errors = found("\n\nfn one<F: Fabric>() { ones() }\n\npub fn twofold<F: Fabric>() {}\npub fn two() {}\n")
        .expect_err("two errors");
    let places: Vec<_> = errors.iter().filter_map(|error| error.split_once(": ")).map(|(place, _)| place).collect();
    assert_eq!(places, ["src/suite/messages.rs:3", "src/suite/messages.rs:6"]);
    assert!(Transports::parse("fabric.rs", "struct Shm;").is_err(), "no transport");
}
