//! How two processes prove to each other over the control channel that they have the same authorization key, without sending it.
//!
//! Each draws a nonce. A proof is a keyed BLAKE3 over the role of the proving side and both nonces, under a key derived from the authorization key
//! for this purpose alone. So a proof is worthless in another run, and in the other direction.

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// The context of the key derivation.
const PURPOSE: &str = "percale 2026 control channel of percale perf";

/// A number that is used once.
pub(crate) type Nonce = [u8; 16];

/// The side that proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The one that measures.
    Near,
    /// The one that answers.
    Far,
}

/// The proof that a side has the key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Proof([u8; 32]);

/// Draws a nonce.
pub(crate) fn nonce() -> Result<Nonce> {
    let mut nonce = [0; 16];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
        .map_err(Failure::system("drawing a random number"))?;
    Ok(nonce)
}

/// The proof of one side. `near` and `far` are the two sides' nonces.
fn digest(key: &[u8], role: Role, near: &Nonce, far: &Nonce) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(PURPOSE, key));
    hasher.update(if role == Role::Near { b"near" } else { b"far!" }).update(near).update(far);
    hasher.finalize()
}

impl Proof {
    /// Proves that `role` has the key.
    pub(crate) fn new(key: &[u8], role: Role, near: &Nonce, far: &Nonce) -> Self {
        Self(digest(key, role, near, far).into())
    }

    /// Whether it proves that the other side, which is `role`, has the key. The time does not depend on the position of
    /// a difference.
    pub(crate) fn holds(&self, key: &[u8], role: Role, near: &Nonce, far: &Nonce) -> bool {
        digest(key, role, near, far) == blake3::Hash::from_bytes(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_key_one_side_and_one_run() {
        let (near, far) = (nonce().unwrap(), nonce().unwrap());
        let proof = Proof::new(b"key", Role::Near, &near, &far);
        assert!(proof.holds(b"key", Role::Near, &near, &far));
        assert!(!proof.holds(b"other", Role::Near, &near, &far));
        assert!(!proof.holds(b"key", Role::Far, &near, &far));
        assert!(!proof.holds(b"key", Role::Near, &far, &near));
        assert!(!proof.holds(b"key", Role::Near, &near, &nonce().unwrap()));
    }
}
