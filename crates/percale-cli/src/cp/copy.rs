//! The steps of a copy: blocks are transferred between the local file and the server's slots.

use std::collections::{BTreeMap, VecDeque};

use percale::RemoteMemory;

use super::file::{BUFFERS, LocalFile};
use super::progress::Progress;
use super::server::{Moving, Server, unexpected};
use crate::failure::{Failure, Result};
use crate::transfer::blocks::{self, BLOCK, Digest};
use crate::transfer::protocol::{ClientRequest, ServerReply};

/// A file that both sides have open.
pub(super) struct FileCopy<'a> {
    pub(super) server: &'a Server,
    pub(super) file: LocalFile,
    pub(super) size: u64,
    pub(super) slots: Vec<RemoteMemory>,
    pub(super) progress: Progress,
    /// The local file's name, for errors.
    pub(super) name: String,
}

/// A block that is being written to the server.
struct Written<'a> {
    write: Moving<'a>,
    block: u64,
    slot: usize,
    digest: Digest,
}

impl FileCopy<'_> {
    /// Returns the number of leading blocks, within the first `held` bytes, that are equal on both sides.
    pub(super) fn agree(&mut self, held: u64) -> Result<u64> {
        let all = held.min(self.size) / BLOCK;
        let mut agreed = 0;
        while agreed < all {
            let batch = agreed..all.min(agreed + BUFFERS as u64);
            for block in batch.clone() {
                self.server.ask(&ClientRequest::Hash { block })?;
                self.file.hash(block);
            }
            let (mut theirs, mut ours) = (BTreeMap::new(), BTreeMap::new());
            for _ in batch.clone() {
                match self.server.next()? {
                    ServerReply::Hashed { block, digest } => theirs.insert(block, digest),
                    other => return Err(unexpected(&other)),
                };
                let done = self.file.next(&self.name)?;
                ours.insert(done.block, done.digest);
            }
            for block in batch {
                match (ours.get(&block), theirs.get(&block)) {
                    (Some(digest), Some(other)) if digest == other => self.file.note(block, *digest),
                    _ => return Ok(block),
                }
                agreed = block + 1;
                self.progress.resumed(agreed * BLOCK);
            }
        }
        Ok(agreed)
    }

    /// Returns the part of a slot that a block occupies.
    fn slot(&self, slot: usize, block: u64) -> Result<RemoteMemory> {
        let memory = self.slots.get(slot).zip(blocks::place(self.size, block));
        let (memory, place) = memory.ok_or_else(|| Failure::Protocol(format!("slot {slot}, block {block}")))?;
        memory.slice(0..place.len as u64).map_err(|error| Failure::Protocol(error.to_string()))
    }

    /// Reads the blocks from the server, starting at block `first`.
    pub(super) fn download(&mut self, first: u64) -> Result<Digest> {
        let (server, all) = (self.server, blocks::count(self.size));
        let mut next = first;
        for slot in 0..self.slots.len() {
            self.fill(slot, &mut next)?;
        }
        let (mut left, mut moving, mut awaited) = (all - first, VecDeque::new(), None);
        while left > 0 || !moving.is_empty() {
            if awaited.is_none() && left > 0 {
                awaited = Some(server.listen()?);
            }
            // Start new reads while that is possible. Otherwise wait for the oldest read.
            if let Some(reply) = awaited.take_if(|reply| moving.is_empty() || reply.is_here()) {
                // Each reply answers one request. Therefore no block arrives twice, and no slot is read while it is
                // being filled.
                let (block, slot, digest) = match server.reply(reply)? {
                    Some(ServerReply::Filled { block, slot, digest }) => (block, slot, digest),
                    Some(other) => return Err(unexpected(&other)),
                    None => continue,
                };
                // The server has fewer slots than there are buffers, so a buffer becomes free eventually.
                let buffer = loop {
                    match self.file.buffer(block) {
                        Some(buffer) => break buffer,
                        None => self.saved()?,
                    }
                };
                moving.push_back((server.read(self.slot(slot, block)?, buffer)?, block, slot, digest));
                left -= 1;
            } else if let Some((read, block, slot, digest)) = moving.pop_front() {
                let buffer = read.wait().map_err(|error| server.explain(error, awaited.take()))?;
                self.fill(slot, &mut next)?;
                self.progress.moved(buffer.len() as u64);
                self.file.save(block, buffer, digest);
            }
        }
        while self.file.pending > 0 {
            self.saved()?;
        }
        self.file.digest()
    }

    /// Requests the next block, if there is one.
    fn fill(&self, slot: usize, next: &mut u64) -> Result<()> {
        let block = *next;
        if block < blocks::count(self.size) {
            self.server.ask(&ClientRequest::Fill { block, slot })?;
            *next += 1;
        }
        Ok(())
    }

    /// Waits until a block has been written to the local file.
    fn saved(&mut self) -> Result<()> {
        let done = self.file.next(&self.name)?;
        self.file.note(done.block, done.digest);
        self.file.give_back(done.buffer);
        Ok(())
    }

    /// Writes the blocks to the server, starting at block `first`.
    pub(super) fn upload(&mut self, first: u64) -> Result<Digest> {
        let (server, all) = (self.server, blocks::count(self.size));
        let (mut next, mut left, mut moving) = (first, all - first, VecDeque::new());
        let mut free: Vec<usize> = (0..self.slots.len()).collect();
        // Blocks that the server has not stored yet.
        let mut storing = 0;
        while left > 0 || !moving.is_empty() {
            while next < all && self.file.load(next) {
                next += 1;
            }
            let loaded = match self.file.try_next(&self.name)? {
                None if moving.is_empty() => Some(self.file.next(&self.name)?),
                loaded => loaded,
            };
            if let Some(done) = loaded {
                let slot = match free.pop() {
                    Some(slot) => slot,
                    None => {
                        // All blocks that the server must store are sent before this side waits for a reply.
                        while !moving.is_empty() {
                            self.written(&mut moving, &mut storing)?;
                        }
                        self.stored(&mut storing)?
                    }
                };
                let write = server.write(done.buffer, self.slot(slot, done.block)?)?;
                moving.push_back(Written { write, block: done.block, slot, digest: done.digest });
                left -= 1;
            } else {
                self.written(&mut moving, &mut storing)?;
            }
        }
        while storing > 0 {
            self.stored(&mut storing)?;
        }
        self.file.digest()
    }

    /// Waits until the oldest write has completed, and requests that the server store the block.
    fn written(&mut self, moving: &mut VecDeque<Written<'_>>, storing: &mut usize) -> Result<()> {
        let Some(Written { write, block, slot, digest }) = moving.pop_front() else { return Ok(()) };
        let buffer = write.wait().map_err(|error| self.server.explain(error, None))?;
        self.progress.moved(buffer.len() as u64);
        self.file.give_back(buffer);
        self.server.ask(&ClientRequest::Store { block, slot, digest })?;
        *storing += 1;
        self.file.note(block, digest);
        Ok(())
    }

    /// Waits until the server has stored a block. Returns its slot, which is free again.
    fn stored(&self, storing: &mut usize) -> Result<usize> {
        match self.server.next()? {
            ServerReply::Stored { slot, .. } => {
                *storing -= 1;
                Ok(slot)
            }
            other => Err(unexpected(&other)),
        }
    }
}
