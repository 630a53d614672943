//! Dead keys, which are invalidated keys of windows that peers (their users) are still using, and the reports that are
//! made when these users have finished.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;
use std::time::Instant;

use super::{Left, LeftItem};
use crate::completion::entry::Entry;
use crate::endpoint::engine::types::{Notify, Receive};
use crate::region::window::Cell;
use crate::transport::Connection;
use crate::wire::head::{Flags, Head};

/// A dead key that still has users.
#[derive(Debug)]
pub(in super::super) struct Dying {
    cell: Arc<Cell>,
    key: u64,
    news: News,
}

/// The report that is made when the users of a dead key have finished.
#[derive(Debug)]
pub(in super::super) enum News {
    /// The end of a local operation, or its failure if the users do not finish in time.
    Operation { to: Connection, notify: Notify, entry: Entry, until: Option<Instant> },
    /// No report, because the message that invalidated the key has no receive yet.
    Nothing { from: Connection },
    /// The message that invalidated the key.
    Message { from: Connection, head: Head, len: u64, receive: Receive },
}

/// The report that was waiting for a dead key when the endpoint closed.
#[derive(Debug)]
pub(in super::super) enum Abandoned {
    Operation(Notify, Entry),
    Nothing,
    Message(Connection, Head, Receive),
}

impl Dying {
    /// Returns whether the wait has ended, so that the report can be made.
    pub(super) fn is_over(&self) -> bool {
        let late = matches!(&self.news, News::Operation { until: Some(until), .. } if Instant::now() >= *until);
        late || self.cell.is_settled()
    }

    /// Returns whether no peer uses the key any more.
    pub(in super::super) fn is_settled(&self) -> bool {
        self.cell.is_settled()
    }

    /// Returns the report.
    pub(in super::super) fn into_news(self) -> News {
        self.news
    }

    /// Ends the wait because the endpoint closes. Returns the local operation that has to end, or the receive of the
    /// message that invalidated the key.
    pub(in super::super) fn abandon(self) -> Abandoned {
        match self.news {
            News::Operation { notify, entry, .. } => Abandoned::Operation(notify, entry),
            News::Nothing { .. } => Abandoned::Nothing,
            News::Message { from, head, receive, .. } => Abandoned::Message(from, head, receive),
        }
    }

    /// Removes the answer to the message if this peer, which has disconnected, sent it.
    fn peer_gone(&mut self, peer: Connection) {
        if let News::Message { from, head, .. } = &mut self.news
            && *from == peer
        {
            head.flags.remove(Flags::ACK);
        }
    }
}

impl Left {
    /// Returns whether an earlier key of this window is dead and still has users.
    pub(in super::super) fn is_dying(&self, cell: &Arc<Cell>) -> bool {
        self.dying().any(|dying| Arc::ptr_eq(&dying.cell, cell))
    }

    /// Keeps the end of a local operation until the users of a key have finished, or its time has passed.
    pub(in super::super) fn await_operation(
        &mut self,
        cell: Arc<Cell>,
        key: u64,
        (to, notify, entry): (Connection, Notify, Entry),
        until: Option<Instant>,
    ) {
        self.add(LeftItem::Window(Dying { cell, key, news: News::Operation { to, notify, entry, until } }));
    }

    /// Holds the message of this peer that invalidated a key until the users of the key have finished.
    pub(in super::super) fn await_message(&mut self, cell: Arc<Cell>, key: u64, from: Connection) {
        self.add(LeftItem::Window(Dying { cell, key, news: News::Nothing { from } }));
    }

    /// Returns whether a message that invalidated a key can be reported now that its payload is in its buffer. If not,
    /// the message is kept here.
    pub(in super::super) fn may_report(&mut self, from: Connection, head: &Head, len: u64, receive: &Receive) -> bool {
        let waits = |item: &LeftItem| {
            matches!(item, LeftItem::Window(Dying { key, news: News::Nothing { from: who }, .. })
                if *key == head.data && *who == from)
        };
        let Some(at) = self.items.iter().position(waits) else { return true };
        let LeftItem::Window(dying) = &mut self.items[at] else { return true };
        if dying.cell.is_settled() {
            self.items.swap_remove(at);
            return true;
        }
        let Receive { place, context, notify, multi } = *receive;
        let receive = Receive { place, context, notify, multi };
        dying.news = News::Message { from, head: *head, len, receive };
        false
    }

    /// Handles the end of a connection: the messages of its peer are not answered.
    pub(in super::super) fn peer_gone(&mut self, peer: Connection) {
        for item in &mut self.items {
            if let LeftItem::Window(dying) = item {
                dying.peer_gone(peer);
            }
        }
    }

    /// Returns the number of waiting local operations on keys of this peer.
    pub(in super::super) fn operations_to(&self, peer: Connection) -> usize {
        self.dying().filter(|dying| matches!(dying.news, News::Operation { to, .. } if to == peer)).count()
    }

    fn dying(&self) -> impl Iterator<Item = &Dying> {
        self.items.iter().filter_map(|item| match item {
            LeftItem::Window(dying) => Some(dying),
            LeftItem::Link(_) => None,
        })
    }
}
