//! The requests of the measuring process, sent over the control channel.

use serde::{Deserialize, Serialize};

use crate::channel::proof::{Nonce, Proof};
use crate::round::{MessageShape, Round};
use crate::subject::SubjectKind;

/// The requests of the measuring process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum MeasureRequest {
    /// Proves that this side has the key. It is the first request if the other side requires a key.
    Prove { nonce: Nonce, proof: Proof },
    /// Start a subject. `address` is the address of the sender's subject, if it has one.
    Open { kind: SubjectKind, address: Option<String> },
    /// Prepare an open subject for messages of this shape.
    Prepare { kind: SubjectKind, shape: MessageShape },
    /// Take part in a round. The answers are `Ready` at its start and `Done` at its end.
    Round { kind: SubjectKind, round: Round },
}
