//! Reaching a peer's memory: an access is checked against its grant, announced, and its bytes are moved.
//!
//! An access to mapped memory takes no lock, allocates nothing and makes no system call; one of eight aligned bytes, or of four, is
//! one move and is never seen in halves. A long one is announced anew for each piece of 64 KiB (256 KiB by the kernel), so that a
//! revoker waits for one piece at most.

#![expect(unsafe_code, reason = "moves words to and from mapped memory; each block states its own reason")]

use std::sync::Arc;

use zerocopy::FromBytes;

use super::access::DirectError;
use super::grantee::KeyPage;
use crate::memory::atomic::{Misaligned, Operation};
use crate::memory::kernel::Direction;
use crate::memory::mapping::Mapping;
use crate::memory::region::{Access, Refusal, admit};
use crate::memory::rundown::Announcer;
use crate::memory::volatile::{Segment, Segments, View};
use crate::transport::shm::connection_end::ConnectionEnd;
use crate::transport::shm::pair::Pair;
use crate::transport::shm::transfer::{Cma, NoCopy};

/// Bytes that are copied under one announcement.
const MAPPED_PIECE: usize = 64 << 10;
const CMA_PIECE: usize = 256 << 10;

/// A region as it was granted.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) access: Access,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) generation: u64,
    /// In the key page.
    pub(super) entry: u32,
    /// The target wants to be told of what was written.
    pub(super) notifies: bool,
    pub(super) memory: Memory,
    /// Holds what `memory` points into.
    pub(super) _mapping: Option<Arc<Mapping>>,
}

/// Where the first byte of a region is.
#[derive(Debug)]
pub(super) enum Memory {
    /// In a mapping of ours, writable if the rights say so.
    Mapped(Segment),
    /// At an address in the peer.
    Cma(Cma, u64),
}

/// An access that its grant allows, if that still holds: from which byte on.
#[derive(Clone, Copy)]
pub(super) struct Checked<'a> {
    pub(super) grant: &'a Grant,
    offset: usize,
}

impl Grant {
    /// Checks right and range.
    #[inline(always)]
    pub(super) fn check(&self, address: u64, len: usize, wanted: Access) -> Result<Checked<'_>, DirectError> {
        match admit(self.access.contains(wanted), (self.base, self.len), (address, len as u64)) {
            Ok(offset) => Ok(Checked { grant: self, offset: offset as usize }),
            Err(Refusal::Right) => Err(DirectError::Right),
            Err(_) => Err(DirectError::Range),
        }
    }

    /// Whether our own loads and stores reach it.
    #[inline]
    pub(super) const fn is_mapped(&self) -> bool {
        matches!(self.memory, Memory::Mapped(_))
    }
}

/// Direct access to a peer's memory over shared memory.
#[derive(Debug)]
pub(super) struct DirectPath {
    announcer: Announcer,
    page: Option<KeyPage>,
    pair: Arc<Pair>,
    side: usize,
    end: Arc<ConnectionEnd>,
}

impl DirectPath {
    pub(super) fn new(pair: Arc<Pair>, side: usize, end: Arc<ConnectionEnd>) -> Self {
        Self { announcer: Announcer::default(), page: None, pair, side, end }
    }

    /// The key page that the peer shows us, once it did.
    #[inline]
    pub(super) const fn page(&self) -> Option<&KeyPage> {
        self.page.as_ref()
    }

    /// The peer shows us a key page, its first and only one.
    pub(super) fn is_shown(&mut self, page: KeyPage) {
        debug_assert!(self.page.is_none(), "grants name entries of the one page");
        self.page = Some(page);
    }

    /// Whether a grant stands now.
    pub(super) fn stands(&self, grant: &Grant) -> bool {
        let entry = self.page.as_ref().and_then(|page| page.entry(grant.entry));
        entry.is_some_and(|entry| entry.holds(grant.generation))
    }

    /// Writes all of `from`.
    #[inline]
    pub(super) fn write(&mut self, checked: Checked<'_>, from: &Segments) -> Result<(), DirectError> {
        match from.as_slice() {
            [only] => self.write_one(checked, *only),
            _ => self.in_pieces(checked, Direction::Write, from),
        }
    }

    /// Fills all of `into`.
    #[inline]
    pub(super) fn read(&mut self, checked: Checked<'_>, into: &Segments) -> Result<(), DirectError> {
        match into.as_slice() {
            [only] => self.read_one(checked, *only),
            _ => self.in_pieces(checked, Direction::Read, into),
        }
    }

    /// As [`write`](Self::write), of one segment.
    #[inline(always)]
    pub(super) fn write_one(&mut self, checked: Checked<'_>, from: Segment) -> Result<(), DirectError> {
        if !checked.grant.is_mapped() || from.len() > MAPPED_PIECE {
            return self.far(checked, Direction::Write, from);
        }
        self.lend(checked, |to| {
            // SAFETY: `check` found the range within the mapping, which the grant holds; regions with this right are mapped
            // for writing. The source is our own memory.
            unsafe { store(to, from) };
        })
    }

    /// As [`read`](Self::read), of one segment.
    #[inline(always)]
    pub(super) fn read_one(&mut self, checked: Checked<'_>, into: Segment) -> Result<(), DirectError> {
        if !checked.grant.is_mapped() || into.len() > MAPPED_PIECE {
            return self.far(checked, Direction::Read, into);
        }
        self.lend(checked, |from| {
            // SAFETY: `check` found the range within the mapping, which the grant holds. The destination is our own memory.
            unsafe { load(from, into) };
        })
    }

    /// Does an atomic operation, which was checked for its length and rights. `Fault` if the memory is not mapped.
    #[inline(always)]
    pub(super) fn operate(&mut self, checked: Checked<'_>, operation: &impl Operation) -> Result<(), DirectError> {
        let done = self.lend(checked, |target| {
            // SAFETY: `check` found the range within the mapping, which the grant holds; regions whose rights let it be changed
            // are mapped for writing.
            unsafe { operation.apply(target) }
        })?;
        done.map_err(|Misaligned| DirectError::Misaligned)
    }

    /// Calls `access` with the place in the mapping, under one announcement. `Fault` if it is not mapped.
    #[inline(always)]
    fn lend<R>(&mut self, checked: Checked<'_>, access: impl FnOnce(*mut u8) -> R) -> Result<R, DirectError> {
        let Memory::Mapped(memory) = &checked.grant.memory else { return Err(DirectError::Fault) };
        let at = memory.as_ptr().wrapping_add(checked.offset);
        self.announced(checked, || access(at))
    }

    /// Makes an access, if the grant holds. It must not panic, nor take longer than a revoker may wait.
    #[inline(always)]
    fn announced<R>(&mut self, checked: Checked<'_>, access: impl FnOnce() -> R) -> Result<R, DirectError> {
        let entry = self.page.as_ref().and_then(|page| page.entry(checked.grant.entry)).ok_or(DirectError::Stale)?;
        let line = self.pair.announcements(self.side);
        self.announcer.enter(line);
        let result = if entry.holds(checked.grant.generation) { Ok(access()) } else { Err(DirectError::Stale) };
        self.announcer.leave(line);
        result
    }

    /// An access of one segment that is long, or that the kernel makes.
    #[inline(never)]
    fn far(&mut self, checked: Checked<'_>, direction: Direction, local: Segment) -> Result<(), DirectError> {
        let Memory::Cma(cma, first) = &checked.grant.memory else {
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

    /// A long access, or one of several segments.
    #[inline(never)]
    fn in_pieces(&mut self, checked: Checked<'_>, direction: Direction, local: &Segments) -> Result<(), DirectError> {
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
            let len = most.min(local.len() - done);
            if let Err(error) = piece(checked, direction, local, done, len, &self.end) {
                break Err(error);
            }
            done += len;
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

/// What it means that the kernel did not copy. What it refuses the target executes, once it is asked anew.
#[cold]
const fn refused(why: NoCopy) -> DirectError {
    match why {
        NoCopy::Fault => DirectError::Fault,
        NoCopy::Ended | NoCopy::Refused => DirectError::Stale,
    }
}

/// Copies `len` bytes of an announced access, from `done` on.
fn piece(
    checked: Checked<'_>,
    direction: Direction,
    local: &Segments,
    done: usize,
    len: usize,
    end: &ConnectionEnd,
) -> Result<(), NoCopy> {
    let offset = checked.offset + done;
    match (&checked.grant.memory, direction) {
        (Memory::Mapped(memory), Direction::Write) => {
            let to = memory.as_ptr().wrapping_add(offset);
            // SAFETY: `check` found the range within the mapping, which the grant holds; regions with this right are mapped for
            // writing. The source is our own memory, not this mapping.
            unsafe { local.copy_to_raw(done, to, len) };
            Ok(())
        }
        (Memory::Mapped(memory), Direction::Read) => {
            let from = memory.as_ptr().wrapping_add(offset);
            // SAFETY: `check` found the range within the mapping, which the grant holds.
            let view = unsafe { View::new(from, len) };
            view.copy_into(local, done);
            Ok(())
        }
        (Memory::Cma(..), _) if end.is_set() => Err(NoCopy::Ended),
        (Memory::Cma(cma, first), _) => cma.copy(direction, &local.slice(done, len), first.wrapping_add(offset as u64)),
    }
}

/// Moves bytes to a peer's region.
///
/// # Safety
/// `to` lies in a mapping, writable, has room for the bytes, and does not overlap them.
#[inline]
unsafe fn store(to: *mut u8, from: Segment) {
    match from.len() {
        // SAFETY: as the caller promised.
        8 if to.cast::<u64>().is_aligned() => unsafe { store_word::<u64>(to, from) },
        // SAFETY: as the caller promised.
        4 if to.cast::<u32>().is_aligned() => unsafe { store_word::<u32>(to, from) },
        // SAFETY: the segment was lent for reading; for the rest, as the caller promised.
        len => unsafe { to.copy_from_nonoverlapping(from.as_ptr(), len) },
    }
}

/// Moves bytes from a peer's region.
///
/// # Safety
/// `from` lies in a mapping, has as many bytes as `into` is long, and does not overlap it.
#[inline]
unsafe fn load(from: *const u8, into: Segment) {
    match into.len() {
        // SAFETY: as the caller promised.
        8 if from.cast::<u64>().is_aligned() => unsafe { load_word::<u64>(from, into) },
        // SAFETY: as the caller promised.
        4 if from.cast::<u32>().is_aligned() => unsafe { load_word::<u32>(from, into) },
        // SAFETY: the segment was lent for writing; for the rest, as the caller promised.
        len => unsafe { into.as_ptr().copy_from_nonoverlapping(from, len) },
    }
}

/// One move, so that nobody sees half of it.
///
/// # Safety
/// As [`store`]; `from` is as long as a `T`, `to` aligned for one.
#[inline]
unsafe fn store_word<T: FromBytes + Copy>(to: *mut u8, from: Segment) {
    // SAFETY: the segment was lent for reading, and is as long.
    let value = unsafe { from.as_ptr().cast::<T>().read_unaligned() };
    // SAFETY: as the caller promised.
    unsafe { to.cast::<T>().write_volatile(value) };
}

/// One move, so that half of it is never seen.
///
/// # Safety
/// As [`load`]; `into` is as long as a `T`, `from` aligned for one.
#[inline]
unsafe fn load_word<T: FromBytes + Copy>(from: *const u8, into: Segment) {
    // SAFETY: as the caller promised.
    let value = unsafe { from.cast::<T>().read_volatile() };
    // SAFETY: the segment was lent for writing, and is as long.
    unsafe { into.as_ptr().cast::<T>().write_unaligned(value) };
}
