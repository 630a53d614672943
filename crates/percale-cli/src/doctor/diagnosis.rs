//! Starts the processes that make the checks, and puts their findings together.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::checks::{self, CHECKS};
use super::finding::{Finding, Library, ProbeLine, Remedy, State};
use super::probe::Probe;
use super::surroundings::Surroundings;
use super::{PART, calls, environment, libfabric, resources};
use crate::worker::Worker;
use libfabric::Candidates;

/// How long each process may take. libfabric's providers of other networks may need seconds to start.
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
        let candidates = libfabric::candidates(named);
        // These checks end no process, and are the causes if others cannot be made.
        let findings = [environment::findings(&surroundings), resources::findings(&surroundings)].concat();
        // The threads of all processes of the user count. One process after the other has as many as possible.
        let is_short = findings.iter().any(|found| found.check == "threads" && found.state.is_problem());
        let groups = Probe::ALL.iter().map(|(probe, checks)| Part { probe: *probe, checks, file: None });
        let loading =
            candidates.files.iter().map(|file| Part { probe: Probe::Libfabric, checks: &[], file: Some(file) });
        let mut gathered = Gathered { findings, ..Gathered::default() };
        gathered.run(groups.chain(loading), if is_short { 1 } else { usize::MAX });
        gathered.judge(&candidates, &surroundings)
    }

    /// Returns the names of the essential checks that found that something is missing.
    pub(super) fn essential_missing(&self) -> Vec<&str> {
        self.essential(State::Missing)
    }

    /// Returns the names of the essential checks that could not be made.
    pub(super) fn essential_unknown(&self) -> Vec<&str> {
        self.essential(State::Unknown)
    }

    fn essential(&self, state: State) -> Vec<&str> {
        let found = self.findings.iter().filter(|found| found.state == state && is_essential(&found.check));
        found.map(|found| found.check.as_str()).collect()
    }

    /// Returns the problems whose cause is in themselves. Those that make something essential unavailable come first.
    pub(super) fn roots(&self) -> Vec<&Finding> {
        let essential = [self.essential_missing(), self.essential_unknown()].concat();
        let urgent: Vec<&str> = essential.into_iter().map(|name| self.root_of(name)).collect();
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

/// A process that makes a group of checks, or loads one libfabric.
#[derive(Clone, Copy)]
struct Part<'a> {
    probe: Probe,
    checks: &'static [&'static str],
    file: Option<&'a Path>,
}

impl Part<'_> {
    /// Returns the arguments of the command.
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec![PART.into(), self.probe.name().into()];
        arguments.extend(self.file.iter().flat_map(|file| ["--file".into(), file.as_os_str().to_owned()]));
        arguments
    }

    fn start(&self) -> io::Result<Worker> {
        Worker::start_without_jobs(&self.arguments().iter().map(OsString::as_os_str).collect::<Vec<_>>())
    }

    /// The finding of a check that the process did not make. `trying` is the last call of which it reported the start.
    fn not_made(&self, check: &str, why: &Unfinished, trying: Option<&str>) -> Finding {
        let at = trying.map_or_else(String::new, |call| format!(" (last call: {call})"));
        let detail = format!("not checked: {}{at}", why.text);
        let command = self.arguments().iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>();
        let remedy =
            Remedy::new("Run the checks alone, to see their messages:", [format!("percale {}", command.join(" "))]);
        if why.is_killed() {
            Finding::missing(check, detail, remedy).because_of(checks::FILTER)
        } else if why.is_denied {
            Finding::unknown(check, detail, remedy).because_of(checks::FILTER)
        } else if why.is_fault {
            Finding::missing(check, detail, remedy)
        } else {
            Finding::unknown(check, detail, remedy)
        }
    }
}

/// Why a process did not make all of its checks.
struct Unfinished {
    text: String,
    /// Whether a check ended the process or does not return. Programs would do the same, so the check has failed.
    is_fault: bool,
    /// Whether a system call filter prevents the start of processes.
    is_denied: bool,
}

impl Unfinished {
    /// Returns whether a system call filter ended the process. It sends this signal.
    fn is_killed(&self) -> bool {
        self.text.contains("SIGSYS")
    }
}

/// Returns whether a process may be started after others have ended: they take descriptors, memory, and a place in the
/// number of the user's threads.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOMEM))
}

/// Receives lines until the last one. Returns why the process did not write it.
fn lines(mut worker: Worker, until: Instant, mut take: impl FnMut(ProbeLine)) -> Result<(), Unfinished> {
    let fault = |text| Unfinished { text, is_fault: true, is_denied: false };
    loop {
        let line = worker.receive_line(until.saturating_duration_since(Instant::now())).map_err(fault)?;
        let line = line.ok_or_else(|| fault("it does not end".into()))?;
        match serde_json::from_slice(&line) {
            Ok(ProbeLine::Done) => return Ok(()),
            Ok(ProbeLine::Failed(text)) => return Err(Unfinished { text, is_fault: false, is_denied: false }),
            Ok(line) => take(line),
            // A driver or a library has printed this.
            Err(_) => {}
        }
    }
}

/// What the processes have written.
#[derive(Default)]
struct Gathered {
    findings: Vec<Finding>,
    libraries: Vec<Library>,
    /// The findings of libfabric, if a library could not be examined.
    unexamined: Option<[Finding; 2]>,
    /// The calls that a filter rejects.
    denied: Vec<String>,
    /// The calls after which a filter ended the process.
    killing: Vec<String>,
}

impl Gathered {
    /// Runs the processes, at most `at_once` of them at the same time. If one cannot be started, it waits for others.
    fn run<'a>(&mut self, parts: impl IntoIterator<Item = Part<'a>>, at_once: usize) {
        let mut running: VecDeque<(Part<'a>, Worker, Instant)> = VecDeque::new();
        for part in parts {
            loop {
                let started = if running.len() < at_once { part.start() } else { Err(too_many()) };
                match (started, running.is_empty()) {
                    (Ok(worker), _) => running.push_back((part, worker, Instant::now() + TIMEOUT)),
                    (Err(error), false) if is_exhausted(&error) => {
                        running.pop_front().into_iter().for_each(|first| self.take(first));
                        continue;
                    }
                    (Err(error), _) => self.not_started(part, &error),
                }
                break;
            }
        }
        running.into_iter().for_each(|one| self.take(one));
    }

    /// Receives the findings of a process.
    fn take(&mut self, (part, worker, until): (Part<'_>, Worker, Instant)) {
        let (mut trying, mut library) = (None, None);
        let ended = lines(worker, until, |line| match line {
            ProbeLine::Finding(found) => self.findings.push(found),
            ProbeLine::Library(found) => library = Some(found),
            ProbeLine::Denied(call) => self.denied.push(call),
            ProbeLine::Trying(call) => trying = Some(call),
            ProbeLine::Failed(_) | ProbeLine::Done => {}
        });
        let is_examined = library.is_some();
        self.libraries.extend(library);
        if let Err(why) = ended
            && !is_examined
        {
            self.unfinished(part, &why, trying);
        }
    }

    fn not_started(&mut self, part: Part<'_>, error: &io::Error) {
        let denied = if is_exhausted(error) { Vec::new() } else { calls::denied_starts() };
        let text = format!("its process cannot be started: {error}");
        let why = Unfinished { text, is_fault: false, is_denied: !denied.is_empty() };
        for call in denied {
            if !self.denied.contains(&call) {
                self.denied.push(call);
            }
        }
        self.unfinished(part, &why, None);
    }

    /// Adds the findings of the checks that a process did not make.
    fn unfinished(&mut self, part: Part<'_>, why: &Unfinished, trying: Option<String>) {
        if why.is_killed() {
            let call = trying.clone().unwrap_or_else(|| format!("a call of {}", part.probe.name()));
            if !self.killing.contains(&call) {
                self.killing.push(call);
            }
        }
        for check in part.checks {
            if !self.findings.iter().any(|found| found.check == *check) {
                self.findings.push(part.not_made(check, why, trying.as_deref()));
            }
        }
        let Some(file) = part.file else { return };
        if why.is_fault && !why.is_killed() {
            // Programs that load the file end, too.
            let (path, is_default) = (file.display().to_string(), file == Path::new(libfabric::FILE));
            let error = Some(why.text.clone());
            self.libraries.push(Library { path, version: None, sees_provider: false, is_default, error });
        } else {
            let [library, provider] =
                ["libfabric", "provider"].map(|check| part.not_made(check, why, trying.as_deref()));
            let cause = library.cause.clone().unwrap_or_else(|| "libfabric".into());
            self.unexamined.get_or_insert([library, provider.because_of(&cause)]);
        }
    }

    fn judge(self, candidates: &Candidates, surroundings: &Surroundings) -> Diagnosis {
        let Self { mut findings, libraries, unexamined, mut denied, killing } = self;
        let libraries = libfabric::distinct(libraries, candidates);
        findings.push(calls::filter(&denied, &killing, surroundings));
        let provider = libfabric::provider_directory(&libraries);
        let filter = std::env::var("FI_PROVIDER").ok();
        findings.extend(
            unexamined.unwrap_or_else(|| {
                libfabric::findings(&libraries, provider.as_deref(), filter.as_deref(), surroundings)
            }),
        );
        // The name of a directory may be mistyped.
        if let Some(text) = candidates.none_in_named()
            && let Some(found) = findings.iter_mut().find(|found| found.check == "libfabric")
        {
            found.detail = text;
        }
        findings.sort_by_key(|found| CHECKS.iter().position(|check| check.name == found.check));
        denied.extend(killing);
        checks::attribute(&mut findings, &denied);
        Diagnosis { findings, libraries }
    }
}

/// The error of a start that would exceed the number of processes at the same time.
fn too_many() -> io::Error {
    io::Error::from_raw_os_error(libc::EAGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(probe: Probe, checks: &'static [&'static str]) -> Part<'static> {
        Part { probe, checks, file: None }
    }

    fn ended(text: &str) -> Unfinished {
        Unfinished { text: text.into(), is_fault: true, is_denied: false }
    }

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
        let error = io::Error::from_raw_os_error(libc::EAGAIN);
        gathered.not_started(part(Probe::KernelMonitor, &["bpf", "helper"]), &error);
        let states: Vec<_> = gathered.findings.iter().map(|found| (found.check.as_str(), found.state)).collect();
        assert_eq!(states, [("bpf", State::Works), ("helper", State::Unknown)]);
        assert!(gathered.findings[1].detail.contains(&error.to_string()), "{}", gathered.findings[1].detail);
        gathered.unfinished(part(Probe::Cuda, &["cuda"]), &ended("signal: 31 (SIGSYS) (core dumped)"), None);
        assert_eq!(gathered.findings[2].cause.as_deref(), Some(checks::FILTER));
    }

    #[test]
    fn only_a_process_that_was_started_finds_a_fault() {
        let file = Some(Path::new("/opt/libfabric.so.1"));
        let library = Part { file, ..part(Probe::Libfabric, &[]) };
        let judge = |gathered: Gathered| {
            let diagnosis = gathered.judge(&Candidates::default(), &Surroundings::example());
            let states = diagnosis.findings.iter().filter(|found| found.check != checks::FILTER);
            (states.map(|found| found.state).collect::<Vec<_>>(), diagnosis.roots().len())
        };
        let mut gathered = Gathered::default();
        gathered.not_started(part(Probe::Transports, &["tcp"]), &too_many());
        gathered.not_started(library, &too_many());
        assert_eq!(judge(gathered), (vec![State::Unknown; 3], 2), "the provider is unknown because of libfabric");
        let mut gathered = Gathered::default();
        gathered.unfinished(part(Probe::Transports, &["tcp"]), &ended("signal: 11"), None);
        gathered.unfinished(library, &ended("signal: 11"), None);
        assert_eq!(judge(gathered), (vec![State::Missing; 3], 2), "the provider is missing because of libfabric");
    }

    #[test]
    fn an_essential_check_that_could_not_be_made_comes_first() {
        let remedy = || Remedy::new("Run it:", ["command".to_owned()]);
        let findings = vec![problem("dev-shm"), Finding::unknown("tcp", "not checked", remedy())];
        let diagnosis = Diagnosis { findings, libraries: Vec::new() };
        assert_eq!((diagnosis.essential_missing(), diagnosis.essential_unknown()), (vec![], vec!["tcp"]));
        assert_eq!(diagnosis.roots()[0].check, "tcp");
    }

    #[test]
    fn findings_are_in_the_order_of_the_list() {
        let mut gathered = Gathered::default();
        gathered.findings.extend([problem("cuda"), Finding::works("kernel", "")]);
        let diagnosis = gathered.judge(&Candidates::default(), &Surroundings::example());
        let names: Vec<&str> = diagnosis.findings.iter().map(|found| found.check.as_str()).collect();
        assert_eq!(names, ["kernel", "seccomp", "cuda", "libfabric", "provider"]);
    }
}
