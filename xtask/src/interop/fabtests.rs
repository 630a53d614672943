//! libfabric's own test programs (fabtests), which somebody built, run over the provider beside libfabric's shm and tcp providers.
//!
//! Their stock runner ends every process on the machine whose name begins like theirs; here each case is run by itself, and ended
//! by its own ids.

use super::libfabric::listening;
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::place::Place;
use crate::processes;
use crate::program::Program;
use crate::table::table;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Longer than any case takes that does not hang.
const LIMIT: Duration = Duration::from_secs(40);

/// Programs that run alone.
const ALONE: [&str; 8] = [
    "getinfo_test -s 127.0.0.1 127.0.0.1",
    "av_test -g 127.0.0.1 -n 1 -s 127.0.0.1 -e rdm",
    "dom_test -n 2",
    "eq_test",
    "cq_test",
    "mr_test",
    "cntr_test",
    "resmgmt_test",
];

/// Programs with a server and a client, which are told the same. `%` stands for each of the ways behind it.
const PAIRS: [(&str, &[&str]); 45] = [
    ("av_xfer -e rdm", &[]),
    ("cm_data", &[]),
    ("cq_data -e %", &["msg", "rdm"]),
    ("msg", &[]),
    ("msg_epoll", &[]),
    ("msg_sockets", &[]),
    ("poll -t %", &["queue", "counter"]),
    ("rdm%", &["", " -U"]),
    ("rdm_rma_event", &[]),
    ("rdm_rma_trigger", &[]),
    ("rdm_deferred_wq -T %", &["msg", "tagged", "rma", "atomic", "f_atomic", "c_atomic"]),
    ("shared_ctx%", &["", " --no-tx-shared-ctx", " --no-rx-shared-ctx", " -e msg"]),
    ("rdm_tagged_peek", &[]),
    ("scalable_ep", &[]),
    ("rdm_shared_av", &[]),
    ("multi_mr -e % -V", &["msg", "rdm"]),
    ("multi_ep -e % -v", &["msg", "rdm"]),
    ("recv_cancel -e rdm -V", &[]),
    ("unexpected_msg -e % -I 10", &["msg", "rdm"]),
    ("inject_test%-A inject -v", &[" ", " -N "]),
    ("inject_test%-A inj_complete -v", &[" ", " -N "]),
    ("bw -e rdm -v -T 1%", &["", " -U"]),
    ("bw -e msg -v -T 1", &[]),
    ("rdm_multi_client -C 10 -I 5%", &["", " -U"]),
    ("msg_pingpong -I 5%", &["", " -v"]),
    ("msg_bw -I 5%", &["", " -v"]),
    ("rma_bw -e msg -o % -I 5", &["write", "read", "writedata"]),
    ("rma_bw -e rdm -o % -I 5", &["write", "read", "writedata"]),
    ("rma_bw -e rdm -o % -I 5 -U", &["write", "read", "writedata"]),
    ("rma_pingpong -e rdm -o % -I 5", &["write", "writedata"]),
    ("rdm_atomic -I 5 -o all%", &["", " -U"]),
    ("rdm_cntr_pingpong -I 5", &[]),
    ("multi_recv -e % -I 5", &["rdm", "msg"]),
    ("rdm_pingpong -I 5%", &["", " -U", " -v", " -v -U"]),
    ("rdm_pingpong -k -I 5 -v", &[]),
    ("rdm_tagged_pingpong -I 5%", &["", " -U", " -v", " -v -U"]),
    ("rdm_tagged_bw -I 5%", &["", " -U", " -v", " -v -U"]),
    ("rdm_bw_mt -n 2", &[]),
    ("rdm_stress", &[]),
    ("flood", &[]),
    ("unmap_mem", &[]),
    ("mr_cache_evict", &[]),
    ("rdm_multi_domain", &[]),
    ("setopt_test", &[]),
    ("loopback", &[]),
];

/// libfabric's own, for comparison.
const PROVIDERS: [&str; 3] = ["percale", "shm", "tcp"];

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Ending {
    Passed,
    Failed,
    /// The program says that the provider lacks what it wants.
    Excluded,
    /// The program was not built.
    Missing,
}

impl fmt::Display for Ending {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Passed => "pass",
            Self::Failed => "FAIL",
            Self::Excluded => "excluded",
            Self::Missing => "missing",
        })
    }
}

#[derive(Serialize)]
struct Row {
    case: String,
    percale: Ending,
    shm: Ending,
    tcp: Ending,
    /// Of percale's run.
    seconds: f64,
}

/// Where the programs are, and what they run with.
struct Site<'a> {
    programs: &'a Path,
    libfabric: Option<PathBuf>,
    provider: PathBuf,
    said: PathBuf,
}

/// Runs the cases with `only` in them.
pub(super) fn run(place: &Place, provider: PathBuf, programs: &Path, only: Option<&str>, json: bool) -> Outcome<bool> {
    // Clients run in another directory.
    let programs = &programs.canonicalize().map_err(Failure::during(programs.display()))?;
    let library = programs.join("../lib");
    let libfabric = library.join("libfabric.so.1").exists().then_some(library);
    let said = place.target.join("interop/fabtests");
    fs::create_dir_all(&said)?;
    let site = Site { programs, libfabric, provider, said };
    let alone = ALONE.iter().map(|case| ((*case).to_owned(), false));
    let pairs = PAIRS.iter().flat_map(|(case, ways)| each_way(case, ways)).map(|case| (case, true));
    let wanted = |case: &str| only.is_none_or(|part| case.contains(part));
    let cases: Vec<(String, bool)> = alone.chain(pairs).filter(|(case, _)| wanted(case)).collect();
    let mut rows = Vec::with_capacity(cases.len());
    for (number, (case, is_pair)) in cases.into_iter().enumerate() {
        eprint!("  [{}] {case} ... ", number + 1);
        let start = Instant::now();
        let percale = site.run(&case, is_pair, PROVIDERS[0])?;
        let seconds = start.elapsed().as_secs_f64();
        let [shm, tcp] = [site.run(&case, is_pair, PROVIDERS[1])?, site.run(&case, is_pair, PROVIDERS[2])?];
        eprintln!("{percale} in {seconds:.1} s (shm {shm}, tcp {tcp})");
        rows.push(Row { case, percale, shm, tcp, seconds });
    }
    if rows.iter().all(|row| row.percale == Ending::Missing) {
        return Err(Failure::new(format!("no program of fabtests is in {}", programs.display())));
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        show(&rows);
    }
    Ok(rows.iter().all(|row| row.percale != Ending::Failed))
}

/// A case in each of its ways.
fn each_way(case: &str, ways: &[&str]) -> Vec<String> {
    if ways.is_empty() { vec![case.to_owned()] } else { ways.iter().map(|way| case.replace('%', way)).collect() }
}

fn show(rows: &[Row]) {
    let mut shown = table(["case", PROVIDERS[0], PROVIDERS[1], PROVIDERS[2], "seconds"], 4);
    for row in rows {
        let endings = [row.percale, row.shm, row.tcp].map(|ending| ending.to_string());
        shown.add_row([vec![row.case.clone()], endings.to_vec(), vec![format!("{:.1}", row.seconds)]].concat());
    }
    println!("{shown}");
    for (at, provider) in PROVIDERS.into_iter().enumerate() {
        let count = |ending| rows.iter().filter(|row| [row.percale, row.shm, row.tcp][at] == ending).count();
        let [passed, failed] = [Ending::Passed, Ending::Failed].map(count);
        let [excluded, missing] = [Ending::Excluded, Ending::Missing].map(count);
        println!("{provider}: {passed} passed, {failed} failed, {excluded} excluded, {missing} missing");
    }
}

impl Site<'_> {
    /// One case over one provider.
    fn run(&self, case: &str, is_pair: bool, provider: &str) -> Outcome<Ending> {
        let mut words = case.split_whitespace();
        let program = self.programs.join(format!("fi_{}", words.next().unwrap_or_default()));
        if !program.exists() {
            return Ok(Ending::Missing);
        }
        let arguments: Vec<&str> = words.collect();
        let said = self.said.join(format!("{provider}-{}", case.replace([' ', '/', '.'], "_")));
        let start = |ends: &[&str], which: &str| {
            let mut started = Program::new(&program).args(["-p", provider]).args(ends.iter().take(1)).args(&arguments);
            started = started.args(ends.iter().skip(1)).without("FI_PROVIDER").without("PERCALE_TRANSPORT");
            if provider == PROVIDERS[0] {
                started = started.env("FI_PROVIDER_PATH", &self.provider).env("FI_LOG_LEVEL", "warn");
            }
            if let Some(library) = &self.libfabric {
                started = started.env("LD_LIBRARY_PATH", library);
            }
            Client::start(started, &said.with_extension(which))
        };
        let deadline = Instant::now() + LIMIT;
        if !is_pair {
            return Ok(ending(&[start(&[], "alone")?.wait_until(deadline)]));
        }
        let port = processes::free_port()?;
        let exchange = format!("-E={port}");
        let mut server = start(&[&exchange], "server")?;
        listening(&mut server, port);
        let mut client = start(&[&exchange, "127.0.0.1"], "client")?;
        // Whoever ends badly leaves the other waiting.
        let soon = |status: Option<ExitStatus>| match status {
            Some(status) if !status.success() => Instant::now() + Duration::from_secs(2),
            _ => deadline,
        };
        while server.is_running() && client.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (first, second) = if server.is_running() { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let first = first.wait_until(deadline);
        let second = second.wait_until(soon(first));
        Ok(ending(&[first, second]))
    }
}

/// FI_ENODATA, FI_ENOSYS, FI_EOPNOTSUPP, as exit codes: negative ones as well.
fn says_excluded(status: ExitStatus) -> bool {
    status.code().is_some_and(|code| [61, 38, 95].iter().any(|errno| code == *errno || code == 256 - errno))
}

/// How a case ended whose programs ended so; `None` had to be ended.
fn ending(statuses: &[Option<ExitStatus>]) -> Ending {
    let all = |good: fn(ExitStatus) -> bool| statuses.iter().all(|status| status.is_some_and(good));
    if all(|status| status.success()) {
        Ending::Passed
    } else if statuses.iter().flatten().any(|status| says_excluded(*status)) && !statuses.iter().flatten().any(crashed)
    {
        Ending::Excluded
    } else {
        Ending::Failed
    }
}

/// Ended by a signal.
fn crashed(status: &ExitStatus) -> bool {
    status.code().is_none()
}

#[cfg(test)]
mod tests {
    use super::{Ending, each_way, ending};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn ways_replace_their_mark() {
        assert_eq!(each_way("rdm%", &["", " -U"]), ["rdm", "rdm -U"]);
        assert_eq!(each_way("flood", &[]), ["flood"]);
    }

    #[test]
    fn endings_are_told_apart() {
        let code = |code: i32| Some(ExitStatus::from_raw(code << 8));
        assert_eq!(ending(&[code(0), code(0)]), Ending::Passed);
        assert_eq!(ending(&[code(61), code(195)]), Ending::Excluded);
        assert_eq!(ending(&[code(0), code(1)]), Ending::Failed);
        assert_eq!(ending(&[code(0), None]), Ending::Failed);
        assert_eq!(ending(&[code(61), Some(ExitStatus::from_raw(11))]), Ending::Failed);
    }
}
