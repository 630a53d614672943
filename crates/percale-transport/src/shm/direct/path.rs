//! Access to a peer's memory: checks an access against its grant, announces it, and copies its bytes.
//!
//! An access to mapped memory takes no lock, allocates nothing and makes no system call. An access of eight or four
//! aligned bytes is a single load or store, so that no reader sees a partial value. A long access is announced
//! separately for each piece of 64 KiB (256 KiB if the kernel copies), so that a revoker waits for at most one piece.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
#![expect(unsafe_code, reason = "moves words to and from mapped memory; each block states its own reason")]

use std::sync::Arc;

use zerocopy::FromBytes;

use super::error::DirectError;
use super::grantee::KeyPage;
use crate::local_memory::atomic::{DirectOperation, Misaligned};
use crate::local_memory::kernel::Direction;
use crate::local_memory::mapping::Mapping;
use crate::local_memory::rundown::Announcer;
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::{Access, Refusal, admit};
use crate::shm::connection_end::ConnectionEnd;
use crate::shm::pair::PairMemory;
use crate::shm::transfer::{Cma, NoCopy};

/// The number of bytes that are copied under one announcement.
const MAPPED_PIECE: usize = 64 << 10;
const CMA_PIECE: usize = 256 << 10;

/// A granted region.
#[derive(Debug)]
pub(super) struct MappedGrant {
    pub(super) access: Access,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) generation: u64,
    /// The index of the entry in the key page.
    pub(super) entry: u32,
    /// Whether the target requests a notification of each write.
    pub(super) notifies: bool,
    pub(super) memory: RegionBase,
    /// Keeps the memory that `memory` points to mapped.
    pub(super) _mapping: Option<Arc<Mapping>>,
}

/// The location of a region's first byte.
#[derive(Debug)]
pub(super) enum RegionBase {
    /// In a mapping of this process, writable if the rights allow changes.
    Mapped(Segment),
    /// At an address in the peer.
    Cma(Cma, u64),
}

/// An access that its grant allows, and the offset of the access in the region. The grant may no longer be valid.
#[derive(Clone, Copy)]
pub(super) struct CheckedAccess<'a> {
    pub(super) grant: &'a MappedGrant,
    offset: usize,
}

impl MappedGrant {
    /// Checks rights and range.
    #[inline(always)]
    pub(super) fn check(&self, address: u64, len: usize, wanted: Access) -> Result<CheckedAccess<'_>, DirectError> {
        match admit(self.access.contains(wanted), (self.base, self.len), (address, len as u64)) {
            Ok(offset) => Ok(CheckedAccess { grant: self, offset: offset as usize }),
            Err(Refusal::Right) => Err(DirectError::Right),
            Err(_) => Err(DirectError::Range),
        }
    }

    /// Returns whether this process can reach the region with its own loads and stores.
    #[inline]
    pub(super) const fn is_mapped(&self) -> bool {
        matches!(self.memory, RegionBase::Mapped(_))
    }
}

/// Direct access to a peer's memory over shared memory.
#[derive(Debug)]
pub(super) struct DirectPath {
    announcer: Announcer,
    page: Option<KeyPage>,
    pair: Arc<PairMemory>,
    side: usize,
    end: Arc<ConnectionEnd>,
}

impl DirectPath {
    pub(super) fn new(pair: Arc<PairMemory>, side: usize, end: Arc<ConnectionEnd>) -> Self {
        Self { announcer: Announcer::default(), page: None, pair, side, end }
    }

    /// Returns the key page of the peer, once it is known.
    #[inline]
    pub(super) const fn page(&self) -> Option<&KeyPage> {
        self.page.as_ref()
    }

    /// Sets the key page of the peer. There is only one key page.
    pub(super) fn is_shown(&mut self, page: KeyPage) {
        debug_assert!(self.page.is_none(), "grants name entries of the one page");
        self.page = Some(page);
    }

    /// Returns whether a grant is valid at the moment.
    pub(super) fn stands(&self, grant: &MappedGrant) -> bool {
        let entry = self.page.as_ref().and_then(|page| page.entry(grant.entry));
        entry.is_some_and(|entry| entry.holds(grant.generation))
    }

    /// Writes all of `from` to the region.
    #[inline]
    pub(super) fn write(&mut self, checked: CheckedAccess<'_>, from: &Segments) -> Result<(), DirectError> {
        match from.as_slice() {
            [only] => self.write_one(checked, *only),
            _ => self.in_pieces(checked, Direction::Write, from),
        }
    }

    /// Fills all of `into` from the region.
    #[inline]
    pub(super) fn read(&mut self, checked: CheckedAccess<'_>, into: &Segments) -> Result<(), DirectError> {
        match into.as_slice() {
            [only] => self.read_one(checked, *only),
            _ => self.in_pieces(checked, Direction::Read, into),
        }
    }

    /// Like [`write`](Self::write), for one segment.
    #[inline(always)]
    pub(super) fn write_one(&mut self, checked: CheckedAccess<'_>, from: Segment) -> Result<(), DirectError> {
        if !checked.grant.is_mapped() || from.len() > MAPPED_PIECE {
            return self.far(checked, Direction::Write, from);
        }
        self.lend(checked, |to| {
            // SAFETY: `check` found the range within the mapping, which the grant keeps; regions with this right are
            // mapped for writing. The source is local memory.
            unsafe { store(to, from) };
        })
    }

    /// Like [`read`](Self::read), for one segment.
    #[inline(always)]
    pub(super) fn read_one(&mut self, checked: CheckedAccess<'_>, into: Segment) -> Result<(), DirectError> {
        if !checked.grant.is_mapped() || into.len() > MAPPED_PIECE {
            return self.far(checked, Direction::Read, into);
        }
        self.lend(checked, |from| {
            // SAFETY: `check` found the range within the mapping, which the grant keeps. The destination is local
            // memory.
            unsafe { load(from, into) };
        })
    }

    /// Executes an atomic operation. The caller has checked its length and its rights. Returns `Fault` if the memory is
    /// not mapped.
    #[inline(always)]
    pub(super) fn operate(
        &mut self,
        checked: CheckedAccess<'_>,
        operation: &impl DirectOperation,
    ) -> Result<(), DirectError> {
        let done = self.lend(checked, |target| {
            // SAFETY: `check` found the range within the mapping, which the grant keeps; regions with rights that allow
            // changes are mapped for writing.
            unsafe { operation.apply(target) }
        })?;
        done.map_err(|Misaligned { .. }| DirectError::Misaligned)
    }

    /// Calls `access` with the address in the mapping, under one announcement. Returns `Fault` if the memory is not
    /// mapped.
    #[inline(always)]
    fn lend<R>(&mut self, checked: CheckedAccess<'_>, access: impl FnOnce(*mut u8) -> R) -> Result<R, DirectError> {
        let RegionBase::Mapped(memory) = &checked.grant.memory else { return Err(DirectError::Fault) };
        let at = memory.as_ptr().wrapping_add(checked.offset);
        self.announced(checked, || access(at))
    }

    /// Executes an access if the grant is valid. The access must not panic, and must not take longer than a revoker may
    /// wait.
    #[inline(always)]
    fn announced<R>(&mut self, checked: CheckedAccess<'_>, access: impl FnOnce() -> R) -> Result<R, DirectError> {
        let entry = self.page.as_ref().and_then(|page| page.entry(checked.grant.entry)).ok_or(DirectError::Stale)?;
        let line = self.pair.announcements(self.side);
        self.announcer.access(line, entry, checked.grant.generation, access).ok_or(DirectError::Stale)
    }

    /// Executes an access of one segment that is long or needs the kernel.
    #[inline(never)]
    fn far(&mut self, checked: CheckedAccess<'_>, direction: Direction, local: Segment) -> Result<(), DirectError> {
        let RegionBase::Cma(cma, first) = &checked.grant.memory else {
            return self.in_pieces(checked, direction, &Segments::one(local));
        };
        if local.len() > CMA_PIECE {
            return self.in_pieces(checked, direction, &Segments::one(local));
        }
        if self.end.is_set() {
            return Err(DirectError::Stale);
        }
        let remote = first.wrapping_add(checked.offset as u64);
        let copied = self.announced(checked, || cma.copy_one(direction, local, remote))?;
        copied.map_err(refused)
    }

    /// Executes a long access, or an access of several segments.
    #[inline(never)]
    fn in_pieces(
        &mut self,
        checked: CheckedAccess<'_>,
        direction: Direction,
        local: &Segments,
    ) -> Result<(), DirectError> {
        let grant = checked.grant;
        let entry = self.page.as_ref().and_then(|page| page.entry(grant.entry)).ok_or(DirectError::Stale)?;
        let line = self.pair.announcements(self.side);
        let most = if grant.is_mapped() { MAPPED_PIECE } else { CMA_PIECE };
        let mut done = 0;
        self.announcer.enter(line);
        let copied = loop {
            if !entry.holds(grant.generation) {
                break Ok(false);
            }
            let len = most.min(local.len().saturating_sub(done));
            if let Err(error) = piece(checked, direction, local, done, len, &self.end) {
                break Err(error);
            }
            done = done.saturating_add(len);
            if done >= local.len() {
                break Ok(true);
            }
            self.announcer.renew(line);
        };
        self.announcer.leave(line);
        match copied {
            Ok(true) => Ok(()),
            Ok(false) => Err(DirectError::Stale),
            Err(error) => Err(refused(error)),
        }
    }
}

/// Converts an error of a copy by the kernel. If the kernel refuses, or if the peer has ended, the result is `Stale`.
/// After a new request of the initiator, the target executes the accesses that the kernel refuses.
#[cold]
const fn refused(why: NoCopy) -> DirectError {
    match why {
        NoCopy::Fault => DirectError::Fault,
        NoCopy::Ended | NoCopy::Refused => DirectError::Stale,
    }
}

/// Copies `len` bytes of an announced access, starting at `done`.
fn piece(
    checked: CheckedAccess<'_>,
    direction: Direction,
    local: &Segments,
    done: usize,
    len: usize,
    end: &ConnectionEnd,
) -> Result<(), NoCopy> {
    let offset = checked.offset.wrapping_add(done);
    match (&checked.grant.memory, direction) {
        (RegionBase::Mapped(memory), Direction::Write) => {
            let to = memory.as_ptr().wrapping_add(offset);
            // SAFETY: `check` found the range within the mapping, which the grant keeps; regions with this right are
            // mapped for writing. The source is local memory, not this mapping.
            unsafe { local.copy_to_raw(done, to, len) };
            Ok(())
        }
        (RegionBase::Mapped(memory), Direction::Read) => {
            let from = memory.as_ptr().wrapping_add(offset);
            // SAFETY: `check` found the range within the mapping, which the grant keeps.
            let view = unsafe { View::new(from, len) };
            view.copy_into(local, done);
            Ok(())
        }
        (RegionBase::Cma(..), _) if end.is_set() => Err(NoCopy::Ended),
        (RegionBase::Cma(cma, first), _) => {
            cma.copy(direction, &local.slice(done, len), first.wrapping_add(offset as u64))
        }
    }
}

/// Copies bytes to a peer's region.
///
/// # Safety
/// `to` lies in a writable mapping, has room for the bytes, and does not overlap them.
#[inline]
unsafe fn store(to: *mut u8, from: Segment) {
    match from.len() {
        // SAFETY: guaranteed by the caller; the length and the alignment are those of the word.
        8 if to.cast::<u64>().is_aligned() => unsafe { store_word::<u64>(to, from) },
        // SAFETY: as above.
        4 if to.cast::<u32>().is_aligned() => unsafe { store_word::<u32>(to, from) },
        // SAFETY: the segment was lent for reading; the caller guarantees the rest.
        len => unsafe { to.copy_from_nonoverlapping(from.as_ptr(), len) },
    }
}

/// Copies bytes from a peer's region.
///
/// # Safety
/// `from` lies in a mapping, has as many bytes as `into`, and does not overlap it.
#[inline]
unsafe fn load(from: *const u8, into: Segment) {
    match into.len() {
        // SAFETY: guaranteed by the caller; the length and the alignment are those of the word.
        8 if from.cast::<u64>().is_aligned() => unsafe { load_word::<u64>(from, into) },
        // SAFETY: as above.
        4 if from.cast::<u32>().is_aligned() => unsafe { load_word::<u32>(from, into) },
        // SAFETY: the segment was lent for writing; the caller guarantees the rest.
        len => unsafe { into.as_ptr().copy_from_nonoverlapping(from, len) },
    }
}

/// Stores a word with one access, so that no reader sees a partial value.
///
/// # Safety
/// As for [`store`]; `from` is as long as a `T`, and `to` is aligned for a `T`.
#[inline]
unsafe fn store_word<T: FromBytes + Copy>(to: *mut u8, from: Segment) {
    // SAFETY: the segment was lent for reading, and is as long as a `T`.
    let value = unsafe { from.as_ptr().cast::<T>().read_unaligned() };
    // SAFETY: guaranteed by the caller.
    unsafe { to.cast::<T>().write_volatile(value) };
}

/// Loads a word with one access, so that no partial value of a concurrent store is read.
///
/// # Safety
/// As for [`load`]; `into` is as long as a `T`, and `from` is aligned for a `T`.
#[inline]
unsafe fn load_word<T: FromBytes + Copy>(from: *const u8, into: Segment) {
    // SAFETY: guaranteed by the caller.
    let value = unsafe { from.cast::<T>().read_volatile() };
    // SAFETY: the segment was lent for writing, and is as long as a `T`.
    unsafe { into.as_ptr().cast::<T>().write_unaligned(value) };
}
