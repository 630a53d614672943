//! Registered memory.

#![expect(unsafe_code, reason = "calls of libibverbs; each block states its own reason")]

use std::ffi::c_int;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use bitflags::bitflags;

use super::abi;
use super::context::{ProtectionDomain, note};
use super::error::{Handle, VerbsError};
use crate::local_memory::mapping::{self, Mapping};
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _, View, ViewExt as _};

bitflags! {
    /// What may be done to a region or through a window. Reading by the device that it is registered with is always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Rights: c_int {
        /// The device may write it: for receives and for reads from elsewhere.
        const LOCAL_WRITE = abi::ACCESS_LOCAL_WRITE;
        /// Peers may write it; a region needs `LOCAL_WRITE` as well.
        const REMOTE_WRITE = abi::ACCESS_REMOTE_WRITE;
        /// Peers may read it.
        const REMOTE_READ = abi::ACCESS_REMOTE_READ;
        /// Windows may be bound to it.
        const BIND = abi::ACCESS_MW_BIND;
    }
}

/// Memory that a device reaches: pages of ours, shared and not inherited by children, and their registration.
///
/// The device and peers write it at any time that a right allows, so it is only ever read through views.
#[derive(Debug)]
pub struct MemoryRegion {
    ptr: Handle<abi::Mr>,
    domain: Arc<ProtectionDomain>,
    memory: Mapping,
}

impl MemoryRegion {
    /// Makes and registers `len` bytes, zeroed.
    ///
    /// # Errors
    /// What the kernel says to the memory or the device to its registration: ENOMEM mostly means that the limit of locked
    /// memory is reached.
    pub fn new(domain: &Arc<ProtectionDomain>, len: usize, rights: Rights) -> io::Result<Arc<Self>> {
        let len = len.max(1).next_multiple_of(rustix::param::page_size());
        let memory = Mapping::of(mapping::sealed_memfd("percale-verbs", len, len)?.as_fd(), len)?;
        let library = domain.context().library();
        // SAFETY: the range is mapped until this is dropped, which ends the registration first.
        let ptr = unsafe { (library.ibv_reg_mr)(domain.as_ptr(), memory.as_ptr().cast(), len, rights.bits()) };
        let ptr = Handle::given("ibv_reg_mr", ptr).map_err(io::Error::from)?;
        Ok(Arc::new(Self { ptr, domain: Arc::clone(domain), memory }))
    }

    /// Its length in bytes: whole pages.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.memory.len()
    }

    /// Never: it has at least one page.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Where it begins, here and for peers.
    #[must_use]
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// The domain that it is in.
    #[must_use]
    #[inline]
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// The key by which peers name it.
    #[must_use]
    #[inline]
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the registration lives as long as this, and its keys do not change.
        unsafe { (*self.ptr.as_ptr()).rkey }
    }

    pub(super) const fn as_mr(&self) -> *mut abi::Mr {
        self.ptr.as_ptr()
    }

    /// Copies its bytes from `offset` on, at most `len`, to `to`; how many.
    #[inline]
    pub fn copy_out(&self, offset: usize, len: usize, to: &mut [u8]) -> usize {
        self.view(offset, len).read_into(to)
    }

    /// Its bytes from `offset` on, at most `len`.
    #[doc(hidden)]
    #[inline]
    pub fn view(&self, offset: usize, len: usize) -> View<'_> {
        let len = len.min(self.len().saturating_sub(offset));
        // SAFETY: the range lies within the mapping, which lives as long as this; a view may be written by others meanwhile.
        unsafe { View::new(self.as_ptr().wrapping_add(offset), len) }
    }

    /// Copies to its bytes from `offset` on, at most `len`; how many.
    #[inline]
    pub fn copy_in(&self, from: &[u8], offset: usize, len: usize) -> usize {
        let len = len.min(self.len().saturating_sub(offset));
        // SAFETY: the range lies within the mapping, which lives as long as this, and is lent for this call.
        let to = unsafe { Segment::new(self.as_ptr().wrapping_add(offset), len) };
        View::of(from).copy_to_one(to)
    }

    /// As [`copy_in`](Self::copy_in), of an operation's bytes from `at` on.
    #[doc(hidden)]
    #[inline]
    pub fn gather(&self, from: &Segments, at: usize, offset: usize, len: usize) -> usize {
        let from = from.slice(at, len.min(self.len().saturating_sub(offset)));
        // SAFETY: that many bytes lie within the mapping, which lives as long as this; it is no operation's memory, so the two do not overlap.
        unsafe { from.copy_in_pieces(self.as_ptr().wrapping_add(offset), from.len()) };
        from.len()
    }

    /// A part of it, for a request; `None` if it is not all in it.
    #[doc(hidden)]
    #[inline]
    pub fn part(&self, offset: usize, len: usize) -> Option<abi::Sge> {
        if offset.checked_add(len)? > self.len() {
            return None;
        }
        // SAFETY: as in `remote_key`.
        let lkey = unsafe { (*self.ptr.as_ptr()).lkey };
        Some(abi::Sge { addr: self.as_ptr().wrapping_add(offset) as u64, length: u32::try_from(len).ok()?, lkey })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if !self.domain.context().is_here() {
            return;
        }
        // SAFETY: queue pairs and bound windows hold the regions that they use, so no request uses it; it is ended once.
        let errno = unsafe { (self.domain.context().library().ibv_dereg_mr)(self.as_mr()) };
        note("ibv_dereg_mr", errno);
    }
}

/// The error of a request that names memory outside its region.
pub(super) const fn outside(call: &'static str) -> VerbsError {
    VerbsError { call, errno: libc::EFAULT }
}
