//! Tests of groups without an engine and without links: several members run, and the test carries their messages.

use super::super::kinds::envelope;
use super::super::types::UnexpectedPayload;
use super::*;
use crate::collective::JoinAction;
use crate::endpoint::work::OpFlags;
use crate::local_memory::atomic::{AtomicOp, Datatype};
use crate::local_memory::buffer::Buffer;
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View, ViewExt as _};
use crate::wire::head::{Flags, FrameKind, Head};

const LIST: u64 = 1;
const TAG: u64 = 0x1234;

/// A message between two members.
struct Carried {
    from: usize,
    to: usize,
    tag: u64,
    data: u64,
    bytes: Vec<u8>,
}

/// A member of a group. Its slot is its rank at every member.
struct Member {
    groups: Groups,
    index: Id<GroupState>,
    /// The contexts of its operations that have ended.
    ended: Vec<u64>,
}

/// A group, with the messages that are under way.
struct World {
    members: Vec<Member>,
    carried: Vec<Carried>,
    random: u64,
}

impl World {
    fn new(members: usize) -> Self {
        let slots: Box<[ConnectionId]> = (0..members as ConnectionId).collect();
        let member = |rank| {
            let mut groups = Groups::default();
            let index = groups.open(LIST, slots.clone(), rank);
            groups.name(index, TAG);
            Member { groups, index, ended: Vec::new() }
        };
        Self { members: (0..members).map(member).collect(), carried: Vec::new(), random: 1 }
    }

    fn post(&mut self, rank: usize, work: &CollectiveWork) {
        let Member { groups, index, .. } = &mut self.members[rank];
        let index = *index;
        let work = CollectiveWork { group: GroupId::from_u64(index.to_u64()), ..*work };
        let is_new = !groups.repeats(&work).expect("the group is there");
        let plan = is_new.then(|| groups.plan_of(&work).expect("the operation is valid"));
        if groups.start(index, &work, plan, Notify::Queue, false) {
            assert!(groups.begin_advancing());
            self.advance(rank);
            let groups = &mut self.members[rank].groups;
            assert!(!groups.stop_advancing(), "nothing is scheduled meanwhile");
        }
    }

    fn advance(&mut self, rank: usize) {
        loop {
            let Member { groups, index, ended } = &mut self.members[rank];
            match groups.next(*index) {
                GroupStep::Nothing => return,
                GroupStep::WindUp => panic!("the group is broken"),
                GroupStep::Done => ended.extend(groups.end_operation(*index).map(|end| end.context)),
                // The message leaves at once, so it is not counted.
                GroupStep::Send { to, segment, tag, data, .. } => {
                    let bytes = Segments::one(segment).to_vec();
                    self.carried.push(Carried { from: rank, to: to as usize, tag, data, bytes });
                }
                GroupStep::Receive { from, segment, tag, context } => match groups.take_message(from, tag) {
                    Some(Unexpected { head, body: UnexpectedPayload::Whole(bytes), .. }) => {
                        View::of(&bytes).copy_to_one(segment);
                        assert_eq!(groups.received(context, head.data), None, "the receive is not waiting yet");
                    }
                    Some(other) => panic!("{other:?}"),
                    None => assert!(groups.post_receive(*index, from, tag, segment, context)),
                },
            }
        }
    }

    /// Delivers a message that is the oldest one under way between its two members.
    fn deliver(&mut self) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut at = (self.random >> 33) as usize % self.carried.len();
        let pair = (self.carried[at].from, self.carried[at].to);
        at = self.carried.iter().position(|other| (other.from, other.to) == pair).unwrap_or(at);
        let Carried { from, to, tag, data, bytes } = self.carried.remove(at);
        let head = Head { kind: FrameKind::Collective, flags: Flags::DATA, len: bytes.len() as u32, tag, data, id: 0 };
        let from = from as ConnectionId;
        let Member { groups, ended, .. } = &mut self.members[to];
        let Some(context) = groups.deliver(from, &head, View::of(&bytes)) else {
            let len = bytes.len() as u64;
            assert_eq!(groups.break_for_stray(from, &head), None, "an operation will take the message");
            groups.hold(envelope(from, &head), Unexpected { from, head, len, body: UnexpectedPayload::Whole(bytes) });
            return;
        };
        if let Some(index) = groups.received(context, data) {
            let end = if groups.run_steps(index) { groups.end_operation(index) } else { None };
            ended.extend(end.map(|end| end.context));
            if !end.is_some_and(|end| end.is_last) {
                self.advance(to);
            }
        }
    }

    fn finish(&mut self) {
        while !self.carried.is_empty() {
            self.deliver();
        }
    }
}

fn work(what: Collective, count: usize, source: Segment, result: Segment, context: u64) -> CollectiveWork {
    let (group, op, datatype, flags) = (GroupId::from_u64(0), AtomicOp::Sum, Datatype::U64, OpFlags::empty());
    CollectiveWork { group, what, op, datatype, count, source, result, context, flags }
}

fn barrier(context: u64) -> CollectiveWork {
    work(Collective::Barrier, 0, Segment::EMPTY, Segment::EMPTY, context)
}

fn memory(words: impl IntoIterator<Item = u64>) -> Buffer {
    Buffer::from(words.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
}

fn words(buffer: Buffer) -> Vec<u64> {
    buffer.into_vec().chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Runs an operation at every member. The elements of a member are the words `source(rank)`. Returns the `gets(rank)`
/// words that each member gets.
fn run(
    world: &mut World,
    what: Collective,
    count: usize,
    source: impl Fn(usize) -> Vec<u64>,
    gets: impl Fn(usize) -> usize,
) -> Vec<Vec<u64>> {
    let ranks = 0..world.members.len();
    let mut memories: Vec<_> = ranks.clone().map(|rank| (memory(source(rank)), memory(vec![0; gets(rank)]))).collect();
    for rank in ranks.rev() {
        let (source, result) = &mut memories[rank];
        let of = |buffer: &mut Buffer| buffer.segment_for_receive().unwrap_or(Segment::EMPTY);
        let (source, result) = (of(source), of(result));
        world.post(rank, &work(what, count, source, result, 7));
        if rank.is_multiple_of(2) && !world.carried.is_empty() {
            world.deliver();
        }
    }
    world.finish();
    for member in &mut world.members {
        assert_eq!(std::mem::take(&mut member.ended), [7], "{what:?}");
    }
    memories.into_iter().map(|(_, result)| words(result)).collect()
}

#[test]
fn allreduce_returns_the_sum_for_every_group_size() {
    for members in 1..=9 {
        let mut world = World::new(members);
        // The second operation repeats the plan of the first.
        for _ in 0..2 {
            let source = |rank: usize| (0..3).map(|word| 100 * word + rank as u64).collect();
            let sums = run(&mut world, Collective::Allreduce, 3, source, |_| 3);
            let sum = |word: u64| (0..members as u64).map(|rank| 100 * word + rank).sum();
            assert_eq!(sums, vec![vec![sum(0), sum(1), sum(2)]; members], "{members} members");
        }
    }
}

/// Two operations that differ only in their operator or datatype have different plans.
#[test]
fn operation_after_another_uses_its_own_operator_and_datatype() {
    let elements = [1, u64::MAX, 2];
    let mut world = World::new(elements.len());
    for (op, datatype, expected) in [
        (AtomicOp::Max, Datatype::U64, u64::MAX),
        (AtomicOp::Min, Datatype::U64, 1),
        (AtomicOp::Min, Datatype::I64, u64::MAX),
        (AtomicOp::Max, Datatype::I64, 2),
        (AtomicOp::Max, Datatype::U64, u64::MAX),
    ] {
        let mut memories = elements.map(|element| [memory([element]), memory([0])]);
        for (rank, buffers) in memories.iter_mut().enumerate() {
            let [source, result] = buffers.each_mut().map(|buffer| buffer.segment_for_receive().unwrap());
            let work = work(Collective::Allreduce, 1, source, result, 7);
            world.post(rank, &CollectiveWork { op, datatype, ..work });
        }
        world.finish();
        for (member, [_, result]) in world.members.iter_mut().zip(memories) {
            assert_eq!(std::mem::take(&mut member.ended), [7], "{op:?} {datatype:?}");
            assert_eq!(words(result), [expected], "{op:?} {datatype:?}");
        }
    }
}

#[test]
fn alltoall_delivers_each_block_to_its_member() {
    for members in 1..=6 {
        let mut world = World::new(members);
        let source = |rank: usize| (0..members as u64).map(|to| 10 * rank as u64 + to).collect();
        let got = run(&mut world, Collective::Alltoall, 1, source, |_| members);
        for (to, got) in got.into_iter().enumerate() {
            assert_eq!(got, (0..members as u64).map(|from| 10 * from + to as u64).collect::<Vec<_>>());
        }
    }
}

#[test]
fn no_member_leaves_a_barrier_before_all_have_entered() {
    let mut world = World::new(5);
    for rank in 1..5 {
        world.post(rank, &barrier(rank as u64));
    }
    world.finish();
    assert!(world.members.iter().all(|member| member.ended.is_empty()), "one member is missing");
    world.post(0, &barrier(9));
    world.finish();
    let ended: Vec<u64> = world.members.iter().flat_map(|member| member.ended.clone()).collect();
    assert_eq!(ended, [9, 1, 2, 3, 4]);
}

#[test]
fn operations_of_a_group_run_one_after_another() {
    let mut world = World::new(3);
    for context in 1..=4 {
        world.post(0, &barrier(context));
    }
    let id = GroupId::from_u64(world.members[0].index.to_u64());
    assert_eq!(world.members[0].groups.outstanding(id), 4, "one running and three waiting operations");
    for rank in [2, 1] {
        for context in 1..=4 {
            world.post(rank, &barrier(context));
            world.finish();
        }
    }
    assert!(world.members.iter().all(|member| member.ended == [1, 2, 3, 4]));
    assert_eq!(world.members[0].groups.outstanding(id), 0);
}

#[test]
fn mismatched_operations_break_the_group() {
    let mut world = World::new(2);
    let mut one = memory([1]);
    let one = one.segment_for_receive().unwrap();
    world.post(0, &work(Collective::Broadcast { root: 0 }, 1, Segment::EMPTY, one, 1));
    let sent = world.carried.pop().expect("the root sends its element");
    let mut two = memory([0]);
    let other = work(Collective::Broadcast { root: 0 }, 1, Segment::EMPTY, two.segment_for_receive().unwrap(), 2);
    world.post(1, &other);
    let Member { groups, index, .. } = &mut world.members[1];
    let head = Head { kind: FrameKind::Collective, tag: TAG, data: sent.data + 1, ..Head::default() };
    let context = groups.deliver(0, &head, View::of(&sent.bytes)).expect("a receive waits for the message");
    assert_eq!(groups.received(context, head.data), Some(*index));
    assert!(matches!(groups.next(*index), GroupStep::WindUp));
    let (tag, others, code) = groups.announce_broken(*index).unwrap();
    assert_eq!((tag, others, code), (TAG, vec![0], ErrorCode::Protocol));
    assert!(groups.announce_broken(*index).is_none(), "once");
    assert!(groups.withdraw(*index).is_empty() && groups.is_broken(TAG));
    let (ended, code, _) = groups.end_broken(*index).unwrap();
    assert_eq!((ended.iter().map(|end| end.context).collect::<Vec<_>>(), code), (vec![2], ErrorCode::Protocol));
}

/// Each member takes itself for the root, so each sends and none receives. The message arrives before or after the
/// operation of the member that gets it.
#[test]
fn messages_that_no_operation_takes_break_the_group() {
    for early in [false, true] {
        let mut world = World::new(2);
        let mut elements = [memory([1]), memory([2])];
        let mut root = |rank: usize| {
            let element = elements[rank].segment_for_receive().unwrap();
            work(Collective::Broadcast { root: rank }, 1, Segment::EMPTY, element, 1)
        };
        world.post(0, &root(0));
        let Carried { data, bytes, .. } = world.carried.pop().expect("the root sends its element");
        if !early {
            world.post(1, &root(1));
            assert_eq!(world.members[1].ended, [1]);
        }
        let head = Head { kind: FrameKind::Collective, tag: TAG, data, ..Head::default() };
        let Member { groups, index, .. } = &mut world.members[1];
        let index = *index;
        assert_eq!(groups.deliver(0, &head, View::of(&bytes)), None);
        assert_eq!(groups.break_for_stray(0, &head), (!early).then_some(index));
        let body = UnexpectedPayload::Whole(bytes);
        groups.hold(envelope(0, &head), Unexpected { from: 0, head, len: 8, body });
        if early {
            let own = CollectiveWork { group: GroupId::from_u64(index.to_u64()), ..root(1) };
            let plan = groups.plan_of(&own).unwrap();
            assert!(groups.start(index, &own, Some(plan), Notify::Queue, false));
        }
        assert!(matches!(groups.next(index), GroupStep::WindUp), "early: {early}");
        assert!(matches!(groups.announce_broken(index), Some((TAG, _, ErrorCode::Protocol))));
    }
}

#[test]
fn an_operation_of_a_broken_group_ends_when_no_transfer_uses_its_memory() {
    let mut world = World::new(2);
    let mut element = memory([1]);
    let Member { groups, index, .. } = &mut world.members[0];
    let index = *index;
    let whole = GroupId::from_u64(index.to_u64());
    let result = element.segment_for_receive().unwrap();
    let broadcast = work(Collective::Broadcast { root: 0 }, 1, Segment::EMPTY, result, 1);
    let broadcast = CollectiveWork { group: whole, ..broadcast };
    let plan = groups.plan_of(&broadcast).unwrap();
    assert!(groups.start(index, &broadcast, Some(plan), Notify::Queue, false));
    let GroupStep::Send { context, .. } = groups.next(index) else { panic!("the root sends first") };
    groups.count_transfer(index); // The link still has the message.
    assert_eq!(groups.aborted(9, TAG, 5), AbortOutcome::NoMember);
    assert_eq!(groups.aborted(1, TAG + 1, 5), AbortOutcome::Unknown);
    assert_eq!(groups.aborted(1, TAG, 5), AbortOutcome::Broken(index));
    assert_eq!(groups.take_ready(), Some(PendingWork::Group(index)));
    groups.withdraw(index);
    assert!(groups.end_broken(index).is_none(), "a transfer uses its memory");
    assert_eq!(groups.transfer_over(context, None), Some(index));
    assert_eq!(groups.end_broken(index).map(|(ended, ..)| ended.len()), Some(1));
    assert_eq!(groups.rank(whole), Some((0, 2)));
    groups.leave(whole);
    assert_eq!(groups.rank(whole), None);
}

#[test]
fn closed_endpoint_ends_all_group_operations_except_held_ones() {
    let mut world = World::new(2);
    world.post(0, &barrier(1));
    world.post(0, &barrier(2));
    let Member { groups, index, .. } = &mut world.members[0];
    assert_eq!(groups.unfinished().len(), 1);
    let held = context_of(*index, 1);
    let ended: Vec<u64> = groups.end_all(&HashSet::from([held])).iter().map(|end| end.context).collect();
    assert_eq!(ended, [2]);
    let (end, ..) = groups.take_operation(held).unwrap();
    assert_eq!(end.context, 1);
    assert!(groups.take_operation(held).is_none());
}

#[test]
fn members_that_join_agree_on_a_tag() {
    let members = 5;
    let slots: Box<[ConnectionId]> = (0..members).collect();
    let mut all: Vec<Groups> = (0..members).map(|_| Groups::default()).collect();
    let indices: Vec<_> =
        all.iter_mut().enumerate().map(|(rank, groups)| groups.open(LIST, slots.clone(), rank)).collect();
    for (rank, groups) in all.iter_mut().enumerate() {
        groups.join(indices[rank], 100 + rank as u64);
        assert_eq!(groups.take_ready(), Some(PendingWork::Joins));
    }
    while all.iter().any(Groups::has_join_actions) {
        for rank in 0..all.len() {
            while let Some(join_action) = all[rank].next_join_action() {
                let JoinAction::Say { to, list, said } = join_action else { continue };
                assert!(all[to as usize].receive_join(rank as ConnectionId, list, said.to_data()));
            }
        }
    }
    let tags: Vec<Vec<u64>> = all.iter().map(|groups| groups.tags_of(0)).collect();
    assert!(tags[0].len() == 1 && tags.iter().all(|tag| *tag == tags[0]), "{tags:?}");
    for (groups, index) in all.iter_mut().zip(indices) {
        assert_eq!(groups.take_ready(), Some(PendingWork::Group(index)));
    }
}

/// Before a group exists here, any peer that may connect can send a notice that the group was given up. Only the notice
/// of a member takes effect.
///
/// Requirements: FLT-003.
#[test]
fn abort_from_nonmember_does_not_break_a_future_group() {
    let open = |all: &mut Groups| {
        let index = all.open(1, Box::new([0, 1]), 0);
        all.name(index, TAG);
        all.groups[index].broken.is_some()
    };
    assert!(!open(&mut Groups::default()));
    for (said_by, breaks) in [(7, false), (1, true)] {
        let mut all = Groups::default();
        all.record_early_abort(TAG, said_by);
        (0..10_000).for_each(|other| all.record_early_abort(other, 7)); // This displaces no record of another peer.
        let kept = all.early_aborts.iter().filter(|(_, who)| *who == 7).map(|(tag, _)| *tag);
        assert!(kept.eq(10_000 - EARLY_ABORT_LIMIT as u64..10_000), "the newest notices of a peer are kept");
        assert_eq!(open(&mut all), breaks);
        assert!(!all.is_broken(TAG), "the messages of members count");
    }
    let mut all = Groups::default();
    all.record_early_abort(TAG, 1);
    all.forget_early_aborts(1);
    assert!(!open(&mut all), "the slot may belong to another peer");
}

/// The tags of broken groups are kept up to a limit, and the oldest is dropped first.
#[test]
fn number_of_remembered_broken_groups_is_bounded() {
    let mut all = Groups::default();
    let tags = || 0..REMEMBERED as u64 + 10;
    tags().for_each(|tag| all.remember_broken(tag));
    all.remember_broken(20); // This tag is remembered already.
    assert!(tags().filter(|tag| all.is_broken(*tag)).eq(10..REMEMBERED as u64 + 10), "the newest tags are remembered");
    assert_eq!((all.broken.len(), all.remembered.len()), (REMEMBERED, REMEMBERED));
}

/// A group that the application left while an operation was running is removed when that operation has ended.
#[test]
fn left_group_is_removed_when_its_operation_has_ended() {
    for leaver in 0..2 {
        let mut world = World::new(2);
        for rank in [leaver, 1 - leaver] {
            world.post(rank, &barrier(rank as u64));
            let Member { groups, index, .. } = &mut world.members[rank];
            assert!(!groups.leave(GroupId::from_u64(index.to_u64())), "the operation needs the group");
            assert!(!groups.is_idle(), "an operation is running");
        }
        world.finish();
        for (rank, member) in world.members.iter().enumerate() {
            assert_eq!(member.ended, [rank as u64]);
            assert!(member.groups.is_idle() && member.groups.by_tag.is_empty(), "member {rank} has removed the group");
        }
    }
}

/// If the connection to a member breaks before the group has its tag, the member's notice that it gave up the group may
/// have been lost with the connection.
///
/// Requirements: FLT-003.
#[test]
fn group_that_lost_a_member_while_joining_is_broken() {
    let (list, member) = (1, 1);
    // Each case contains the error that ended the connection, whether the group was being joined, and whether the group
    // is then broken.
    let cases =
        [(ErrorCode::PeerDied, true, true), (ErrorCode::PeerDied, false, false), (ErrorCode::Closed, true, false)];
    for (error, is_joining, breaks) in cases {
        let mut all = Groups::default();
        let index = all.open(list, Box::new([0, member]), 0);
        if is_joining {
            all.joins.join(list, index.to_u64(), 5, &[0, member], 0);
        }
        all.lost(member, error, "no answer");
        all.lost(7, ErrorCode::PeerDied, "not a member");
        assert!(all.groups[index].broken.is_none(), "the members have not agreed yet");
        all.name(index, TAG);
        assert_eq!(all.groups[index].broken.is_some(), breaks, "{error:?} {is_joining}");
        // From now on the group's operations have to detect this.
        all.lost(member, ErrorCode::PeerDied, "no answer");
        assert_eq!(all.groups[index].broken.is_some(), breaks);
    }
}
