//! A group that an endpoint has joined, or is joining.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::VecDeque;

use super::running::{Running, Scratch};
use crate::collective::Program;
use crate::completion::entry::ErrorCode;
use crate::transport::Connection;

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    /// A digest of its members' list.
    pub(super) list: u64,
    /// The tag of its messages, once the members have agreed on it; before that nothing of the group runs.
    pub(super) tag: u64,
    /// Whether the members have agreed on the tag.
    pub(super) named: bool,
    /// Its members' slots, by rank.
    pub(super) members: Box<[Connection]>,
    pub(super) rank: usize,
    /// The number of operations so far.
    pub(super) sequence: u32,
    pub(super) running: Option<Running>,
    /// The operations that were posted behind it.
    pub(super) queue: VecDeque<Running>,
    /// Why no operation of the group will succeed any more, if it is broken.
    pub(super) broken: Option<(ErrorCode, String)>,
    /// Whether the members were notified that it is broken.
    pub(super) told: bool,
    /// Members that have closed their endpoints.
    pub(super) gone: Vec<Connection>,
    /// The connection to a member ended while the group had no tag, and why: that member may have given the group up, or be another one by now.
    pub(super) lost: Option<(ErrorCode, String)>,
    /// Whether the application has left it. Then it is removed when its operations have ended.
    pub(super) left: bool,
    pub(super) scratch: Scratch,
    /// The program of the operation that ended last: the next operation usually does the same.
    pub(super) spare: Option<Box<Program>>,
}

impl Group {
    /// Marks the group as broken: no operation will succeed any more.
    pub(super) fn breaks(&mut self, code: ErrorCode, why: &str) {
        self.broken.get_or_insert_with(|| (code, why.to_owned()));
    }
}
