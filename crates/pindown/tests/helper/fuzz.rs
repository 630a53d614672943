//! A fuzzer of hostile clients, which runs at the same time as an honest client of another user.
//!
//! The *arena* is the first process of a PID namespace and runs as user `nobody`. It forks clients that speak the
//! protocol and break one rule each ([`rules::RULES`]), and kills, stops and continues them at random. The *honest*
//! client runs as another user. It connects from new processes repeatedly, and keeps one monitor. It counts results
//! that must not occur: a rejection, a change that was not reported, or a page that is marked as busy, which prevents
//! caching. Its latencies are printed but not checked: without other clients; with hostile clients of another helper,
//! which use as much processor time; and with hostile clients of its own helper.

mod rules;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pindown::monitor::bpf::Monitor;

use crate::client::{reports_a_change, watches_a_file};
use crate::hostile::fork;
use crate::support::{NOBODY, SocketDirectory, Talker, client, command, helper};
use rules::{RULES, Random};

/// The user ID of the honest client.
const HONEST: u32 = 65533;
/// The number of hostile clients at a time.
const CROWD: usize = 24;

/// Runs a role. Returns false if this module does not have a role of this name.
pub(crate) fn play(role: &str, socket: &Path) -> bool {
    match role {
        "arena" => arena(socket),
        "honest" => honest(socket),
        "leftover" => rules::leftover(),
        _ => return false,
    }
    true
}

fn number(name: &str) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).expect("a number")
}

/// Makes a command run as the first process of a new PID namespace: all processes of the namespace end with it.
fn in_a_namespace(command: &mut Command) -> &mut Command {
    let enter = || {
        // SAFETY: the call takes no pointers. The next child of this process is the first process of a new namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: this runs between fork and exec, where only this thread exists.
        match unsafe { libc::fork() } {
            -1 => return Err(std::io::Error::last_os_error()),
            0 => {}
            child => {
                let mut status = 0;
                // SAFETY: the call takes no pointers. The closed descriptors include the pipe that the test reads to
                // its end to detect that the program has started.
                unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
                // SAFETY: the call only writes the status.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                // SAFETY: the call ends this process, which need not clean up.
                unsafe { libc::_exit(libc::WEXITSTATUS(status) | i32::from(libc::WIFSIGNALED(status))) };
            }
        }
        // SAFETY: the call takes no pointers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        for change in [libc::SYS_setgid, libc::SYS_setuid] {
            // SAFETY: the call takes no pointers.
            if unsafe { libc::syscall(change, NOBODY) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(enter) }
}

/// Forks hostile clients until enough of them have run.
fn arena(socket: &Path) {
    let (clients, mut random) = (number("PINDOWN_CLIENTS"), Random::new(number("PINDOWN_SEED")));
    let mut alive: BTreeMap<libc::pid_t, usize> = BTreeMap::new();
    let (mut started, mut killed, mut stopped) = (0, 0, 0);
    let (mut broken, mut ended) = (vec![0_u64; RULES.len()], 0);
    while started < clients || !alive.is_empty() {
        while alive.len() < CROWD && started < clients {
            let (rule, seed) = (random.below(RULES.len() as u64) as usize, random.next());
            let child = fork(|| {
                RULES[rule].1(socket, &mut Random::new(seed));
                0
            });
            alive.insert(child, rule);
            started += 1;
        }
        let mut status = 0;
        // SAFETY: the call only writes the status.
        while let child @ 1.. = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            if let Some(rule) = alive.remove(&child) {
                broken[rule] += u64::from(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
                ended += 1;
            }
        }
        let pids: Vec<libc::pid_t> = alive.keys().copied().collect();
        for pid in pids {
            let signal = match random.below(if started < clients { 400 } else { 100 }) {
                0 => libc::SIGKILL,
                1..=2 => libc::SIGSTOP,
                3..=20 => libc::SIGCONT,
                _ => continue,
            };
            killed += u64::from(signal == libc::SIGKILL);
            stopped += u64::from(signal == libc::SIGSTOP);
            // SAFETY: the process is a child that was not waited for yet.
            unsafe { libc::kill(pid, signal) };
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let unbroken = RULES.iter().zip(&broken).filter(|(_, count)| **count == 0).map(|(rule, _)| rule.0);
    println!(
        "> {} rules, {started} clients, {ended} ended, {killed} kills, {stopped} stops, never finished: {:?}",
        RULES.len(),
        unbroken.collect::<Vec<_>>()
    );
}

/// The results of one check by the honest client.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    refused: u64,
    wrong: u64,
    connect: u64,
    watch: u64,
}

/// Runs a separate process that connects, makes a change that must be reported, and watches a file.
fn look(socket: &Path) -> Look {
    let (from, to) = rustix::pipe::pipe().expect("a pipe");
    let child = fork(|| {
        let mut look = Look::default();
        let begin = Instant::now();
        match Monitor::from_helper(socket) {
            Err(why) => {
                eprintln!("refused: {why}");
                look.refused = 1;
            }
            Ok(monitor) => {
                look.connect = begin.elapsed().as_micros() as u64;
                look.wrong += wrong("a change was reported", reports_a_change(&monitor), true);
                let begin = Instant::now();
                look.wrong += wrong("a file was watched", watches_a_file(&monitor), Ok(true));
                look.watch = begin.elapsed().as_micros() as u64;
                look.wrong += wrong("nothing may be kept", monitor.page().busy(), false);
            }
        }
        let words = [look.refused, look.wrong, look.connect, look.watch].map(u64::to_le_bytes);
        rustix::io::write(&to, words.as_flattened()).ok();
        0
    });
    let mut bytes = [[0_u8; 8]; 4];
    let got = rustix::io::read(&from, bytes.as_flattened_mut());
    let ended = crate::hostile::wait(child);
    let [refused, wrong, connect, watch] = bytes.map(u64::from_le_bytes);
    // A check that ends without a result also counts as an effect of the hostile clients.
    let lost = self::wrong("the result of the check", (got, ended), (Ok(32), 0));
    Look { refused, wrong: wrong + lost, connect, watch }
}

/// Returns 1, and prints both values, if `found` differs from `expected`.
fn wrong<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> u64 {
    if found == expected {
        return 0;
    }
    eprintln!("{what}: {found:?}");
    1
}

/// Makes checks repeatedly, in phases that end when the test sends a line. Ends with the test.
fn honest(socket: &Path) {
    let monitor = Monitor::from_helper(socket).expect("served before the hostile clients start");
    // The latency without other clients.
    let alone: Vec<Look> = (0..10).map(|_| look(socket)).collect();
    println!("> ready");
    println!("> alone: {}", latencies(&alone));
    loop {
        let over = AtomicBool::new(false);
        let (mut looks, mut kept_wrong) = (Vec::new(), 0_u64);
        let read = std::thread::scope(|scope| {
            let line = scope.spawn(|| {
                let read = std::io::stdin().lock().read_line(&mut String::new()).expect("a line from the test");
                over.store(true, Ordering::Relaxed);
                read
            });
            while !over.load(Ordering::Relaxed) {
                looks.push(look(socket));
                kept_wrong += wrong("a change was reported to the old monitor", reports_a_change(&monitor), true);
                kept_wrong += wrong("nothing may be kept with the old monitor", monitor.page().busy(), false);
                if looks.len().is_multiple_of(8) {
                    kept_wrong += wrong("a file was watched with the old monitor", watches_a_file(&monitor), Ok(true));
                }
            }
            line.join().expect("the thread reads a line")
        });
        if read == 0 {
            return;
        }
        let sum = |of: fn(&Look) -> u64| looks.iter().map(of).sum::<u64>();
        println!("> {} looks, {} refused, {} wrong", looks.len(), sum(|l| l.refused), sum(|l| l.wrong) + kept_wrong);
        println!("> {}", latencies(&looks));
    }
}

fn latencies(looks: &[Look]) -> String {
    let (connect, watch) = (spread(looks.iter().map(|l| l.connect)), spread(looks.iter().map(|l| l.watch)));
    format!("connecting {connect}; watching {watch}")
}

fn spread(times: impl Iterator<Item = u64>) -> String {
    let mut all: Vec<u64> = times.collect();
    all.sort_unstable();
    let at = |share: usize| all.get((all.len() * share / 100).min(all.len() - 1)).copied().unwrap_or(0);
    format!("{} us (median), {} us (99 %), {} us (most)", at(50), at(99), at(100))
}

/// Requirements: MON-034.
#[test]
fn hostile_clients_have_no_effect_on_an_honest_one() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped (root): several users are required, and therefore root");
    }
    let place = SocketDirectory::new();
    let Some(mut served) = helper(&place, &["--per-user", "64"]) else { return };
    let long = std::env::var_os("PERCALE_LONG").is_some_and(|value| value != "0");
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let clients = number("PINDOWN_CLIENTS", if long { 10_000 } else { 600 });
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).expect("random bytes");
    let seed = number("PINDOWN_SEED", u64::from_le_bytes(random));
    eprintln!("PINDOWN_SEED={seed} PINDOWN_CLIENTS={clients}");
    let mut honest = Talker::start(command(&place, "honest").uid(HONEST).gid(HONEST));
    assert_eq!(honest.line(), "ready");
    eprintln!("{}", honest.line());
    // A separate helper, to measure the effect of the clients on the processors and the kernel separately from their
    // effect on the helper.
    let elsewhere = SocketDirectory::new();
    let other = helper(&elsewhere, &["--per-user", "64"]).expect("a second helper");
    for (what, at) in [("clients of another helper", &elsewhere), ("clients of the same helper", &place)] {
        let mut arena = command(at, "arena");
        arena.env("PINDOWN_CLIENTS", clients.to_string()).env("PINDOWN_SEED", seed.to_string());
        let mut arena = Talker::start(in_a_namespace(&mut arena));
        let fought = arena.line();
        let effects = honest.ask("enough");
        eprintln!("with hostile {what}: {fought}; {effects}; {}", honest.line());
        assert!(fought.contains(&format!("{clients} clients")), "the arena did not finish: {fought}");
        assert!(effects.ends_with(" looks, 0 refused, 0 wrong"), "{effects}");
    }
    drop(other);
    assert!(served.child.try_wait().expect("a child of this test").is_none(), "the helper has ended");
    // The resources of the hostile user are released.
    while client(&place, "plain").line() != "ready" {}
}
