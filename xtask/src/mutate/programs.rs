//! The test programs of the copy, and the tests in them.

use super::list::Mutation;
use super::tree::Tree;
use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::{Program as Run, Stream};
use crate::test::{DOUBLE, VERBS};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);

/// A test program.
#[derive(Debug)]
pub(super) struct Program {
    /// The step of `cargo xtask test` that runs it.
    step: &'static str,
    name: String,
    path: PathBuf,
    /// The directory of its package.
    directory: PathBuf,
    /// The test double of libibverbs, for the tests over verbs.
    double: Option<PathBuf>,
}

impl Program {
    pub(super) fn key(&self) -> String {
        format!("{} {}", self.step, self.name)
    }

    /// Returns whether the crate of this program contains the source.
    pub(super) fn is_of(&self, source: &str) -> bool {
        source.split("/src/").next().is_some_and(|directory| self.directory.ends_with(directory))
    }

    /// Returns the command that runs these tests, two at a time.
    pub(super) fn command(&self, names: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("--exact").args(names).args(["--test-threads", "2"]);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        if let Some(double) = &self.double {
            command.env("PERCALE_VERBS_LIBRARY", double);
        }
        command
    }
}

/// A test.
#[derive(Clone, Debug)]
pub(super) struct Test {
    pub(super) program: Arc<Program>,
    pub(super) name: String,
}

impl Test {
    pub(super) fn key(&self) -> String {
        format!("{} {}", self.program.key(), self.name)
    }
}

/// Builds the tests of the copy, and lists them. Mutations that do not compile are left out of the copy.
pub(super) fn build(place: &Repository, mutations: &[Mutation]) -> Outcome<(Tree, Vec<Test>)> {
    let mut left_out = BTreeMap::new();
    loop {
        let tree = Tree::write(place, mutations, &left_out)?;
        println!("building the tests with {} mutations", tree.functions.len());
        let target = place.target.join("mutate").join("build");
        let (flags, loom) = (std::env::var("RUSTFLAGS").unwrap_or_default(), place.target.join("mutate").join("loom"));
        let mut wrong = BTreeMap::new();
        let tests = compile(
            &tree,
            &target,
            &flags,
            &["build", "--profile", "test", "--workspace", "--exclude", "xtask", "--tests", "--keep-going"],
            &mut wrong,
        )?;
        if wrong.is_empty() {
            // Tests load this library when they run, so it is not built with them.
            compile(&tree, &target, &flags, &["build", "--profile", "test", "-p", DOUBLE], &mut wrong)?;
            let models =
                ["test", "--profile", "loom", "--lib", "--no-run"].iter().chain(crate::test::MODELS.iter()).copied();
            let flags = format!("{flags} --cfg loom");
            let models = compile(&tree, &loom, flags.trim(), &models.collect::<Vec<_>>(), &mut wrong)?;
            if wrong.is_empty() {
                let double = target.join("debug").join("libpercale_verbs_double.so");
                return Ok((tree, list(&tests, &models, &double)?));
            }
        }
        for (number, why) in wrong {
            println!("  {} does not compile: {why}", mutations[number].name);
            left_out.insert(number, format!("it does not compile: {why}"));
        }
    }
}

/// A program with tests, and the directory of its package.
struct Built {
    name: String,
    path: PathBuf,
    directory: PathBuf,
}

/// Compiles test programs, and adds the mutations with errors to `wrong`.
fn compile(
    tree: &Tree,
    target: &Path,
    flags: &str,
    arguments: &[&str],
    wrong: &mut BTreeMap<usize, String>,
) -> Outcome<Vec<Built>> {
    let cargo = Run::cargo(&tree.root).args(arguments).args(["--message-format", "json"]);
    let cargo = cargo.env("CARGO_TARGET_DIR", target).env("RUSTFLAGS", flags).env("CARGO_INCREMENTAL", "0");
    let (mut built, mut other, mut said) = (Vec::new(), Vec::new(), Vec::new());
    let status = cargo.limit(BUILD_LIMIT).streams(|stream, line| {
        let Stream::Output = stream else { return said.push(line.to_owned()) };
        let Ok(message) = serde_json::from_str::<Value>(line) else { return };
        match message["reason"].as_str() {
            Some("compiler-artifact") if message["profile"]["test"] == true => built.extend(program_in(&message)),
            Some("compiler-message") if message["message"]["level"] == "error" => {
                let text = message["message"]["message"].as_str().unwrap_or_default();
                let found = mutations_in(tree, &message["message"]);
                if found.is_empty() {
                    other.push(message["message"]["rendered"].as_str().unwrap_or(text).to_owned());
                }
                wrong.extend(found.into_iter().map(|number| (number, text.to_owned())));
            }
            _ => {}
        }
    })?;
    if status.success() || !wrong.is_empty() {
        return Ok(built);
    }
    let shown = other.first().or(said.last()).map_or("cargo printed nothing", String::as_str);
    Err(Failure::new(format!("the copy in {} does not compile: {shown}", tree.root.display())))
}

fn program_in(message: &Value) -> Option<Built> {
    let path = PathBuf::from(message["executable"].as_str()?);
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = directory.file_name()?.to_string_lossy().into_owned();
    let target = message["target"]["name"].as_str()?.replace('_', "-");
    let name = if target == package { package } else { format!("{package}/{target}") };
    Some(Built { name, path, directory })
}

/// Returns the mutations that cause an error of the compiler.
fn mutations_in(tree: &Tree, message: &Value) -> Vec<usize> {
    let spans = message["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
    let primary = spans.iter().filter(|span| span["is_primary"] == true);
    let inside = primary.chain(spans).find_map(|span| {
        let file = span["file_name"].as_str()?;
        let start = span["byte_start"].as_u64()?;
        tree.at(file, usize::try_from(start).ok()?)
    });
    // A function that is no longer constant is called where a constant is needed: "cannot call non-const method
    // `Peer::name` in constants".
    let text = message["message"].as_str().unwrap_or_default();
    let called = text.strip_prefix("cannot call non-const").and_then(|rest| rest.split('`').nth(1));
    let called = called.and_then(|path| path.rsplit("::").find(|part| !part.starts_with('<')));
    inside.map_or_else(|| called.map(|name| tree.of_function(name)).unwrap_or_default(), |number| vec![number])
}

/// Lists the tests of these programs.
fn list(tests: &[Built], models: &[Built], double: &Path) -> Outcome<Vec<Test>> {
    let mut all = Vec::new();
    for (built, step) in tests.iter().map(|built| (built, "tests")).chain(models.iter().map(|built| (built, "loom"))) {
        let listed = Run::new(&built.path).args(["--list", "--format", "terse"]).within(&built.directory).output()?;
        let names: Vec<&str> = listed.success()?.lines().filter_map(|line| line.strip_suffix(": test")).collect();
        let mut add = |step, double: Option<&Path>, is_wanted: &dyn Fn(&str) -> bool| {
            let (name, path, directory) = (built.name.clone(), built.path.clone(), built.directory.clone());
            let program = Arc::new(Program { step, name, path, directory, double: double.map(Path::to_owned) });
            let wanted = names.iter().filter(|name| is_wanted(name));
            all.extend(wanted.map(|&name| Test { program: Arc::clone(&program), name: name.to_owned() }));
        };
        if step == "loom" {
            add(step, None, &|name| name.contains("loom_"));
        } else {
            add(step, None, &|_| true);
            add("verbs", Some(double), &|name| VERBS.iter().any(|part| name.contains(part)));
        }
    }
    Ok(all)
}
