//! Ends the operations of a closing endpoint.
//!
//! Every operation ends once: it is in one table, is removed from it, and is reported as failed, which uses up the room
//! that it reserved. Operations on memory to which a local peer may still be writing are the exception. Such an
//! operation ends when that peer has released the memory. If that takes longer than the time for closing,
//! [`deferred_cleanup`](super::deferred_cleanup) keeps the operation and the memory.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use super::core::Core;
use super::deferred_cleanup::{self, DeferredCleanup, LateReport, OperationMemory, ReportTarget};
use super::draining::{AbandonedReport, BrokenConnection, DrainingItem, PendingRevocation};
use super::types::{Notify, PayloadPull, Receive, Side};
use crate::completion::counter::Counter;
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::endpoint::matching::SourceFilter;
use crate::endpoint::pool::Many;
use crate::table::Id;
use crate::transport::ConnectionId;
use crate::transport::shm::DrainingLink;

/// An operation that has failed, but that is not reported before a peer has released its memory.
#[derive(Debug)]
pub(super) struct DeferredFailure {
    side: Side,
    notify: Notify,
    error: ErrorEntry,
    /// Whether the endpoint's counters ignore the operation.
    quiet: bool,
    /// The operation's own counter, which counts its end.
    counting: Option<Counter>,
    /// The buffer of a shared receive context that contains the operation's memory.
    part: Option<Arc<Many>>,
}

impl DeferredFailure {
    const fn of(side: Side, notify: Notify, error: ErrorEntry, part: Option<Arc<Many>>) -> Self {
        Self { side, notify, error, quiet: false, counting: None, part }
    }
}

/// Operations that are held until peers release memory, and that memory.
#[derive(Debug, Default)]
pub(super) struct DeferredFailures {
    operations: Vec<DeferredFailure>,
    memory: Vec<OperationMemory>,
}

impl Core {
    /// Ends all operations. The caller has closed all links and starts no operation. Waits until `until` for peers to
    /// release memory to which they may still be writing.
    #[cold]
    pub(super) fn end_all(&mut self, until: Instant, why: &'static str) {
        self.end_released();
        let (mut links, mut windows) = (Vec::new(), Vec::new());
        for left in self.left.take_all() {
            match left {
                DrainingItem::Link(broken) => links.push(*broken),
                DrainingItem::Window(pending_revocation) => windows.push(pending_revocation),
            }
        }
        self.end_groups(&held_groups(&links), why);
        windows.into_iter().for_each(|pending_revocation| self.end_window(pending_revocation, why));
        for tagged in [false, true] {
            let posted: Vec<Receive> = self.messages.table(tagged).drain_posted(SourceFilter::Any).collect();
            posted.into_iter().for_each(|receive| self.cancel_receive(tagged, receive, why));
        }
        for slot in 0..self.peers.len() as ConnectionId {
            self.down(slot, ErrorCode::Canceled, why);
        }
        self.messages.drop_claims();
        self.peers.drop_actions();
        // This comes last, so that a buffer is released together with the parts of it that peers hold.
        if !links.is_empty() {
            self.end_held(links, until);
        }
    }

    /// Removes from the tables the operations with memory to which the peer of a broken link may still be writing, so
    /// that they do not fail yet.
    #[cold]
    pub(super) fn defer_failures(&mut self, from: ConnectionId, draining: DrainingLink, error: ErrorCode, why: &str) {
        let mut pulls = Vec::new();
        let mut accesses: Vec<_> = draining.held_access().and_then(|id| self.remote.find(id)).into_iter().collect();
        for pull in self.messages.take_pulls_of(from, |token| draining.holds_pull(token)) {
            match pull {
                PayloadPull::Fetch { part, .. } => accesses.extend(self.remote.access_of_part(part)),
                pull => pulls.push(pull),
            }
        }
        // This counts an access once, even if several of its parts are held.
        let accesses = accesses.into_iter().filter_map(|id| self.remote.remove(id)).collect();
        let why = why.to_owned();
        self.left.add(DrainingItem::Link(Box::new(BrokenConnection { from, draining, pulls, accesses, error, why })));
    }

    /// Ends the operations with memory to which no peer can be writing any more. Returns whether any operation ended.
    #[cold]
    pub(super) fn end_released(&mut self) -> bool {
        let over = self.left.take_over();
        let any = !over.is_empty();
        for left in over {
            let BrokenConnection { from, pulls, accesses, error, why, .. } = match left {
                DrainingItem::Link(broken) => *broken,
                DrainingItem::Window(pending_revocation) => {
                    self.died(pending_revocation);
                    continue;
                }
            };
            for pull in pulls {
                if let PayloadPull::Message { head, receive, .. } = pull {
                    self.receive_failed(from, &head, &receive, error, &why);
                }
            }
            let peer = self.peers.source(from);
            for access in accesses {
                let failure = ErrorEntry::new(access.entry(), error).with_text(why.clone());
                self.fail(Side::Transmit, access.notify(), failure.with_peer(peer));
            }
        }
        any
    }

    /// Cancels a posted receive.
    #[inline(always)]
    pub(super) fn cancel_receive(&mut self, tagged: bool, receive: Receive, why: &'static str) {
        self.messages.memory_mut().leave(receive.place);
        let kind = if tagged { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE };
        let mut flags = CompletionFlags::RECEIVE | kind;
        if let Some(multi) = receive.multi {
            if !self.messages.memory_mut().close(multi) {
                return; // The last message in flight releases the buffer.
            }
            flags |= CompletionFlags::MULTI_RECEIVE;
        }
        let entry = Entry { context: receive.context, flags, ..Entry::default() };
        let error = ErrorEntry::new(entry, ErrorCode::Canceled).with_text(why);
        self.fail(Side::Receive, receive.notify, error);
    }

    /// Ends an operation that waits until no peer uses an invalidated key. A peer may still be using the key, but
    /// closing the region waits for that peer.
    fn end_window(&mut self, pending_revocation: PendingRevocation, why: &str) {
        match pending_revocation.abandon() {
            AbandonedReport::Operation(notify, entry) => {
                let error = ErrorEntry::new(entry, ErrorCode::Canceled).with_text(why.to_owned());
                self.fail(Side::Transmit, notify, error);
            }
            AbandonedReport::Message(from, head, receive) => {
                self.receive_failed(from, &head, &receive, ErrorCode::Canceled, why)
            }
            AbandonedReport::Nothing => {}
        }
    }

    /// Ends the operations with memory that peers hold when the peers have released it, or arranges that this is done
    /// later.
    fn end_held(&mut self, links: Vec<BrokenConnection>, until: Instant) {
        let (mut residues, mut holding) = (Vec::new(), DeferredFailures::default());
        for BrokenConnection { from, draining, pulls, accesses, error, why } in links {
            residues.push(draining);
            for pull in pulls {
                if let PayloadPull::Message { head, receive, .. } = &pull {
                    let mut entry = self.received_entry(from, head, 0, receive);
                    self.messages.memory_mut().leave(receive.place);
                    let part = receive.multi.and_then(|multi| self.shared_part(multi));
                    if let Some(multi) = receive.multi.filter(|_| part.is_none()) {
                        // The other parts have ended, or are held with this one and end with it.
                        entry.flags |= self.multi_done(multi);
                    }
                    let failure = ErrorEntry::new(entry, error).with_text(why.clone());
                    match part {
                        Some(_) => {
                            holding.operations.push(DeferredFailure::of(Side::Receive, receive.notify, failure, part))
                        }
                        None => self.defer_failure(Side::Receive, receive.notify, failure, &mut holding),
                    }
                } else {
                    holding.memory.push(OperationMemory::Pull(pull));
                }
            }
            let peer = self.peers.source(from);
            for access in accesses {
                let failure = ErrorEntry::new(access.entry(), error).with_text(why.clone()).with_peer(peer);
                self.defer_failure(Side::Transmit, access.notify(), failure, &mut holding);
                holding.memory.push(OperationMemory::Access(access));
            }
        }
        let DeferredFailures { operations, memory } = holding;
        let mut kept = DeferredCleanup::new(residues, memory);
        // Waits only for operations, because memory that the library owns can be released later.
        while !kept.is_over() && !operations.is_empty() && Instant::now() < until {
            std::thread::yield_now();
        }
        let over = kept.is_over();
        for DeferredFailure { side, notify, error, quiet, counting, part } in operations {
            if !over {
                let successor = self
                    .shared
                    .successor()
                    .cloned()
                    .filter(|_| matches!(notify, Notify::Shared | Notify::SharedSilent));
                let place = match (self.reporting.queue_of(side).cloned(), successor) {
                    (Some(queue), _) => ReportTarget::Queue(queue),
                    (None, Some(pool)) => ReportTarget::Pool(pool, notify),
                    (None, None) => ReportTarget::Nowhere,
                };
                let counter = self.reporting.counters().of(error.entry.flags).filter(|_| !quiet);
                let counters = counter.cloned().into_iter().chain(counting).collect();
                kept.report(LateReport { place, reserved: notify == Notify::Queue, error, counters, part });
                continue;
            }
            if let Some(many) = part {
                self.shared_part_over(many, notify, Err(error));
                continue;
            }
            self.fail_triggered(side, notify, error, quiet, counting);
        }
        if over {
            kept.drop_under_lock();
        } else {
            deferred_cleanup::keep(kept);
        }
    }

    /// Takes the memory of a failed operation if a peer may still be writing to that memory. The failure of a safe
    /// operation, which owns its memory, is reported now. For other operations the report, which returns the memory to
    /// the application, is made later.
    fn defer_failure(&mut self, side: Side, notify: Notify, error: ErrorEntry, holding: &mut DeferredFailures) {
        let context = error.entry.context;
        match notify {
            Notify::Queue | Notify::Event | Notify::Silent | Notify::Shared | Notify::SharedSilent => {
                holding.operations.push(DeferredFailure::of(side, notify, error, None));
            }
            Notify::Operation => {
                holding.memory.push(OperationMemory::Buffer(self.operations.take_buffer(Id::from_u64(context))));
                self.fail(side, notify, error);
            }
            Notify::Triggered => self.hold_triggered(side, error, holding),
            Notify::Collective => self.hold_collective(&error, holding),
        }
    }

    fn hold_triggered(&mut self, side: Side, mut error: ErrorEntry, holding: &mut DeferredFailures) {
        let Some(begun) = self.triggered.take_begun(Id::from_u64(error.entry.context)) else { return };
        let (mut transfer, staged) = begun.into_parts();
        let (context, notify, quiet, counting) =
            (transfer.context(), transfer.notify, transfer.quiet, transfer.counting.take());
        error.entry.context = context;
        holding.memory.extend([OperationMemory::Transfer(transfer), staged]);
        if notify != Notify::Operation {
            holding.operations.push(DeferredFailure {
                quiet,
                counting,
                ..DeferredFailure::of(side, notify, error, None)
            });
            return;
        }
        holding.memory.push(OperationMemory::Buffer(self.operations.take_buffer(Id::from_u64(context))));
        self.fail_triggered(side, notify, error, quiet, counting);
    }

    /// Reports the error of an operation. Does not count it if `quiet` is set. Deferred work counts it at the counter
    /// `counting`.
    fn fail_triggered(
        &mut self,
        side: Side,
        notify: Notify,
        error: ErrorEntry,
        quiet: bool,
        counting: Option<Counter>,
    ) {
        if quiet {
            self.report_error(side, notify, error)
        } else {
            self.fail(side, notify, error)
        }
        if let Some(counter) = counting {
            self.triggered.submissions().counting(|| counter.add_error(1));
        }
    }

    /// Like [`defer_failure`](Self::defer_failure), but for the operation of a group to which this transfer belongs.
    fn hold_collective(&mut self, transfer: &ErrorEntry, holding: &mut DeferredFailures) {
        let Some((notify, entry, memory)) = self.take_collective(transfer.entry.context) else { return };
        holding.memory.extend(memory);
        let mut error = transfer.clone();
        error.entry = entry;
        self.defer_failure(Side::Transmit, notify, error, holding);
    }
}

/// Returns the contexts of group transfers with memory that peers may still be writing to.
fn held_groups(links: &[BrokenConnection]) -> HashSet<u64> {
    let context = |pull: &PayloadPull| match pull {
        PayloadPull::Message { receive, .. } if receive.notify == Notify::Collective => Some(receive.context),
        _ => None,
    };
    links.iter().flat_map(|broken| &broken.pulls).filter_map(context).collect()
}
