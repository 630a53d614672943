//! Collectives that exchange blocks between members: all-gather, all-to-all, reduce-scatter, scatter, gather.

#![expect(unsafe_code, reason = "posts through the raw API; the memory is never freed")]

use std::time::Duration;

use percale::endpoint::safe::{Cause, CollectiveRequest, OperationError};
use percale::{AtomicOp, Collective, CollectiveWork, Counter, Datatype, ErrorCode, GroupId, OpFlags, PostError};

use super::collectives::{Alive, OPS, Ours, Started, TYPES, all_good, combined, elements, ends, group_of, why};
use crate::fabric::{Fabric, Peers, Real, Transport};
use crate::memory::{Memory, same};
use crate::mesh::Mesh;
use crate::random::Random;

/// Returns all of these collectives. `root` is the root of the collectives that have a root.
const fn all(root: usize) -> [Collective; 5] {
    [
        Collective::Allgather,
        Collective::Alltoall,
        Collective::ReduceScatter,
        Collective::Scatter { root },
        Collective::Gather { root },
    ]
}

fn request<H: percale::endpoint::EndpointHandle + Clone>(
    group: &percale::endpoint::safe::Group<H>,
    what: Collective,
    (op, datatype): (AtomicOp, Datatype),
    buffer: Vec<u8>,
) -> CollectiveRequest<H> {
    match what {
        Collective::Allgather => group.allgather(buffer),
        Collective::Alltoall => group.alltoall(buffer),
        Collective::ReduceScatter => group.reduce_scatter(op, datatype, buffer),
        Collective::Scatter { root } => group.scatter(root, buffer),
        Collective::Gather { root } => group.gather(root, buffer),
        Collective::Allreduce => group.allreduce(op, datatype, buffer),
        other => panic!("{other:?} is not an exchange"),
    }
}

/// Returns a member's result, given the contributions of all members.
fn result(what: Collective, rank: usize, given: &[Vec<u8>], block: usize, op: AtomicOp, datatype: Datatype) -> Vec<u8> {
    let of = |bytes: &[u8], number: usize| bytes[number * block..(number + 1) * block].to_vec();
    match what {
        Collective::Allgather => given.concat(),
        Collective::Gather { root } if root == rank => given.concat(),
        Collective::Alltoall => given.iter().flat_map(|theirs| of(theirs, rank)).collect(),
        Collective::ReduceScatter => of(&combined(op, datatype, given), rank),
        Collective::Scatter { root } => of(&given[root], rank),
        _ => Vec::new(),
    }
}

/// Returns the contributions of all members. Each contribution consists of blocks of `count` elements.
fn given(what: Collective, members: usize, count: usize, datatype: Datatype, random: &mut Random) -> Vec<Vec<u8>> {
    (0..members).map(|rank| elements(random, datatype, count * what.blocks(members, rank).0)).collect()
}

/// Returns the contents of a member's buffer before and after the operation. The contribution and the result are in the
/// same buffer, and the smaller one is a part of the larger one.
fn buffers(what: Collective, rank: usize, members: usize, source: &[u8], result: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (gives, gets) = what.blocks(members, rank);
    let block = source.len().checked_div(gives).or(result.len().checked_div(gets)).unwrap_or(0);
    let own = rank * block..(rank + 1) * block;
    let mut before = vec![0xA5; block * gives.max(gets)];
    let mut after;
    if gives == 1 && gets > 1 {
        before[own].copy_from_slice(source);
        after = result.to_vec();
    } else {
        before[..source.len()].copy_from_slice(source);
        after = before.clone();
        match (gives, gets) {
            (_, 0) => {}
            (gives, 1) if gives > 1 => after[own].copy_from_slice(result),
            _ => after = result.to_vec(),
        }
    }
    (before, after)
}

/// Random operations of groups of random sizes, several at a time, have the same results as a simple model.
pub fn random_exchanges_match_the_model<F: Transport>() {
    for round in 0..if crate::long() { 60 } else { 6 } {
        let members = if F::ALONE { 1 } else { 1 + (round * 4) % 9 };
        let mesh = Mesh::<F>::new(members);
        let mut random = Random::new(crate::random::seed() ^ round as u64 ^ 0xe8c7);
        let groups = group_of(&mesh, members);
        for _ in 0..12 {
            // Each posted operation, with its handles in the order of the members.
            let mut batch = Vec::new();
            for _ in 0..1 + random.below(4) {
                let what = all(random.below(members))[random.below(5)];
                let (mut op, mut datatype) = (AtomicOp::Sum, Datatype::U8);
                if what.combines() {
                    (op, datatype) = (OPS[random.below(10)], TYPES[random.below(6)]);
                    op = if datatype.is_float() && op.is_bitwise() { AtomicOp::Sum } else { op };
                }
                let count = match random.below(8) {
                    0 => 0,
                    7 => F::BULK / datatype.size() / 4 / members + random.below(100),
                    6 => random.below(5000),
                    _ => random.below(60),
                };
                let given = given(what, members, count, datatype, &mut random);
                let mut wanted = Vec::new();
                let mut started = Vec::new();
                for (rank, group) in groups.iter().enumerate() {
                    let result = result(what, rank, &given, count * datatype.size(), op, datatype);
                    let (before, after) = buffers(what, rank, members, &given[rank], &result);
                    let (own, block) = (rank * count * datatype.size(), count * datatype.size());
                    wanted.push((after, own..own + block));
                    started
                        .push(request(group, what, (op, datatype), before).start().expect("the operation is posted"));
                }
                batch.push((what, op, datatype, wanted, started));
                mesh.turns(random.below(3));
            }
            for (what, op, datatype, wanted, started) in batch {
                for (rank, (got, (wanted, own))) in all_good(&mesh, started).into_iter().zip(wanted).enumerate() {
                    let description = format!("{what:?}, {op} of {datatype}, rank {rank} of {members}");
                    assert_eq!(got.len(), wanted.len(), "{description}");
                    // If the operation combines elements, the other blocks have no defined contents.
                    let part = if what.combines() { own } else { 0..wanted.len() };
                    same(&got[part.clone()], &wanted[part], &description);
                }
            }
        }
    }
}

/// An operation with separate memory for contribution and result.
struct Raw {
    source: Memory,
    result: Memory,
    context: u64,
}

/// Posts an operation through the raw API, with the memory that the member needs.
fn post<F: Fabric>(mesh: &Mesh<F>, rank: usize, group: GroupId, what: Collective, count: usize, source: &[u8]) -> Raw {
    let (_, members) = mesh.endpoint(rank).rank_in(group).expect("the endpoint is a member");
    let raw = Raw {
        source: Memory::of(source),
        result: Memory::blank(what.blocks(members, rank).1 * count * 8),
        context: mesh.context(),
    };
    let work = work(group, what, count, &raw);
    // SAFETY: `Memory` is never freed.
    unsafe { mesh.endpoint(rank).post_collective(&work) }.expect("the operation is posted");
    raw
}

fn work(group: GroupId, what: Collective, count: usize, raw: &Raw) -> CollectiveWork {
    CollectiveWork {
        group,
        what,
        op: AtomicOp::Sum,
        datatype: Datatype::U64,
        count,
        source: raw.source.segment(),
        result: raw.result.segment(),
        context: raw.context,
        flags: OpFlags::COMPLETION,
    }
}

/// For each root, contributions stay unchanged and the root gets its result.
pub fn exchange_keeps_contributions_and_serves_every_root<F: Transport>() {
    let members = if F::ALONE { 1 } else { 5 };
    let mesh = Mesh::<F>::new(members);
    let groups: Vec<Ours<'_>> = group_of(&mesh, members);
    let mut random = Random::new(crate::random::seed());
    for root in 0..members {
        for what in all(root) {
            // Small blocks are sent along a tree, and large ones directly.
            for count in [0, 1, 33, F::BULK / 8 / members] {
                let given = given(what, members, count, Datatype::U64, &mut random);
                let posted: Vec<Raw> =
                    (0..members).map(|rank| post(&mesh, rank, groups[rank].id(), what, count, &given[rank])).collect();
                for (rank, raw) in posted.into_iter().enumerate() {
                    mesh.done(raw.context);
                    let description = format!("{what:?} of {count}, rank {rank}");
                    let wanted = result(what, rank, &given, count * 8, AtomicOp::Sum, Datatype::U64);
                    same(&raw.result.read(), &wanted, &description);
                    same(&raw.source.read(), &given[rank], &description);
                }
            }
        }
    }
}

/// Invalid exchanges are rejected, and the buffer is returned.
pub fn invalid_exchange_is_rejected<F: Transport>() {
    let members = if F::ALONE { 1 } else { 3 };
    let mesh = Mesh::<F>::new(members);
    let groups = group_of(&mesh, members);
    let group = &groups[0];
    let refused = |result: Result<Started<'_>, OperationError>, length: usize| {
        let error = result.expect_err("the operation is rejected");
        assert!(matches!(error.cause(), Cause::Post(PostError::Collective(_))), "{error}");
        assert_eq!(error.into_buffer().expect("the buffer is returned").len(), length);
    };
    refused(group.scatter(members, vec![1; 6]).start(), 6);
    refused(group.gather(9, vec![1; 6]).start(), 6);
    refused(group.reduce_scatter(AtomicOp::Sum, Datatype::U64, vec![1; 25]).start(), 25);
    if !F::ALONE {
        refused(group.allgather(vec![1; 7]).start(), 7);
        refused(group.alltoall(vec![1; 8]).start(), 8);
        refused(group.scatter(0, vec![1; 8]).start(), 8);
        refused(group.gather(0, vec![1; 4]).start(), 4);
        refused(group.reduce_scatter(AtomicOp::Sum, Datatype::U64, vec![1; 16]).start(), 16);
    }
    // The memory is too small for all blocks.
    let endpoint = mesh.endpoint(0);
    for what in all(0) {
        let (gives, gets) = what.blocks(members, 0);
        for (source, into) in [(gives * 16 - 1, gets * 16), (gives * 16, gets * 16 - 1)] {
            let raw = Raw { source: Memory::blank(source), result: Memory::blank(into), context: mesh.context() };
            // SAFETY: `Memory` is never freed.
            let error = unsafe { endpoint.post_collective(&work(group.id(), what, 2, &raw)) };
            assert!(matches!(error, Err(PostError::Collective(_))), "{what:?}: {error:?}");
        }
        let raw = Raw { source: Memory::blank(8), result: Memory::blank(8), context: mesh.context() };
        // SAFETY: as above.
        let error = unsafe { endpoint.post_collective(&work(group.id(), what, usize::MAX / 4, &raw)) };
        assert!(error.is_err(), "{what:?}: {error:?}");
    }
    // The group still works for all members.
    let started = groups.iter().map(|group| group.barrier().start().expect("the operation is posted")).collect();
    all_good(&mesh, started);
}

/// If a member has blocks of a different length, or posts a different operation, this is detected, and the group is
/// broken for all members.
pub fn mismatched_exchange_breaks_the_group<F: Peers>() {
    for what in all(1) {
        for other in [what, Collective::Allreduce, Collective::Alltoall, Collective::Gather { root: 2 }] {
            let mesh = Mesh::<F>::new(4);
            let groups = group_of(&mesh, 4);
            let odd = if other == Collective::Alltoall && what == other { Collective::Allgather } else { other };
            let started = groups.iter().enumerate().map(|(rank, group)| {
                let what = if rank == 2 { odd } else { what };
                let (gives, gets) = what.blocks(4, rank);
                let block = if rank == 2 && what == other { 16 } else { 8 };
                let elements = (AtomicOp::Sum, Datatype::U64);
                request(group, what, elements, vec![1; gives.max(gets) * block])
                    .start()
                    .expect("the operation is posted")
            });
            let started: Vec<_> = started.collect();
            // A member that has no part in the exchange may complete early. It then gets the error in its next
            // operation.
            let later = groups.iter().map(|group| group.barrier().start().expect("the operation is posted")).collect();
            let later = ends(&mesh, later).into_iter().map(why);
            let ended = ends(&mesh, started);
            let failed: Vec<_> = ended.into_iter().filter(Result::is_err).map(why).collect();
            let all_need_all = [Collective::Allgather, Collective::Alltoall, Collective::ReduceScatter].contains(&what);
            assert!(!all_need_all || failed.len() == 4, "{what:?}, {odd:?}: {failed:?}");
            for code in failed.into_iter().chain(later) {
                assert!(matches!(code, ErrorCode::Protocol | ErrorCode::Truncated), "{what:?}, {odd:?}: {code:?}");
            }
        }
    }
}

/// A member is closed while an exchange is in progress. Each member that needs a block of the closed member gets an
/// error, and no member waits forever.
///
/// Requirements: FLT-003.
pub fn closed_member_fails_exchanges_that_need_it<F: Peers>() {
    for members in [2, 3, 5] {
        for count in [1, F::BULK / 8 / members] {
            for leaver in [0, members - 1] {
                for what in all(leaver) {
                    let mut mesh = Mesh::<F>::new(members);
                    let rest: Vec<usize> = (0..members).filter(|member| *member != leaver).collect();
                    let posted: Vec<Raw> = {
                        let groups = group_of(&mesh, members);
                        let post = |rank: &usize| {
                            let source = vec![1; what.blocks(members, *rank).0 * count * 8];
                            post(&mesh, *rank, groups[*rank].id(), what, count, &source)
                        };
                        let posted = rest.iter().map(post).collect();
                        mesh.turns(3);
                        posted
                    };
                    mesh.close(leaver);
                    for raw in posted {
                        // Blocks for a root may already have been sent.
                        match (what, mesh.report(raw.context)) {
                            (_, Err(_)) | (Collective::Gather { .. }, Ok(_)) => {}
                            (_, Ok(entry)) => panic!("{what:?} of {count} without a member: {entry:?}"),
                        }
                    }
                }
            }
        }
    }
}

/// Counters start exchanges as deferred work and count their completions, without further calls.
///
/// Requirements: DWQ-020.
pub fn counters_start_exchanges_without_further_calls<F: Peers + Real>() {
    const ROUNDS: u64 = 10;
    let alive = Alive::new::<F>(3, "counters start exchanges");
    let groups = alive.join();
    let members = groups.len();
    let start = Counter::new();
    let ends: Vec<Counter> = groups.iter().map(|_| Counter::new()).collect();
    let mut random = Random::new(crate::random::seed());
    // All operations are queued before any starts. Each waits for the previous one.
    let mut started = Vec::new();
    for round in 0..ROUNDS {
        let what = all(round as usize % members)[round as usize % 5];
        let given = given(what, members, 7, Datatype::U64, &mut random);
        for (rank, (group, end)) in groups.iter().zip(&ends).enumerate() {
            let (counter, threshold) = if round == 0 { (&start, 1) } else { (end, round) };
            let result = result(what, rank, &given, 56, AtomicOp::Sum, Datatype::U64);
            let (before, after) = buffers(what, rank, members, &given[rank], &result);
            let wanted = if what.combines() { after[rank * 56..(rank + 1) * 56].to_vec() } else { after };
            let exchange = request(group, what, (AtomicOp::Sum, Datatype::U64), before);
            let exchange = exchange.when(counter, threshold).counting(end);
            started.push((what, rank, wanted, exchange.start().expect("the operation waits")));
        }
    }
    assert!(ends.iter().all(|end| end.value() == 0));
    start.add(1);
    for end in &ends {
        end.wait(ROUNDS, Some(Duration::from_secs(60))).expect("the operations complete without calls");
    }
    for (what, rank, wanted, mut exchange) in started {
        let mut got = exchange.wait().expect("the operation has ended").into_vec();
        if what.combines() {
            got = got[rank * 56..(rank + 1) * 56].to_vec();
        }
        same(&got, &wanted, &format!("{what:?}, rank {rank}"));
    }
}
