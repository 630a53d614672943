//! The queue pair of a [`Wire`](super::Wire): its size, and the device limits that it needs.

use std::io;
use std::sync::Arc;

use super::credit::{NOTES, RECEIVES, SENDS};
use super::{CompletionChannel, CompletionQueue};
use super::{DeviceLimits, ProtectionDomain};
use super::{MemoryRegion, Rights};
use super::{PairSize, QueuePair};

/// The maximum number of outstanding accesses over another queue pair, which complete in the same completion queue.
pub(super) const ACCESSES: usize = 32;
/// The maximum number of completions at a time.
pub(super) const COMPLETIONS: usize = SENDS + NOTES + RECEIVES + ACCESSES;
/// The number of bytes that a message may carry inline in its request, if the device allows it.
const INLINE: u32 = 256;

/// Checks whether the limits of a device are sufficient for a wire.
pub(super) fn suffices(limits: &DeviceLimits) -> Result<(), String> {
    let wanted = [
        ("requests in a queue", limits.requests, RECEIVES.max(SENDS + NOTES)),
        ("entries of a completion queue", limits.completions, COMPLETIONS),
        ("pieces of a request", limits.pieces, 1),
    ];
    match wanted.iter().find(|(_, allowed, needed)| (*allowed as usize) < *needed) {
        Some((what, allowed, needed)) => Err(format!("it allows {allowed} {what}; percale needs {needed}")),
        None => Ok(()),
    }
}

/// Creates the queue pair of a wire, with a completion queue of its own.
pub(super) fn make_pair(buffers: &Arc<MemoryRegion>) -> io::Result<QueuePair> {
    let channel = CompletionChannel::new(buffers.domain().context())?;
    let queue = CompletionQueue::new(&channel, COMPLETIONS as u32)?;
    let size = PairSize { sends: (SENDS + NOTES) as u32, receives: RECEIVES as u32, inline: INLINE, pieces: 1 };
    // Some devices do not support inline data.
    Ok(QueuePair::new(&queue, buffers, size)
        .or_else(|_| QueuePair::new(&queue, buffers, PairSize { inline: 0, ..size }))?)
}

/// Creates a queue pair with the size of a wire's queue pair and destroys it. This tests whether the device supports
/// reliable connections. Devices that do not support them have ports too.
pub(super) fn try_pair(domain: &Arc<ProtectionDomain>) -> io::Result<()> {
    make_pair(&MemoryRegion::new(domain, 1, Rights::LOCAL_WRITE)?).map(drop)
}
