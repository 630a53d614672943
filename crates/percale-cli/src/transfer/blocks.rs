//! Blocks of files and their checksums.
//!
//! A block's checksum is the SHA-256 of its bytes, a file's the SHA-256 of its blocks' checksums, one after the other: so blocks can be
//! copied and checked by several processors at once, in any order, and a file's beginning can be told to be right without the rest.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use sha2::Digest as _;
use sha2::Sha256;

/// Length of a block; the last of a file may be shorter.
pub(crate) const BLOCK: u64 = 4 << 20;

/// Blocks are read, hashed and copied on in pieces that stay in a processor's cache.
pub(crate) const PIECE: usize = 128 << 10;

/// A checksum.
pub(crate) type Digest = [u8; 32];

/// How many blocks a file has.
pub(crate) const fn count(size: u64) -> u64 {
    size.div_ceil(BLOCK)
}

/// Where a block is: its offset and its length. `None` past the end.
pub(crate) fn place(size: u64, block: u64) -> Option<(u64, usize)> {
    let offset = block.checked_mul(BLOCK).filter(|&offset| offset < size)?;
    Some((offset, BLOCK.min(size - offset) as usize))
}

/// Reads `len` bytes of the file from `offset` on and gives each piece to `take`, with its place in the block; returns the checksum.
///
/// # Errors
/// If they cannot be read, or are not there.
pub(crate) fn load(
    file: &File,
    (offset, len): (u64, usize),
    scratch: &mut [u8],
    mut take: impl FnMut(usize, &[u8]),
) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    for at in (0..len).step_by(scratch.len()) {
        let count = scratch.len().min(len - at);
        let piece = &mut scratch[..count];
        file.read_exact_at(piece, offset + at as u64).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => changed(),
            _ => error,
        })?;
        hash.update(&*piece);
        take(at, piece);
    }
    Ok(hash.finalize().into())
}

/// Writes `len` bytes to the file from `offset` on, each piece as `give` has filled it in; returns the checksum of what was written.
///
/// # Errors
/// If they cannot be written.
pub(crate) fn store(
    file: &File,
    (offset, len): (u64, usize),
    scratch: &mut [u8],
    mut give: impl FnMut(usize, &mut [u8]),
) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    for at in (0..len).step_by(scratch.len()) {
        let count = scratch.len().min(len - at);
        let piece = &mut scratch[..count];
        give(at, piece);
        hash.update(&*piece);
        file.write_all_at(piece, offset + at as u64)?;
    }
    Ok(hash.finalize().into())
}

/// That the file is what it was when it had this metadata.
///
/// # Errors
/// If it is not, or the system does not say.
pub(crate) fn unchanged(file: &File, before: &Metadata) -> io::Result<()> {
    let state = |of: &Metadata| (of.len(), of.mtime(), of.mtime_nsec());
    if state(&file.metadata()?) == state(before) { Ok(()) } else { Err(changed()) }
}

fn changed() -> io::Error {
    io::Error::other("the file was changed while it was copied; copy it again")
}

/// The checksum of a file from those of its blocks, in order.
pub(crate) fn whole<'a>(blocks: impl IntoIterator<Item = &'a Digest>) -> Digest {
    let mut hash = Sha256::new();
    for block in blocks {
        hash.update(block);
    }
    hash.finalize().into()
}

/// A checksum as people compare it.
pub(crate) fn hex(digest: &Digest) -> String {
    use std::fmt::Write;
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _written: std::fmt::Result = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_a_file_and_no_more() {
        assert_eq!((count(0), count(1), count(BLOCK), count(BLOCK + 1)), (0, 1, 1, 2));
        assert_eq!(place(0, 0), None);
        assert_eq!(place(BLOCK + 7, 0), Some((0, BLOCK as usize)));
        assert_eq!(place(BLOCK + 7, 1), Some((BLOCK, 7)));
        assert_eq!(place(BLOCK, 1), None);
        assert_eq!(place(u64::MAX, u64::MAX), None);
    }

    #[test]
    fn checksums_are_those_of_the_standard() {
        // FIPS 180-4's example, and that of nothing.
        let abc: Digest = Sha256::digest(b"abc").into();
        assert_eq!(hex(&abc), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(hex(&whole([])), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_ne!(whole([&abc]), abc);
    }
}
