//! One file on its way to or from one client. What the client asks for is checked here, by threads of the pool.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use percale::{Access, Domain, Region};

use super::root::Root;
use crate::transfer::blocks::{self, BLOCK, Digest, Place};
use crate::transfer::part::Part;
use crate::transfer::protocol::{Reply, SLOTS, Slot};

/// Which way the file goes.
#[derive(Debug)]
enum Way {
    /// To the client: the file, and what it was when it was opened.
    Out(File, Metadata),
    /// From the client: the file, and the permissions that it gets.
    In(Part, u32),
}

/// A transfer. Dropping it takes the slots back; a part file stays.
#[derive(Debug)]
pub(super) struct Transfer {
    /// As the client named it.
    pub(super) path: String,
    way: Way,
    /// Of the whole file.
    pub(super) size: u64,
    slots: Vec<Mutex<Region>>,
    /// Of the blocks that went, or that both sides have.
    digests: Mutex<BTreeMap<u64, Digest>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transfer {
    /// Opens a file to be read by a client.
    pub(super) fn get(root: &Root, domain: &Domain, path: String) -> io::Result<Self> {
        let file = root.read(&path)?;
        let metadata = file.metadata()?;
        let size = metadata.len();
        Self::new(domain, path, Way::Out(file, metadata), size, Access::REMOTE_READ)
    }

    /// Opens a file to be written by a client.
    pub(super) fn put(root: &Root, domain: &Domain, path: String, size: u64, mode: u32) -> io::Result<Self> {
        if size > i64::MAX as u64 {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let (directory, name) = root.place(&path)?;
        let part = Part::open(directory, &name, size)?;
        Self::new(domain, path, Way::In(part, mode), size, Access::REMOTE_WRITE)
    }

    fn new(domain: &Domain, path: String, way: Way, size: u64, access: Access) -> io::Result<Self> {
        let slot = |_| {
            let memory = domain.allocate(BLOCK as usize).map_err(io::Error::other)?;
            Ok(Mutex::new(domain.register(memory, access).map_err(io::Error::other)?))
        };
        // A short file needs fewer.
        let slots = (0..blocks::count(size).min(SLOTS as u64)).map(slot).collect::<io::Result<_>>()?;
        Ok(Self { path, way, size, slots, digests: Mutex::default() })
    }

    /// Whether the client writes.
    pub(super) const fn is_upload(&self) -> bool {
        matches!(self.way, Way::In(..))
    }

    const fn file(&self) -> &File {
        match &self.way {
            Way::Out(file, _) => file,
            Way::In(part, _) => part.file(),
        }
    }

    /// What the client has to know of it.
    pub(super) fn opened(&self) -> io::Result<Reply> {
        let (mode, held) = match &self.way {
            Way::Out(_, metadata) => (metadata.mode() & 0o777, 0),
            Way::In(part, mode) => (*mode, part.held()?),
        };
        let slots = self.slots.iter().map(|slot| Slot::from(lock(slot).remote())).collect();
        Ok(Reply::Opened { size: self.size, mode, held, slots })
    }

    fn place(&self, block: u64) -> io::Result<Place> {
        blocks::place(self.size, block).ok_or_else(|| io::Error::other(format!("there is no block {block}")))
    }

    fn slot(&self, slot: usize) -> io::Result<MutexGuard<'_, Region>> {
        self.slots.get(slot).map(lock).ok_or_else(|| io::Error::other(format!("there is no slot {slot}")))
    }

    /// The checksum of a block as it is here.
    pub(super) fn hash(&self, block: u64, scratch: &mut [u8]) -> io::Result<Reply> {
        let digest = blocks::load(self.file(), self.place(block)?, scratch, |_, _| {})?;
        lock(&self.digests).insert(block, digest);
        Ok(Reply::Hashed { block, digest })
    }

    /// Puts a block into a slot, to be read.
    pub(super) fn fill(&self, block: u64, slot: usize, scratch: &mut [u8]) -> io::Result<Reply> {
        let Way::Out(file, _) = &self.way else { return Err(io::Error::other("the file was opened to be written")) };
        let place = self.place(block)?;
        let mut region = self.slot(slot)?;
        let digest = blocks::load(file, place, scratch, |at, piece| region.write(at, piece))?;
        lock(&self.digests).insert(block, digest);
        Ok(Reply::Filled { block, slot, digest })
    }

    /// Stores a block from the slot that the client has written.
    pub(super) fn store(&self, block: u64, slot: usize, expected: Digest, scratch: &mut [u8]) -> io::Result<Reply> {
        let Way::In(part, _) = &self.way else { return Err(io::Error::other("the file was opened to be read")) };
        let place = self.place(block)?;
        // The client may write the slot even now: what was copied out is what is hashed and written.
        let region = self.slot(slot)?;
        let digest = blocks::store(part.file(), place, scratch, |at, piece| region.read(at, piece))?;
        if digest != expected {
            return Err(io::Error::other(format!("block {block} arrived with another checksum than it was sent with")));
        }
        lock(&self.digests).insert(block, digest);
        Ok(Reply::Stored { block, slot })
    }

    /// Compares the whole, and gives a written file its name.
    pub(super) fn finish(&self, expected: Digest) -> io::Result<Reply> {
        let digests = lock(&self.digests);
        let (have, all) = (digests.len() as u64, blocks::count(self.size));
        if have != all {
            return Err(io::Error::other(format!("only {have} of {all} blocks were copied")));
        }
        if blocks::whole(digests.values()) != expected {
            return Err(io::Error::other("the checksums of the two files differ; copy it again"));
        }
        match &self.way {
            Way::Out(file, metadata) => blocks::unchanged(file, metadata).map(|()| Reply::Finished),
            Way::In(part, mode) => part.commit(self.size, *mode).map(|()| Reply::Finished),
        }
    }
}
