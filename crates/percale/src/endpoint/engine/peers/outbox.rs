//! The actions that links perform next, in the order in which they were decided.
//!
//! Links are borrowed while they hand frames to the engine. So the actions that a frame requests are put here, and are
//! performed when the link is free again.

use std::collections::VecDeque;

use super::super::types::Action;
use crate::transport::Connection;

/// The actions that links perform next.
#[derive(Debug, Default)]
pub(super) struct Outbox(VecDeque<(Connection, Action)>);

impl Outbox {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn push(&mut self, to: Connection, action: Action) {
        self.0.push_back((to, action));
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Connection, Action)> {
        self.0.pop_front()
    }

    /// Returns whether the next action is a frame for this connection.
    #[inline]
    pub(super) fn continues(&self, to: Connection) -> bool {
        self.0.front().is_some_and(|(next, action)| {
            *next == to && matches!(action, Action::Frame(_) | Action::Bytes(..) | Action::Notice(..))
        })
    }

    /// Returns whether an action is for this connection.
    pub(super) fn names(&self, slot: Connection) -> bool {
        self.0.iter().any(|(to, _)| *to == slot)
    }

    /// Drops the actions for a connection that has ended.
    pub(super) fn forget(&mut self, slot: Connection) {
        self.0.retain(|(to, _)| *to != slot);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
