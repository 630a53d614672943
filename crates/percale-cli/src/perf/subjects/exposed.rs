//! Memory of the program that the other side may access.

#![expect(unsafe_code, reason = "registers memory that this object owns; the block says why")]

use std::rc::Rc;

use percale::{Access, Domain, RawRegion, RemoteMemory};

use super::block::Block;
use crate::failure::{Result, percale};
use crate::row::MessageMemory;

/// Memory that the other side may access.
pub(super) struct ExposedMemory {
    /// The registration, which is `None` only while this value is dropped.
    region: Option<RawRegion>,
    block: Rc<Block>,
}

impl ExposedMemory {
    /// Allocates and registers `len` bytes.
    pub(super) fn new(domain: &Domain, memory: MessageMemory, len: usize) -> Result<Self> {
        let block = Rc::new(Block::new(domain, memory, len)?);
        let registration = domain.registration(Access::REMOTE_READ | Access::REMOTE_WRITE);
        // SAFETY: the memory exists until the region is closed (see `drop`), and is accessed only by copies and as
        // words.
        let region = unsafe { registration.raw(&[block.segment(0, len)], true) };
        Ok(Self { region: Some(region.map_err(percale("registering memory"))?), block })
    }

    /// Returns the description that the other side uses.
    pub(super) fn remote(&self) -> RemoteMemory {
        self.region.as_ref().map(RawRegion::remote).unwrap_or_default()
    }

    /// Returns the memory.
    #[inline]
    pub(super) fn block(&self) -> &Block {
        &self.block
    }
}

impl Drop for ExposedMemory {
    fn drop(&mut self) {
        if let Some(region) = self.region.take()
            && region.close().is_err()
        {
            // The other side is still accessing the memory, so the memory must not be freed.
            std::mem::forget(Rc::clone(&self.block));
        }
    }
}
