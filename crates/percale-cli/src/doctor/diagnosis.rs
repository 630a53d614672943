//! Starts the processes that make the checks, and puts their findings together.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::checks::{self, CHECKS};
use super::finding::{Finding, Library, ProbeLine, Remedy};
use super::probe::Probe;
use super::surroundings::Surroundings;
use super::{PART, calls, libfabric};
use crate::worker::Worker;

/// How long all checks together may take. libfabric's providers of other networks may need seconds to start.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The findings of all checks, in the order of the list of checks, and the versions of libfabric.
#[derive(Debug)]
pub(super) struct Diagnosis {
    pub(super) findings: Vec<Finding>,
    pub(super) libraries: Vec<Library>,
}

impl Diagnosis {
    /// Makes all checks. `named` are the directories in which libfabric is looked for; empty: the usual ones.
    pub(super) fn make(named: &[PathBuf]) -> Self {
        let surroundings = Surroundings::here();
        let until = Instant::now() + TIMEOUT;
        // All processes run at the same time.
        let probes: Vec<_> = Probe::ALL.iter().map(|(probe, checks)| (*probe, *checks, start(*probe, None))).collect();
        let files = libfabric::candidates(named);
        let loading: Vec<_> = files.iter().map(|file| (file, start(Probe::Libfabric, Some(file)))).collect();

        let mut gathered = Gathered::default();
        for (probe, checks, worker) in probes {
            gathered.take(&probe.name(), checks, worker, until);
        }
        let libraries = loading.into_iter().filter_map(|(file, worker)| library(file, worker, until)).collect();
        gathered.judge(libfabric::distinct(libraries), &surroundings)
    }

    /// Returns the names of the essential checks that found that something is missing.
    pub(super) fn essential_missing(&self) -> Vec<&str> {
        let is_missing = |found: &&Finding| found.state == super::finding::State::Missing && is_essential(&found.check);
        self.findings.iter().filter(is_missing).map(|found| found.check.as_str()).collect()
    }

    /// Returns the problems whose cause is in themselves. Those that make something essential unavailable come first.
    pub(super) fn roots(&self) -> Vec<&Finding> {
        let urgent: Vec<&str> = self.essential_missing().into_iter().map(|name| self.root_of(name)).collect();
        let mut roots: Vec<&Finding> = self.findings.iter().filter(|found| found.is_root()).collect();
        roots.sort_by_key(|found| !urgent.contains(&found.check.as_str()));
        roots
    }

    /// Follows the causes of a check to the last one.
    fn root_of<'a>(&'a self, name: &'a str) -> &'a str {
        let mut name = name;
        // A chain of causes has fewer steps than there are checks.
        for _ in CHECKS {
            let found = self.findings.iter().find(|found| found.check == name);
            match found.and_then(|found| found.cause.as_deref()) {
                Some(cause) => name = cause,
                None => break,
            }
        }
        name
    }
}

pub(super) fn is_essential(check: &str) -> bool {
    checks::named(check).is_some_and(|check| check.is_essential)
}

fn start(probe: Probe, file: Option<&Path>) -> Result<Worker, String> {
    let name = probe.name();
    match file.map(Path::to_str) {
        None => Worker::start(&[PART, &name]),
        Some(Some(file)) => Worker::start(&[PART, &name, "--file", file]),
        Some(None) => Err("the path is not valid text".into()),
    }
}

/// Receives lines until the last one. Returns how the process ended, if it did not write the last line.
fn lines(worker: Result<Worker, String>, until: Instant, mut take: impl FnMut(ProbeLine)) -> Result<(), String> {
    let mut worker = worker.map_err(|error| format!("its process cannot be started: {error}"))?;
    loop {
        match worker.receive_answer(until.saturating_duration_since(Instant::now()))? {
            Some(ProbeLine::Done) => return Ok(()),
            Some(line) => take(line),
            None => return Err("it does not end".into()),
        }
    }
}

fn library(file: &Path, worker: Result<Worker, String>, until: Instant) -> Option<Library> {
    let mut library = None;
    let ended = lines(worker, until, |line| {
        if let ProbeLine::Library(found) = line {
            library = Some(found);
        }
    });
    let path = file.display().to_string();
    library.or_else(|| {
        let (version, sees_provider, is_default) = (None, false, false);
        ended.err().map(|error| Library { path, version, sees_provider, is_default, error: Some(error) })
    })
}

/// What the processes have written.
#[derive(Default)]
struct Gathered {
    findings: Vec<Finding>,
    /// The calls that a filter rejects.
    denied: Vec<String>,
    /// The calls after which a filter ended the process.
    killing: Vec<String>,
}

impl Gathered {
    /// Receives the findings of a group. Checks that its process did not make have failed.
    fn take(&mut self, probe: &str, checks: &[&str], worker: Result<Worker, String>, until: Instant) {
        let mut trying = None;
        let ended = lines(worker, until, |line| match line {
            ProbeLine::Finding(found) => self.findings.push(found),
            ProbeLine::Denied(call) => self.denied.push(call),
            ProbeLine::Trying(call) => trying = Some(call),
            ProbeLine::Library(_) | ProbeLine::Done => {}
        });
        let Err(why) = ended else { return };
        // A filter that ends the process sends this signal.
        let is_killed = why.contains("SIGSYS");
        let call = trying.clone().unwrap_or_else(|| format!("a call of {probe}"));
        if is_killed && !self.killing.contains(&call) {
            self.killing.push(call);
        }
        for check in checks {
            if self.findings.iter().any(|found| found.check == *check) {
                continue;
            }
            let at = trying.as_ref().map_or_else(String::new, |call| format!(" (last call: {call})"));
            let detail = format!("not checked: {why}{at}");
            self.findings.push(if is_killed {
                Finding::dependent(check, detail, checks::FILTER)
            } else {
                let advice = "Run the checks alone, to see their messages:";
                Finding::missing(check, detail, Remedy::new(advice, [format!("percale {PART} {probe}")]))
            });
        }
    }

    fn judge(self, libraries: Vec<Library>, surroundings: &Surroundings) -> Diagnosis {
        let Self { mut findings, mut denied, killing } = self;
        findings.push(calls::filter(&denied, &killing, surroundings));
        let provider = libfabric::provider_directory(&libraries);
        let filter = std::env::var("FI_PROVIDER").ok();
        findings.extend(libfabric::findings(&libraries, provider.as_deref(), filter.as_deref(), surroundings));
        findings.sort_by_key(|found| CHECKS.iter().position(|check| check.name == found.check));
        denied.extend(killing);
        checks::attribute(&mut findings, &denied);
        Diagnosis { findings, libraries }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    fn problem(check: &str) -> Finding {
        Finding::missing(check, "broken", Remedy::new("Mend it:", ["command".to_owned()]))
    }

    #[test]
    fn a_missing_essential_part_is_mended_first() {
        let mut findings = vec![problem("dev-shm"), problem("loopback"), problem("tcp")];
        checks::attribute(&mut findings, &[]);
        let diagnosis = Diagnosis { findings, libraries: Vec::new() };
        assert_eq!(diagnosis.essential_missing(), ["tcp"]);
        let roots: Vec<&str> = diagnosis.roots().iter().map(|found| found.check.as_str()).collect();
        assert_eq!(roots, ["loopback", "dev-shm"]);
    }

    #[test]
    fn a_process_that_cannot_be_started_has_made_no_check() {
        let mut gathered = Gathered::default();
        gathered.findings.push(Finding::works("bpf", ""));
        let error = Err("no more processes".to_owned());
        gathered.take("kernel-monitor", &["bpf", "helper"], error, Instant::now());
        let states: Vec<_> = gathered.findings.iter().map(|found| (found.check.as_str(), found.state)).collect();
        assert_eq!(states, [("bpf", State::Works), ("helper", State::Missing)]);
        assert!(gathered.findings[1].detail.contains("no more processes"), "{}", gathered.findings[1].detail);
        let ended = Err("its process ended: signal: 31 (SIGSYS) (core dumped)".to_owned());
        gathered.take("cuda", &["cuda"], ended, Instant::now());
        assert_eq!(gathered.findings[2].cause.as_deref(), Some(checks::FILTER));
    }

    #[test]
    fn findings_are_in_the_order_of_the_list() {
        let mut gathered = Gathered::default();
        gathered.findings.extend([problem("cuda"), Finding::works("kernel", "")]);
        let diagnosis = gathered.judge(Vec::new(), &Surroundings::example());
        let names: Vec<&str> = diagnosis.findings.iter().map(|found| found.check.as_str()).collect();
        assert_eq!(names, ["kernel", "seccomp", "cuda", "libfabric", "provider"]);
    }
}
