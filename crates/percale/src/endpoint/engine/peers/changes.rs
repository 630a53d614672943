//! Changes of a peer: its connection, its names, and violations of the protocol.

use super::{At, Counts, Peers, State};
use crate::transport::Connection;

impl Peers {
    /// Records that the attempt with this number establishes the connection of a slot. Returns the address at which the
    /// peer is called.
    pub(in super::super) fn connecting(&mut self, slot: Connection, attempt: u64) -> At {
        let peer = &mut self.list[slot as usize];
        peer.state = State::Connecting(attempt);
        peer.at()
    }

    /// Records the service thread's number of a connection, and the bit of the local doorbell that its peer rings.
    pub(in super::super) fn set_connection(&mut self, slot: Connection, serial: u64, bit: u32) {
        let peer = &mut self.list[slot as usize];
        (peer.serial, peer.bit) = (serial, bit);
    }

    /// Records that the connection of a slot is established.
    pub(in super::super) fn connected(&mut self, slot: Connection, incarnation: u128) {
        let peer = &mut self.list[slot as usize];
        (peer.state, peer.lost, peer.incarnation) = (State::Up, false, incarnation);
    }

    /// Records why the transport of a connection was chosen.
    pub(in super::super) fn set_reason(&mut self, slot: Connection, reason: &str) {
        self.list[slot as usize].reason = reason.into();
    }

    /// Records that the connection of a slot has ended.
    pub(in super::super) fn set_lost(&mut self, slot: Connection) {
        self.list[slot as usize].lost = true;
    }

    /// Records the slot of the sending half of a peer.
    pub(in super::super) fn set_sender(&mut self, half: Connection, sender: Connection) {
        self.list[half as usize].sender = Some(sender);
    }

    /// Records the kinds of accesses that a peer counts although it may not see them.
    pub(in super::super) fn set_counts(&mut self, slot: Connection, counts: Counts) {
        self.list[slot as usize].counts = counts;
    }

    /// Records that a receive is directed at a peer. Returns the slot from which the receive takes messages: that of
    /// the sending half, if there is one.
    pub(in super::super) fn direct_receive(&mut self, slot: Connection) -> Connection {
        let peer = &mut self.list[slot as usize];
        peer.directed = true;
        let slot = peer.sender.unwrap_or(slot);
        self.list[slot as usize].directed = true;
        slot
    }

    /// Records whether messages of a peer without a connection may be held here.
    pub(in super::super) fn set_left(&mut self, slot: Connection, left: bool) {
        self.list[slot as usize].left = left;
    }

    /// Counts a control frame of a peer that the engine has yet to handle.
    pub(in super::super) fn count_control(&mut self, slot: Connection) {
        let peer = &mut self.list[slot as usize];
        peer.heard = peer.heard.saturating_add(1);
    }

    /// Records that the control frames of a peer were handled.
    pub(in super::super) fn control_handled(&mut self, slot: Connection) {
        self.list[slot as usize].heard = 0;
    }

    /// Records that a peer broke the protocol. Its connection is closed soon, with this reason.
    #[cold]
    pub(crate) fn accuse(&mut self, slot: Connection, why: &'static str) {
        self.list[slot as usize].accused = Some(why);
        self.any_accused = true;
    }

    /// Returns whether a peer broke the protocol ([`accuse`](Self::accuse)) since the last inspection.
    #[inline]
    pub(in super::super) const fn any_accused(&self) -> bool {
        self.any_accused
    }

    /// Begins an inspection of the peers that [broke the protocol](Peer::accused). After this,
    /// [`any_accused`](Self::any_accused) concerns later accusations.
    #[cold]
    pub(in super::super) const fn judge(&mut self) {
        self.any_accused = false;
    }

    /// Makes the slot idle again. The next operation starts a new connection.
    pub(crate) fn reset(&mut self, slot: Connection) {
        let peer = &mut self.list[slot as usize];
        peer.state = State::Idle;
        peer.incarnation = 0;
        peer.serial = 0;
        (peer.outstanding, peer.of_groups) = (0, 0);
        (peer.executed, peer.direct, peer.long_writes, peer.parts, peer.replies) = (0, 0, 0, 0, 0);
        (peer.notices, peer.serving, peer.staged) = (0, 0, 0);
        peer.counts = Counts::empty();
        (peer.impatience, peer.offers_only) = (0, false);
        peer.accused = None;
        (peer.heard, peer.directed) = (0, false);
        self.end_aliases(slot);
    }
}
