//! The queue pairs for accesses: how they are made, connected and offered.

use std::io;
use std::sync::Arc;

use super::super::{CompletionQueue, End, PairSize, Path, ProtectionDomain, QueuePair};
use super::super::{MemoryRegion, Rights};
use super::lane::{DEPTH, SLOT};
use super::windows::REQUESTS;
use super::{Offered, WireParts};
use crate::local_memory::volatile::IOV_LIMIT;
use crate::verbs::errno_of;

/// Reads that may be under way at a time, on either side: both sides must agree. A device that allows fewer makes no accesses.
pub(super) const READS: u8 = 4;

/// A queue pair, and how its peer is to name it.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) pair: QueuePair,
    path: Path,
    pub(super) ours: End,
}

/// One for accesses of ours, with room for them in its buffers.
pub(super) fn initiators(wire: &WireParts) -> io::Result<Made> {
    let buffers = MemoryRegion::new(wire.adapter.domain(), DEPTH * SLOT, Rights::LOCAL_WRITE)?;
    let pieces = wire.adapter.limits().pieces.min(IOV_LIMIT as u32);
    let size = PairSize { sends: DEPTH as u32, receives: 1, inline: 0, pieces };
    suffices(wire)?;
    make(wire, (&wire.queue, &buffers), size, Rights::empty())
}

/// The other end of a peer's, in this protection domain, through which it reaches what is registered there.
pub(super) fn targets(wire: &WireParts, domain: &Arc<ProtectionDomain>, peer: &End) -> io::Result<Made> {
    suffices(wire)?;
    let none = MemoryRegion::new(domain, 1, Rights::LOCAL_WRITE)?;
    let size = PairSize { sends: REQUESTS, receives: 1, inline: 0, pieces: 1 };
    // What binds and invalidates windows looks for completions itself, in any thread, and is woken by none.
    let queue = match wire.adapter.windows() {
        Some(_) => CompletionQueue::new(wire.queue.channel(), REQUESTS + 1)?,
        None => Arc::clone(&wire.queue),
    };
    let made = make(wire, (&queue, &none), size, Rights::REMOTE_READ | Rights::REMOTE_WRITE)?;
    connect(made, peer)
}

/// Returns whether the device allows what queue pairs for accesses need; EPERM, which is not asked again, if it does not.
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
) -> io::Result<Made> {
    let pair = QueuePair::new(queue, buffers, size)?;
    let path = wire.adapter.look_again()?;
    pair.prepare(path, rights)?;
    let ours = wire.adapter.end(pair.number())?;
    Ok(Made { pair, path, ours })
}

/// Connects it.
pub(super) fn connect(made: Made, peer: &End) -> io::Result<Made> {
    made.pair.connect_reading(made.path, &made.ours, peer, READS)?;
    Ok(made)
}

/// How a queue pair that was made, or not, is offered.
pub(super) fn offer(ours: &io::Result<End>) -> Offered {
    ours.as_ref().copied().map_err(|error| errno_of(error).cast_unsigned())
}
