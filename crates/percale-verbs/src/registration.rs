//! Registrations of memory that has another owner.

#![expect(unsafe_code, reason = "registers memory that it does not own; each block states its own reason")]

use std::sync::Arc;

use super::abi;
use super::context::{ProtectionDomain, note};
use super::error::{ObjectPointer, VerbsError};
use super::region::Rights;
use crate::local_memory::volatile::Segment;

/// A registration, which ends when it is dropped.
///
/// The registration refers to the pages that were at the addresses when it was made, even if other pages are mapped
/// there later.
#[derive(Debug)]
pub struct Registration {
    ptr: ObjectPointer<abi::Mr>,
    domain: Arc<ProtectionDomain>,
    ended: bool,
}

impl Registration {
    /// Registers the memory at these addresses. The kernel pins the pages or returns an error.
    ///
    /// # Errors
    /// The error that the device reports. ENOMEM usually means that the limit of locked memory is reached.
    ///
    /// # Safety
    /// The device, and peers that have the key, may read and write the memory until the registration has ended, as far
    /// as the rights allow. The memory must not contain any value of the program for which this is not sound.
    pub unsafe fn new(
        domain: &Arc<ProtectionDomain>,
        start: *mut u8,
        len: usize,
        rights: Rights,
    ) -> Result<Self, VerbsError> {
        let library = domain.context().library();
        // SAFETY: guaranteed by the caller.
        let ptr = unsafe { (library.ibv_reg_mr)(domain.as_ptr(), start.cast(), len, rights.bits()) };
        Ok(Self { ptr: ObjectPointer::given("ibv_reg_mr", ptr)?, domain: Arc::clone(domain), ended: false })
    }

    /// Returns the keys for requests of this process and for peers.
    #[must_use]
    #[inline]
    pub fn keys(&self) -> (u32, u32) {
        // SAFETY: the registration lives as long as `self`, and its keys do not change.
        let mr = unsafe { &*self.ptr.as_ptr() };
        (mr.lkey, mr.rkey)
    }

    /// Returns the protection domain in which the memory is registered.
    #[must_use]
    #[inline]
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    pub(super) const fn as_mr(&self) -> *mut abi::Mr {
        self.ptr.as_ptr()
    }

    /// Returns the device's address of `memory`, or `None` if `memory` is not within the registration.
    pub(super) fn part(&self, memory: Segment) -> Option<u64> {
        // SAFETY: the registration lives as long as `self`, and its range does not change.
        let mr = unsafe { &*self.ptr.as_ptr() };
        let (first, start) = (memory.as_ptr().expose_provenance(), mr.addr.expose_provenance());
        let within = first.checked_sub(start)?.checked_add(memory.len())? <= mr.length;
        within.then_some(first as u64)
    }

    /// Ends the registration. After `Ok` no access through it is in progress, and none will start.
    ///
    /// # Errors
    /// The error that the device reports, and the registration, which then still exists.
    pub fn end(mut self) -> Result<(), (Self, VerbsError)> {
        match self.deregister() {
            Ok(()) => {
                self.ended = true;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Deregisters the memory. Does nothing in a forked child, because the registration belongs to the parent.
    fn deregister(&self) -> Result<(), VerbsError> {
        if self.ended || !self.domain.context().is_here() {
            return Ok(());
        }
        // SAFETY: it is deregistered only once, because `end` and `drop` have exclusive access, and `ended` is set
        // afterwards.
        let errno = unsafe { (self.domain.context().library().ibv_dereg_mr)(self.ptr.as_ptr()) };
        VerbsError::check("ibv_dereg_mr", errno)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            note(error.call, error.errno);
        }
    }
}
