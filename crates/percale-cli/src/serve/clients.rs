//! The connected clients, by address. Events identify a connection by this address when it begins and ends.
//!
//! Each client has one number in the address vector. Only the event thread assigns and removes numbers. It removes a
//! number only after the last answer to the former client has been sent. Otherwise the number might be assigned to
//! another client, which would then receive the answer.
//!
//! The number of clients is bounded. If all places are occupied, a new client displaces a client of the host that has
//! the most clients, or is rejected if none of these can be displaced (see [`GRACE`]). The displaced client is the one
//! without an open file that has been idle longest or, if all have open files, the one that has been idle longest.
//! Therefore idle clients cannot block new ones, and a new client never displaces a client of a host that has fewer
//! clients than its own host.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use percale::{AddressVector, PeerAddress};

use super::client::{Client, Service};

/// The maximum number of clients at a time. Each may use four slots of one block.
pub(super) const CLIENTS: usize = 64;

/// How long a client must have been idle before it can be displaced, unless its host has at least two clients more than
/// the host of the new client.
const GRACE: Duration = Duration::from_secs(1);

/// All clients.
#[derive(Debug)]
pub(super) struct Clients {
    service: Arc<Service>,
    vector: AddressVector,
    present: HashMap<SocketAddr, Arc<Client>>,
    /// Disconnected clients for which threads still work.
    left: Vec<(SocketAddr, PeerAddress, Weak<Client>)>,
}

impl Clients {
    pub(super) fn new(service: Arc<Service>, vector: AddressVector) -> Self {
        Self { service, vector, present: HashMap::new(), left: Vec::new() }
    }

    /// Handles a new connection.
    pub(super) fn enter(&mut self, address: SocketAddr) {
        let number = match self.present.get(&address) {
            Some(present) => Some(present.peer()),
            None => self.left.iter().find(|(left, ..)| *left == address).map(|(_, peer, _)| *peer),
        };
        let known = number.is_some();
        let Some(peer) = number.or_else(|| self.vector.insert(address).ok()) else { return };
        let endpoint = &self.service.endpoint;
        // If the client cannot be reached at the address that it advertises, it is not the client of that address, and
        // must not affect the actual client.
        let served = endpoint.is_connected(peer) && {
            // Another client may have had the address before. The number is kept, so that each address has only one
            // number.
            self.leave(address);
            self.admit(peer, address)
        };
        if !served && !known && !self.left.iter().any(|(left, ..)| *left == address) {
            let _removed: Result<(), _> = self.vector.remove(peer);
        }
    }

    /// Assigns a place to a connected client, or closes its connection.
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
                self.service.report.failed(address, &format!("the limit of {CLIENTS} clients is reached"));
                self.service.endpoint.disconnect(peer);
                false
            }
        }
    }

    /// Disconnects a client to make room for a new client at `newcomer`. Returns false if there is no client to
    /// disconnect.
    fn make_room(&mut self, newcomer: IpAddr) -> bool {
        let mut hosts: HashMap<IpAddr, usize> = HashMap::new();
        for address in self.present.keys() {
            *hosts.entry(address.ip()).or_default() += 1;
        }
        let own = hosts.get(&newcomer).copied().unwrap_or(0);
        let Some((&host, &most)) = hosts.iter().max_by_key(|(_, count)| **count) else { return false };
        // If a host has at least two clients more than the new client's host, one of them can be disconnected
        // immediately.
        let grace = if most > own + 1 { Duration::ZERO } else { GRACE };
        let candidates = self.present.values().filter(|client| client.address().ip() == host && client.idle() >= grace);
        let victim = candidates.max_by_key(|client| (!client.has_transfer(), client.idle())).cloned();
        let Some(victim) = victim else { return false };
        victim.cut_off("closed because it was idle and another client needed the connection");
        self.leave(victim.address());
        true
    }

    /// Handles the end of a connection. An event contains the peer if the connection had a number in the address
    /// vector.
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

    /// Adds clients for which the event was lost. Events can be lost because the event queue is bounded.
    pub(super) fn recount(&mut self) {
        for (address, _) in self.service.endpoint.describe_peers() {
            if address != self.service.endpoint.address() && !self.present.contains_key(&address) {
                self.enter(address);
            }
        }
    }

    /// Frees the places of clients that have ended, and the numbers that are no longer used for sending.
    pub(super) fn sweep(&mut self) {
        let gone: Vec<_> = self.present.iter().filter(|(_, client)| client.is_gone()).map(|(at, _)| *at).collect();
        gone.into_iter().for_each(|address| self.leave(address));
        let vector = &self.vector;
        self.left.retain(|(_, peer, client)| {
            let in_use = client.strong_count() > 0;
            if !in_use {
                // The number exists, because only this function removes it.
                let _removed: Result<(), _> = vector.remove(*peer);
            }
            in_use
        });
    }
}
