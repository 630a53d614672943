//! The addresses of senders: the place in the vector or, for a peer that is not in the vector, a *connection address*.
//!
//! A connection address identifies a connection of one endpoint. Operations use it like an address of the vector, and
//! reach the peer over that connection. It is not an address at which the peer can be called. When the connection ends,
//! the address becomes invalid for ever.
//!
//! It consists of the slot in the low 24 bits, a mark in bit 47, and a number of 39 bits in the others. The number is
//! unique in the process, so that neither a later connection in the same slot nor a connection of another endpoint has
//! the same address. A vector has at most 2^33 numbers. The mark is above these and, for up to 16 bits of receive
//! contexts, below the contexts. If a vector can have the number anyway (the base of a named map is arbitrary), the
//! peer has no connection address.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{NEVER, Peers, Unresolved};
use crate::transport::ConnectionId;
use crate::types::PeerAddress;

/// The number of bits that hold the slot.
const SLOT: u32 = 24;
/// The bit that is set in all connection addresses.
const MARK: u32 = 47;

/// The number in the next connection address.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Returns a new address for the connection in a slot. Returns UNSPECIFIED if the slot's number is too large.
fn new_address(slot: ConnectionId) -> PeerAddress {
    if slot >= (1 << SLOT) - 1 {
        return PeerAddress::UNSPECIFIED;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let (low, high) = (number & ((1 << (MARK - SLOT)) - 1), number >> (MARK - SLOT));
    PeerAddress(high << (MARK + 1) | 1 << MARK | low << SLOT | u64::from(slot))
}

impl Peers {
    /// Sets whether peers that are not in the vector have connection addresses. The only peer of an endpoint of one
    /// connection never has one.
    pub(crate) const fn use_connection_addresses(&mut self, enabled: bool) {
        self.has_connection_addresses = enabled && !self.single;
    }

    /// Returns the address that is reported for messages of a peer: its current place in the vector, or its connection
    /// address if it has none.
    #[inline(always)]
    pub(crate) fn source(&mut self, slot: ConnectionId) -> PeerAddress {
        let Some(vector) = &self.vector else { return self.connection_address(slot) };
        let changes = vector.changes_here();
        let peer = &self.list[slot as usize];
        if peer.source_changes == changes { peer.source } else { self.find_source(slot, changes) }
    }

    /// Looks for a peer in the vector, first at its previous place, where it usually still is.
    #[cold]
    fn find_source(&mut self, slot: ConnectionId, changes: u64) -> PeerAddress {
        let source = self.find_in_vector(slot).unwrap_or_else(|| self.connection_address(slot));
        let peer = &mut self.list[slot as usize];
        (peer.source, peer.source_changes) = (source, changes);
        source
    }

    fn find_in_vector(&self, slot: ConnectionId) -> Option<PeerAddress> {
        let peer = &self.list[slot as usize];
        let vector = self.vector.as_ref().filter(|_| peer.named)?;
        if peer.source.is_specified() && vector.lookup(peer.source) == Some(peer.address) {
            return Some(peer.source);
        }
        vector.find(peer.address)
    }

    /// Returns the connection address of a peer. Assigns it at the first call for a connection.
    #[cold]
    fn connection_address(&mut self, slot: ConnectionId) -> PeerAddress {
        let assigned = self.list[slot as usize].connection_address;
        if assigned.is_specified() || !self.has_connection_addresses {
            return assigned;
        }
        let new = Some(new_address(slot)).filter(|new| self.is_connection_address(*new));
        let peer = &mut self.list[slot as usize];
        peer.connection_address = new.unwrap_or(PeerAddress::UNSPECIFIED);
        peer.connection_address
    }

    /// Returns whether an address has the form of a connection address, and the vector has no such number.
    pub(crate) fn is_connection_address(&self, peer: PeerAddress) -> bool {
        self.has_connection_addresses
            && peer.is_specified()
            && peer.0 >> MARK & 1 != 0
            && self.vector.as_ref().is_none_or(|vector| !vector.has_number(peer))
    }

    /// Returns the slot of a connection address.
    pub(super) fn resolve_connection(&mut self, peer: PeerAddress) -> Result<ConnectionId, Unresolved> {
        let slot = (peer.0 & ((1 << SLOT) - 1)) as ConnectionId;
        let found = self.list.get(slot as usize);
        if !found.is_some_and(|found| found.connection_address == peer && found.is_up()) {
            return Err(Unresolved::Ended);
        }
        if let Some(vector) = &self.vector {
            let removals = vector.removals_here();
            if removals != self.removals {
                self.slot_index.clear();
                self.removals = if removals.is_multiple_of(2) { removals } else { NEVER };
            }
            self.last.set((peer, slot));
        }
        Ok(slot)
    }

    /// Makes the look-ups of a connection address fail, because the connection has ended.
    pub(super) fn forget_last(&mut self, slot: ConnectionId) {
        let (last, of) = self.last.get();
        if of == slot && last == self.list[slot as usize].connection_address {
            self.removals = NEVER;
        }
    }

    /// Returns whether the vector contains the address of this slot.
    pub(in crate::endpoint::engine) fn is_in_vector(&mut self, slot: ConnectionId) -> bool {
        let source = self.source(slot);
        source.is_specified() && source != self.list[slot as usize].connection_address
    }

    /// Returns the identification of a slot's peer in events: its source address, and its network address.
    pub(crate) fn identify(&mut self, slot: ConnectionId) -> (PeerAddress, SocketAddr) {
        (self.source(slot), self.list[slot as usize].address)
    }

    /// Returns the network address of a peer. For a connection address, it is the address that the peer advertises
    /// unless the peer has answered there.
    pub(crate) fn network_address(&mut self, peer: PeerAddress) -> Option<SocketAddr> {
        if self.is_connection_address(peer) {
            return self.resolve_connection(peer).ok().map(|slot| self.list[slot as usize].address);
        }
        self.vector.as_ref()?.lookup(peer)
    }
}
