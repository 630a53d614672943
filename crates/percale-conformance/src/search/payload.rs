//! The contents of sent and written data. They are computed from the number of the operation and the offset of each
//! byte, so that each received byte identifies its operation.
//!
//! The first 8 bytes identify the operation ([`name_of`]). A shorter payload does not identify its operation. Its
//! message has the number as remote completion data.

/// The constant that is combined with the number of an operation. With this constant, other bytes are unlikely to look
/// like the number of an operation.
const NAME: u64 = 0x5eed_0000_0000_c0de;

/// Returns the word of an operation at this offset, which is a multiple of 8.
#[inline]
const fn word(id: u64, offset: usize) -> u64 {
    if offset == 0 {
        return id ^ NAME;
    }
    let mut z =
        id.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add((offset as u64).wrapping_mul(0xd134_2543_de82_ef95));
    z ^= z >> 29;
    z = z.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 32)
}

/// Fills `bytes` with the contents of an operation.
pub fn fill(id: u64, bytes: &mut [u8]) {
    for (index, part) in bytes.chunks_mut(8).enumerate() {
        let word = word(id, index * 8).to_le_bytes();
        part.copy_from_slice(&word[..part.len()]);
    }
}

/// Returns the contents of an operation.
#[must_use]
pub fn of(id: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(id, &mut bytes);
    bytes
}

/// Returns the operation that the first 8 bytes identify.
#[must_use]
pub fn name_of(bytes: &[u8]) -> Option<u64> {
    let first: [u8; 8] = bytes.get(..8)?.try_into().ok()?;
    Some(u64::from_le_bytes(first) ^ NAME)
}

/// Returns the offset of the first byte that differs from the contents of an operation.
#[must_use]
pub fn mismatch(id: u64, bytes: &[u8]) -> Option<usize> {
    for (index, part) in bytes.chunks(8).enumerate() {
        let wanted = word(id, index * 8).to_le_bytes();
        if part != &wanted[..part.len()] {
            let within = part.iter().zip(wanted).position(|(got, wanted)| *got != wanted).unwrap_or(0);
            return Some(index * 8 + within);
        }
    }
    None
}

/// Compares `bytes` with the contents of an operation. Returns a description of the difference, if there is one.
#[must_use]
pub fn describe(id: u64, bytes: &[u8]) -> Option<String> {
    let at = mismatch(id, bytes)?;
    let show = |bytes: &[u8]| bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    let wanted = of(id, bytes.len().min(at + 16));
    Some(format!(
        "byte {at} of {} differs: found {}, expected {}",
        bytes.len(),
        show(&bytes[at..]),
        show(&wanted[at..])
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_identifies_its_operation() {
        let bytes = of(77, 100);
        assert_eq!(name_of(&bytes), Some(77));
        assert_eq!(mismatch(77, &bytes), None);
        assert_eq!(mismatch(78, &bytes), Some(0));
    }

    #[test]
    fn a_changed_byte_is_found() {
        let mut bytes = of(5, 61);
        bytes[60] ^= 1;
        assert_eq!(mismatch(5, &bytes), Some(60));
        assert!(describe(5, &bytes).is_some());
    }
}
