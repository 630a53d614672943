//! The queue pair of a [`Wire`](super::Wire): its size, and what a device must allow for it.

use std::io;
use std::sync::Arc;

use super::credit::{NOTES, RECEIVES, SENDS};
use super::{CompletionChannel, CompletionQueue};
use super::{DeviceLimits, ProtectionDomain};
use super::{MemoryRegion, Rights};
use super::{PairSize, QueuePair};

/// Accesses over another queue pair that may be under way at a time. They complete in the same completion queue.
pub(super) const ACCESSES: usize = 32;
/// Completions that there may be at a time.
pub(super) const COMPLETIONS: usize = SENDS + NOTES + RECEIVES + ACCESSES;
/// Bytes that a message may carry in its request, if the device lets it.
const INLINE: u32 = 256;

/// What a device must allow for a wire.
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

/// The queue pair of a wire, with a completion queue of its own.
pub(super) fn make_pair(buffers: &Arc<MemoryRegion>) -> io::Result<QueuePair> {
    let channel = CompletionChannel::new(buffers.domain().context())?;
    let queue = CompletionQueue::new(&channel, COMPLETIONS as u32)?;
    let size = PairSize { sends: (SENDS + NOTES) as u32, receives: RECEIVES as u32, inline: INLINE, pieces: 1 };
    // Some devices carry nothing in a request.
    Ok(QueuePair::new(&queue, buffers, size)
        .or_else(|_| QueuePair::new(&queue, buffers, PairSize { inline: 0, ..size }))?)
}

/// Makes a queue pair as large as a wire's and ends it: devices without reliable connections have ports, too.
pub(super) fn try_pair(domain: &Arc<ProtectionDomain>) -> io::Result<()> {
    make_pair(&MemoryRegion::new(domain, 1, Rights::LOCAL_WRITE)?).map(drop)
}
