//! What waiting for counters costs.
//!
//! ```text
//! deferred_work [--rounds 5] [--hops 1000000] [--json]
//! ```
//!
//! * *queue* and *fire*: a counter operation put in a counter's line, and taken from it and done, with 1,000 and with 1,000,000 in
//!   the line, whose thresholds come upwards, downwards or at random; nanoseconds each, the median of the rounds
//! * *send*: from a counter's increment to the end of the call, in which a send of 8 bytes that waited for it has left, over shared
//!   memory; beside that of the increment alone
//! * *ring*: a token goes round four processes by deferred work alone: receives, and sends that wait for them, queued ahead of it
//!
//! The program fails where something is not done, or nothing moves, never for being slow.

#![expect(unsafe_code, reason = "queues raw work, on memory that is never freed")]

use std::time::{Duration, Instant};

use percale::trigger::{DeferredWork, Operation, Work};
use percale::{
    Counter, Domain, Info, OpFlags, PeerAddress, Progress, ReceiveWork, SendWork, SharedEndpoint, TransportKind,
};
use percale_conformance::memory::Memory;
use percale_conformance::process::{Helper, ask, play, say, told};
use percale_conformance::random::Random;
use percale_conformance::watchdog::{PATIENCE, Watchdog};

const PROCESSES: u64 = 4;
/// Passes of a process that are queued at a time.
const AHEAD: u64 = 1000;
const LONG: Option<Duration> = Some(PATIENCE);

fn main() {
    play(&[("ring", ring)]);
    let (mut rounds, mut hops, mut json) = (5, 1_000_000, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse().ok()).expect("a number behind it");
        match word.as_str() {
            "--rounds" => rounds = number() as usize,
            "--hops" => hops = number(),
            "--json" => json = true,
            other => panic!("{other}? deferred_work [--rounds N] [--hops N] [--json]"),
        }
    }
    let print = |what: &str, figures: &[(&str, f64)]| {
        if json {
            let figures: Vec<_> = figures.iter().map(|(name, value)| format!("\"{name}\":{value:.1}")).collect();
            println!("{{\"what\":\"{what}\",{}}}", figures.join(","));
        } else {
            let figures: Vec<_> = figures.iter().map(|(name, value)| format!("{name} {value:>8.1} ns")).collect();
            println!("{what:<34} {}", figures.join("   "));
        }
    };
    let domain = domain(Progress::Manual);
    for count in [1_000, 1_000_000] {
        for order in [Order::Up, Order::Down, Order::Random] {
            let all: Vec<_> = (0..rounds).map(|round| counters(&domain, count, order, round as u64)).collect();
            let [queue, fire, step] = [0, 1, 2].map(|at| median(all.iter().map(|times| times[at]).collect()));
            print(
                &format!("{count} counter operations, {order:?}"),
                &[("queue", queue), ("fire", fire), ("one by one", step)],
            );
        }
    }
    let times: Vec<_> = (0..rounds).map(|_| sends()).collect();
    let [sent, alone] = [0, 1].map(|at| median(times.iter().map(|times| times[at]).collect()));
    print(
        "a send of 8 bytes, over shm",
        &[("increment and send", sent), ("increment alone", alone), ("difference", sent - alone)],
    );
    print(&format!("a token round {PROCESSES} processes"), &[("hop", token(hops))]);
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn domain(progress: Progress) -> Domain {
    let info = Info::discover().expect("discovery");
    info.domain().transport(TransportKind::Shm).progress(progress).open().expect("a domain")
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Up,
    Down,
    Random,
}

/// Queueing each, firing each when the counter jumps over all, and firing each when it counts one by one.
fn counters(domain: &Domain, count: u64, order: Order, round: u64) -> [f64; 3] {
    let mut thresholds: Vec<u64> = (1..=count).collect();
    match order {
        Order::Up => {}
        Order::Down => thresholds.reverse(),
        Order::Random => {
            let mut random = Random::new(round);
            for at in (1..thresholds.len()).rev() {
                thresholds.swap(at, random.below(at + 1));
            }
        }
    }
    let done = Counter::new();
    let each = |since: Instant| since.elapsed().as_nanos() as f64 / count as f64;
    let queue = |trigger: &Counter| {
        let since = Instant::now();
        for &threshold in &thresholds {
            domain.defer_add(&done, 1, (trigger, threshold)).expect("queued");
        }
        each(since)
    };
    let trigger = Counter::new();
    let queued = queue(&trigger);
    let since = Instant::now();
    trigger.add(count);
    let fired = each(since);
    assert_eq!(done.value(), count);
    let trigger = Counter::new();
    queue(&trigger);
    let since = Instant::now();
    (0..count).for_each(|_| trigger.add(1));
    let stepped = each(since);
    assert_eq!(done.value(), 2 * count);
    [queued, fired, stepped]
}

/// An increment with which a send leaves, and one with which nothing does.
fn sends() -> [f64; 2] {
    const TIMES: u64 = 2000;
    let domain = domain(Progress::Manual);
    let vector = domain.address_vector().build().expect("a vector");
    let bind = || domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0").expect("an endpoint");
    let (left, right) = (bind(), bind());
    let peer = vector.insert(right.address()).expect("an address");
    let memory = Memory::of(&[7; 8]);
    let (trigger, alone) = (Counter::new(), Counter::new());
    let send = send_of(peer, memory, 0);
    let (mut sent, mut nothing) = (Vec::new(), Vec::new());
    for round in 0..TIMES {
        let receive = right.tagged_recv(0, 0, vec![0; 8]).start().expect("posted");
        // SAFETY: `Memory` is never freed.
        unsafe { left.post_when(&send, &trigger, round + 1) }.expect("it waits");
        let since = Instant::now();
        trigger.add(1);
        sent.push(since.elapsed().as_nanos() as f64);
        let since = Instant::now();
        alone.add(1);
        nothing.push(since.elapsed().as_nanos() as f64);
        let since = Instant::now();
        while !receive.is_ready() {
            left.progress();
            assert!(since.elapsed() < PATIENCE, "the message does not come");
        }
        drop(receive.wait().expect("the message"));
    }
    [median(sent), median(nothing)]
}

fn send_of(peer: PeerAddress, memory: Memory, tag: u64) -> Operation {
    let flags = OpFlags::empty();
    Operation::Send(SendWork { peer, segments: memory.segments(), tag: Some(tag), data: None, context: 0, flags })
}

fn receive_of(memory: Memory, tag: u64) -> Operation {
    let (from, flags) = (PeerAddress::UNSPECIFIED, OpFlags::empty());
    Operation::Receive(ReceiveWork { from, segments: memory.segments(), tag: Some((tag, 0)), context: 0, flags })
}

/// The hop of a token that deferred work passes on, in nanoseconds.
fn token(hops: u64) -> f64 {
    let _watchdog = Watchdog::within("a token passed on by deferred work", 10 * PATIENCE);
    let start = |number: u64| {
        Helper::start("ring", &[("PERCALE_NUMBER", &number.to_string()), ("PERCALE_HOPS", &hops.to_string())])
    };
    let mut all: Vec<Helper> = (0..PROCESSES).map(start).collect();
    let addresses: Vec<String> = all.iter_mut().map(Helper::hear).collect();
    all.iter_mut().for_each(|helper| helper.tell(&addresses.join(",")));
    for helper in &mut all {
        assert_eq!(helper.hear(), "queued");
    }
    all[0].tell("go");
    let took = all[0].hear().parse().expect("a number");
    all.iter_mut().skip(1).for_each(|helper| assert_eq!(helper.hear(), "done"));
    all.iter_mut().for_each(|helper| helper.tell("end"));
    all.into_iter().for_each(Helper::end);
    took
}

/// A process of the ring.
fn ring() {
    let number: u64 = told("PERCALE_NUMBER").parse().expect("a number");
    let rounds = told("PERCALE_HOPS").parse::<u64>().expect("a number").div_ceil(PROCESSES);
    let _watchdog = Watchdog::within("a process of the ring", 10 * PATIENCE);
    let domain = domain(Progress::Manual);
    let vector = domain.address_vector().build().expect("a vector");
    let endpoint = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0").expect("an endpoint");
    say(&endpoint.address().to_string());
    let peers: Vec<_> = ask().split(',').map(|address| vector.insert(address).expect("an address")).collect();
    let after = peers[((number + 1) % PROCESSES) as usize];
    let (start, received, sent) = (Counter::new(), Counter::new(), Counter::new());
    let memory = Memory::blank(8);
    let defer = |operation, counter: &Counter, threshold, counting: &Counter| {
        let work = Work::Transfer(SharedEndpoint::clone(&endpoint), operation);
        let work = DeferredWork { work, counter: counter.clone(), threshold, counting: Some(counting.clone()) };
        // SAFETY: `Memory` is never freed.
        unsafe { domain.queue_work(work) }.expect("queued");
    };
    // Process 0 starts the token, and starts it again for each stretch.
    let queue = |from: u64, to: u64| {
        for round in from..to {
            defer(receive_of(memory, 1), &start, 0, &received);
            if number > 0 {
                defer(send_of(after, memory, 1), &received, round + 1, &sent);
            } else if round == from {
                defer(send_of(after, memory, 1), &start, 1 + from / AHEAD, &sent);
            } else {
                defer(send_of(after, memory, 1), &received, round, &sent);
            }
        }
    };
    queue(0, AHEAD.min(rounds));
    say("queued");
    let since = if number == 0 {
        drop(ask());
        Instant::now()
    } else {
        Instant::now()
    };
    let mut from = 0;
    while from < rounds {
        let to = (from + AHEAD).min(rounds);
        start.add(1);
        if number > 0 && to < rounds {
            queue(to, (to + AHEAD).min(rounds)); // Ahead of the token.
        }
        received.wait(to, LONG).expect("the token comes round");
        if number == 0 && to < rounds {
            queue(to, (to + AHEAD).min(rounds));
        }
        from = to;
    }
    sent.wait(rounds, LONG).expect("everything was passed on");
    let each = since.elapsed().as_nanos() as f64 / (rounds * PROCESSES) as f64;
    say(&if number == 0 { each.to_string() } else { "done".into() });
    drop(ask());
}
