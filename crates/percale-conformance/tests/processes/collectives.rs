//! Groups of processes: sums, exchanges of blocks, and killed members.

use std::ops::Range;
use std::time::Duration;

use percale::endpoint::safe::{Cause, CollectiveRequest, Group, OperationError};
use percale::endpoint::{Endpoint, Ownership};
use percale::{AddressSet, AtomicOp, Datatype};
use percale_conformance::peers::{Open, open_as_told};
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::watchdog::Watchdog;
use rustix::process::Signal;

crate::on!(shm, tcp: {
    sums_over_processes_are_right,
    a_killed_member_ends_every_sum,
    exchanges_of_processes_are_right,
    a_killed_member_ends_every_exchange,
    killed_member_can_join_again,
});

/// The time within which a sum must fail.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of sums that prove that a group works.
const SOME: u64 = 30;
const SHORT: usize = 8;
const LONG: usize = 1 << 20;

fn group<'e, A: Ownership>(endpoint: &'e Endpoint<A>, members: &AddressSet) -> Group<'e, A> {
    endpoint.join(members).expect("a group").wait_for(FAILURE_TIMEOUT).expect("all members join")
}

/// Returns the contribution of a member. The sum over all members is known.
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

/// Starts the members of a group in separate processes with this role. All of them have joined when this returns.
fn start(transport: &str, role: &str, members: usize, bytes: usize, rounds: u64) -> Vec<Helper> {
    let (bytes, rounds) = (bytes.to_string(), rounds.to_string());
    let variables = [("PERCALE_FABRIC", transport), ("PERCALE_BYTES", &bytes), ("PERCALE_ROUNDS", &rounds)];
    let mut all: Vec<Helper> = (0..members).map(|_| Helper::start(role, &variables)).collect();
    let addresses: Vec<String> = all.iter_mut().map(Helper::receive_line).collect();
    all.iter_mut().for_each(|helper| helper.send_line(&addresses.join(",")));
    all.iter_mut().for_each(|helper| assert_eq!(helper.receive_line(), "joined"));
    all
}

/// The role of a member that computes sums until the test ends it or a sum fails.
pub(crate) fn summand() {
    rounds("a member of a group of processes that sums", |group, round, bytes| {
        let sum = group.allreduce(AtomicOp::Sum, Datatype::U64, numbers(group.rank(), round, bytes));
        let result = sum.start().expect("the operation is posted").wait_for(FAILURE_TIMEOUT)?;
        assert!(is_sum(&result.into_vec(), group.size(), round), "a wrong sum in round {round}");
        Ok(())
    });
}

/// The role of a member that joins one group after another, while members are killed and replaced. It reports when the
/// sums of a group are correct and when the group ends.
pub(crate) fn rejoiner() {
    let _watchdog = Watchdog::new("a member of one group after the other");
    let open = open_as_told();
    print_line(&open.endpoint.address().to_string());
    let members = set(&open, &ask());
    loop {
        let joined = open.endpoint.join(&members).expect("a group").wait_for(FAILURE_TIMEOUT);
        let Ok(group) = joined.inspect_err(|error| eprintln!("no group: {}", error.cause)) else {
            std::thread::sleep(Duration::from_millis(3)); // A member is missing, or has detected late which member was missing.
            continue;
        };
        for round in 0.. {
            let sum = group.allreduce(AtomicOp::Sum, Datatype::U64, numbers(group.rank(), round, SHORT));
            match sum.start().expect("the operation is posted").wait_for(FAILURE_TIMEOUT) {
                Ok(result) => assert!(is_sum(&result.into_vec(), group.size(), round), "a wrong sum in round {round}"),
                Err(error) => {
                    eprintln!("round {round}: {}", error.cause);
                    break;
                }
            }
            if round == SOME {
                print_line("right");
            }
        }
        print_line("failed");
    }
}

/// Returns the number that one member sends to another in a round.
const fn number(from: usize, to: usize, round: u64) -> u64 {
    (from as u64) << 32 | (to as u64) << 16 | round & 0xFFFF
}

/// The role of a member that exchanges blocks until the test ends it or an exchange fails. The members are the root in
/// turn.
pub(crate) fn exchanger() {
    rounds("a member of a group of processes that exchanges", |group, round, bytes| {
        let (rank, members) = (group.rank(), group.size());
        let root = round as usize % members;
        let block = |from: usize, to: usize| number(from, to, round).to_ne_bytes().repeat(bytes / 8);
        let blocks = |of: &dyn Fn(usize) -> Vec<u8>| (0..members).flat_map(of).collect::<Vec<u8>>();
        let check = |what: &str, request: CollectiveRequest<'_, _>, wanted: &[u8], own: Range<usize>| {
            let ended = request.start().expect("the operation is posted").wait_for(FAILURE_TIMEOUT);
            let print_error =
                |error: &OperationError| eprintln!("round {round}, {what}, {rank} of {members}: {}", error.cause);
            let result = ended.inspect_err(print_error)?.into_vec();
            assert!(result[own.clone()] == wanted[own], "a wrong {what} in round {round}");
            Ok::<(), OperationError>(())
        };
        let (all, own) = (0..members * bytes, rank * bytes..(rank + 1) * bytes);
        let wanted = blocks(&|from| block(from, from));
        let given = blocks(&|of| if of == rank { block(rank, rank) } else { vec![0; bytes] });
        check("all-gather", group.allgather(given.clone()), &wanted, all.clone())?;
        let given_here = if rank == root { given } else { block(rank, rank) };
        let (wanted, whole) = if rank == root { (wanted, all.clone()) } else { (given_here.clone(), 0..bytes) };
        check("gather", group.gather(root, given_here), &wanted, whole.clone())?;
        let to_all = blocks(&|to| block(rank, to));
        check("all-to-all", group.alltoall(to_all.clone()), &blocks(&|from| block(from, rank)), all)?;
        let given = if rank == root { to_all } else { vec![0; bytes] };
        let wanted = if rank == root { given.clone() } else { block(root, rank) };
        check("scatter", group.scatter(root, given), &wanted, whole)?;
        let ranks: u64 = (0..members as u64).sum();
        let summed = blocks(&|of| (of as u64 * members as u64 + ranks).to_ne_bytes().repeat(bytes / 8));
        let given = blocks(&|of| (of as u64 + rank as u64).to_ne_bytes().repeat(bytes / 8));
        check("part of a sum", group.reduce_scatter(AtomicOp::Sum, Datatype::U64, given), &summed, own)
    });
}

/// Runs rounds as a member of a group until the test ends it or a round fails.
fn rounds(
    name: &'static str,
    mut act: impl FnMut(&Group<'_, percale::endpoint::Owned>, u64, usize) -> Result<(), OperationError>,
) {
    let _watchdog = Watchdog::new(name);
    let open = open_as_told();
    let (bytes, rounds) = (variable("PERCALE_BYTES"), variable("PERCALE_ROUNDS"));
    let (bytes, rounds): (usize, u64) = (bytes.parse().expect("a number"), rounds.parse().expect("a number"));
    print_line(&open.endpoint.address().to_string());
    let members = set(&open, &ask());
    let group = group(&open.endpoint, &members);
    print_line("joined");
    for round in 0.. {
        if round == rounds {
            print_line("right");
            break;
        }
        if let Err(error) = act(&group, round, bytes) {
            let Cause::Completion(cause) = error.cause else { panic!("round {round}: {}", error.cause) };
            print_line(&format!("failed: {cause}"));
            break;
        }
    }
    // The others may still need the progress of this member to receive its messages.
    std::thread::scope(|scope| {
        let asking = scope.spawn(ask);
        while !asking.is_finished() {
            if !open.endpoint.progress() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

fn sums_over_processes_are_right(transport: &str) {
    let _watchdog = Watchdog::new("sums over processes are right");
    let all = [(2, SHORT, 300), (4, SHORT, 200), (8, SHORT, 60), (2, LONG, 10), (4, LONG, 8), (8, LONG, 4)];
    are_right(transport, "summand", &all);
}

fn exchanges_of_processes_are_right(transport: &str) {
    let _watchdog = Watchdog::new("exchanges of processes are right");
    let all = [(2, SHORT, 100), (5, SHORT, 60), (8, SHORT, 40), (2, LONG, 4), (3, LONG, 4), (8, LONG / 4, 2)];
    are_right(transport, "exchanger", &all);
}

/// Checks groups of these sizes with these numbers of bytes: they must get correct results in this number of rounds.
fn are_right(transport: &str, role: &str, all: &[(usize, usize, u64)]) {
    for &(members, bytes, rounds) in all {
        let mut all = start(transport, role, members, bytes, rounds);
        for helper in &mut all {
            assert_eq!(helper.receive_line(), "right", "{members} processes, {bytes} bytes");
        }
        all.iter_mut().for_each(|helper| helper.send_line("end"));
        all.into_iter().for_each(Helper::end);
    }
}

/// A member is killed while sums are in progress. Every sum of the others ends with an error, and no member hangs.
///
/// Requirements: FLT-001.
fn a_killed_member_ends_every_sum(transport: &str) {
    let _watchdog = Watchdog::new("every sum ends when a member is killed");
    let all = [(2, SHORT), (3, SHORT), (4, SHORT), (8, SHORT), (2, LONG), (4, LONG), (8, LONG)];
    a_killed_member_ends_it(transport, "summand", &all);
}

/// Like [`a_killed_member_ends_every_sum`], with exchanges of blocks.
///
/// Requirements: FLT-001.
fn a_killed_member_ends_every_exchange(transport: &str) {
    let _watchdog = Watchdog::new("every exchange ends when a member is killed");
    let all = [(2, SHORT), (3, SHORT), (5, SHORT), (8, SHORT), (2, LONG), (3, LONG), (5, LONG / 4)];
    a_killed_member_ends_it(transport, "exchanger", &all);
}

fn a_killed_member_ends_it(transport: &str, role: &str, all: &[(usize, usize)]) {
    for &(members, bytes) in all {
        let mut all = start(transport, role, members, bytes, u64::MAX);
        let victim = (members + bytes / 8) % members;
        println!("{members} processes, {bytes} bytes: rank {victim} is killed");
        std::thread::sleep(Duration::from_millis(20));
        all[victim].signal(Signal::KILL);
        let mut killed = all.remove(victim);
        killed.kill();
        for helper in &mut all {
            let printed = helper.receive_line();
            assert!(printed.starts_with("failed: "), "{members} processes, {bytes} bytes: {printed}");
        }
        all.iter_mut().for_each(|helper| helper.send_line("end"));
        all.into_iter().for_each(Helper::end);
    }
}

/// Members are killed one after another and restarted at their addresses. Each time the group of the others fails, and
/// all members join again.
///
/// Requirements: FLT-001, FLT-003.
fn killed_member_can_join_again(transport: &str) {
    let _watchdog = Watchdog::new("killed member can join again");
    for members in [2, 3, 5] {
        let variables = [("PERCALE_FABRIC", transport)];
        let mut all: Vec<Helper> = (0..members).map(|_| Helper::start("rejoiner", &variables)).collect();
        let addresses: Vec<String> = all.iter_mut().map(Helper::receive_line).collect();
        let list = addresses.join(",");
        all.iter_mut().for_each(|helper| helper.send_line(&list));
        all.iter_mut().for_each(|helper| hear_at_last(helper, "right"));
        for round in 0..2 * members {
            let victim = round % members;
            println!("{members} processes: rank {victim} is killed");
            all[victim].kill();
            for (rank, helper) in all.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
                println!("rank {rank} must report a failure");
                hear_at_last(helper, "failed");
            }
            // In the meantime the others try to join, for a short time or for a longer one.
            std::thread::sleep(Duration::from_millis(if round % 2 == 0 { 0 } else { 50 }));
            let variables = [("PERCALE_FABRIC", transport), ("PERCALE_BIND", &addresses[victim])];
            all[victim] = Helper::start("rejoiner", &variables);
            assert_eq!(all[victim].receive_line(), addresses[victim]);
            all[victim].send_line(&list);
            all.iter_mut().for_each(|helper| hear_at_last(helper, "right"));
        }
    }
}

/// Reads lines until this line arrives.
fn hear_at_last(helper: &mut Helper, wanted: &str) {
    while helper.receive_line() != wanted {}
}
