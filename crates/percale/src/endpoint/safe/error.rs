//! The errors of safe operations.

use crate::completion::entry::{ErrorCode, ErrorEntry};
use crate::endpoint::work::PostError;
use crate::local_memory::buffer::Buffer;
use crate::types::PeerAddress;

/// The error of a safe operation: its [cause](Self::cause), and the operation's [buffer](Self::buffer) if no other
/// process may still access it.
///
/// Its text is that of the [`cause`](Self::cause), so its [`source`](std::error::Error::source) is that of the cause
/// too: a report of the whole chain contains each text once.
pub struct OperationError {
    /// Boxed, so that a result with this error is as short as a result without it.
    parts: Box<(Cause, Option<Buffer>)>,
}

// The whole cause: a `main` that returns the error prints it by `Debug`, and its end is the advice.
crate::short_debug!(OperationError, "OperationError", cause: |this| this.parts.0.to_string());

impl std::fmt::Display for OperationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.parts.0.fmt(f)
    }
}

impl std::error::Error for OperationError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.parts.0.source()
    }
}

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
    /// Returns whether the same call may succeed later although neither it nor the program is changed. This is the case
    /// for [`TimedOut`](Self::TimedOut) (wait again), for [`Post`](Self::Post) as stated by
    /// [`PostError::is_retriable`], and for [`Completion`](Self::Completion) as stated by
    /// [`ErrorCode::is_retriable`].
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Post(error) => error.is_retriable(),
            Self::Completion(error) => error.is_retriable(),
            Self::TimedOut => true,
            Self::Taken => false,
        }
    }

    /// Returns the peer that the failure concerns, if it is known ([`ErrorEntry::peer`], [`PostError::peer`]).
    #[must_use]
    pub fn peer(&self) -> Option<PeerAddress> {
        match self {
            Self::Post(error) => error.peer(),
            Self::Completion(error) => error.peer(),
            Self::TimedOut | Self::Taken => None,
        }
    }

    /// Returns the error code of the failed operation. `None` if the operation did not fail: it was not posted
    /// ([`Post`](Self::Post)), or it continues ([`TimedOut`](Self::TimedOut)). So
    /// [`ErrorCode::TimedOut`] always means that the peer did not answer.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Completion(error) => Some(error.error),
            Self::Post(_) | Self::TimedOut | Self::Taken => None,
        }
    }

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

    /// Returns whether the same call may succeed later although neither it nor the program is changed
    /// ([`Cause::is_retriable`]).
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        self.cause().is_retriable()
    }

    /// Returns the peer that the failure concerns, if it is known ([`Cause::peer`]).
    #[must_use]
    pub fn peer(&self) -> Option<PeerAddress> {
        self.cause().peer()
    }

    /// Returns the error code of the failed operation, if it was posted and has failed ([`Cause::code`]).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use percale::ErrorCode;
    /// # let domain = percale::Info::discover()?.best()?.open()?;
    /// # let vector = domain.address_vector().build()?;
    /// # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
    /// # let peer = vector.insert(endpoint.address())?;
    /// # endpoint.send(peer, "a long message").wait()?;
    /// match endpoint.recv(vec![0; 4]).from(peer).wait() {
    ///     Ok(message) => println!("{} bytes", message.len),
    ///     Err(error) => match error.code() {
    ///         Some(ErrorCode::Truncated) => println!("the buffer was too short"),
    ///         Some(ErrorCode::Closed | ErrorCode::PeerDied) => println!("the peer is gone"),
    ///         Some(_) | None => return Err(error.into()),
    ///     },
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        self.cause().code()
    }

    /// Returns the libfabric code of the [`cause`](Self::cause).
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.cause().errno()
    }
}
