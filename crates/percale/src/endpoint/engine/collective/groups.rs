//! All groups of an endpoint, with records of groups that are gone and of groups that do not exist yet.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::{HashMap, HashSet, VecDeque};

use super::group::Group;
use super::running::Scratch;
use crate::collective::{Chunks, GroupId, Joins};
use crate::completion::entry::ErrorCode;
use crate::endpoint::engine::types::{Receive, Unexpected};
use crate::endpoint::matching::Matching;
use crate::table::{Id, Table};
use crate::transport::Connection;

/// The number of broken groups that are remembered after they are gone.
const REMEMBERED: usize = 1024;
/// The number of groups that one peer may have given up before they exist here.
const HEARD: usize = 64;

/// Work that can go on after the links were polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// The actions that joins ask for.
    Joins,
    /// This group, unless it is gone by then.
    Group(Id<Group>),
}

/// All groups of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Collectives {
    pub(crate) groups: Table<Group>,
    pub(crate) by_tag: HashMap<u64, Id<Group>>,
    /// Receives and messages of groups.
    pub(crate) messages: Matching<Receive, Unexpected>,
    /// Groups and joins that can go on.
    pub(crate) ready: VecDeque<Ready>,
    /// Whether a caller further up the stack is advancing them.
    pub(crate) running: bool,
    /// Memory for values that are being combined. Made at first use.
    pub(crate) chunks: Option<Box<Chunks>>,
    /// Groups that are being joined.
    pub(crate) joins: Joins,
    /// Tags of groups that are broken.
    broken: HashSet<u64>,
    /// The tags in `broken`, the oldest first.
    remembered: VecDeque<u64>,
    /// Tags of groups that do not exist here yet, with the peers that gave them up, the oldest first. Any peer may send such a notice; it
    /// counts only if the peer is a member of the group.
    heard: VecDeque<(u64, Connection)>,
    stamp: u32,
}

impl Collectives {
    /// Returns the group with this name.
    pub(crate) fn get(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(Id::from_u64(id.to_u64())).filter(|group| !group.left)
    }

    /// Creates a group of these members. It has no tag until they have agreed on one.
    pub(crate) fn open(&mut self, list: u64, members: Box<[Connection]>, rank: usize) -> Id<Group> {
        self.stamp = self.stamp.wrapping_add(1);
        self.groups.insert(Group {
            list,
            tag: 0,
            named: false,
            members,
            rank,
            sequence: 0,
            running: None,
            queue: VecDeque::new(),
            broken: None,
            told: false,
            gone: Vec::new(),
            lost: None,
            left: false,
            scratch: Scratch::default(),
            spare: None,
        })
    }

    /// Returns a number that names the newest group of this endpoint. No other group of this incarnation has it.
    pub(crate) const fn stamp(&self) -> u32 {
        self.stamp
    }

    /// Sets the tag of a group, on which the members have agreed.
    pub(crate) fn name(&mut self, index: Id<Group>, tag: u64) {
        let Some(group) = self.groups.get_mut(index) else { return };
        (group.tag, group.named) = (tag, true);
        let gave_up = |(of, who): &(u64, Connection)| *of == tag && group.members.contains(who);
        if self.heard.iter().any(gave_up) {
            group.breaks(ErrorCode::PeerDied, "a member had given the group up already");
        }
        self.heard.retain(|(of, _)| *of != tag);
        if let Some((code, why)) = group.lost.take() {
            group.breaks(code, &why);
        }
        self.by_tag.insert(tag, index);
    }

    /// Handles the end of the connection to this peer. The peer may have given up groups that are being joined here, and have announced
    /// that over this connection; announcements that follow may come from a successor of the peer. Such a group is broken as soon as its
    /// members agree on a tag. A peer that closed the connection in an orderly way may have been only a predecessor of a member, which
    /// concerns no group.
    pub(crate) fn lost(&mut self, from: Connection, error: ErrorCode, why: &str) {
        if error == ErrorCode::Closed {
            return;
        }
        let joins = &self.joins;
        let is_joining = |index: Id<Group>, group: &Group| {
            !group.named && group.members.contains(&from) && joins.is_under_way(group.list, index.to_u64())
        };
        for (index, group) in self.groups.iter_mut() {
            if is_joining(index, group) {
                group.lost.get_or_insert_with(|| (error, format!("the connection to a member ended: {why}")));
            }
        }
    }

    /// Removes a group that is over.
    pub(crate) fn close(&mut self, index: Id<Group>) {
        let Some(group) = self.groups.remove(index) else { return };
        if group.named {
            self.by_tag.remove(&group.tag);
        }
    }

    /// Ends all joins and all pending work, because the endpoint closes.
    pub(crate) fn end(&mut self) {
        (self.messages, self.joins) = (Matching::new(), Joins::default());
        self.ready.clear();
        self.heard.clear();
    }

    /// Records the tag of a broken group: messages with this tag are not received any more.
    pub(crate) fn remember_broken(&mut self, tag: u64) {
        if self.broken.insert(tag) {
            self.remembered.push_back(tag);
        }
        if self.remembered.len() > REMEMBERED
            && let Some(oldest) = self.remembered.pop_front()
        {
            self.broken.remove(&oldest);
        }
    }

    /// Records that a peer gave up a group that does not exist here yet. At the limit, only the oldest record of the same peer is dropped,
    /// so no peer can displace the records of another.
    pub(crate) fn hear(&mut self, tag: u64, from: Connection) {
        let said = |(_, who): &&(u64, Connection)| *who == from;
        if self.heard.contains(&(tag, from)) {
            return;
        }
        if self.heard.iter().filter(said).count() >= HEARD
            && let Some(oldest) = self.heard.iter().position(|(_, who)| *who == from)
        {
            self.heard.remove(oldest);
        }
        self.heard.push_back((tag, from));
    }

    /// Returns whether no group is open, and no record of a group that does not exist yet is kept.
    pub(crate) fn is_idle(&self) -> bool {
        self.groups.is_empty() && self.heard.is_empty()
    }

    /// Drops the records of a peer after its connection has ended, since another peer may get its slot number.
    pub(crate) fn forget_heard(&mut self, from: Connection) {
        self.heard.retain(|(_, who)| *who != from);
    }

    /// Returns whether a broken group with this tag is remembered.
    pub(crate) fn is_broken(&self, tag: u64) -> bool {
        self.broken.contains(&tag)
    }
}
