//! Counters that are bound to an endpoint once it is open (fi_endpoint(3), fi_ep_bind).

use std::sync::Arc;

use bitflags::bitflags;

use super::Endpoint;
use super::ownership::Ownership;
use super::work::PostError;
use crate::completion::counter::Counter;

bitflags! {
    /// Kinds of operations that a counter counts ([`Endpoint::count`]). The values are libfabric's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Counted: u64 {
        /// Reads, and atomic operations that fetch.
        const READS = 1 << 8;
        /// Writes, and atomic operations that fetch nothing.
        const WRITES = 1 << 9;
        /// Messages that are received.
        const RECEIVES = 1 << 10;
        /// Messages that are sent.
        const SENDS = 1 << 11;
        /// Reads, and atomic operations that fetch, of this endpoint's regions by peers.
        const REMOTE_READS = 1 << 12;
        /// Writes, and atomic operations that fetch nothing, to this endpoint's regions by peers.
        const REMOTE_WRITES = 1 << 13;
    }
}

impl<A: Ownership> Endpoint<A> {
    /// Counts operations of these kinds from now on, like the counters of a [builder](crate::EndpointBuilder): an operation that
    /// ends later is counted, also if it was posted before. Accesses that a peer makes directly are counted only after that peer has
    /// been notified of the counter, so such a counter is bound before peers use regions.
    ///
    /// # Errors
    /// [`PostError::HasCounter`] if the endpoint has a counter for one of these kinds; then nothing has changed. [`PostError::Counter`],
    /// [`PostError::Forked`], [`PostError::Closed`].
    pub fn count(&self, what: Counted, counter: &Arc<Counter>) -> Result<(), PostError> {
        self.access.with(|engine| engine.count(what, counter))?;
        self.access.reports_also_to(counter).map_err(|error| PostError::Counter(crate::error_number(&error)))
    }
}
