//! Groups that are being joined. This module performs the actions that [`Joins`](crate::collective::Joins) requests,
//! and reports events to it.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::net::SocketAddr;

use super::Engine;
use crate::collective::{Digest, JoinAction};
use crate::completion::entry::ErrorCode;
use crate::endpoint::engine::core::Core;
use crate::endpoint::engine::types::{GroupMessage, LinkAction};
use crate::transport::ConnectionId;
use crate::wire::head::ABORT;

/// The context of messages that belong to no operation.
pub(super) const NO_OPERATION: u64 = u64::MAX;

impl Engine {
    /// Returns a digest of the members, which is equal at all members. It covers the addresses that the members
    /// advertise, as far as these are known.
    pub(super) fn list_of(&self, members: &[ConnectionId]) -> u64 {
        let mut digest = Digest::default();
        let advertised = self.core.peers.advertised();
        for slot in members {
            let own = || self.core.peers.get(*slot).at();
            let (address, context) = advertised.get(slot).copied().unwrap_or_else(own);
            digest.add(format!("{address}/{context} ").as_bytes());
        }
        digest.end()
    }

    /// Returns the name that this endpoint proposes for its newest group.
    pub(super) fn proposed_name(&self) -> u64 {
        let mut name = Digest::default();
        name.add(&self.core.peers.get(super::OWN).incarnation().to_le_bytes());
        name.add(&self.core.groups.stamp().to_le_bytes());
        name.end()
    }

    /// Performs the actions that joins request.
    #[cold]
    pub(super) fn run_join_actions(&mut self) {
        while let Some(join_action) = self.core.groups.next_join_action() {
            match join_action {
                JoinAction::Reach(slot) => {
                    if self.core.peers.get(slot).is_idle() {
                        self.start_connecting(slot);
                    }
                }
                JoinAction::Say { to, list, said } => {
                    self.send_to_member(to, &GroupMessage::bare(list, said.to_data(), NO_OPERATION), None);
                }
                JoinAction::Break { to, tag } => {
                    let data = ABORT | ErrorCode::PeerDied.errno() as u64;
                    self.send_to_member(to, &GroupMessage::bare(tag, data, NO_OPERATION), None);
                }
                // `next_join_action` performs these itself.
                JoinAction::Agreed { .. } | JoinAction::Failed { .. } => {}
            }
        }
    }
}

impl Core {
    /// Schedules the actions that joins request.
    pub(super) fn joins_ready(&mut self) {
        self.groups.make_joins_ready();
        self.peers.push(0, LinkAction::Advance);
    }

    /// Handles a peer that advertises an address other than the one at which it was found. The other members identify
    /// the peer by the advertised address, so they identify its lists differently. Attempts to join that wait for the
    /// peer fail, and later attempts use the advertised address.
    pub(in crate::endpoint::engine) fn handle_address_mismatch(&mut self, slot: ConnectionId, advertised: SocketAddr) {
        let address = self.peers.get(slot).address();
        let why = format!("the member at {address} advertises {advertised}, which is used from now on");
        self.groups.handle_address_mismatch(slot, &why);
        if self.groups.has_join_actions() {
            self.joins_ready();
        }
    }

    /// Handles a message of a peer about joining a list.
    pub(super) fn receive_join(&mut self, from: ConnectionId, list: u64, data: u64) {
        if self.groups.receive_join(from, list, data) {
            self.joins_ready();
        } else {
            self.peers.flag_violation(from, "invalid message about joining a group, or too many groups");
        }
    }
}
