//! How one side of a transfer copies: through a mapping of the other's arena, by the kernel, or not at all.

#![expect(unsafe_code, reason = "copies to and from mapped arenas; each block states its own reason")]

use super::arenas::{Arenas, Remote};
use super::cma::{Cma, NoCopy};
use crate::memory::kernel::Direction;
use crate::memory::lease::Lease;
use crate::memory::volatile::View;
use crate::transport::PullError;

/// The other side's end of a transfer, as far as we can reach it.
#[derive(Clone, Debug)]
pub(in super::super) enum Way {
    /// Not at all.
    None,
    /// It lies in an arena that we have mapped.
    Mapped(Remote),
    /// It is at this address of the peer's.
    Cma(Cma, u64),
}

/// Where the other side's end of a transfer is, as it says.
pub(in super::super) struct Told {
    /// Segments: only one is reached from outside.
    pub(in super::super) pieces: u32,
    /// Its arena that holds it, or 0, and where in that.
    pub(in super::super) arena: u32,
    pub(in super::super) offset: u64,
    /// Its address, or 0 if that is not for us.
    pub(in super::super) address: u64,
}

impl Way {
    /// The way to `len` bytes there: through a mapping if we have one, else by the kernel.
    ///
    /// # Errors
    /// As of [`Arenas::find`].
    pub(in super::super) fn to(
        told: &Told,
        len: u64,
        arenas: &mut Arenas,
        cma: Option<&Cma>,
    ) -> Result<Self, &'static str> {
        if told.pieces != 1 {
            return Ok(Self::None);
        }
        if let Some(remote) = arenas.find(told.arena, told.offset, len)? {
            return Ok(Self::Mapped(remote));
        }
        Ok(match (cma, told.address) {
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

    /// Copies `len` bytes at `offset` of the transfer from the peer to `into` (the whole destination), which it enters for
    /// that. Both ends were checked to be at least `offset + len` long.
    pub(in super::super) fn fetch(&self, into: &Lease, offset: usize, len: usize) -> Result<(), NoWay> {
        let (into, _held) = into.enter().ok_or(NoWay::Failed(PullError::Revoked))?;
        match self {
            Self::None => Err(NoWay::Closed),
            Self::Mapped(remote) => {
                // SAFETY: the arena stays mapped while `remote` lives; `find` checked the range.
                let view: View<'_> = unsafe { View::new(remote.as_ptr().wrapping_add(offset), len) };
                view.copy_into(into, offset);
                Ok(())
            }
            Self::Cma(cma, address) => cma
                .copy(Direction::Read, &into.slice(offset, len), address.wrapping_add(offset as u64))
                .map_err(NoWay::from),
        }
    }

    /// Copies `len` bytes at `offset` of the transfer from `source` (the whole) to the peer. Checked as in `fetch`.
    pub(in super::super) fn store(&self, source: &Lease, offset: usize, len: usize) -> Result<(), NoWay> {
        let (source, _held) = source.enter_part(offset, len).ok_or(NoWay::Failed(PullError::Revoked))?;
        match self {
            Self::None => Err(NoWay::Closed),
            Self::Mapped(remote) => {
                // SAFETY: the arena stays mapped while `remote` lives; `find` checked the range. The source is our own
                // memory and that mapping the peer's.
                unsafe { source.copy_to_raw(offset, remote.as_ptr().wrapping_add(offset), len) };
                Ok(())
            }
            Self::Cma(cma, address) => cma
                .copy(Direction::Write, &source.slice(offset, len), address.wrapping_add(offset as u64))
                .map_err(NoWay::from),
        }
    }
}

/// Why nothing, or not all, was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum NoWay {
    /// The transfer fails.
    Failed(PullError),
    /// We copy no more: the bytes have to go as frames.
    Closed,
}

impl From<NoCopy> for NoWay {
    fn from(why: NoCopy) -> Self {
        match why {
            NoCopy::Fault => Self::Failed(PullError::Fault),
            // If the peer's process ended, so will the connection, which then says why.
            NoCopy::Refused | NoCopy::Ended => Self::Closed,
        }
    }
}
