//! The clients that are connected, by address: that is what names a connection while it comes and goes.
//!
//! Each has one number in the address vector, which only the thread of events gives and takes back: not before the last answer to the
//! former client is out, since the number might be another's by then.
//!
//! There is a place for so many clients. Where all are taken a newcomer gets that of another: of the host that has most, the client
//! without a file, or else the one that has been idle longest. So clients that stay and do nothing keep nobody out, and the clients of
//! one host do not displace those of others.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use percale::{AddressVector, PeerAddress};

use super::client::{Client, Service};

/// How many clients there may be at a time; each may have four slots of a block open.
pub(super) const CLIENTS: usize = 64;

/// How long a client has its place for certain.
const GRACE: Duration = Duration::from_secs(1);

/// All clients.
#[derive(Debug)]
pub(super) struct Clients {
    service: Arc<Service>,
    vector: AddressVector,
    present: HashMap<SocketAddr, Arc<Client>>,
    /// Those that left, and for which threads are still at work.
    left: Vec<(SocketAddr, PeerAddress, Weak<Client>)>,
}

impl Clients {
    pub(super) fn new(service: Arc<Service>, vector: AddressVector) -> Self {
        Self { service, vector, present: HashMap::new(), left: Vec::new() }
    }

    /// Somebody has connected.
    pub(super) fn enter(&mut self, address: SocketAddr) {
        let number = match self.present.get(&address) {
            Some(present) => Some(present.peer()),
            None => self.left.iter().find(|(left, ..)| *left == address).map(|(_, peer, _)| *peer),
        };
        let known = number.is_some();
        let Some(peer) = number.or_else(|| self.vector.insert(address).ok()) else { return };
        let endpoint = &self.service.endpoint;
        // Who was not met at the address that he names is no client of that address, and has no effect on the one that is.
        let served = endpoint.is_connected(peer) && {
            // Another may have had the address before; it keeps the number, so that each address has one.
            self.leave(address);
            self.admit(peer, address)
        };
        if !served && !known && !self.left.iter().any(|(left, ..)| *left == address) {
            let _removed: Result<(), _> = self.vector.remove(peer);
        }
    }

    /// Gives a connected client a place, or cuts it off.
    fn admit(&mut self, peer: PeerAddress, address: SocketAddr) -> bool {
        let room = self.present.len() < CLIENTS || self.make_room(address.ip());
        let started =
            if room && self.left.len() < CLIENTS { Client::start(&self.service, peer, address).ok() } else { None };
        match started {
            Some(client) => {
                self.left.retain(|(left, ..)| *left != address);
                self.present.insert(address, client);
                true
            }
            None => {
                self.service.report.failed(address, &format!("there are {CLIENTS} clients already"));
                self.service.endpoint.disconnect(peer);
                false
            }
        }
    }

    /// Ends a client for the sake of one at `newcomer`. Whether there was one to end.
    fn make_room(&mut self, newcomer: IpAddr) -> bool {
        let mut hosts: HashMap<IpAddr, usize> = HashMap::new();
        for address in self.present.keys() {
            *hosts.entry(address.ip()).or_default() += 1;
        }
        let own = hosts.get(&newcomer).copied().unwrap_or(0);
        let Some((&host, &most)) = hosts.iter().max_by_key(|(_, count)| **count) else { return false };
        // A host that has much more than its share gives way at once.
        let grace = if most > own + 1 { Duration::ZERO } else { GRACE };
        let candidates = self.present.values().filter(|client| client.address().ip() == host && client.idle() >= grace);
        let victim = candidates.max_by_key(|client| (!client.has_transfer(), client.idle())).cloned();
        let Some(victim) = victim else { return false };
        victim.cut_off("it was idle, and its place was needed for another client");
        self.leave(victim.address());
        true
    }

    /// A connection has ended; events name its peer if it had a number here.
    pub(super) fn ended(&mut self, peer: PeerAddress, address: SocketAddr) {
        if self.present.get(&address).is_some_and(|client| client.peer() == peer) {
            self.leave(address);
        }
    }

    fn leave(&mut self, address: SocketAddr) {
        if let Some(client) = self.present.remove(&address) {
            client.leave();
            self.left.push((address, client.peer(), Arc::downgrade(&client)));
        }
    }

    /// Looks after clients of which no event told: events are bounded.
    pub(super) fn recount(&mut self) {
        for (address, _) in self.service.endpoint.describe_peers() {
            if address != self.service.endpoint.address() && !self.present.contains_key(&address) {
                self.enter(address);
            }
        }
    }

    /// Takes back the places of clients that have ended, and the numbers that nothing is sent to any more.
    pub(super) fn sweep(&mut self) {
        let gone: Vec<_> = self.present.iter().filter(|(_, client)| client.is_gone()).map(|(at, _)| *at).collect();
        gone.into_iter().for_each(|address| self.leave(address));
        let vector = &self.vector;
        self.left.retain(|(_, peer, client)| {
            let in_use = client.strong_count() > 0;
            if !in_use {
                // It is there: only this takes it back.
                let _removed: Result<(), _> = vector.remove(*peer);
            }
            in_use
        });
    }
}
