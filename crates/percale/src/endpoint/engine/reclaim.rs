//! Reclaims the slots of permanently disconnected peers. Without this, a server with many short-lived clients would
//! keep a slot for each of them.
//!
//! A slot is given up when nothing refers to it any more: it has no connection and none is being established, its
//! address is not in the vector or does not lead to it, no receive is directed at it, none of its messages waits to be
//! received, and no operation waits until another process releases memory (`draining`). Slots are checked when a
//! connection ends, or an attempt to connect fails: then up to [`LOOKS`] slots whose connections ended or failed before
//! are checked, so a slot that was still referred to is checked again later. Members of groups, users of shared
//! receives and endpoints of one connection keep their slots. A listener gives up the slot of a requester as soon as
//! the connection has ended (`listening`).

use super::Engine;
use crate::transport::ConnectionId;

/// The number of slots that are checked whenever a connection has ended.
const LOOKS: usize = 4;

impl Engine {
    /// Handles a slot after its connection has ended, or could not be established.
    pub(super) fn reclaim(&mut self, slot: ConnectionId) {
        self.core.peers.part(slot);
        for _ in 0..LOOKS {
            let Some(slot) = self.core.peers.next_to_reclaim() else { return };
            if !self.core.peers.get(slot).is_idle() {
                continue; // The slot is connected again, or being connected. It is queued again when that ends.
            }
            if self.is_meant(slot) {
                self.core.peers.part(slot);
            } else {
                self.core.peers.give_up(slot);
            }
        }
    }

    /// Returns whether messages of a peer without a connection wait to be received. No more messages arrive, so once
    /// the result is false it stays false.
    fn has_held_messages(&mut self, slot: ConnectionId) -> bool {
        if self.core.peers.get(slot).may_have_held_messages() {
            let held = |tagged: &bool| self.core.messages.table_ref(*tagged).holds_of(slot.into());
            let left = [false, true].iter().any(held) || self.core.groups.holds_of(slot);
            self.core.peers.set_holds_messages(slot, left);
        }
        self.core.peers.get(slot).may_have_held_messages()
    }

    /// Returns whether a receive is directed at a peer without a connection.
    fn has_directed_receives(&mut self, slot: ConnectionId) -> bool {
        let peer = self.core.peers.get(slot);
        if peer.is_lost() && !peer.is_directed() {
            return false; // Receives that were posted before its connection ended have ended too.
        }
        [false, true].into_iter().any(|tagged| self.core.messages.table_ref(tagged).is_directed_at(slot.into()))
    }

    /// Returns whether anything may still refer to this slot.
    fn is_meant(&mut self, slot: ConnectionId) -> bool {
        let kept = self.role.is_some() || self.core.shared.is_member() || slot == 0;
        kept || !self.core.peers.get(slot).is_free()
            || self.links.get(slot as usize).is_some_and(Option::is_some)
            || self.attempts.values().any(|its| *its == slot)
            || self.core.peers.has_actions_for(slot)
            || !self.core.left.is_empty()
            || !self.core.groups.is_idle()
            || self.has_directed_receives(slot)
            || self.has_held_messages(slot)
            || self.core.peers.is_in_vector(slot)
    }
}
