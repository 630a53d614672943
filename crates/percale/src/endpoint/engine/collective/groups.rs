//! All groups of an endpoint, and what is remembered of those that are gone or yet to be.

use std::collections::{HashMap, HashSet, VecDeque};

use super::group::Group;
use super::running::Scratch;
use crate::collective::{Chunks, GroupId, Joins};
use crate::completion::entry::ErrorCode;
use crate::endpoint::engine::types::{Receive, Unexpected};
use crate::endpoint::matching::Matching;
use crate::table::{Id, Table};
use crate::transport::Connection;

/// Broken groups that are remembered when they are gone.
const REMEMBERED: usize = 1024;
/// How many groups that are not here yet one peer may have given up.
const HEARD: usize = 64;

/// What can go on, once the links are done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// What joins want done.
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
    /// What can go on.
    pub(crate) ready: VecDeque<Ready>,
    /// Somebody further up makes them go on.
    pub(crate) running: bool,
    /// What is being combined; made when something first is.
    pub(crate) chunks: Option<Box<Chunks>>,
    /// Groups that are being joined.
    pub(crate) joins: Joins,
    /// Tags of groups that are broken.
    broken: HashSet<u64>,
    /// The same, the oldest first.
    remembered: VecDeque<u64>,
    /// Groups that are not here yet, and who gave them up, the oldest first. Anybody may say so; it counts if he is a member.
    heard: VecDeque<(u64, Connection)>,
    stamp: u32,
}

impl Collectives {
    /// The group with this name.
    pub(crate) fn get(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(Id::from_u64(id.to_u64())).filter(|group| !group.left)
    }

    /// A new group of these members. It has no tag until they have agreed on one.
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

    /// A number for a group of this endpoint's to be named by: no other of this life has it.
    pub(crate) const fn stamp(&self) -> u32 {
        self.stamp
    }

    /// The members of a group have agreed on its tag.
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

    /// The connection to this peer broke. The peer may have given up the groups that are being joined here, and have said so over that
    /// connection; what it says of them from now on may be a successor's. Such a group is broken if it comes about. A peer that said goodbye may
    /// have been a member's predecessor only, which concerns no group.
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

    /// A group is over.
    pub(crate) fn close(&mut self, index: Id<Group>) {
        let Some(group) = self.groups.remove(index) else { return };
        if group.named {
            self.by_tag.remove(&group.tag);
        }
    }

    /// The endpoint closes: nothing is joined any more, and nothing goes on.
    pub(crate) fn end(&mut self) {
        (self.messages, self.joins) = (Matching::new(), Joins::default());
        self.ready.clear();
        self.heard.clear();
    }

    /// Messages with this tag are for nobody any more.
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

    /// Somebody gives up a group that is not here yet. He makes us forget nothing but what he said himself.
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

    /// Whether no group is open, and nothing is remembered of any that is yet to be.
    pub(crate) fn is_idle(&self) -> bool {
        self.groups.is_empty() && self.heard.is_empty()
    }

    /// A connection is over, and its number may be another's next.
    pub(crate) fn forget_heard(&mut self, from: Connection) {
        self.heard.retain(|(_, who)| *who != from);
    }

    /// Whether they are.
    pub(crate) fn is_broken(&self, tag: u64) -> bool {
        self.broken.contains(&tag)
    }
}
