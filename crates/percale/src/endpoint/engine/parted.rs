//! Slots of peers that have left for good: given up, to be those of others. Who serves many, one after the other, would otherwise
//! remember all of them.
//!
//! A slot is given up when nothing means it any more: it has no connection and asks for none, its address is not in the vector
//! or does not lead to it, no receive is directed at it, no message of it waits to be received, and nothing is left of what it
//! was doing to our memory. Looked for when a connection ends, or an attempt at one fails: then some of those that ended or
//! failed before are looked at, so a slot that was still meant is looked at again later. Endpoints with a role, members of groups
//! and users of shared receives keep theirs.

use super::Engine;
use super::peers::State;
use crate::transport::Connection;
use crate::wire::head::Kind;

/// Slots that are looked at whenever a connection has ended.
const LOOKS: usize = 4;

impl Engine {
    /// The connection in this slot has ended, or none came about.
    pub(super) fn parted(&mut self, slot: Connection) {
        self.core.peers.part(slot);
        for _ in 0..LOOKS {
            let Some(slot) = self.core.peers.next_parted() else { return };
            if self.core.peers.get(slot).state != State::Idle {
                continue; // It is back, or is being called, and comes here again when that is over.
            }
            if self.is_meant(slot) {
                self.core.peers.part(slot);
            } else {
                self.core.peers.give_up(slot);
            }
        }
    }

    /// Whether messages of a peer without a connection wait to be received. No more come, so this is asked until the answer is no.
    fn has_left_messages(&mut self, slot: Connection) -> bool {
        if self.core.peers.get(slot).left {
            let left = [Kind::Message, Kind::Tagged, Kind::Collective]
                .into_iter()
                .any(|kind| self.core.table_of(kind).holds_of(slot.into()));
            self.core.peers.get_mut(slot).left = left;
        }
        self.core.peers.get(slot).left
    }

    /// Whether a receive is directed at a peer without a connection.
    fn has_directed_receives(&mut self, slot: Connection) -> bool {
        let peer = self.core.peers.get(slot);
        if peer.lost && !peer.directed {
            return false; // Those that were posted before its connection ended have ended too.
        }
        [false, true].into_iter().any(|tagged| self.core.table(tagged).is_directed_at(slot.into()))
    }

    /// Whether anything may still mean this slot.
    fn is_meant(&mut self, slot: Connection) -> bool {
        let kept = self.role.is_some() || self.core.pool.is_some() || slot == 0;
        kept || !self.core.peers.get(slot).is_free()
            || self.links.get(slot as usize).is_some_and(Option::is_some)
            || self.attempts.values().any(|its| *its == slot)
            || self.core.outbox.iter().any(|(to, _)| *to == slot)
            || !self.core.left.is_empty()
            || !self.core.collectives.is_idle()
            || self.has_directed_receives(slot)
            || self.has_left_messages(slot)
            || self.core.peers.is_named(slot)
    }
}
