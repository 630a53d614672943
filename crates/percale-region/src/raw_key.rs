//! Raw keys, which are names of regions that are longer than the keys of operations (fi_mr(3), FI_MR_RAW).
//!
//! A raw key has 32 bytes. It contains a random number, the region's base and length, and a code over these three
//! (HMAC-SHA-256 with a secret of the domain, truncated). The application sends it to peers. An access carries an
//! 8-byte digest of all 32 bytes, and the domain registers the region under this digest. So a peer that lacks one of
//! the 32 bytes cannot access the region, and no peer can compute a key from other keys.

use hmac_sha256::{HMAC, Hash as Sha256};
use zerocopy::little_endian::U64;
use zerocopy::{Immutable, IntoBytes};

use super::error::{MapError, RegisterError};
use super::remote::NO_KEY;
use crate::system::random::random;

/// The length of the longest raw key in bytes.
pub const RAW_KEY_BYTES: usize = 32;

/// A name of a region that peers map before they use it (`Domain::map_raw`). It is plain data, to be sent to the peers
/// that may use the region. It has 32 bytes, or 8 for a region that was registered without a raw key
/// (`Registration::raw_key`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawKey {
    bytes: [u8; RAW_KEY_BYTES],
    len: u8,
}

impl std::fmt::Debug for RawKey {
    /// Does not print the key, which gives access to the region.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawKey({} bytes)", self.len)
    }
}

impl RawKey {
    /// Decodes the bytes that a peer sent. They are opaque: only their number is checked.
    ///
    /// # Errors
    /// [`MapError::Length`] if there are not 8 or 32 bytes.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MapError> {
        if !matches!(bytes.len(), 8 | RAW_KEY_BYTES) {
            return Err(MapError::Length(bytes.len()));
        }
        let mut all = [0; RAW_KEY_BYTES];
        all[..bytes.len()].copy_from_slice(bytes);
        Ok(Self { bytes: all, len: bytes.len() as u8 })
    }

    /// Returns the bytes to send to peers, which are the same on every machine: 32, or 8, which are the key of the
    /// region, the least significant byte first.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the raw key of a region that was registered without one. It is the key of the region.
    #[inline]
    pub(super) fn short(key: u64) -> Self {
        let mut bytes = [0; RAW_KEY_BYTES];
        bytes[..8].copy_from_slice(&key.to_le_bytes());
        Self { bytes, len: 8 }
    }
}

/// Returns the key under which a domain registers the region of this raw key. Returns `None` if the bytes do not have
/// the length of a raw key.
pub fn wire_key(raw: &[u8]) -> Option<u64> {
    if let Ok(short) = <[u8; 8]>::try_from(raw) {
        return Some(u64::from_le_bytes(short));
    }
    let long: &[u8; RAW_KEY_BYTES] = raw.try_into().ok()?;
    let mut digest = Sha256::new();
    digest.update(b"percale raw key");
    digest.update(long);
    Some(first_word(&digest.finalize()))
}

/// The secret for the codes in the raw keys of a domain.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Parts {
    id: [u8; 8],
    base: U64,
    len: U64,
}

#[doc(hidden)]
impl Secret {
    /// Creates a random secret.
    #[inline]
    pub fn new() -> std::io::Result<Self> {
        random().map(Self)
    }

    /// Creates a raw key, and returns it together with the key under which its region has to be registered.
    pub(super) fn raw_key(&self, base: u64, len: u64) -> Result<(RawKey, u64), RegisterError> {
        loop {
            let parts = Parts { id: random().map_err(RegisterError::System)?, base: base.into(), len: len.into() };
            let code = first_word(&HMAC::mac(parts.as_bytes(), self.0));
            let mut bytes = [0; RAW_KEY_BYTES];
            bytes[..24].copy_from_slice(parts.as_bytes());
            bytes[24..].copy_from_slice(&code.to_le_bytes());
            if let Some(key) = wire_key(&bytes).filter(|key| *key != NO_KEY && *key >> 32 != 0) {
                return Ok((RawKey { bytes, len: RAW_KEY_BYTES as u8 }, key));
            }
        }
    }
}

fn first_word(digest: &[u8]) -> u64 {
    digest.first_chunk().map_or_else(|| unreachable!("digests have 32 bytes"), |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Requirements: KEY-005.
    #[test]
    fn changing_any_raw_key_bit_changes_the_key() {
        let secret = Secret::new().unwrap();
        let (raw, key) = secret.raw_key(7, 4096).unwrap();
        let bytes: [u8; RAW_KEY_BYTES] = raw.as_bytes().try_into().unwrap();
        assert_eq!(wire_key(&bytes), Some(key));
        let mut seen = HashSet::from([key]);
        for bit in 0..8 * RAW_KEY_BYTES {
            let mut wrong = bytes;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(wire_key(&wrong).unwrap()), "bit {bit}");
        }
        for start in 0..=24 {
            let word = u64::from_le_bytes(bytes[start..start + 8].try_into().unwrap());
            assert_ne!(word, key, "the key of operations is not in the raw key");
        }
        for len in (0..100).filter(|len| !matches!(len, 8 | 32)) {
            assert_eq!(wire_key(&vec![1; len]), None, "{len} bytes");
        }
    }

    /// Requirements: KEY-004.
    #[test]
    fn keys_of_two_secrets_differ_and_none_is_reserved() {
        let secrets = [Secret::new().unwrap(), Secret::new().unwrap()];
        let mut seen = HashSet::new();
        for number in 0..2000 {
            let (raw, key) = secrets[number % 2].raw_key(0, 1).unwrap();
            assert!(key != NO_KEY && seen.insert(key) && raw.as_bytes().len() == RAW_KEY_BYTES);
        }
    }

    #[test]
    fn raw_key_round_trips_as_bytes_of_either_length_only() {
        let (long, _) = Secret::new().unwrap().raw_key(7, 4096).unwrap();
        for key in [long, RawKey::short(0x0807_0605_0403_0201)] {
            assert_eq!(RawKey::from_bytes(key.as_bytes()), Ok(key));
        }
        assert_eq!(RawKey::short(0x0807_0605_0403_0201).as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        for len in (0..100).filter(|len| !matches!(len, 8 | 32)) {
            assert_eq!(RawKey::from_bytes(&vec![1; len]), Err(MapError::Length(len)));
        }
    }

    /// Requirements: KEY-013.
    #[test]
    fn a_short_raw_key_is_the_key() {
        assert_eq!(wire_key(RawKey::short(0x1234_5678_9ABC_DEF0).as_bytes()), Some(0x1234_5678_9ABC_DEF0));
        assert!(!format!("{:?}", RawKey::short(77)).contains("77"), "keys are not logged");
    }
}
