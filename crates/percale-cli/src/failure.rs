//! What can go wrong in the command. A failure ends the run; its text goes to the user as it is.

use std::io;

/// Why the command could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Failure {
    /// The arguments make no sense together (clap has already refused those that make none alone).
    #[error("{0}")]
    Usage(String),
    /// The other process ended or hung up in the middle of something.
    #[error("the other process ended before the measurement did")]
    PeerEnded,
    /// The other process reported a failure of its own.
    #[error("the other process failed: {0}")]
    Peer(String),
    /// A message did not come and the other process did not end either.
    #[error("no message arrived for {0} s although the other process is alive")]
    Stalled(u64),
    /// A message came and was not what had been sent.
    #[error("wrong data: {0}")]
    Data(String),
    /// The two processes do not understand each other.
    #[error("the other process sent what this version does not know ({0}); are both of the same version?")]
    Protocol(String),
    /// The server of files said no, or could not.
    #[error("the server says: {0}")]
    Server(String),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What it answered.
        source: io::Error,
    },
    /// This machine does not let one process copy another's memory.
    #[error("copying another process' memory is forbidden here: {0}")]
    Forbidden(io::Error),
    /// A registration cache was wrong, or could not be put to the test.
    #[error("{0}")]
    Torture(String),
    /// What a registration costs could not be measured.
    #[error("{0}")]
    Registration(String),
    /// What windows cost could not be measured.
    #[error("{0}")]
    Windows(String),
    /// One of several processes ended, or failed.
    #[error("process {number}: {why}")]
    Member {
        /// Which one.
        number: usize,
        /// What it said, or how it ended.
        why: String,
    },
    /// percale refused something.
    #[error("{what}: {why}")]
    Percale {
        /// What was tried.
        what: &'static str,
        /// What it answered.
        why: String,
    },
}

impl Failure {
    /// For `map_err`: an error of the operating system while trying to do `what`.
    pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |error| Self::System { what: what.into(), source: error.into() }
    }

    /// The exit code: 2 for bad usage, else 1.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 1,
        }
    }
}

/// For `map_err`: percale refused `what`.
pub(crate) fn percale<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::Percale { what, why: error.to_string() }
}

/// The command's results.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;
