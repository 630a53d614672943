//! Which slots the network addresses of peers, and their contexts, mean: a small hash table of those that an endpoint has met.
//!
//! Addresses are not kept here: a place says whose address to compare, a slot's (four bytes a peer and some places that are
//! free), or one of the few by which a slot is known as well.

use std::hash::{BuildHasher, RandomState};

use super::peers::{At, Peer};
use crate::transport::Connection;

/// Places to begin with.
const FIRST: usize = 8;
/// Of a place: not a slot's own address but one of the others.
const OTHER: u32 = 1 << 31;

/// The table.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    /// 0 is free; else what is meant, + 1. An eighth at least is free.
    places: Box<[u32]>,
    used: usize,
    /// Other addresses of slots.
    others: Vec<(At, Connection)>,
    /// Peers choose their addresses, but not where those lie here.
    hasher: RandomState,
}

impl Sockets {
    /// The slot of an address.
    pub(super) fn get(&self, address: At, peers: &[Peer]) -> Option<Connection> {
        let mut at = self.place(&address)?;
        loop {
            let what = self.places[at].checked_sub(1)?;
            let (known, slot) = self.meant(what, peers);
            if known == address {
                return Some(slot);
            }
            at = if at + 1 == self.places.len() { 0 } else { at + 1 };
        }
    }

    /// Notes a slot, whose own address is not known here yet.
    pub(super) fn insert(&mut self, slot: Connection, peers: &[Peer]) {
        self.note(slot, peers);
    }

    /// Notes another address of a slot, which is not known here yet.
    pub(super) fn insert_other(&mut self, address: At, slot: Connection, peers: &[Peer]) {
        self.others.push((address, slot));
        self.note(OTHER | (self.others.len() as u32 - 1), peers);
    }

    /// The other addresses of a slot.
    pub(super) fn others(&self, slot: Connection) -> impl Iterator<Item = At> {
        self.others.iter().filter(move |(_, whose)| *whose == slot).map(|(address, _)| *address)
    }

    /// The other addresses, and whose they are.
    pub(super) fn all_others(&self) -> impl Iterator<Item = (Connection, At)> {
        self.others.iter().map(|(address, slot)| (*slot, *address))
    }

    /// Forgets all addresses of a slot.
    pub(super) fn forget(&mut self, slot: Connection, peers: &[Peer]) {
        if self.others(slot).next().is_none() {
            return self.forget_one(slot, peers);
        }
        let own = self.places.iter().filter_map(|place| place.checked_sub(1)).filter(|what| what & OTHER == 0);
        let own: Vec<u32> = own.filter(|what| *what != slot).collect();
        self.others.retain(|(_, whose)| *whose != slot);
        self.places.fill(0);
        self.used = 0;
        for what in own.into_iter().chain((0..self.others.len() as u32).map(|other| OTHER | other)) {
            self.note(what, peers);
        }
    }

    /// Forgets a slot that has no other address. Those behind it that would not be found past the gap move up (Knuth, volume 3,
    /// 6.4, algorithm R).
    fn forget_one(&mut self, slot: Connection, peers: &[Peer]) {
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
            let Some(what) = self.places[at].checked_sub(1) else { break };
            let Some(home) = self.place(&self.meant(what, peers).0) else { break };
            // How far it is from where looking for it begins, and from the gap.
            if (at + size - home) % size >= (at + size - gap) % size {
                self.places[gap] = self.places[at];
                gap = at;
            }
        }
        self.places[gap] = 0;
        self.used -= 1;
    }

    /// Bytes that it takes, apart from itself.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.places) + self.others.capacity() * size_of::<(At, Connection)>()
    }

    /// Whose address, and which, a place means.
    fn meant(&self, what: u32, peers: &[Peer]) -> (At, Connection) {
        if what & OTHER == 0 { (peers[what as usize].at(), what) } else { self.others[(what & !OTHER) as usize] }
    }

    /// Where looking for an address begins; `None` if there are no places.
    fn place(&self, address: &At) -> Option<usize> {
        let hash = self.hasher.hash_one(address) as u32;
        let at = (u64::from(hash) * self.places.len() as u64) >> 32;
        (!self.places.is_empty()).then_some(at as usize)
    }

    fn note(&mut self, what: u32, peers: &[Peer]) {
        if (self.used + 1) * 8 > self.places.len() * 7 {
            let size = (self.places.len() * 3 / 2).max(FIRST);
            let before = std::mem::replace(&mut self.places, vec![0; size].into());
            before.iter().filter_map(|place| place.checked_sub(1)).for_each(|what| self.put(what, peers));
        }
        self.put(what, peers);
        self.used += 1;
    }

    fn put(&mut self, what: u32, peers: &[Peer]) {
        let (address, _) = self.meant(what, peers);
        let Some(mut at) = self.place(&address) else { return };
        while self.places[at] != 0 {
            at = if at + 1 == self.places.len() { 0 } else { at + 1 };
        }
        self.places[at] = what + 1;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn address(n: u16) -> At {
        (SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 5000 + n / 2)), n % 2)
    }

    #[test]
    fn addresses_are_found_under_all_their_names_until_they_are_forgotten() {
        let (mut sockets, mut peers) = (Sockets::default(), Vec::new());
        assert_eq!(sockets.get(address(0), &peers), None);
        for n in 0..300u16 {
            peers.push(Peer::new(address(n)));
            sockets.insert(n.into(), &peers);
            if n.is_multiple_of(3) {
                sockets.insert_other(address(n + 1000), n.into(), &peers);
            }
        }
        let found = |sockets: &Sockets, n| sockets.get(address(n), &peers);
        assert!((0..300).all(|n| found(&sockets, n) == Some(n.into())));
        assert!((0..300).all(|n| found(&sockets, n + 1000) == n.is_multiple_of(3).then_some(n.into())));
        sockets.forget(6, &peers);
        assert_eq!([6, 1006, 7, 1009].map(|n| found(&sockets, n)), [None, None, Some(7), Some(9)]);
        assert!((0..300).all(|n| n == 6 || found(&sockets, n) == Some(n.into())));
    }

    #[test]
    fn what_is_forgotten_leaves_all_others_to_be_found() {
        let (mut sockets, mut peers) = (Sockets::default(), Vec::new());
        for n in 0..200u16 {
            peers.push(Peer::new(address(n)));
            sockets.insert(n.into(), &peers);
        }
        // In an order in which gaps open everywhere; places are used again.
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
    fn a_peer_takes_less_than_eight_bytes() {
        let (mut sockets, mut peers) = (Sockets::default(), Vec::new());
        for n in 0..1000u16 {
            peers.push(Peer::new(address(n)));
            sockets.insert(n.into(), &peers);
            let least = FIRST * size_of::<u32>();
            assert!(sockets.bytes() <= least.max(usize::from(n + 1) * 7), "{} bytes for {}", sockets.bytes(), n + 1);
        }
    }
}
