//! Dead keys, and the reports that wait for them. A key is *dead* if it was invalidated while peers were still using
//! its window. These peers are the *users* of the key. The report is made when all of them have finished.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;
use std::time::Instant;

use super::{DrainingItem, DrainingOperations};
use crate::completion::entry::Entry;
use crate::endpoint::engine::types::{Notify, Receive};
use crate::region::window::WindowCell;
use crate::transport::ConnectionId;
use crate::wire::head::{Flags, Head};

/// A dead key that still has users.
#[derive(Debug)]
pub(in super::super) struct PendingRevocation {
    cell: Arc<WindowCell>,
    key: u64,
    news: RevocationOutcome,
}

/// The report that is made when the users of a dead key have finished.
#[derive(Debug)]
pub(in super::super) enum RevocationOutcome {
    /// The completion of a local operation, with an error if the users do not finish in time.
    Operation { to: ConnectionId, notify: Notify, entry: Entry, until: Option<Instant> },
    /// No report, because the message that invalidated the key has no receive yet.
    Nothing { from: ConnectionId },
    /// The message that invalidated the key.
    Message { from: ConnectionId, head: Head, len: u64, receive: Receive },
}

/// The report that was waiting for a dead key when the endpoint closed.
#[derive(Debug)]
pub(in super::super) enum AbandonedReport {
    Operation(Notify, Entry),
    Nothing,
    Message(ConnectionId, Head, Receive),
}

impl PendingRevocation {
    /// Returns whether the wait has ended, so that the report can be made.
    pub(super) fn is_over(&self) -> bool {
        let late =
            matches!(&self.news, RevocationOutcome::Operation { until: Some(until), .. } if Instant::now() >= *until);
        late || self.cell.is_settled()
    }

    /// Returns whether no peer uses the key any more.
    pub(in super::super) fn is_settled(&self) -> bool {
        self.cell.is_settled()
    }

    /// Returns the report.
    pub(in super::super) fn into_outcome(self) -> RevocationOutcome {
        self.news
    }

    /// Ends the wait because the endpoint closes. Returns the local operation that has to end, or the receive of the
    /// message that invalidated the key.
    pub(in super::super) fn abandon(self) -> AbandonedReport {
        match self.news {
            RevocationOutcome::Operation { notify, entry, .. } => AbandonedReport::Operation(notify, entry),
            RevocationOutcome::Nothing { .. } => AbandonedReport::Nothing,
            RevocationOutcome::Message { from, head, receive, .. } => AbandonedReport::Message(from, head, receive),
        }
    }

    /// Removes the answer to the message if the message was sent by this peer, which has disconnected.
    fn peer_gone(&mut self, peer: ConnectionId) {
        if let RevocationOutcome::Message { from, head, .. } = &mut self.news
            && *from == peer
        {
            head.flags.remove(Flags::ACK);
        }
    }
}

impl DrainingOperations {
    /// Returns whether an earlier key of this window is dead and still has users.
    pub(in super::super) fn has_pending_revocation(&self, cell: &Arc<WindowCell>) -> bool {
        self.pending_revocations().any(|pending_revocation| Arc::ptr_eq(&pending_revocation.cell, cell))
    }

    /// Keeps the report of a local operation until the users of a key have finished, or until its timeout.
    pub(in super::super) fn await_operation(
        &mut self,
        cell: Arc<WindowCell>,
        key: u64,
        (to, notify, entry): (ConnectionId, Notify, Entry),
        until: Option<Instant>,
    ) {
        self.add(DrainingItem::Window(PendingRevocation {
            cell,
            key,
            news: RevocationOutcome::Operation { to, notify, entry, until },
        }));
    }

    /// Holds the message of this peer that invalidated a key until the users of the key have finished.
    pub(in super::super) fn await_message(&mut self, cell: Arc<WindowCell>, key: u64, from: ConnectionId) {
        self.add(DrainingItem::Window(PendingRevocation { cell, key, news: RevocationOutcome::Nothing { from } }));
    }

    /// Returns whether a message that invalidated a key can be reported now that its payload is in its buffer. If not,
    /// the message is kept here.
    pub(in super::super) fn may_report(
        &mut self,
        from: ConnectionId,
        head: &Head,
        len: u64,
        receive: &Receive,
    ) -> bool {
        let waits = |item: &DrainingItem| {
            matches!(item, DrainingItem::Window(PendingRevocation { key, news: RevocationOutcome::Nothing { from: who }, .. })
                if *key == head.data && *who == from)
        };
        let Some(at) = self.items.iter().position(waits) else { return true };
        let DrainingItem::Window(pending_revocation) = &mut self.items[at] else { return true };
        if pending_revocation.cell.is_settled() {
            self.items.swap_remove(at);
            return true;
        }
        let Receive { place, context, notify, multi } = *receive;
        let receive = Receive { place, context, notify, multi };
        pending_revocation.news = RevocationOutcome::Message { from, head: *head, len, receive };
        false
    }

    /// Handles the end of a connection: the messages of its peer are not answered.
    pub(in super::super) fn peer_gone(&mut self, peer: ConnectionId) {
        for item in &mut self.items {
            if let DrainingItem::Window(pending_revocation) = item {
                pending_revocation.peer_gone(peer);
            }
        }
    }

    /// Returns the number of waiting local operations on keys of this peer.
    pub(in super::super) fn operations_to(&self, peer: ConnectionId) -> usize {
        self.pending_revocations().filter(|pending_revocation| matches!(pending_revocation.news, RevocationOutcome::Operation { to, .. } if to == peer)).count()
    }

    fn pending_revocations(&self) -> impl Iterator<Item = &PendingRevocation> {
        self.items.iter().filter_map(|item| match item {
            DrainingItem::Window(pending_revocation) => Some(pending_revocation),
            DrainingItem::Link(_) => None,
        })
    }
}
