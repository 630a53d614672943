//! The protocol by which two processes prove to each other over the control channel that they have the same
//! authorization key, without sending it.
//!
//! Each side draws a nonce. A proof is a keyed BLAKE3 hash of the role of the proving side and both nonces. The key of
//! the hash is derived from the authorization key for this purpose only. Therefore a proof is not valid in another run
//! or in the other direction.

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// The context of the key derivation.
const PURPOSE: &str = "percale 2026 control channel of percale perf";

/// A number that is used once.
pub(crate) type Nonce = [u8; 16];

/// The side that makes a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The measuring side.
    Near,
    /// The answering side.
    Far,
}

/// A proof that a side has the key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Proof([u8; 32]);

/// Draws a nonce.
pub(crate) fn nonce() -> Result<Nonce> {
    let mut nonce = [0; 16];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
        .map_err(Failure::system("drawing a random number"))?;
    Ok(nonce)
}

/// Computes the proof of one side. `near` and `far` are the nonces of the two sides.
fn digest(key: &[u8], role: Role, near: &Nonce, far: &Nonce) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(PURPOSE, key));
    hasher.update(if role == Role::Near { b"near" } else { b"far!" }).update(near).update(far);
    hasher.finalize()
}

impl Proof {
    /// Makes a proof that `role` has the key.
    pub(crate) fn new(key: &[u8], role: Role, near: &Nonce, far: &Nonce) -> Self {
        Self(digest(key, role, near, far).into())
    }

    /// Returns whether this proves that the other side, with the role `role`, has the key. Runs in constant time.
    pub(crate) fn holds(&self, key: &[u8], role: Role, near: &Nonce, far: &Nonce) -> bool {
        digest(key, role, near, far) == blake3::Hash::from_bytes(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_is_valid_for_one_key_one_side_and_one_run() {
        let (near, far) = (nonce().unwrap(), nonce().unwrap());
        let proof = Proof::new(b"key", Role::Near, &near, &far);
        assert!(proof.holds(b"key", Role::Near, &near, &far));
        assert!(!proof.holds(b"other", Role::Near, &near, &far));
        assert!(!proof.holds(b"key", Role::Far, &near, &far));
        assert!(!proof.holds(b"key", Role::Near, &far, &near));
        assert!(!proof.holds(b"key", Role::Near, &near, &nonce().unwrap()));
    }
}
