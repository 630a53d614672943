//! Forms a group from the members of a list.
//!
//! This module sends nothing. The actions to perform are queued in [`Joins::deeds`] in order, for the caller, which has
//! the connections.
//!
//! # Protocol
//! The members form a tree by rank. When a member and all members below it have joined, it reports this to the member
//! above. When the root has received this report from all members directly below it, it chooses a name for the group
//! and sends it down the tree. A member that receives the name can conclude that all members have joined. A name is a
//! digest of the incarnation of the member that chose it and of a counter of that member, so no name is used twice.
//! Messages that remain from an earlier group of the same members, or from a member's earlier process, therefore match
//! no group. Joins of one list run one after another.
//!
//! # Pairing of joins
//! Every join of a list is an *attempt*. On each connection of the tree both ends number their attempts from 1, and
//! attempts with the same number belong together. A connection ends when either process ends, so both ends count from 1
//! again after one of the members was restarted. When an attempt fails, the failure is sent with its number on all its
//! connections. It ends the other end's attempts with the same or a lower number, whether they are under way or have
//! not begun yet. An attempt that is left while earlier attempts of its list are queued fails when its turn comes, so
//! that both ends count it. If a member joins late and several attempts of the other end have failed, it accounts for
//! all of them at once: its next attempt is paired with the next attempt of the other end. So no member waits for a
//! join that has ended, and members that try again are paired, regardless of how often each of them tries.
//!
//! A name may arrive after the attempt has failed. The sender is then in a group that will never be complete, and is
//! notified. The end of a connection ends the attempts of its members at both ends. When a member ends, only its own
//! neighbours in the tree need to be notified.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::Digest;
use super::schedule::neighbours;
use crate::types::ConnectionId;
use crate::types::ErrorCode;
use crate::wire::join::Join;

/// An action that the owner of the connections performs for joins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum JoinAction {
    /// Connect to a member for which this member waits. A connection is required to detect the member's death.
    Reach(ConnectionId),
    /// Send a message about this list to a member.
    Say { to: ConnectionId, list: u64, said: Join },
    /// The members agreed on a group. Its messages have this tag.
    Agreed { group: u64, tag: u64 },
    /// The join of a group failed.
    Failed { group: u64, error: ErrorCode, why: String },
    /// Notify a member that its group is broken.
    Break { to: ConnectionId, tag: u64 },
}

/// A join of a list.
#[derive(Debug)]
struct JoinAttempt {
    group: u64,
    /// The name of the group, if this member chooses it.
    name: u64,
    above: Option<ConnectionId>,
    below: Box<[ConnectionId]>,
    begun: bool,
    /// Whether the member above was notified that this member and all below it have joined.
    ready: bool,
    /// Whether the attempt was left before it was under way. The failure was then reported to its group. The other
    /// members are notified when the attempt becomes the first of its list.
    left: bool,
}

impl JoinAttempt {
    fn neighbours(&self) -> impl Iterator<Item = ConnectionId> {
        self.above.into_iter().chain(self.below.iter().copied())
    }
}

/// The state of a list on one connection: a summary of the messages about the list that both ends have sent over the
/// connection.
#[derive(Debug, Default)]
struct Edge {
    /// The number of this member's latest attempt.
    ours: u64,
    /// The highest known number of the peer's attempts.
    theirs: u64,
    /// Whether the peer's latest attempt is ready.
    ready: bool,
    /// The number of the peer's latest attempt that failed, or 0. The next field is the cause.
    failed: u64,
    error: Option<ErrorCode>,
}

impl Edge {
    /// Begins an attempt of this member. Returns the error if the peer's attempt has failed already.
    fn begin(&mut self) -> Option<ErrorCode> {
        self.ours = self.ours.saturating_add(1);
        if self.failed < self.ours {
            return None;
        }
        self.ours = self.failed;
        self.error
    }
}

/// The maximum number of lists about which a peer may have sent messages without this member having joined them.
const AHEAD: usize = 1 << 14;

/// The lists of one connection.
#[derive(Debug, Default)]
struct Edges {
    /// The state of each list.
    lists: HashMap<u64, Edge>,
    /// The number of lists about which only the peer has sent messages.
    ahead: usize,
}

impl Edges {
    fn get(&self, list: u64) -> Option<&Edge> {
        self.lists.get(&list)
    }

    /// Returns the state of a list about which the peer sent a message. Returns `None` if there are too many lists that
    /// this member has never joined.
    fn received(&mut self, list: u64) -> Option<&mut Edge> {
        match self.lists.entry(list) {
            Entry::Occupied(edge) => Some(edge.into_mut()),
            Entry::Vacant(_) if self.ahead == AHEAD => None,
            Entry::Vacant(place) => {
                self.ahead = self.ahead.saturating_add(1);
                Some(place.insert(Edge::default()))
            }
        }
    }

    /// Returns the state of a list that this member joins.
    fn joined(&mut self, list: u64) -> &mut Edge {
        match self.lists.entry(list) {
            Entry::Occupied(edge) => {
                let edge = edge.into_mut();
                self.ahead = self.ahead.saturating_sub(usize::from(edge.ours == 0));
                edge
            }
            Entry::Vacant(place) => place.insert(Edge::default()),
        }
    }
}

/// The joins of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Joins {
    edges: HashMap<ConnectionId, Edges>,
    /// The attempts of each list that is being joined. The first one is under way.
    lines: HashMap<u64, VecDeque<JoinAttempt>>,
    /// The actions to perform, in order.
    pub(crate) deeds: VecDeque<JoinAction>,
}

/// The error of a join that was left before it completed.
const LEFT: (ErrorCode, &str) = (ErrorCode::Canceled, "the group was left before all members had joined");

/// Returns the tag of a group.
fn tag_of(list: u64, name: u64) -> u64 {
    let mut digest = Digest::default();
    [list, name].into_iter().for_each(|word| digest.add(&word.to_le_bytes()));
    digest.end()
}

impl Joins {
    /// Joins this group's members, after the joins of this list that are already queued.
    pub(crate) fn join(&mut self, list: u64, group: u64, name: u64, members: &[ConnectionId], rank: usize) {
        let (above, below) = neighbours(members.len(), rank);
        let above = above.map(|rank| members[rank]);
        let below = below.into_iter().map(|rank| members[rank]).collect();
        let name = Join::name(name);
        let attempt = JoinAttempt { group, name, above, below, begun: false, ready: false, left: false };
        self.lines.entry(list).or_default().push_back(attempt);
        self.advance(list);
    }

    /// Leaves a group before its join has completed.
    pub(crate) fn leave(&mut self, list: u64, group: u64) {
        let Some(line) = self.lines.get_mut(&list) else { return };
        let Some(at) = line.iter().position(|attempt| attempt.group == group && !attempt.left) else { return };
        let (error, why) = LEFT;
        if at > 0 {
            line[at].left = true;
            self.deeds.push_back(JoinAction::Failed { group, error, why: why.to_owned() });
        } else {
            self.fail(list, error, why);
            self.advance(list);
        }
    }

    /// Returns whether this is the group that is being joined now, among the groups of its list.
    pub(crate) fn is_under_way(&self, list: u64, group: u64) -> bool {
        let first = self.lines.get(&list).and_then(VecDeque::front);
        first.is_some_and(|attempt| attempt.begun && attempt.group == group)
    }

    /// Handles a peer's message about a list. Returns false if it is invalid, or if there are too many lists that this
    /// member has never joined.
    #[must_use]
    pub(crate) fn receive_join(&mut self, list: u64, from: ConnectionId, said: Join) -> bool {
        let Some(edge) = self.edges.entry(from).or_default().received(list) else { return false };
        let under_way = self.lines.get(&list).and_then(VecDeque::front);
        match said {
            Join::Ready(number) => {
                if Some(number) != edge.theirs.checked_add(1) {
                    return false;
                }
                (edge.theirs, edge.ready) = (number, true);
                self.advance(list);
            }
            Join::Failed { number, error } => {
                if number < edge.theirs || number == edge.theirs && !edge.ready {
                    return false;
                }
                let error = decode_error_code(error.into());
                (edge.theirs, edge.ready, edge.failed, edge.error) = (number, false, number, Some(error));
                let ended = edge.ours <= number;
                if ended && under_way.is_some_and(|attempt| attempt.neighbours().any(|peer| peer == from)) {
                    self.fail(list, error, "a member left the group");
                    self.advance(list);
                }
            }
            Join::Agreed(name) => {
                (edge.theirs, edge.ready) = (edge.theirs.saturating_add(1), false);
                let waits = under_way.is_some_and(|attempt| attempt.above == Some(from));
                let ready = under_way.is_some_and(|attempt| attempt.ready);
                if waits && ready && edge.theirs == edge.ours {
                    self.agree(list, name);
                    self.advance(list);
                } else if edge.theirs > edge.ours || waits && edge.theirs == edge.ours {
                    return false; // The message refers to an attempt that was not ready.
                } else {
                    self.deeds.push_back(JoinAction::Break { to: from, tag: tag_of(list, name) });
                }
            }
        }
        true
    }

    /// Handles the end of the connection to this peer, or the failure to connect.
    pub(crate) fn gone(&mut self, from: ConnectionId, error: ErrorCode, why: &str) {
        self.edges.remove(&from);
        // A new process at the same address must not receive messages that were meant for this peer.
        self.deeds.retain(|join_action| !matches!(join_action, JoinAction::Say { to, .. } | JoinAction::Break { to, .. } if *to == from));
        self.fail_with(from, error, &format!("{why} (a member of the group)"));
    }

    /// Handles a peer that the other members identify differently. Their identifiers of the lists that contain it
    /// differ too.
    pub(crate) fn handle_address_mismatch(&mut self, peer: ConnectionId, why: &str) {
        self.fail_with(peer, ErrorCode::Unreachable, why);
    }

    /// Fails all attempts that are under way and wait for this peer.
    fn fail_with(&mut self, peer: ConnectionId, error: ErrorCode, why: &str) {
        let waits = |attempt: &JoinAttempt| attempt.neighbours().any(|neighbour| neighbour == peer);
        let lists = self.lines.iter().filter(|(_, line)| line.front().is_some_and(waits));
        for list in lists.map(|(list, _)| *list).collect::<Vec<_>>() {
            self.fail(list, error, why);
            self.advance(list);
        }
    }

    /// Continues the first attempt of a list and, if that has ended, the next ones.
    fn advance(&mut self, list: u64) {
        while let Some(line) = self.lines.get_mut(&list) {
            let Some(attempt) = line.front_mut() else {
                self.lines.remove(&list);
                return;
            };
            if !std::mem::replace(&mut attempt.begun, true) {
                let left = attempt.left;
                let mut over = None;
                for peer in attempt.neighbours() {
                    over = self.edges.entry(peer).or_default().joined(list).begin().or(over);
                    self.deeds.push_back(JoinAction::Reach(peer));
                }
                if left {
                    self.fail(list, LEFT.0, LEFT.1);
                    continue;
                }
                if let Some(error) = over {
                    self.fail(list, error, "a member had already left the group");
                    continue;
                }
            }
            let edge = |peer: &ConnectionId| self.edges.get(peer).and_then(|edges| edges.get(list));
            let is_ready = |peer| edge(peer).is_some_and(|edge| edge.ready && edge.theirs == edge.ours);
            if attempt.ready || !attempt.below.iter().all(is_ready) {
                return;
            }
            attempt.ready = true;
            let Some(above) = attempt.above else {
                let name = attempt.name;
                self.agree(list, name);
                continue;
            };
            let number = edge(&above).map_or(0, |edge| edge.ours);
            self.deeds.push_back(JoinAction::Say { to: above, list, said: Join::Ready(number) });
            return;
        }
    }

    /// Completes the first attempt of a list.
    fn agree(&mut self, list: u64, name: u64) {
        let Some(attempt) = self.lines.get_mut(&list).and_then(VecDeque::pop_front) else { return };
        for to in attempt.below {
            self.deeds.push_back(JoinAction::Say { to, list, said: Join::Agreed(name) });
        }
        self.deeds.push_back(JoinAction::Agreed { group: attempt.group, tag: tag_of(list, name) });
    }

    /// Fails the first attempt of a list.
    fn fail(&mut self, list: u64, error: ErrorCode, why: &str) {
        let Some(attempt) = self.lines.get_mut(&list).and_then(VecDeque::pop_front) else { return };
        for to in attempt.neighbours() {
            // A peer is not notified after its connection has ended.
            let Some(edge) = self.edges.get(&to).and_then(|edges| edges.get(list)) else { continue };
            let said = Join::Failed { number: edge.ours, error: error.errno() as u16 };
            self.deeds.push_back(JoinAction::Say { to, list, said });
        }
        if !attempt.left {
            self.deeds.push_back(JoinAction::Failed { group: attempt.group, error, why: why.to_owned() });
        }
    }
}

/// Returns the error that a member reported, from its number in the message.
pub(crate) fn decode_error_code(number: u32) -> ErrorCode {
    use ErrorCode::{Canceled, Closed, NotConnected, PeerDied, Protocol, Refused, TimedOut, Truncated, Unreachable};
    let codes = [Canceled, Closed, NotConnected, PeerDied, Protocol, Refused, TimedOut, Truncated, Unreachable];
    codes.into_iter().find(|code| code.errno() as u32 == number).unwrap_or(PeerDied)
}
