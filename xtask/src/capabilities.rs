//! The capabilities of a machine that some tests need: features of the kernel, privileges, installed programs, devices.
//!
//! A test that lacks one prints `skipped (CAPABILITY): reason`. In CI (the variable `CI` is set, as `.ci/run` does) the
//! machine must have the capabilities that are [`Presence::Required`], and a test that is skipped because of one of them
//! has failed. The other ones may be missing.

use crate::results::{TestEnding, TestResult};

/// Whether a machine on which the tests run has a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// A machine for CI has it.
    Required,
    /// A machine for CI may lack it.
    Optional,
    /// The step with this name and the guest have it, or only the guest, if the name is empty. Tests that are skipped in
    /// other steps are not tests of this machine.
    Only(&'static str),
}

use Presence::{Only, Optional, Required};

const CAPABILITIES: [(&str, Presence); 36] = [
    // The kernel.
    ("bpf", Required),
    ("userfaultfd", Required),
    ("io_uring", Required),
    ("CMA", Required),
    ("membarrier", Required),
    ("seccomp", Required),
    ("network namespaces", Required),
    ("user namespaces", Required),
    ("newer kernel", Optional),
    ("mseal", Optional),
    ("huge pages", Optional),
    ("/dev/mem", Optional),
    ("unlocked memory", Optional),
    ("IPv6", Optional),
    // Privileges and limits.
    ("root", Required),
    ("descriptors", Required),
    ("executable copies", Required),
    ("two processors", Optional),
    ("real-time priority", Optional),
    // File systems.
    ("watched file system", Required),
    ("loop device", Optional),
    ("leases", Optional),
    // Programs and libraries.
    ("C compiler", Required),
    ("C++ compiler", Required),
    ("static libraries", Required),
    ("libfabric", Required),
    ("libibverbs", Required),
    ("allocators", Required),
    ("strace", Required),
    ("valgrind", Required),
    ("systemd", Optional),
    // Devices.
    ("RDMA device", Optional),
    ("RDMA", Only("verbs")),
    // The test double of libibverbs, and what it emulates.
    ("RDMA double", Only("verbs")),
    ("RDMA windows", Only("verbs")),
    ("guest", Only("")),
];

fn presence(capability: &str) -> Option<Presence> {
    CAPABILITIES.iter().find(|(name, _)| *name == capability).map(|(_, presence)| *presence)
}

/// Returns whether tests of this step that need the capability are for another place: for another step, or for the
/// guest.
pub(crate) fn is_elsewhere(capability: &str, step: &str) -> bool {
    step != "guest" && matches!(presence(capability), Some(Only(its)) if its != step)
}

/// Returns an error for each test that was skipped although a machine for CI has what it needs.
pub(crate) fn refused(tests: &[TestResult]) -> Vec<String> {
    let skipped = tests.iter().filter(|test| test.ending == TestEnding::Skipped);
    let refused = skipped.filter_map(|test| {
        let because = test.because.as_deref().unwrap_or("no reason given");
        let why = match (test.lacks.as_deref(), test.lacks.as_deref().and_then(presence)) {
            (_, Some(Optional)) => return None,
            (Some(capability), Some(_)) => format!("this machine must have {capability}: {because}"),
            (Some(capability), None) => format!("{capability} is not in the list of capabilities: {because}"),
            (None, _) => format!("it names no capability: {because}"),
        };
        Some(format!("{}: {} was skipped, but {why}", test.program, test.name))
    });
    refused.collect()
}

#[cfg(test)]
mod tests {
    use super::{CAPABILITIES, is_elsewhere, refused};
    use crate::place::Repository;
    use crate::results::{TestEnding, TestResult};
    use std::fs;

    fn skipped(lacks: Option<&str>) -> TestResult {
        let test = TestResult::new("tests", "life (tests/life/main.rs)", "a", TestEnding::Skipped);
        TestResult { lacks: lacks.map(str::to_owned), because: Some("the reason".to_owned()), ..test }
    }

    #[test]
    fn required_capability_must_be_present() {
        assert!(refused(&[skipped(Some("mseal"))]).is_empty());
        let errors = refused(&[skipped(Some("bpf")), skipped(None), skipped(Some("luck"))]);
        assert!(errors[0].ends_with("this machine must have bpf: the reason"), "{errors:?}");
        assert!(
            errors[1].contains("names no capability") && errors[2].contains("luck is not in the list"),
            "{errors:?}"
        );
    }

    #[test]
    fn tests_of_another_place_are_not_skipped() {
        assert!(is_elsewhere("guest", "tests") && is_elsewhere("guest", "verbs"));
        assert!(is_elsewhere("RDMA", "tests") && !is_elsewhere("RDMA", "verbs") && !is_elsewhere("RDMA", "guest"));
        assert!(!is_elsewhere("bpf", "tests") && !is_elsewhere("luck", "tests"));
    }

    #[test]
    fn each_capability_is_one_that_a_test_needs() {
        let sources = Repository::find().unwrap().sources(&["rs", "c"]);
        let texts: String = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        let listed: Vec<&str> = CAPABILITIES.iter().map(|(name, _)| *name).collect();
        for name in &listed {
            let forms = [
                format!("skipped ({name})"),
                format!("SKIPPED ({name})"),
                format!("(\"{name}\", "),
                format!("=> \"{name}\""),
            ];
            assert!(forms.iter().any(|form| texts.contains(form)), "no test needs {name}");
        }
        for word in ["skipped (", "SKIPPED ("] {
            let names = texts.split(word).skip(1).filter_map(|rest| rest.split_once(')')).map(|(name, _)| name);
            let unknown: Vec<_> = names.filter(|name| !name.contains(['{', '%']) && !listed.contains(name)).collect();
            assert!(unknown.is_empty(), "these capabilities are not listed: {unknown:?}");
        }
        let without = ["\"skipped: ", "\"SKIPPED: "].map(|form| texts.matches(form).count());
        assert_eq!(without, [1, 0], "a skip names its capability (the one without is an answer of a child process)");
    }
}
