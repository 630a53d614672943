use std::collections::{HashMap, VecDeque};

use super::schedule::{Place, Program, Step};
use super::{AddressSet, Collective, Collectives, combines};
use crate::address::PeerAddress;
use crate::memory::atomic::{AtomicOp, Datatype, fold};

fn set(members: &[u64]) -> AddressSet {
    members.iter().map(|member| PeerAddress(*member)).collect()
}

#[test]
fn sets_keep_their_order() {
    let mut left = set(&[5, 1, 3, 1]);
    assert_eq!(left, set(&[5, 1, 3]));
    assert!(!left.insert(PeerAddress(3)) && left.insert(PeerAddress(9)));
    left.union(&set(&[2, 5, 4]));
    assert_eq!(left, set(&[5, 1, 3, 9, 2, 4]));
    left.intersect(&set(&[4, 9, 1, 7]));
    assert_eq!(left, set(&[1, 9, 4]));
    left.diff(&set(&[9, 8]));
    assert_eq!(left, set(&[1, 4]));
    assert!(left.remove(PeerAddress(1)) && !left.remove(PeerAddress(1)));
    assert_eq!((left.rank(PeerAddress(4)), left.len(), left.contains(PeerAddress(1))), (Some(0), 1, false));
}

/// One member, as the engine works its program off.
struct Member {
    steps: VecDeque<Step>,
    source: Vec<u8>,
    result: Vec<u8>,
    scratch: Vec<u8>,
    /// Receives that wait: from whom, where to.
    expected: VecDeque<(usize, Place, usize, usize)>,
}

/// Runs all members' programs, in an order that `next` chooses. False if they wait for each other for ever.
fn run(members: &mut [Member], op: AtomicOp, datatype: Datatype, mut next: impl FnMut(usize) -> usize) -> bool {
    let mut wires: HashMap<(usize, usize), VecDeque<Vec<u8>>> = HashMap::new();
    let mut idle = 0;
    while members.iter().any(|member| !member.steps.is_empty()) {
        if idle > 10_000 {
            return false;
        }
        idle += 1;
        let rank = next(members.len());
        let member = &mut members[rank];
        // What came, in order for each sender.
        for (from, place, at, len) in std::mem::take(&mut member.expected) {
            let waits = member.expected.iter().any(|(other, ..)| *other == from);
            let came = wires.get_mut(&(from, rank)).filter(|_| !waits).and_then(VecDeque::pop_front);
            let Some(message) = came else {
                member.expected.push_back((from, place, at, len));
                continue;
            };
            assert_eq!(message.len(), len, "{from} to {rank}");
            let memory = if place == Place::Result { &mut member.result } else { &mut member.scratch };
            memory[at..at + len].copy_from_slice(&message);
        }
        match member.steps.front().copied() {
            None => continue,
            Some(Step::Settle) if !member.expected.is_empty() => continue,
            Some(Step::Settle) => {}
            Some(Step::Send { to, place, at, len }) => {
                let from = if place == Place::Source { &member.source } else { &member.result };
                wires.entry((rank, to)).or_default().push_back(from[at..at + len].to_vec());
            }
            Some(Step::Receive { from, place, at, len }) => member.expected.push_back((from, place, at, len)),
            Some(Step::Copy { len }) => member.result[..len].copy_from_slice(&member.source[..len]),
            Some(Step::Fold { place, at, from, len, theirs_first }) => {
                if place == Place::Source {
                    member.result[at..at + len].copy_from_slice(&member.source[at..at + len]);
                }
                let (ours, theirs) = (&mut member.result[at..at + len], &mut member.scratch[from..from + len]);
                if theirs_first {
                    fold(op, datatype, theirs, ours);
                    ours.copy_from_slice(theirs);
                } else {
                    fold(op, datatype, ours, theirs);
                }
            }
        }
        member.steps.pop_front();
        idle = 0;
    }
    assert!(wires.values().all(VecDeque::is_empty), "everything that was sent was received");
    true
}

fn programs(what: Collective, inputs: &[Vec<u8>], count: usize, datatype: Datatype) -> Vec<Member> {
    let members = inputs.len();
    let of = |(rank, input): (usize, &Vec<u8>)| {
        let mut program = Program::default();
        program.write(what, members, rank, count, datatype);
        let scratch = vec![0; program.scratch];
        // Where others' results come from there is nothing to begin with.
        let result = if what.combines() { vec![0xA5; input.len()] } else { input.clone() };
        Member { steps: program.steps.into(), source: input.clone(), result, scratch, expected: VecDeque::new() }
    };
    inputs.iter().enumerate().map(of).collect()
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

#[test]
fn programs_of_any_size_do_what_a_plain_loop_does_in_any_order() {
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    for round in 0..3_000 {
        let members = 1 + random(&mut seed) as usize % 17;
        let count = match random(&mut seed) % 8 {
            0 => 0,
            1..=4 => random(&mut seed) as usize % 40,
            _ if round % 100 == 0 => 50_000 + random(&mut seed) as usize % 50_000,
            _ => random(&mut seed) as usize % 4_000,
        };
        let root = random(&mut seed) as usize % members;
        let pairs: Vec<_> = AtomicOp::ALL
            .iter()
            .flat_map(|op| Datatype::ALL.map(|datatype| (*op, datatype)))
            .filter(|(op, datatype)| combines(*op, *datatype) && !datatype.is_float())
            .collect();
        let (op, datatype) = pairs[random(&mut seed) as usize % pairs.len()];
        let what = match random(&mut seed) % 4 {
            0 => Collective::Broadcast { root },
            1 => Collective::Reduce { root },
            _ => Collective::Allreduce,
        };
        let bytes = count * datatype.size();
        let inputs: Vec<Vec<u8>> =
            (0..members).map(|_| (0..bytes).map(|_| random(&mut seed) as u8).collect()).collect();
        let mut expected = inputs[0].clone();
        inputs[1..].iter().for_each(|input| fold(op, datatype, &mut expected, input));
        let mut run_by = programs(what, &inputs, count, datatype);
        assert!(
            run(&mut run_by, op, datatype, |members| random(&mut seed) as usize % members),
            "{what:?} of {members}"
        );
        for (rank, member) in run_by.iter().enumerate() {
            let wanted = match what {
                Collective::Broadcast { root } => &inputs[root],
                Collective::Reduce { root } if root != rank => continue,
                _ => &expected,
            };
            assert!(member.result == *wanted, "{what:?} of {members}, rank {rank}, {op} of {count} {datatype}");
        }
    }
}

#[test]
fn floats_have_the_same_bits_everywhere() {
    let mut seed = 0x1234_5678_9abc_def1;
    let odd = [0.0_f64, -0.0, 1e300, -1e300, f64::NAN, 0.1, 3.0, f64::INFINITY];
    for members in 1..=9 {
        for count in [1, 7, 3_000] {
            for op in [AtomicOp::Sum, AtomicOp::Min, AtomicOp::Max, AtomicOp::Prod] {
                let mut number = || odd[random(&mut seed) as usize % odd.len()].to_ne_bytes();
                let mut input = || (0..count).flat_map(|_| number()).collect::<Vec<u8>>();
                let inputs: Vec<Vec<u8>> = (0..members).map(|_| input()).collect();
                let mut run_by = programs(Collective::Allreduce, &inputs, count, Datatype::F64);
                assert!(run(&mut run_by, op, Datatype::F64, |members| random(&mut seed) as usize % members));
                let (first, others) = run_by.split_first().unwrap();
                assert!(
                    others.iter().all(|member| member.result == first.result),
                    "{op} of {count}, {members} members"
                );
            }
        }
    }
}

#[test]
fn a_barrier_is_passed_by_nobody_before_all_have_come() {
    for members in 1..=17 {
        for late in 0..members {
            let mut all = programs(Collective::Barrier, &vec![Vec::new(); members], 0, Datatype::U8);
            all[late].steps = VecDeque::from([Step::Settle]);
            all[late].expected.push_back((members, Place::Result, 0, 0)); // From nobody: it waits.
            let mut turn = 0;
            // Everybody else goes as far as they get.
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

/// Whoever may connect can say that a group was given up, before it is here; only a member's word counts.
#[test]
fn flt_003_who_is_no_member_breaks_no_group_to_come() {
    let addresses: Vec<std::net::SocketAddr> = [1, 2].map(|port| ([127, 0, 0, 1], port).into()).to_vec();
    let open = |all: &mut Collectives| {
        let index = all.open(&addresses, Box::new([0, 1]), 0);
        (all.groups[index].tag, all.groups[index].broken.is_some())
    };
    let (tag, broken) = open(&mut Collectives::default());
    assert!(!broken);
    for (said_by, breaks) in [(7, false), (1, true)] {
        let mut all = Collectives::default();
        all.hear(tag, said_by);
        (0..10_000).for_each(|other| all.hear(other, 7)); // He makes nobody else's word forgotten.
        assert_eq!(open(&mut all), (tag, breaks));
        assert!(!all.is_broken(tag), "the messages of members count");
    }
    let mut all = Collectives::default();
    all.hear(tag, 1);
    all.forget_heard(1);
    assert_eq!(open(&mut all), (tag, false), "the number may be another peer's now");
}
