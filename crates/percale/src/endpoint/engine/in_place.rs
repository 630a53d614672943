//! The shortest way of a read or a write: made within the call that posts it, and over.

use super::Engine;
use super::access::rma_entry;
use super::core::Core;
use super::peers::State;
use crate::endpoint::remote_work::RmaOne;
use crate::endpoint::work::{INJECT_LIMIT, OpFlags, PostError};
use crate::memory::region::is_mapped;
use crate::transport::any::AnyLink;
use crate::wire::head::Counts;

impl Engine {
    /// Makes the commonest access of all, without detours: it has one piece on each side, of mapped memory whose grant was used last,
    /// reports to the endpoint's own queue, and the target neither counts nor wants to hear of it. `None` if it is another: nothing
    /// was done.
    #[inline(always)]
    pub(crate) fn access_in_place(&mut self, access: &RmaOne) -> Option<Result<(), PostError>> {
        const PLAIN: OpFlags = OpFlags::COMPLETION
            .union(OpFlags::INJECT)
            .union(OpFlags::MORE)
            .union(OpFlags::TRANSMIT_COMPLETE)
            .union(OpFlags::DELIVERY_COMPLETE);
        let RmaOne { write, peer, local, remote, context, flags } = *access;
        let Self { core: Core { peers, queue, transmit, .. }, links, process, .. } = self;
        if !PLAIN.contains(flags) || local.len() as u64 != remote.len || transmit.detour || !process.is_here() {
            return None;
        }
        if flags.contains(OpFlags::INJECT) && !(write && local.len() <= INJECT_LIMIT) {
            return None;
        }
        let slot = peers.resolved(peer)?;
        let peer = peers.get(slot);
        if peer.state != State::Up || !peer.pending.is_empty() || peer.executed != 0 || peer.notices != 0 {
            return None;
        }
        let kind = if write { Counts::WRITES } else { Counts::READS };
        if peer.counts.intersects(kind) || is_mapped(remote.key) {
            return None;
        }
        let Some(AnyLink::Shm(link)) = links.get_mut(slot as usize)? else { return None };
        if link.is_dead() {
            return None; // As `direct_link` says.
        }
        let reports = flags.contains(OpFlags::COMPLETION);
        if reports && queue.reserve().is_err() {
            return Some(Err(PostError::Again));
        }
        let made = if write {
            link.write_in_place(remote.key, remote.address, local)
        } else {
            link.read_in_place(remote.key, remote.address, local)
        };
        match (made, reports) {
            (Some(()), true) => queue.push(rma_entry(write, context, remote.len)),
            (None, true) => queue.unreserve(),
            (_, false) => {}
        }
        made.map(Ok)
    }
}
