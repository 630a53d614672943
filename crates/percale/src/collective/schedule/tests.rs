use std::collections::{HashMap, VecDeque};

use super::{MemoryPart, MemoryPosition, Program, ScheduleStep};
use crate::collective::{Collective, combines};
use crate::local_memory::atomic::{AtomicOp, Datatype, fold};

/// A member, and the state of its program.
struct Member {
    steps: VecDeque<ScheduleStep>,
    memory: Vec<u8>,
    /// The offsets of the elements, the result and scratch in its memory. The first two may overlap.
    places: [usize; 3],
    result: usize,
    /// The receives that wait: the sender, the destination offset and the length.
    expected: VecDeque<(usize, usize, usize)>,
}

/// A message in flight: its bytes, or the location from which they are read when it is received (the member and the
/// offset in its memory).
enum Message {
    Eager(Vec<u8>),
    Offered(usize, usize),
}

impl Member {
    fn at(&self, (place, at): MemoryPosition) -> usize {
        self.places[place as usize] + at
    }

    fn result(&self) -> &[u8] {
        let at = self.places[MemoryPart::Result as usize];
        &self.memory[at..at + self.result]
    }
}

/// Runs the programs of all members, in an order that `next` chooses. `next` also chooses which messages are read late.
/// Returns false if the programs deadlock.
fn run(members: &mut [Member], op: AtomicOp, datatype: Datatype, mut next: impl FnMut(usize) -> usize) -> bool {
    let mut wires: HashMap<(usize, usize), VecDeque<(Message, usize)>> = HashMap::new();
    let mut idle = 0;
    while members.iter().any(|member| !member.steps.is_empty()) {
        if idle > 10_000 {
            return false;
        }
        idle += 1;
        let rank = next(members.len());
        // The messages that arrived, in order for each sender.
        for (from, into, len) in std::mem::take(&mut members[rank].expected) {
            let waits = members[rank].expected.iter().any(|(other, ..)| *other == from);
            // Some messages are read later.
            let late = next(4) == 0;
            let wire = wires.get_mut(&(from, rank)).filter(|_| !waits && !late);
            let Some((message, sent)) = wire.and_then(VecDeque::pop_front) else {
                members[rank].expected.push_back((from, into, len));
                continue;
            };
            assert_eq!(sent, len, "{from} to {rank}");
            let bytes = match message {
                Message::Eager(bytes) => bytes,
                Message::Offered(whose, at) => members[whose].memory[at..at + len].to_vec(),
            };
            members[rank].memory[into..into + len].copy_from_slice(&bytes);
            idle = 0;
        }
        let offers = wires.iter().any(|((from, _), wire)| {
            *from == rank && wire.iter().any(|(message, _)| matches!(message, Message::Offered(..)))
        });
        let member = &mut members[rank];
        match member.steps.front().copied() {
            None => continue,
            Some(ScheduleStep::Settle) if !member.expected.is_empty() || offers => continue,
            Some(ScheduleStep::Settle) => {}
            Some(ScheduleStep::Send { to, from, len }) => {
                let at = member.at(from);
                let bytes = &member.memory[at..at + len];
                let message = if next(2) == 0 { Message::Eager(bytes.to_vec()) } else { Message::Offered(rank, at) };
                wires.entry((rank, to)).or_default().push_back((message, len));
            }
            Some(ScheduleStep::Receive { from, into, len }) => {
                let at = member.at(into);
                member.expected.push_back((from, at, len));
            }
            Some(ScheduleStep::Copy { from, into, len }) => {
                let (from, into) = (member.at(from), member.at(into));
                member.memory.copy_within(from..from + len, into);
            }
            Some(ScheduleStep::Fold { ours, theirs, into, len, theirs_first }) => {
                let [ours, theirs, into] = [ours, (MemoryPart::Scratch, theirs), into].map(|spot| member.at(spot));
                let mut first = member.memory[ours..ours + len].to_vec();
                let mut second = member.memory[theirs..theirs + len].to_vec();
                if theirs_first {
                    std::mem::swap(&mut first, &mut second);
                }
                fold(op, datatype, &mut first, &second);
                member.memory[into..into + len].copy_from_slice(&first);
            }
        }
        member.steps.pop_front();
        idle = 0;
    }
    assert!(members.iter().all(|member| member.expected.is_empty()), "every receive has completed");
    assert!(wires.values().all(VecDeque::is_empty), "all sent messages were received");
    true
}

/// Creates the members with their elements. With `in_place`, the elements are at the position of the result.
fn programs(what: Collective, inputs: &[Vec<u8>], count: usize, datatype: Datatype, in_place: bool) -> Vec<Member> {
    let (members, block) = (inputs.len(), count * datatype.size());
    let of = |(rank, input): (usize, &Vec<u8>)| {
        let mut program = Program::default();
        program.write(what, members, rank, count, datatype, in_place);
        let (given, got) = what.blocks(members, rank);
        // A member that combines elements of other members needs memory for that.
        let (given, got) = (given * block, if what.combines() { got.max(1) } else { got } * block);
        let mut memory = vec![0xA5; given + got];
        let mut places = [0, given, given + got];
        let broadcast = matches!(what, Collective::Broadcast { .. });
        if in_place || broadcast {
            let own = rank * block;
            places = match given.cmp(&got) {
                std::cmp::Ordering::Less if given > 0 => [own, 0, given + got],
                std::cmp::Ordering::Greater => [0, own, given + got],
                _ => [0, 0, given + got],
            };
        }
        let at = places[0];
        memory[at..at + input.len()].copy_from_slice(input);
        memory.resize(given + got + program.scratch, 0x5A);
        Member { steps: program.steps.into(), memory, places, result: got, expected: VecDeque::new() }
    };
    inputs.iter().enumerate().map(of).collect()
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Returns the expected result of a member, computed by a plain loop, or `None` if it gets no result.
fn expected(
    what: Collective,
    inputs: &[Vec<u8>],
    rank: usize,
    block: usize,
    op: AtomicOp,
    datatype: Datatype,
) -> Option<Vec<u8>> {
    let of = |member: usize, number: usize| &inputs[member][number * block..(number + 1) * block];
    let combined = || {
        let mut all = inputs[0].clone();
        inputs[1..].iter().for_each(|input| fold(op, datatype, &mut all, input));
        all
    };
    Some(match what {
        Collective::Barrier => Vec::new(),
        Collective::Broadcast { root } => inputs[root].clone(),
        Collective::Allreduce => combined(),
        Collective::Reduce { root } if root == rank => combined(),
        Collective::ReduceScatter => combined()[rank * block..(rank + 1) * block].to_vec(),
        Collective::Allgather => inputs.concat(),
        Collective::Gather { root } if root == rank => inputs.concat(),
        Collective::Alltoall => (0..inputs.len()).flat_map(|member| of(member, rank).to_vec()).collect(),
        Collective::Scatter { root } => of(root, rank).to_vec(),
        Collective::Reduce { .. } | Collective::Gather { .. } => return None,
    })
}

/// Returns the elements of every member for an operation.
fn inputs(what: Collective, members: usize, block: usize, seed: &mut u64) -> Vec<Vec<u8>> {
    let bytes = |rank| {
        let broadcast = matches!(what, Collective::Broadcast { .. });
        if broadcast { block } else { what.blocks(members, rank).0 * block }
    };
    (0..members).map(|rank| (0..bytes(rank)).map(|_| random(seed) as u8).collect()).collect()
}

/// Runs an operation and checks every member's result.
fn try_one(what: Collective, members: usize, count: usize, (op, datatype): (AtomicOp, Datatype), seed: &mut u64) {
    let block = count * datatype.size();
    let inputs = inputs(what, members, block, seed);
    let in_place = random(seed).is_multiple_of(2);
    let description = format!("{what:?} of {members}, {op} of {count} {datatype}, in place: {in_place}");
    let mut run_by = programs(what, &inputs, count, datatype, in_place);
    assert!(run(&mut run_by, op, datatype, |members| random(seed) as usize % members), "{description}: deadlock");
    for (rank, member) in run_by.iter().enumerate() {
        if let Some(wanted) = expected(what, &inputs, rank, block, op, datatype) {
            assert!(member.result() == wanted, "{description}, rank {rank}");
        }
    }
}

/// Returns all operations except the barrier. Those with a root use this root.
fn all(root: usize) -> [Collective; 8] {
    [
        Collective::Broadcast { root },
        Collective::Reduce { root },
        Collective::Allreduce,
        Collective::ReduceScatter,
        Collective::Allgather,
        Collective::Alltoall,
        Collective::Scatter { root },
        Collective::Gather { root },
    ]
}

#[test]
fn program_matches_sequential_model_for_every_root() {
    let mut seed = 0x0123_4567_89ab_cdef;
    let elements = (AtomicOp::Sum, Datatype::U16);
    for members in 1..=9 {
        for root in 0..members {
            for what in all(root) {
                // These counts are below and above the sizes at which the algorithm changes.
                for count in [0, 1, 3, 40, 128, 129, 5_000, 36_000] {
                    if count < 5_000 || root == members / 2 {
                        try_one(what, members, count, elements, &mut seed);
                    }
                }
            }
        }
    }
}

#[test]
fn program_matches_sequential_model_in_any_delivery_order() {
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let pairs: Vec<_> = AtomicOp::ALL
        .iter()
        .flat_map(|op| Datatype::ALL.map(|datatype| (*op, datatype)))
        .filter(|(op, datatype)| combines(*op, *datatype) && !datatype.is_float())
        .collect();
    for round in 0..4_000 {
        let members = 1 + random(&mut seed) as usize % if round % 50 == 0 { 40 } else { 17 };
        let count = match random(&mut seed) % 8 {
            0 => 0,
            1..=4 => random(&mut seed) as usize % 40,
            _ if round % 200 == 0 => 50_000 + random(&mut seed) as usize % 50_000,
            _ => random(&mut seed) as usize % 1_000,
        };
        let elements = pairs[random(&mut seed) as usize % pairs.len()];
        let what = all(random(&mut seed) as usize % members)[random(&mut seed) as usize % 8];
        // Several blocks of the longest size would take too long to move.
        let count = if what.blocks(members, 0) == (1, 1) { count } else { count.min(20_000) };
        try_one(what, members, count, elements, &mut seed);
    }
}

#[test]
fn float_results_are_bitwise_equal_on_all_members() {
    let mut seed = 0x1234_5678_9abc_def1;
    let odd = [0.0_f64, -0.0, 1e300, -1e300, f64::NAN, 0.1, 3.0, f64::INFINITY];
    for members in 1..=9 {
        for count in [1, 7, 3_000] {
            for op in [AtomicOp::Sum, AtomicOp::Min, AtomicOp::Max, AtomicOp::Prod] {
                let mut number = || odd[random(&mut seed) as usize % odd.len()].to_ne_bytes();
                let mut input = || (0..count).flat_map(|_| number()).collect::<Vec<u8>>();
                let inputs: Vec<Vec<u8>> = (0..members).map(|_| input()).collect();
                let mut run_by = programs(Collective::Allreduce, &inputs, count, Datatype::F64, false);
                assert!(run(&mut run_by, op, Datatype::F64, |members| random(&mut seed) as usize % members));
                let (first, others) = run_by.split_first().unwrap();
                assert!(
                    others.iter().all(|member| member.result() == first.result()),
                    "{op} of {count}, {members} members"
                );
            }
        }
    }
}

#[test]
fn barrier_blocks_until_all_members_enter() {
    for members in 1..=17 {
        for late in 0..members {
            let mut all = programs(Collective::Barrier, &vec![Vec::new(); members], 0, Datatype::U8, false);
            all[late].steps = VecDeque::from([ScheduleStep::Settle]);
            // This member expects a message from a member that does not exist, so it waits forever.
            all[late].expected.push_back((members, 0, 0));
            let mut turn = 0;
            // All other members run as far as possible.
            let passed = run(&mut all, AtomicOp::Sum, Datatype::U8, |members| {
                turn += 1;
                turn % members
            });
            assert!(!passed);
            let waiting = all.iter().filter(|member| !member.steps.is_empty()).count();
            assert_eq!(waiting, members, "{members} members, {late} is late");
        }
    }
}
