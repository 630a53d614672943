//! The initiator's accesses: its record of the target's keys, and the operations on the target's regions.

#![expect(unsafe_code, reason = "names memory within a mapping; each block states its own reason")]

use std::sync::Arc;

use super::LinkParts;
use super::error::DirectError;
use super::grantee::KeyPage;
use super::grants::{GrantAnswer, GrantIndex, Grants, RequestNeeded};
use super::path::{CheckedAccess, DirectPath, MappedGrant, RegionBase};
use super::resolution::{Resolution, Status};
use crate::local_memory::access::AccessExt as _;
use crate::local_memory::atomic::DirectOperation;
use crate::local_memory::volatile::{Segment, Segments, View, ViewExt as _};
use crate::region::Access;
use crate::shm::connection_end::ConnectionEnd;
use crate::shm::pair::PairMemory;
use crate::shm::transfer::{ArenaAccess, Arenas, Cma, RemoteRange, Sharing};

/// The initiator's side of one link.
#[derive(Debug)]
pub(in super::super) struct Initiator {
    grants: Grants,
    path: DirectPath,
    /// The number of the key page.
    number: u32,
    /// The value of `Arenas::taken_back` when grants were last swept.
    taken_back: u64,
    /// The number of the last long access.
    assists: u32,
}

impl Initiator {
    pub(super) fn new(pair: Arc<PairMemory>, side: usize, end: Arc<ConnectionEnd>) -> Self {
        Self { grants: Grants::new(), path: DirectPath::new(pair, side, end), number: 0, taken_back: 0, assists: 0 }
    }

    /// Returns the grants, by key.
    #[inline]
    pub(in super::super) const fn grants(&mut self) -> &mut Grants {
        &mut self.grants
    }

    /// Returns the entry of a key, or the number of the request to send.
    pub(super) fn look_up(&mut self, key: u64) -> RequestNeeded {
        if let Some(lookup) = self.grants.find(key) {
            return RequestNeeded::Known(lookup);
        }
        if self.grants.is_full() {
            self.grants.forget_ungranted();
            self.sweep();
        }
        self.grants.ask(key)
    }

    /// Removes the grants that are no longer valid, and releases the mappings that they keep.
    fn sweep(&mut self) {
        let Self { grants, path, .. } = self;
        grants.sweep(|grant| path.stands(grant));
    }

    /// Handles an answer.
    ///
    /// # Errors
    /// If the peer violated the protocol.
    pub(super) fn resolved(&mut self, id: u32, payload: View<'_>, link: LinkParts<'_>) -> Result<(), &'static str> {
        let key = self.grants.answered(id).ok_or("unexpected reply about a key")?;
        let exact = payload.len() == size_of::<Resolution>();
        let resolution =
            payload.read::<Resolution>(0).filter(|_| exact).ok_or("reply about a key has a wrong length")?;
        let answer = match resolution.check()? {
            Status::Executed => GrantAnswer::Executed,
            Status::NoKey => GrantAnswer::NoKey,
            status => self.granted(status, &resolution, link.cma, link.arenas)?,
        };
        if self.grants.is_due() || self.taken_back != link.arenas.taken_back() {
            self.taken_back = link.arenas.taken_back();
            self.sweep();
        }
        self.grants.learn(key, answer);
        Ok(())
    }

    /// Determines how this side can reach a granted region. `resolution` was checked.
    fn granted(
        &mut self,
        status: Status,
        resolution: &Resolution,
        cma: Option<&Cma>,
        arenas: &mut Arenas,
    ) -> Result<GrantAnswer, &'static str> {
        let number = resolution.page.get();
        if self.path.page().is_none() {
            match arenas.mapping((number, Sharing::ReadOnly))? {
                ArenaAccess::Mapped(mapping) => {
                    self.path.is_shown(KeyPage::new(mapping).ok_or("a key page of the wrong size")?);
                }
                ArenaAccess::Unmapped | ArenaAccess::Gone => return Ok(GrantAnswer::Executed),
            }
            self.number = number;
        }
        if number != self.number {
            return Err("a second key page");
        }
        let entry = resolution.entry.get();
        if let Some(page) = self.path.page()
            && let Err(error) = page.prepare(entry)
        {
            crate::later::later!(debug: %error, "cannot map a key page: the target executes accesses");
            return Ok(GrantAnswer::Executed);
        }
        let (access, len) = (resolution.access(), resolution.len.get());
        let (memory, mapping) = if status == Status::Mapped {
            let writable = access.changes();
            let sharing = if writable { Sharing::Writable } else { Sharing::ReadOnly };
            let mapping = match arenas.mapping((resolution.arena.get(), sharing))? {
                ArenaAccess::Mapped(mapping) => mapping,
                ArenaAccess::Unmapped => return Ok(GrantAnswer::Executed),
                // The region may have been closed and its arena taken back after the answer was sent.
                ArenaAccess::Gone => return Ok(GrantAnswer::Void),
            };
            let remote = RemoteRange::within(mapping, resolution.place.get(), len)?;
            // SAFETY: the range was just checked to lie in the mapping, which the grant keeps. Other processes may
            // write to it, and the bytes that are read are only copied.
            let first = unsafe { Segment::new(remote.as_ptr(), len as usize) };
            (RegionBase::Mapped(first), Some(remote.into_mapping()))
        } else {
            let Some(cma) = cma.filter(|cma| cma.is_allowed()) else { return Ok(GrantAnswer::Executed) };
            (RegionBase::Cma(cma.clone(), resolution.place.get()), None)
        };
        Ok(GrantAnswer::Granted(MappedGrant {
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

    /// Returns whether the target requests a notification of each write.
    #[inline]
    pub(in super::super) fn notifies(&self, grant: GrantIndex) -> bool {
        self.grants.get(grant).is_some_and(|grant| grant.notifies)
    }

    /// Returns the generation of the region under which it was granted, or 0 if the grant was removed.
    #[inline]
    pub(in super::super) fn generation(&self, grant: GrantIndex) -> u64 {
        self.grants.get(grant).map_or(0, |grant| grant.generation)
    }

    /// Returns whether atomic operations can be executed directly.
    #[inline]
    pub(in super::super) fn can_atomic(&self, grant: GrantIndex) -> bool {
        self.grants.get(grant).is_some_and(MappedGrant::is_mapped)
    }

    /// Checks an access, and that the grant is still valid. Returns the grant's generation.
    pub(super) fn check_standing(
        &mut self,
        grant: GrantIndex,
        address: u64,
        len: usize,
        wanted: Access,
    ) -> Result<u64, DirectError> {
        let (CheckedAccess { grant, .. }, path) = self.check(grant, address, len, wanted)?;
        if path.stands(grant) { Ok(grant.generation) } else { Err(DirectError::Stale) }
    }

    /// Returns a number for a long access. It is never 0.
    pub(super) fn next_assist(&mut self) -> u32 {
        self.assists = self.assists.wrapping_add(1).max(1);
        self.assists
    }

    /// Checks an access, and returns the data that is needed to execute it.
    #[inline(always)]
    fn check(
        &mut self,
        grant: GrantIndex,
        address: u64,
        len: usize,
        wanted: Access,
    ) -> Result<(CheckedAccess<'_>, &mut DirectPath), DirectError> {
        let Self { grants, path, .. } = self;
        let grant = grants.get(grant).ok_or(DirectError::Stale)?;
        match grant.check(address, len, wanted) {
            Ok(checked) => Ok((checked, path)),
            // If the grant is no longer valid, the failed check proves nothing: the key may now belong to another
            // region with different rights and a different length.
            Err(_) if !path.stands(grant) => Err(DirectError::Stale),
            Err(error) => Err(error),
        }
    }

    /// Like [`check`](Self::check), for an access that may be executed in place: its key is the one that was used last,
    /// and the target needs no notification.
    #[inline(always)]
    fn check_in_place(
        &mut self,
        key: u64,
        address: u64,
        len: usize,
        wanted: Access,
    ) -> Option<(CheckedAccess<'_>, &mut DirectPath)> {
        let Self { grants, path, .. } = self;
        let grant = grants.last_grant(key)?;
        if grant.notifies && wanted.changes() {
            return None;
        }
        Some((grant.check(address, len, wanted).ok()?, path))
    }

    /// Writes `from` to the region, starting at `address`.
    #[inline]
    pub(in super::super) fn write(
        &mut self,
        grant: GrantIndex,
        address: u64,
        from: &Segments,
    ) -> Result<(), DirectError> {
        let (checked, path) = self.check(grant, address, from.len(), Access::REMOTE_WRITE)?;
        path.write(checked, from)
    }

    /// Fills `into` from the region, starting at `address`.
    #[inline]
    pub(in super::super) fn read(
        &mut self,
        grant: GrantIndex,
        address: u64,
        into: &Segments,
    ) -> Result<(), DirectError> {
        let (checked, path) = self.check(grant, address, into.len(), Access::REMOTE_READ)?;
        path.read(checked, into)
    }

    /// Performs an atomic operation on mapped memory, under one announcement.
    #[inline]
    pub(in super::super) fn operate(
        &mut self,
        grant: GrantIndex,
        address: u64,
        operation: &impl DirectOperation,
    ) -> Result<(), DirectError> {
        let (checked, path) = self.check(grant, address, operation.len(), operation.rights())?;
        path.operate(checked, operation)
    }

    /// Like [`write`](Self::write), if the access may be executed in place. Returns `None` if it may not, or if it
    /// failed.
    #[inline(always)]
    pub(in super::super) fn write_in_place(&mut self, key: u64, address: u64, from: Segment) -> Option<()> {
        let (checked, path) = self.check_in_place(key, address, from.len(), Access::REMOTE_WRITE)?;
        path.write_one(checked, from).ok()
    }

    /// Like [`read`](Self::read), if the access may be executed in place. Returns `None` if it may not, or if it
    /// failed.
    #[inline(always)]
    pub(in super::super) fn read_in_place(&mut self, key: u64, address: u64, into: Segment) -> Option<()> {
        let (checked, path) = self.check_in_place(key, address, into.len(), Access::REMOTE_READ)?;
        path.read_one(checked, into).ok()
    }

    /// Like [`operate`](Self::operate), if the access may be executed in place. Returns `None` if it may not, or if it
    /// failed. In both cases memory is unchanged.
    #[inline(always)]
    pub(in super::super) fn operate_in_place(
        &mut self,
        key: u64,
        address: u64,
        operation: &impl DirectOperation,
    ) -> Option<()> {
        let (checked, path) = self.check_in_place(key, address, operation.len(), operation.rights())?;
        path.operate(checked, operation).ok()
    }
}
