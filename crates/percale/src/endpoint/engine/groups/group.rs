//! A group that an endpoint has joined, or is joining.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::VecDeque;

use super::running::{RunningOperation, Scratch};
use crate::collective::Program;
use crate::completion::entry::ErrorCode;
use crate::transport::ConnectionId;

/// A group.
#[derive(Debug)]
pub(crate) struct GroupState {
    /// A digest of the list of members.
    pub(super) list: u64,
    /// The tag of the group's messages, once the members have agreed on it. No operation runs before that.
    pub(super) tag: u64,
    /// Whether the members have agreed on the tag.
    pub(super) named: bool,
    /// The members' slots, by rank.
    pub(super) members: Box<[ConnectionId]>,
    pub(super) rank: usize,
    /// The number of operations so far.
    pub(super) sequence: u32,
    pub(super) running: Option<RunningOperation>,
    /// The operations that were posted after the running one.
    pub(super) queue: VecDeque<RunningOperation>,
    /// The reason why the group is broken, if it is. No operation of a broken group succeeds.
    pub(super) broken: Option<(ErrorCode, String)>,
    /// Whether the members were notified that the group is broken.
    pub(super) notified: bool,
    /// Members that have closed their endpoints.
    pub(super) gone: Vec<ConnectionId>,
    /// Set if the connection to a member ended while the group had no tag: the reason why it ended. That member may
    /// have given the group up, or may be another peer by now.
    pub(super) lost: Option<(ErrorCode, String)>,
    /// Whether the application has left the group. Then the group is removed when its operations have ended.
    pub(super) left: bool,
    pub(super) scratch: Scratch,
    /// The program of the operation that ended last. The next operation usually has the same program.
    pub(super) spare: Option<Box<Program>>,
}

impl GroupState {
    /// Marks the group as broken: no operation will succeed any more.
    pub(super) fn breaks(&mut self, code: ErrorCode, why: &str) {
        self.broken.get_or_insert_with(|| (code, why.to_owned()));
    }

    /// Returns whether no operation of this member will take a message with this data: the operation with its number
    /// has ended, or has another kind or shape. Such a message arrives only if members posted different operations,
    /// because an operation ends when it has received all its messages.
    pub(super) fn is_stray(&self, data: u64) -> bool {
        let sequence = data as u32;
        // The difference is negative if the message is for an earlier operation. The numbers may wrap.
        let ahead = |of: u32| sequence.wrapping_sub(of) as i32;
        match &self.running {
            Some(running) if running.sequence == sequence => running.data != data,
            Some(running) => ahead(running.sequence) < 0,
            None => ahead(self.sequence) <= 0,
        }
    }
}
