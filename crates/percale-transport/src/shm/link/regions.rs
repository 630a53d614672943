//! Direct access to the peer's regions for the link's owner.

use super::super::direct::{DirectError, GrantIndex, LongAccess, Lookup};
use super::ShmLink;
use crate::local_memory::atomic::DirectOperation;
use crate::local_memory::volatile::{Segment, Segments};

impl ShmLink {
    /// Returns how the peer's region with this key can be reached. Sends a request to the peer if there is no entry for
    /// the key. Until the answer has arrived, and if the answer is not a grant, the peer executes the posted accesses.
    ///
    /// The caller has to [forget](Self::forget) a key that the target rejected as unknown, because another region may
    /// use it later.
    #[inline]
    #[doc(hidden)]
    pub fn look_up(&mut self, key: u64) -> Lookup {
        match self.initiator().and_then(|initiator| initiator.grants().last(key)) {
            Some(grant) => Lookup::Ready(grant),
            None => self.ask(key),
        }
    }

    /// Removes the entry of a key, after [`DirectError::Stale`].
    #[doc(hidden)]
    pub fn forget(&mut self, key: u64) {
        if let Some(initiator) = self.initiator() {
            initiator.grants().forget(key);
        }
    }

    /// Returns whether the peer counts writes to this region, so that each write has to be reported to it
    /// ([`FrameKind::Wrote`](crate::wire::head::FrameKind::Wrote)).
    #[inline]
    #[doc(hidden)]
    pub fn grant_notifies(&mut self, grant: GrantIndex) -> bool {
        self.initiator().is_some_and(|initiator| initiator.notifies(grant))
    }

    /// Returns the generation of the granted region, which identifies the region in notifications of accesses.
    #[inline]
    #[doc(hidden)]
    pub fn grant_generation(&mut self, grant: GrantIndex) -> u64 {
        self.initiator().map_or(0, |initiator| initiator.generation(grant))
    }

    /// Returns whether [`direct_atomic`](Self::direct_atomic) can be used. If not, the peer executes atomic operations.
    #[inline]
    #[doc(hidden)]
    pub fn grant_can_atomic(&mut self, grant: GrantIndex) -> bool {
        self.initiator().is_some_and(|initiator| initiator.can_atomic(grant))
    }

    /// Writes all of `from` to the region, starting at `address`. When this returns `Ok`, the bytes are in the target's
    /// memory.
    ///
    /// # Errors
    /// See [`DirectError`]. After `Stale` and `Fault` part of `from` may have been written.
    #[inline]
    #[doc(hidden)]
    pub fn direct_write(&mut self, grant: GrantIndex, address: u64, from: &Segments) -> Result<(), DirectError> {
        self.initiator().ok_or(DirectError::Stale)?.write(grant, address, from)
    }

    /// Like [`direct_write`](Self::direct_write), for one piece and the region of the key that was used last, if the
    /// target needs no notification. Returns `None` if these conditions do not hold, or if the write failed. A write
    /// that failed may have written part of the piece.
    #[inline(always)]
    #[doc(hidden)]
    pub fn write_in_place(&mut self, key: u64, address: u64, from: Segment) -> Option<()> {
        self.initiator()?.write_in_place(key, address, from)
    }

    /// Like [`write_in_place`](Self::write_in_place), for a read.
    #[inline(always)]
    #[doc(hidden)]
    pub fn read_in_place(&mut self, key: u64, address: u64, into: Segment) -> Option<()> {
        self.initiator()?.read_in_place(key, address, into)
    }

    /// Like [`write_in_place`](Self::write_in_place), for the operations of [`direct_atomic`](Self::direct_atomic). If
    /// it returns `None`, memory is unchanged.
    #[inline(always)]
    #[doc(hidden)]
    pub fn atomic_in_place(&mut self, key: u64, address: u64, operation: &impl DirectOperation) -> Option<()> {
        self.initiator()?.operate_in_place(key, address, operation)
    }

    /// Fills `into` from the region, starting at `address`.
    ///
    /// # Errors
    /// See [`DirectError`]. After `Stale` and `Fault` part of `into` may have been filled.
    #[inline]
    #[doc(hidden)]
    pub fn direct_read(&mut self, grant: GrantIndex, address: u64, into: &Segments) -> Result<(), DirectError> {
        self.initiator().ok_or(DirectError::Stale)?.read(grant, address, into)
    }

    /// Executes an atomic operation on the region at `address`. The whole operation is executed under one announcement,
    /// so that no part of it is executed twice.
    ///
    /// # Errors
    /// See [`DirectError`]. After an error memory is unchanged. The error is `Fault` if the region [does not support
    /// this](Self::grant_can_atomic).
    #[inline]
    #[doc(hidden)]
    pub fn direct_atomic(
        &mut self,
        grant: GrantIndex,
        address: u64,
        operation: &impl DirectOperation,
    ) -> Result<(), DirectError> {
        self.initiator().ok_or(DirectError::Stale)?.operate(grant, address, operation)
    }

    /// Executes an access of more than [`ASSISTED`](crate::shm::ASSISTED) bytes, with the target's help if the target
    /// makes progress. Returns false if the access ends later ([`Sink::assisted`](crate::Sink::assisted)). Until then
    /// no other may begin ([`is_assisted`](Self::is_assisted)).
    ///
    /// # Errors
    /// See [`DirectError`]. After `Stale` and `Fault` part of the data may have been copied.
    #[doc(hidden)]
    pub fn direct_long(&mut self, long: &LongAccess<'_>) -> Result<bool, DirectError> {
        let (direct, side) = self.direct();
        direct.assisted(long, side)
    }
}
