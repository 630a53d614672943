//! The errors of safe operations.

use crate::completion::entry::{ErrorCode, ErrorEntry};
use crate::endpoint::work::PostError;
use crate::local_memory::buffer::Buffer;

/// The error of a safe operation. It returns the operation's buffer.
#[derive(thiserror::Error)]
#[error("{cause}")]
#[non_exhaustive]
pub struct OperationError {
    /// The cause.
    pub cause: Cause,
    /// The operation's buffer, unless the operation is still under way (a wait that timed out).
    pub buffer: Option<Buffer>,
}

// The whole cause: a `main` that returns the error prints it by `Debug`, and its end is the advice.
crate::short_debug!(OperationError, "OperationError", cause: |this| this.cause.to_string());

/// The cause of an [`OperationError`].
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The operation could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The operation failed.
    #[error(transparent)]
    Completion(Box<ErrorEntry>),
    /// The timeout of the wait expired. The operation was canceled, or continues without its handle.
    #[error("the operation did not complete within the given time")]
    TimedOut,
    /// The operation has ended and its result was taken before, for example because a finished future was polled again.
    #[error("the result of the operation was already taken")]
    Taken,
}

impl From<ErrorEntry> for Cause {
    /// Boxed, so that the fields that only errors need are not moved with every success.
    fn from(error: ErrorEntry) -> Self {
        Self::Completion(Box::new(error))
    }
}

impl Cause {
    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Post(error) => error.errno(),
            Self::Completion(error) => error.errno(),
            Self::TimedOut => ErrorCode::TimedOut.errno(),
            Self::Taken => 258, // FI_EOPBADSTATE
        }
    }
}

impl OperationError {
    /// Creates the error for a handle whose result was taken already.
    pub(crate) fn taken() -> Self {
        Self { cause: Cause::Taken, buffer: None }
    }

    /// Returns the libfabric code of the [`cause`](Self::cause).
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.cause.errno()
    }
}
