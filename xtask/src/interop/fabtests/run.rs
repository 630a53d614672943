//! Runs one case over one provider and evaluates its result.

use super::cases::{FabtestsCase, Shape};
use crate::client::RunningClient;
use crate::failure::Outcome;
use crate::interop::case::Transport;
use crate::interop::libfabric::listening;
use crate::processes;
use crate::program::Program;
use serde::{Serialize, Serializer};
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

/// The time limit of a case. All cases take less unless they hang.
const LIMIT: Duration = Duration::from_secs(60);
/// The time limit of a list of tests.
const LIST_LIMIT: Duration = Duration::from_secs(240);
/// How long to wait for the other processes to detect that one has failed.
const AFTER_FAILURE: Duration = Duration::from_secs(3);
/// The port of multinode's first rank, which cannot be changed: 8228 in the wrong byte order.
const RANKS_PORT: u16 = 8228_u16.swap_bytes();
const HERE: &str = "127.0.0.1";

/// The provider over which a case runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Over {
    /// percale, which selects shared memory
    PercaleShm,
    /// percale, restricted to TCP
    PercaleTcp,
    /// libfabric's shm
    Shm,
    /// libfabric's tcp, with ofi_rxm above it if tcp alone lacks a feature that a case needs
    Tcp,
}

impl Over {
    pub(super) const ALL: [Self; 4] = [Self::PercaleShm, Self::PercaleTcp, Self::Shm, Self::Tcp];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PercaleShm => "percale shm",
            Self::PercaleTcp => "percale tcp",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }

    /// Returns percale's transport.
    pub(super) fn transport(self) -> Option<Transport> {
        match self {
            Self::PercaleShm => Some(Transport::Shm),
            Self::PercaleTcp => Some(Transport::Tcp),
            Self::Shm | Self::Tcp => None,
        }
    }

    /// Returns the provider names to request. If the provider lacks a required feature, the next name is tried.
    fn requested(self) -> &'static [&'static str] {
        match self {
            Self::PercaleShm | Self::PercaleTcp => &["percale"],
            Self::Shm => &["shm"],
            Self::Tcp => &["tcp", "tcp;ofi_rxm"],
        }
    }
}

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CaseEnding {
    Passed,
    /// The case failed. Contains the end of the output.
    Failed(String),
    /// The program reported that the provider lacks a required feature. Contains percale's message about it.
    Excluded(String),
}

impl CaseEnding {
    /// Returns the reason why the case did not pass.
    pub(super) fn why(&self) -> &str {
        match self {
            Self::Passed => "",
            Self::Failed(why) | Self::Excluded(why) => why,
        }
    }
}

impl fmt::Display for CaseEnding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Passed => "pass",
            Self::Failed(_) => "FAIL",
            Self::Excluded(_) => "excluded",
        })
    }
}

impl Serialize for CaseEnding {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// The directory of the programs, and the files that they use.
pub(crate) struct FabtestsSite {
    pub(super) programs: PathBuf,
    /// The directory of the libfabric, if it is not the system's.
    pub(super) libfabric: Option<PathBuf>,
    pub(super) provider: PathBuf,
    /// The directory of the output files.
    pub(super) printed: PathBuf,
}

impl FabtestsSite {
    /// Returns the program of a case.
    pub(super) fn program(&self, case: &FabtestsCase) -> PathBuf {
        self.programs.join(format!("fi_{}", case.line.split(' ').next().unwrap_or_default()))
    }

    /// Runs one case over one provider.
    pub(super) fn run(&self, case: &FabtestsCase, over: Over) -> Outcome<CaseEnding> {
        let mut ending = CaseEnding::Excluded(String::new());
        for requested in over.requested() {
            ending = Run::prepare(self, case, over, requested)?.end()?;
            // Another process took the port in the meantime.
            if matches!(&ending, CaseEnding::Failed(why) if why.contains("Address already in use")) {
                ending = Run::prepare(self, case, over, requested)?.end()?;
            }
            if !matches!(ending, CaseEnding::Excluded(_)) {
                break;
            }
        }
        Ok(ending)
    }
}

/// A run of a case over a provider with the requested name.
struct Run<'a> {
    site: &'a FabtestsSite,
    case: &'a FabtestsCase,
    over: Over,
    requested: &'a str,
    /// The prefix of the names of this run's files.
    printed: PathBuf,
    deadline: Instant,
}

impl<'a> Run<'a> {
    fn prepare(site: &'a FabtestsSite, case: &'a FabtestsCase, over: Over, requested: &'a str) -> Outcome<Self> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let printed = site.printed.join(over.name().replace(' ', "-"));
        fs::create_dir_all(&printed)?;
        let printed = printed.join(case.line.chars().map(plain).collect::<String>());
        let limit = if matches!(case.shape, Shape::Listed(_)) { LIST_LIMIT } else { LIMIT };
        Ok(Self { site, case, over, requested, printed, deadline: Instant::now() + limit })
    }

    /// Starts the program of this case with the arguments of the case and these arguments.
    fn start(&self, which: &str, words: &[&str]) -> Outcome<RunningClient> {
        let mut program = Program::new(self.site.program(self.case)).without("FI_PROVIDER");
        if !matches!(self.case.shape, Shape::Listed(_)) {
            let own = self.case.line.split(' ').skip(1);
            program = program.args(["-p", self.requested]).args(own);
        }
        program = program.args(words);
        if let Some(transport) = self.over.transport() {
            program = transport.tell(program).env("FI_PROVIDER_PATH", &self.site.provider).env("FI_LOG_LEVEL", "warn");
        }
        if let Some(libfabric) = &self.site.libfabric {
            program = program.env("LD_LIBRARY_PATH", libfabric);
        }
        RunningClient::start(program, &self.printed.with_extension(which))
    }

    /// Runs the case until it ends.
    fn end(self) -> Outcome<CaseEnding> {
        let [port, other, third] = ports()?;
        let exchange = format!("-E={port}");
        let [number, its, another] = [port, other, third].map(|port| port.to_string());
        match self.case.shape {
            Shape::Alone => self.judge(vec![self.start("alone", &[])?], |_| true),
            Shape::Refused => {
                let mut alone = self.start("alone", &[])?;
                let status = alone.wait_until(self.deadline);
                Ok(if status.is_some_and(says_excluded) { CaseEnding::Passed } else { failed(&[alone], &[status]) })
            }
            // Without an argument, older programs always bind to the same port.
            Shape::Datagrams => self.pair(port, &[&exchange, "-B", &its], &[&exchange, "-B", &another, HERE]),
            Shape::Connected => self.pair(port, &["-s", HERE, "-B", &number], &["-s", HERE, "-P", &number, HERE]),
            Shape::Bound => {
                self.pair(port, &["-s", HERE, "-B", &number], &["-s", HERE, "-B", &its, "-P", &number, HERE])
            }
            Shape::Beside => {
                let exchange = format!("-E={other}");
                let server = ["-s", HERE, "-B", &number, &exchange];
                self.pair(other, &server, &["-s", HERE, "-P", &number, &exchange, HERE])
            }
            Shape::Served(asks) => {
                let asks = self.file(asks)?;
                let mut server = self.start("server", &["-s", HERE, "-B", &number])?;
                self.pause(&mut server);
                let client = self.start("client", &["-u", &asks, "-P", &number, HERE])?;
                // The server must still be running.
                self.judge(vec![client], |_| server.is_running())
            }
            Shape::Listed(tests) => {
                let tests = self.file(&tests.replace("PROVIDER", self.requested))?;
                let mut server = self.start("server", &["-x", "-q", &number])?;
                listening(&mut server, port);
                let client = self.start("client", &["-u", &tests, "-q", &number, "-P", &its, HERE])?;
                self.judge(vec![server, client], |printed| {
                    printed.contains("Success: ") && !printed.contains("Success: 0")
                })
            }
            Shape::Ranks(count) => {
                let ranks = count.to_string();
                let words = ["-n", &ranks, "-s", HERE];
                let mut all = vec![self.start("0", &words)?];
                listening(&mut all[0], RANKS_PORT);
                for rank in 1..count {
                    all.push(self.start(&rank.to_string(), &words)?);
                }
                self.judge(all, |_| true)
            }
        }
    }

    /// Runs a server and, once it listens on this port, a client.
    fn pair(self, port: u16, server: &[&str], client: &[&str]) -> Outcome<CaseEnding> {
        let mut server = self.start("server", server)?;
        listening(&mut server, port);
        let client = self.start("client", client)?;
        self.judge(vec![server, client], |_| true)
    }

    /// Writes this text to a file that a program reads.
    fn file(&self, text: &str) -> Outcome<String> {
        let path = self.printed.with_extension("asks");
        fs::write(&path, text)?;
        Ok(path.to_string_lossy().into_owned())
    }

    /// Waits long enough for a server to start. Used if its port is not known.
    fn pause(&self, server: &mut RunningClient) {
        let enough = Instant::now() + Duration::from_secs(1);
        while server.is_running() && Instant::now() < enough {
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until all clients have ended. `is_good` checks the output of the last one.
    fn judge(&self, mut all: Vec<RunningClient>, is_good: impl FnOnce(&str) -> bool) -> Outcome<CaseEnding> {
        let mut deadline = self.deadline;
        while all.iter_mut().any(RunningClient::is_running) && Instant::now() < deadline {
            // When a process fails, the others keep waiting for it.
            let is_bad = |one: &mut RunningClient| one.ended().is_some_and(|status| !status.success());
            if all.iter_mut().any(is_bad) {
                deadline = deadline.min(Instant::now() + AFTER_FAILURE);
            }
            thread::sleep(Duration::from_millis(10));
        }
        let statuses: Vec<Option<ExitStatus>> = all.iter_mut().map(|one| one.wait_until(deadline)).collect();
        let printed = |one: &RunningClient| one.printed();
        Ok(match verdict(&statuses) {
            Verdict::Passed if is_good(&all.last().map(printed).unwrap_or_default()) => CaseEnding::Passed,
            Verdict::Excluded => {
                CaseEnding::Excluded(all.iter().find_map(|one| refusal(&one.printed())).unwrap_or_default())
            }
            Verdict::Passed | Verdict::Failed => failed(&all, &statuses),
        })
    }
}

/// Returns unused ports.
fn ports() -> Outcome<[u16; 3]> {
    loop {
        let ports = [processes::free_port()?, processes::free_port()?, processes::free_port()?];
        if ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2] {
            return Ok(ports);
        }
    }
}

/// Returns whether an exit code is FI_ENODATA or FI_ENOSYS, positive or negative.
fn says_excluded(status: ExitStatus) -> bool {
    status.code().is_some_and(|code| [61, 38].iter().any(|errno| code == *errno || code == 256 - errno))
}

/// The result that follows from the exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Excluded,
}

/// Derives the result from the exit codes of all programs. `None` is a program that had to be killed.
///
/// A program that lacks a feature exits. Its peer, which may have made more progress, then loses the connection.
fn verdict(statuses: &[Option<ExitStatus>]) -> Verdict {
    let ended = || statuses.iter().flatten();
    if statuses.iter().all(|status| status.is_some_and(|status| status.success())) {
        Verdict::Passed
    } else if ended().any(|status| says_excluded(*status)) && !ended().any(|status| has_crashed(*status)) {
        Verdict::Excluded
    } else {
        Verdict::Failed
    }
}

/// Returns whether the program was killed by a signal.
fn has_crashed(status: ExitStatus) -> bool {
    status.code().is_none()
}

/// Returns a failure with the exit status of each program.
fn failed(all: &[RunningClient], statuses: &[Option<ExitStatus>]) -> CaseEnding {
    let last =
        |printed: &str| printed.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").to_owned();
    let each = all.iter().zip(statuses).map(|(one, status)| {
        let how = status.map_or("ran out of time".to_owned(), |status| status.to_string());
        format!("{how}: {}", last(&one.printed()))
    });
    CaseEnding::Failed(each.collect::<Vec<_>>().join("; "))
}

/// Returns percale's reason for a rejection, from the log of libfabric.
fn refusal(printed: &str) -> Option<String> {
    let reason = printed.lines().find_map(|line| line.split_once("percale:")?.1.split_once("no match: "));
    reason.map(|(_, reason)| reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Verdict, refusal, verdict};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn exit_codes_map_to_verdicts() {
        let code = |code: i32| Some(ExitStatus::from_raw(code << 8));
        assert_eq!(verdict(&[code(0), code(0)]), Verdict::Passed);
        assert_eq!(verdict(&[code(61), code(195)]), Verdict::Excluded);
        assert_eq!(verdict(&[code(61), code(107)]), Verdict::Excluded);
        assert_eq!(verdict(&[code(38), None]), Verdict::Excluded);
        assert_eq!(verdict(&[code(0), code(1)]), Verdict::Failed);
        assert_eq!(verdict(&[code(0), None]), Verdict::Failed);
        assert_eq!(verdict(&[code(61), Some(ExitStatus::from_raw(11))]), Verdict::Failed);
    }

    #[test]
    fn a_refusal_is_found() {
        let printed = "one\nlibfabric:1:2::percale:fabric:info():3<warn> getinfo: no match: hints request this\n";
        assert_eq!(refusal(printed).as_deref(), Some("hints request this"));
        assert_eq!(refusal("libfabric:1:2::core:core:x<warn> no match: that"), None);
    }
}
