//! The owner of regions, for tests of links that access regions. It provides the functions of a percale domain that
//! these tests need.

#![expect(unsafe_code, reason = "registers memory of tests; each block states its own reason")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::handle::RegionHandle;
use crate::region::properties::{MemoryProperties, RegistrationProperties};
use crate::region::{Access, AccessCounter, CloseError, Keys, RegisterError, Secret};
use crate::system::forked::Process;

/// A key table, and the secret from which raw keys are generated.
pub(crate) struct Domain {
    pub(crate) inner: Inner,
    secret: Secret,
}

pub(crate) struct Inner {
    pub(crate) keys: Arc<Keys>,
}

impl Domain {
    pub(crate) fn new(revoke_timeout: Duration) -> Self {
        let keys = Arc::new(Keys::new(revoke_timeout, Process::current().unwrap()));
        Self { inner: Inner { keys }, secret: Secret::new().unwrap() }
    }

    pub(crate) fn register(&self, memory: impl Into<Buffer>, access: Access) -> Result<Region, RegisterError> {
        self.registration(access).own(memory)
    }

    pub(crate) const fn registration(&self, access: Access) -> Registration<'_> {
        Registration { domain: self, terms: RegistrationProperties::new(access) }
    }
}

/// The parameters of a registration.
pub(crate) struct Registration<'d> {
    domain: &'d Domain,
    terms: RegistrationProperties,
}

impl Registration<'_> {
    pub(crate) const fn key(mut self, key: u64) -> Self {
        self.terms.key = Some(key);
        self
    }

    pub(crate) const fn base(mut self, address: u64) -> Self {
        self.terms.base = address;
        self
    }

    pub(crate) fn counter(mut self, counter: &Arc<Counter>) -> Self {
        self.terms.counters.push(counter.clone());
        self
    }

    pub(crate) fn own(self, memory: impl Into<Buffer>) -> Result<Region, RegisterError> {
        let mut memory = memory.into();
        let segment = memory.segment_for_receive().ok_or(RegisterError::ReadOnly)?;
        let handle = self.register(Segments::one(segment), MemoryProperties { backed: true, writable: true })?;
        Ok(Region { handle, memory: Some(memory) })
    }

    /// Registers memory of the caller.
    ///
    /// # Safety
    /// Peers may read and write the memory. If `backed` is set, the memory stays mapped.
    pub(crate) unsafe fn raw(self, pieces: &[Segment], backed: bool) -> Result<Region, RegisterError> {
        let handle = self.register(Segments::new(pieces).unwrap(), MemoryProperties { backed, writable: true })?;
        Ok(Region { handle, memory: None })
    }

    /// Registers the whole address space.
    ///
    /// # Safety
    /// Peers may read and write it.
    pub(crate) unsafe fn everything(self) -> Result<Region, RegisterError> {
        // SAFETY: the caller guarantees that all memory may be accessed; every copy is made by the kernel, which checks
        // each address.
        let all = unsafe { Segment::new(std::ptr::without_provenance_mut(1), usize::MAX - 1) };
        // SAFETY: the caller upholds the same contract.
        unsafe { self.base(1).raw(&[all], false) }
    }

    fn register(self, memory: Segments, kept: MemoryProperties) -> Result<RegionHandle, RegisterError> {
        RegionHandle::register(&self.domain.inner.keys, &self.domain.secret, self.terms, memory, kept)
    }
}

/// A region, with its memory if the region owns the memory.
#[derive(Debug)]
pub(crate) struct Region {
    handle: RegionHandle,
    memory: Option<Buffer>,
}

impl Region {
    pub(crate) fn key(&self) -> u64 {
        self.handle.remote().key
    }

    pub(crate) fn len(&self) -> usize {
        self.handle.registered().place().len()
    }

    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        self.handle.registered().place().slice(offset, to.len()).copy_to(0, to);
    }

    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) {
        View::of(from).copy_into(&self.handle.registered().place().slice(offset, from.len()), 0);
    }

    /// Closes the region, and returns the memory that the region owns.
    pub(crate) fn close(mut self) -> Result<Buffer, CloseError<Self>> {
        let timeout = self.handle.keys().revoke_timeout();
        match self.handle.close(Some(timeout)) {
            Ok(()) => Ok(self.memory.take().expect("the region owns memory")),
            Err(error) => Err(error.of(self)),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.handle.park(self.memory.take());
    }
}

/// A counter of accesses.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn new() -> Self {
        Self::default()
    }
}

impl AccessCounter for Counter {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::SeqCst);
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}
