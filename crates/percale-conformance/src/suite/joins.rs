//! The joins of groups, including joins after failures.

use percale::endpoint::Owned;
use percale::endpoint::safe::Operation;
use percale::{AddressSet, AtomicOp, Datatype, PeerAddress};

use super::collectives::{Ours, all_good, ends, group_of};
use super::connections::restart_one;
use crate::fabric::{Fabric, Peers, Transport};
use crate::mesh::Mesh;

fn everybody(members: usize) -> AddressSet {
    (0..members).map(|member| PeerAddress(member as u64)).collect()
}

/// Starts a join at each of these members.
fn joining<'m, F: Fabric>(
    mesh: &'m Mesh<F>,
    members: impl IntoIterator<Item = usize>,
    of: usize,
) -> Vec<Operation<&'m Owned, Ours<'m>>> {
    members.into_iter().map(|member| mesh.endpoint(member).join(&everybody(of)).expect("a group")).collect()
}

/// Repeats the join of each member until the member is in a group. Returns the groups and the largest number of
/// attempts of any member.
fn join_again_and_again<F: Fabric>(mesh: &Mesh<F>, members: usize) -> (Vec<Ours<'_>>, usize) {
    let mut groups: Vec<Option<Ours<'_>>> = (0..members).map(|_| None).collect();
    let mut tries = vec![1; members];
    let mut joins: Vec<_> = joining(mesh, 0..members, members).into_iter().map(Some).collect();
    mesh.until(|| {
        for member in 0..members {
            let Some(mut join) = joins[member].take_if(|join| join.is_ready()) else { continue };
            match join.wait() {
                Ok(group) => groups[member] = Some(group),
                Err(error) => {
                    println!("{member} of {members}: {}", error.cause());
                    tries[member] += 1;
                    assert!(tries[member] < 100, "no stale join remains");
                    joins[member] = joining(mesh, [member], members).pop();
                }
            }
        }
        groups.iter().all(Option::is_some).then_some(())
    });
    (groups.into_iter().flatten().collect(), tries.into_iter().max().unwrap_or(0))
}

/// Checks a sum over all members. The member with rank `r` contributes `number` times 8 to the power of `r`.
fn sums<F: Fabric>(mesh: &Mesh<F>, groups: &[Ours<'_>], number: u64) {
    let all = (0..groups.len()).map(|rank| number << (3 * rank)).sum::<u64>();
    let started = groups.iter().enumerate().map(|(rank, group)| {
        assert_eq!((group.rank(), group.size()), (rank, groups.len()));
        let bytes = (number << (3 * rank)).to_ne_bytes().to_vec();
        group.allreduce(AtomicOp::Sum, Datatype::U64, bytes).start().expect("the operation is posted")
    });
    let started = started.collect();
    for result in all_good(mesh, started) {
        assert_eq!(result, all.to_ne_bytes());
    }
}

/// A member that joins a list several times, one after another or at once, becomes a member of as many groups, in the
/// same order as the other members.
pub fn joins_of_one_list_are_paired_in_order<F: Transport>() {
    const JOINS: usize = 4;
    let members = if F::ALONE { 1 } else { 5 };
    let mesh = Mesh::<F>::new(members);
    let mut joins: Vec<Vec<_>> = (0..members).map(|_| Vec::new()).collect();
    for turn in 0..members * JOINS {
        // The first member posts all of its joins at once. Each other member posts one in each turn.
        let member = turn % members;
        let count = if member == 0 { if turn == 0 { JOINS } else { 0 } } else { 1 };
        joins[member].extend((0..count).map(|_| mesh.endpoint(member).join(&everybody(members)).expect("a group")));
        mesh.turns(turn % 7);
    }
    mesh.until(|| joins.iter().flatten().all(|join| join.is_ready()).then_some(()));
    let mut groups: Vec<Vec<Ours<'_>>> = (0..JOINS).map(|_| Vec::new()).collect();
    for joins in joins {
        for (at, mut join) in joins.into_iter().enumerate() {
            groups[at].push(join.wait().expect("all members join"));
        }
    }
    for number in (0..JOINS).rev() {
        sums(&mesh, &groups[number], number as u64 + 1);
    }
}

/// A member that was restarted at its address has joined less often than the others. It becomes a member of the next
/// group nevertheless.
///
/// Requirements: FLT-003.
pub fn restarted_member_can_join_again<F: Peers>() {
    for members in [2, 3, 6] {
        for restarted in [0, 1, members - 1] {
            let mut mesh = Mesh::<F>::new(members);
            for round in 0..3 {
                {
                    let (groups, tries) = join_again_and_again(&mesh, members);
                    sums(&mesh, &groups, round + 1);
                    println!("{}: {restarted} of {members} has joined again, after {tries} tries", F::NAME);
                    // The same list may be joined again while all members exist.
                    let more = group_of(&mesh, members);
                    sums(&mesh, &more, 1);
                    if round == 1 {
                        // Some members have already joined when the member is closed.
                        let rest = (0..members).filter(|member| *member != restarted && *member != members / 2);
                        drop(joining(&mesh, rest, members));
                        mesh.turns(5);
                    }
                }
                restart_one(&mut mesh, restarted, members);
                mesh.turns(10 * round as usize);
            }
        }
    }
}

/// A member is closed before it joins. The members that wait for it stop waiting.
///
/// Requirements: FLT-003.
pub fn member_closing_before_join_does_not_block_others<F: Peers>() {
    for members in [2, 3, 5, 8] {
        for closing in [0, 1, members - 1] {
            let mut mesh = Mesh::<F>::new(members);
            drop(group_of(&mesh, members));
            let rest: Vec<usize> = (0..members).filter(|member| *member != closing).collect();
            let set = everybody(members);
            let contexts: Vec<u64> = rest.iter().map(|_| mesh.context()).collect();
            for (member, context) in rest.iter().zip(&contexts) {
                mesh.endpoint(*member).join_group(&set, *context).expect("a group");
            }
            mesh.turns(20);
            mesh.close(closing);
            // The others join again. The closed member no longer exists.
            let joins = joining(&mesh, rest.iter().copied(), members);
            mesh.until(|| joins.iter().all(|join| join.is_ready()).then_some(()));
            for mut join in joins {
                drop(join.wait().expect_err("a member was closed"));
            }
        }
    }
}

/// A member that drops its join before the group is formed ends the join for all members. The next join is not
/// affected.
///
/// Requirements: FLT-003.
pub fn canceled_join_ends_for_all_members<F: Peers>() {
    for members in [2, 3, 5, 8] {
        for leaver in [0, 1, members - 1] {
            let mesh = Mesh::<F>::new(members);
            for _ in 0..3 {
                let rest: Vec<usize> = (0..members).filter(|member| *member != leaver).collect();
                let joins = joining(&mesh, rest.iter().copied(), members);
                mesh.turns(leaver);
                drop(joining(&mesh, [leaver], members));
                mesh.until(|| joins.iter().all(|join| join.is_ready()).then_some(()));
                for mut join in joins {
                    drop(join.wait().expect_err("a member has dropped its join"));
                }
                let groups = group_of(&mesh, members);
                sums(&mesh, &groups, 3);
                let barriers =
                    groups.iter().map(|group| group.barrier().start().expect("the operation is posted")).collect();
                ends(&mesh, barriers).into_iter().for_each(|end| drop(end.expect("the operation succeeds")));
            }
        }
    }
}
