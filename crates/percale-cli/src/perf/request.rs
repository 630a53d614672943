//! The requests of the process that measures, over the control channel.

use serde::{Deserialize, Serialize};

use crate::channel::proof::{Nonce, Proof};
use crate::round::{Round, Shape};
use crate::subject::Kind;

/// The requests of the process that measures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first where the other side has a key: this side has it.
    Prove { nonce: Nonce, proof: Proof },
    /// Start a subject; `address` is where ours is reached, if it has an address.
    Open { kind: Kind, address: Option<String> },
    /// Get an open subject ready for such messages.
    Prepare { kind: Kind, shape: Shape },
    /// Be the other side of a round. Answered by `Ready` at its start and `Done` at its end.
    Round { kind: Kind, round: Round },
}
