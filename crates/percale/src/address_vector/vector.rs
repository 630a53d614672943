//! Address vectors, which assign numbers to peers.
//!
//! An [`AddressVector`] assigns a [`PeerAddress`] to each network address that is inserted. A table assigns the lowest
//! unused index. A map assigns values that the application must not interpret (the index, plus the base of a named
//! map). An entry takes 8 bytes for an IPv4 address and 24 bytes for an IPv6 address. A symmetric range of any length
//! takes about 80 bytes. In a named vector, every address takes 8 more bytes, for its number in memory. The vector does
//! not track which peers are connected. **Reads take no lock** (see `table`). Cloning returns another handle to the
//! same vector. In a forked child, a vector of the parent can be neither changed nor searched. A lookup returns `None`,
//! or the address from the child's own copy of the parent's memory.
//!
//! [`AddressVector::find`], which returns the number of an address, searches the table. This is the price of small
//! entries: an index would need more memory than the table itself, and most peers never send a message. A search takes
//! about half a nanosecond per entry, and is needed once for each connection that a peer makes. A caller that caches
//! the result can compare [`AddressVector::removals`] to determine when to search again.

use crate::system::process_socket::ProcessSocket;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use super::cells::{TableField, TableFields};
use super::entry::{TableEntry, check};
use super::inserted::Inserted;
use super::name::{self, Family, Name};
use super::names::OpenParameters;
use super::shared;
use super::store::VectorStore;
use super::symmetric::Symmetric;
use super::table::Writer;
use crate::system::forked::ProcessMutex;
use crate::types::PeerAddress;

pub use super::error::AddressError;

/// The meaning of a vector's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VectorType {
    /// Indices: the first inserted address has index 0, and each address gets the lowest unused index (`FI_AV_TABLE`).
    #[default]
    Table,
    /// Values that the application stores and does not interpret (`FI_AV_MAP`).
    Map,
}

/// The options of a vector.
#[derive(Clone, Debug, Default)]
pub struct VectorOptions {
    /// The meaning of the vector's numbers.
    pub kind: VectorType,
    /// The only address family that the vector accepts. `None` accepts both.
    pub family: Option<Family>,
    /// The number of top bits of a [`PeerAddress`] that select a peer's receive context, at most 31.
    pub receive_context_bits: u32,
    /// The expected number of addresses. The vector accepts more. A named vector is created with room for at least this
    /// many.
    pub expected: usize,
    /// A name under which other processes of the same user share the vector. The first process that opens it creates
    /// it, and it exists until the last process closes it. Vectors of different families are different vectors, even if
    /// they have the same name.
    pub name: Option<String>,
    /// The domain's name. Vectors with the same name in differently named domains are different vectors.
    pub domain: String,
    /// Whether the named vector must already exist and is opened only for reading.
    pub read_only: bool,
    /// The base of the numbers of a named map. In processes with equal bases, equal numbers denote the same peer.
    pub base: u64,
}

/// An address vector, which assigns numbers to peers. Clones are handles to the same vector.
#[derive(Clone)]
pub struct AddressVector {
    shared: Arc<VectorState>,
    /// The cells of the store, kept here for direct access.
    cells: TableFields,
}

crate::short_debug!(AddressVector, "AddressVector");

#[derive(Debug)]
struct VectorState {
    options: VectorOptions,
    /// The bits of a number that do not select a receive context.
    mask: u64,
    store: VectorStore,
    writing: ProcessMutex<()>,
    /// Announces to other processes that this one has the vector.
    _presence: Option<ProcessSocket>,
}

/// The writers' lock.
#[derive(Debug)]
struct WriteLock<'a> {
    _here: MutexGuard<'a, ()>,
    /// Set if the vector is also locked against other processes.
    there: Option<&'a shared::SharedStore>,
}

impl Drop for WriteLock<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.there {
            shared.unlock();
        }
    }
}

impl AddressVector {
    /// Creates an empty vector, or creates or opens the vector with the given name.
    ///
    /// # Errors
    /// If too many bits are reserved for receive contexts, if the numbers do not fit above the base, if a read-only
    /// vector has no name, or if the named vector cannot be created or opened.
    pub fn new(mut options: VectorOptions) -> Result<Self, AddressError> {
        let bits = options.receive_context_bits;
        if bits > 31 {
            return Err(AddressError::ReceiveContextBits(bits));
        }
        let (store, presence) = match &options.name {
            None if options.read_only => return Err(AddressError::Unnamed),
            None => (VectorStore::local(options.expected), None),
            Some(name) => {
                let family = options.family.map_or_else(String::new, |family| family.to_string());
                let opening = OpenParameters {
                    name,
                    domain: &options.domain,
                    family: &family,
                    read_only: options.read_only,
                    expected: options.expected,
                };
                let named = opening.open().map_err(|error| AddressError::Open {
                    name: name.clone(),
                    errno: code_of(&error),
                    reason: error.to_string(),
                })?;
                (VectorStore::shared(named.shared), Some(named.presence))
            }
        };
        if options.kind != VectorType::Map || presence.is_none() {
            options.base = 0;
        }
        let base = options.base;
        if base.checked_add(store.limit() as u64).is_none_or(|end| end > u64::MAX >> bits) {
            return Err(AddressError::Base { base, bits });
        }
        let cells = store.cells.clone();
        let (mask, writing) = (u64::MAX >> bits, ProcessMutex::new(()));
        Ok(Self { shared: Arc::new(VectorState { options, mask, store, writing, _presence: presence }), cells })
    }

    /// Returns the options with which the vector was created.
    #[must_use]
    pub fn options(&self) -> &VectorOptions {
        &self.shared.options
    }

    /// Inserts an address, which is a `SocketAddr` or a text such as `"node7:7471"`. An address that is inserted twice
    /// gets two numbers. Resolving a name blocks this caller, but no other caller.
    ///
    /// # Errors
    /// If a name does not resolve, if the address is not that of an endpoint or not of the vector's family, or if the
    /// vector is full or cannot be changed. In these cases nothing is changed.
    pub fn insert(&self, address: impl Name) -> Result<PeerAddress, AddressError> {
        let address = self.resolved(&address)?;
        let (_lock, mut writer) = self.shared.write()?;
        writer.insert(&address).map(|index| self.number(index))
    }

    /// Inserts addresses in order and, for other writers, atomically. The outcome of each address has the same index as
    /// the address. The numbers in a table are predictable: a failed address leaves its index unused, and does not
    /// shift the addresses after it. The iterator must not change this vector, because the call may hold the writers'
    /// lock.
    ///
    /// # Errors
    /// If the vector cannot be changed at all. An invalid address does not make the call fail.
    pub fn insert_many<N: Name>(&self, addresses: impl IntoIterator<Item = N>) -> Result<Inserted, AddressError> {
        let mut inserted = Inserted::default();
        let mut addresses = addresses.into_iter();
        // Names are resolved before the lock is taken. Afterwards addresses are only checked.
        let mut all = addresses.by_ref().map(|address| self.resolved(&address)).peekable();
        if N::IMMEDIATE {
            self.put(&mut inserted, all)?;
        } else if all.peek().is_some() {
            let resolved: Vec<_> = all.collect();
            self.put(&mut inserted, resolved)?;
        }
        Ok(inserted)
    }

    /// Like [`insert_many`](Self::insert_many), but the list may contain addresses that failed before. They keep their
    /// positions, and fail.
    ///
    /// # Errors
    /// The errors of [`insert_many`](Self::insert_many).
    pub fn insert_outcomes(
        &self,
        addresses: impl IntoIterator<Item = Result<SocketAddr, AddressError>>,
    ) -> Result<Inserted, AddressError> {
        let mut inserted = Inserted::default();
        self.put(&mut inserted, addresses.into_iter().map(|address| self.resolved(&address?)))?;
        Ok(inserted)
    }

    /// Inserts the outcomes of resolving names.
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
            inserted.push(outcome.map(|index| self.number(index)));
        }
        Ok(())
    }

    /// Like [`insert_many`](Self::insert_many), but returns the outcomes in a list. If the vector cannot be changed,
    /// every address fails with this error.
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

    /// Inserts the address of a node (a name or an address) and a service (a name or a port) (`fi_av_insertsvc`). If a
    /// name has several addresses, the first one of the vector's family is used. If the vector accepts both families,
    /// the first IPv4 address is preferred.
    ///
    /// # Errors
    /// The errors of [`insert`](Self::insert), or if the service has no port.
    pub fn insert_service(&self, node: &str, service: &str) -> Result<PeerAddress, AddressError> {
        self.shared.check_process()?;
        self.insert(name::resolve_service(node, service, self.shared.options.family)?)
    }

    /// Inserts `nodes` consecutive nodes, starting with `node`. Each has `services` consecutive services, starting with
    /// `service`. All services of a node come before the next node (`fi_av_insertsym`). A node is an address, or a name
    /// that ends in a number (`node08` is followed by `node09`). A service is a port, or the name of the first one. The
    /// part of a consecutive range that is behind all existing entries is stored in about 80 bytes, regardless of its
    /// length.
    ///
    /// # Errors
    /// If the range is not possible, or the vector cannot be changed. If a name has no address, only its addresses
    /// fail, as in [`insert_many`](Self::insert_many).
    pub fn insert_symmetric(
        &self,
        node: &str,
        nodes: usize,
        service: &str,
        services: usize,
    ) -> Result<Inserted, AddressError> {
        self.shared.check_process()?;
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
                        inserted.there(self.number(first), count);
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
        self.shared.check_process()?;
        let address = address.resolve(self.shared.options.family)?;
        check(&address).map(|()| address)
    }

    /// Returns the network address of a peer. The receive context in the number is ignored. Takes no lock.
    #[must_use]
    #[inline]
    pub fn lookup(&self, peer: PeerAddress) -> Option<SocketAddr> {
        let VectorState { mask, store, .. } = &*self.shared;
        // The numbers of a vector that is local to this process count from 0.
        let word = store.near().get((peer.0 & mask) as usize).map_or(0, |word| word.load(Ordering::Acquire));
        if let Some((ip, port)) = TableEntry::unpack_v4(word) {
            return Some(SocketAddr::new(ip.into(), port));
        }
        if word == TableEntry::Untouched.pack()
            && let Some((ip, port)) = self.lookup_v4(peer)
        {
            return Some(SocketAddr::new(ip.into(), port));
        }
        // The address is rebuilt from its parts, so that the usual result need not be stored in memory, where this call
        // returns its result. A store that waits for the word of one lookup makes the processor delay the next lookup.
        match self.lookup_otherwise(peer)? {
            SocketAddr::V4(v4) => Some(SocketAddrV4::new(*v4.ip(), v4.port()).into()),
            SocketAddr::V6(v6) => Some(SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), v6.scope_id()).into()),
        }
    }

    /// Looks up an IPv4 address of a range, or of a shared vector.
    #[inline(never)]
    fn lookup_v4(&self, peer: PeerAddress) -> Option<(Ipv4Addr, u16)> {
        self.shared.check_process().ok()?;
        self.shared.store.load_v4(self.index(peer)?)
    }

    /// Looks up any address.
    #[inline(never)]
    fn lookup_otherwise(&self, peer: PeerAddress) -> Option<SocketAddr> {
        self.shared.check_process().ok()?;
        self.shared.store.load(self.index(peer)?)
    }

    /// Removes a peer. Its number may be reused immediately.
    ///
    /// # Errors
    /// If the peer is not in the vector, or the vector cannot be changed.
    pub fn remove(&self, peer: PeerAddress) -> Result<(), AddressError> {
        self.shared.check_process()?;
        let index = self.index(peer).ok_or(AddressError::Unknown(peer))?;
        let (_lock, mut writer) = self.shared.write()?;
        if writer.remove(index)? { Ok(()) } else { Err(AddressError::Unknown(peer)) }
    }

    /// Returns the number of an address, or the lowest number if it has several. Returns `None` if the address is not
    /// in the vector. Takes no lock. The time is proportional to the number of entries that are not in ranges.
    #[must_use]
    pub fn find(&self, address: SocketAddr) -> Option<PeerAddress> {
        self.shared.check_process().ok()?;
        self.shared.store.find(address).map(|index| self.number(index))
    }

    /// Returns a counter that increases with every change. If [`find`](Self::find) did not find an address, and this
    /// counter has not changed since before that call, no insertion of the address has completed since the call.
    #[must_use]
    #[inline]
    pub fn changes(&self) -> u64 {
        if self.shared.writing.is_here() { self.changes_here() } else { 0 }
    }

    /// Like [`changes`](Self::changes), for endpoints, which are not used in forked children.
    #[inline]
    pub(crate) fn changes_here(&self) -> u64 {
        self.cells[TableField::Changes as usize].load(Ordering::Acquire)
    }

    /// Returns a counter that increases with every removal. A result of [`find`](Self::find) or
    /// [`lookup`](Self::lookup) is still valid if this counter had the same value before that call as it has now, and
    /// the value is even. It is odd while an address is being removed.
    #[must_use]
    #[inline]
    pub fn removals(&self) -> u64 {
        if self.shared.writing.is_here() { self.removals_here() } else { 0 }
    }

    /// Like [`removals`](Self::removals), for endpoints, which are not used in forked children.
    #[inline]
    pub(crate) fn removals_here(&self) -> u64 {
        self.cells[TableField::Removals as usize].load(Ordering::Acquire)
    }

    /// Returns the address in this process's memory at which the numbers of a named vector's entries are stored, in
    /// order and counted from 0, while the vector is open. Returns `None` for a vector without a name. The numbers have
    /// 64 bits each, and are written when entries are added.
    #[must_use]
    pub fn numbers_in_memory(&self) -> Option<usize> {
        self.shared.check_process().ok()?;
        self.shared.store.as_shared().map(shared::SharedStore::numbers)
    }

    /// Returns the number of peers in the vector.
    #[must_use]
    pub fn len(&self) -> usize {
        if !self.shared.writing.is_here() {
            return 0;
        }
        self.cells[TableField::Used as usize].load(Ordering::Acquire) as usize
    }

    /// Returns whether the vector has no peers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the vector can assign this number. The receive context in the number is ignored.
    #[inline]
    pub(crate) fn has_number(&self, peer: PeerAddress) -> bool {
        self.index(peer).is_some()
    }

    /// Returns the index of the entry of a peer's number.
    #[inline]
    fn index(&self, peer: PeerAddress) -> Option<usize> {
        if !peer.is_specified() {
            return None;
        }
        let VectorState { options, mask, store, .. } = &*self.shared;
        let number = peer.0 & mask;
        usize::try_from(number.checked_sub(options.base)?).ok().filter(|&index| index < store.limit())
    }

    /// Returns the number of an entry.
    #[inline]
    fn number(&self, index: usize) -> PeerAddress {
        PeerAddress(self.shared.options.base + index as u64)
    }
}

/// Returns the system's error code for a vector that could not be opened.
fn code_of(error: &std::io::Error) -> i32 {
    match error.kind() {
        std::io::ErrorKind::NotFound => libc::ENOENT,
        std::io::ErrorKind::TimedOut => libc::EAGAIN,
        _ => crate::system::call::errno(error).unwrap_or(libc::EINVAL),
    }
}

impl VectorState {
    /// Returns an error in a forked child. A thread that does not exist there may hold the lock, the shared words are
    /// not mapped, and a lock on their file would also be the parent's lock.
    #[inline]
    fn check_process(&self) -> Result<(), AddressError> {
        if self.writing.is_here() { Ok(()) } else { Err(AddressError::Forked) }
    }

    /// Takes the writers' lock, and returns it with a writer. The writer must be dropped before the lock.
    fn write(&self) -> Result<(WriteLock<'_>, Writer<'_>), AddressError> {
        let mut lock = WriteLock { _here: self.writing.lock().ok_or(AddressError::Forked)?, there: None };
        if let Some(shared) = self.store.as_shared() {
            let died = shared.lock()?;
            lock.there = Some(shared);
            if died {
                crate::later::later!(warn: "a process exited during a change of a shared address vector; restoring the vector");
                self.store.mend();
            }
        }
        Ok((lock, Writer::new(&self.store)))
    }
}

#[cfg(test)]
#[path = "vector_tests.rs"]
mod tests;
