//! The random tester with several processes: `search-processes --seconds 60 --transport tcp`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use percale_conformance::random::seed;
use percale_conformance::search_processes::{Plan, play, supervisor};

/// Set in the process that is the first of a namespace.
const APART: &str = "PERCALE_SEARCH_APART";

const USAGE: &str = "usage: search-processes [--seconds N] [--transport shm|tcp|both] [--seed N]... [--rounds N] \
                     [--kinds KIND,...] [--without KIND,...] [--set NAME=NUMBER]... [--logs DIR] [--keep-going] [--asan]";

struct Arguments {
    time: Duration,
    rounds: usize,
    transports: Vec<String>,
    seeds: Vec<u64>,
    kinds: Vec<String>,
    set: Vec<String>,
    without: Vec<String>,
    logs: PathBuf,
    keep_going: bool,
    asan: bool,
}

fn arguments() -> Option<Arguments> {
    let mut all = Arguments {
        time: Duration::from_secs(60),
        rounds: usize::MAX,
        transports: vec!["shm".into(), "tcp".into()],
        seeds: Vec::new(),
        kinds: Vec::new(),
        set: Vec::new(),
        without: Vec::new(),
        logs: std::env::temp_dir().join(format!("percale-search-{}", std::process::id())),
        keep_going: false,
        asan: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match &*word {
            "--seconds" => all.time = Duration::from_secs(words.next()?.parse().ok()?),
            "--rounds" => all.rounds = words.next()?.parse().ok()?,
            "--transport" => {
                let name = words.next()?;
                if name != "both" {
                    all.transports = vec![name];
                }
            }
            "--seed" => all.seeds.push(words.next()?.parse().ok()?),
            "--kinds" => all.kinds = words.next()?.split(',').map(str::to_owned).collect(),
            "--without" => all.without = words.next()?.split(',').map(str::to_owned).collect(),
            "--set" => all.set.push(words.next()?),
            "--logs" => all.logs = words.next()?.into(),
            "--keep-going" => all.keep_going = true,
            "--asan" => all.asan = true,
            _ => return None,
        }
    }
    Some(all)
}

/// Runs this program as the first process of a PID namespace, so that nothing that it starts survives it.
fn apart() -> Option<ExitCode> {
    if std::env::var_os(APART).is_some() {
        return None;
    }
    for user in [&[][..], &["--user", "--map-root-user"]] {
        let unshare = |program: &str| {
            let mut command = Command::new("unshare");
            command.args(user).args(["--pid", "--fork", "--kill-child", "--mount-proc", program]);
            command
        };
        if !unshare("true").status().is_ok_and(|status| status.success()) {
            continue;
        }
        let own = std::env::current_exe().ok()?;
        let status = unshare(own.to_str()?).args(std::env::args().skip(1)).env(APART, "1").status().ok()?;
        return Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    eprintln!("no PID namespace can be made; workers that outlive the run end by themselves");
    None
}

/// Builds this program with AddressSanitizer, by the nightly compiler, and runs that one with the same arguments.
fn sanitized() -> ExitCode {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from).join("asan");
    let triple = &*format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = Command::new("cargo");
    build.args(["+nightly", "build", "--quiet", "--target", triple, "-p", "percale-conformance"]);
    build.args(["--bin", "search-processes"]).env("RUSTFLAGS", "-Zsanitizer=address").env("CARGO_TARGET_DIR", &target);
    if !build.status().is_ok_and(|status| status.success()) {
        eprintln!("the nightly compiler cannot build it with AddressSanitizer");
        return ExitCode::FAILURE;
    }
    let program = target.join(triple).join("debug").join("search-processes");
    // Workers end by calls that run no destructors, so leaks are none.
    let status = Command::new(program)
        .args(std::env::args().skip(1).filter(|word| word != "--asan"))
        .env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1")
        .status();
    if status.is_ok_and(|status| status.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    play();
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    if arguments.asan {
        return sanitized();
    }
    if let Some(code) = apart() {
        return code;
    }
    let begun = Instant::now();
    let mut fresh = seed();
    let mut faults = 0;
    let mut counts = [0; 4];
    let mut rounds = 0;
    while rounds < arguments.rounds && (begun.elapsed() < arguments.time || rounds < arguments.seeds.len()) {
        let transport = &arguments.transports[rounds % arguments.transports.len()];
        let seed = arguments.seeds.get(rounds).copied().unwrap_or_else(|| {
            fresh = fresh.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            fresh >> 24
        });
        rounds += 1;
        let mut plan = Plan::of(seed, transport, arguments.logs.clone(), &arguments.kinds, &arguments.without);
        if let Some(unknown) = arguments.set.iter().find(|set| !plan.set(set)) {
            eprintln!("a round has no {unknown}; {USAGE}");
            return ExitCode::FAILURE;
        }
        let kinds = plan.kinds.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        let (threads, shared, sleepy) = (plan.threads, plan.shared, plan.sleepy);
        println!(
            "round {seed} {transport} kinds={kinds} cap={} longest={} threads={threads} shared={shared} sleepy={sleepy}",
            plan.cap, plan.longest
        );
        let since = Instant::now();
        let report = supervisor::run(&plan);
        (0..4).for_each(|index| counts[index] += report.counts[index]);
        let [started, _, failed, received] = report.counts;
        println!(
            "  {} faults; {started} operations, {failed} failed, {received} messages received, {} workers, {} events; {:?}",
            report.faults.len(),
            report.workers,
            report.events,
            since.elapsed()
        );
        if !report.faults.is_empty() {
            faults += 1;
            println!("  logs: {}; again: --transport {transport} --seed {seed}", report.logs.display());
            if !arguments.keep_going {
                break;
            }
        }
    }
    let [started, done, failed, received] = counts;
    println!(
        "{rounds} rounds, {faults} with faults; {started} operations started, {done} ended, {failed} failed, {received} messages \
         received; {:?}",
        begun.elapsed()
    );
    if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
