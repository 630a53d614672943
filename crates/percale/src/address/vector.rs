//! Address vectors: numbers for peers.
//!
//! An [`AddressVector`] gives each network address that is inserted a [`PeerAddress`]. A table gives the lowest unused
//! index; a map gives values that the application must not interpret (they are indices too). An entry costs 8 bytes for
//! an IPv4 address and 24 for an IPv6 address, and a symmetric range some 80 bytes, however long it is; who is connected
//! is none of the vector's business. **Reads take no lock** (`table` says how that goes). Cloning gives another handle
//! to the same vector.
//!
//! Looking for the number of an address ([`AddressVector::find`]) walks the table. That is the price of the small
//! entries: an index would cost more than the table itself, for peers most of which are never heard from. It takes
//! about a nanosecond an entry, once for each connection that a peer makes; [`AddressVector::removals`] tells who
//! keeps the answer when to ask again.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::PeerAddress;
use super::entry::check;
use super::inserted::Inserted;
use super::name::{self, Family, Name};
use super::store::{Cell, Store};
use super::symmetric::Symmetric;
use super::table::Writer;

pub use super::error::AddressError;

/// What a vector's numbers mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VectorType {
    /// Indices: the first address inserted is 0, and each gets the lowest that is unused (`FI_AV_TABLE`).
    #[default]
    Table,
    /// Values to be stored and not interpreted (`FI_AV_MAP`).
    Map,
}

/// How a vector is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct VectorOptions {
    /// What its numbers mean.
    pub kind: VectorType,
    /// The only family of addresses that it takes; `None`: both.
    pub family: Option<Family>,
    /// Top bits of a [`PeerAddress`] that number a peer's receive contexts, at most 31.
    pub receive_context_bits: u32,
}

/// Numbers for peers. Each handle is the same vector.
#[derive(Clone, Debug)]
pub struct AddressVector {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: VectorOptions,
    store: Store,
    writing: Mutex<()>,
}

impl AddressVector {
    /// An empty vector.
    ///
    /// # Errors
    /// If too many bits are to be reserved for receive contexts.
    pub fn new(options: VectorOptions) -> Result<Self, AddressError> {
        if options.receive_context_bits > 31 {
            return Err(AddressError::ReceiveContextBits(options.receive_context_bits));
        }
        Ok(Self { shared: Arc::new(Shared { options, store: Store::local(), writing: Mutex::new(()) }) })
    }

    /// How it was made.
    #[must_use]
    pub fn options(&self) -> &VectorOptions {
        &self.shared.options
    }

    /// Inserts an address: a `SocketAddr`, or a text such as `"node7:7471"`. An address that is inserted twice has two
    /// numbers. A name that must be resolved blocks the caller, but no other.
    ///
    /// # Errors
    /// If it names no endpoint, is not of the vector's family, or the vector is full. Nothing is changed then.
    pub fn insert(&self, address: impl Name) -> Result<PeerAddress, AddressError> {
        let address = self.resolved(&address)?;
        let (_lock, mut writer) = self.shared.write()?;
        writer.insert(&address).map(|index| PeerAddress(index as u64))
    }

    /// Inserts addresses in order, as one step against other writers. The outcome of each is at its place. In a table
    /// the numbers are known beforehand: a failed address leaves its index unused for now, and does not shift those
    /// after it.
    ///
    /// # Errors
    /// If the vector cannot be changed at all. A bad address is no error of the call.
    pub fn insert_many<N: Name>(&self, addresses: impl IntoIterator<Item = N>) -> Result<Inserted, AddressError> {
        let mut inserted = Inserted::default();
        let mut addresses = addresses.into_iter();
        // Names are resolved before the lock is taken; addresses need no more than a look.
        let mut all = addresses.by_ref().map(|address| self.resolved(&address)).peekable();
        if N::IMMEDIATE {
            self.put(&mut inserted, all)?;
        } else if all.peek().is_some() {
            let resolved: Vec<_> = all.collect();
            self.put(&mut inserted, resolved)?;
        }
        Ok(inserted)
    }

    /// As [`insert_many`](Self::insert_many); an address that failed before has its place, and fails.
    ///
    /// # Errors
    /// As [`insert_many`](Self::insert_many).
    pub fn insert_outcomes(
        &self,
        addresses: impl IntoIterator<Item = Result<SocketAddr, AddressError>>,
    ) -> Result<Inserted, AddressError> {
        let mut inserted = Inserted::default();
        self.put(&mut inserted, addresses.into_iter().map(|address| self.resolved(&address?)))?;
        Ok(inserted)
    }

    /// Inserts outcomes of resolving.
    fn put(
        &self,
        inserted: &mut Inserted,
        addresses: impl IntoIterator<Item = Result<SocketAddr, AddressError>>,
    ) -> Result<(), AddressError> {
        let (_lock, mut writer) = self.shared.write()?;
        for address in addresses {
            let outcome = address.and_then(|address| writer.insert(&address));
            if outcome.is_err() {
                writer.skip();
            }
            inserted.push(outcome);
        }
        Ok(())
    }

    /// As [`insert_many`](Self::insert_many), with an outcome for each address.
    pub fn insert_all<N: Name>(
        &self,
        addresses: impl IntoIterator<Item = N>,
    ) -> Vec<Result<PeerAddress, AddressError>> {
        let addresses: Vec<N> = addresses.into_iter().collect();
        let count = addresses.len();
        match self.insert_many(addresses) {
            Ok(inserted) => inserted.iter().map(|outcome| outcome.map_err(Clone::clone)).collect(),
            Err(error) => vec![Err(error); count],
        }
    }

    /// Inserts the address of a node's name, or address, and a service's name, or port (`fi_av_insertsvc`). Of several
    /// addresses the first of the vector's family is taken, or without one the first IPv4 address before any other.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_service(&self, node: &str, service: &str) -> Result<PeerAddress, AddressError> {
        self.insert(name::resolve_service(node, service, self.shared.options.family)?)
    }

    /// Inserts `nodes` nodes counted up from `node` with `services` services each, counted up from `service`; all
    /// services of a node before the next node (`fi_av_insertsym`). A node is an address, or a name that ends in a number
    /// (`node08` is followed by `node09`); a service is a port, or the name of the first one. What lies behind all that was
    /// inserted before takes the room of one entry, however much it is.
    ///
    /// # Errors
    /// If there is no such range; a name without an address fails alone, as in [`insert_many`](Self::insert_many).
    pub fn insert_symmetric(
        &self,
        node: &str,
        nodes: usize,
        service: &str,
        services: usize,
    ) -> Result<Inserted, AddressError> {
        let family = self.shared.options.family;
        let blocks = Symmetric { node, nodes, service, services }
            .blocks(family, |name, port| name::resolve_port(name, port, family))?;
        let mut inserted = Inserted::default();
        let (_lock, mut writer) = self.shared.write()?;
        for block in blocks {
            match block {
                Ok(block) => {
                    let mut done = 0;
                    let outcome = writer.insert_block(&block, |first, count| {
                        inserted.there(first as u64, count);
                        done += count;
                    });
                    if let Err(error) = outcome {
                        inserted.failed(block.len() - done, error);
                    }
                }
                Err((count, error)) => {
                    (0..count).for_each(|_| writer.skip());
                    inserted.failed(count, error);
                }
            }
        }
        Ok(inserted)
    }

    fn resolved(&self, address: &impl Name) -> Result<SocketAddr, AddressError> {
        let address = address.resolve(self.shared.options.family)?;
        check(&address).map(|()| address)
    }

    /// The network address of a peer, whichever of its receive contexts is named. Takes no lock.
    #[must_use]
    #[inline]
    pub fn lookup(&self, peer: PeerAddress) -> Option<SocketAddr> {
        self.shared.store.load(self.index(peer)?)
    }

    /// Removes a peer. Its number may be given to another at once.
    ///
    /// # Errors
    /// If it is not in the vector.
    pub fn remove(&self, peer: PeerAddress) -> Result<(), AddressError> {
        let index = self.index(peer).ok_or(AddressError::Unknown(peer))?;
        let (_lock, mut writer) = self.shared.write()?;
        if writer.remove(index)? { Ok(()) } else { Err(AddressError::Unknown(peer)) }
    }

    /// The number of an address, the lowest if it has several; `None` if it is not in the vector. Takes no lock, and
    /// time in proportion to the entries that are not in ranges.
    #[must_use]
    pub fn find(&self, address: SocketAddr) -> Option<PeerAddress> {
        self.shared.store.find(address).map(|index| PeerAddress(index as u64))
    }

    /// Grows with every change: what [`find`](Self::find) did not find is still not there if this was the same before the
    /// question as it is now.
    #[must_use]
    #[inline]
    pub fn changes(&self) -> u64 {
        self.shared.store.cell(Cell::Changes).load(Ordering::Acquire)
    }

    /// Grows with every removal: what [`find`](Self::find) or [`lookup`](Self::lookup) has answered is still right if this
    /// was the same, and even, before the question as it is now. It is odd while something is being removed.
    #[must_use]
    #[inline]
    pub fn removals(&self) -> u64 {
        self.shared.store.cell(Cell::Removals).load(Ordering::Acquire)
    }

    /// Peers in the vector.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.store.cell(Cell::Used).load(Ordering::Acquire) as usize
    }

    /// Whether there are no peers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry that a peer's number names.
    #[inline]
    fn index(&self, peer: PeerAddress) -> Option<usize> {
        if !peer.is_specified() {
            return None;
        }
        let bits = self.shared.options.receive_context_bits;
        usize::try_from(peer.0 << bits >> bits).ok().filter(|&index| index < self.shared.store.limit())
    }
}

impl Shared {
    /// The lock of writers, and who works under it.
    fn write(&self) -> Result<(MutexGuard<'_, ()>, Writer<'_>), AddressError> {
        let lock = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((lock, Writer::new(&self.store)))
    }
}

#[cfg(test)]
#[path = "vector_tests.rs"]
mod tests;
