//! The peers that may send messages to an endpoint: all peers, or one peer, or (for a listener) none.
//!
//! While the gate is closed only frames about the connection itself pass; a peer that sends anything else is disconnected. Frames that pass
//! an open gate cost nothing more: a closed gate disables the fast path of messages instead.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::core::Core;
use super::types::{Receive, Side};
use crate::completion::entry::{CompletionFlags, ErrorCode, ErrorEntry};
use crate::endpoint::matching::Source;
use crate::local_memory::volatile::View;
use crate::transport::Connection;
use crate::wire::control::Control;
use crate::wire::head::{Head, Kind};

/// The protocol violation of a peer that sends a message to an endpoint that does not accept it.
pub(super) const STRANGER: &str = "a message, or an access, to an endpoint that is not for it";

/// The maximum number of control frames of one peer that wait for the engine. No percale endpoint sends as many.
const HEARD_LIMIT: u32 = 4;

/// The peers that may send messages to an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: bool,
    /// Control frames that the engine has yet to handle. `None` if no peer may send any.
    heard: Option<Vec<(Connection, Control)>>,
    /// Why the connection is over, if it is: no message will come.
    over: Option<(ErrorCode, String)>,
}

impl Gate {
    /// Creates a closed gate.
    pub(crate) const fn closed() -> Self {
        Self { closed: true, heard: Some(Vec::new()), over: None }
    }

    /// Returns whether frames of this kind may pass.
    #[inline]
    pub(super) const fn admits(&self, kind: Kind) -> bool {
        !self.closed || matches!(kind, Kind::Control | Kind::Bye | Kind::Nothing | Kind::Offers | Kind::Counts)
    }

    /// Drops the control frames of this peer.
    pub(super) fn forget(&mut self, from: Connection) {
        self.heard.iter_mut().for_each(|heard| heard.retain(|(other, _)| *other != from));
    }
}

impl Core {
    /// Takes the control frames that have arrived.
    pub(super) fn take_heard(&mut self) -> Vec<(Connection, Control)> {
        let heard = self.gate.heard.as_mut().map(std::mem::take).unwrap_or_default();
        heard.iter().for_each(|(from, _)| self.peers.heard(*from));
        heard
    }

    /// Opens the gate: from now on messages pass, and control frames do not.
    pub(super) fn open_gate(&mut self) {
        self.gate = Gate::default();
        self.reporting.detour_receives(false);
    }

    /// Closes the gate because no message will come any more: receives that find no message fail, both those that are posted and those that
    /// will be.
    pub(super) fn close_gate(&mut self, error: ErrorCode, why: &str) {
        self.gate = Gate { closed: true, heard: None, over: Some((error, why.to_owned())) };
        self.reporting.detour_receives(true);
        self.flush_receives();
    }

    /// Fails the posted receives if no message will come any more.
    pub(super) fn flush_receives(&mut self) {
        let Some((error, why)) = self.gate.over.clone() else { return };
        for tagged in [false, true] {
            let posted: Vec<Receive> = self.messages.table(tagged).drain_posted(Source::Any).collect();
            for receive in posted {
                self.fail_receive(0, tagged, receive, error, &why);
            }
        }
    }

    /// Fails a posted receive that will get no message.
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
        self.messages.memory_mut().leave(receive.place);
        if let Some(multi) = receive.multi {
            if !self.messages.memory_mut().close(multi) {
                return; // The last message in flight releases the buffer.
            }
            entry.flags |= CompletionFlags::MULTI_RECEIVE;
        }
        self.fail(Side::Receive, receive.notify, ErrorEntry::new(entry, error).with_text(why.to_owned()));
    }

    /// Handles a control frame.
    pub(super) fn control(&mut self, from: Connection, head: &Head, payload: View<'_>) {
        let Some(heard) = &mut self.gate.heard else {
            return self.peers.accuse(from, "a control frame to an endpoint that takes none");
        };
        let peer = self.peers.get(from);
        if peer.accused().is_some() {
            return;
        }
        if peer.control_frames() == HEARD_LIMIT {
            return self.peers.accuse(from, "more control frames than a peer may send before they are looked at");
        }
        match Control::parse(head, payload) {
            Ok(control) => {
                self.peers.hear(from);
                heard.push((from, control));
            }
            Err(why) => self.peers.accuse(from, why),
        }
    }
}
