//! The clients that are connected, by address: that is what names a connection while it comes and goes.
//!
//! Each has one number in the address vector, which only the progress thread gives and takes back: not before the last answer to the
//! former client is out, since the number might be another's by then.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use percale::{AddressVector, PeerAddress};

use super::client::{Client, Service};

/// All clients.
#[derive(Debug)]
pub(super) struct Clients {
    vector: AddressVector,
    present: HashMap<SocketAddr, Arc<Client>>,
    /// Those that left, and whose numbers may be in use.
    left: Vec<(SocketAddr, PeerAddress, Weak<Client>)>,
}

impl Clients {
    pub(super) fn new(vector: AddressVector) -> Self {
        Self { vector, present: HashMap::new(), left: Vec::new() }
    }

    /// The client with this number.
    pub(super) fn get(&self, peer: PeerAddress) -> Option<&Arc<Client>> {
        self.present.get(&self.vector.lookup(peer)?)
    }

    /// A client has connected. `None` if it cannot be given a number.
    pub(super) fn enter(&mut self, service: &Arc<Service>, address: SocketAddr) -> Option<&Arc<Client>> {
        // Another may have had the address before; it keeps the number, so that each address has one.
        self.leave(address);
        let peer = match self.left.iter().position(|(left, ..)| *left == address) {
            Some(at) => self.left.swap_remove(at).1,
            None => self.vector.insert(address).ok()?,
        };
        Some(self.present.entry(address).insert_entry(Client::new(service, peer, address)).into_mut())
    }

    /// A client has gone.
    pub(super) fn leave(&mut self, address: SocketAddr) {
        if let Some(client) = self.present.remove(&address) {
            client.abandon();
            self.left.push((address, client.peer(), Arc::downgrade(&client)));
        }
    }

    /// Takes back the numbers that nothing is sent to any more.
    pub(super) fn sweep(&mut self) {
        self.left.retain(|(_, peer, client)| {
            let in_use = client.strong_count() > 0;
            if !in_use {
                // It is there: only this takes it back.
                let _removed: Result<(), _> = self.vector.remove(*peer);
            }
            in_use
        });
    }
}
