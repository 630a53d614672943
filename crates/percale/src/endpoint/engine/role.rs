//! The roles of endpoints that do not accept messages from arbitrary peers.

use super::Engine;
use super::admission::{CONTROL_LIMIT, NO_CONTROL};
use super::core::Core;
use super::listening::Listening;
use super::peers::ContextAddress;
use super::single::Single;
use crate::completion::entry::ErrorCode;
use crate::endpoint::connection::ConnectionError;
use crate::local_memory::volatile::View;
use crate::transport::ConnectionId;
use crate::transport::kind::TransportKind;
use crate::wire::control::Control;
use crate::wire::head::Head;

/// The slot of the endpoint itself.
const OWN: ConnectionId = 0;

/// The role of an endpoint that does not accept messages from arbitrary peers.
#[derive(Debug)]
pub(crate) enum Role {
    /// The endpoint takes connection requests.
    Listener(Listening),
    /// The endpoint has one connection.
    Single(Single),
}

impl Engine {
    /// Returns the state of a listener, or `None` for other endpoints.
    pub(super) fn listening(&mut self) -> Option<&mut Listening> {
        match self.role.as_deref_mut() {
            Some(Role::Listener(listening)) => Some(listening),
            _ => None,
        }
    }

    /// Returns the state of an endpoint that has one connection.
    ///
    /// # Errors
    /// If the endpoint is of another kind.
    pub(super) fn single(&mut self) -> Result<&mut Single, ConnectionError> {
        match &mut self.role {
            Some(role) => match &mut **role {
                Role::Single(single) => Ok(single),
                Role::Listener(_) => Err(ConnectionError::NotForOne),
            },
            None => Err(ConnectionError::NotForOne),
        }
    }

    /// Returns the slot for a peer that has connected to this endpoint, or `None` if the peer is not accepted. An
    /// address belongs to the peer that answered there. An address that a peer merely advertises leads to no slot.
    pub(super) fn welcome(&mut self, at: ContextAddress, incarnation: u128, proven: bool) -> Option<ConnectionId> {
        match self.role.as_deref() {
            None if proven => Some(self.core.peers.slot_of_answer(at)).filter(|slot| *slot != OWN),
            // A listener answers each requester over the connection of its request.
            None | Some(Role::Listener(_)) => Some(self.core.peers.nameless_slot(at)),
            Some(Role::Single(single)) => {
                let slot = single.awaited(incarnation)?;
                self.core.peers.advertise(slot, at);
                Some(slot)
            }
        }
    }

    /// Handles a new link of an endpoint with a role.
    pub(super) fn link_established(&mut self, slot: ConnectionId, transport: TransportKind) {
        match self.role.as_deref() {
            Some(Role::Single(_)) => self.single_link(slot, transport),
            Some(Role::Listener(_)) => self.listener_link(slot),
            None => {}
        }
    }

    /// Handles the end of a link of an endpoint with a role, or the end of an attempt to establish one.
    pub(super) fn link_over(&mut self, slot: ConnectionId, error: ErrorCode, reason: &str) {
        match self.role.as_deref() {
            Some(Role::Single(_)) => self.single_over(slot, error, reason),
            Some(Role::Listener(_)) => self.listener_over(slot),
            None => {}
        }
    }

    /// Performs the work that only some endpoints have: for roles, shared receive contexts and counters. Returns
    /// whether any of it counts as progress.
    #[cold]
    pub(super) fn poll_role(&mut self) -> bool {
        let mut any = match self.role.as_deref() {
            Some(Role::Single(_)) => self.poll_single(),
            Some(Role::Listener(_)) => {
                self.poll_listener();
                false
            }
            None => false,
        };
        any |= self.core.shared.is_member() && self.read_notes();
        (self.optional_work.triggers() && self.begin_due()) | any
    }
}

impl Core {
    /// Takes the control frames that have arrived.
    pub(super) fn take_control_frames(&mut self) -> Vec<(ConnectionId, Control)> {
        let received = self.admission.take_control_frames();
        received.iter().for_each(|(from, _)| self.peers.control_handled(*from));
        received
    }

    /// Opens the filter: from now on messages pass, and control frames do not.
    pub(super) fn admit_peers(&mut self) {
        self.admission.open();
        self.reporting.disable_receive_fast_path(false);
    }

    /// Closes the filter because no message will come any more. Receives that match no message fail, both those already
    /// posted and those posted later.
    pub(super) fn stop_admitting(&mut self, error: ErrorCode, why: &str) {
        self.admission.close(error, why);
        self.reporting.disable_receive_fast_path(true);
        self.flush_receives();
    }

    /// Handles a control frame.
    pub(super) fn control(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        if !self.admission.takes_control() {
            return self.peers.flag_violation(from, NO_CONTROL);
        }
        let peer = self.peers.get(from);
        if peer.violation().is_some() {
            return;
        }
        if peer.control_frames() == CONTROL_LIMIT {
            return self.peers.flag_violation(from, "too many unprocessed control frames");
        }
        match Control::parse(head, payload) {
            Ok(control) => {
                self.peers.count_control(from);
                self.admission.keep_control_frame(from, control);
            }
            Err(why) => self.peers.flag_violation(from, why),
        }
    }
}
