//! The initiator's accesses: checked, announced, copied.
//!
//! An access to mapped memory takes no lock, allocates nothing and makes no system call; one of eight aligned bytes is one move
//! and is never seen in halves. A long one is announced anew for each piece of 64 KiB (256 KiB by the kernel), so that a revoker
//! waits for one piece at most.

#![expect(unsafe_code, reason = "moves words to and from mapped memory; each block states its own reason")]

use std::io;
use std::sync::Arc;

use zerocopy::FromBytes;

use super::Side;
use super::grantee::KeyPage;
use super::grants::{Answer, Asked, GrantIndex, Grants};
use super::resolution::{Resolution, Status};
use crate::memory::mapping::Mapping;
use crate::memory::region::Access;
use crate::memory::rundown::Announcer;
use crate::memory::volatile::{Segment, Segments, View};
use crate::transport::shm::death::Death;
use crate::transport::shm::pair::Pair;
use crate::transport::shm::transfer::{Arenas, Cma, Direction, Given, Remote, Sharing};

/// Bytes that are copied under one announcement.
const MAPPED_PIECE: usize = 64 << 10;
const CMA_PIECE: usize = 256 << 10;

/// Why a direct access was not made, or not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DirectError {
    /// The region does not give this right (MR-050, MR-052).
    #[error("the region does not give this right")]
    Right,
    /// Some byte is outside of the region (MR-014).
    #[error("the access leaves the region")]
    Range,
    /// The grant does not hold any more: to be forgotten, and asked for anew. A long access may have been made in part.
    #[error("the region is no longer granted")]
    Stale,
    /// The kernel found memory missing, on either side (MR-028).
    #[error("the memory cannot be read or written there")]
    Fault,
    /// An atomic's target is not aligned to its size.
    #[error("the target of an atomic operation is not aligned to its size")]
    Misaligned,
}

/// A region as it was granted.
#[derive(Debug)]
pub(super) struct Grant {
    access: Access,
    base: u64,
    len: u64,
    generation: u64,
    entry: u32,
    notifies: bool,
    memory: Memory,
    /// Holds what `memory` points into.
    _mapping: Option<Arc<Mapping>>,
}

/// Where the first byte is.
#[derive(Clone, Copy, Debug)]
enum Memory {
    /// In a mapping of ours, writable if the rights say so.
    Mapped(Segment),
    /// At an address in the peer.
    Cma(Cma, u64),
}

/// A checked access.
#[derive(Clone, Copy)]
struct Target {
    entry: u32,
    generation: u64,
    memory: Memory,
    offset: usize,
}

impl Grant {
    /// Checks an access; the offset of its first byte.
    #[inline]
    fn check(&self, address: u64, len: usize, wanted: Access) -> Result<Target, DirectError> {
        if !self.access.contains(wanted) {
            return Err(DirectError::Right);
        }
        // Neither subtraction wraps: the first is checked, the second compares before it subtracts.
        match address.checked_sub(self.base) {
            Some(offset) if offset <= self.len && len as u64 <= self.len - offset => Ok(Target {
                entry: self.entry,
                generation: self.generation,
                memory: self.memory,
                offset: offset as usize,
            }),
            _ => Err(DirectError::Range),
        }
    }
}

/// The initiator's side of one link.
#[derive(Debug)]
pub(in super::super) struct Initiator {
    grants: Grants,
    announcer: Announcer,
    page: Option<KeyPage>,
    pair: Arc<Pair>,
    side: usize,
    death: Arc<Death>,
    /// The number of the key page.
    number: u32,
    /// The kernel refused to copy.
    no_cma: bool,
    /// The arenas' count when grants were last swept.
    taken_back: u64,
    /// The number of the last long access.
    assists: u32,
}

impl Initiator {
    pub(super) fn new(pair: Arc<Pair>, side: usize, death: Arc<Death>) -> Self {
        Self {
            grants: Grants::new(),
            announcer: Announcer::default(),
            page: None,
            pair,
            side,
            death,
            number: 0,
            no_cma: false,
            taken_back: 0,
            assists: 0,
        }
    }

    /// The grants, by key.
    #[inline]
    pub(super) const fn grants(&mut self) -> &mut Grants {
        &mut self.grants
    }

    /// What is known of a key, or the number under which to ask.
    pub(super) fn look_up(&mut self, key: u64) -> Asked {
        if let Some(lookup) = self.grants.find(key) {
            return Asked::Known(lookup);
        }
        if self.grants.is_full() {
            self.grants.forget_ungranted();
            self.sweep();
        }
        self.grants.ask(key)
    }

    /// Forgets the grants that do not hold, and with them what they keep mapped.
    fn sweep(&mut self) {
        let Self { grants, page, .. } = self;
        let Some(page) = page else { return };
        grants.sweep(|grant| page.entry(grant.entry).is_some_and(|entry| entry.holds(grant.generation)));
    }

    /// An answer.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub(super) fn resolved(&mut self, id: u32, payload: View<'_>, link: Side<'_>) -> Result<(), &'static str> {
        let key = self.grants.answered(id).ok_or("an answer about a key that nobody asked for")?;
        let exact = payload.len() == size_of::<Resolution>();
        let resolution =
            payload.read::<Resolution>(0).filter(|_| exact).ok_or("an answer about a key of another length")?;
        let answer = match resolution.check()? {
            Status::Executed => Answer::Executed,
            Status::NoKey => Answer::NoKey,
            status => self.reach(status, &resolution, link.cma, link.arenas)?,
        };
        if self.grants.is_due() || self.taken_back != link.arenas.taken_back() {
            self.taken_back = link.arenas.taken_back();
            self.sweep();
        }
        self.grants.learn(key, answer);
        Ok(())
    }

    /// How a region can be reached by us that was granted. `resolution` was checked.
    fn reach(
        &mut self,
        status: Status,
        resolution: &Resolution,
        cma: Option<Cma>,
        arenas: &mut Arenas,
    ) -> Result<Answer, &'static str> {
        let number = resolution.page.get();
        if self.page.is_none() {
            match arenas.mapping((number, Sharing::ReadOnly))? {
                Given::Mapped(mapping) => {
                    self.page = Some(KeyPage::new(mapping).ok_or("a key page of the wrong size")?)
                }
                Given::Unmapped => return Ok(Answer::Executed),
                Given::Not => return Err("a key page that was not handed over"),
            }
            self.number = number;
        }
        if number != self.number {
            return Err("a second key page");
        }
        let entry = resolution.entry.get();
        if let Some(page) = &self.page
            && let Err(error) = page.prepare(entry)
        {
            tracing::debug!(%error, "a key page cannot be read: accesses will be executed");
            return Ok(Answer::Executed);
        }
        let (access, len) = (resolution.access(), resolution.len.get());
        let (memory, mapping) = if status == Status::Mapped {
            let writable = access.changes();
            let sharing = if writable { Sharing::Writable } else { Sharing::ReadOnly };
            let mapping = match arenas.mapping((resolution.arena.get(), sharing))? {
                Given::Mapped(mapping) => mapping,
                Given::Unmapped => return Ok(Answer::Executed),
                // The region may have been closed, and its arena taken back, after the answer was sent.
                Given::Not => return Ok(Answer::Void),
            };
            let remote = Remote::within(mapping, resolution.place.get(), len)?;
            // SAFETY: the range was just checked to lie in the mapping, which the grant holds. Others may write it; what is read
            // is only copied.
            let first = unsafe { Segment::new(remote.as_ptr(), len as usize) };
            (Memory::Mapped(first), Some(remote.into_mapping()))
        } else {
            let (Some(cma), false) = (cma, self.no_cma) else { return Ok(Answer::Executed) };
            (Memory::Cma(cma, resolution.place.get()), None)
        };
        Ok(Answer::Granted(Grant {
            access,
            base: resolution.base.get(),
            len,
            generation: resolution.generation.get(),
            entry,
            notifies: resolution.notify != 0,
            memory,
            _mapping: mapping,
        }))
    }

    /// Whether the target wants to be told of what was written.
    #[inline]
    pub(super) fn notifies(&self, grant: GrantIndex) -> bool {
        self.grants.get(grant).is_some_and(|grant| grant.notifies)
    }

    /// Whether atomic operations can be made directly.
    #[inline]
    pub(super) fn can_atomic(&self, grant: GrantIndex) -> bool {
        self.grants.get(grant).is_some_and(|grant| matches!(grant.memory, Memory::Mapped(_)))
    }

    #[inline(always)]
    fn check(&self, grant: GrantIndex, address: u64, len: usize, wanted: Access) -> Result<Target, DirectError> {
        let grant = self.grants.get(grant).ok_or(DirectError::Stale)?;
        grant.check(address, len, wanted).map_err(|error| self.rejected(grant, error))
    }

    /// An access that the grant refuses. Where the grant does not hold, nothing follows: another region may have the key by now,
    /// with other rights and another length.
    #[cold]
    fn rejected(&self, grant: &Grant, error: DirectError) -> DirectError {
        let entry = self.page.as_ref().and_then(|page| page.entry(grant.entry));
        if entry.is_some_and(|entry| entry.holds(grant.generation)) { error } else { DirectError::Stale }
    }

    /// Checks an access, and that the grant stands now; the grant's generation.
    pub(super) fn check_standing(
        &self,
        grant: GrantIndex,
        address: u64,
        len: usize,
        wanted: Access,
    ) -> Result<u64, DirectError> {
        let Target { entry, generation, .. } = self.check(grant, address, len, wanted)?;
        let entry = self.page.as_ref().and_then(|page| page.entry(entry)).ok_or(DirectError::Stale)?;
        if entry.holds(generation) { Ok(generation) } else { Err(DirectError::Stale) }
    }

    /// A number for a long access; never 0.
    pub(super) fn next_assist(&mut self) -> u32 {
        self.assists = self.assists.wrapping_add(1).max(1);
        self.assists
    }

    /// Makes an access, if the grant holds. It must not panic, nor take longer than a revoker may wait.
    #[inline(always)]
    fn announced<R>(&mut self, entry: u32, generation: u64, access: impl FnOnce() -> R) -> Result<R, DirectError> {
        let entry = self.page.as_ref().and_then(|page| page.entry(entry)).ok_or(DirectError::Stale)?;
        let line = self.pair.announcements(self.side);
        self.announcer.enter(line);
        let result = if entry.holds(generation) { Ok(access()) } else { Err(DirectError::Stale) };
        self.announcer.leave(line);
        result
    }

    /// Writes `from` to the region, from `address` on.
    #[inline]
    pub(super) fn write(&mut self, grant: GrantIndex, address: u64, from: &Segments) -> Result<(), DirectError> {
        if let [only] = from.as_slice()
            && self.write_one(grant, address, *only).is_some()
        {
            return Ok(());
        }
        let target = self.check(grant, address, from.len(), Access::REMOTE_WRITE)?;
        self.in_pieces(target, Direction::Write, from)
    }

    /// As [`write`](Self::write) of one piece, not too long, to mapped memory. `None` if it is something else, or refused; then
    /// nothing was written.
    #[inline(always)]
    pub(super) fn write_one(&mut self, grant: GrantIndex, address: u64, from: Segment) -> Option<()> {
        let target = self.check(grant, address, from.len(), Access::REMOTE_WRITE).ok()?;
        let Memory::Mapped(memory) = target.memory else { return None };
        if from.len() > MAPPED_PIECE {
            return None;
        }
        let to = memory.as_ptr().wrapping_add(target.offset);
        let written = self.announced(target.entry, target.generation, || {
            // SAFETY: `check` found the range within the mapping, which the grant holds; regions with this right are mapped
            // for writing. The source is our own memory.
            unsafe { store(to, from) };
        });
        written.ok()
    }

    /// Reads the region from `address` on, as much as `into` has room for.
    #[inline]
    pub(super) fn read(&mut self, grant: GrantIndex, address: u64, into: &Segments) -> Result<(), DirectError> {
        if let [only] = into.as_slice()
            && self.read_one(grant, address, *only).is_some()
        {
            return Ok(());
        }
        let target = self.check(grant, address, into.len(), Access::REMOTE_READ)?;
        self.in_pieces(target, Direction::Read, into)
    }

    /// As [`read`](Self::read) of one piece, not too long, from mapped memory. `None` if it is something else, or refused; then
    /// nothing was read.
    #[inline(always)]
    pub(super) fn read_one(&mut self, grant: GrantIndex, address: u64, into: Segment) -> Option<()> {
        let target = self.check(grant, address, into.len(), Access::REMOTE_READ).ok()?;
        let Memory::Mapped(memory) = target.memory else { return None };
        if into.len() > MAPPED_PIECE {
            return None;
        }
        let from = memory.as_ptr().wrapping_add(target.offset);
        let read = self.announced(target.entry, target.generation, || {
            // SAFETY: `check` found the range within the mapping, which the grant holds. The destination is our own memory.
            unsafe { load(from, into) };
        });
        read.ok()
    }

    /// Lends `len` bytes of mapped memory to `operate`, under one announcement.
    #[inline]
    pub(super) fn operate<R>(
        &mut self,
        grant: GrantIndex,
        address: u64,
        len: usize,
        wanted: Access,
        operate: impl FnOnce(*mut u8) -> R,
    ) -> Result<R, DirectError> {
        let target = self.check(grant, address, len, wanted)?;
        let Memory::Mapped(memory) = target.memory else { return Err(DirectError::Fault) };
        let at = memory.as_ptr().wrapping_add(target.offset);
        self.announced(target.entry, target.generation, || operate(at))
    }

    /// A long access, one of several segments, or one that the kernel makes.
    #[inline(never)]
    fn in_pieces(&mut self, target: Target, direction: Direction, local: &Segments) -> Result<(), DirectError> {
        let entry = self.page.as_ref().and_then(|page| page.entry(target.entry)).ok_or(DirectError::Stale)?;
        let line = self.pair.announcements(self.side);
        let most = if matches!(target.memory, Memory::Mapped(_)) { MAPPED_PIECE } else { CMA_PIECE };
        let mut done = 0;
        self.announcer.enter(line);
        let copied = loop {
            if !entry.holds(target.generation) {
                break Ok(false);
            }
            let len = most.min(local.len() - done);
            if let Err(error) = piece(target, direction, local, done, len, &self.death) {
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
            Err(error) => Err(self.refused(&error)),
        }
    }

    /// What it means that the kernel did not copy.
    #[cold]
    fn refused(&mut self, error: &io::Error) -> DirectError {
        match error.raw_os_error() {
            Some(libc::ESRCH) => DirectError::Stale,
            Some(libc::EPERM | libc::ENOSYS) => {
                tracing::debug!(%error, "the kernel copies no more: accesses will be executed");
                self.no_cma = true;
                DirectError::Stale
            }
            _ => DirectError::Fault,
        }
    }
}

/// Copies `len` bytes of an announced access, from `done` on.
fn piece(
    target: Target,
    direction: Direction,
    local: &Segments,
    done: usize,
    len: usize,
    death: &Death,
) -> io::Result<()> {
    let offset = target.offset + done;
    match (target.memory, direction) {
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
        // The number of a dead process may be another's by now.
        (Memory::Cma(..), _) if death.is_dead() => Err(io::Error::from_raw_os_error(libc::ESRCH)),
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
