//! Maps the addresses of a vector to slots: a small hash table of the addresses in use.
//!
//! It takes about 16 bytes for each peer that this endpoint uses, independent of the size of the vector and of the
//! peer's index. An entry is one word: the address with its receive context in the low bits (40 bits), and the slot +
//! 1.

use crate::transport::ConnectionId;
use crate::types::PeerAddress;

/// The number of bits of an entry that hold the slot.
const SLOT: u32 = 24;
/// The initial number of entries.
const FIRST: usize = 8;

/// The table.
#[derive(Debug)]
pub(super) struct SlotIndex {
    /// The entries. At least a quarter of them is free. Their number is a power of two, and 0 is a free entry.
    entries: Box<[u64]>,
    used: usize,
    /// The right shift that reduces a 64-bit hash to an index of the table.
    shift: u32,
    /// The number of bits that the vector uses for receive contexts.
    bits: u32,
    /// The number of the vector's first address.
    base: u64,
}

impl SlotIndex {
    /// Creates a table for a vector with this number of bits for receive contexts, and with addresses that count from
    /// `base`.
    pub(super) fn new(bits: u32, base: u64) -> Self {
        Self { entries: Box::default(), used: 0, shift: 63, bits, base }
    }

    /// Returns an address as a small number: its top bits, the receive context, become the low bits.
    #[inline]
    const fn key(&self, peer: PeerAddress) -> u64 {
        peer.0.wrapping_sub(self.base).rotate_left(self.bits)
    }

    /// Returns the entry at which the search for a key begins.
    #[inline]
    const fn place(key: u64, shift: u32) -> usize {
        // 2^64 divided by the golden ratio: consecutive keys are spread evenly (Knuth, volume 3, 6.4).
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
    }

    /// Returns the slot of an address, if it is known.
    #[inline]
    pub(super) fn get(&self, peer: PeerAddress) -> Option<ConnectionId> {
        let key = self.key(peer);
        let mut at = Self::place(key, self.shift);
        loop {
            let entry = *self.entries.get(at)?;
            if entry >> SLOT == key {
                return (entry as ConnectionId & ((1 << SLOT) - 1)).checked_sub(1);
            }
            if entry == 0 {
                return None;
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }

    /// Inserts the slot of an address that is not known. Does nothing if the address or the slot does not fit into an
    /// entry.
    pub(super) fn insert(&mut self, peer: PeerAddress, slot: ConnectionId) {
        let key = self.key(peer);
        if key >> (64 - SLOT) != 0 || slot >= (1 << SLOT) - 1 {
            return;
        }
        if (self.used + 1) * 4 > self.entries.len() * 3 {
            self.grow();
        }
        self.put(key << SLOT | u64::from(slot + 1));
        self.used += 1;
    }

    fn put(&mut self, entry: u64) {
        let mut at = Self::place(entry >> SLOT, self.shift);
        while self.entries[at] != 0 {
            at = (at + 1) & (self.entries.len() - 1);
        }
        self.entries[at] = entry;
    }

    fn grow(&mut self) {
        let size = (self.entries.len() * 2).max(FIRST);
        let before = std::mem::replace(&mut self.entries, vec![0; size].into());
        self.shift = u64::BITS - size.ilog2();
        for entry in before.into_iter().filter(|entry| *entry != 0) {
            self.put(entry);
        }
    }

    /// Makes all addresses that lead to `from` lead to `to` from now on.
    pub(super) fn rename(&mut self, from: ConnectionId, to: ConnectionId) {
        let mask = (1 << SLOT) - 1;
        for entry in &mut self.entries {
            if *entry & mask == u64::from(from) + 1 {
                *entry = *entry & !mask | (u64::from(to) + 1);
            }
        }
    }

    /// Invalidates all entries. A later sweep removes them.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.bits, self.base);
    }

    /// Returns the number of bytes that the table allocates.
    pub(super) const fn bytes(&self) -> usize {
        self.entries.len() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distant_addresses_and_receive_contexts_are_distinct() {
        let mut known = SlotIndex::new(4, 0);
        assert_eq!(known.get(PeerAddress(0)), None);
        let peers: Vec<_> = (0..64).map(|n| PeerAddress(n * 15_625).receive_context(n % 16, 4).unwrap()).collect();
        for (slot, peer) in (0..).zip(&peers) {
            known.insert(*peer, slot);
        }
        assert!(peers.iter().zip(0..).all(|(peer, slot)| known.get(*peer) == Some(slot)));
        assert_eq!(known.get(PeerAddress(15_625)), None, "the same peer's other receive context");
        assert!(known.bytes() <= 1024, "{}", known.bytes());
        known.rename(5, 70);
        assert_eq!(known.get(peers[5]), Some(70));
        known.clear();
        assert_eq!(known.get(peers[5]), None);
    }

    /// 100 nodes with 100 endpoints each. Every endpoint uses 64 others of one symmetric vector.
    ///
    /// Requirements: AV-009.
    #[test]
    fn job_of_10000_endpoints_uses_1_kilobyte_per_endpoint() {
        let vector = crate::AddressVector::new(crate::address_vector::vector::VectorOptions::default()).unwrap();
        vector.insert_symmetric("10.0.0.1", 100, "5000", 100).unwrap();
        let (mut bytes, mut state) = (0, 1u64);
        for _ in 0..10_000 {
            let mut endpoint = SlotIndex::new(0, 0);
            let mut named = Vec::new();
            while named.len() < 64 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let peer = PeerAddress((state >> 33) % 10_000);
                assert!(vector.lookup(peer).is_some());
                if endpoint.get(peer).is_none() {
                    endpoint.insert(peer, named.len() as ConnectionId);
                    named.push(peer);
                }
            }
            assert!((0..).zip(&named).all(|(slot, peer)| endpoint.get(*peer) == Some(slot)));
            bytes += endpoint.bytes() + size_of::<SlotIndex>();
        }
        assert!(bytes <= 10_000 * 1100, "{} bytes per endpoint", bytes / 10_000);
    }

    #[test]
    fn oversized_addresses_and_slots_are_not_stored() {
        let mut known = SlotIndex::new(0, 0);
        known.insert(PeerAddress(1 << 40), 0);
        known.insert(PeerAddress(0), (1 << SLOT) - 1);
        assert_eq!([known.get(PeerAddress(1 << 40)), known.get(PeerAddress(0))], [None, None]);
        known.insert(PeerAddress((1 << 40) - 1), 0);
        assert_eq!(known.get(PeerAddress((1 << 40) - 1)), Some(0));
        assert_eq!(known.get(PeerAddress::UNSPECIFIED), None);
    }
}
