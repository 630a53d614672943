//! A client over a transport, and the result of a client that does not pass.

use crate::failure::Failure;
use crate::program::Program;
use serde::Serialize;

/// The transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// percale's default: shared memory where possible
    Shm,
    /// TCP only
    Tcp,
}

impl Transport {
    pub(super) const BOTH: [Self; 2] = [Self::Shm, Self::Tcp];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }

    /// Sets the program's environment variables for this transport.
    pub(super) fn tell(self, program: Program) -> Program {
        let program = program.without("PERCALE_TRANSPORT");
        match self {
            Self::Shm => program.without("FI_PERCALE_TRANSPORT"),
            Self::Tcp => program.env("FI_PERCALE_TRANSPORT", "tcp"),
        }
    }
}

/// A client, the library that it uses, and the transport.
pub(super) struct ClientCase {
    pub(super) client: String,
    pub(super) library: String,
    pub(super) transport: Transport,
}

impl ClientCase {
    /// Returns a one-line description of the client.
    pub(super) fn title(&self) -> String {
        format!("{} over {}, {}", self.client, self.library, self.transport.name())
    }
}

/// The reason why a client did not pass.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The client cannot run on this machine.
    Missing(String),
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Trouble {
    fn from(failure: E) -> Self {
        Self::Failed(failure.into())
    }
}

/// A note about a client that passed, or the reason why it did not.
pub(super) type Passed = Result<String, Trouble>;
