//! The main program, which runs rounds for a given time and reports the results.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use super::counts::Counts;
use super::plan::{RoundPlan, TRANSPORTS};
use super::supervisor::{self, RoundReport};
use crate::process::this_program;
use crate::search::program::quoted;

/// The environment variable that is set in the first process of a PID namespace.
const APART: &str = "PERCALE_SEARCH_APART";

const HELP: &str = "\
Random operations and random lifecycle events in several processes.

search-processes [--minutes N] [--seed S] [--transport shm|tcp|all] [--json]

  --minutes N          the duration of the search (default 1; fractions are allowed)
  --seed S             the seed of the first round, incremented for each further round (default: from the clock)
  --transport T        the transport (default all: the transports in turn)
  --rounds N           the maximum number of rounds
  --kinds K,...        the kinds of events, instead of the kinds that the seed selects
  --without K,...      kinds of events that must not occur
  --set NAME=NUMBER    sets a parameter of the rounds: active (seconds), workers, endpoints, longest, cap, threads,
                       shared, sleepy
  --logs DIR           the directory for the logs of rounds that found a fault
  --json               prints the result as one JSON object to standard output

The seed determines the events of a round, but not the scheduling of the processes.
";

/// The minimum time during which a round starts operations.
const LEAST: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Options {
    time: Duration,
    seed: u64,
    transports: Vec<&'static str>,
    rounds: u64,
    kinds: Vec<String>,
    without: Vec<String>,
    set: Vec<String>,
    logs: PathBuf,
    json: bool,
}

fn options(words: &[String]) -> Result<Options, String> {
    let mut options = Options {
        time: Duration::from_secs(60),
        // Short numbers are easier to type.
        seed: crate::random::seed() >> 24,
        transports: TRANSPORTS.to_vec(),
        rounds: u64::MAX,
        kinds: Vec::new(),
        without: Vec::new(),
        set: Vec::new(),
        logs: std::env::temp_dir().join(format!("percale-search-{}", std::process::id())),
        json: false,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--minutes" => {
                let minutes = value()?.parse::<f64>().map_err(|error| format!("--minutes: {error}"))?;
                options.time = Duration::from_secs_f64(minutes.max(0.0) * 60.0);
            }
            "--seed" => options.seed = value()?.parse().map_err(|error| format!("--seed: {error}"))?,
            "--rounds" => options.rounds = value()?.parse().map_err(|error| format!("--rounds: {error}"))?,
            "--transport" => {
                let text = value()?;
                if text != "all" {
                    let known = |name: &str| TRANSPORTS.into_iter().find(|known| *known == name);
                    let named = text.split(',').map(|name| {
                        known(name)
                            .ok_or_else(|| format!("{name}: processes are searched over {}", TRANSPORTS.join(" and ")))
                    });
                    options.transports = named.collect::<Result<_, _>>()?;
                }
            }
            "--kinds" => options.kinds = value()?.split(',').map(str::to_owned).collect(),
            "--without" => options.without = value()?.split(',').map(str::to_owned).collect(),
            "--set" => options.set.push(value()?.clone()),
            "--logs" => options.logs = value()?.into(),
            "--json" => options.json = true,
            other => return Err(format!("unknown option {other}\n\n{HELP}")),
        }
    }
    RoundPlan::check(&options.kinds)?;
    RoundPlan::check(&options.without)?;
    Ok(options)
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let options = match options(&words) {
        Ok(options) => options,
        Err(error) => return wrong(&error),
    };
    apart(&words).unwrap_or_else(|| search(&options))
}

fn wrong(error: &str) -> ExitCode {
    eprintln!("search-processes: {error}");
    ExitCode::from(2)
}

/// Runs this program as the first process of a PID namespace, so that no process that it starts outlives it.
fn apart(words: &[String]) -> Option<ExitCode> {
    if std::env::var_os(APART).is_some() {
        return None;
    }
    for user in [&[][..], &["--user", "--map-root-user"]] {
        let unshare = |program: &str| {
            let mut command = Command::new("unshare");
            command.args(user).args(["--pid", "--fork", "--kill-child", "--mount-proc", program]);
            command
        };
        if !unshare("true").stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success()) {
            continue;
        }
        let own = this_program();
        let status =
            unshare(own.get_program().to_str()?).args(own.get_args()).args(words).env(APART, "1").status().ok()?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        return Some(code.map_or(ExitCode::FAILURE, ExitCode::from));
    }
    eprintln!("search-processes: no PID namespace can be made here; workers that outlive the run end by themselves");
    None
}

/// The results for one transport.
#[derive(Debug, Default)]
struct Tally {
    transport: &'static str,
    rounds: u64,
    counts: Counts,
    seconds: f64,
    faults: u64,
}

/// A round that found a fault.
#[derive(Debug)]
struct FaultyRound {
    transport: &'static str,
    seed: u64,
    report: RoundReport,
}

fn search(options: &Options) -> ExitCode {
    let begun = Instant::now();
    let names = options.transports.join(", ");
    if !options.json {
        println!(
            "seed {}; {:.1} minutes over {names}, with real processes",
            options.seed,
            options.time.as_secs_f64() / 60.0
        );
    }
    let mut tallies = options.transports.iter().map(|&transport| Tally { transport, ..Tally::default() });
    let mut tallies = tallies.by_ref().collect::<Vec<_>>();
    let turns = tallies.len().max(1);
    let mut found = Vec::new();
    for round in 0..options.rounds {
        let left = options.time.saturating_sub(begun.elapsed());
        if left.is_zero() && round > 0 {
            break;
        }
        let seed = options.seed.wrapping_add(round);
        let tally = &mut tallies[usize::try_from(round).unwrap_or_default() % turns];
        let transport = tally.transport;
        let mut plan = RoundPlan::of(seed, transport, options.logs.clone(), &options.kinds, &options.without);
        if let Some(unknown) = options.set.iter().find(|set| !plan.set(set)) {
            return wrong(&format!("{unknown} is not a property of a round\n\n{HELP}"));
        }
        plan.active = plan.active.min(left.max(LEAST));
        if !options.json {
            println!("\n{transport} seed {seed}: {plan}");
        }
        let since = Instant::now();
        let report = supervisor::run(&plan);
        let took = since.elapsed().as_secs_f64();
        tally.rounds += 1;
        tally.seconds += took;
        tally.counts += report.counts;
        if !options.json {
            let Counts { started, failed, received, lives, .. } = report.counts;
            let [active, ended, closed] = report.phases.map(|phase| phase.as_secs_f64());
            println!(
                "  {started} operations, {failed} failed, {received} messages received; {lives} lifecycle events, {} processes\n  \
                 {active:.1} s of operations, {ended:.1} s until all had ended, {closed:.1} s until all had closed",
                report.workers
            );
        }
        if !report.faults.is_empty() {
            tally.faults += 1;
            let one = FaultyRound { transport, seed, report };
            if !options.json {
                print_found(&one, options);
            }
            found.push(one);
        }
    }
    if options.json {
        print_json(options, &tallies, &found);
    } else {
        print_tallies(&tallies);
    }
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_found(found: &FaultyRound, options: &Options) {
    let FaultyRound { transport, seed, report } = found;
    report.faults.iter().for_each(|fault| println!("  FAULT {fault}"));
    println!("  logs: {}", report.logs.display());
    println!("  again: {}", again(transport, *seed, options));
}

/// Returns the command that repeats a round.
fn again(transport: &str, seed: u64, options: &Options) -> String {
    let mut command = format!("search-processes --transport {transport} --seed {seed} --rounds 1");
    for (name, kinds) in [("--kinds", &options.kinds), ("--without", &options.without)] {
        if !kinds.is_empty() {
            command += &format!(" {name} {}", kinds.join(","));
        }
    }
    options.set.iter().for_each(|set| command += &format!(" --set {set}"));
    command
}

fn print_tallies(tallies: &[Tally]) {
    println!(
        "\n{:<10}{:>8}{:>13}{:>9}{:>10}{:>14}{:>9}{:>8}",
        "transport", "rounds", "operations", "lives", "seconds", "operations/s", "lives/s", "faults"
    );
    for Tally { transport, rounds, counts, seconds, faults } in tallies {
        let Counts { started, lives, .. } = *counts;
        let per_second = |count: u64| count as f64 / seconds.max(0.001);
        let (operations, events) = (per_second(started), per_second(lives));
        println!(
            "{transport:<10}{rounds:>8}{started:>13}{lives:>9}{seconds:>10.1}{operations:>14.0}{events:>9.1}{faults:>8}"
        );
    }
}

fn print_json(options: &Options, tallies: &[Tally], found: &[FaultyRound]) {
    let transports = tallies.iter().map(|tally| {
        let Tally { transport, rounds, counts, seconds, faults } = tally;
        let Counts { started, ended, failed, received, lives } = counts;
        let name = quoted(transport);
        format!(
            "{{\"transport\":{name},\"runs\":{rounds},\"operations\":{started},\"ended\":{ended},\"failed\":{failed},\
             \"received\":{received},\"lives\":{lives},\"seconds\":{seconds:.1},\"faults\":{faults}}}"
        )
    });
    let faults = found.iter().map(|FaultyRound { transport, seed, report }| {
        let text = quoted(report.faults.first().map_or("", String::as_str));
        let (count, again) = (report.faults.len(), quoted(&again(transport, *seed, options)));
        let (name, logs) = (quoted(transport), quoted(&report.logs.display().to_string()));
        format!(
            "{{\"transport\":{name},\"seed\":{seed},\"kind\":\"processes\",\"text\":{text},\"count\":{count},\"again\":{again},\"logs\":{logs}}}"
        )
    });
    let (transports, faults) = (transports.collect::<Vec<_>>().join(","), faults.collect::<Vec<_>>().join(","));
    println!("{{\"seed\":{},\"left_out\":[],\"transports\":[{transports}],\"faults\":[{faults}]}}", options.seed);
}

#[cfg(test)]
mod tests {
    use super::{again, options};

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn printed_command_reproduces_a_round() {
        let text =
            "search-processes --transport tcp --seed 7 --rounds 1 --kinds exec,kill --without stop --set active=3";
        let given = options(&words(text)[1..]).expect("options");
        assert_eq!(again("tcp", 7, &given), text);
    }

    #[test]
    fn unknown_words_are_refused() {
        for text in ["--transport sim", "--kinds exex", "--without exex", "--minutes", "--seed x", "again"] {
            assert!(options(&words(text)).is_err(), "{text}");
        }
    }
}
