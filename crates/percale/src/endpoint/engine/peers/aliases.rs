//! Slots of peers that have their connection in another slot: aliases, where the peer was found at another address, and
//! contexts with a sending half in another slot.

use super::{ContextAddress, NEVER, Peer, PeerState, Peers};
use crate::endpoint::engine::types::QueuedWork;
use crate::transport::ConnectionId;

impl Peers {
    /// Returns the slot for the connection of a peer that just answered at this address.
    pub(crate) fn slot_of_answer(&mut self, at: ContextAddress) -> ConnectionId {
        let slot = self.slot(at);
        if let PeerState::Alias(_) = self.list[slot as usize].state {
            // The address belongs to another peer by now.
            self.list[slot as usize].state = PeerState::Idle;
            self.removals = NEVER;
        }
        slot
    }

    /// Returns the slot of a socket address, following aliases.
    pub(crate) fn real_slot(&mut self, at: ContextAddress) -> ConnectionId {
        let mut slot = self.slot(at);
        while let PeerState::Alias(other) = self.list[slot as usize].state {
            slot = other;
        }
        slot
    }

    /// Declares that `slot` is the same peer as `real` while the connection of `real` lasts. The operations that waited
    /// in `slot` move to `real`. If `real` has no address it takes that of `slot` permanently.
    pub(crate) fn alias(&mut self, slot: ConnectionId, real: ConnectionId) {
        if slot == real {
            return;
        }
        let (address, context) = self.list[slot as usize].at();
        let moved = std::mem::take(&mut self.list[slot as usize].pending);
        self.list[slot as usize].state = PeerState::Alias(real);
        if self.list[slot as usize].named && !self.list[real as usize].named {
            self.by_socket.forget(slot, &self.list);
            self.list[slot as usize].named = false;
            let peer = &mut self.list[real as usize];
            (peer.address, peer.context, peer.named, peer.source_changes) = (address, context, true, NEVER);
            self.by_socket.insert(real, &self.list);
        }
        self.list[real as usize].aliased = true;
        for waiting in moved {
            match waiting.work {
                QueuedWork::Collective(_) => self.list[real as usize].queue_for_group(waiting),
                _ => self.list[real as usize].pending.push_back(waiting),
            }
        }
        self.slot_index.rename(slot, real);
        let (peer, last) = self.last.get();
        self.last.set((peer, if last == slot { real } else { last }));
    }

    /// Ends all aliases of `real` after its connection has ended. Each alias is a separate peer again.
    pub(super) fn end_aliases(&mut self, real: ConnectionId) {
        if !std::mem::take(&mut self.list[real as usize].aliased) {
            return;
        }
        for slot in 0..self.list.len() {
            let peer = &mut self.list[slot];
            if peer.state == PeerState::Alias(real) {
                // A receive directed at a lost peer first makes a connection, to find out whether the peer is there.
                (peer.state, peer.lost) = (PeerState::Idle, true);
                self.part(slot as ConnectionId);
            }
        }
        self.removals = NEVER; // Their vector addresses still lead to `real`.
    }

    /// Returns the other slots of the receives that are directed at this one: its aliases, and the contexts that have
    /// their sending half in this slot.
    pub(in crate::endpoint::engine) fn other_slots(&self, slot: ConnectionId) -> Vec<ConnectionId> {
        let leads_here = |peer: &Peer| peer.state == PeerState::Alias(slot) || peer.sender == Some(slot);
        self.list.iter().zip(0..).filter(|(peer, _)| leads_here(peer)).map(|(_, other)| other).collect()
    }

    /// Removes the sending half in this slot, which has no connection any more.
    pub(in crate::endpoint::engine) fn forget_sender(&mut self, slot: ConnectionId) {
        for peer in self.list.iter_mut().filter(|peer| peer.sender == Some(slot)) {
            peer.sender = None;
            // A receive directed at a lost peer first makes a connection, to find out whether the peer is there.
            peer.lost |= peer.state == PeerState::Idle;
        }
    }
}
