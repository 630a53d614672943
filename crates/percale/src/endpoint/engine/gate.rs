//! Whom an endpoint is for: anybody, or one peer, or (a listener) nobody who has messages.
//!
//! While the gate is closed nothing passes but what is said about connections; who sends anything else is cut off. Frames that
//! pass open gates cost nothing more: a closed gate keeps the fast way of messages from being used.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::core::Core;
use super::types::{Receive, Side};
use crate::completion::entry::{CompletionFlags, ErrorCode, ErrorEntry};
use crate::endpoint::matching::Source;
use crate::memory::volatile::View;
use crate::transport::Connection;
use crate::wire::control::Control;
use crate::wire::head::{Head, Kind};

/// What those are accused of who send messages to endpoints that are not for them.
pub(super) const STRANGER: &str = "a message, or an access, to an endpoint that is not for it";

/// Control frames of one peer that wait for the engine: no percale sends as many.
const HEARD_LIMIT: u32 = 4;

/// The peers whose messages an endpoint accepts.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: bool,
    /// Control frames, for the engine to look at; `None`: nobody may send any.
    heard: Option<Vec<(Connection, Control)>>,
    /// The connection is over: no message will come.
    over: Option<(ErrorCode, String)>,
}

impl Gate {
    /// A closed one.
    pub(crate) const fn closed() -> Self {
        Self { closed: true, heard: Some(Vec::new()), over: None }
    }

    /// Whether frames of this kind may pass.
    #[inline]
    pub(super) const fn admits(&self, kind: Kind) -> bool {
        !self.closed || matches!(kind, Kind::Control | Kind::Bye | Kind::Nothing | Kind::Offers | Kind::Counts)
    }

    /// What this one said means nothing any more.
    pub(super) fn forget(&mut self, from: Connection) {
        self.heard.iter_mut().for_each(|heard| heard.retain(|(other, _)| *other != from));
    }
}

impl Core {
    /// What was said about connections.
    pub(super) fn take_heard(&mut self) -> Vec<(Connection, Control)> {
        let heard = self.gate.heard.as_mut().map(std::mem::take).unwrap_or_default();
        heard.iter().for_each(|(from, _)| self.peers.get_mut(*from).heard = 0);
        heard
    }

    /// From now on messages pass, and nothing about connections.
    pub(super) fn open_gate(&mut self) {
        self.gate = Gate::default();
        self.receive.detour(false);
    }

    /// No message will come any more: receives that find none fail, those that are posted and those that will be.
    pub(super) fn close_gate(&mut self, error: ErrorCode, why: &str) {
        self.gate = Gate { closed: true, heard: None, over: Some((error, why.to_owned())) };
        self.receive.detour(true);
        self.flush_receives();
    }

    /// Fails what is posted, if no message will come.
    pub(super) fn flush_receives(&mut self) {
        let Some((error, why)) = self.gate.over.clone() else { return };
        for tagged in [false, true] {
            let posted: Vec<Receive> = self.table(tagged).drain_posted(Source::Any).collect();
            for receive in posted {
                self.fail_receive(0, tagged, receive, error, &why);
            }
        }
    }

    /// A posted receive will get no message.
    pub(super) fn fail_receive(
        &mut self,
        from: Connection,
        tagged: bool,
        receive: Receive,
        error: ErrorCode,
        why: &str,
    ) {
        let head = Head { kind: if tagged { Kind::Tagged } else { Kind::Message }, ..Head::default() };
        let mut entry = self.received_entry(from, &head, 0, &receive);
        self.leave(receive.place);
        if let Some(multi) = receive.multi {
            self.multis[multi].closed = true;
            if self.multis[multi].in_flight > 0 {
                return; // Released by the last message that is on its way into it.
            }
            self.multis.remove(multi);
            entry.flags |= CompletionFlags::MULTI_RECEIVE;
        }
        self.fail(Side::Receive, receive.notify, ErrorEntry::new(entry, error).with_text(why.to_owned()));
    }

    /// A control frame.
    pub(super) fn control(&mut self, from: Connection, head: &Head, payload: View<'_>) {
        let Some(heard) = &mut self.gate.heard else {
            return self.peers.accuse(from, "a control frame to an endpoint that takes none");
        };
        let peer = self.peers.get_mut(from);
        if peer.accused.is_some() {
            return;
        }
        if peer.heard == HEARD_LIMIT {
            return self.peers.accuse(from, "more control frames than a peer may send before they are looked at");
        }
        match Control::parse(head, payload) {
            Ok(control) => {
                peer.heard = peer.heard.saturating_add(1);
                heard.push((from, control));
            }
            Err(why) => self.peers.accuse(from, why),
        }
    }
}
