//! Groups that are being joined. This module performs the actions that [`Joins`](crate::collective::Joins) requests,
//! and reports events to it.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::net::SocketAddr;

use super::Engine;
use crate::collective::{Deed, Digest};
use crate::completion::entry::ErrorCode;
use crate::endpoint::engine::core::Core;
use crate::endpoint::engine::types::{Action, GroupMessage};
use crate::transport::Connection;
use crate::wire::head::ABORT;

/// The context of messages that belong to no operation.
pub(super) const NOBODY: u64 = u64::MAX;

impl Engine {
    /// Returns a digest of the members, which is equal at all members. It covers the addresses that the members
    /// advertise, as far as these are known.
    pub(super) fn list_of(&self, members: &[Connection]) -> u64 {
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
    pub(super) fn joins_go_on(&mut self) {
        while let Some(deed) = self.core.groups.next_deed() {
            match deed {
                Deed::Reach(slot) => {
                    if self.core.peers.get(slot).is_idle() {
                        self.start_connecting(slot);
                    }
                }
                Deed::Say { to, list, said } => {
                    self.send_to_member(to, &GroupMessage::bare(list, said.to_data(), NOBODY), None);
                }
                Deed::Break { to, tag } => {
                    let data = ABORT | ErrorCode::PeerDied.errno() as u64;
                    self.send_to_member(to, &GroupMessage::bare(tag, data, NOBODY), None);
                }
                // `next_deed` performs these itself.
                Deed::Agreed { .. } | Deed::Failed { .. } => {}
            }
        }
    }
}

impl Core {
    /// Schedules the actions that joins request.
    pub(super) fn joins_ready(&mut self) {
        self.groups.make_joins_ready();
        self.peers.push(0, Action::Advance);
    }

    /// Handles a peer that advertises another address than the one at which it was found. The other members identify
    /// the peer by the advertised address, so they identify its lists differently. Attempts to join that wait for the
    /// peer fail, and later attempts use the advertised address.
    pub(in crate::endpoint::engine) fn misnamed(&mut self, slot: Connection, advertised: SocketAddr) {
        let address = self.peers.get(slot).address();
        let why = format!("the member at {address} advertises {advertised}, which is used from now on");
        self.groups.misnamed(slot, &why);
        if self.groups.has_deeds() {
            self.joins_ready();
        }
    }

    /// Handles a message of a peer about joining a list.
    pub(super) fn hear_join(&mut self, from: Connection, list: u64, data: u64) {
        if self.groups.hear_join(from, list, data) {
            self.joins_ready();
        } else {
            self.peers.accuse(from, "invalid message about joining a group, or too many groups");
        }
    }
}
