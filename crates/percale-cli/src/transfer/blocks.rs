//! Blocks of files and their checksums.
//!
//! The checksum of a file is its BLAKE3 hash, which is computed from the hashes of its parts in a tree. A block is such
//! a part, and its checksum is the chaining value of its subtree. (If the file has only one block, it is the checksum
//! of the file.) Therefore several processors can copy and check blocks at the same time and in any order, the
//! beginning of a file can be verified without the rest, and `b3sum` prints the same checksum for the whole file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

/// The length of a block, a power of two. The last block of a file may be shorter.
pub(crate) const BLOCK: u64 = 4 << 20;

/// The length of the pieces in which blocks are read, hashed and copied. A piece fits in a processor's cache.
pub(crate) const PIECE: usize = 128 << 10;

/// A checksum.
pub(crate) type Digest = [u8; 32];

/// Returns the number of blocks of a file.
pub(crate) const fn count(size: u64) -> u64 {
    size.div_ceil(BLOCK)
}

/// The position of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPosition {
    offset: u64,
    /// The length in bytes.
    pub(crate) len: usize,
    /// Whether the block is the only one of the file.
    only: bool,
}

/// Returns the position of a block in a file of `size` bytes. Returns `None` after the end of the file.
pub(crate) fn place(size: u64, block: u64) -> Option<BlockPosition> {
    let offset = block.checked_mul(BLOCK).filter(|&offset| offset < size)?;
    Some(BlockPosition { offset, len: BLOCK.min(size - offset) as usize, only: size <= BLOCK })
}

impl BlockPosition {
    fn hasher(self) -> Hasher {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(self.offset);
        hasher
    }

    fn digest(self, hasher: &Hasher) -> Digest {
        if self.only { hasher.finalize().into() } else { hasher.finalize_non_root() }
    }
}

/// Reads a block of the file, and passes each piece with its offset in the block to `take`. Returns the checksum.
///
/// # Errors
/// Fails if the block cannot be read, or does not exist.
pub(crate) fn load(
    file: &File,
    place: BlockPosition,
    scratch: &mut [u8],
    mut take: impl FnMut(usize, &[u8]),
) -> io::Result<Digest> {
    let mut hasher = place.hasher();
    for at in (0..place.len).step_by(scratch.len()) {
        let count = scratch.len().min(place.len - at);
        let piece = &mut scratch[..count];
        read(file, piece, place.offset + at as u64)?;
        hasher.update(piece);
        take(at, piece);
    }
    Ok(place.digest(&hasher))
}

/// Reads a block of the file into a buffer of the same length. Returns the checksum.
///
/// # Errors
/// Fails in the same cases as [`load`].
pub(crate) fn load_into(file: &File, place: BlockPosition, buffer: &mut [u8]) -> io::Result<Digest> {
    let (mut hasher, mut at) = (place.hasher(), place.offset);
    for piece in buffer.chunks_mut(PIECE) {
        read(file, piece, at)?;
        hasher.update(piece);
        at += piece.len() as u64;
    }
    Ok(place.digest(&hasher))
}

fn read(file: &File, piece: &mut [u8], at: u64) -> io::Result<()> {
    file.read_exact_at(piece, at).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => changed(),
        _ => error,
    })
}

/// Writes a block of the file. `give` fills in each piece. Returns the checksum of the written data.
///
/// # Errors
/// Fails if the block cannot be written.
pub(crate) fn store(
    file: &File,
    place: BlockPosition,
    scratch: &mut [u8],
    mut give: impl FnMut(usize, &mut [u8]),
) -> io::Result<Digest> {
    let mut hasher = place.hasher();
    for at in (0..place.len).step_by(scratch.len()) {
        let count = scratch.len().min(place.len - at);
        let piece = &mut scratch[..count];
        give(at, piece);
        hasher.update(piece);
        file.write_all_at(piece, place.offset + at as u64)?;
    }
    Ok(place.digest(&hasher))
}

/// Writes a block of the file from a buffer of the same length. Returns the checksum.
///
/// # Errors
/// Fails in the same cases as [`store`].
pub(crate) fn store_from(file: &File, place: BlockPosition, buffer: &[u8]) -> io::Result<Digest> {
    let (mut hasher, mut at) = (place.hasher(), place.offset);
    for piece in buffer.chunks(PIECE) {
        hasher.update(piece);
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    Ok(place.digest(&hasher))
}

/// Returns the error for a file that changed.
pub(crate) fn changed() -> io::Error {
    io::Error::other("the file was changed during the copy; copy it again")
}

/// Returns the checksum of a file of `size` bytes, if `digests` has the checksums of all its blocks.
///
/// # Errors
/// Fails with the number of available blocks if blocks are missing.
pub(crate) fn complete(size: u64, digests: &BTreeMap<u64, Digest>) -> Result<Digest, u64> {
    let (have, all) = (digests.len() as u64, count(size));
    // The keys are distinct, so these are the numbers from 0 to `all` - 1.
    if have == all && digests.last_key_value().is_none_or(|(&last, _)| last == all - 1) {
        Ok(whole(digests.values()))
    } else {
        Err(have)
    }
}

/// Computes the checksum of a file from the checksums of its blocks, in order.
pub(crate) fn whole<'a>(blocks: impl IntoIterator<Item = &'a Digest>) -> Digest {
    let blocks: Vec<Digest> = blocks.into_iter().copied().collect();
    match *blocks.as_slice() {
        [] => Hasher::new().finalize().into(),
        [only] => only,
        _ => {
            let (left, right) = halves(&blocks);
            merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash).into()
        }
    }
}

/// Splits at the largest power of two that leaves at least one block for the right part.
fn halves(blocks: &[Digest]) -> (&[Digest], &[Digest]) {
    blocks.split_at(blocks.len().next_power_of_two() / 2)
}

fn subtree(blocks: &[Digest]) -> Digest {
    if let [only] = *blocks {
        return only;
    }
    let (left, right) = halves(blocks);
    merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
}

/// Formats a checksum in hexadecimal.
pub(crate) fn hex(digest: &Digest) -> String {
    use std::fmt::Write;
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _written: std::fmt::Result = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_exactly_the_file() {
        let found = |size, block| place(size, block).map(|place| (place.offset, place.len, place.only));
        assert_eq!((count(0), count(1), count(BLOCK), count(BLOCK + 1)), (0, 1, 1, 2));
        assert_eq!(found(0, 0), None);
        assert_eq!(found(BLOCK, 0), Some((0, BLOCK as usize, true)));
        assert_eq!(found(BLOCK + 7, 0), Some((0, BLOCK as usize, false)));
        assert_eq!(found(BLOCK + 7, 1), Some((BLOCK, 7, false)));
        assert_eq!(found(BLOCK, 1), None);
        assert_eq!(found(u64::MAX, u64::MAX), None);
    }

    #[test]
    fn combined_checksum_matches_the_whole_file() {
        // BLAKE3's published test vector for empty input.
        let nothing = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(hex(&whole([])), nothing);
        let longest: Vec<u8> = (0..6 * BLOCK + 1).map(|at| (at % 251) as u8).collect();
        let file = File::from(rustix::fs::memfd_create("blocks", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(&longest, 0).unwrap();
        for blocks in 0..=6 {
            for more in [-1, 0, 1, 1024, 1_000_000] {
                let Some(size) = (blocks * BLOCK).checked_add_signed(more).filter(|size| *size <= longest.len() as u64)
                else {
                    continue;
                };
                let mut scratch = vec![0; PIECE];
                let places = (0..count(size)).map(|block| place(size, block).unwrap());
                let digests: Vec<Digest> =
                    places.map(|place| load(&file, place, &mut scratch, |_, _| {}).unwrap()).collect();
                let wanted: Digest = blake3::hash(&longest[..size as usize]).into();
                assert_eq!(whole(&digests), wanted, "{size} bytes");
            }
        }
    }
}
