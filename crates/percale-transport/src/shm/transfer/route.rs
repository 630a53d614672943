//! The way in which one side of a transfer copies: through a mapping of the other side's arena, by the kernel, or not
//! at all.

#![expect(unsafe_code, reason = "copies to and from mapped arenas; each block states its own reason")]

use super::arenas::{Arenas, RemoteRange};
use super::cma::{Cma, NoCopy};
use crate::PullError;
use crate::local_memory::kernel::Direction;
use crate::local_memory::volatile::{SegmentsExt as _, View, ViewExt as _};
use crate::region::lease::Lease;

/// The way in which this side reaches the other side's memory in a transfer.
#[derive(Clone, Debug)]
pub(in super::super) enum TransferRoute {
    /// The memory cannot be reached.
    None,
    /// The memory lies in an arena that is mapped here.
    Mapped(RemoteRange),
    /// The memory is at this address of the peer.
    Cma(Cma, u64),
}

/// The location of the other side's memory in a transfer, as reported by that side.
pub(in super::super) struct ReportedLocation {
    /// The number of segments. Only a single segment can be reached from outside.
    pub(in super::super) pieces: u32,
    /// The arena that contains the memory, or 0, and the offset in that arena.
    pub(in super::super) arena: u32,
    pub(in super::super) offset: u64,
    /// The address, or 0 if it is not given to this side.
    pub(in super::super) address: u64,
}

impl TransferRoute {
    /// Returns the method of copying `len` bytes at that location: a mapping if there is one, otherwise the kernel.
    ///
    /// # Errors
    /// As for [`Arenas::find`].
    pub(in super::super) fn to(
        reported: &ReportedLocation,
        len: u64,
        arenas: &mut Arenas,
        cma: Option<&Cma>,
    ) -> Result<Self, &'static str> {
        if reported.pieces != 1 {
            return Ok(Self::None);
        }
        if let Some(remote) = arenas.find(reported.arena, reported.offset, len)? {
            return Ok(Self::Mapped(remote));
        }
        Ok(match (cma, reported.address) {
            (Some(cma), address @ 1..) if cma.is_allowed() => Self::Cma(cma.clone(), address),
            _ => Self::None,
        })
    }

    pub(in super::super) const fn exists(&self) -> bool {
        !matches!(self, Self::None)
    }

    pub(super) const fn is_mapped(&self) -> bool {
        matches!(self, Self::Mapped(_))
    }

    /// Copies `len` bytes at `offset` of the transfer from the peer to `into` (the whole destination), and enters that
    /// lease for the copy. The caller has checked that both ends are at least `offset + len` bytes long.
    pub(in super::super) fn fetch(&self, into: &Lease, offset: usize, len: usize) -> Result<(), CopyFailure> {
        let (into, _held) = into.enter().ok_or(CopyFailure::Failed(PullError::Revoked))?;
        match self {
            Self::None => Err(CopyFailure::Closed),
            Self::Mapped(remote) => {
                // SAFETY: the arena stays mapped while `remote` lives; `find` checked the range.
                let view: View<'_> = unsafe { View::new(remote.as_ptr().wrapping_add(offset), len) };
                view.copy_into(into, offset);
                Ok(())
            }
            Self::Cma(cma, address) => cma
                .copy(Direction::Read, &into.slice(offset, len), address.wrapping_add(offset as u64))
                .map_err(CopyFailure::from),
        }
    }

    /// Copies `len` bytes at `offset` of the transfer from `source` (the whole source) to the peer. The caller has
    /// checked the lengths as for `fetch`.
    pub(in super::super) fn store(&self, source: &Lease, offset: usize, len: usize) -> Result<(), CopyFailure> {
        let (source, _held) = source.enter_part(offset, len).ok_or(CopyFailure::Failed(PullError::Revoked))?;
        match self {
            Self::None => Err(CopyFailure::Closed),
            Self::Mapped(remote) => {
                // SAFETY: the arena stays mapped while `remote` lives; `find` checked the range. The source is local
                // memory and the mapping is the peer's.
                unsafe { source.copy_to_raw(offset, remote.as_ptr().wrapping_add(offset), len) };
                Ok(())
            }
            Self::Cma(cma, address) => cma
                .copy(Direction::Write, &source.slice(offset, len), address.wrapping_add(offset as u64))
                .map_err(CopyFailure::from),
        }
    }
}

/// The reason why nothing or only a part was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum CopyFailure {
    /// The transfer fails.
    Failed(PullError),
    /// This side no longer copies: the bytes have to be sent as frames.
    Closed,
}

impl From<NoCopy> for CopyFailure {
    fn from(why: NoCopy) -> Self {
        match why {
            NoCopy::Fault => Self::Failed(PullError::Fault),
            // If the peer's process has ended, the connection ends as well and reports the reason.
            NoCopy::Refused | NoCopy::Ended => Self::Closed,
        }
    }
}
