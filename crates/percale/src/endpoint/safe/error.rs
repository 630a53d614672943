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
    /// The operation's buffer. `None` if there is no buffer to return, for example because the operation is still under
    /// way after a wait that timed out.
    pub buffer: Option<Buffer>,
}

// The debug output is the whole message: a `main` function that returns the error prints it with `Debug`, and the
// advice is at the end of the message.
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
    /// The result of the operation was taken before, for example because a finished future was polled again.
    #[error("the result of the operation was already taken")]
    Taken,
}

impl From<ErrorEntry> for Cause {
    fn from(error: ErrorEntry) -> Self {
        Self::Completion(Box::new(error))
    }
}

impl From<Box<ErrorEntry>> for Cause {
    fn from(error: Box<ErrorEntry>) -> Self {
        Self::Completion(error)
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
    /// Creates the error for a handle after its result was taken.
    pub(crate) fn taken() -> Self {
        Self { cause: Cause::Taken, buffer: None }
    }

    /// Returns the libfabric code of the [`cause`](Self::cause).
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.cause.errno()
    }
}
