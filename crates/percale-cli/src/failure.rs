//! The errors of the command. A failure ends the run, and its text is printed for the user without changes.

use std::io;

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Failure {
    /// An invalid combination of arguments. (clap has already rejected arguments that are invalid alone.)
    #[error("{0}")]
    Usage(String),
    /// The other process ended or closed the connection during a measurement.
    #[error("the other process exited during the measurement")]
    PeerEnded,
    /// The other process reported a failure.
    #[error("the other process failed: {0}")]
    Peer(String),
    /// A message did not arrive although the other process is alive.
    #[error("no message arrived for {0} s although the other process is alive")]
    Stalled(u64),
    /// The bytes of a message differ from those that were sent.
    #[error("wrong data: {0}")]
    Data(String),
    /// The other process sent a message that this process does not accept.
    #[error("unexpected message from the other process ({0}); check that both have the same version")]
    Protocol(String),
    /// The file server refused a request, or failed.
    #[error("the server returned: {0}")]
    Server(String),
    /// The operating system returned an error.
    #[error("{what}: {source}")]
    System {
        /// The attempted action.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// This machine does not allow a process to copy the memory of another.
    #[error("copying the memory of another process is not permitted: {0}")]
    Forbidden(io::Error),
    /// The diagnosis found that percale cannot work.
    #[error("something essential is missing: {0}")]
    EssentialMissing(String),
    /// The diagnosis is incomplete, or could not be written.
    #[error("{0}")]
    Undiagnosed(String),
    /// A registration cache was incorrect or could not be tested.
    #[error("{0}")]
    Torture(String),
    /// The costs of registrations could not be measured.
    #[error("{0}")]
    Registration(String),
    /// The costs of windows could not be measured.
    #[error("{0}")]
    Windows(String),
    /// One process of a team ended or failed.
    #[error("process {number}: {why}")]
    Member {
        /// The number of the member.
        number: usize,
        /// The error, or the exit status.
        why: String,
    },
    /// percale returned an error.
    #[error("{what}: {why}")]
    Percale {
        /// The attempted action.
        what: &'static str,
        /// percale's error.
        why: String,
    },
}

impl Failure {
    /// Makes a function for `map_err` that wraps an error of the operating system in the action `what`.
    pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |error| Self::System { what: what.into(), source: error.into() }
    }

    /// Returns the exit code: 2 for invalid usage, 3 for a diagnosis without a result, 1 otherwise.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Undiagnosed(_) => 3,
            _ => 1,
        }
    }
}

/// Makes a function for `map_err` that wraps an error of percale in the action `what`.
pub(crate) fn percale<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::Percale { what, why: error.to_string() }
}

/// The command's results.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;
