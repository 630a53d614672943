//! The kinds of deferred work.

use std::io;

use crate::completion::counter::Counter;
use crate::endpoint::SharedEndpoint;
use crate::endpoint::operation::RawOperation;
use crate::endpoint::work::PostError;

/// The reason why work was not queued.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The endpoint rejects the operation.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The endpoint belongs to another domain.
    #[error("the work's endpoint belongs to another domain; queue the work there")]
    OtherDomain,
    /// A counter operation was given a completion counter.
    #[error("work that changes a counter cannot have a completion counter")]
    CountedTwice,
    /// The system could not start a thread that makes progress, or could not watch a descriptor.
    #[error("cannot start automatic progress for the queued work: {0}")]
    System(io::Error),
}

impl From<io::Error> for WorkError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl WorkError {
    /// Returns whether the same call may succeed later although neither it nor the program is changed, which is the
    /// case for [`Post`](Self::Post) as stated by [`PostError::is_retriable`].
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::Post(error) if error.is_retriable())
    }

    /// Returns the libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Post(error) => error.errno(),
            Self::OtherDomain | Self::CountedTwice => libc::EINVAL,
            Self::System(error) => crate::system::call::errno(error).unwrap_or(libc::EIO),
        }
    }
}

/// The action that deferred work performs.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be allocated for each request, which is used immediately")]
pub enum Work {
    /// An operation of an endpoint.
    Transfer(SharedEndpoint, RawOperation),
    /// Adds to a counter.
    Add(Counter, u64),
    /// Sets a counter's value.
    Set(Counter, u64),
}

/// A request of fi_control(3) with FI_QUEUE_WORK.
#[derive(Clone, Debug)]
pub struct DeferredWork {
    /// The operation.
    pub work: Work,
    /// The triggering counter.
    pub counter: Counter,
    /// The number of successes and errors of the counter at which the work begins.
    pub threshold: u64,
    /// The counter that counts the end of the work as a success or an error. `None` for counter operations.
    pub counting: Option<Counter>,
}
