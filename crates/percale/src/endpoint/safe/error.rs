//! The errors of safe operations.

use crate::completion::entry::{ErrorCode, ErrorEntry};
use crate::endpoint::work::PostError;
use crate::local_memory::buffer::Buffer;

/// The error of a safe operation: its [cause](Self::cause), and the operation's [buffer](Self::buffer) if no other
/// process may still access it.
#[derive(thiserror::Error)]
#[error("{}", .parts.0)]
pub struct OperationError {
    /// Boxed, so that a result with this error is as short as a result without it.
    parts: Box<(Cause, Option<Buffer>)>,
}

// The whole cause: a `main` that returns the error prints it by `Debug`, and its end is the advice.
crate::short_debug!(OperationError, "OperationError", cause: |this| this.parts.0.to_string());

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
    /// The timeout of the wait expired. The operation is still in progress and keeps its buffer, and its handle can be
    /// waited for again.
    #[error("the operation did not complete within the given time")]
    TimedOut,
    /// The handle has returned the result of the operation before. A further wait or poll returns this error.
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
    #[cold]
    pub(crate) fn new(cause: impl Into<Cause>, buffer: Option<Buffer>) -> Self {
        Self { parts: Box::new((cause.into(), buffer)) }
    }

    /// Creates the error for a handle whose result was taken already.
    pub(crate) fn taken() -> Self {
        Self::new(Cause::Taken, None)
    }

    /// Returns the cause.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.parts.0
    }

    /// Like [`into_buffer`](Self::into_buffer), but keeps the buffer in the error.
    #[must_use]
    pub fn buffer(&self) -> Option<&Buffer> {
        self.parts.1.as_ref()
    }

    /// Returns the operation's buffer. `None` if the operation is still in progress (a wait that timed out), or if
    /// another process may still access the buffer.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        self.parts.1
    }

    /// Returns the cause and the buffer ([`into_buffer`](Self::into_buffer)).
    #[must_use]
    pub fn into_parts(self) -> (Cause, Option<Buffer>) {
        *self.parts
    }

    /// Returns the libfabric code of the [`cause`](Self::cause).
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.cause().errno()
    }
}
