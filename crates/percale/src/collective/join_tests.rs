//! Tests joins of members that die, restart, leave and try again, over a network with delays.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use proptest::prelude::*;

use super::join::{JoinAction, Joins};
use crate::completion::entry::ErrorCode;
use crate::transport::ConnectionId;
use crate::wire::join::Join;

const LIST: u64 = 5;

/// The state of the connection to another member, as one member sees it.
#[derive(Debug, Default)]
enum View {
    #[default]
    Idle,
    /// The connection is being established, and these messages wait for it.
    Connecting(Vec<Message>),
    /// The connection is up. The number identifies it. Messages that arrive over it are in [`Member::arriving`].
    Up(u64),
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Said(Join),
    Break(u64),
    /// The other end has closed the connection.
    End,
}

#[derive(Debug, Default)]
struct Member {
    joins: Joins,
    alive: bool,
    views: BTreeMap<usize, View>,
    arriving: BTreeMap<usize, VecDeque<Message>>,
    /// Groups that are being joined.
    pending: Vec<u64>,
    /// The tag of the last group that was joined.
    joined: Option<u64>,
}

#[derive(Debug, Default)]
struct World {
    members: Vec<Member>,
    /// The number of groups and connections so far.
    count: u64,
    /// The members that have agreed to each tag.
    agreed: HashMap<u64, BTreeSet<usize>>,
    /// The members that were notified that the group with a tag is broken.
    broken: BTreeMap<u64, BTreeSet<usize>>,
    deaths: usize,
}

impl World {
    fn new(members: usize) -> Self {
        let mut world = Self { members: (0..members).map(|_| Member::default()).collect(), ..Self::default() };
        (0..members).for_each(|who| world.start(who));
        world
    }

    fn start(&mut self, who: usize) {
        self.members[who] = Member { alive: true, ..Member::default() };
    }

    fn join(&mut self, who: usize) {
        if !self.members[who].alive || self.members[who].pending.len() > 2 {
            return;
        }
        self.count += 1;
        let everybody: Vec<_> = (0..self.members.len() as ConnectionId).collect();
        let member = &mut self.members[who];
        member.pending.push(self.count);
        member.joins.join(LIST, self.count, self.count, &everybody, who);
        self.act(who);
    }

    fn leave(&mut self, who: usize, at: usize) {
        let member = &mut self.members[who];
        if let Some(group) = member.pending.get(at % member.pending.len().max(1)) {
            member.joins.leave(LIST, *group);
        }
        self.act(who);
    }

    /// Performs the actions that the member's joins have queued.
    fn act(&mut self, who: usize) {
        while let Some(join_action) = self.members[who].joins.deeds.pop_front() {
            match join_action {
                JoinAction::Reach(to) => self.send(who, to as usize, None),
                JoinAction::Say { to, list, said } => {
                    assert_eq!(list, LIST);
                    self.send(who, to as usize, Some(Message::Said(said)));
                }
                JoinAction::Break { to, tag } => self.send(who, to as usize, Some(Message::Break(tag))),
                JoinAction::Agreed { group, tag } => {
                    self.ended(who, group);
                    self.members[who].joined = Some(tag);
                    assert!(self.agreed.entry(tag).or_default().insert(who), "a name for two groups of one member");
                }
                JoinAction::Failed { group, .. } => {
                    self.ended(who, group);
                    self.members[who].joined = None;
                }
            }
        }
    }

    fn ended(&mut self, who: usize, group: u64) {
        let pending = &mut self.members[who].pending;
        let at = pending.iter().position(|other| *other == group).expect("a join ends once");
        pending.remove(at);
    }

    fn send(&mut self, from: usize, to: usize, message: Option<Message>) {
        match self.members[from].views.entry(to).or_default() {
            view @ View::Idle => *view = View::Connecting(message.into_iter().collect()),
            View::Connecting(waiting) => waiting.extend(message),
            View::Up(here) => {
                let here = *here;
                // Otherwise the other end of this connection no longer exists.
                if matches!(self.members[to].views.get(&from), Some(View::Up(there)) if *there == here) {
                    self.members[to].arriving.entry(from).or_default().extend(message);
                }
            }
        }
    }

    fn gone(&mut self, who: usize, peer: usize, error: ErrorCode) {
        let member = &mut self.members[who];
        member.views.remove(&peer);
        member.arriving.remove(&peer);
        member.joins.gone(peer as ConnectionId, error, "the peer is lost");
        self.act(who);
    }

    /// Completes an attempt to connect.
    fn connect(&mut self, from: usize, to: usize) {
        if !self.members[to].alive {
            return self.gone(from, to, ErrorCode::Refused);
        }
        if matches!(self.members[to].views.get(&from), Some(View::Up(_))) {
            self.gone(to, from, ErrorCode::PeerDied); // It connected again.
        }
        self.count += 1;
        for (one, other) in [(from, to), (to, from)] {
            let view = self.members[one].views.insert(other, View::Up(self.count));
            let waited = if let Some(View::Connecting(waited)) = view { waited } else { Vec::new() };
            let arriving = self.members[other].arriving.entry(one).or_default();
            arriving.extend(waited);
        }
    }

    fn deliver(&mut self, to: usize, from: usize) {
        let Some(message) = self.members[to].arriving.get_mut(&from).and_then(VecDeque::pop_front) else { return };
        match message {
            Message::Said(said) => {
                assert!(self.members[to].joins.receive_join(LIST, from as ConnectionId, said), "{said:?} was rejected");
                self.act(to);
            }
            Message::Break(tag) => _ = self.broken.entry(tag).or_default().insert(to),
            Message::End => self.gone(to, from, ErrorCode::PeerDied),
        }
    }

    /// Ends the process. Some of its last messages still arrive.
    fn kill(&mut self, who: usize, arrives: usize) {
        if !self.members[who].alive {
            return;
        }
        self.deaths += 1;
        self.members[who] = Member::default();
        for other in 0..self.members.len() {
            let member = &mut self.members[other];
            if !matches!(member.views.get(&who), Some(View::Up(_))) {
                continue;
            }
            let arriving = member.arriving.entry(who).or_default();
            arriving.truncate(arrives);
            arriving.push_back(Message::End);
        }
    }

    /// Returns the events that may happen next without a call: the member, its peer, and `true` if a connection attempt
    /// ends or `false` if a message arrives.
    fn events(&self) -> Vec<(usize, usize, bool)> {
        let mut all = Vec::new();
        for (who, member) in self.members.iter().enumerate() {
            let connecting = member.views.iter().filter(|(_, view)| matches!(view, View::Connecting(_)));
            all.extend(connecting.map(|(to, _)| (who, *to, true)));
            let arriving = member.arriving.iter().filter(|(_, messages)| !messages.is_empty());
            all.extend(arriving.map(|(from, _)| (who, *from, false)));
        }
        all
    }

    /// Performs one of the [`events`](Self::events). Returns false if there is none.
    fn happen(&mut self, choice: usize) -> bool {
        let events = self.events();
        let Some((who, peer, connects)) = events.get(choice % events.len().max(1)).copied() else { return false };
        if connects {
            self.connect(who, peer);
        } else {
            self.deliver(who, peer);
        }
        true
    }

    fn settle(&mut self, choices: &mut impl Iterator<Item = usize>) {
        while self.happen(choices.next().expect("endless")) {}
        let stuck = self.members.iter().all(|member| !member.pending.is_empty());
        assert!(!stuck, "deadlock: all members wait: {self:#?}");
    }

    /// Makes every member join until all are in one group. Returns the number of rounds.
    fn all_join(&mut self, choices: &mut impl Iterator<Item = usize>) -> usize {
        for round in 1..100 {
            let idle = |who: &usize| self.members[*who].pending.is_empty();
            for who in (0..self.members.len()).filter(idle).collect::<Vec<_>>() {
                self.join(who);
                (0..choices.next().expect("endless") % 4)
                    .for_each(|_| _ = self.happen(choices.next().expect("endless")));
            }
            self.settle(choices);
            let first = self.members[0].joined.filter(|_| self.members[0].pending.is_empty());
            let same = |member: &Member| member.pending.is_empty() && member.joined == first;
            if first.is_some() && self.members.iter().all(same) {
                return round;
            }
        }
        panic!("the members do not form a group: {self:#?}");
    }

    /// Checks that a group that only some members agreed to was reported broken to at least one of them, unless a
    /// member died.
    fn check_broken(&self) {
        let partial = self.agreed.iter().filter(|(_, who)| who.len() < self.members.len());
        for (tag, who) in partial {
            let reported = self.broken.get(tag).is_some_and(|reported| reported.intersection(who).next().is_some());
            assert!(
                reported || self.deaths > 0,
                "the group was formed by only some members, and none of them was notified: {who:?} of {}",
                self.members.len()
            );
        }
    }
}

/// Returns an endless sequence of choices that begins with the given ones.
fn choices(given: Vec<u16>) -> impl Iterator<Item = usize> {
    let mut state = given.iter().fold(1_u64, |state, choice| state.wrapping_mul(31).wrapping_add(u64::from(*choice)));
    let more = std::iter::repeat_with(move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as usize
    });
    given.into_iter().map(usize::from).chain(more)
}

#[test]
fn simultaneous_joins_agree_on_a_tag() {
    for members in 1..20 {
        let mut world = World::new(members);
        for tags in 1..4 {
            assert_eq!(world.all_join(&mut choices(vec![7])), 1, "{members}");
            assert_eq!(world.agreed.len(), tags);
        }
    }
}

/// Several joins that every member posts at once are paired in order.
#[test]
fn concurrent_joins_are_paired_in_order() {
    let mut world = World::new(5);
    (0..5).for_each(|who| (0..3).for_each(|_| world.join(who)));
    while world.happen(3) {}
    assert!(world.agreed.len() == 3 && world.agreed.values().all(|who| who.len() == 5));
}

/// A queued join that is left before it is under way still counts, so later joins are paired with the corresponding
/// joins of the other members.
#[test]
fn canceled_join_keeps_later_joins_paired() {
    for leaver in 0..5 {
        for choice in 0..7 {
            let mut world = World::new(5);
            (0..5).for_each(|who| (0..2).for_each(|_| world.join(who)));
            world.leave(leaver, 1);
            assert_eq!(world.members[leaver].pending.len(), 1, "the failure is reported immediately");
            (0..5).for_each(|who| world.join(who));
            while world.happen(choice) {}
            assert!(world.members.iter().all(|member| member.pending.is_empty()), "{leaver}: {world:#?}");
            assert!(world.agreed.len() == 2 && world.agreed.values().all(|who| who.len() == 5), "{leaver}");
        }
    }
}

/// After the connection of a member has ended, messages to it are not sent to a new process at the same address.
///
/// Requirements: FLT-003.
#[test]
fn no_join_message_is_sent_to_a_lost_member() {
    let mut joins = Joins::default();
    joins.join(LIST, 1, 1, &[0, 1], 1);
    let says =
        |joins: &Joins| joins.deeds.iter().any(|join_action| matches!(join_action, JoinAction::Say { to: 0, .. }));
    assert!(says(&joins), "the member reports that it is ready");
    joins.gone(0, ErrorCode::PeerDied, "the peer is lost");
    assert!(!says(&joins), "{:?}", joins.deeds);
}

/// Requirements: FLT-008.
#[test]
fn invalid_join_messages_are_rejected() {
    let receive_join = |said: &[Join]| {
        let mut joins = Joins::default();
        joins.join(LIST, 1, 1, &[0, 1, 2, 3], 2); // Member 0 is above it, and member 3 is below it.
        let last = said.iter().map(|said| joins.receive_join(LIST, 0, *said)).last();
        (last, joins.deeds.iter().any(|join_action| matches!(join_action, JoinAction::Agreed { .. })))
    };
    let failed = |number| Join::Failed { number, error: 104 };
    assert_eq!(receive_join(&[Join::Ready(1)]), (Some(true), false));
    assert_eq!(receive_join(&[failed(1)]), (Some(true), false));
    for said in [
        &[Join::Agreed(1)][..], // Member 3 has not joined.
        &[Join::Ready(2)],
        &[Join::Ready(1), Join::Ready(1)],
        &[failed(0)],
        &[failed(2), failed(2)],
        &[failed(2), Join::Ready(2)],
        &[failed(1), Join::Agreed(1)],
    ] {
        assert_eq!(receive_join(said), (Some(false), false), "{said:?}");
    }
}

/// The number of unknown lists is limited, because any peer that may connect can send messages about lists.
///
/// Requirements: FLT-008.
#[test]
fn unknown_lists_are_bounded_per_peer() {
    let mut joins = Joins::default();
    let failed = Join::Failed { number: 1, error: 0 };
    let received = (0..u64::MAX).take_while(|list| joins.receive_join(*list, 1, failed)).count();
    assert_eq!(received, 1 << 14);
    assert!(joins.receive_join(0, 1, Join::Failed { number: 2, error: 0 }), "a message about a known list is accepted");
    assert!(joins.receive_join(u64::MAX, 2, failed), "the limit is separate for each peer");
    // Each list that is joined makes room for another one.
    (0..3).for_each(|list| joins.join(list, list, 0, &[0, 1], 0));
    joins.join(0, 3, 0, &[0, 1], 0);
    let more = (1 << 20..u64::MAX).take_while(|list| joins.receive_join(*list, 1, failed)).count();
    assert_eq!(more, 3);
    joins.gone(1, ErrorCode::PeerDied, "killed");
    assert!(joins.receive_join(u64::MAX, 1, failed), "the count is reset for a new peer");
}

/// A member that tries a thousand times is paired with a member that tries for the second time.
///
/// Requirements: FLT-003.
#[test]
fn repeated_join_failures_cost_other_members_one() {
    let mut world = World::new(3);
    assert_eq!(world.all_join(&mut choices(vec![])), 1);
    world.kill(2, 0);
    for _ in 0..1000 {
        world.join(0);
        while world.happen(0) {}
        assert!(world.members[0].pending.is_empty(), "the join fails because its peer is not running");
    }
    world.start(2);
    assert!(world.all_join(&mut choices(vec![])) <= 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Requirements: FLT-003.
    #[test]
    fn members_agree_after_random_failures(
        members in 1..8_usize, deadly in any::<bool>(), steps in prop::collection::vec(any::<u16>(), 0..400)
    ) {
        let mut world = World::new(members);
        let mut choices = choices(steps.clone());
        for _ in 0..steps.len() / 3 {
            let (what, who) = (choices.next().expect("endless") % 24, choices.next().expect("endless") % members);
            match what {
                0..5 => world.join(who),
                5 => world.leave(who, choices.next().expect("endless")),
                6 if deadly => world.kill(who, choices.next().expect("endless") % 4),
                7 | 8 if !world.members[who].alive => world.start(who),
                _ => _ = world.happen(choices.next().expect("endless")),
            }
        }
        for who in 0..members {
            if !world.members[who].alive {
                world.start(who);
            }
        }
        while world.happen(choices.next().expect("endless")) {}
        let rounds = world.all_join(&mut choices);
        prop_assert!(rounds <= 2 * members + 4, "{rounds} rounds of {members}");
        world.check_broken();
    }
}
