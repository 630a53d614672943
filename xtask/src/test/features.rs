//! The step that builds the library without cargo features, and with each single feature.

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::on_path;
use crate::steps::Findings;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// The library.
const LIBRARY: &str = "percale";

/// The maximum number of crates in the dependency tree of the library without features. The library itself and the
/// crates of derive macros count.
const MOST_CRATES: usize = 25;

/// Checks that no combination has a warning, that each error names the missing feature, and that there are few
/// dependencies.
pub(super) fn check(place: &Repository) -> Outcome<Findings> {
    let findings = Tally::default();
    let crates = dependencies(place)?;
    findings.add(&format!("{} of {MOST_CRATES} crates", crates.len()), || few(&crates));
    let mut builds: Vec<(String, &str, &str)> = std::iter::once("")
        .chain(features(place, LIBRARY)?)
        .map(|feature| {
            let name = if feature.is_empty() { "no feature".to_owned() } else { format!("`{feature}` alone") };
            (name, LIBRARY, feature)
        })
        .collect();
    // Other crates of the workspace forward features. Without features, they depend only on the library.
    let others = place.packages().iter().filter(|package| package.name != LIBRARY && !package.features.is_empty());
    builds.extend(others.map(|package| (format!("{}, no feature", package.name), package.name.as_str(), "")));
    // The crates of the workspace depend on each other in a row, so that one build uses one processor.
    let second = place.target.join("features");
    let (first, later) = builds.split_at(builds.len().div_ceil(2));
    let compile = |target: &Path, builds: &[(String, &str, &str)]| {
        for (name, package, feature) in builds {
            findings.add(name, || compiles(place, target, package, feature));
        }
    };
    let test = |name: &str, arguments: &[&str]| {
        let cargo = place.cargo().env("CARGO_TARGET_DIR", &second).args(["test", "--quiet"]);
        findings.add(name, || cargo.args(arguments).passed());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| compile(&place.target, first));
        compile(&second, later);
        let errors = ["-p", LIBRARY, "--no-default-features", "--test", "features"];
        test("errors name the feature that is missing", &errors);
        let serialized = ["-p", "percale-region", "--features", "serde", "--lib", "serialized"];
        test("values that peers exchange, in data formats", &serialized);
    });
    let Tally { passed, failed } = findings;
    Ok(Findings::new(passed.into_inner(), failed.into_inner(), format!("{} crates without features", crates.len())))
}

/// The numbers of passed and failed checks.
#[derive(Default)]
struct Tally {
    passed: AtomicUsize,
    failed: AtomicUsize,
}

impl Tally {
    fn add(&self, name: &str, check: impl FnOnce() -> Outcome) {
        let start = Instant::now();
        let word = match check() {
            Ok(()) => {
                self.passed.fetch_add(1, Relaxed);
                "ok".to_owned()
            }
            Err(failure) => {
                self.failed.fetch_add(1, Relaxed);
                format!("FAILED: {failure}")
            }
        };
        println!("  {name:<44} {:>7.1} s {word}", start.elapsed().as_secs_f64());
    }
}

/// Returns the features of a package, except those that are enabled by default.
fn features<'a>(place: &'a Repository, package: &str) -> Outcome<impl Iterator<Item = &'a str>> {
    let found = place.packages().iter().find(|one| one.name == package);
    let found = found.ok_or_else(|| Failure::new(format!("the workspace has no package {package}")))?;
    Ok(found.features.keys().map(String::as_str).filter(|feature| *feature != "default"))
}

/// Checks that the library of a package compiles without a warning with only this feature. If `feature` is empty,
/// checks it without features.
fn compiles(place: &Repository, target: &Path, package: &str, feature: &str) -> Outcome {
    let chosen = ["--quiet", "-p", package, "--lib", "--no-default-features", "--features", feature];
    // Unlike RUSTFLAGS, arguments after `--` apply only to the workspace, so that dependencies are not compiled again.
    let cargo = place.cargo().env("CARGO_TARGET_DIR", target);
    if on_path("cargo-clippy").is_some() {
        return cargo.arg("clippy").args(chosen).args(["--", "-D", "warnings"]).passed();
    }
    cargo.arg("check").args(chosen).passed()
}

/// Returns the crates in the dependency tree of the library without features.
fn dependencies(place: &Repository) -> Outcome<BTreeSet<String>> {
    let tree = ["tree", "-p", LIBRARY, "-e", "normal", "--no-default-features", "--prefix", "none", "--no-dedupe"];
    let output = place.cargo().args(tree).output()?;
    Ok(output.success()?.lines().map(str::to_owned).collect())
}

fn few(crates: &BTreeSet<String>) -> Outcome {
    if (2..=MOST_CRATES).contains(&crates.len()) {
        return Ok(());
    }
    let names: Vec<&str> = crates.iter().filter_map(|line| line.split(" (").next()).collect();
    Err(Failure::new(format!(
        "{LIBRARY} without features has {} crates in its dependency tree, and at most {MOST_CRATES} are allowed; make the \
         new one optional, with a feature of its own (`cargo tree -p {LIBRARY} -e normal --no-default-features` shows what \
         brings it): {}",
        crates.len(),
        names.join(", "),
    )))
}

#[cfg(test)]
mod tests {
    use super::{MOST_CRATES, few};
    use std::collections::BTreeSet;

    #[test]
    fn excess_dependency_is_named() {
        let crates = |count: usize| -> BTreeSet<String> { (0..count).map(|n| format!("crate{n} v1.0.{n}")).collect() };
        assert!(few(&crates(MOST_CRATES)).is_ok());
        let error = few(&crates(MOST_CRATES + 1)).unwrap_err().to_string();
        assert!(error.contains("has 26 crates") && error.contains("crate25 v1.0.25"), "{error}");
        assert!(few(&BTreeSet::new()).is_err(), "nothing was counted");
    }
}
