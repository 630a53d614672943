//! Direct access, as a link's owner uses it.

use super::LongAccess;
use super::access::DirectError;
use super::grants::{GrantIndex, Lookup};
use crate::memory::atomic::Operation;
use crate::memory::volatile::{Segment, Segments};
use crate::transport::shm::ShmLink;

impl ShmLink {
    /// How the peer's region with this key can be reached. Asks the peer, if that is not known; as long as the answer is not
    /// there, and where it is no grant, the peer executes what is posted.
    ///
    /// A key that the target refused as unknown is to be [forgotten](Self::forget): another region may have it later.
    #[inline]
    pub(crate) fn look_up(&mut self, key: u64) -> Lookup {
        match self.initiator().and_then(|initiator| initiator.grants().last(key)) {
            Some(grant) => Lookup::Ready(grant),
            None => self.ask(key),
        }
    }

    /// Forgets what is known of a key: after [`DirectError::Stale`].
    pub(crate) fn forget(&mut self, key: u64) {
        if let Some(initiator) = self.initiator() {
            initiator.grants().forget(key);
        }
    }

    /// Whether the peer counts what is written to this region, and must be told of each write
    /// ([`Kind::Wrote`](crate::wire::head::Kind::Wrote)).
    #[inline]
    pub(crate) fn grant_notifies(&mut self, grant: GrantIndex) -> bool {
        self.initiator().is_some_and(|initiator| initiator.notifies(grant))
    }

    /// The generation of the region that was granted, by which a notice of an access names it.
    #[inline]
    pub(crate) fn grant_generation(&mut self, grant: GrantIndex) -> u64 {
        self.initiator().map_or(0, |initiator| initiator.generation(grant))
    }

    /// Whether [`direct_atomic`](Self::direct_atomic) can be used. If not, the peer executes atomic operations.
    #[inline]
    pub(crate) fn grant_can_atomic(&mut self, grant: GrantIndex) -> bool {
        self.initiator().is_some_and(|initiator| initiator.can_atomic(grant))
    }

    /// Writes all of `from` to the region, from `address` on. When this returns Ok, it is in the target's memory.
    ///
    /// # Errors
    /// As [`DirectError`] says. After `Stale` and `Fault` some of it may have been written.
    #[inline]
    pub(crate) fn direct_write(&mut self, grant: GrantIndex, address: u64, from: &Segments) -> Result<(), DirectError> {
        self.initiator().ok_or(DirectError::Stale)?.write(grant, address, from)
    }

    /// As [`direct_write`](Self::direct_write) of one piece to the region whose key was used last, if the target wants no news
    /// of it. `None` if not, and if it failed; then some of it may have been written.
    #[inline(always)]
    pub(crate) fn write_in_place(&mut self, key: u64, address: u64, from: Segment) -> Option<()> {
        self.initiator()?.write_in_place(key, address, from)
    }

    /// As [`write_in_place`](Self::write_in_place), for a read.
    #[inline(always)]
    pub(crate) fn read_in_place(&mut self, key: u64, address: u64, into: Segment) -> Option<()> {
        self.initiator()?.read_in_place(key, address, into)
    }

    /// As [`write_in_place`](Self::write_in_place), for what [`direct_atomic`](Self::direct_atomic) does. After `None` nothing was
    /// done.
    #[inline(always)]
    pub(crate) fn atomic_in_place(&mut self, key: u64, address: u64, operation: &impl Operation) -> Option<()> {
        self.initiator()?.operate_in_place(key, address, operation)
    }

    /// Fills `into` from the region, from `address` on.
    ///
    /// # Errors
    /// As [`DirectError`] says. After `Stale` and `Fault` some of it may have been filled.
    #[inline]
    pub(crate) fn direct_read(&mut self, grant: GrantIndex, address: u64, into: &Segments) -> Result<(), DirectError> {
        self.initiator().ok_or(DirectError::Stale)?.read(grant, address, into)
    }

    /// Does an atomic operation to the region, from `address` on: all of it under one announcement, so that nothing is done twice.
    ///
    /// # Errors
    /// As [`DirectError`] says; then nothing was done. `Fault` if the region [cannot](Self::grant_can_atomic).
    #[inline]
    pub(crate) fn direct_atomic(
        &mut self,
        grant: GrantIndex,
        address: u64,
        operation: &impl Operation,
    ) -> Result<(), DirectError> {
        self.initiator().ok_or(DirectError::Stale)?.operate(grant, address, operation)
    }

    /// Makes an access of more than [`ASSISTED`](super::ASSISTED) bytes, which the target helps with if it makes progress. False if its
    /// end comes later ([`Sink::assisted`](crate::transport::Sink::assisted)); until then no other may begin
    /// ([`is_assisted`](Self::is_assisted)).
    ///
    /// # Errors
    /// As [`DirectError`] says. After `Stale` and `Fault` some of it may have been copied.
    pub(crate) fn direct_long(&mut self, long: &LongAccess<'_>) -> Result<bool, DirectError> {
        let (direct, side) = self.direct();
        direct.assisted(long, side)
    }
}
