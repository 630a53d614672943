//! A token goes round more processes than there are processors.
//!
//! ```text
//! token_ring [--processes 16] [--hops 100000] [--rounds 3] [--json]
//! token_ring --idle SECONDS [--processes 16]
//! ```
//!
//! Measured in turns, `--rounds` times, of which the medians are reported:
//! * *many*: the hop of a ring of `--processes` processes that share two processors, pinned to neither of them;
//! * *two*: the hop of the same program with two processes, each on a processor of its own;
//! * *switch*: one context switch: two processes on one processor pass a byte to and fro over two pipes; half of
//!   a round trip. It holds what such a switch cannot do without (a write that wakes, a read that sleeps), and nothing
//!   is subtracted.
//!
//! A ring that wastes nothing takes about `two + switch` for a hop: the message, and the turn of whoever gets it. The
//! ratio says how far percale's blocking waits are from that. Every hop verifies the token, which counts the hops. The
//! program fails where the token is wrong or nothing moves for two minutes, never for being slow.
//!
//! With `--idle` all processes wait for a token that does not come, and the processor time that they take is reported.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use percale::PeerAddress;
use percale_conformance::peers::{Open, open};
use percale_conformance::process::{Helper, ask, fork, play, say, told};
use percale_conformance::watchdog::{PATIENCE, Watchdog};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// What tokens are tagged with.
const TAG: u64 = 0x70c3;

/// Hops before the clock starts, at least: connections are made, and everybody knows how crowded it is.
const WARM: u64 = 2000;

fn main() {
    play(&[("ring", ring), ("switch", switch)]);
    let asked = Asked::read();
    let processors = processors();
    assert!(processors.len() >= 2, "this needs two processors");
    let (first, second) = (processors[0], processors[1]);
    let both = format!("{first},{second}");
    if let Some(seconds) = asked.idle {
        return idle(&asked, &both, seconds);
    }
    let (mut many, mut two, mut switches) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..asked.rounds {
        many.push(measure(asked.processes, asked.hops, |_| both.clone()));
        two.push(measure(2, asked.hops, |number| [first, second][number].to_string()));
        let _watchdog = Watchdog::new("context switches");
        let told = [("PERCALE_PROCESSORS", &*first.to_string()), ("PERCALE_HOPS", &asked.hops.to_string())];
        let mut helper = Helper::start("switch", &told);
        switches.push(number(&helper.hear()));
        helper.end();
    }
    report(&asked, &many, &two, &switches);
}

/// What the command line asks for.
struct Asked {
    processes: usize,
    hops: u64,
    rounds: usize,
    json: bool,
    idle: Option<u64>,
}

impl Asked {
    fn read() -> Self {
        let mut asked = Self { processes: 16, hops: 100_000, rounds: 3, json: false, idle: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            if word == "--json" {
                asked.json = true;
                continue;
            }
            let value = words.next().and_then(|value| value.parse::<u32>().ok()).filter(|&value| value > 0);
            let Some(value) = value else { usage(&word) };
            match &*word {
                "--processes" if value > 1 => asked.processes = value as usize,
                "--hops" => asked.hops = value.into(),
                "--rounds" => asked.rounds = value as usize,
                "--idle" => asked.idle = Some(value.into()),
                _ => usage(&word),
            }
        }
        asked
    }
}

fn usage(word: &str) -> ! {
    eprintln!("token_ring: {word}: not understood, or without a number");
    eprintln!("usage: token_ring [--processes N (2 or more)] [--hops N] [--rounds N] [--json] [--idle SECONDS]");
    std::process::exit(2);
}

/// The processors we may use.
fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("an affinity");
    (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect()
}

/// A helper stays where it was told to, and so do its threads.
fn stay() {
    let mut set = CpuSet::new();
    told("PERCALE_PROCESSORS").split(',').for_each(|processor| set.set(processor.parse().expect("a processor")));
    sched_setaffinity(None, &set).expect("an affinity");
}

/// Starts a ring; `place` says where each process runs.
fn start(processes: usize, hops: u64, place: impl Fn(usize) -> String) -> Vec<Helper> {
    let start = |number| {
        let told = [
            ("PERCALE_PROCESSORS", place(number)),
            ("PERCALE_NUMBER", number.to_string()),
            ("PERCALE_PEERS", processes.to_string()),
            ("PERCALE_HOPS", hops.to_string()),
        ];
        Helper::start("ring", &told.each_ref().map(|(name, value)| (*name, &**value)))
    };
    let mut all: Vec<Helper> = (0..processes).map(start).collect();
    let addresses: Vec<String> = all.iter_mut().map(Helper::hear).collect();
    all.iter_mut().for_each(|helper| helper.tell(&addresses.join(",")));
    for helper in &mut all {
        assert_eq!(helper.hear(), "warm");
    }
    all
}

/// The hop of a ring in nanoseconds.
fn measure(processes: usize, hops: u64, place: impl Fn(usize) -> String) -> f64 {
    let _watchdog = Watchdog::new(&format!("a token's way round {processes} processes"));
    let all = start(processes, hops, place);
    end(all)
}

/// Lets a ring pass the token on to the end; the hop in nanoseconds.
fn end(mut all: Vec<Helper>) -> f64 {
    all[0].tell("go");
    let took = number(&all[0].hear());
    all.iter_mut().skip(1).for_each(|helper| helper.tell("go"));
    all.into_iter().for_each(Helper::end);
    took
}

/// One process of a ring. It is told everyone's address, then (the first one, which starts the token) when to begin.
fn ring() {
    stay();
    let number: u64 = told("PERCALE_NUMBER").parse().expect("a number");
    let count: u64 = told("PERCALE_PEERS").parse().expect("a number");
    let hops: u64 = told("PERCALE_HOPS").parse().expect("a number");
    let _watchdog = Watchdog::within("a process of a ring", 5 * PATIENCE);
    let open = open("shm", "127.0.0.1:0", |domain| domain.connect_timeout(PATIENCE));
    open.say_address();
    for address in ask().split(',') {
        open.insert(address);
    }
    let ring = Ring { open, number, count };
    let mut buffer = ring.pass(vec![0; 8], WARM.div_ceil(count));
    say("warm");
    let rounds = hops.div_ceil(count);
    if number == 0 {
        drop(ask());
        let since = Instant::now();
        ring.pass(buffer, rounds);
        say(&(since.elapsed().as_nanos() as f64 / (rounds * count) as f64).to_string());
    } else {
        buffer = ring.pass(buffer, rounds);
        drop(buffer);
        // Whoever has not received yet needs us.
        drop(ask());
    }
}

/// A process's place in its ring.
struct Ring {
    open: Open,
    number: u64,
    count: u64,
}

impl Ring {
    /// Passes the token on, this many times; it counts its hops.
    fn pass(&self, mut buffer: Vec<u8>, rounds: u64) -> Vec<u8> {
        let before = PeerAddress((self.number + self.count - 1) % self.count);
        let after = PeerAddress((self.number + 1) % self.count);
        for round in 0..rounds {
            let at = round * self.count + self.number;
            if self.number > 0 {
                buffer = self.take(buffer, before, at);
            }
            buffer.copy_from_slice(&(at + 1).to_le_bytes());
            let sent = self.open.endpoint.tagged_send(after, TAG, buffer).wait().expect("the token is sent");
            buffer = sent.buffer.into_vec();
            if self.number == 0 {
                buffer = self.take(buffer, before, at + self.count);
            }
        }
        buffer
    }

    /// Waits for the token after this many hops.
    fn take(&self, buffer: Vec<u8>, before: PeerAddress, hops: u64) -> Vec<u8> {
        let got = self.open.endpoint.tagged_recv(TAG, 0, buffer).from(before).wait().expect("the token comes");
        assert_eq!((got.len, got.tag, got.source), (8, TAG, Some(before)), "the token of process {}", self.number);
        let buffer = got.buffer.into_vec();
        assert_eq!(buffer, hops.to_le_bytes(), "the token that process {} gets", self.number);
        buffer
    }
}

/// Two processes on one processor, and a byte that goes to and fro.
fn switch() {
    stay();
    let turns = told("PERCALE_HOPS").parse::<u64>().expect("a number").div_ceil(2);
    let (mut asked, mut ask) = std::io::pipe().expect("a pipe");
    let (mut answered, mut answer) = std::io::pipe().expect("a pipe");
    let child = fork(|| {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).is_ok()
            && (0..turns + 100).all(|_| {
                let mut byte = [0];
                asked.read_exact(&mut byte).and_then(|()| answer.write_all(&byte)).is_ok()
            })
    });
    let mut turn = |number: u64| {
        let (byte, mut back) = ([number as u8], [0]);
        ask.write_all(&byte).and_then(|()| answered.read_exact(&mut back)).expect("the child answers");
        assert_eq!(byte, back, "the byte that comes back");
    };
    (0..100).for_each(&mut turn);
    let since = Instant::now();
    (0..turns).for_each(&mut turn);
    let took = since.elapsed().as_nanos() as f64 / (2 * turns) as f64;
    let child = rustix::process::Pid::from_raw(child);
    let (_, status) = rustix::process::waitpid(child, rustix::process::WaitOptions::empty())
        .expect("the child ends")
        .expect("its status");
    assert_eq!(status.exit_status(), Some(0), "the child's end");
    say(&took.to_string());
}

/// What processes take that wait for nothing.
fn idle(asked: &Asked, both: &str, seconds: u64) {
    let _watchdog = Watchdog::within("idle processes", PATIENCE + Duration::from_secs(seconds));
    let all = start(asked.processes, asked.hops, |_| both.to_owned());
    // All but the first wait for a token; it waits for us.
    std::thread::sleep(Duration::from_millis(500));
    let before: Vec<f64> = all.iter().map(|helper| processor_ms(helper.pid())).collect();
    std::thread::sleep(Duration::from_secs(seconds));
    let took = all.iter().zip(before).skip(1).map(|(helper, before)| processor_ms(helper.pid()) - before);
    let took: Vec<f64> = took.collect();
    let (sum, most) = took.into_iter().fold((0.0, 0.0), |(sum, most): (f64, f64), took| (sum + took, most.max(took)));
    end(all);
    let waiting = asked.processes - 1;
    if asked.json {
        println!(r#"{{"idle":{waiting},"seconds":{seconds},"processor_ms":{sum:.3},"most_ms":{most:.3}}}"#);
    } else {
        println!(
            "{waiting} waiting processes took {sum:.3} ms of processor time in {seconds} s, at most {most:.3} each"
        );
    }
}

/// The processor time that the threads of a process have taken, in milliseconds.
fn processor_ms(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there");
    let of = |thread: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(thread.expect("a thread").path().join("schedstat")).expect("its times");
        text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds come first") / 1e6
    };
    threads.map(of).sum()
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("{text}: no number"))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn report(asked: &Asked, many: &[f64], two: &[f64], switches: &[f64]) {
    let (hop, pair, switch) = (median(many), median(two), median(switches));
    let ratio = hop / (pair + switch);
    if asked.json {
        let (processes, hops) = (asked.processes, asked.hops);
        println!(
            r#"{{"processes":{processes},"hops":{hops},"hop_ns":{hop:.0},{}"ratio":{ratio:.3}}}"#,
            format_args!(r#""two_ns":{pair:.0},"switch_ns":{switch:.0},"#)
        );
        return;
    }
    let all = |values: &[f64]| values.iter().map(|value| format!("{value:.0}")).collect::<Vec<_>>().join(", ");
    let line = |name: &str, middle, values| println!("{name:<38}{middle:>8.0} ns   ({})", all(values));
    line(&format!("hop, {} processes on 2 processors", asked.processes), hop, many);
    line("hop, 2 processes, a processor each", pair, two);
    line("context switch", switch, switches);
    println!("{:<38}{ratio:>8.2}", "hop / (hop of 2 + context switch)");
}
