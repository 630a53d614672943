//! Joining: how the members of a list come to be a group.
//!
//! Nothing here sends: what is to be done is left in [`Joins::deeds`], in order, for whoever has the links.
//!
//! # How
//! The members are a tree, by rank. A member that has joined, and all below which have, says so to the one above it. When the one at the top
//! has heard that of everybody it gives the group a name, which goes down the tree: with it a member knows that all have joined. Names are
//! digests of the namer's incarnation and of a count of its own, so that none is given twice, and whatever is left of an earlier group of the same
//! members, or of a member's earlier life, is nobody's any more. Joins of one list take their turn.
//!
//! # Which joins belong together
//! Every join of a list is an *attempt*. On each connection of the tree both ends number theirs, from 1; those of one number belong together.
//! A connection ends with either process, so a member that was started anew and one that was here all the time count from 1 again. Where an
//! attempt fails that is said on all connections, with the number: it ends the other end's of that number, or a lower one, be it under way or
//! yet to come. One that is left while others of its list are before it fails when its turn comes, so that both ends count it. Who comes late and finds that several have failed takes note of all of them at once: its next one belongs to the
//! other's next. So nobody waits for a join that is over, and members that try again, however often each, find each other.
//!
//! A name may arrive where the attempt has failed meanwhile: the one that sent it is in a group that will never be, and is told.
//! A connection that ends ends the attempts of its members at both ends; of a member that was nobody's neighbour only its neighbours need hear.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::Digest;
use super::schedule::neighbours;
use crate::completion::entry::ErrorCode;
use crate::transport::Connection;
use crate::wire::join::Join;

/// What is to be done for joins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// A member is waited for: whoever waits for it hears of its death, and that takes a connection.
    Reach(Connection),
    /// Something is said to a member about this list.
    Say { to: Connection, list: u64, said: Join },
    /// A group was agreed on; its messages have this tag.
    Agreed { group: u64, tag: u64 },
    /// It will not be.
    Failed { group: u64, error: ErrorCode, why: String },
    /// This member is in a group that is to be broken.
    Break { to: Connection, tag: u64 },
}

/// One join.
#[derive(Debug)]
struct Attempt {
    group: u64,
    /// What the group is called if it is this member that names it.
    name: u64,
    above: Option<Connection>,
    below: Box<[Connection]>,
    begun: bool,
    /// The one above was told that all are here.
    ready: bool,
    /// It was left before its turn came, which its group has been told; the other members are when it comes.
    left: bool,
}

impl Attempt {
    fn neighbours(&self) -> impl Iterator<Item = Connection> {
        self.above.into_iter().chain(self.below.iter().copied())
    }
}

/// What both ends of a connection have said of a list since it is there, or is being made.
#[derive(Debug, Default)]
struct Edge {
    /// The number of our latest attempt.
    ours: u64,
    /// Of the peer's latest that we know of.
    theirs: u64,
    /// That one is ready.
    ready: bool,
    /// The latest of the peer's that failed, or 0; and why.
    failed: u64,
    error: Option<ErrorCode>,
}

impl Edge {
    /// An attempt of ours begins; if the peer's has failed, says why.
    fn begin(&mut self) -> Option<ErrorCode> {
        self.ours = self.ours.saturating_add(1);
        if self.failed < self.ours {
            return None;
        }
        self.ours = self.failed;
        self.error
    }
}

/// Lists of which a peer may have spoken before we have joined any of them.
const AHEAD: usize = 1 << 14;

/// What was said over one connection.
#[derive(Debug, Default)]
struct Edges {
    /// By list.
    lists: HashMap<u64, Edge>,
    /// Lists that only the peer has spoken of.
    ahead: usize,
}

impl Edges {
    fn get(&self, list: u64) -> Option<&Edge> {
        self.lists.get(&list)
    }

    /// Of a list that the peer speaks of; `None` if those that we have never joined are too many.
    fn heard(&mut self, list: u64) -> Option<&mut Edge> {
        match self.lists.entry(list) {
            Entry::Occupied(edge) => Some(edge.into_mut()),
            Entry::Vacant(_) if self.ahead == AHEAD => None,
            Entry::Vacant(place) => {
                self.ahead = self.ahead.saturating_add(1);
                Some(place.insert(Edge::default()))
            }
        }
    }

    /// Of a list that we join.
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
    edges: HashMap<Connection, Edges>,
    /// Those of each list that is being joined; the first is under way.
    lines: HashMap<u64, VecDeque<Attempt>>,
    /// What is to be done, the first first.
    pub(crate) deeds: VecDeque<Deed>,
}

/// What a join ends with that is left.
const LEFT: (ErrorCode, &str) = (ErrorCode::Canceled, "the group was left before all had joined");

/// The tag of a group.
fn tag_of(list: u64, name: u64) -> u64 {
    let mut digest = Digest::default();
    [list, name].into_iter().for_each(|word| digest.add(&word.to_le_bytes()));
    digest.end()
}

impl Joins {
    /// This group's members are to be joined, as the next of those with this list.
    pub(crate) fn join(&mut self, list: u64, group: u64, name: u64, members: &[Connection], rank: usize) {
        let (above, below) = neighbours(members.len(), rank);
        let above = above.map(|rank| members[rank]);
        let below = below.into_iter().map(|rank| members[rank]).collect();
        let name = Join::name(name);
        let attempt = Attempt { group, name, above, below, begun: false, ready: false, left: false };
        self.lines.entry(list).or_default().push_back(attempt);
        self.go_on(list);
    }

    /// A group is left before it is there.
    pub(crate) fn leave(&mut self, list: u64, group: u64) {
        let Some(line) = self.lines.get_mut(&list) else { return };
        let Some(at) = line.iter().position(|attempt| attempt.group == group && !attempt.left) else { return };
        let (error, why) = LEFT;
        if at > 0 {
            line[at].left = true;
            self.deeds.push_back(Deed::Failed { group, error, why: why.to_owned() });
        } else {
            self.fail(list, error, why);
            self.go_on(list);
        }
    }

    /// Whether this group is the one of its list that is being joined now.
    pub(crate) fn is_under_way(&self, list: u64, group: u64) -> bool {
        let first = self.lines.get(&list).and_then(VecDeque::front);
        first.is_some_and(|attempt| attempt.begun && attempt.group == group)
    }

    /// A peer says this of a list. False if it makes no sense, or if there are too many that nobody here has joined.
    #[must_use]
    pub(crate) fn hear(&mut self, list: u64, from: Connection, said: Join) -> bool {
        let Some(edge) = self.edges.entry(from).or_default().heard(list) else { return false };
        let under_way = self.lines.get(&list).and_then(VecDeque::front);
        match said {
            Join::Ready(number) => {
                if Some(number) != edge.theirs.checked_add(1) {
                    return false;
                }
                (edge.theirs, edge.ready) = (number, true);
                self.go_on(list);
            }
            Join::Failed { number, error } => {
                if number < edge.theirs || number == edge.theirs && !edge.ready {
                    return false;
                }
                let error = heard_code(error.into());
                (edge.theirs, edge.ready, edge.failed, edge.error) = (number, false, number, Some(error));
                let ended = edge.ours <= number;
                if ended && under_way.is_some_and(|attempt| attempt.neighbours().any(|peer| peer == from)) {
                    self.fail(list, error, "a member gave the group up");
                    self.go_on(list);
                }
            }
            Join::Agreed(name) => {
                (edge.theirs, edge.ready) = (edge.theirs.saturating_add(1), false);
                let waits = under_way.is_some_and(|attempt| attempt.above == Some(from));
                let ready = under_way.is_some_and(|attempt| attempt.ready);
                if waits && ready && edge.theirs == edge.ours {
                    self.agree(list, name);
                    self.go_on(list);
                } else if edge.theirs > edge.ours || waits && edge.theirs == edge.ours {
                    return false; // To what we were not ready for.
                } else {
                    self.deeds.push_back(Deed::Break { to: from, tag: tag_of(list, name) });
                }
            }
        }
        true
    }

    /// The connection to this peer is over, or did not come about.
    pub(crate) fn gone(&mut self, from: Connection, error: ErrorCode, why: &str) {
        self.edges.remove(&from);
        // What it was to be told is nothing to whoever is there next.
        self.deeds.retain(|deed| !matches!(deed, Deed::Say { to, .. } | Deed::Break { to, .. } if *to == from));
        self.fail_with(from, error, &format!("a member of the group is gone: {why}"));
    }

    /// The others know this peer by another name, and so the lists that it is in.
    pub(crate) fn misnamed(&mut self, peer: Connection, why: &str) {
        self.fail_with(peer, ErrorCode::Unreachable, why);
    }

    /// All attempts that are under way and wait for this peer fail.
    fn fail_with(&mut self, peer: Connection, error: ErrorCode, why: &str) {
        let waits = |attempt: &Attempt| attempt.neighbours().any(|neighbour| neighbour == peer);
        let lists = self.lines.iter().filter(|(_, line)| line.front().is_some_and(waits));
        for list in lists.map(|(list, _)| *list).collect::<Vec<_>>() {
            self.fail(list, error, why);
            self.go_on(list);
        }
    }

    /// Goes on with the first attempt of a list, and, if that is over, with the next.
    fn go_on(&mut self, list: u64) {
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
                    self.deeds.push_back(Deed::Reach(peer));
                }
                if left {
                    self.fail(list, LEFT.0, LEFT.1);
                    continue;
                }
                if let Some(error) = over {
                    self.fail(list, error, "a member had given the group up already");
                    continue;
                }
            }
            let edge = |peer: &Connection| self.edges.get(peer).and_then(|edges| edges.get(list));
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
            self.deeds.push_back(Deed::Say { to: above, list, said: Join::Ready(number) });
            return;
        }
    }

    /// The first attempt of a list has succeeded.
    fn agree(&mut self, list: u64, name: u64) {
        let Some(attempt) = self.lines.get_mut(&list).and_then(VecDeque::pop_front) else { return };
        for to in attempt.below {
            self.deeds.push_back(Deed::Say { to, list, said: Join::Agreed(name) });
        }
        self.deeds.push_back(Deed::Agreed { group: attempt.group, tag: tag_of(list, name) });
    }

    /// It has failed.
    fn fail(&mut self, list: u64, error: ErrorCode, why: &str) {
        let Some(attempt) = self.lines.get_mut(&list).and_then(VecDeque::pop_front) else { return };
        for to in attempt.neighbours() {
            // Who is gone is told nothing.
            let Some(edge) = self.edges.get(&to).and_then(|edges| edges.get(list)) else { continue };
            let said = Join::Failed { number: edge.ours, error: error.errno() as u16 };
            self.deeds.push_back(Deed::Say { to, list, said });
        }
        if !attempt.left {
            self.deeds.push_back(Deed::Failed { group: attempt.group, error, why: why.to_owned() });
        }
    }
}

/// The error that a member told.
pub(crate) fn heard_code(number: u32) -> ErrorCode {
    use ErrorCode::{Canceled, Closed, NotConnected, PeerDied, Protocol, Refused, TimedOut, Truncated, Unreachable};
    let codes = [Canceled, Closed, NotConnected, PeerDied, Protocol, Refused, TimedOut, Truncated, Unreachable];
    codes.into_iter().find(|code| code.errno() as u32 == number).unwrap_or(PeerDied)
}
