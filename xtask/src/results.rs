//! The results of the tests in target/percale-results.json, which `cargo xtask test` writes and `cargo xtask coverage`
//! reads.
//!
//! Each step that runs tests replaces its own results and keeps those of other steps. Therefore a single step can be
//! run again.

use crate::failure::Outcome;
use crate::place::Repository;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const FILE: &str = "percale-results.json";

/// The result of one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TestEnding {
    Passed,
    Failed,
    Ignored,
    /// The test could not run on this machine and reported this.
    Skipped,
    /// The test is for another place, such as the guest, and reported this. It is not a test of this machine.
    Elsewhere,
}

/// Requirements by cell (`shm/c`).
pub(crate) type Claims = BTreeMap<String, BTreeSet<String>>;

/// One test that cargo ran or was instructed to ignore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TestResult {
    /// The step that ran the test: "tests", "loom".
    pub(crate) step: String,
    /// The test program: "conformance", "percale (src/lib.rs)".
    pub(crate) program: String,
    /// The test's path within its program: "shm::rust::a_message_arrives_whole".
    pub(crate) name: String,
    pub(crate) ending: TestEnding,
    /// The reason why the test was skipped, as printed by the test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) because: Option<String>,
    /// The capability that the machine lacks, for a skipped test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lacks: Option<String>,
    /// The requirements that the test printed as proved, in addition to those in its mark.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) proved: Claims,
    /// The requirements that the test printed as failed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) failed: Claims,
}

impl TestResult {
    /// The result of a test that printed nothing.
    pub(crate) fn new(step: &str, program: &str, name: &str, ending: TestEnding) -> Self {
        Self {
            step: step.to_owned(),
            program: program.to_owned(),
            name: name.to_owned(),
            ending,
            because: None,
            lacks: None,
            proved: Claims::new(),
            failed: Claims::new(),
        }
    }
}

/// The results of all tests.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    /// The commit that was tested, followed by `+` if tracked files differed from it.
    pub(crate) commit: String,
    pub(crate) tests: Vec<TestResult>,
}

impl Results {
    pub(crate) fn load(place: &Repository) -> Outcome<Option<Self>> {
        place.load(FILE)
    }

    /// Replaces the results of one step.
    pub(crate) fn replace(place: &Repository, step: &str, fresh: &[TestResult]) -> Outcome {
        let mut results = Self::load(place)?.unwrap_or_default();
        let commit = crate::machine::commit(place);
        if results.commit != commit {
            // Results for different sources are not valid for these sources.
            results.tests.clear();
        }
        results.commit = commit;
        results.tests.retain(|test| test.step != step);
        results.tests.extend_from_slice(fresh);
        place.save(FILE, &results).map(drop)
    }
}
