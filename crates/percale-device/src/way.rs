//! Ways of transfers through fixed buffers.

/// Which way bytes go, and where the other end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From memory to this offset of a file (IORING_OP_WRITE_FIXED).
    ToFile(u64),
    /// From this offset of a file to memory (IORING_OP_READ_FIXED).
    FromFile(u64),
    /// From memory to a connected socket, without a copy where the network allows it (IORING_OP_SEND_ZC).
    ToSocket,
    /// From a connected socket, or whatever else has no offsets, to memory (IORING_OP_READ_FIXED).
    FromSocket,
}

impl Way {
    /// Returns whether another end is waited for.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Self::ToSocket | Self::FromSocket)
    }
}
