//! A ring of many processes that pass a token, and the measurements that it is compared with.
//!
//! Used by the example `token_ring` and by a test. The helper processes run the roles [`ring`] and [`switch`]. Results
//! are in nanoseconds.

use std::io::{Read, Write};
use std::time::Instant;

use percale::PeerAddress;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::peers::{Open, open};
use crate::process::{Helper, ask, fork, print_line, variable};
use crate::watchdog::{TEST_TIMEOUT, Watchdog};

/// The tag of tokens.
const TAG: u64 = 0x70c3;

/// The minimum number of hops before the measurement. After these hops all connections are established, and every
/// process has adapted to the number of busy processors.
const WARM: u64 = 2000;

/// Returns the processors that this thread may use.
///
/// # Panics
/// Panics if the kernel does not report them.
#[must_use]
pub fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("an affinity");
    (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect()
}

/// Pins this helper and its threads to the processors that its test chose.
fn stay() {
    let mut set = CpuSet::new();
    variable("PERCALE_PROCESSORS").split(',').for_each(|processor| set.set(processor.parse().expect("a processor")));
    sched_setaffinity(None, &set).expect("an affinity");
}

/// Starts a ring over this transport. `place` returns the processors of each process, separated by commas.
///
/// # Panics
/// Panics if a process fails.
pub fn start(transport: &str, processes: usize, hops: u64, place: impl Fn(usize) -> String) -> Vec<Helper> {
    let start = |number| {
        let variables = [
            ("PERCALE_FABRIC", transport.to_owned()),
            ("PERCALE_PROCESSORS", place(number)),
            ("PERCALE_NUMBER", number.to_string()),
            ("PERCALE_PEERS", processes.to_string()),
            ("PERCALE_HOPS", hops.to_string()),
        ];
        Helper::start("ring", &variables.each_ref().map(|(name, value)| (*name, &**value)))
    };
    let mut all: Vec<Helper> = (0..processes).map(start).collect();
    let addresses: Vec<String> = all.iter_mut().map(Helper::receive_line).collect();
    all.iter_mut().for_each(|helper| helper.send_line(&addresses.join(",")));
    for helper in &mut all {
        assert_eq!(helper.receive_line(), "warm");
    }
    all
}

/// Returns the time of one hop of a ring in nanoseconds.
#[must_use]
pub fn measure(transport: &str, processes: usize, hops: u64, place: impl Fn(usize) -> String) -> f64 {
    let _watchdog = Watchdog::new(&format!("a token ring of {processes} processes"));
    let all = start(transport, processes, hops, place);
    end(all)
}

/// Runs a ring until it ends. Returns the time of one hop in nanoseconds.
///
/// # Panics
/// Panics if a process fails.
#[must_use]
pub fn end(mut all: Vec<Helper>) -> f64 {
    all[0].send_line("go");
    let took = number(&all[0].receive_line());
    all.iter_mut().skip(1).for_each(|helper| helper.send_line("go"));
    all.into_iter().for_each(Helper::end);
    took
}

/// The role of one process of a ring. It receives the addresses of all processes. The first process sends the first
/// token, after the command to begin.
///
/// # Panics
/// Panics if the token is wrong or does not arrive.
pub fn ring() {
    stay();
    let number: u64 = variable("PERCALE_NUMBER").parse().expect("a number");
    let count: u64 = variable("PERCALE_PEERS").parse().expect("a number");
    let hops: u64 = variable("PERCALE_HOPS").parse().expect("a number");
    let _watchdog = Watchdog::within("a process of a ring", 5 * TEST_TIMEOUT);
    let open = open(&variable("PERCALE_FABRIC"), "127.0.0.1:0", |domain| domain.connect_timeout(TEST_TIMEOUT));
    open.say_address();
    for address in ask().split(',') {
        open.insert(address);
    }
    let ring = Ring { open, number, count };
    let mut buffer = ring.pass(vec![0; 8], WARM.div_ceil(count));
    print_line("warm");
    let rounds = hops.div_ceil(count);
    if number == 0 {
        drop(ask());
        let since = Instant::now();
        ring.pass(buffer, rounds);
        print_line(&(since.elapsed().as_nanos() as f64 / (rounds * count) as f64).to_string());
    } else {
        buffer = ring.pass(buffer, rounds);
        drop(buffer);
        // A process that has not yet received the token depends on the progress of this one.
        drop(ask());
    }
}

/// The position of a process in its ring.
struct Ring {
    open: Open,
    number: u64,
    count: u64,
}

impl Ring {
    /// Passes the token `rounds` times. The token counts its hops.
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
            buffer = sent.into_vec();
            if self.number == 0 {
                buffer = self.take(buffer, before, at + self.count);
            }
        }
        buffer
    }

    /// Waits for the token after this number of hops.
    fn take(&self, buffer: Vec<u8>, before: PeerAddress, hops: u64) -> Vec<u8> {
        let got = self.open.endpoint.tagged_recv(TAG, 0, buffer).from(before).wait().expect("the token arrives");
        assert_eq!((got.len, got.tag, got.source), (8, TAG, Some(before)), "the token of process {}", self.number);
        let buffer = got.buffer.into_vec();
        assert_eq!(buffer, hops.to_le_bytes(), "the token that process {} gets", self.number);
        buffer
    }
}

/// Returns the time of a context switch in nanoseconds: half the round-trip time of a byte between two processes on one
/// processor.
#[must_use]
pub fn context_switch(processor: usize, turns: u64) -> f64 {
    let _watchdog = Watchdog::new("context switches");
    let variables = [("PERCALE_PROCESSORS", &*processor.to_string()), ("PERCALE_HOPS", &turns.to_string())];
    let mut helper = Helper::start("switch", &variables);
    let took = number(&helper.receive_line());
    helper.end();
    took
}

/// The role of the helper of [`context_switch`].
///
/// # Panics
/// Panics if the byte is not returned.
pub fn switch() {
    stay();
    let turns = variable("PERCALE_HOPS").parse::<u64>().expect("a number").div_ceil(2);
    let (mut requests, mut ask) = std::io::pipe().expect("a pipe");
    let (mut answered, mut answer) = std::io::pipe().expect("a pipe");
    let child = fork(|| {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).is_ok()
            && (0..turns + 100).all(|_| {
                let mut byte = [0];
                requests.read_exact(&mut byte).and_then(|()| answer.write_all(&byte)).is_ok()
            })
    });
    let mut turn = |number: u64| {
        let (byte, mut back) = ([number as u8], [0]);
        ask.write_all(&byte).and_then(|()| answered.read_exact(&mut back)).expect("the child answers");
        assert_eq!(byte, back, "the returned byte");
    };
    (0..100).for_each(&mut turn);
    let since = Instant::now();
    (0..turns).for_each(&mut turn);
    let took = since.elapsed().as_nanos() as f64 / (2 * turns) as f64;
    let child = rustix::process::Pid::from_raw(child);
    let (_, status) = rustix::process::waitpid(child, rustix::process::WaitOptions::empty())
        .expect("the child ends")
        .expect("the child's status");
    assert_eq!(status.exit_status(), Some(0), "the child's end");
    print_line(&took.to_string());
}

/// Returns the processor time that the threads of a process have used, in milliseconds.
///
/// # Panics
/// Panics if there is no such process.
#[must_use]
pub fn processor_ms(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process exists");
    let of = |thread: std::io::Result<std::fs::DirEntry>| {
        let text =
            std::fs::read_to_string(thread.expect("a thread").path().join("schedstat")).expect("the thread's times");
        text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("the first field is in nanoseconds") / 1e6
    };
    threads.map(of).sum()
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("{text}: no number"))
}
