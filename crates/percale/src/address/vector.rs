//! Address vectors: numbers for peers.
//!
//! An [`AddressVector`] gives each network address that is inserted a [`PeerAddress`]. A table gives the lowest unused
//! index; a map gives values that the application must not interpret (they are indices too). What an entry costs is 8
//! bytes for an IPv4 address and 24 for an IPv6 address; who is connected is none of the vector's business. Cloning
//! gives another handle to the same vector.
//!
//! An entry is one word: its kind, the port, and the IPv4 address or the number of an IPv6 record (two words). Words
//! live in tables that grow and never move, so **reads take no lock**. Writers take one, and publish an entry's word
//! last. A removed IPv6 record may be used again: before it is rewritten `reuses` grows, and a reader that finds it
//! grown reads again (a seqlock without the odd state: a record is only rewritten when no word names it).
//!
//! Looking for the number of an address ([`AddressVector::find`]) walks the table. That is the price of the small
//! entries: an index would cost more than the table itself, for peers most of which are never heard from. It takes
//! about a nanosecond an entry, once for each connection that a peer makes; [`AddressVector::generation`] tells who
//! keeps the answer when to ask again.
//!
//! Scopes: Linux heeds an IPv6 address's scope only where it is link-local. There it is kept (in bits of the address
//! that are zero by definition); elsewhere, and flow labels always, it is dropped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::PeerAddress;
use super::name::{Family, Name};
use super::paged::{LIMIT, Paged};

/// Why an address was not inserted or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text is no address and resolves to none.
    #[error("\"{name}\" names no address ({reason}); write host:port, or [IPv6 address]:port")]
    Name {
        /// The text.
        name: String,
        /// Why not.
        reason: String,
    },
    /// The vector holds addresses of another family.
    #[error("{address} is not an {wanted} address, which this address vector is for")]
    Family {
        /// The address.
        address: SocketAddr,
        /// The family that is wanted.
        wanted: Family,
    },
    /// No endpoint can have this address.
    #[error("{0} is no endpoint's address: it needs a port, and must be neither a wildcard nor a group")]
    NotAnEndpoint(SocketAddr),
    /// The peer is not in the vector, or not any more.
    #[error("{0} is not in the address vector")]
    Unknown(PeerAddress),
    /// The vector has as many entries as it can have.
    #[error("the address vector is full; remove entries, or reserve fewer bits for receive contexts")]
    Full,
    /// Too many bits reserved for receive contexts.
    #[error("{0} bits for receive contexts leave too few for peers; reserve at most 31")]
    ReceiveContextBits(u32),
}

impl AddressError {
    /// The code that libfabric has for this error (positive).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Name { .. } => libc::ENODATA,
            Self::Family { .. } => libc::EAFNOSUPPORT,
            Self::NotAnEndpoint(_) => libc::EADDRNOTAVAIL,
            Self::Unknown(_) | Self::ReceiveContextBits(_) => libc::EINVAL,
            Self::Full => libc::ENOSPC,
        }
    }
}

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
    /// An entry each; see [`Word`].
    words: Paged,
    /// IPv6 addresses, two words each.
    records: Paged,
    /// Entries up to here may be in use.
    end: AtomicUsize,
    /// Grows before an IPv6 record that was used before is rewritten.
    reuses: AtomicU64,
    /// Grows after each change.
    generation: AtomicU64,
    writer: Mutex<Writer>,
}

/// What only writers need.
#[derive(Debug, Default)]
struct Writer {
    /// Unused indices below `end`.
    free: BinaryHeap<Reverse<usize>>,
    free_records: Vec<usize>,
    records: usize,
    used: usize,
}

/// An entry, taken apart. As a word: 2 bits kind (0: unused), 16 bits port, 14 unused bits, 32 bits address or record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    V4(Ipv4Addr, u16),
    V6(usize, u16),
}

impl Word {
    const fn pack(self) -> u64 {
        let (kind, port, low) = match self {
            Self::V4(ip, port) => (1u64, port, ip.to_bits() as u64),
            Self::V6(record, port) => (2u64, port, record as u64),
        };
        kind << 62 | (port as u64) << 46 | low
    }

    fn unpack(word: u64) -> Option<Self> {
        let (port, low) = ((word >> 46) as u16, word as u32);
        match word >> 62 {
            1 => Some(Self::V4(Ipv4Addr::from_bits(low), port)),
            2 => Some(Self::V6(low as usize, port)),
            _ => None,
        }
    }
}

/// Bits of a link-local address that are zero by definition (RFC 4291), where its scope is kept.
const SCOPE_SHIFT: u32 = 64;

fn fold_scope(address: &SocketAddrV6) -> Option<u128> {
    let bits = address.ip().to_bits();
    if !address.ip().is_unicast_link_local() {
        return Some(bits);
    }
    // fe80::/10, then 54 zero bits.
    let zero = (bits >> SCOPE_SHIFT) << 10 & u128::from(u64::MAX) == 0;
    zero.then_some(bits | u128::from(address.scope_id()) << SCOPE_SHIFT)
}

fn unfold_scope(bits: u128, port: u16) -> SocketAddr {
    let ip = Ipv6Addr::from_bits(bits);
    if !ip.is_unicast_link_local() {
        return SocketAddrV6::new(ip, port, 0, 0).into();
    }
    let scope = (bits >> SCOPE_SHIFT) as u32;
    let ip = Ipv6Addr::from_bits(bits & !(u128::from(u32::MAX) << SCOPE_SHIFT));
    SocketAddrV6::new(ip, port, 0, scope).into()
}

/// What no endpoint is bound to, or cannot be kept exactly.
fn check(address: &SocketAddr) -> Result<(), AddressError> {
    let unusable = match address.ip() {
        IpAddr::V4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
    };
    let inexact = matches!(address, SocketAddr::V6(address) if fold_scope(address).is_none());
    if address.port() == 0 || unusable || inexact {
        return Err(AddressError::NotAnEndpoint(*address));
    }
    Ok(())
}

/// The form in which two addresses of the same endpoint are equal: IPv4 addresses that are written as IPv6 ones,
/// scopes and flow labels without meaning.
fn canonical(address: &SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), v6.port()),
            None => fold_scope(v6).map_or(*address, |bits| unfold_scope(bits, v6.port())),
        },
        SocketAddr::V4(_) => *address,
    }
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
        let shared = Shared {
            options,
            words: Paged::new(),
            records: Paged::new(),
            end: AtomicUsize::new(0),
            reuses: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            writer: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
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
        let address = address.resolve(self.shared.options.family)?;
        check(&address)?;
        let mut writer = self.shared.write();
        let index = self.shared.take_index(&mut writer)?;
        self.shared.fill(&mut writer, index, &address)?;
        Ok(PeerAddress(index as u64))
    }

    /// Inserts addresses in order, as one step against other writers. The outcome of each is at its place. In a table
    /// the numbers are known beforehand: a failed address leaves its index unused for now, and does not shift those
    /// after it.
    pub fn insert_all<N: Name>(
        &self,
        addresses: impl IntoIterator<Item = N>,
    ) -> Vec<Result<PeerAddress, AddressError>> {
        let family = self.shared.options.family;
        let resolved: Vec<_> = addresses
            .into_iter()
            .map(|address| address.resolve(family).and_then(|address| check(&address).map(|()| address)))
            .collect();
        let mut writer = self.shared.write();
        let mut skipped = Vec::new();
        let results = resolved
            .into_iter()
            .map(|address| {
                let index = self.shared.take_index(&mut writer);
                match (address, index) {
                    (Ok(address), Ok(index)) => {
                        self.shared.fill(&mut writer, index, &address)?;
                        Ok(PeerAddress(index as u64))
                    }
                    (Ok(_), Err(full)) => Err(full),
                    (Err(error), index) => {
                        skipped.extend(index);
                        Err(error)
                    }
                }
            })
            .collect();
        writer.free.extend(skipped.into_iter().map(Reverse));
        results
    }

    /// The network address of a peer, whichever of its receive contexts is named. Takes no lock.
    #[must_use]
    #[inline]
    pub fn lookup(&self, peer: PeerAddress) -> Option<SocketAddr> {
        self.shared.load(self.index(peer)?)
    }

    /// Removes a peer. Its number may be given to another at once.
    ///
    /// # Errors
    /// If it is not in the vector.
    pub fn remove(&self, peer: PeerAddress) -> Result<(), AddressError> {
        let index = self.index(peer).ok_or(AddressError::Unknown(peer))?;
        let mut writer = self.shared.write();
        let word = self.shared.words.get(index).ok_or(AddressError::Unknown(peer))?;
        match Word::unpack(word.load(Ordering::Relaxed)).ok_or(AddressError::Unknown(peer))? {
            Word::V6(record, _) => writer.free_records.push(record),
            Word::V4(..) => {}
        }
        word.store(0, Ordering::Release);
        writer.free.push(Reverse(index));
        writer.used -= 1;
        self.shared.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The number of an address, the lowest if it has several; `None` if it is not in the vector. Takes no lock, and
    /// time in proportion to the vector.
    #[must_use]
    pub fn find(&self, address: SocketAddr) -> Option<PeerAddress> {
        let wanted = canonical(&address);
        let word = match wanted {
            SocketAddr::V4(v4) => Word::V4(*v4.ip(), v4.port()).pack(),
            SocketAddr::V6(_) => 0,
        };
        let end = self.shared.end.load(Ordering::Acquire);
        self.shared.words.find(end, |index, found| {
            let equal = match Word::unpack(found)? {
                Word::V4(..) => found == word,
                Word::V6(_, port) if port != wanted.port() => false,
                Word::V6(..) => self.shared.load(index).is_some_and(|address| canonical(&address) == wanted),
            };
            equal.then_some(PeerAddress(index as u64))
        })
    }

    /// Grows with every change. An answer of [`find`](Self::find) or [`lookup`](Self::lookup) is still right if this
    /// was the same before the question as it is now.
    #[must_use]
    #[inline]
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Peers in the vector.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.write().used
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
        usize::try_from(peer.0 << bits >> bits).ok().filter(|&index| index < LIMIT)
    }
}

impl Shared {
    fn write(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lowest unused index, which is the caller's now, and whose word exists.
    fn take_index(&self, writer: &mut Writer) -> Result<usize, AddressError> {
        if let Some(Reverse(index)) = writer.free.pop() {
            return Ok(index);
        }
        let end = self.end.load(Ordering::Relaxed);
        self.words.make(end).ok_or(AddressError::Full)?;
        self.end.store(end + 1, Ordering::Release);
        Ok(end)
    }

    /// Puts an address at an index that the caller took. Gives the index back if it fails.
    fn fill(&self, writer: &mut Writer, index: usize, address: &SocketAddr) -> Result<(), AddressError> {
        let entry = match address {
            SocketAddr::V4(address) => Some(Word::V4(*address.ip(), address.port())),
            SocketAddr::V6(address) => self.fill_record(writer, address).map(|record| Word::V6(record, address.port())),
        };
        let (Some(entry), Some(word)) = (entry, self.words.get(index)) else {
            writer.free.push(Reverse(index));
            return Err(AddressError::Full);
        };
        word.store(entry.pack(), Ordering::Release);
        writer.used += 1;
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn fill_record(&self, writer: &mut Writer, address: &SocketAddrV6) -> Option<usize> {
        let bits = fold_scope(address)?;
        let record = match writer.free_records.pop() {
            Some(record) => {
                // Release: a reader that starts with this sees that no word names the record. The fence: a reader
                // that sees any of what is written below sees this too, and reads again.
                self.reuses.fetch_add(1, Ordering::Release);
                fence(Ordering::Release);
                record
            }
            None => writer.records,
        };
        self.records.make(2 * record)?.store((bits >> 64) as u64, Ordering::Relaxed);
        self.records.make(2 * record + 1)?.store(bits as u64, Ordering::Relaxed);
        writer.records = writer.records.max(record + 1);
        Some(record)
    }

    /// The address at an index, if there is one.
    fn load(&self, index: usize) -> Option<SocketAddr> {
        let word = self.words.get(index)?;
        loop {
            let reuses = self.reuses.load(Ordering::Acquire);
            // Acquire: the record was written before the word that names it.
            let (record, port) = match Word::unpack(word.load(Ordering::Acquire))? {
                Word::V4(ip, port) => return Some(SocketAddr::new(ip.into(), port)),
                Word::V6(record, port) => (record, port),
            };
            let high = self.records.get(2 * record)?.load(Ordering::Relaxed);
            let low = self.records.get(2 * record + 1)?.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if self.reuses.load(Ordering::Relaxed) == reuses {
                return Some(unfold_scope(u128::from(high) << 64 | u128::from(low), port));
            }
        }
    }
}

#[cfg(test)]
#[path = "vector_tests.rs"]
mod tests;
