//! Passes a token around a ring of more processes than there are processors.
//!
//! ```text
//! token_ring [--processes 16] [--hops 100000] [--rounds 3] [--json]
//! token_ring --idle SECONDS [--processes 16]
//! ```
//!
//! Takes these measurements in turns, `--rounds` times, and reports their medians:
//! * *many*: one hop in a ring of `--processes` processes that share two processors, pinned to neither of them;
//! * *two*: one hop of the same program with two processes, each on a processor of its own;
//! * *switch*: one context switch. Two processes on one processor exchange a byte over two pipes, and half of a round
//!   trip is reported. It includes the calls that such a switch needs (a write that wakes the other process, and a read
//!   that sleeps). Nothing is subtracted.
//!
//! A ring without overhead takes about `two + switch` for a hop: the message, and the switch to the process that
//! receives it. The ratio compares percale's blocking waits with this minimum. Every hop verifies the token, which
//! counts the hops. The program fails if the token is wrong, or if one measurement takes longer than two minutes. It
//! does not compare the results with limits.
//!
//! With `--idle` all processes wait for a token that never arrives, and their processor time is reported.

use std::time::Duration;

use percale_conformance::process::play;
use percale_conformance::ring::{context_switch, end, measure, processor_ms, processors, ring, start, switch};
use percale_conformance::watchdog::{TEST_TIMEOUT, Watchdog};

fn main() {
    play(&[("ring", ring), ("switch", switch)]);
    let options = Options::read();
    let processors = processors();
    assert!(processors.len() >= 2, "this needs two processors");
    let (first, second) = (processors[0], processors[1]);
    let both = format!("{first},{second}");
    if let Some(seconds) = options.idle {
        return idle(&options, &both, seconds);
    }
    let (mut many, mut two, mut switches) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        many.push(measure("shm", options.processes, options.hops, |_| both.clone()));
        two.push(measure("shm", 2, options.hops, |number| [first, second][number].to_string()));
        switches.push(context_switch(first, options.hops));
    }
    report(&options, &many, &two, &switches);
}

/// The command-line options.
struct Options {
    processes: usize,
    hops: u64,
    rounds: usize,
    json: bool,
    idle: Option<u64>,
}

impl Options {
    fn read() -> Self {
        let mut options = Self { processes: 16, hops: 100_000, rounds: 3, json: false, idle: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            if word == "--json" {
                options.json = true;
                continue;
            }
            let value = words.next().and_then(|value| value.parse::<u32>().ok()).filter(|&value| value > 0);
            let Some(value) = value else { usage(&word) };
            match &*word {
                "--processes" if value > 1 => options.processes = value as usize,
                "--hops" => options.hops = value.into(),
                "--rounds" => options.rounds = value as usize,
                "--idle" => options.idle = Some(value.into()),
                _ => usage(&word),
            }
        }
        options
    }
}

fn usage(word: &str) -> ! {
    eprintln!("token_ring: {word}: not understood, or without a number");
    eprintln!("usage: token_ring [--processes N (2 or more)] [--hops N] [--rounds N] [--json] [--idle SECONDS]");
    std::process::exit(2);
}

/// Measures the processor time of processes that wait without receiving anything.
fn idle(options: &Options, both: &str, seconds: u64) {
    let _watchdog = Watchdog::within("idle processes", TEST_TIMEOUT + Duration::from_secs(seconds));
    let all = start("shm", options.processes, options.hops, |_| both.to_owned());
    // All but the first process wait for a token, and the first one waits for this program.
    std::thread::sleep(Duration::from_millis(500));
    let before: Vec<f64> = all.iter().map(|helper| processor_ms(helper.pid())).collect();
    std::thread::sleep(Duration::from_secs(seconds));
    let took = all.iter().zip(before).skip(1).map(|(helper, before)| processor_ms(helper.pid()) - before);
    let took: Vec<f64> = took.collect();
    let (sum, most) = took.into_iter().fold((0.0, 0.0), |(sum, most): (f64, f64), took| (sum + took, most.max(took)));
    let _hop = end(all);
    let waiting = options.processes - 1;
    if options.json {
        println!(r#"{{"idle":{waiting},"seconds":{seconds},"processor_ms":{sum:.3},"most_ms":{most:.3}}}"#);
    } else {
        println!(
            "{waiting} waiting processes took {sum:.3} ms of processor time in {seconds} s, at most {most:.3} each"
        );
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn report(options: &Options, many: &[f64], two: &[f64], switches: &[f64]) {
    let (hop, pair, switch) = (median(many), median(two), median(switches));
    let ratio = hop / (pair + switch);
    if options.json {
        let (processes, hops) = (options.processes, options.hops);
        println!(
            r#"{{"processes":{processes},"hops":{hops},"hop_ns":{hop:.0},{}"ratio":{ratio:.3}}}"#,
            format_args!(r#""two_ns":{pair:.0},"switch_ns":{switch:.0},"#)
        );
        return;
    }
    let all = |values: &[f64]| values.iter().map(|value| format!("{value:.0}")).collect::<Vec<_>>().join(", ");
    let line = |name: &str, middle, values| println!("{name:<38}{middle:>8.0} ns   ({})", all(values));
    line(&format!("hop, {} processes on 2 processors", options.processes), hop, many);
    line("hop, 2 processes, a processor each", pair, two);
    line("context switch", switch, switches);
    println!("{:<38}{ratio:>8.2}", "hop / (hop of 2 + context switch)");
}
