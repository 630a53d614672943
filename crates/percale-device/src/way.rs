//! The directions of transfers through fixed buffers.

/// The direction of a transfer, and the position at its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From memory to this offset of a file (IORING_OP_WRITE_FIXED).
    ToFile(u64),
    /// From this offset of a file to memory (IORING_OP_READ_FIXED).
    FromFile(u64),
    /// From memory to a connected socket, without a copy if the network supports that (IORING_OP_SEND_ZC).
    ToSocket,
    /// From a connected socket, or another object without offsets, to memory (IORING_OP_READ_FIXED).
    FromSocket,
}

impl Way {
    /// Returns whether the transfer may wait for the process at its other end.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Self::ToSocket | Self::FromSocket)
    }
}
