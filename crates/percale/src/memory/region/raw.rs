//! Registration of memory for which the caller guarantees the safety conditions.

#![expect(unsafe_code, reason = "the callers of these functions guarantee that the memory is valid")]

use super::{RawRegion, RegisterError, Registration};
use crate::device::{self, DeviceError};
use crate::local_memory::access::AccessExt as _;
use crate::local_memory::kernel;
use crate::local_memory::volatile::{IOV_LIMIT, Segment, Segments};
use crate::region::properties::MemoryProperties;

impl Registration<'_> {
    fn kept(&self, backed: bool) -> MemoryProperties {
        MemoryProperties {
            backed,
            writable: matches!(self.terms.local_write, Some(true)) || self.terms.access.changes(),
        }
    }

    /// Registers up to [`IOV_LIMIT`] segments of memory as one region. For peers the segments are consecutive.
    ///
    /// With `backed` the threads of this process access the memory. Without it only the kernel does, so that an access
    /// to memory that is not (or not yet, or no longer) mapped is reported as an error at the initiator and has no
    /// other effect. Memory that percale allocated is always backed. Memory that is registered as backed but is not
    /// mapped is rejected.
    ///
    /// # Errors
    /// See [`RegisterError`].
    ///
    /// # Safety
    /// The following must hold until [`RawRegion::close`] returns `Ok`, even if the region is dropped or forgotten, or
    /// closing it returns [`Busy`](super::CloseError):
    ///
    /// * Peers may read the memory (with REMOTE_READ, or through windows) and write to it (with REMOTE_WRITE, or
    ///   through windows if the region gives that right or is registered with [`local_write`](Self::local_write)). So
    ///   no references to the memory may exist that forbid these accesses.
    /// * With `backed` the same memory stays mapped (a device may have stored its pages), readable, and writable if
    ///   peers may write.
    /// * Without `backed`, memory that peers may change *atomically* must not be unmapped, and its file must not be
    ///   truncated, during such operations: they are executed with instructions of this process, after the kernel has
    ///   confirmed that the page is present.
    pub unsafe fn raw(self, pieces: &[Segment], backed: bool) -> Result<RawRegion, RegisterError> {
        let memory = Segments::new(pieces).ok_or(RegisterError::Pieces(pieces.len()))?;
        if pieces.len() > 1
            && let Some(empty) = pieces.iter().position(Segment::is_empty)
        {
            return Err(RegisterError::Empty(empty));
        }
        for piece in pieces {
            let (address, len) = (piece.as_ptr().addr(), piece.len());
            if address.checked_add(len).is_none() {
                return Err(RegisterError::Wraps { address, len });
            }
        }
        let kept = self.kept(backed && self.terms.device.is_none());
        if let Some(device) = self.terms.device {
            for piece in memory.as_slice() {
                let place = device::whole(device.driver(), *piece)?;
                if place.kind.is_host() || place.ordinal != device.ordinal() {
                    return Err(DeviceError::Mixed.into());
                }
                // Done here so that accesses need not wait. If it fails, they try again, and report the error.
                device.driver().settle(piece.as_ptr().addr()).ok();
            }
        } else if backed {
            for piece in memory.as_slice() {
                kernel::check(*piece, kept.writable).map_err(RegisterError::Unbacked)?;
            }
        }
        Ok(RawRegion { handle: self.register(memory, kept)? })
    }

    /// Registers the whole address space of this process. Peers use virtual addresses. An access to memory that is not
    /// mapped is reported as an error at the initiator (the kernel makes every copy).
    ///
    /// # Errors
    /// See [`RegisterError`].
    ///
    /// # Safety
    /// Peers may read and write all memory, within the rights. The contract of [`raw`](Self::raw) applies to all of it.
    pub unsafe fn everything(self) -> Result<RawRegion, RegisterError> {
        if self.terms.device.is_some() {
            return Err(DeviceError::Mixed.into());
        }
        const { assert!(IOV_LIMIT >= 1, "a region has at least one piece") };
        // SAFETY: the caller guarantees this for all memory; every copy is made by the kernel, which checks each
        // address.
        let all = unsafe { Segment::new(std::ptr::without_provenance_mut(1), usize::MAX - 1) };
        let kept = self.kept(false);
        Ok(RawRegion { handle: self.base(1).register(Segments::one(all), kept)? })
    }
}
