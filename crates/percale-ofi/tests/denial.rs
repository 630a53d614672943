//! Two processes of a C program that uses libfabric. The system rejects a system call of one of them (see
//! `percale_conformance::denial`).

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use percale_conformance::denial::{self, Case, Clock, DeniedCalls, SideOutcome, space};
use percale_conformance::provider::{copy_to, has_headers};
use percale_conformance::{long, skipped, watchdog};

/// The program and the directory of the provider.
struct Made {
    program: PathBuf,
    provider: PathBuf,
}

/// Returns the program, which is compiled once for all tests. Returns `None` if libfabric's headers are missing.
fn made() -> Option<&'static Made> {
    static MADE: OnceLock<Made> = OnceLock::new();
    has_headers().then(|| MADE.get_or_init(make))
}

fn make() -> Made {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("denial-{}", std::process::id()));
    let (provider, program) = (directory.join("provider"), directory.join("pair"));
    copy_to(&provider);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/denial/pair.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    let compiled = compiler.arg(source).arg("-lfabric").output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Made { program, provider }
}

/// One of the two processes.
struct Side {
    child: Child,
    tell: ChildStdin,
    lines: Receiver<String>,
    log: Receiver<String>,
}

impl Side {
    fn start(made: &Made, transport: &str, deny: Option<&Case>, limit: Option<(u64, &str)>) -> Self {
        let mut command = Command::new(&made.program);
        command.env("FI_PROVIDER_PATH", &made.provider).env("FI_PROVIDER", "percale").env_remove("PERCALE_TRANSPORT");
        // libfabric's log names the rejected call and the error of the operation.
        command.env("FI_LOG_LEVEL", "info").env("FI_LOG_PROV", "percale,core");
        if transport == "tcp" {
            command.env("PERCALE_TRANSPORT", "tcp");
        }
        if let Some(Case { call, error, when, .. }) = deny {
            let which = match call.which {
                DeniedCalls::All => 0,
                DeniedCalls::OwnDescriptors => 1,
                DeniedCalls::OfDescriptors => 2,
                DeniedCalls::SharedWords => 3,
            };
            command.env("DENY", format!("{} {which} {error} {when}", call.number));
        }
        if let Some((beyond, when)) = limit {
            command.env("SPACE", format!("{beyond} {when}")).envs(space::HEAP);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let ((sender, lines), (logged, log)) = (channel(), channel());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        std::thread::spawn(move || {
            let mut text = Vec::new();
            err.read_to_end(&mut text).ok();
            logged.send(String::from_utf8_lossy(&text).into_owned()).ok();
        });
        Self { tell: child.stdin.take().unwrap(), child, lines, log }
    }

    fn tell(&mut self, line: &str) {
        // If the process has ended, the next `receive_line` reports that.
        writeln!(self.tell, "{line}").ok();
    }

    /// Reads the next line of output. For an error, adds the log.
    fn receive_line(&mut self, clock: &Clock) -> SideOutcome {
        match self.lines.recv_timeout(clock.left()) {
            Ok(line) if line == "works" => SideOutcome::Works("shm: by the provider".into()),
            Ok(line) if line.starts_with("error ") => {
                let log = self.log.recv_timeout(Duration::from_secs(5)).unwrap_or_default();
                SideOutcome::Error(format!("{line} {log}"))
            }
            Ok(line) => SideOutcome::Ended(line),
            Err(RecvTimeoutError::Timeout) => SideOutcome::Silent,
            Err(RecvTimeoutError::Disconnected) => SideOutcome::Ended(format!("{:?}", self.child.wait())),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn address_of(outcome: &SideOutcome) -> Option<String> {
    let SideOutcome::Ended(line) = outcome else { return None };
    line.strip_prefix("address ").map(str::to_owned)
}

fn run(made: &Made, case: &Case) -> (SideOutcome, Option<SideOutcome>, Duration) {
    run_two(Side::start(made, case.transport, Some(case), None), || Side::start(made, case.transport, None, None))
}

/// Runs both processes. The second one is started once the first one has an address.
fn run_two(mut denied: Side, peer: impl FnOnce() -> Side) -> (SideOutcome, Option<SideOutcome>, Duration) {
    let mut clock = Clock::start();
    let first = denied.receive_line(&clock);
    let Some(address) = address_of(&first) else { return (first, None, clock.elapsed()) };
    let mut peer = peer();
    let other = peer.receive_line(&clock);
    let own = address_of(&other).expect("no call of the peer is denied");
    clock = Clock::start();
    denied.tell(&own);
    peer.tell(&address);
    let (mut a, mut b) = (denied.receive_line(&clock), peer.receive_line(&clock));
    let half = SideOutcome::Ended("half".into());
    if (&a, &b) == (&half, &half) {
        clock = Clock::start();
        denied.tell("go");
        peer.tell("go");
        (a, b) = (denied.receive_line(&clock), peer.receive_line(&clock));
    }
    (a, Some(b), clock.elapsed())
}

/// Returns whether this error of the process with the rejected call cannot name the call, for one of these reasons:
///
/// - the dynamic loader needs the call, so libfabric has no provider;
/// - a peer's access to a region of the process failed with the error of that access, and the peer ended.
fn is_named_elsewhere(line: &str) -> bool {
    let is_loaded = line.contains("percale_fi::provider()");
    let of_an_access = line.contains("the region's memory is not accessible at the target");
    line.contains(denial::UNNAMED) && (!is_loaded || of_an_access)
}

/// Requirements: FLT-012.
#[test]
fn denied_system_call_gives_a_result_or_an_error() {
    let _watchdog =
        watchdog::Watchdog::within("refused system calls", Duration::from_secs(if long() { 3600 } else { 900 }));
    let Some(made) = made() else {
        return skipped("libfabric", "refused system calls", "libfabric's headers are not installed (libfabric-dev)");
    };
    let cases = denial::cases();
    let (wrong, ways) = denial::run_all(&cases, |case| run(made, case));
    println!("{} cases: {ways:?}", cases.len());
    let (known, wrong): (Vec<_>, Vec<_>) = wrong.into_iter().partition(|line| is_named_elsewhere(line));
    println!("{} of them are errors whose log cannot name the call:\n{}", known.len(), known.join("\n"));
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Requirements: FLT-013.
#[test]
fn address_space_limit_gives_a_result_or_an_error() {
    let _watchdog = watchdog::Watchdog::within("no more address space", Duration::from_secs(600));
    let Some(made) = made() else {
        return skipped("libfabric", "no more address space", "libfabric's headers are not installed (libfabric-dev)");
    };
    let (mut wrong, mut bound) = (Vec::new(), 0);
    for transport in denial::TRANSPORTS {
        for beyond in space::BEYOND {
            for when in denial::TIMES {
                let limited = Side::start(made, transport, None, Some((beyond, when)));
                let (limited, peer, took) = run_two(limited, || Side::start(made, transport, None, None));
                let verdict = denial::judge(&space::SAYS, &limited, peer.as_ref(), took);
                let case = format!("{beyond} bytes from the {when} ({transport})");
                let text = format!("{case}: {verdict:?}: {limited:?}; its peer: {peer:?}; {} ms", took.as_millis());
                println!("{text}");
                let by_us = matches!(&limited, SideOutcome::Error(line) if line.contains("percale_fi::provider()"));
                bound += usize::from(by_us);
                // If the dynamic loader cannot map memory, libfabric has no provider.
                if verdict.is_err() && !is_named_elsewhere(&text) {
                    wrong.push(text);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(bound > 0, "no address space limit had an effect");
}
