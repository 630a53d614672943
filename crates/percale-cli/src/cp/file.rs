//! The local file of a copy. Threads read or write its blocks and compute their checksums.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use crate::failure::{Failure, Result};
use crate::transfer::blocks::{self, BLOCK, Digest};
use crate::transfer::pool::Pool;

/// The maximum number of blocks in memory.
pub(super) const BUFFERS: usize = 8;

/// The maximum number of threads. A single connection is slower than this many threads.
const THREADS: usize = 8;

/// What to do with a block.
#[derive(Debug)]
enum Work {
    /// Compute its checksum only.
    Hash,
    /// Read the block into this buffer.
    Load(Vec<u8>),
    /// Write the block from this buffer. The sender has sent this checksum.
    Save(Vec<u8>, Digest),
}

#[derive(Debug)]
struct Job {
    block: u64,
    work: Work,
}

/// A block with a finished job.
#[derive(Debug)]
pub(super) struct FinishedBlock {
    /// The number of the block.
    pub(super) block: u64,
    /// The checksum of the block.
    pub(super) digest: Digest,
    /// The buffer of the block, empty if the block was only hashed.
    pub(super) buffer: Vec<u8>,
}

/// A local file and the threads that work on it.
#[derive(Debug)]
pub(super) struct LocalFile {
    size: u64,
    pool: Pool<Job>,
    results: Receiver<io::Result<FinishedBlock>>,
    /// The number of submitted jobs with results that have not been taken.
    pub(super) pending: usize,
    spare: Vec<Vec<u8>>,
    /// The checksums of the blocks that the copy has.
    digests: BTreeMap<u64, Digest>,
}

impl LocalFile {
    /// Starts threads for a file that has, or will have, `size` bytes.
    pub(super) fn new(file: &File, size: u64) -> Result<Self> {
        let file = Arc::new(file.try_clone().map_err(Failure::system("duplicating a descriptor"))?);
        let (sender, results) = mpsc::channel();
        let pool = Pool::start(THREADS, move |job: Job, scratch: &mut [u8]| {
            // The receiver is closed if the copy has failed.
            let _sent: Result<(), mpsc::SendError<_>> = sender.send(job.run(&file, size, scratch));
        })?;
        let block = BLOCK.min(size) as usize;
        let buffers = blocks::count(size).min(BUFFERS as u64);
        let spare = (0..buffers).map(|_| vec![0; block]).collect();
        Ok(Self { size, pool, results, pending: 0, spare, digests: BTreeMap::new() })
    }

    fn give(&mut self, block: u64, work: Work) {
        self.pending += 1;
        self.pool.give(Job { block, work });
    }

    /// Queues the computation of a block's checksum.
    pub(super) fn hash(&mut self, block: u64) {
        self.give(block, Work::Hash);
    }

    /// Queues the reading of a block. Returns `false` if there is no free buffer.
    pub(super) fn load(&mut self, block: u64) -> bool {
        let Some(buffer) = self.buffer(block) else { return false };
        self.give(block, Work::Load(buffer));
        true
    }

    /// Queues the writing of a block, which was sent with this checksum.
    pub(super) fn save(&mut self, block: u64, buffer: Vec<u8>, digest: Digest) {
        self.give(block, Work::Save(buffer, digest));
    }

    /// Returns a free buffer, resized to the length of the block.
    pub(super) fn buffer(&mut self, block: u64) -> Option<Vec<u8>> {
        let len = blocks::place(self.size, block)?.len;
        let mut buffer = self.spare.pop()?;
        buffer.resize(len, 0);
        Some(buffer)
    }

    /// Returns a buffer that is no longer used.
    pub(super) fn give_back(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    /// Waits for the next finished block. Blocks finish in any order.
    pub(super) fn next(&mut self, what: &str) -> Result<FinishedBlock> {
        let result = self.results.recv().map_err(|_| Failure::PeerEnded)?;
        self.pending -= 1;
        result.map_err(Failure::system(what.to_owned()))
    }

    /// Returns the next finished block, or `None` if there is none yet.
    pub(super) fn try_next(&mut self, what: &str) -> Result<Option<FinishedBlock>> {
        let Ok(result) = self.results.try_recv() else { return Ok(None) };
        self.pending -= 1;
        result.map(Some).map_err(Failure::system(what.to_owned()))
    }

    /// Records that the copy has this block.
    pub(super) fn note(&mut self, block: u64, digest: Digest) {
        self.digests.insert(block, digest);
    }

    /// Returns the checksum of the whole file. The copy must have all blocks.
    pub(super) fn digest(&self) -> Result<Digest> {
        let all = blocks::count(self.size);
        blocks::complete(self.size, &self.digests)
            .map_err(|have| Failure::Protocol(format!("only {have} of {all} blocks were copied")))
    }

    /// Reads all blocks again and compares their checksums with those of the copy.
    pub(super) fn read_again(&mut self, what: &str) -> Result<()> {
        let all = blocks::count(self.size);
        let (mut next, mut left) = (0, all);
        while left > 0 {
            while next < all && self.pending < 2 * THREADS {
                self.hash(next);
                next += 1;
            }
            let done = self.next(what)?;
            if self.digests.get(&done.block) != Some(&done.digest) {
                return Err(Failure::system(what.to_owned())(blocks::changed()));
            }
            left -= 1;
        }
        Ok(())
    }
}

impl Job {
    fn run(self, file: &File, size: u64, scratch: &mut [u8]) -> io::Result<FinishedBlock> {
        let Self { block, work } = self;
        let place = blocks::place(size, block).ok_or(io::ErrorKind::InvalidInput)?;
        let (digest, buffer) = match work {
            Work::Hash => (blocks::load(file, place, scratch, |_, _| {})?, Vec::new()),
            Work::Load(mut buffer) => (blocks::load_into(file, place, &mut buffer)?, buffer),
            Work::Save(buffer, expected) => {
                let digest = blocks::store_from(file, place, &buffer)?;
                if digest != expected {
                    let why = format!("checksum mismatch in block {block}");
                    return Err(io::Error::other(why));
                }
                (digest, buffer)
            }
        };
        Ok(FinishedBlock { block, digest, buffer })
    }
}
