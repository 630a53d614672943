//! Digests, which are the same in every process.

use super::{Collective, CollectiveWork};

/// A 64-bit digest (FNV-1a, with its bits mixed).
#[derive(Debug)]
pub(crate) struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    pub(crate) const fn end(self) -> u64 {
        mixed(self.0)
    }
}

/// Mixes a word, so that every bit of the result depends on every bit of the word.
const fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits = (bits ^ bits >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ bits >> 33
}

impl CollectiveWork {
    /// Returns a digest of the operation's parameters in the upper half, which members use to detect that they posted
    /// different operations.
    pub(crate) fn shape(&self) -> u64 {
        let (kind, root): (u64, usize) = match self.what {
            Collective::Barrier => (0, 0),
            Collective::Broadcast { root } => (1, root),
            Collective::Alltoall => (2, 0),
            Collective::Allreduce => (3, 0),
            Collective::Allgather => (4, 0),
            Collective::ReduceScatter => (5, 0),
            Collective::Reduce { root } => (6, root),
            Collective::Scatter { root } => (7, root),
            Collective::Gather { root } => (8, root),
        };
        let op = if self.what.combines() { self.op.to_u8() } else { 0 };
        let what = kind << 60 | (root as u64) << 16 | u64::from(op) << 8 | u64::from(self.datatype.to_u8());
        let digest = mixed(mixed(what) ^ self.count as u64);
        // A value with all bits set means an abort, so the result never has all bits set.
        (digest >> 33) << 32
    }
}
