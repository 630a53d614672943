//! Test programs and commands that cargo builds on this machine for the guest.

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::provider;
use serde::Deserialize;
use std::fs;
use std::path::PathBuf;

/// The fields that are used from cargo's message about a built program or library.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Builds the test program of a package's library ("percale") or of one of its integration tests
/// ("percale-conformance:conformance"). Also builds the package's own programs, because its tests may start them.
pub(super) fn test(place: &Repository, name: &str) -> Outcome<(PathBuf, Vec<PathBuf>)> {
    let (package, target) = split(name);
    let mut arguments = vec!["test", "--no-run", "--quiet", "--message-format=json", "-p", package];
    match target {
        None => arguments.push("--lib"),
        Some(target) => arguments.extend(["--test", target]),
    }
    let output = place.cargo().args(arguments).output()?;
    let mut programs = programs_in(output.success()?);
    let at = programs.iter().position(|(kind, its, _)| match target {
        None => kind != "bin",
        Some(target) => kind == "test" && its == target,
    });
    let at = at.ok_or_else(|| Failure::new(format!("cargo built no test program of {name}")))?;
    let (_, _, program) = programs.remove(at);
    Ok((program, programs.into_iter().map(|(_, _, path)| path).collect()))
}

/// Builds the command `percale` in the profile of the tests.
pub(super) fn command(place: &Repository) -> Outcome<PathBuf> {
    let output = place.cargo().args(["build", "--quiet", "--message-format=json", "-p", "percale-cli"]).output()?;
    let programs = programs_in(output.success()?);
    let found = programs.into_iter().find(|(kind, name, _)| kind == "bin" && name == "percale");
    found.map(|(_, _, path)| path).ok_or_else(|| Failure::new("cargo built no program named percale"))
}

/// Builds the libfabric provider in the profile of the tests. It is placed in a separate directory, under the name by
/// which libfabric finds it.
pub(super) fn provider(place: &Repository) -> Outcome<PathBuf> {
    let arguments = ["build", "--quiet", "--message-format=json", "--profile", "test", "-p", "percale-ofi", "--lib"];
    let output = place.cargo().args(arguments).output()?;
    let messages = output.success()?.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    let is_ours = |message: &Message| message.target.as_ref().is_some_and(|target| target.name == "percale_fi");
    let files = messages.filter(is_ours).flat_map(|message| message.filenames);
    let built = files.into_iter().find(|file| file.extension().is_some_and(|kind| kind == "so"));
    let built = built.ok_or_else(|| Failure::new("cargo built no provider"))?;
    let directory = place.target.join("guest/provider");
    fs::create_dir_all(&directory)?;
    let path = directory.join(provider::NAME);
    fs::copy(&built, &path).map_err(Failure::during(format!("copying {}", built.display())))?;
    Ok(path)
}

/// Splits a name with or without a colon into the package and the integration test.
fn split(name: &str) -> (&str, Option<&str>) {
    name.split_once(':').map_or((name, None), |(package, target)| (package, Some(target)))
}

/// Returns the kind, the name and the file of each program that cargo has built or found up to date.
fn programs_in(messages: &str) -> Vec<(String, String, PathBuf)> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    let program = |message: Message| {
        let target = message.target?;
        Some((target.kind.into_iter().next()?, target.name, message.executable?))
    };
    messages.filter_map(program).collect()
}

#[cfg(test)]
mod tests {
    use super::{programs_in, split};

    #[test]
    fn name_is_split_into_package_and_test() {
        assert_eq!(split("percale"), ("percale", None));
        assert_eq!(split("percale-conformance:conformance"), ("percale-conformance", Some("conformance")));
    }

    #[test]
    fn programs_are_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"a"},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"suite"},"executable":"/t/suite-1"}
{"reason":"build-finished","success":true}"#;
        let programs = programs_in(messages);
        assert_eq!(programs, [("test".to_owned(), "suite".to_owned(), "/t/suite-1".into())]);
    }
}
