//! One file being transferred to or from one client. Threads of that client check and execute its requests here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use percale::{Access, Domain, Region};

use super::root::Root;
use crate::transfer::blocks::{self, BLOCK, BlockPosition, Digest};
use crate::transfer::part::PartialFile;
use crate::transfer::path::ServedPath;
use crate::transfer::protocol::{RegionDescription, SLOTS, ServerReply};
use crate::transfer::source::Source;

/// The direction of the transfer.
#[derive(Debug)]
enum TransferDirection {
    /// To the client.
    Out(Source),
    /// From the client: the file, its length in bytes, and its permissions.
    In(PartialFile, u64, u32),
}

/// A transfer. Dropping it closes the slots. A part file is kept.
#[derive(Debug)]
pub(super) struct Transfer {
    /// The path by which the client named the file.
    pub(super) path: ServedPath,
    way: TransferDirection,
    slots: Vec<Mutex<Region>>,
    /// The checksums of blocks that were transferred, or that both sides already have.
    digests: Mutex<BTreeMap<u64, Digest>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transfer {
    /// Opens a file that a client reads.
    pub(super) fn get(root: &Root, domain: &Domain, path: ServedPath) -> io::Result<Self> {
        let source = root.read(&path)?;
        Self::new(domain, path, TransferDirection::Out(source), Access::REMOTE_READ)
    }

    /// Opens a file that a client writes.
    pub(super) fn put(root: &Root, domain: &Domain, path: ServedPath, size: u64, mode: u32) -> io::Result<Self> {
        if size > i64::MAX as u64 {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let (directory, name) = root.place(&path)?;
        let part = PartialFile::open(directory, &name, size)?;
        Self::new(domain, path, TransferDirection::In(part, size, mode), Access::REMOTE_WRITE)
    }

    fn new(domain: &Domain, path: ServedPath, way: TransferDirection, access: Access) -> io::Result<Self> {
        let slot = |_| {
            let memory = domain.allocate(BLOCK as usize).map_err(io::Error::other)?;
            Ok(Mutex::new(domain.register(memory, access).map_err(io::Error::other)?))
        };
        let mut transfer = Self { path, way, slots: Vec::new(), digests: Mutex::default() };
        // A short file needs fewer slots.
        let slots = blocks::count(transfer.size()).min(SLOTS as u64);
        transfer.slots = (0..slots).map(slot).collect::<io::Result<_>>()?;
        Ok(transfer)
    }

    /// Returns whether the client writes.
    pub(super) const fn is_upload(&self) -> bool {
        matches!(self.way, TransferDirection::In(..))
    }

    /// Returns the size of the complete file in bytes.
    pub(super) fn size(&self) -> u64 {
        match &self.way {
            TransferDirection::Out(source) => source.size(),
            TransferDirection::In(_, size, _) => *size,
        }
    }

    /// Returns the path as text for JSON.
    pub(super) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.path.bytes())
    }

    const fn file(&self) -> &File {
        match &self.way {
            TransferDirection::Out(source) => source.file(),
            TransferDirection::In(part, ..) => part.file(),
        }
    }

    /// Returns the reply that describes the transfer to the client.
    pub(super) fn opened(&self) -> io::Result<ServerReply> {
        let (mode, held) = match &self.way {
            TransferDirection::Out(source) => (source.mode(), 0),
            TransferDirection::In(part, _, mode) => (*mode, part.held()?),
        };
        let slots = self.slots.iter().map(|slot| RegionDescription::from(lock(slot).remote())).collect();
        Ok(ServerReply::Opened { size: self.size(), mode, held, slots })
    }

    fn place(&self, block: u64) -> io::Result<BlockPosition> {
        blocks::place(self.size(), block).ok_or_else(|| io::Error::other(format!("there is no block {block}")))
    }

    fn slot(&self, slot: usize) -> io::Result<MutexGuard<'_, Region>> {
        self.slots.get(slot).map(lock).ok_or_else(|| io::Error::other(format!("there is no slot {slot}")))
    }

    /// Computes the checksum of a block of the local file.
    pub(super) fn hash(&self, block: u64, scratch: &mut [u8]) -> io::Result<ServerReply> {
        let digest = blocks::load(self.file(), self.place(block)?, scratch, |_, _| {})?;
        lock(&self.digests).insert(block, digest);
        Ok(ServerReply::Hashed { block, digest })
    }

    /// Copies a block into a slot, from which the client reads it.
    pub(super) fn fill(&self, block: u64, slot: usize, scratch: &mut [u8]) -> io::Result<ServerReply> {
        let TransferDirection::Out(source) = &self.way else {
            return Err(io::Error::other("the file was opened for writing"));
        };
        let place = self.place(block)?;
        let mut region = self.slot(slot)?;
        let digest = blocks::load(source.file(), place, scratch, |at, piece| region.write(at, piece))?;
        lock(&self.digests).insert(block, digest);
        Ok(ServerReply::Filled { block, slot, digest })
    }

    /// Stores a block from the slot that the client has written.
    pub(super) fn store(
        &self,
        block: u64,
        slot: usize,
        expected: Digest,
        scratch: &mut [u8],
    ) -> io::Result<ServerReply> {
        let TransferDirection::In(part, ..) = &self.way else {
            return Err(io::Error::other("the file was opened for reading"));
        };
        let place = self.place(block)?;
        // The client may write the slot at the same time. Therefore the same copied bytes are both hashed and written.
        let region = self.slot(slot)?;
        let digest = blocks::store(part.file(), place, scratch, |at, piece| region.read(at, piece))?;
        if digest != expected {
            return Err(io::Error::other(format!("checksum mismatch in block {block}")));
        }
        lock(&self.digests).insert(block, digest);
        Ok(ServerReply::Stored { block, slot })
    }

    /// Compares the checksum of the complete file, and renames a written file to its final name.
    pub(super) fn finish(&self, expected: Digest, scratch: &mut [u8]) -> io::Result<ServerReply> {
        // The lock is not held while waiting for the disk.
        let digests = lock(&self.digests).clone();
        let all = blocks::count(self.size());
        let whole = blocks::complete(self.size(), &digests)
            .map_err(|have| io::Error::other(format!("only {have} of {all} blocks were copied")))?;
        if whole != expected {
            return Err(io::Error::other("the checksums of the two files differ; copy it again"));
        }
        match &self.way {
            TransferDirection::Out(source) => {
                if source.needs_second_look() {
                    for (&block, digest) in &digests {
                        if blocks::load(source.file(), self.place(block)?, scratch, |_, _| {})? != *digest {
                            return Err(blocks::changed());
                        }
                    }
                }
                source.unchanged()?;
            }
            TransferDirection::In(part, size, mode) => part.commit(*size, *mode)?,
        }
        Ok(ServerReply::Finished)
    }
}
