//! Groups and their operations.

#![expect(unsafe_code, reason = "posts through the raw API; the memory is never freed")]

use std::time::Duration;

use percale::endpoint::safe::{Cause, Group, Operation, OperationError};
use percale::endpoint::{Owned, Shared};
use percale::{
    AddressSet, AtomicOp, Buffer, Collective, CollectiveWork, Counter, Datatype, ErrorCode, GroupId, OpFlags,
    PeerAddress, SharedEndpoint,
};

use crate::fabric::{Fabric, Peers, Real, Transport};
use crate::memory::Memory;
use crate::mesh::{Mesh, Receive, Send};
use crate::random::Random;
use crate::watchdog::Watchdog;

pub(super) type Ours<'m> = Group<&'m Owned>;
pub(super) type Started<'m> = Operation<&'m Owned, Buffer>;

pub(super) const TYPES: [Datatype; 6] =
    [Datatype::U8, Datatype::I16, Datatype::I32, Datatype::U64, Datatype::F32, Datatype::F64];
pub(super) const OPS: [AtomicOp; 10] = [
    AtomicOp::Min,
    AtomicOp::Max,
    AtomicOp::Sum,
    AtomicOp::Prod,
    AtomicOp::Lor,
    AtomicOp::Land,
    AtomicOp::Lxor,
    AtomicOp::Bor,
    AtomicOp::Band,
    AtomicOp::Bxor,
];

/// Returns the combination of the elements of all members, computed by a plain loop.
pub(super) fn combined(op: AtomicOp, datatype: Datatype, inputs: &[Vec<u8>]) -> Vec<u8> {
    macro_rules! each {
        ($type:ty, $add:expr, $multiply:expr, $bits:expr) => {{
            let number = |bytes: &[u8]| <$type>::from_ne_bytes(bytes.try_into().expect("a whole element"));
            let truth = |of: bool| if of { 1 as $type } else { 0 as $type };
            let (add, multiply, bits) = ($add, $multiply, $bits);
            let one = |a: $type, b: $type| -> $type {
                let (first, second) = (a != 0 as $type, b != 0 as $type);
                match op {
                    AtomicOp::Min => {
                        if b < a {
                            b
                        } else {
                            a
                        }
                    }
                    AtomicOp::Max => {
                        if b > a {
                            b
                        } else {
                            a
                        }
                    }
                    AtomicOp::Sum => add(a, b),
                    AtomicOp::Prod => multiply(a, b),
                    AtomicOp::Lor => truth(first || second),
                    AtomicOp::Land => truth(first && second),
                    AtomicOp::Lxor => truth(first != second),
                    other => bits(other, a, b),
                }
            };
            let size = size_of::<$type>();
            let mut all: Vec<$type> = inputs[0].chunks(size).map(number).collect();
            for input in &inputs[1..] {
                all.iter_mut().zip(input.chunks(size)).for_each(|(sum, next)| *sum = one(*sum, number(next)));
            }
            all.iter().flat_map(|number| number.to_ne_bytes()).collect()
        }};
    }
    macro_rules! integer {
        ($type:ty) => {
            each!($type, <$type>::wrapping_add, <$type>::wrapping_mul, |op, a: $type, b: $type| match op {
                AtomicOp::Bor => a | b,
                AtomicOp::Band => a & b,
                AtomicOp::Bxor => a ^ b,
                other => panic!("{other} does not combine values"),
            })
        };
    }
    macro_rules! float {
        ($type:ty) => {
            each!($type, |a, b| a + b, |a, b| a * b, |op, _, _| panic!("{op} of a float"))
        };
    }
    match datatype {
        Datatype::U8 => integer!(u8),
        Datatype::I16 => integer!(i16),
        Datatype::I32 => integer!(i32),
        Datatype::U64 => integer!(u64),
        Datatype::F32 => float!(f32),
        Datatype::F64 => float!(f64),
        other => panic!("the model has no {other}"),
    }
}

/// Returns random elements. Floating-point elements are small integers, so their sum does not depend on the order.
pub(super) fn elements(random: &mut Random, datatype: Datatype, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count * datatype.size()];
    random.fill(&mut bytes);
    match datatype {
        Datatype::F32 => (0..count).flat_map(|_| (random.below(4) as f32).to_ne_bytes()).collect(),
        Datatype::F64 => (0..count).flat_map(|_| (random.below(4) as f64 - 1.0).to_ne_bytes()).collect(),
        _ => bytes,
    }
}

fn set(members: impl IntoIterator<Item = usize>) -> AddressSet {
    members.into_iter().map(|member| PeerAddress(member as u64)).collect()
}

/// Makes one group of the first `members` endpoints of a mesh.
pub(super) fn group_of<F: Fabric>(mesh: &Mesh<F>, members: usize) -> Vec<Ours<'_>> {
    joined(mesh, &(0..members).collect::<Vec<_>>())
}

/// Makes one group of these endpoints, in this order.
fn joined<'m, F: Fabric>(mesh: &'m Mesh<F>, members: &[usize]) -> Vec<Ours<'m>> {
    let set = set(members.iter().copied());
    let joining: Vec<_> = members.iter().map(|member| mesh.endpoint(*member).join(&set).expect("a group")).collect();
    mesh.until(|| joining.iter().all(|joining| joining.is_ready()).then_some(()));
    joining.into_iter().map(|mut joining| joining.wait().expect("all members join")).collect()
}

/// Drives all members until these operations have ended.
pub(super) fn ends<F: Fabric>(mesh: &Mesh<F>, started: Vec<Started<'_>>) -> Vec<Result<Buffer, OperationError>> {
    mesh.until(|| started.iter().all(Operation::is_ready).then_some(()));
    started.into_iter().map(|mut one| one.wait()).collect()
}

pub(super) fn all_good<F: Fabric>(mesh: &Mesh<F>, started: Vec<Started<'_>>) -> Vec<Vec<u8>> {
    ends(mesh, started).into_iter().map(|end| end.expect("the operation succeeds").into_vec()).collect()
}

pub(super) fn why(end: Result<Buffer, OperationError>) -> ErrorCode {
    match end.expect_err("the operation fails").cause() {
        Cause::Completion(error) => error.error,
        other => panic!("not posted: {other}"),
    }
}

/// Random operations of groups of random sizes, several at a time, have the same results as a simple model.
pub fn random_collectives_match_the_model<F: Transport>() {
    for round in 0..if crate::long() { 60 } else { 6 } {
        let mesh = Mesh::<F>::new(1 + (round * 4) % 9);
        let members = if F::ALONE { 1 } else { 1 + (round * 4) % 9 };
        let mut random = Random::new(crate::random::seed() ^ round as u64);
        let groups = group_of(&mesh, members);
        assert!(groups.iter().enumerate().all(|(rank, group)| (group.rank(), group.size()) == (rank, members)));
        for _ in 0..12 {
            // Each posted operation, with its handles in the order of the members.
            let mut batch = Vec::new();
            for _ in 0..1 + random.below(4) {
                let (op, datatype) = (OPS[random.below(10)], TYPES[random.below(6)]);
                let op = if datatype.is_float() && op.is_bitwise() { AtomicOp::Sum } else { op };
                let count = match random.below(8) {
                    0 => 0,
                    7 => F::BULK / datatype.size() / 4 + random.below(100),
                    6 => random.below(5000),
                    _ => random.below(60),
                };
                let (what, root) = (random.below(5), random.below(members));
                let mut inputs: Vec<_> = (0..members).map(|_| elements(&mut random, datatype, count)).collect();
                if what == 0 {
                    inputs.iter_mut().for_each(Vec::clear);
                }
                let started: Vec<_> = groups
                    .iter()
                    .zip(&inputs)
                    .map(|(group, input)| match what {
                        0 => group.barrier(),
                        1 => group.broadcast(root, input.clone()),
                        2 => group.reduce(root, op, datatype, input.clone()),
                        _ => group.allreduce(op, datatype, input.clone()),
                    })
                    .map(|request| request.start().expect("the operation is posted"))
                    .collect();
                batch.push(((what, root, op, datatype, inputs), started));
                mesh.turns(random.below(3));
            }
            for ((what, root, op, datatype, inputs), started) in batch {
                let expected = match what {
                    0 => Vec::new(),
                    1 => inputs[root].clone(),
                    _ => combined(op, datatype, &inputs),
                };
                let results = all_good(&mesh, started);
                for (rank, result) in results.iter().enumerate().filter(|(rank, _)| what != 2 || *rank == root) {
                    let length = inputs[0].len();
                    assert!(*result == expected, "{what}: {op} of {datatype}, {length} bytes, {rank} of {members}");
                }
            }
        }
    }
}

/// All members get the same bits, although the result of floating-point operations depends on the order.
pub fn float_collectives_are_bitwise_equal_on_all_members<F: Transport>() {
    let mesh = Mesh::<F>::new(7);
    let groups = group_of(&mesh, if F::ALONE { 1 } else { 7 });
    let mut random = Random::new(crate::random::seed());
    for count in [1, 33, 5000] {
        let started = groups.iter().map(|group| {
            let numbers =
                (0..count).flat_map(|_| f64::from_bits(random.next() >> 2).to_ne_bytes()).collect::<Vec<u8>>();
            group.allreduce(AtomicOp::Sum, Datatype::F64, numbers).start().expect("the operation is posted")
        });
        let started = started.collect();
        let results = all_good(&mesh, started);
        assert!(results.iter().all(|result| *result == results[0]), "{count} numbers");
    }
}

/// A receive for any message does not receive messages of a group, and groups with the same members do not receive each
/// other's messages.
pub fn group_messages_match_no_other_receives<F: Transport>() {
    let mesh = Mesh::<F>::new(3);
    let receives: Vec<_> = (0..3)
        .flat_map(|number| {
            let endpoint = mesh.endpoint(number);
            let untagged = endpoint.recv(vec![0; 64]).start().expect("posted");
            [untagged, endpoint.tagged_recv(0, u64::MAX, vec![0; 64]).start().expect("posted")]
        })
        .collect();
    let members = if F::ALONE { 1 } else { 3 };
    let (first, second) = (group_of(&mesh, members), group_of(&mesh, members));
    let turned = joined(&mesh, &(0..members).rev().collect::<Vec<_>>());
    let mut started = Vec::new();
    for number in 0..members {
        // Each member posts in a different order.
        let all = [(&first, 1_u64), (&second, 10), (&turned, 100)];
        for turn in 0..3 {
            let (groups, value) = all[(turn + number) % 3];
            let rank = if value == 100 { members - 1 - number } else { number };
            let bytes = value.to_ne_bytes().to_vec();
            let request = groups[rank].allreduce(AtomicOp::Sum, Datatype::U64, bytes);
            started.push((value, request.start().expect("the operation is posted")));
        }
    }
    let (values, started): (Vec<u64>, Vec<_>) = started.into_iter().unzip();
    for (value, result) in values.iter().zip(all_good(&mesh, started)) {
        assert_eq!(result, (value * members as u64).to_ne_bytes());
    }
    for mut receive in receives {
        assert!(!receive.is_ready() && receive.cancel(), "a group's message was received");
        drop(receive.wait().expect_err("the operation was cancelled"));
    }
}

/// Invalid collectives are rejected, and the buffer is returned.
pub fn invalid_collective_is_rejected<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    let endpoint = mesh.endpoint(0);
    let none: AddressSet = AddressSet::new();
    assert_eq!(endpoint.join(&none).expect_err("nobody").errno(), libc_einval());
    let unknown: AddressSet = [PeerAddress(0), PeerAddress(77)].into_iter().collect();
    drop(endpoint.join(&unknown).expect_err("a member that is not in the vector"));
    let groups = group_of(&mesh, if F::ALONE { 1 } else { 2 });
    let group = &groups[0];
    let refused = |result: Result<Started<'_>, OperationError>, length: usize| {
        let error = result.expect_err("the operation is rejected");
        assert!(matches!(error.cause(), Cause::Post(_)), "{error}");
        assert_eq!(error.into_buffer().expect("the buffer is returned").len(), length);
    };
    refused(group.broadcast(9, vec![1; 8]).start(), 8);
    refused(group.allreduce(AtomicOp::Sum, Datatype::U64, vec![1; 9]).start(), 9);
    refused(group.allreduce(AtomicOp::Bor, Datatype::F64, vec![1; 8]).start(), 8);
    refused(group.allreduce(AtomicOp::Cswap, Datatype::U64, vec![1; 8]).start(), 8);
    refused(group.allreduce(AtomicOp::Write, Datatype::U64, vec![1; 8]).start(), 8);
    refused(group.allreduce(AtomicOp::Sum, Datatype::U8, "text").start(), 4);
    let again = group.barrier();
    drop(groups);
    refused(again.start(), 0);
}

const fn libc_einval() -> i32 {
    22
}

/// A member that posts a different operation is detected, and the group is broken for all members.
pub fn mismatched_collective_breaks_the_group<F: Peers>() {
    let mesh = Mesh::<F>::new(4);
    let groups = group_of(&mesh, 4);
    let sums = groups.iter().enumerate().map(|(rank, group)| {
        let bytes = vec![1; if rank == 2 { 16 } else { 8 }];
        group.allreduce(AtomicOp::Sum, Datatype::U64, bytes).start().expect("the operation is posted")
    });
    let sums = sums.collect();
    for end in ends(&mesh, sums) {
        let code = why(end);
        assert!(matches!(code, ErrorCode::Protocol | ErrorCode::Truncated), "{code:?}");
    }
    let later = groups.iter().map(|group| group.barrier().start().expect("the operation is posted")).collect();
    for end in ends(&mesh, later) {
        why(end);
    }
    // A new group of the same members is not affected.
    let groups = group_of(&mesh, 4);
    let barriers = groups.iter().map(|group| group.barrier().start().expect("the operation is posted")).collect();
    all_good(&mesh, barriers);
}

/// Fences apply only to operations to a peer, and collectives are not such operations. A fenced message does not wait
/// for operations that other members have not posted yet, and groups do not wait for a fenced message.
pub fn fences_and_groups_do_not_wait_for_each_other<F: Peers>() {
    let mesh = Mesh::<F>::connected(2);
    let groups = group_of(&mesh, 2);
    let target = Memory::blank(8);
    for (from, to) in [(0, 1), (1, 0)] {
        for len in [8, F::BULK] {
            let sum = |rank: usize| {
                groups[rank]
                    .allreduce(AtomicOp::Sum, Datatype::U8, vec![1; len])
                    .start()
                    .expect("the operation is posted")
            };
            let send = |tag: u64, flags| mesh.send(from, to, Send::of(Memory::content(tag, 8)).tag(tag).with(flags));
            let receive = |tag: u64| mesh.receive(to, Receive::into(target).tag(tag, 0));
            let posted = sum(from);
            mesh.turns(3);
            let (received, fenced) = (receive(2), send(2, OpFlags::FENCE));
            mesh.all_done([received, fenced]);
            let all = vec![posted, sum(to)];
            all_good(&mesh, all);
            let (first, fenced) = (send(1, OpFlags::DELIVERY_COMPLETE), send(2, OpFlags::FENCE));
            let all = vec![sum(from), sum(to)];
            all_good(&mesh, all);
            let again = group_of(&mesh, 2);
            let barriers =
                again.iter().map(|group| group.barrier().start().expect("the operation is posted")).collect();
            all_good(&mesh, barriers);
            mesh.all_done([receive(1), first, receive(2), fenced]);
        }
    }
}

/// A member is closed while a collective is in progress. The operations of all other members end with an error, and no
/// later join with it succeeds.
///
/// Requirements: FLT-003.
pub fn closed_member_fails_collectives_of_all_others<F: Peers>() {
    for members in [2, 3, 5, 8] {
        for length in [8, F::BULK] {
            for leaver in [0, members - 1] {
                let mut mesh = Mesh::<F>::new(members);
                let rest: Vec<usize> = (0..members).filter(|member| *member != leaver).collect();
                let posted: Vec<_> = {
                    let groups = group_of(&mesh, members);
                    let posted = rest.iter().map(|rank| post(&mesh, *rank, groups[*rank].id(), length));
                    let posted = posted.collect();
                    mesh.turns(3);
                    // The members leave only after the posted operations have ended.
                    posted
                };
                mesh.close(leaver);
                for context in posted {
                    mesh.failed(context);
                }
                let all = set(0..members);
                let joining: Vec<_> =
                    rest.iter().map(|member| mesh.endpoint(*member).join(&all).expect("a group")).collect();
                mesh.until(|| joining.iter().all(Operation::is_ready).then_some(()));
                for mut joining in joining {
                    drop(joining.wait().expect_err("a member was closed"));
                }
            }
        }
    }
}

/// Posts a sum over `length` bytes through the raw API.
fn post<F: Fabric>(mesh: &Mesh<F>, member: usize, group: GroupId, length: usize) -> u64 {
    let context = mesh.context();
    let (source, result) = (Memory::content(1, length), Memory::blank(length));
    let work = CollectiveWork {
        group,
        what: Collective::Allreduce,
        op: AtomicOp::Sum,
        datatype: Datatype::U64,
        count: length / 8,
        source: source.segment(),
        result: result.segment(),
        context,
        flags: OpFlags::COMPLETION,
    };
    // SAFETY: `Memory` is never freed.
    unsafe { mesh.endpoint(member).post_collective(&work) }.expect("the operation is posted");
    context
}

/// Endpoints with automatic progress.
pub(super) struct Alive {
    endpoints: Vec<SharedEndpoint>,
    _keep: (percale::AddressVector, percale::Domain),
    _watchdog: Watchdog,
}

impl Alive {
    pub(super) fn new<F: Fabric>(count: usize, what: &str) -> Self {
        let watchdog = Watchdog::new(what);
        let domain = F::new(crate::random::seed()).domain(|domain| domain);
        let vector = domain.address_vector().build().expect("a vector");
        let endpoints = (0..if F::ALONE { 1 } else { count }).map(|_| {
            let endpoint = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0").expect("an endpoint");
            vector.insert(endpoint.address()).expect("an address");
            endpoint
        });
        let endpoints = endpoints.collect();
        Self { endpoints, _keep: (vector, domain), _watchdog: watchdog }
    }

    /// Makes all endpoints join one group.
    pub(super) fn join(&self) -> Vec<Group<Shared>> {
        let set = set(0..self.endpoints.len());
        let joining: Vec<_> = self.endpoints.iter().map(|endpoint| endpoint.join(&set).expect("a group")).collect();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = joining.into_iter().map(|mut joining| scope.spawn(move || joining.wait())).collect();
            waiting.into_iter().map(|thread| thread.join().expect("no panic").expect("all members join")).collect()
        })
    }
}

/// Counters start collectives as deferred work and count their completions, without further calls.
///
/// Requirements: DWQ-020.
pub fn counters_start_collectives_without_further_calls<F: Peers + Real>() {
    const ROUNDS: u64 = 20;
    let alive = Alive::new::<F>(3, "counters start collectives");
    let groups = alive.join();
    let members = groups.len();
    let start = Counter::new();
    let ends: Vec<Counter> = groups.iter().map(|_| Counter::new()).collect();
    // All operations are queued before any starts. Each waits for the previous one.
    let mut started = Vec::new();
    for round in 0..ROUNDS {
        for (group, end) in groups.iter().zip(&ends) {
            let (counter, threshold) = if round == 0 { (&start, 1) } else { (end, round) };
            let bytes = (round + group.rank() as u64).to_ne_bytes().to_vec();
            let sum = group.allreduce(AtomicOp::Sum, Datatype::U64, bytes).when(counter, threshold).counting(end);
            started.push((round, sum.start().expect("the operation waits")));
        }
    }
    assert!(ends.iter().all(|end| end.value() == 0));
    start.add(1);
    for end in &ends {
        end.wait(ROUNDS, Some(Duration::from_secs(60))).expect("the operations complete without calls");
    }
    for (round, mut sum) in started {
        let ranks: u64 = (0..members as u64).sum();
        let result = sum.wait().expect("the operation has ended").into_vec();
        assert_eq!(result, (round * members as u64 + ranks).to_ne_bytes());
    }
}
