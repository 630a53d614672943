//! Resource use after many peers were killed, with many connected peers, and with many processes at the same time.

use std::time::Duration;

use percale::{Event, PeerAddress};
use percale_conformance::measure::{ResourceCounts, left_behind, mapped_kib, resident_kib, status_kib};
use percale_conformance::memory::{content, same};
use percale_conformance::peers::{Open, domain, open, open_as_told, open_in};
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::watchdog::Watchdog;
use percale_conformance::{long, skipped};
use rustix::process::{Resource, Rlimit};

crate::on!(shm, tcp: {
    killed_peers_leak_nothing,
    four_and_sixteen_processes_exchange_all_to_all,
});

mod scale {
    mod shm {
        mod rust {
            /// Requirements: RES-005.
            #[test]
            fn idle_shm_peers_cost_little() {
                let peers = if percale_conformance::long() { 256 } else { 64 };
                super::super::super::many_idle_peers_cost_little("shm", peers, 24);
            }
        }
    }
    mod tcp {
        mod rust {
            /// Requirements: RES-006.
            #[test]
            fn idle_tcp_peers_cost_little() {
                let peers = if percale_conformance::long() { 4000 } else { 200 };
                super::super::super::many_idle_peers_cost_little("tcp", peers, 4);
            }
        }
    }
}

/// Runs the helper `cycles` in a separate process.
///
/// Requirements: RES-001, CON-012.
fn killed_peers_leak_nothing(transport: &str) {
    let _watchdog = Watchdog::within("killed peers leak nothing", Duration::from_secs(if long() { 900 } else { 120 }));
    let mut helper = Helper::start("cycles", &[("PERCALE_FABRIC", transport)]);
    let cycles = if long() { 10 } else { 1 };
    for _ in 0..cycles {
        println!("{transport}: {}", helper.receive_line());
    }
    helper.end();
}

/// The role of a helper that repeats a cycle 50 times (1,000 times with PERCALE_LONG): it connects, exchanges messages,
/// and kills the peer with an outstanding operation.
pub(crate) fn cycles() {
    let transport = variable("PERCALE_FABRIC");
    let open = open_as_told();
    let own = open.endpoint.address().to_string();
    let cycle = |number: u64| {
        let mut peer = Helper::start("echo", &[("PERCALE_FABRIC", &transport), ("PERCALE_PEER", &own)]);
        let address = open.insert(&peer.receive_line());
        open.exchange(address, number, 3000).expect("an echo");
        let send = || open.endpoint.tagged_send(address, 1, vec![0; 300_000]);
        let sends = [send(), send(), send(), send()].map(|send| send.start().expect("a send"));
        (0..number % 20).for_each(|_| _ = open.endpoint.progress());
        peer.kill();
        for mut sending in sends {
            // The send may have succeeded or failed. The test only requires that it has ended.
            drop(sending.wait_for(Duration::from_secs(10)));
        }
        while open.events.read().is_some() {}
        // Messages that the peer echoed before it died have arrived, and are kept until they are received.
        let any = || open.endpoint.tagged_recv(0, u64::MAX, vec![0; 300_001]).start().expect("a receive");
        while any().wait_for(Duration::from_millis(1)).is_ok() {}
        open.vector.remove(address).expect("the peer is in the vector");
    };
    (0..5).for_each(&cycle);
    let before = ResourceCounts::now();
    let files = left_behind();
    let memory = status_kib("RssAnon");
    for block in 0..if long() { 10 } else { 1 } {
        let cycles = if long() { 100 } else { 50 };
        (0..cycles).for_each(&cycle);
        let mut after = ResourceCounts::now();
        for _ in 0..500 {
            if after.is_within(&before) {
                break;
            }
            open.endpoint.progress();
            std::thread::sleep(Duration::from_millis(10));
            after = ResourceCounts::now();
        }
        assert!(after.is_within(&before), "block {block}: {after:?} are held, before {before:?}");
        assert_eq!(left_behind(), files);
        print_line(&format!(
            "{cycles} kills; held before {before:?}, after {after:?}; RssAnon {memory} to {} KiB",
            status_kib("RssAnon")
        ));
    }
}

/// The number of peers in one helper process.
const SPOKES: usize = 200;
/// The number of exchanges with every peer. The cost of a peer must not grow with this number.
const ROUNDS: usize = 4;

/// Tests an endpoint with many peers. The helper `hub` measures its own memory.
fn many_idle_peers_cost_little(transport: &str, peers: usize, limit_kib: usize) {
    let _watchdog = Watchdog::within("many idle peers cost little", Duration::from_secs(300));
    let limits = rustix::process::getrlimit(Resource::Nofile);
    let needed = peers as u64 * if transport == "tcp" { 2 } else { 6 } + 500;
    if limits.maximum.is_some_and(|maximum| maximum < needed) {
        return skipped(
            "descriptors",
            &format!("{peers} peers over {transport}"),
            &format!("{needed} descriptors are not allowed"),
        );
    }
    let (count, limit) = (peers.to_string(), limit_kib.to_string());
    let variables = [("PERCALE_FABRIC", transport), ("PERCALE_PEERS", &*count), ("PERCALE_LIMIT", &*limit)];
    let mut hub = Helper::start("hub", &variables);
    let address = hub.receive_line();
    let mut spokes = Vec::new();
    let mut left = peers;
    while left > 0 {
        let here = left.min(SPOKES);
        left -= here;
        let here = here.to_string();
        let variables = [("PERCALE_FABRIC", transport), ("PERCALE_PEERS", &*here), ("PERCALE_PEER", &*address)];
        spokes.push(Helper::start("spokes", &variables));
        // Each group is connected before the next is started.
        assert_eq!(spokes.last_mut().expect("a helper").receive_line(), "exchanged");
    }
    println!("{transport}: {}", hub.receive_line());
    for _ in 1..ROUNDS {
        hub.send_line("again");
        for spoke in &mut spokes {
            spoke.send_line("again");
            assert_eq!(spoke.receive_line(), "exchanged");
        }
        println!("{transport}: {}", hub.receive_line());
    }
    hub.send_line("end");
    spokes.iter_mut().for_each(|spoke| spoke.send_line("end"));
    hub.end();
    spokes.into_iter().for_each(Helper::end);
}

fn many_descriptors() {
    let limits = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit { current: limits.maximum, maximum: limits.maximum };
    rustix::process::setrlimit(Resource::Nofile, most).expect("the most that is allowed");
}

/// The role of the hub: echoes one message of each peer several times, and measures the cost of the peers once they are
/// idle.
pub(crate) fn hub() {
    many_descriptors();
    let number = |name| variable(name).parse::<usize>().expect("a number");
    let (peers, limit) = (number("PERCALE_PEERS"), number("PERCALE_LIMIT"));
    let open = open_as_told();
    // The endpoint, the allocator and the vector are used before the first measurement. Peers are added to the vector
    // when their first messages arrive.
    let me = open.insert(&open.endpoint.address().to_string());
    open.inject(me, 1, b"warm");
    open.endpoint.tagged_recv(1, 0, vec![0; 4]).wait().expect("a message to itself");
    // Of the measured mappings, rings belong to a pair, and doorbells are pages of the peers.
    let measure = || [resident_kib(), status_kib("RssAnon"), mapped_kib("percale-pair"), mapped_kib("percale-bell")];
    let before = measure();
    open.say_address();
    let mut known = Vec::new();
    for round in 0..ROUNDS {
        for _ in 0..peers {
            // A message contains the address of its sender, which may not be in the vector yet.
            let got = open.endpoint.tagged_recv(0, !0, vec![0; 100]).wait().expect("a message");
            let text = String::from_utf8(got.to_vec()).expect("an address");
            let peer = if round == 0 { open.insert(&text) } else { got.source.expect("a known peer") };
            known.push(peer);
            open.inject(peer, got.tag, &content(got.tag, 100));
        }
        while open.events.read().is_some() {}
        for _ in 0..1000 {
            open.endpoint.progress();
        }
        let after = measure();
        let each = |at: usize| after[at].saturating_sub(before[at]) as f64 / peers as f64;
        let [all, own, rings, doorbells] = [each(0), each(1), each(2), each(3)];
        let sum = own + rings;
        let text = format!(
            "{peers} peers: {sum:.1} KiB each ({own:.1} anonymous, {rings:.1} in rings; {doorbells:.1} in the peers' \
             doorbells, {all:.1} in all), {limit} allowed"
        );
        assert!(sum <= limit as f64, "{text}");
        print_line(&text);
        drop(ask());
    }
}

/// The role of a process with many endpoints. On request, each of them exchanges a message with the hub.
pub(crate) fn spokes() {
    many_descriptors();
    let count: usize = variable("PERCALE_PEERS").parse().expect("a number");
    let domain = domain(&variable("PERCALE_FABRIC"), |domain| domain.connect_timeout(Duration::from_secs(60)));
    let hub = variable("PERCALE_PEER");
    let all: Vec<(Open, PeerAddress)> = (0..count)
        .map(|_| {
            let open = open_in(&domain, "127.0.0.1:0", |endpoint| endpoint);
            let peer = open.insert(&hub);
            (open, peer)
        })
        .collect();
    loop {
        for (number, (open, peer)) in all.iter().enumerate() {
            let mut echo = open.endpoint.tagged_recv(number as u64, 0, vec![0; 200]).start().expect("a receive");
            open.inject(*peer, number as u64, open.endpoint.address().to_string().as_bytes());
            let got = echo.wait_for(Duration::from_secs(60)).expect("the hub answers");
            same(&got.to_vec(), &content(number as u64, 100), "the hub's answer");
        }
        print_line("exchanged");
        if ask() == "end" {
            return;
        }
    }
}

/// There are more processes than cores. Each process sends short and long messages to all others.
fn four_and_sixteen_processes_exchange_all_to_all(transport: &str) {
    let _watchdog = Watchdog::new("four and sixteen processes exchange all to all");
    for count in [4, 16] {
        let text = count.to_string();
        let start = |number: usize| {
            let number = number.to_string();
            let variables = [("PERCALE_FABRIC", transport), ("PERCALE_PEERS", &*text), ("PERCALE_NUMBER", &*number)];
            Helper::start("all-to-all", &variables)
        };
        let mut all: Vec<Helper> = (0..count).map(start).collect();
        let addresses: Vec<String> = all.iter_mut().map(Helper::receive_line).collect();
        let addresses = addresses.join(",");
        all.iter_mut().for_each(|helper| helper.send_line(&addresses));
        for helper in &mut all {
            assert_eq!(helper.receive_line(), "done");
        }
        all.iter_mut().for_each(|helper| helper.send_line("end"));
        all.into_iter().for_each(Helper::end);
    }
}

/// The lengths of the messages. Each is sent to all others several times.
const LENS: [usize; 6] = [0, 8, 600, 2048, 10_000, 200_000];

/// The role of one process, pinned to two processors. It receives from all others, in order, while it sends to all
/// others.
pub(crate) fn all_to_all() {
    let mut two = rustix::thread::CpuSet::new();
    let allowed = rustix::thread::sched_getaffinity(None).expect("an affinity");
    (0..1024).filter(|&cpu| allowed.is_set(cpu)).take(2).for_each(|cpu| two.set(cpu));
    rustix::thread::sched_setaffinity(None, &two).expect("an affinity");
    let count: usize = variable("PERCALE_PEERS").parse().expect("a number");
    let me: usize = variable("PERCALE_NUMBER").parse().expect("a number");
    let open =
        open(&variable("PERCALE_FABRIC"), "127.0.0.1:0", |domain| domain.connect_timeout(Duration::from_secs(60)));
    open.say_address();
    for address in ask().split(',') {
        open.insert(address);
    }
    let rounds = 5;
    let number = |from: usize, to: usize, at: usize| (from * count + to) as u64 * 1000 + at as u64;
    let mut sends = Vec::new();
    for at in 0..rounds * LENS.len() {
        for to in 0..count {
            let bytes = content(number(me, to, at), LENS[at % LENS.len()]);
            let peer = PeerAddress(to as u64);
            sends.push(open.endpoint.tagged_send(peer, me as u64, bytes).start().expect("a send"));
        }
    }
    for at in 0..rounds * LENS.len() {
        for from in 0..count {
            let len = LENS[at % LENS.len()];
            let receive = open.endpoint.tagged_recv(from as u64, 0, vec![0; len]);
            let got = receive.wait().unwrap_or_else(|error| panic!("message {at} of {from} to {me}: {error}"));
            same(&got.to_vec(), &content(number(from, me, at), len), &format!("message {at} of {from} to {me}"));
            assert_eq!(got.source, Some(PeerAddress(from as u64)));
        }
    }
    sends.into_iter().for_each(|mut sending| drop(sending.wait().expect("a send")));
    while let Some(event) = open.events.read() {
        assert!(matches!(event, Event::Connected { .. }), "{event:?}");
    }
    print_line("done");
    // A process that is still receiving may need the progress of this one.
    let asking = std::thread::spawn(ask);
    open.until(|| asking.is_finished());
}
