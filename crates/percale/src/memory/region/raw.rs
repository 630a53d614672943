//! Registering memory that the caller vouches for.

#![expect(unsafe_code, reason = "its contracts are the callers' to keep; nothing here uses them up")]

use super::{Kept, RawRegion, RegisterError, Registration};
use crate::device::{self, DeviceError};
use crate::memory::kernel;
use crate::memory::volatile::{IOV_LIMIT, Segment, Segments};

impl Registration<'_> {
    const fn kept(&self, backed: bool) -> Kept {
        Kept { backed, writable: matches!(self.terms.local_write, Some(true)) || self.terms.access.changes() }
    }

    /// Registers up to [`IOV_LIMIT`] pieces of memory as one region; peers see them one behind the other (MR-010).
    ///
    /// With `backed` the memory is touched by this process' own threads; without, only by the kernel, so that an access to memory
    /// that is not (or not yet, or no longer) there is an error at the initiator and nothing worse (MR-026 to MR-028). Memory that
    /// percale allocated is always backed. Memory that is said to be backed and is not is refused (MR-041).
    ///
    /// # Errors
    /// As [`RegisterError`] says.
    ///
    /// # Safety
    /// Until [`RawRegion::close`] returns Ok, and however the region ends otherwise (dropped, forgotten, [`Busy`](super::CloseError)):
    /// peers may read the memory (with REMOTE_READ, or through windows) and write it (with REMOTE_WRITE; through windows, if the
    /// region gives that right or is registered with [`local_write`](Self::local_write)), so nobody holds references to it that
    /// forbid this; and with `backed` it stays mapped, the same memory (a device may know its pages), readable, and writable if peers may
    /// write. Without, memory that peers may
    /// change *atomically* is not unmapped nor its file cut while they do: those operations are instructions of this process, made
    /// after the kernel has said that the page is there.
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
            }
        } else if backed {
            for piece in memory.as_slice() {
                kernel::check(*piece, kept.writable).map_err(RegisterError::Unbacked)?;
            }
        }
        Ok(RawRegion { handle: self.register(memory, kept)? })
    }

    /// Registers the whole address space of this process: peers name memory by its virtual address. What is not there is an error
    /// at the initiator (the kernel makes every copy).
    ///
    /// # Errors
    /// As [`RegisterError`] says.
    ///
    /// # Safety
    /// Peers may read and write everything, as the rights say: as for [`raw`](Self::raw), of all memory.
    pub unsafe fn everything(self) -> Result<RawRegion, RegisterError> {
        if self.terms.device.is_some() {
            return Err(DeviceError::Mixed.into());
        }
        const { assert!(IOV_LIMIT >= 1, "one piece") };
        // SAFETY: the caller vouches for all memory; whoever copies leaves it to the kernel, which checks each address.
        let all = unsafe { Segment::new(std::ptr::without_provenance_mut(1), usize::MAX - 1) };
        let kept = self.kept(false);
        Ok(RawRegion { handle: self.base(1).register(Segments::one(all), kept)? })
    }
}
