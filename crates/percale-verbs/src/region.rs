//! Registered memory.

#![expect(unsafe_code, reason = "calls to libibverbs; each block states its own reason")]

use std::ffi::c_int;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use bitflags::bitflags;

use super::abi;
use super::context::{ProtectionDomain, note};
use super::error::{ObjectPointer, VerbsError};
use crate::local_memory::mapping::{self, Mapping};
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _, View, ViewExt as _};

bitflags! {
    /// The operations that are allowed on a region or through a window. Reads by the local device are always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Rights: c_int {
        /// The local device may write, for receives and for reads from other memory.
        const LOCAL_WRITE = abi::ACCESS_LOCAL_WRITE;
        /// Peers may write. A region needs `LOCAL_WRITE` as well.
        const REMOTE_WRITE = abi::ACCESS_REMOTE_WRITE;
        /// Peers may read.
        const REMOTE_READ = abi::ACCESS_REMOTE_READ;
        /// Windows may be bound to the region.
        const BIND = abi::ACCESS_MW_BIND;
    }
}

/// Memory that a device can access. It consists of pages of a shared mapping, which forked children do not inherit, and
/// their registration.
///
/// The device and peers may write to it whenever a right allows it, so it is read only through views.
#[derive(Debug)]
pub struct MemoryRegion {
    ptr: ObjectPointer<abi::Mr>,
    domain: Arc<ProtectionDomain>,
    memory: Mapping,
}

impl MemoryRegion {
    /// Allocates and registers `len` bytes, which are zeroed.
    ///
    /// # Errors
    /// The error of the allocation or of the registration. ENOMEM usually means that the limit of locked memory is
    /// reached.
    pub fn new(domain: &Arc<ProtectionDomain>, len: usize, rights: Rights) -> io::Result<Arc<Self>> {
        let len = len.max(1).next_multiple_of(rustix::param::page_size());
        let memory = Mapping::of(mapping::sealed_memfd("percale-verbs", len, len)?.as_fd(), len)?;
        let library = domain.context().library();
        // SAFETY: the range is mapped until `self` is dropped, which first ends the registration.
        let ptr = unsafe { (library.ibv_reg_mr)(domain.as_ptr(), memory.as_ptr().cast(), len, rights.bits()) };
        let ptr = ObjectPointer::given("ibv_reg_mr", ptr).map_err(io::Error::from)?;
        Ok(Arc::new(Self { ptr, domain: Arc::clone(domain), memory }))
    }

    /// Returns the length in bytes, a multiple of the page size.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns false, because the region has at least one page.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns the start address, which is the same for peers.
    #[must_use]
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Returns the protection domain.
    #[must_use]
    #[inline]
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Returns the key that peers use.
    #[must_use]
    #[inline]
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the registration lives as long as `self`, and its keys do not change.
        unsafe { (*self.ptr.as_ptr()).rkey }
    }

    pub(super) const fn as_mr(&self) -> *mut abi::Mr {
        self.ptr.as_ptr()
    }

    /// Copies at most `len` bytes starting at `offset` to `to`. Returns the number of bytes copied.
    #[inline]
    pub fn copy_out(&self, offset: usize, len: usize, to: &mut [u8]) -> usize {
        self.view(offset, len).read_into(to)
    }

    /// Returns a view of at most `len` bytes starting at `offset`.
    #[doc(hidden)]
    #[inline]
    pub fn view(&self, offset: usize, len: usize) -> View<'_> {
        let len = len.min(self.len().saturating_sub(offset));
        // SAFETY: the range lies within the mapping, which lives as long as `self`. Other threads and processes may
        // write to a view.
        unsafe { View::new(self.as_ptr().wrapping_add(offset), len) }
    }

    /// Copies at most `len` bytes of `from` to `offset`. Returns the number of bytes copied.
    #[inline]
    pub fn copy_in(&self, from: &[u8], offset: usize, len: usize) -> usize {
        let len = len.min(self.len().saturating_sub(offset));
        // SAFETY: the range lies within the mapping, which lives as long as this, and is lent for this call.
        let to = unsafe { Segment::new(self.as_ptr().wrapping_add(offset), len) };
        View::of(from).copy_to_one(to)
    }

    /// Like [`copy_in`](Self::copy_in), for bytes of an operation starting at position `at`.
    #[doc(hidden)]
    #[inline]
    pub fn gather(&self, from: &Segments, at: usize, offset: usize, len: usize) -> usize {
        let from = from.slice(at, len.min(self.len().saturating_sub(offset)));
        // SAFETY: the range lies within the mapping, which lives as long as `self`. It is never the memory of an
        // operation, so source and destination do not overlap.
        unsafe { from.copy_in_pieces(self.as_ptr().wrapping_add(offset), from.len()) };
        from.len()
    }

    /// Returns a part of the region for use in a request, or `None` if it is not within the region.
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
        // SAFETY: queue pairs and bound windows keep the regions that they use alive, so no request uses this one. It
        // is deregistered only once.
        let errno = unsafe { (self.domain.context().library().ibv_dereg_mr)(self.as_mr()) };
        note("ibv_dereg_mr", errno);
    }
}

/// The error of a request that names memory outside its region.
pub(super) const fn outside(call: &'static str) -> VerbsError {
    VerbsError { call, errno: libc::EFAULT }
}
