//! The kinds of operations that counters count (fi_endpoint(3), fi_ep_bind).

use bitflags::bitflags;

bitflags! {
    /// Kinds of operations that a counter counts ([`Endpoint::count`](crate::Endpoint::count)). The values are
    /// libfabric's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Counted: u64 {
        /// Reads and fetching atomic operations.
        const READS = 1 << 8;
        /// Writes and non-fetching atomic operations.
        const WRITES = 1 << 9;
        /// Received messages.
        const RECEIVES = 1 << 10;
        /// Sent messages.
        const SENDS = 1 << 11;
        /// Reads and fetching atomic operations by peers on this endpoint's regions.
        const REMOTE_READS = 1 << 12;
        /// Writes and non-fetching atomic operations by peers on this endpoint's regions.
        const REMOTE_WRITES = 1 << 13;
    }
}
