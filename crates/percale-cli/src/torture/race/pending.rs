//! Requests to io_uring that were submitted before a monitor watched, and change memory later.

use std::io;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use crate::torture::memory::Memory;
use crate::torture::ring::Ring;

/// A request that waits for an event.
pub(super) struct Pending {
    ring: Ring,
    event: OwnedFd,
}

impl Pending {
    /// Pages are to be taken from the registered part of this memory, which must stay at its addresses until then; or, if `cut`, its file
    /// is to be cut.
    pub(super) fn submit(memory: &Memory, cut: bool) -> io::Result<Self> {
        let mut ring = Ring::new()?;
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        if cut {
            ring.truncate_after(&event, memory.file()?, memory.offset())?;
        } else {
            ring.advise_after(&event, memory.registered, libc::MADV_DONTNEED)?;
        }
        Ok(Self { ring, event })
    }

    /// The event happens; waits until the request has completed.
    pub(super) fn complete(mut self, memory: &Memory) -> io::Result<()> {
        rustix::io::write(&self.event, &1_u64.to_ne_bytes())?;
        self.ring.completed(2)?;
        // What the kernel does not cut, it does not let grow either.
        memory.file().ok().map(|file| rustix::fs::ftruncate(file, memory.whole.len()));
        Ok(())
    }
}
