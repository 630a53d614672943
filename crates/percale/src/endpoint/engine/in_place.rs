//! The fast path of a read, a write or an atomic operation on a word, which is complete when the call that posts it
//! returns.
//!
//! This path handles operations with one short piece on each side, in memory of the most recently used grant, that are
//! reported to the endpoint's own queue and neither counted nor reported at the target. Any other operation, and any
//! operation that fails, is not reported here: the caller posts it on the general path. A write that failed may have
//! been made in part, and is then made again.

use super::Engine;
use super::core::Core;
use super::peers::OutgoingKind;
use super::remote::{rma_entry, word_entry};
use crate::completion::entry::Entry;
use crate::completion::ring::Ring;
use crate::endpoint::remote_work::{RmaOne, WordOne};
use crate::endpoint::work::{INJECT_LIMIT, OpFlags, PostError};
use crate::local_memory::atomic::Word;
use crate::transport::any::AnyLink;
use crate::transport::shm::{ASSISTED, ShmLink};
use crate::types::PeerAddress;
use crate::wire::head::Counts;

/// The flags that such an operation may have. A completed access has reached every completion level.
const PLAIN: OpFlags = OpFlags::COMPLETION
    .union(OpFlags::INJECT)
    .union(OpFlags::MORE)
    .union(OpFlags::TRANSMIT_COMPLETE)
    .union(OpFlags::DELIVERY_COMPLETE);

impl Engine {
    /// Makes a read or a write.
    #[inline(always)]
    pub(crate) fn access_in_place(&mut self, access: &RmaOne) -> Option<Result<(), PostError>> {
        let RmaOne { write, peer, local, remote, context, flags } = *access;
        if local.len() as u64 != remote.len
            || local.len() > ASSISTED
            || (flags.contains(OpFlags::INJECT) && !(write && local.len() <= INJECT_LIMIT))
        {
            return None;
        }
        let counts = if write { Counts::WRITES } else { Counts::READS };
        let (link, queue) = self.in_place(peer, flags, counts)?;
        report(queue, flags, rma_entry(write, context, remote.len), || {
            if write {
                link.write_in_place(remote.key, remote.address, local)
            } else {
                link.read_in_place(remote.key, remote.address, local)
            }
        })
    }

    /// Makes an addition to a word, or a compare-and-swap, which fetches the previous value.
    #[inline(always)]
    pub(crate) fn word_in_place(&mut self, one: &WordOne) -> Option<Result<(), PostError>> {
        if one.remote.len != Word::LEN as u64 || one.flags.intersects(OpFlags::DEVICE | OpFlags::INJECT) {
            return None;
        }
        let word = Word::new(one.operand, one.compare, one.result)?;
        let (link, queue) = self.in_place(one.peer, one.flags, Counts::READS)?;
        report(queue, one.flags, word_entry(one.context), || {
            link.atomic_in_place(one.remote.key, one.remote.address, &word)
        })
    }

    /// Returns the link and the queue for an operation that may be made at once. Mapped keys need no check here: they
    /// belong to no grant, so the look-up of the grant fails.
    #[inline(always)]
    fn in_place(&mut self, peer: PeerAddress, flags: OpFlags, counts: Counts) -> Option<(&mut ShmLink, &mut Ring)> {
        // This code does not run in a forked child (`Reach::run`), and a closed endpoint has no links.
        let Self { core: Core { peers, reporting, .. }, links, .. } = self;
        let (queue, fast_path_disabled) = reporting.transmit_path();
        if !PLAIN.contains(flags) || fast_path_disabled {
            return None;
        }
        let slot = peers.resolved(peer)?;
        let peer = peers.get(slot);
        if !peer.may_send(OutgoingKind::Access { fenced: false }) {
            return None;
        }
        if peer.counts().intersects(counts) {
            return None;
        }
        match links.get_mut(slot as usize)? {
            // See `direct_link` for the links of dead peers.
            Some(AnyLink::Shm(link)) if !link.has_ended() => Some((link, queue)),
            _ => None,
        }
    }
}

/// Makes an access if there is room for its result, and reports it if the flags request that.
#[inline(always)]
fn report(
    queue: &mut Ring,
    flags: OpFlags,
    entry: Entry,
    make: impl FnOnce() -> Option<()>,
) -> Option<Result<(), PostError>> {
    if !flags.contains(OpFlags::COMPLETION) {
        return make().map(Ok);
    }
    if queue.reserve().is_err() {
        return Some(Err(PostError::Again));
    }
    let made = make();
    match made {
        Some(()) => queue.push(entry),
        None => queue.unreserve(),
    }
    made.map(Ok)
}
