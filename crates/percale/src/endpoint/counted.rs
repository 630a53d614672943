//! The kinds of operations that counters count (fi_endpoint(3), fi_ep_bind).

use bitflags::bitflags;

bitflags! {
    /// Kinds of operations that a counter counts ([`Endpoint::count`](crate::Endpoint::count)). The values are
    /// libfabric's.
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
