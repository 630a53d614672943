//! The initiator's queue pair and its outstanding requests.
//!
//! Requests complete in the order in which they were posted. A short access uses a slot of the queue pair's own
//! buffers. There is one slot for each request that may be outstanding. A longer access uses the operation's memory,
//! which is registered until the access has ended.
//!
//! **Order.** The device executes requests in order, with one exception: a write may overtake a read that was posted
//! before it. So a write that is posted while reads are outstanding is fenced.

#![expect(unsafe_code, reason = "has the device read and write memory of operations; the block states its reason")]

use std::collections::VecDeque;

use super::super::RemoteAccess;
use super::super::wire::access_id;
use super::super::wire_pair::ACCESSES;
use super::super::{Adapter, QueuePair};
use super::PostFailure;
use super::local::{CacheUser, Uses};
use crate::local_memory::volatile::{IOV_LIMIT, Segments, ViewExt as _};
use crate::wire::located::AccessGrant;
use percale_verbs::Sge;

/// The maximum number of outstanding requests.
pub(super) const DEPTH: usize = ACCESSES;
/// The length up to which copying is cheaper than registering.
pub(super) const SLOT: usize = 4 << 10;

/// An outstanding access.
#[derive(Debug)]
pub(super) struct OutstandingAccess {
    pub(super) number: u64,
    /// The engine's token of the access.
    pub(super) token: u32,
    /// The key and the number of the grant.
    pub(super) grant: (u64, u32),
    pub(super) reads: bool,
    /// The memory into which the bytes of a short read are copied from its slot.
    into: Option<Segments>,
    pub(super) uses: Uses,
}

/// An access, or a part of one, to be posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct RdmaRequest<'a> {
    pub(super) writes: bool,
    pub(super) key: u64,
    pub(super) grant: &'a AccessGrant,
    /// The address of the first byte in the target's registration.
    pub(super) address: u64,
    pub(super) local: &'a Segments,
    pub(super) token: u32,
}

/// The initiator's queue pair and the requests posted to it.
#[derive(Debug)]
pub(super) struct AccessQueue {
    pair: QueuePair,
    pub(super) flights: VecDeque<OutstandingAccess>,
    /// The number of outstanding reads.
    reads: usize,
}

/// Returns whether an access waits for the reads that were posted before it, of which `reads` are outstanding.
const fn is_fenced(writes: bool, reads: usize) -> bool {
    writes && reads > 0
}

impl AccessQueue {
    pub(super) const fn new(pair: QueuePair) -> Self {
        Self { pair, flights: VecDeque::new(), reads: 0 }
    }

    /// Posts an access under this number, which must be the next one.
    pub(super) fn post(
        &mut self,
        number: u64,
        wanted: &RdmaRequest<'_>,
        local: &mut CacheUser,
        adapter: &Adapter,
    ) -> Result<(), PostFailure> {
        let &RdmaRequest { writes, key, grant, address, local: memory, token } = wanted;
        if self.flights.len() >= DEPTH {
            return Err(PostFailure::Full);
        }
        let mut parts = [Sge { addr: 0, length: 0, lkey: 0 }; IOV_LIMIT];
        let (slot, len) = ((number % DEPTH as u64) as usize * SLOT, memory.len());
        let (uses, count) = if len <= SLOT {
            parts[0] = self.pair.buffers().part(slot, len).ok_or(PostFailure::Unreachable)?;
            if writes {
                self.pair.buffers().gather(memory, 0, slot, len);
            }
            (Uses::default(), 1)
        } else {
            let limits = adapter.limits();
            let pieces = if writes { limits.pieces } else { limits.read_pieces };
            if memory.as_slice().len() > pieces as usize {
                return Err(PostFailure::Unreachable);
            }
            let uses = local.register(adapter, memory, !writes, &mut parts).ok_or(PostFailure::Unreachable)?;
            (uses, memory.as_slice().len())
        };
        let into = (!writes && len <= SLOT).then_some(*memory);
        let flight = OutstandingAccess { number, token, grant: (key, grant.number), reads: !writes, into, uses };
        let fenced = is_fenced(writes, self.reads);
        let access = RemoteAccess { id: access_id(number), writes, to: (address, grant.remote_key), fenced };
        // SAFETY: the parts are either a slot that no outstanding request uses, or the memory of an operation. That
        // memory is lent until the operation completes, which is not before the end of this request or of its queue
        // pair. The memory is registered until then.
        if let Err(error) = unsafe { self.pair.post_remote(&access, &mut parts[..count]) } {
            crate::later::later!(debug: %error, "cannot post an access");
            let mut flight = flight;
            local.end(&mut flight.uses);
            return Err(PostFailure::Broken);
        }
        self.reads += usize::from(flight.reads);
        self.flights.push_back(flight);
        Ok(())
    }

    /// Handles the end of the oldest outstanding access. If it was a short read, copies its bytes to their destination.
    pub(super) fn over(&mut self, done: bool, local: &CacheUser) -> Option<OutstandingAccess> {
        let mut flight = self.flights.pop_front()?;
        self.reads -= usize::from(flight.reads);
        if done && let Some(into) = &flight.into {
            let slot = (flight.number % DEPTH as u64) as usize * SLOT;
            self.pair.buffers().view(slot, into.len()).copy_into(into, 0);
        }
        local.end(&mut flight.uses);
        Some(flight)
    }

    /// Returns whether the queue pair belongs to this process and not to its parent.
    pub(super) fn is_here(&self) -> bool {
        self.pair.domain().context().is_here()
    }

    /// Destroys the queue pair, and returns the requests that were outstanding.
    pub(super) fn into_flights(self) -> VecDeque<OutstandingAccess> {
        let Self { pair, flights, .. } = self;
        drop(pair);
        flights
    }

    /// Makes all outstanding requests complete. Requests that have not been executed complete with an error.
    pub(super) fn fail(&self) {
        if let Err(error) = self.pair.fail() {
            crate::later::later!(debug: %error, "cannot move a queue pair for accesses to the error state");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn write_waits_for_every_earlier_read() {
        for reads in [1, 2, DEPTH] {
            assert!(is_fenced(true, reads) && !is_fenced(false, reads));
        }
        assert!(!is_fenced(true, 0) && !is_fenced(false, 0));
    }
}
