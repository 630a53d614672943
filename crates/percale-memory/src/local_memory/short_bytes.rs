//! Bytes of which there are mostly few.

use std::collections::TryReserveError;
use std::fmt;
use std::ops::{Deref, DerefMut};

use super::volatile::{Segments, SegmentsExt as _};

/// The maximum length without an allocation: that of the request of a compare-and-swap of one word.
const SHORT: usize = 24;

/// Owned bytes. Up to 24 of them need no allocation.
#[derive(Clone)]
pub struct ShortBytes(Bytes);

#[derive(Clone)]
enum Bytes {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Vec<u8>),
}

impl ShortBytes {
    /// Returns `len` zeros.
    #[must_use]
    #[inline]
    pub fn zeroed(len: usize) -> Self {
        if len <= SHORT { Self::short(len) } else { Self(Bytes::Long(vec![0; len])) }
    }

    /// Returns `len` zeros.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn try_zeroed(len: usize) -> Result<Self, TryReserveError> {
        if len <= SHORT {
            return Ok(Self::short(len));
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len)?;
        bytes.resize(len, 0);
        Ok(Self(Bytes::Long(bytes)))
    }

    /// Returns a copy of all bytes of the segments.
    #[must_use]
    #[inline]
    pub fn copy_of(segments: &Segments) -> Self {
        let mut bytes = Self::zeroed(segments.len());
        segments.copy_to(0, &mut bytes);
        bytes
    }

    #[inline]
    const fn short(len: usize) -> Self {
        Self(Bytes::Short { len: len as u8, bytes: [0; SHORT] })
    }

    /// Returns the bytes as a vector.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Bytes::Short { len, bytes } => bytes[..usize::from(len)].to_vec(),
            Bytes::Long(bytes) => bytes,
        }
    }
}

impl Deref for ShortBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Short { len, bytes } => &bytes[..usize::from(*len)],
            Bytes::Long(bytes) => bytes,
        }
    }
}

impl DerefMut for ShortBytes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Bytes::Short { len, bytes } => &mut bytes[..usize::from(*len)],
            Bytes::Long(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for ShortBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Bytes::Long(bytes))
    }
}

impl fmt::Debug for ShortBytes {
    /// Prints the length, never the content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShortBytes({})", self.len())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn holds_the_bytes_on_both_sides_of_the_limit() {
        for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, 4096] {
            let content: Vec<u8> = (0..len).map(|at| at as u8 | 1).collect();
            let copy = Segments::lend(&content, ShortBytes::copy_of);
            assert_eq!(*copy, *content, "{len} bytes");
            assert_eq!(copy.clone().into_vec(), content);
            assert_eq!(*ShortBytes::from(content.clone()), *content);
            for mut zeros in [ShortBytes::zeroed(len), ShortBytes::try_zeroed(len).expect("memory")] {
                assert_eq!(*zeros, *vec![0; len]);
                zeros.copy_from_slice(&content);
                assert_eq!(*zeros, *content);
            }
            assert_eq!(matches!(copy.0, Bytes::Short { .. }), len <= SHORT);
        }
        assert!(ShortBytes::try_zeroed(usize::MAX).is_err());
    }
}
