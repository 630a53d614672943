//! A client over a transport, and how a client that does not pass is reported.

use crate::failure::Failure;
use crate::program::Program;
use serde::Serialize;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// Shared memory where that works, which is what percale chooses by itself
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

    /// Sets the program's environment for this transport.
    pub(super) fn tell(self, program: Program) -> Program {
        let program = program.without("PERCALE_TRANSPORT");
        match self {
            Self::Shm => program.without("FI_PERCALE_TRANSPORT"),
            Self::Tcp => program.env("FI_PERCALE_TRANSPORT", "tcp"),
        }
    }
}

/// A client, the library that it sees, and the transport below.
pub(super) struct Case {
    pub(super) client: String,
    pub(super) library: String,
    pub(super) transport: Transport,
}

impl Case {
    /// The client in a line.
    pub(super) fn title(&self) -> String {
        format!("{} over {}, {}", self.client, self.library, self.transport.name())
    }
}

/// Why a client has no good end.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It cannot be run here.
    Missing(String),
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Trouble {
    fn from(failure: E) -> Self {
        Self::Failed(failure.into())
    }
}

/// What a client that passed did.
pub(super) type Passed = Result<String, Trouble>;
