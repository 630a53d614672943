//! The main program. It executes runs in helper processes for a given time, shortens the runs that found a fault, and
//! reports the results.
//!
//! A helper executes one run after another and reports them line by line (`child`). Its last line contains the seed of
//! the current run. Therefore a crash or a hang is reported as a fault with a seed, like any other. `shrink` shortens a
//! run of the simulated network.

mod child;
mod shrink;
mod spawn;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::spawn::{Batch, batch};
use super::ledger::Fault;
use super::step::{LONG, RunPlan, RunTransport};
use super::world::Done;
use super::{KNOWN, double};

const HELP: &str = "\
Random operations and random lifecycle events, checked against a model.

percale-search [--minutes N] [--seed S] [--transport sim|loopback|shm|tcp|verbs|all] [--json]

  --minutes N      the duration of the search (default 1; fractions are allowed)
  --seed S         the first seed, incremented for each further run (default: from the clock)
  --transport T    the transports, separated by commas (default all); verbs needs a test double of libibverbs:
                   libpercale_verbs_double.so next to this program, or the file that PERCALE_VERBS_LIBRARY names
  --json           prints the result as one JSON object to standard output
  --long           long runs: more operations, and fewer lifecycle events among them
  --no-shrink      does not shorten runs that found a fault

percale-search show TRANSPORT SEED [STEPS]      prints the settings and steps of a run, and executes it
percale-search shorten TRANSPORT SEED           shortens a run that finds a fault
";

/// The interval at which a search prints its progress to standard error.
const PROGRESS: Duration = Duration::from_secs(30);

/// The number of steps of a run that are printed.
const SHOWN: usize = 40;

/// A fault that a run found.
#[derive(Clone, Debug)]
struct FoundFault {
    transport: RunTransport,
    seed: u64,
    step: usize,
    fault: Fault,
    /// The number of runs that found a fault of this kind.
    count: u64,
    /// The steps that are sufficient to reproduce the fault, and the original number of steps.
    shrunk: Option<(Vec<usize>, usize)>,
    /// The time from the start until it was found.
    after: Duration,
}

#[derive(Debug)]
struct Options {
    minutes: f64,
    seed: u64,
    transports: Vec<RunTransport>,
    json: bool,
    shrink: bool,
    long: bool,
}

fn transport(name: &str) -> Option<RunTransport> {
    RunTransport::ALL.into_iter().find(|one| one.name() == name)
}

/// Returns the reason why a transport cannot be tested here, or `None` if it can be tested.
fn missing(transport: RunTransport) -> Option<&'static str> {
    let is_missing = transport == RunTransport::Verbs && double::path().is_none();
    is_missing.then_some("verbs: there is no double of libibverbs (cargo build -p percale-verbs-double)")
}

fn options(words: &[String]) -> Result<Options, String> {
    let seed = crate::random::seed();
    let all = RunTransport::ALL.into_iter().filter(|one| missing(*one).is_none()).collect();
    let mut options = Options { minutes: 1.0, seed, transports: all, json: false, shrink: true, long: false };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--minutes" => {
                let minutes = value()?.parse().map_err(|error| format!("--minutes: {error}"))?;
                options.minutes = minutes;
            }
            "--seed" => {
                let text = value()?;
                let seed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
                options.seed = seed.map_err(|error| format!("--seed: {error}"))?;
            }
            "--transport" => {
                let text = value()?;
                if text != "all" {
                    let named =
                        text.split(',').map(|name| transport(name).ok_or_else(|| format!("no transport {name}")));
                    options.transports = named.collect::<Result<_, _>>()?;
                    if let Some(why) = options.transports.iter().find_map(|one| missing(*one)) {
                        return Err(why.to_owned());
                    }
                }
            }
            "--json" => options.json = true,
            "--no-shrink" => options.shrink = false,
            "--long" => options.long = true,
            other => return Err(format!("unknown option {other}\n\n{HELP}")),
        }
    }
    if options.long {
        options.seed |= LONG;
    }
    Ok(options)
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("child") => child::main(&words[1..]),
        Some("show") => show(&words[1..]),
        Some("shorten") => shorten(&words[1..]),
        Some("--help" | "-h") => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => match options(&words) {
            Ok(options) => search(&options),
            Err(error) => {
                eprintln!("percale-search: {error}");
                ExitCode::from(2)
            }
        },
    }
}

/// Prints a run and then executes it.
fn show(words: &[String]) -> ExitCode {
    let (Some(transport), Some(Ok(seed))) =
        (words.first().and_then(|name| transport(name)), words.get(1).map(|seed| seed.parse()))
    else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    let plan = RunPlan::new(seed, transport);
    let kept = words.get(2).map_or_else(|| (0..plan.steps.len()).collect(), |text| shrink::indices(text));
    if let Some(why) = missing(transport) {
        eprintln!("percale-search: {why}");
        return ExitCode::from(2);
    }
    println!("{:#?}", plan.settings);
    for index in &kept {
        println!("{index:>5}  {:?}", plan.steps[*index]);
    }
    let text = shrink::text(&kept);
    // The run needs a separate process, because the environment must name the test double.
    let status = spawn::helper(transport, seed, Duration::from_millis(1)).arg(text).status();
    let code = status.ok().and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(1))
}

/// The results for one transport.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    runs: u64,
    done: Done,
    seconds: f64,
    faults: u64,
}

/// Returns a text that is equal for faults that probably have the same cause.
fn likeness(fault: &Fault) -> String {
    let place = if fault.kind == "panicked" { fault.text.rsplit(" at ").next().unwrap_or_default() } else { "" };
    let what =
        if fault.kind.ends_with("never ended") { fault.text.split("what: ").nth(1).unwrap_or_default() } else { "" };
    format!("{} {}{place}", fault.kind, what.split(',').next().unwrap_or_default())
}

/// Shortens a run that finds a fault.
fn shorten(words: &[String]) -> ExitCode {
    let (Some(transport), Some(Ok(seed))) =
        (words.first().and_then(|name| transport(name)), words.get(1).map(|seed| seed.parse()))
    else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    let begin = Instant::now();
    let Batch { fault, .. } = batch(transport, seed, Duration::ZERO, None);
    let Some((seed, step, fault)) = fault else {
        println!("the run finds nothing");
        return ExitCode::SUCCESS;
    };
    let shrunk = shrink::shrink(transport, seed, &fault, shrink::LONGEST);
    print_found(&FoundFault { transport, seed, step, fault, count: 1, shrunk, after: begin.elapsed() });
    ExitCode::FAILURE
}

fn search(options: &Options) -> ExitCode {
    let begin = Instant::now();
    let limit = Duration::from_secs_f64(options.minutes.max(0.0) * 60.0);
    let mut tallies: Vec<(RunTransport, Tally)> =
        options.transports.iter().map(|one| (*one, Tally::default())).collect();
    let mut found: BTreeMap<(&'static str, String), FoundFault> = BTreeMap::new();
    // A short search has the same time for each transport.
    let longest = (limit / u32::try_from(tallies.len()).unwrap_or(1).max(1)).min(Duration::from_secs(10));
    let mut seed = options.seed;
    if !options.json {
        println!("seed {seed}; {:.1} minutes over {}", options.minutes, names(&options.transports));
        KNOWN.iter().for_each(|known| println!("left out: {known}"));
    }
    let (mut shown, mut made) = (begin, 0);
    'all: loop {
        for (transport, tally) in &mut tallies {
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break 'all;
            }
            let before = Instant::now();
            let Batch { runs, done, next, fault } = batch(*transport, seed, left.min(longest), None);
            tally.seconds += before.elapsed().as_secs_f64();
            tally.runs += runs;
            tally.done.operations += done.operations;
            tally.done.lives += done.lives;
            seed = next;
            made += done.operations;
            if shown.elapsed() > PROGRESS {
                shown = Instant::now();
                let (now, all) = (begin.elapsed().as_secs(), limit.as_secs());
                eprintln!("{now} of {all} s: {made} operations, {} kinds of faults", found.len());
            }
            let Some((failed, step, fault)) = fault else { continue };
            tally.faults += 1;
            let key = (transport.name(), likeness(&fault));
            if let Some(known) = found.get_mut(&key) {
                known.count += 1;
                continue;
            }
            let mut one = FoundFault {
                transport: *transport,
                seed: failed,
                step,
                fault,
                count: 1,
                shrunk: None,
                after: begin.elapsed(),
            };
            if options.shrink {
                one.shrunk = shrink::shrink(*transport, failed, &one.fault, shrink::LIMIT);
            }
            if options.json {
                let FoundFault { seed, step, fault, .. } = &one;
                eprintln!("found: {} over {}, seed {seed}, step {step}: {}", fault.kind, transport.name(), fault.text);
            } else {
                print_found(&one);
            }
            found.insert(key, one);
        }
    }
    let found: Vec<FoundFault> = found.into_values().collect();
    if options.json {
        print_json(options, &tallies, &found)
    } else {
        print_tallies(&tallies, &found)
    }
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn names(transports: &[RunTransport]) -> String {
    transports.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ")
}

fn print_found(found: &FoundFault) {
    let FoundFault { transport, seed, step, fault, shrunk, after, .. } = found;
    println!(
        "\nFAULT {} over {}, seed {seed}, step {step}, after {:.1} s",
        fault.kind,
        transport.name(),
        after.as_secs_f64()
    );
    println!("  {}", fault.text);
    let plan = RunPlan::new(*seed, *transport);
    if let Some((kept, all)) = shrunk {
        println!(
            "  {} of {all} steps are enough: percale-search show {} {seed} {}",
            kept.len(),
            transport.name(),
            shrink::text(kept)
        );
        let settings = &plan.settings;
        println!("  {settings:?}");
        kept.iter().take(SHOWN).for_each(|index| println!("  {index:>4}  {:?}", plan.steps[*index]));
    } else {
        println!("  percale-search show {} {seed}", transport.name());
    }
}

fn print_tallies(tallies: &[(RunTransport, Tally)], found: &[FoundFault]) {
    println!(
        "\n{:<10}{:>10}{:>13}{:>11}{:>9}{:>13}{:>8}",
        "transport", "runs", "operations", "lives", "seconds", "operations/s", "faults"
    );
    for (transport, Tally { runs, done, seconds, faults }) in tallies {
        let rate = done.operations as f64 / seconds.max(0.001);
        let Done { operations, lives, .. } = done;
        println!("{:<10}{runs:>10}{operations:>13}{lives:>11}{seconds:>9.1}{rate:>13.0}{faults:>8}", transport.name());
    }
    for one in found {
        println!("{:<10}{:>6} x  {} (seed {})", one.transport.name(), one.count, one.fault.kind, one.seed);
    }
}

/// Formats text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    let letter = |letter: char| match letter {
        '"' | '\\' => format!("\\{letter}"),
        letter if letter.is_control() => format!("\\u{:04x}", u32::from(letter)),
        letter => letter.to_string(),
    };
    format!("\"{}\"", text.chars().map(letter).collect::<String>())
}

fn print_json(options: &Options, tallies: &[(RunTransport, Tally)], found: &[FoundFault]) {
    let transports = tallies.iter().map(|(transport, tally)| {
        let Tally { runs, done: Done { operations, lives, .. }, seconds, faults } = tally;
        let name = quoted(transport.name());
        format!(
            "{{\"transport\":{name},\"runs\":{runs},\"operations\":{operations},\"lives\":{lives},\"seconds\":{seconds:.1},\"faults\":{faults}}}"
        )
    });
    let faults = found.iter().map(|one| {
        let FoundFault { transport, seed, step, fault, count, shrunk, .. } = one;
        let (name, kind, text) = (quoted(transport.name()), quoted(fault.kind), quoted(&fault.text));
        let steps = shrunk.as_ref().map_or_else(|| "null".into(), |(kept, _)| quoted(&shrink::text(kept)));
        format!(
            "{{\"transport\":{name},\"seed\":{seed},\"step\":{step},\"kind\":{kind},\"text\":{text},\"count\":{count},\"steps\":{steps}}}"
        )
    });
    let (transports, faults) = (transports.collect::<Vec<_>>().join(","), faults.collect::<Vec<_>>().join(","));
    let known = KNOWN.iter().map(|known| quoted(known)).collect::<Vec<_>>().join(",");
    let seed = options.seed;
    println!("{{\"seed\":{seed},\"left_out\":[{known}],\"transports\":[{transports}],\"faults\":[{faults}]}}");
}
