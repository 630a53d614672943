//! Groups of processes: sums over them, and members that are killed.

use std::time::Duration;

use percale::endpoint::safe::{Cause, Group};
use percale::endpoint::{Access, Endpoint};
use percale::{AddressSet, AtomicOp, Datatype};
use percale_conformance::peers::{Open, open_as_told};
use percale_conformance::process::{Helper, ask, say, told};
use percale_conformance::watchdog::Watchdog;
use rustix::process::Signal;

crate::on!(shm, tcp: {
    sums_over_processes_are_right,
    flt_001_a_killed_member_ends_every_sum,
});

/// How long a sum may take to fail before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);
const SHORT: usize = 8;
const LONG: usize = 1 << 20;

fn group<'e, A: Access>(endpoint: &'e Endpoint<A>, members: &AddressSet) -> Group<'e, A> {
    endpoint.join(members).expect("a group").wait_for(PATIENCE).expect("everybody joins")
}

/// A member's numbers, of which the sum over all is known.
fn numbers(rank: usize, round: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 8).flat_map(|at| (at * round + rank as u64).to_ne_bytes()).collect()
}

fn is_sum(result: &[u8], members: usize, round: u64) -> bool {
    let ranks: u64 = (0..members as u64).sum();
    let numbers = result.chunks(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("8 bytes")));
    numbers.enumerate().all(|(at, number)| number == at as u64 * round * members as u64 + ranks)
}

fn set(open: &Open, addresses: &str) -> AddressSet {
    addresses.split(',').map(|address| open.insert(address)).collect()
}

/// The members of a group, in processes of their own; they have joined.
fn start(transport: &str, members: usize, bytes: usize, rounds: u64) -> Vec<Helper> {
    let (bytes, rounds) = (bytes.to_string(), rounds.to_string());
    let variables = [("PERCALE_FABRIC", transport), ("PERCALE_BYTES", &bytes), ("PERCALE_ROUNDS", &rounds)];
    let mut all: Vec<Helper> = (0..members).map(|_| Helper::start("summand", &variables)).collect();
    let addresses: Vec<String> = all.iter_mut().map(Helper::hear).collect();
    all.iter_mut().for_each(|helper| helper.tell(&addresses.join(",")));
    all.iter_mut().for_each(|helper| assert_eq!(helper.hear(), "joined"));
    all
}

/// A member: sums until it is told not to, or a sum fails.
pub(crate) fn summand() {
    let _watchdog = Watchdog::new("a member of a group of processes");
    let open = open_as_told();
    let (bytes, rounds) = (told("PERCALE_BYTES"), told("PERCALE_ROUNDS"));
    let (bytes, rounds): (usize, u64) = (bytes.parse().expect("a number"), rounds.parse().expect("a number"));
    say(&open.endpoint.address().to_string());
    let members = set(&open, &ask());
    let group = group(&open.endpoint, &members);
    say("joined");
    for round in 0.. {
        if round == rounds {
            say("right");
            break;
        }
        let sum = group.allreduce(AtomicOp::Sum, Datatype::U64, numbers(group.rank(), round, bytes));
        match sum.start().expect("it is posted").wait_for(PATIENCE) {
            Ok(result) => assert!(is_sum(&result.into_vec(), members.len(), round), "a wrong sum in round {round}"),
            Err(error) => {
                let Cause::Completion(cause) = error.cause else { panic!("round {round}: {}", error.cause) };
                say(&format!("failed: {cause}"));
                break;
            }
        }
    }
    drop(ask());
}

fn sums_over_processes_are_right(transport: &str) {
    let _watchdog = Watchdog::new("sums over processes are right");
    for (members, bytes, rounds) in
        [(2, SHORT, 300), (4, SHORT, 200), (8, SHORT, 60), (2, LONG, 10), (4, LONG, 8), (8, LONG, 4)]
    {
        let mut all = start(transport, members, bytes, rounds);
        for helper in &mut all {
            assert_eq!(helper.hear(), "right", "{members} processes, {bytes} bytes");
        }
        all.iter_mut().for_each(|helper| helper.tell("end"));
        all.into_iter().for_each(Helper::end);
    }
}

/// One is killed in the middle of it: every sum of the others ends in error, and nobody hangs.
fn flt_001_a_killed_member_ends_every_sum(transport: &str) {
    let _watchdog = Watchdog::new("a killed member ends every sum");
    for (members, bytes) in [(2, SHORT), (3, SHORT), (4, SHORT), (8, SHORT), (2, LONG), (4, LONG), (8, LONG)] {
        let mut all = start(transport, members, bytes, u64::MAX);
        let victim = (members + bytes / 8) % members;
        std::thread::sleep(Duration::from_millis(20));
        all[victim].signal(Signal::KILL);
        let mut killed = all.remove(victim);
        killed.kill();
        for helper in &mut all {
            let said = helper.hear();
            assert!(said.starts_with("failed: "), "{members} processes, {bytes} bytes: {said}");
        }
        all.iter_mut().for_each(|helper| helper.tell("end"));
        all.into_iter().for_each(Helper::end);
    }
}
