//! What an endpoint is for, if it is not for anybody's messages.

use super::Engine;
use super::listening::Listening;
use super::peers::At;
use super::single::Single;
use crate::completion::entry::ErrorCode;
use crate::fabric::TransportKind;
use crate::transport::Connection;

/// The slot of the endpoint itself.
const OWN: Connection = 0;

/// The role of an endpoint that does not accept messages of every peer.
#[derive(Debug)]
pub(crate) enum Role {
    /// Requests for connections.
    Listener(Listening),
    /// One connection.
    Single(Single),
}

impl Engine {
    /// The slot for a peer that has connected to us; `None` if it is not welcome. An address belongs to the peer that was met there; what
    /// others say of theirs leads nowhere.
    pub(super) fn welcome(&mut self, at: At, incarnation: u128, proven: bool) -> Option<Connection> {
        match self.role.as_deref() {
            None if proven => Some(self.core.peers.met_slot(at)).filter(|slot| *slot != OWN),
            // A listener answers whoever asks, over the connection that asked.
            None | Some(Role::Listener(_)) => Some(self.core.peers.nameless_slot(at)),
            Some(Role::Single(single)) => {
                let slot = single.awaited(incarnation)?;
                self.core.peers.advertise(slot, at);
                Some(slot)
            }
        }
    }

    /// A link of an endpoint with a role stands.
    pub(super) fn link_stands(&mut self, slot: Connection, transport: TransportKind) {
        match self.role.as_deref() {
            Some(Role::Single(_)) => self.single_link(slot, transport),
            Some(Role::Listener(_)) => self.listener_link(slot),
            None => {}
        }
    }

    /// A link of an endpoint with a role has ended, or will not stand.
    pub(super) fn link_over(&mut self, slot: Connection, error: ErrorCode, reason: &str) {
        match self.role.as_deref() {
            Some(Role::Single(_)) => self.single_over(slot, error, reason),
            Some(Role::Listener(_)) => self.listener_over(slot),
            None => {}
        }
    }

    /// Looks after what only some endpoints have to look after; says whether operations began.
    #[cold]
    pub(super) fn attend(&mut self) -> bool {
        let mut any = match self.role.as_deref() {
            Some(Role::Single(_)) => self.attend_single(),
            Some(Role::Listener(_)) => {
                self.attend_listener();
                false
            }
            None => false,
        };
        any |= self.core.pool.is_some() && self.read_notes();
        (self.triggers && self.begin_due()) | any
    }
}
