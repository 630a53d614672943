//! The actions that links perform next, in the order in which they were decided.
//!
//! Links are borrowed while they hand frames to the engine. So the actions that a frame requests are put here, and are
//! performed when the link is free again.

use std::collections::VecDeque;

use super::super::types::LinkAction;
use crate::transport::ConnectionId;

/// The actions that links perform next.
#[derive(Debug, Default)]
pub(super) struct Outbox(VecDeque<(ConnectionId, LinkAction)>);

impl Outbox {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn push(&mut self, to: ConnectionId, action: LinkAction) {
        self.0.push_back((to, action));
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<(ConnectionId, LinkAction)> {
        self.0.pop_front()
    }

    /// Returns whether the next action is a frame for this connection.
    #[inline]
    pub(super) fn continues(&self, to: ConnectionId) -> bool {
        self.0.front().is_some_and(|(next, action)| {
            *next == to && matches!(action, LinkAction::Frame(_) | LinkAction::Bytes(..) | LinkAction::Notice(..))
        })
    }

    /// Returns whether an action is for this connection.
    pub(super) fn names(&self, slot: ConnectionId) -> bool {
        self.0.iter().any(|(to, _)| *to == slot)
    }

    /// Drops the actions for a connection that has ended.
    pub(super) fn forget(&mut self, slot: ConnectionId) {
        self.0.retain(|(to, _)| *to != slot);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    #[cfg(any(test, feature = "sim"))]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
