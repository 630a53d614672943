//! Requests to io_uring that were submitted before a monitor was active, and that change memory later.

use std::io;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use crate::torture::memory::Memory;
use crate::torture::ring::TestRing;

/// A request that waits for an event.
pub(super) struct Pending {
    ring: TestRing,
    event: OwnedFd,
}

impl Pending {
    /// Submits a request that drops pages from the registered part of this memory. If `cut` is set, the request
    /// truncates its file instead. The memory must keep its addresses until the request has completed.
    pub(super) fn submit(memory: &Memory, cut: bool) -> io::Result<Self> {
        let mut ring = TestRing::new()?;
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        if cut {
            ring.truncate_after(&event, memory.file()?, memory.offset())?;
        } else {
            ring.advise_after(&event, memory.registered, libc::MADV_DONTNEED)?;
        }
        Ok(Self { ring, event })
    }

    /// Triggers the event, and waits until the request has completed.
    pub(super) fn complete(mut self, memory: &Memory) -> io::Result<()> {
        rustix::io::write(&self.event, &1_u64.to_ne_bytes())?;
        self.ring.completed(2)?;
        // The error is ignored: if the kernel does not permit truncating the file, it does not permit extending it
        // either.
        memory.file().ok().map(|file| rustix::fs::ftruncate(file, memory.whole.len()));
        Ok(())
    }
}
