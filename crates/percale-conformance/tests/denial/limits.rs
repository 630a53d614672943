//! Resource limits, set at the start or in the middle of a run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::time::Duration;

use percale::{Event, EventQueue, Info, PeerAddress};
use percale_conformance::denial::{self, SideOutcome, TIMES, space};
use percale_conformance::long;
use percale_conformance::process::{Helper, ask, print_line};
use percale_conformance::watchdog::Watchdog;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::rust::run_two;

/// A limit, its values, and the words that an error about it contains.
struct Limit {
    name: &'static str,
    resource: Resource,
    values: &'static [u64],
    says: &'static [&'static str],
}

const LIMITS: [Limit; 4] = [
    // The second value is smaller than the memory of a pair, and larger than that of a doorbell.
    Limit { name: "RLIMIT_FSIZE", resource: Resource::Fsize, values: &[0, 4096, 1 << 20], says: &["ulimit -f"] },
    Limit {
        name: "RLIMIT_NOFILE",
        resource: Resource::Nofile,
        values: &[8, 14, 16, 18, 20, 24, 28],
        says: &["ulimit -n", "Too many open files", "descriptors"],
    },
    Limit { name: "RLIMIT_MEMLOCK", resource: Resource::Memlock, values: &[0, 4096], says: &["ulimit -l"] },
    // These values are added to the memory that the process has already mapped.
    Limit { name: "RLIMIT_AS", resource: Resource::As, values: &space::BEYOND, says: &space::SAYS },
];

/// Lowers the limit that the test selected, if `when` is the selected time.
pub(crate) fn apply(when: &str) {
    let Ok(limit_case) = std::env::var("PERCALE_LIMIT") else { return };
    let [name, value, moment] = limit_case.split(' ').collect::<Vec<_>>()[..] else { panic!("{limit_case}") };
    if moment == when {
        let limit = LIMITS.iter().find(|limit| limit.name == name).expect("a limit");
        let value = value.parse().expect("a number");
        if limit.resource == Resource::As {
            return space::limit(value).expect("a lower limit");
        }
        let maximum = getrlimit(limit.resource).maximum;
        let lowered = Rlimit { current: Some(value), maximum };
        setrlimit(limit.resource, lowered).expect("a lower limit");
    }
}

/// Requirements: FLT-013.
#[test]
fn resource_limit_gives_a_result_or_an_error_naming_it() {
    let _watchdog = Watchdog::within("limits of resources", Duration::from_secs(if long() { 1800 } else { 600 }));
    let (mut wrong, mut bound) = (Vec::new(), 0);
    for limit in &LIMITS {
        for value in limit.values {
            for when in TIMES {
                let limit_case = format!("{} {value} {when}", limit.name);
                let fabric = ("PERCALE_FABRIC", "any");
                let variables = [&[fabric, ("PERCALE_LIMIT", &limit_case)], &space::HEAP[..]].concat();
                let (limited, peer, took) = run_two(&variables, &[fabric]);
                // A process without descriptors reports this to its peer. The error of the peer arrives first.
                let known = match (&limited, &peer) {
                    (SideOutcome::Error(own), Some(SideOutcome::Error(peers))) => {
                        SideOutcome::Error(format!("{own}; {peers}"))
                    }
                    _ => limited.clone(),
                };
                let verdict = denial::judge(limit.says, &known, peer.as_ref(), took);
                let text =
                    format!("{limit_case}: {verdict:?}: {limited:?}; its peer: {peer:?}; {} ms", took.as_millis());
                println!("{text}");
                bound += usize::from(limit.resource == Resource::As && verdict != Ok("shm"));
                if verdict.is_err() {
                    wrong.push(text);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(bound > 0, "no limit of the address space had an effect");
}

/// The number of processes, and the number of descriptors of each. There are too few descriptors for the shared memory
/// of all pairs, and enough for sockets.
const PROCESSES: usize = 12;
const DESCRIPTORS: u32 = 40;

/// Exchanges a message with each peer, and reports the transports that were used.
pub(crate) fn mesh() {
    let domain = Info::discover().expect("discovery").domain().open().expect("a domain");
    let (vector, events) = (domain.address_vector().build().expect("a vector"), EventQueue::default());
    let endpoint = domain.endpoint().vector(&vector).event_queue(&events).bind("127.0.0.1:0").expect("an endpoint");
    print_line(&endpoint.address().to_string());
    let peers: Vec<PeerAddress> = ask().split(',').map(|address| vector.insert(address).expect("an address")).collect();
    let receives: Vec<_> = peers
        .iter()
        .map(|peer| endpoint.tagged_recv(1, 0, vec![0; 100]).from(*peer).start().expect("a receive"))
        .collect();
    let sends: Vec<_> =
        peers.iter().map(|peer| endpoint.tagged_send(*peer, 1, vec![7; 100]).start().expect("a send")).collect();
    let error = |what: &str, error: &dyn std::fmt::Display| print_line(&format!("error {what}: {error}"));
    for send in sends {
        if let Err(why) = send.wait_for(Duration::from_secs(30)) {
            return error("a send", &why);
        }
    }
    for receive in receives {
        match receive.wait_for(Duration::from_secs(30)) {
            Ok(got) => assert_eq!(got.to_vec(), vec![7; 100]),
            Err(why) => return error("a receive", &why),
        }
    }
    let mut ways = BTreeMap::new();
    while let Some(event) = events.read() {
        if let Event::Connected { transport, .. } = event {
            *ways.entry(transport).or_insert(0) += 1;
        }
    }
    print_line(&format!("works {ways:?}"));
    // Other processes may still need the progress of this one.
    let over = std::thread::spawn(ask);
    while !over.is_finished() {
        endpoint.wait(Some(Duration::from_millis(1)));
    }
}

/// Requirements: FLT-006.
#[test]
fn pairs_with_few_descriptors_use_tcp() {
    let _watchdog = Watchdog::new("few descriptors");
    let few = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\"");
    let start = |_| Helper::through(&["sh", "-c", &few], "mesh", &[], |_| {});
    let mut all: Vec<Helper> = (0..PROCESSES).map(start).collect();
    let addresses: Vec<String> = all.iter_mut().map(Helper::receive_line).collect();
    for (number, helper) in all.iter_mut().enumerate() {
        let others: Vec<&str> =
            addresses.iter().enumerate().filter(|(other, _)| *other != number).map(|(_, address)| &**address).collect();
        helper.send_line(&others.join(","));
    }
    let printed: Vec<String> = all.iter_mut().map(Helper::receive_line).collect();
    println!("{printed:#?}");
    assert!(printed.iter().all(|line| line.starts_with("works")), "{printed:#?}");
    assert!(printed.iter().any(|line| line.contains("tcp")), "the limit had no effect");
    all.iter_mut().for_each(|helper| helper.send_line("end"));
    all.into_iter().for_each(Helper::end);
}

/// Listens with only one free descriptor for connections.
pub(crate) fn last() {
    let domain = Info::discover().expect("discovery").domain().open().expect("a domain");
    let vector = domain.address_vector().build().expect("a vector");
    let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0").expect("an endpoint");
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    files.pop();
    print_line(&endpoint.address().to_string());
    let over = std::thread::spawn(ask);
    while !over.is_finished() {
        endpoint.wait(Some(Duration::from_millis(1)));
    }
}

/// Returns whether the other side of `stream` keeps it open for a while without sending anything.
fn is_kept(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    matches!(stream.read(&mut [0; 1]), Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// Requirements: FLT-006.
#[test]
fn last_descriptor_is_kept_until_another_caller_connects() {
    let _watchdog = Watchdog::new("the last descriptor");
    let few = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\"");
    let mut helper = Helper::through(&["sh", "-c", &few], "last", &[], |_| {});
    let address = helper.receive_line();
    let call = || TcpStream::connect(&address).expect("a connection");
    let mut first = call();
    assert!(is_kept(&mut first), "the only connection was closed");
    let mut second = call();
    assert!(is_kept(&mut second), "the newer connection was closed");
    // The older connection, which has not sent anything, receives the reason.
    let mut printed = Vec::new();
    first.read_to_end(&mut printed).expect("the reason");
    assert!(!printed.is_empty(), "the connection was closed without a reason");
    helper.send_line("end");
    helper.end();
}
