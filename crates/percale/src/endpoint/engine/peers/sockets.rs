//! Maps the network addresses of peers, with their contexts, to slots: a small hash table of the addresses that an
//! endpoint has used.
//!
//! Addresses are not kept here: an entry holds the slot of the peer with the address to compare (four bytes for each
//! peer, and some free entries).

use std::hash::{BuildHasher, RandomState};

use super::{ContextAddress, Peer};
use crate::transport::ConnectionId;

/// The initial number of entries.
const FIRST: usize = 8;

/// The table.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    /// Each entry is 0 if it is free, otherwise a slot + 1. At least an eighth of the entries is free.
    places: Box<[u32]>,
    used: usize,
    /// Randomizes the hash: peers choose their addresses, but must not be able to choose entries of the table.
    hasher: RandomState,
}

impl Sockets {
    /// Returns the slot of an address.
    pub(super) fn get(&self, address: ContextAddress, peers: &[Peer]) -> Option<ConnectionId> {
        let mut at = self.place(&address)?;
        loop {
            let slot = self.places[at].checked_sub(1)?;
            if peers[slot as usize].at() == address {
                return Some(slot);
            }
            at = if at + 1 == self.places.len() { 0 } else { at + 1 };
        }
    }

    /// Removes a slot. Entries after it that would not be found past the gap move up (Knuth, volume 3, 6.4, algorithm
    /// R).
    pub(super) fn forget(&mut self, slot: ConnectionId, peers: &[Peer]) {
        let size = self.places.len();
        let after = |at: usize| if at + 1 == size { 0 } else { at + 1 };
        let Some(mut gap) = self.place(&peers[slot as usize].at()) else { return };
        while self.places[gap] != slot + 1 {
            if self.places[gap] == 0 {
                return;
            }
            gap = after(gap);
        }
        let mut at = gap;
        loop {
            at = after(at);
            let Some(other) = self.places[at].checked_sub(1) else { break };
            let Some(home) = self.place(&peers[other as usize].at()) else { break };
            // Compares the distance from the start of the entry's search with the distance from the gap.
            if (at + size - home) % size >= (at + size - gap) % size {
                self.places[gap] = self.places[at];
                gap = at;
            }
        }
        self.places[gap] = 0;
        self.used -= 1;
    }

    /// Returns the number of bytes that the table allocates.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.places)
    }

    /// Returns the entry at which the search for an address begins, or `None` if there are no entries.
    fn place(&self, address: &ContextAddress) -> Option<usize> {
        let hash = self.hasher.hash_one(address) as u32;
        let at = (u64::from(hash) * self.places.len() as u64) >> 32;
        (!self.places.is_empty()).then_some(at as usize)
    }

    /// Inserts a slot with an address that is not in the table yet.
    pub(super) fn insert(&mut self, slot: ConnectionId, peers: &[Peer]) {
        if (self.used + 1) * 8 > self.places.len() * 7 {
            let size = (self.places.len() * 3 / 2).max(FIRST);
            let before = std::mem::replace(&mut self.places, vec![0; size].into());
            before.iter().filter_map(|place| place.checked_sub(1)).for_each(|slot| self.put(slot, peers));
        }
        self.put(slot, peers);
        self.used += 1;
    }

    fn put(&mut self, slot: ConnectionId, peers: &[Peer]) {
        let Some(mut at) = self.place(&peers[slot as usize].at()) else { return };
        while self.places[at] != 0 {
            at = if at + 1 == self.places.len() { 0 } else { at + 1 };
        }
        self.places[at] = slot + 1;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn address(n: u16) -> ContextAddress {
        (SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 5000 + n / 2)), n % 2)
    }

    #[test]
    fn removed_entries_leave_others_findable() {
        let (mut sockets, mut peers) = (Sockets::default(), Vec::new());
        for n in 0..200u16 {
            peers.push(Peer::new(address(n)));
            sockets.insert(n.into(), &peers);
        }
        // The order of the removals opens gaps everywhere, and entries are reused.
        for round in 0..3u16 {
            let forgotten: Vec<u16> = (0..200).map(|n| n * 77 % 200).take(150).collect();
            for (count, n) in (1..).zip(&forgotten) {
                sockets.forget((*n).into(), &peers);
                assert_eq!(sockets.used, 200 - count);
                for other in 0..200 {
                    let there = !forgotten[..count].contains(&other);
                    assert_eq!(sockets.get(address(other), &peers), there.then_some(other.into()), "round {round}");
                }
            }
            forgotten.iter().for_each(|n| sockets.insert((*n).into(), &peers));
        }
    }

    #[test]
    fn socket_table_uses_less_than_8_bytes_per_peer() {
        let (mut sockets, mut peers) = (Sockets::default(), Vec::new());
        for n in 0..1000u16 {
            peers.push(Peer::new(address(n)));
            sockets.insert(n.into(), &peers);
            let least = FIRST * size_of::<u32>();
            assert!(sockets.bytes() <= least.max(usize::from(n + 1) * 7), "{} bytes for {}", sockets.bytes(), n + 1);
        }
    }
}
