//! The copy itself: blocks on their way between the local file and the server's slots.

use std::collections::BTreeMap;

use percale::RemoteMemory;

use super::file::{BUFFERS, LocalFile};
use super::progress::Progress;
use super::server::{Server, unexpected};
use crate::failure::{Failure, Result};
use crate::transfer::blocks::{self, BLOCK, Digest};
use crate::transfer::protocol::{Reply, Request};

/// A file that both sides have open.
pub(super) struct Copy<'a> {
    pub(super) server: &'a Server,
    pub(super) file: LocalFile,
    pub(super) size: u64,
    pub(super) slots: Vec<RemoteMemory>,
    pub(super) progress: Progress,
    /// For errors: the local file.
    pub(super) name: String,
}

impl Copy<'_> {
    /// How many blocks from the first on are the same on both sides, of those that lie in the first `held` bytes.
    pub(super) fn agree(&mut self, held: u64) -> Result<u64> {
        let all = held.min(self.size) / BLOCK;
        let mut agreed = 0;
        while agreed < all {
            let batch = agreed..all.min(agreed + BUFFERS as u64);
            for block in batch.clone() {
                self.server.ask(&Request::Hash { block })?;
                self.file.hash(block);
            }
            let (mut theirs, mut ours) = (BTreeMap::new(), BTreeMap::new());
            for _ in batch.clone() {
                match self.server.next()? {
                    Reply::Hashed { block, digest } => theirs.insert(block, digest),
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

    /// The part of a slot that a block takes.
    fn slot(&self, slot: usize, block: u64) -> Result<RemoteMemory> {
        let memory = self.slots.get(slot).zip(blocks::place(self.size, block));
        let (memory, (_, len)) = memory.ok_or_else(|| Failure::Protocol(format!("slot {slot}, block {block}")))?;
        if memory.len < len as u64 {
            return Err(Failure::Protocol(format!("a slot of {} bytes", memory.len)));
        }
        Ok(memory.slice(0..len as u64))
    }

    /// Reads the blocks from `first` on from the server.
    pub(super) fn download(&mut self, first: u64) -> Result<Digest> {
        let all = blocks::count(self.size);
        let mut next = first;
        // What was asked to be where.
        let mut asked: Vec<Option<u64>> = vec![None; self.slots.len()];
        for (slot, asked) in asked.iter_mut().enumerate() {
            *asked = self.fill(slot, &mut next)?;
        }
        for _ in first..all {
            let (block, slot, digest) = match self.server.next()? {
                Reply::Filled { block, slot, digest } if asked.get(slot) == Some(&Some(block)) => (block, slot, digest),
                other => return Err(unexpected(&other)),
            };
            let from = self.slot(slot, block)?;
            let buffer = loop {
                match self.file.buffer(block) {
                    Some(buffer) => break buffer,
                    None => self.saved()?,
                }
            };
            let buffer = self.server.read(from, buffer)?;
            asked[slot] = self.fill(slot, &mut next)?;
            self.progress.moved(buffer.len() as u64);
            self.file.save(block, buffer, digest);
        }
        while self.file.pending > 0 {
            self.saved()?;
        }
        Ok(self.file.digest())
    }

    /// Asks for the next block, if there is one.
    fn fill(&self, slot: usize, next: &mut u64) -> Result<Option<u64>> {
        let block = *next;
        if block >= blocks::count(self.size) {
            return Ok(None);
        }
        self.server.ask(&Request::Fill { block, slot })?;
        *next += 1;
        Ok(Some(block))
    }

    /// Waits until a block is written here.
    fn saved(&mut self) -> Result<()> {
        let done = self.file.next(&self.name)?;
        self.file.note(done.block, done.digest);
        self.file.give_back(done.buffer);
        Ok(())
    }

    /// Writes the blocks from `first` on to the server.
    pub(super) fn upload(&mut self, first: u64) -> Result<Digest> {
        let all = blocks::count(self.size);
        let mut next = first;
        let mut free: Vec<usize> = (0..self.slots.len()).collect();
        let mut asked: BTreeMap<usize, u64> = BTreeMap::new();
        for _ in first..all {
            while next < all && self.file.load(next) {
                next += 1;
            }
            let done = self.file.next(&self.name)?;
            if free.is_empty() {
                free.push(self.stored(&mut asked)?);
            }
            let Some(slot) = free.pop() else { return Err(Failure::Protocol("no slots".into())) };
            let buffer = self.server.write(done.buffer, self.slot(slot, done.block)?)?;
            self.progress.moved(buffer.len() as u64);
            self.file.give_back(buffer);
            self.server.ask(&Request::Store { block: done.block, slot, digest: done.digest })?;
            asked.insert(slot, done.block);
            self.file.note(done.block, done.digest);
        }
        while !asked.is_empty() {
            self.stored(&mut asked)?;
        }
        Ok(self.file.digest())
    }

    /// Waits until the server has stored a block; which slot is free again.
    fn stored(&self, asked: &mut BTreeMap<usize, u64>) -> Result<usize> {
        match self.server.next()? {
            Reply::Stored { block, slot } if asked.get(&slot) == Some(&block) => {
                asked.remove(&slot);
                Ok(slot)
            }
            other => Err(unexpected(&other)),
        }
    }
}
