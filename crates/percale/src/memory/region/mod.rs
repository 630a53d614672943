//! Regions: memory that peers may read or write, with a key and rights.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{Access, Info};
//! # let domain = Info::discover()?.best()?.open()?;
//! let region = domain.register(vec![0; 4096], Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! let name = region.remote().to_bytes();       // to be sent to peers that may use it
//! let memory = region.close()?;                // no peer accesses it any more
//! # drop((name, memory)); Ok(()) }
//! ```
//!
//! A [`Region`] owns its memory until it is closed. **Closing is synchronous**: when [`Region::close`] returns the
//! memory, no access of any peer is in progress and none will begin. If a peer was stopped in the middle of an access
//! (for example by a debugger), closing returns [`CloseError::Busy`] instead, with the region, which can be closed
//! again later. Dropping a region never waits: memory to which a peer may still be writing is kept until that peer has
//! finished or its process has ended.
//!
//! * `lifecycle`: enabling, disabling, closing; `raw`: memory for which the caller guarantees the safety conditions;
//!   `scope`: regions of borrowed memory
//! * `view`: the owner's access to a region that peers may access at the same time, and parts of regions
//! * `typed`: regions of plain values of a type
//! * `pending`: registration that completes later
//! * `known`: the objects to which windows can be bound; `verbs`: rights as in verbs; `mapped`: raw keys of peers
//!
//! The key table that checks accesses, and the revocation, are in the crate's module `region`.

mod known;
mod lifecycle;
mod mapped;
#[cfg(all(test, not(loom)))]
mod parked_tests;
mod pending;
mod raw;
mod scope;
mod typed;
mod verbs;
mod view;

use std::sync::Arc;

pub use self::known::Bindable;
pub(crate) use self::known::Parts;
pub use self::mapped::MappedKey;
pub use self::pending::{PendingError, PendingRegion};
pub use self::scope::{Scope, ScopedRegion};
pub use self::typed::TypedRegion;
pub use self::verbs::VerbsAccess;
pub use self::view::RegionSlice;
use crate::completion::counter::Counter;
use crate::device::{Device, DeviceError};
use crate::domain::Domain;
pub use crate::local_memory::access::Access;
use crate::local_memory::access::AccessExt as _;
use crate::local_memory::buffer::{Buffer, BufferExt as _};
#[doc(inline)]
pub use crate::local_memory::memory_view::{AtomicInteger, MemoryView, ViewError};
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::access_origin::AccessScope;
use crate::region::handle::RegionHandle;
use crate::region::properties::{MemoryProperties, RegistrationProperties};
#[doc(inline)]
pub use crate::region::{
    CloseError, MapError, RAW_KEY_BYTES, RawKey, RegisterError, Registered, RemoteMemory, RemoteMemoryError,
};

/// The options of a registration. Created by [`Domain::registration`].
#[derive(Clone)]
#[must_use = "no memory is registered until `own`, `raw`, `everything` or `begin` is called"]
pub struct Registration<'d> {
    domain: &'d Domain,
    terms: RegistrationProperties,
}

crate::short_debug!(Registration<'_>, "Registration", access: |this| this.terms.access);

impl Domain {
    /// Registers memory that peers may access with the rights `access`. The region owns the memory until it is closed.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register(&self, memory: impl Into<Buffer>, access: Access) -> Result<Region, RegisterError> {
        self.registration(access).own(memory)
    }

    /// Creates a registration with more options: a chosen key, a base address, a counter, or memory that the region
    /// does not own.
    pub const fn registration(&self, access: Access) -> Registration<'_> {
        Registration::new(self, access)
    }
}

impl<'d> Registration<'d> {
    pub(crate) const fn new(domain: &'d Domain, access: Access) -> Self {
        Self { domain, terms: RegistrationProperties::new(access) }
    }

    /// Creates a registration with these properties.
    const fn of(domain: &'d Domain, terms: RegistrationProperties) -> Self {
        Self { domain, terms }
    }

    fn register(self, memory: Segments, kept: MemoryProperties) -> Result<RegionHandle, RegisterError> {
        let inner = &self.domain.inner;
        RegionHandle::register(&inner.keys, &inner.secret, self.terms, memory, kept)
    }

    /// Returns the domain and the properties.
    fn parts(self) -> (&'d Domain, RegistrationProperties) {
        (self.domain, self.terms)
    }

    /// Sets the key. By default the domain chooses a key that cannot be guessed.
    pub const fn key(mut self, key: u64) -> Self {
        self.terms.key = Some(key);
        self
    }

    /// Sets the address that peers use for the first byte. The default is 0.
    pub const fn base(mut self, address: u64) -> Self {
        self.terms.base = address;
        self
    }

    /// Counts the writes of peers (FI_RMA_EVENT): one for each write or atomic operation, after its data is in memory.
    /// A region may have several counters, and each of them counts every write.
    pub fn counter(mut self, counter: &Counter) -> Self {
        self.terms.counters.push(Arc::new(counter.clone()));
        self
    }

    /// Gives the region a raw key of 32 bytes (FI_MR_RAW). Only a peer that has the complete raw key can access the
    /// region, after [`Domain::map_raw`]. The domain chooses the key that operations use.
    pub const fn raw_key(mut self) -> Self {
        self.terms.raw_key = true;
        self
    }

    /// Admits only accesses through the endpoint with this [id](crate::Endpoint::id). By default accesses through every
    /// endpoint of the domain are admitted.
    pub const fn endpoint(mut self, id: u64) -> Self {
        self.terms.through = AccessScope::Endpoint(id);
        self
    }

    /// Admits only accesses through endpoints with this authorization key
    /// ([`EndpointBuilder::authorization_key`](crate::EndpointBuilder::authorization_key)), and therefore only accesses
    /// of peers that have it too. By default accesses through endpoints with the domain's key are admitted, or through
    /// endpoints without a key if the domain has none.
    pub fn authorization_key(mut self, key: &[u8]) -> Self {
        self.terms.authority = self.domain.inner.settings.authority(key);
        self
    }

    /// Creates the region disabled: its key is in use, but no peer can access the region before [`Region::enable`].
    pub const fn disabled(mut self) -> Self {
        self.terms.disabled = true;
        self
    }

    /// Sets whether [windows](crate::memory::window) may be bound to the region (verbs: IBV_ACCESS_MW_BIND). The
    /// default is true.
    pub const fn windows(mut self, may_be_bound: bool) -> Self {
        self.terms.windows = may_be_bound;
        self
    }

    /// For memory that the region does not own: states that the memory may be changed, even if the region itself does
    /// not give peers that right. Windows that allow peers to change it can then be bound to the region (verbs:
    /// IBV_ACCESS_LOCAL_WRITE). Memory that a region [owns](Self::own) may be changed if there is no other reference to
    /// it.
    pub const fn local_write(mut self) -> Self {
        self.terms.local_write = Some(true);
        self
    }

    /// Registers memory of this device (fi_mr(3), `iface` and `device`). The library does not access it with loads and
    /// stores; the device's driver copies it. Such memory can be registered only with [`raw`](Self::raw). This process
    /// executes the accesses of peers. An atomic operation is atomic per element for all accesses through regions of
    /// this process, but not for programs on the device.
    pub const fn device(mut self, device: Device) -> Self {
        self.terms.device = Some(device);
        self
    }

    /// Registers memory that the region owns until it is closed.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn own(self, memory: impl Into<Buffer>) -> Result<Region, RegisterError> {
        if self.terms.device.is_some() {
            return Err(RegisterError::Device(DeviceError::Mixed));
        }
        let mut memory = memory.into();
        let (segment, writable) = match memory.segment_for_receive() {
            Some(segment) => (segment, self.terms.local_write != Some(false)),
            None if self.terms.access.changes() || self.terms.local_write == Some(true) => {
                return Err(RegisterError::ReadOnly);
            }
            None => (memory.segment_for_send(), false),
        };
        let handle = self.register(Segments::one(segment), MemoryProperties { backed: true, writable })?;
        Ok(Region { handle, memory: Some(memory) })
    }
}

/// A region that owns its memory. It is closed by [`close`](Self::close), which returns the memory, or when it is
/// dropped.
pub struct Region {
    handle: RegionHandle,
    /// `Some` until the region is closed.
    memory: Option<Buffer>,
}

crate::short_debug!(Region, "Region", access: |this| this.access(), len: |this| this.len());

impl Region {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.handle.registered().place().len()
    }

    /// Returns whether the length is zero. Such a region has a key, but no memory that peers could access.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes from `offset` into `to`. Concurrent writes of peers may be included in part. For values, and for
    /// words that peers change, use [`view`](Self::view).
    ///
    /// # Panics
    /// If there are fewer than `to.len()` bytes from `offset`, or if the memory was allocated by percale and this is a
    /// forked child.
    #[track_caller]
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.range(offset, to.len()).copy_to(0, to);
    }

    /// Copies `from` to the bytes from `offset`, while peers may read them. This is an ordinary copy: a peer may read
    /// the bytes of one call in part and in any order, and the order of two calls is not guaranteed. The bytes are
    /// visible to accesses that a peer posts after it has received a message that this thread sent after the call. For
    /// peers that read at other times, see "The owner as the writer" in the
    /// [manual](crate::manual::_04_remote_memory).
    ///
    /// # Panics
    /// If there are fewer than `from.len()` bytes from `offset`, if the memory is shared or static, or in the cases of
    /// [`read`](Self::read).
    #[track_caller]
    pub fn write(&mut self, offset: usize, from: &[u8]) {
        assert!(self.memory.as_ref().is_some_and(Buffer::is_writable), "the region's memory is read-only");
        View::of(from).copy_into(&self.range(offset, from.len()), 0);
    }

    #[track_caller]
    fn range(&self, offset: usize, len: usize) -> Segments {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len()),
            "{len} bytes at {offset} are out of range for a region of {} bytes",
            self.len()
        );
        if let Some(memory) = &self.memory {
            memory.check_here();
        }
        self.handle.registered().place().slice(offset, len)
    }

    /// Closes the region. When this returns the memory, no peer reads or writes it, and none will. In a forked child it
    /// returns the child's copy of the memory, and the parent's region is unchanged.
    ///
    /// # Errors
    /// See [`CloseError`]. The error contains the region.
    pub fn close(mut self) -> Result<Buffer, CloseError<Self>> {
        let timeout = self.handle.keys().revoke_timeout();
        if let Err(error) = self.handle.close(Some(timeout)) {
            return Err(error.of(self));
        }
        // The region that is dropped here has no memory left to keep.
        self.memory.take().ok_or_else(|| unreachable!("only closing takes the memory, and it consumes the region"))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.handle.park(self.memory.take());
    }
}

/// A region of memory that it does not own ([`Registration::raw`]).
pub struct RawRegion {
    handle: RegionHandle,
}

crate::short_debug!(RawRegion, "RawRegion", access: |this| this.access());

impl RawRegion {
    /// Closes the region. When this returns `Ok`, no peer reads or writes its memory, and none will.
    ///
    /// # Errors
    /// See [`CloseError`]. The error contains the region.
    pub fn close(mut self) -> Result<(), CloseError<Self>> {
        let timeout = self.handle.keys().revoke_timeout();
        match self.handle.close(Some(timeout)) {
            Ok(()) => Ok(()),
            Err(error) => Err(error.of(self)),
        }
    }
}

impl Drop for RawRegion {
    /// Prevents new accesses. Accesses may still be in progress: only [`close`](RawRegion::close) waits for their end.
    fn drop(&mut self) {
        self.handle.park(None);
    }
}
