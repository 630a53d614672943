//! Changes of a peer: its connection, its names, and violations of the protocol.

use super::{ContextAddress, Counts, PeerState, Peers};
use crate::transport::ConnectionId;

impl Peers {
    /// Records that the attempt with this number establishes the connection of a slot. Returns the address to which
    /// this endpoint connects.
    pub(in super::super) fn connecting(&mut self, slot: ConnectionId, attempt: u64) -> ContextAddress {
        let peer = &mut self.list[slot as usize];
        peer.state = PeerState::Connecting(attempt);
        peer.at()
    }

    /// Records the service thread's number of a connection, and the bit of the local doorbell that its peer rings.
    pub(in super::super) fn set_connection(&mut self, slot: ConnectionId, serial: u64, bit: u32) {
        let peer = &mut self.list[slot as usize];
        (peer.serial, peer.bit) = (serial, bit);
    }

    /// Records that the connection of a slot is established.
    pub(in super::super) fn connected(&mut self, slot: ConnectionId, incarnation: u128) {
        let peer = &mut self.list[slot as usize];
        (peer.state, peer.lost, peer.incarnation) = (PeerState::Up, false, incarnation);
    }

    /// Records why the transport of a connection was chosen.
    pub(in super::super) fn set_reason(&mut self, slot: ConnectionId, reason: &str) {
        self.list[slot as usize].reason = reason.into();
    }

    /// Records that the connection of a slot has ended.
    pub(in super::super) fn set_lost(&mut self, slot: ConnectionId) {
        self.list[slot as usize].lost = true;
    }

    /// Records the slot of the sending half of a peer.
    pub(in super::super) fn set_sender(&mut self, half: ConnectionId, sender: ConnectionId) {
        self.list[half as usize].sender = Some(sender);
    }

    /// Records the kinds of accesses that a peer counts although it may not see them.
    pub(in super::super) fn set_counts(&mut self, slot: ConnectionId, counts: Counts) {
        self.list[slot as usize].counts = counts;
    }

    /// Records that a receive is directed at a peer. Returns the slot from which the receive takes messages: that of
    /// the sending half, if there is one.
    pub(in super::super) fn direct_receive(&mut self, slot: ConnectionId) -> ConnectionId {
        let peer = &mut self.list[slot as usize];
        peer.directed = true;
        let slot = peer.sender.unwrap_or(slot);
        self.list[slot as usize].directed = true;
        slot
    }

    /// Records whether messages of a peer without a connection may be held here.
    pub(in super::super) fn set_holds_messages(&mut self, slot: ConnectionId, left: bool) {
        self.list[slot as usize].left = left;
    }

    /// Counts a control frame of a peer that the engine has yet to handle.
    pub(in super::super) fn count_control(&mut self, slot: ConnectionId) {
        let peer = &mut self.list[slot as usize];
        peer.control_frames = peer.control_frames.saturating_add(1);
    }

    /// Records that the control frames of a peer were handled.
    pub(in super::super) fn control_handled(&mut self, slot: ConnectionId) {
        self.list[slot as usize].control_frames = 0;
    }

    /// Records that a peer broke the protocol. Its connection is closed soon, with this reason.
    #[cold]
    pub(crate) fn flag_violation(&mut self, slot: ConnectionId, why: &'static str) {
        self.list[slot as usize].violation = Some(why);
        self.any_violation = true;
    }

    /// Returns whether a peer broke the protocol ([`flag_violation`](Self::flag_violation)) since the last inspection.
    #[inline]
    pub(in super::super) const fn any_violation(&self) -> bool {
        self.any_violation
    }

    /// Begins an inspection of the peers that [broke the protocol](Peer::violation). After this,
    /// [`any_violation`](Self::any_violation) reports only later violations.
    #[cold]
    pub(in super::super) const fn begin_inspection(&mut self) {
        self.any_violation = false;
    }

    /// Makes the slot idle again. The next operation starts a new connection.
    pub(crate) fn reset(&mut self, slot: ConnectionId) {
        let peer = &mut self.list[slot as usize];
        peer.state = PeerState::Idle;
        peer.incarnation = 0;
        peer.serial = 0;
        (peer.outstanding, peer.of_groups) = (0, 0);
        (peer.executed, peer.direct, peer.long_writes, peer.parts, peer.replies) = (0, 0, 0, 0, 0);
        (peer.notices, peer.serving, peer.staged) = (0, 0, 0);
        peer.counts = Counts::empty();
        (peer.executed_instead, peer.offers_only) = (0, false);
        peer.violation = None;
        (peer.control_frames, peer.directed) = (0, false);
        self.end_aliases(slot);
    }
}
