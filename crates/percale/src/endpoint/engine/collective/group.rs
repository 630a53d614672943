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
    pub(crate) list: u64,
    /// The tag of its messages, once the members have agreed on it; before that nothing of the group runs.
    pub(crate) tag: u64,
    /// Whether the members have agreed on the tag.
    pub(crate) named: bool,
    /// Its members' slots, by rank.
    pub(crate) members: Box<[Connection]>,
    pub(crate) rank: usize,
    /// The number of operations so far.
    pub(crate) sequence: u32,
    pub(crate) running: Option<Running>,
    /// The operations that were posted behind it.
    pub(crate) queue: VecDeque<Running>,
    /// Why no operation of the group will succeed any more, if it is broken.
    pub(crate) broken: Option<(ErrorCode, String)>,
    /// Whether the members were notified that it is broken.
    pub(crate) told: bool,
    /// Members that have closed their endpoints.
    pub(crate) gone: Vec<Connection>,
    /// The connection to a member ended while the group had no tag, and why: that member may have given the group up, or be another one by now.
    pub(crate) lost: Option<(ErrorCode, String)>,
    /// Whether the application has left it. Then it is removed when its operations have ended.
    pub(crate) left: bool,
    pub(crate) scratch: Scratch,
    /// The program of the operation that ended last: the next operation usually does the same.
    pub(crate) spare: Option<Box<Program>>,
}

impl Group {
    /// Marks the group as broken: no operation will succeed any more.
    pub(crate) fn breaks(&mut self, code: ErrorCode, why: &str) {
        self.broken.get_or_insert_with(|| (code, why.to_owned()));
    }
}
