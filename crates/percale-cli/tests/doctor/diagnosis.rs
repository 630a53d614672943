//! Runs `percale doctor --json`, and reads its lines.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use percale_conformance::skipped;
use serde_json::Value;

use crate::common::text;

/// The command.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_percale");

/// A directory that does not exist. There is no libfabric in it, and no helper.
pub(crate) const NOWHERE: &str = "/nonexistent";

/// The lines of one run.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    lines: Vec<Value>,
    pub(crate) code: Option<i32>,
    pub(crate) errors: String,
}

/// Returns the command `percale doctor --json`, started by another program (`unshare`, `prlimit`) if `through` names
/// one. It finds neither a libfabric nor a helper of the machine.
pub(crate) fn doctor(through: &[&str], program: &Path) -> Command {
    let mut command = match through {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    };
    command.args(["doctor", "--json", "--libfabric", NOWHERE]);
    command.env("PINDOWN_SOCKET", format!("{NOWHERE}/helper")).env_remove("FI_PROVIDER").env_remove("FI_PROVIDER_PATH");
    command
}

/// Runs [`doctor`].
pub(crate) fn diagnose(through: &[&str]) -> Diagnosis {
    Diagnosis::of(&mut doctor(through, PROGRAM.as_ref()))
}

/// Runs [`doctor`] through a shell script in a program that makes namespaces. The script ends with the command.
pub(crate) fn diagnose_after(program: &[&str], script: &str) -> Diagnosis {
    let script = format!("{script} exec \"$0\" \"$@\"");
    diagnose(&[program, &["sh", "-e", "-c", &script]].concat())
}

impl Diagnosis {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::read(&command.output().expect("the command starts"))
    }

    /// Reads the output of a command that has ended.
    pub(crate) fn read(output: &Output) -> Self {
        let errors = text(&output.stderr);
        let read =
            |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}; {errors}"));
        let lines: Vec<Value> = text(&output.stdout).lines().map(read).collect();
        assert!(!lines.is_empty(), "no lines: {errors}");
        Self { lines, code: output.status.code(), errors }
    }

    /// Returns the lines of one kind.
    pub(crate) fn of_kind(&self, is: &str) -> Vec<&Value> {
        self.lines.iter().filter(|line| line["is"] == is).collect()
    }

    /// Returns the line of a check.
    pub(crate) fn check(&self, name: &str) -> &Value {
        let found = self.lines.iter().find(|line| line["check"] == name);
        found.unwrap_or_else(|| panic!("no line of {name}: {self:#?}"))
    }

    /// Returns the names of the checks to mend.
    pub(crate) fn to_mend(&self) -> BTreeSet<String> {
        let [summary] = self.of_kind("summary")[..] else { panic!("not one summary: {self:#?}") };
        let names = summary["to_mend"].as_array().unwrap().iter();
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    /// Checks that this run found exactly one fault that `before` did not find, and that the text of this fault and its
    /// remedy contain these texts.
    pub(crate) fn names_only(&self, before: &Self, check: &str, detail: &str, remedy: &str) {
        let new: Vec<String> = self.to_mend().difference(&before.to_mend()).cloned().collect();
        assert_eq!(new, [check], "{self:#?}");
        let line = self.check(check);
        assert!(line["detail"].as_str().unwrap().contains(detail), "no {detail} in {line:#}");
        assert!(line["remedy"]["commands"][0].is_string(), "no command in {line:#}");
        assert!(line["remedy"].to_string().contains(remedy), "no {remedy} in {line:#}");
    }
}

/// Returns whether these tests run as root, which prepares environments.
pub(crate) fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped("root", what, "only root can make mount namespaces, raise limits, and become another user");
    }
    root
}

/// Returns whether a program runs successfully with these arguments. If not, the test is skipped.
pub(crate) fn works(capability: &str, what: &str, program: &[&str]) -> bool {
    let output = Command::new(program[0]).args(&program[1..]).output();
    let works = output.as_ref().is_ok_and(|output| output.status.success());
    if !works {
        let why = output.map_or_else(|error| error.to_string(), |output| text(&output.stderr));
        skipped(capability, what, &format!("{} does not work: {}", program.join(" "), why.trim()));
    }
    works
}
