//! The creation and connection of the queue pairs for accesses.

use std::io;
use std::sync::Arc;

use super::super::{CompletionQueue, PairSize, Path, ProtectionDomain, QueuePair, QueuePairEnd};
use super::super::{MemoryRegion, Rights};
use super::lane::{DEPTH, SLOT};
use super::windows::REQUESTS;
use super::{Offered, WireParts};
use crate::local_memory::volatile::IOV_LIMIT;
use crate::verbs::errno_of;

/// The maximum number of outstanding reads, which must be the same on both sides. A device with a lower limit is not
/// used for accesses.
pub(super) const READS: u8 = 4;

/// A queue pair, and the data that its peer needs to connect to it.
#[derive(Debug)]
pub(super) struct CreatedPair {
    pub(super) pair: QueuePair,
    path: Path,
    pub(super) ours: QueuePairEnd,
}

/// Creates a queue pair for accesses of this side, with slots for all outstanding requests in its buffers.
pub(super) fn initiators(wire: &WireParts) -> io::Result<CreatedPair> {
    let buffers = MemoryRegion::new(wire.adapter.domain(), DEPTH * SLOT, Rights::LOCAL_WRITE)?;
    let pieces = wire.adapter.limits().pieces.min(IOV_LIMIT as u32);
    let size = PairSize { sends: DEPTH as u32, receives: 1, inline: 0, pieces };
    suffices(wire)?;
    make(wire, (&wire.queue, &buffers), size, Rights::empty())
}

/// Creates and connects the other end of a peer's queue pair, in this protection domain. Through it the peer can reach
/// everything that is registered in the domain.
pub(super) fn targets(
    wire: &WireParts,
    domain: &Arc<ProtectionDomain>,
    peer: &QueuePairEnd,
) -> io::Result<CreatedPair> {
    suffices(wire)?;
    let none = MemoryRegion::new(domain, 1, Rights::LOCAL_WRITE)?;
    let size = PairSize { sends: REQUESTS, receives: 1, inline: 0, pieces: 1 };
    // The code that binds and invalidates windows polls for completions itself, on any thread. Completions do not wake
    // it up.
    let queue = match wire.adapter.windows() {
        Some(_) => CompletionQueue::new(wire.queue.channel(), REQUESTS + 1)?,
        None => Arc::clone(&wire.queue),
    };
    let made = make(wire, (&queue, &none), size, Rights::REMOTE_READ | Rights::REMOTE_WRITE)?;
    connect(made, peer)
}

/// Checks whether the device meets the requirements of queue pairs for accesses. If not, returns EPERM, after which no
/// further attempt is made.
fn suffices(wire: &WireParts) -> io::Result<()> {
    let limits = wire.adapter.limits();
    let is_enough = limits.reads >= READS.into() && limits.requests >= DEPTH as u32;
    if is_enough { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

fn make(
    wire: &WireParts,
    (queue, buffers): (&Arc<CompletionQueue>, &Arc<MemoryRegion>),
    size: PairSize,
    rights: Rights,
) -> io::Result<CreatedPair> {
    let pair = QueuePair::new(queue, buffers, size)?;
    let path = wire.adapter.look_again()?;
    pair.prepare(path, rights)?;
    let ours = wire.adapter.end(pair.number())?;
    Ok(CreatedPair { pair, path, ours })
}

/// Connects the queue pair.
pub(super) fn connect(made: CreatedPair, peer: &QueuePairEnd) -> io::Result<CreatedPair> {
    made.pair.connect_reading(made.path, &made.ours, peer, READS)?;
    Ok(made)
}

/// Converts the result of a creation to its wire representation.
pub(super) fn offer(ours: &io::Result<QueuePairEnd>) -> Offered {
    ours.as_ref().copied().map_err(|error| errno_of(error).cast_unsigned())
}
