//! An operation of any kind, in the form that is stored until it begins.

use super::posted::Constant;
use super::remote_work::{AtomicWork, RmaWork};
use super::work::{ReceiveWork, SendWork};
use crate::collective::CollectiveWork;
use crate::local_memory::volatile::Segments;

/// An operation of an endpoint.
#[derive(Clone, Copy, Debug)]
pub enum RawOperation {
    /// Sends a message.
    Send(SendWork),
    /// Receives a message. MULTI_RECEIVE, PEEK, CLAIM and DISCARD are not supported.
    Receive(ReceiveWork),
    /// Reads a peer's memory.
    Read(RmaWork),
    /// Writes a peer's memory.
    Write(RmaWork),
    /// Reads or changes a peer's memory atomically.
    Atomic(AtomicWork),
    /// A collective operation of a group.
    Collective(CollectiveWork),
}

impl Constant for RawOperation {
    fn constant(&mut self) -> [Option<&mut Segments>; 2] {
        match self {
            Self::Send(work) => work.constant(),
            Self::Write(work) => work.constant(true),
            Self::Atomic(work) => work.constant(),
            Self::Receive(_) | Self::Read(_) | Self::Collective(_) => [None, None],
        }
    }
}

impl RawOperation {
    /// Returns the context with which the operation was posted.
    pub(crate) const fn context(&self) -> u64 {
        match self {
            Self::Send(work) => work.context,
            Self::Receive(work) => work.context,
            Self::Read(work) | Self::Write(work) => work.context,
            Self::Atomic(work) => work.context,
            Self::Collective(work) => work.context,
        }
    }
}
