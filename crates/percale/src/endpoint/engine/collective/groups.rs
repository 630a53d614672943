//! All groups of an endpoint, and what is remembered of those that are gone or yet to be.

use std::collections::{HashMap, HashSet, VecDeque};

use slab::Slab;

use super::group::Group;
use super::running::Scratch;
use crate::collective::{Chunks, GroupId, Joins};
use crate::completion::entry::ErrorCode;
use crate::endpoint::engine::types::{Receive, Unexpected};
use crate::endpoint::matching::Matching;
use crate::transport::Connection;

/// Broken groups that are remembered when they are gone.
const REMEMBERED: usize = 1024;
/// How many groups that are not here yet one peer may have given up.
const HEARD: usize = 64;

/// All groups of an endpoint.
#[derive(Debug)]
pub(crate) struct Collectives {
    pub(crate) groups: Slab<Group>,
    pub(crate) by_tag: HashMap<u64, usize>,
    /// Receives and messages of groups.
    pub(crate) messages: Matching<Receive, Unexpected>,
    /// Groups that can go on.
    pub(crate) ready: VecDeque<usize>,
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

impl Default for Collectives {
    fn default() -> Self {
        Self {
            groups: Slab::new(),
            by_tag: HashMap::new(),
            messages: Matching::new(),
            ready: VecDeque::new(),
            running: false,
            chunks: None,
            joins: Joins::default(),
            broken: HashSet::new(),
            remembered: VecDeque::new(),
            heard: VecDeque::new(),
            stamp: 0,
        }
    }
}

impl Collectives {
    /// The group with this name.
    pub(crate) fn get(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id.index as usize).filter(|group| group.id == id && !group.left)
    }

    /// A new group of these members. It has no tag until they have agreed on one.
    pub(crate) fn open(&mut self, list: u64, members: Box<[Connection]>, rank: usize) -> usize {
        self.stamp = self.stamp.wrapping_add(1);
        let entry = self.groups.vacant_entry();
        let index = entry.key();
        entry.insert(Group {
            id: GroupId { index: index as u32, stamp: self.stamp },
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
            left: false,
            scratch: Scratch::default(),
            spare: None,
        });
        index
    }

    /// A number for a group of this endpoint's to be named by: no other of this life has it.
    pub(crate) const fn stamp(&self) -> u32 {
        self.stamp
    }

    /// The members of a group have agreed on its tag.
    pub(crate) fn name(&mut self, index: usize, tag: u64) {
        let group = &mut self.groups[index];
        (group.tag, group.named) = (tag, true);
        let gave_up = |(of, who): &(u64, Connection)| *of == tag && group.members.contains(who);
        if self.heard.iter().any(gave_up) {
            group.breaks(ErrorCode::PeerDied, "a member had given the group up already");
        }
        self.heard.retain(|(of, _)| *of != tag);
        self.by_tag.insert(tag, index);
    }

    /// A group is over.
    pub(crate) fn close(&mut self, index: usize) {
        let group = self.groups.remove(index);
        if group.named {
            self.by_tag.remove(&group.tag);
        }
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
