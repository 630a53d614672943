//! Windows of type 2: binds and invalidates them in order with an endpoint's messages, and handles messages that
//! invalidate keys.
//!
//! No call blocks here: a key that a peer is still using becomes invalid at once, and the report that depends on it
//! (of the operation, or of the message) is kept in [`DrainingOperations`](super::draining::DrainingOperations),
//! which progress checks.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;
use std::time::Instant;

use super::core::Core;
use super::draining::{PendingRevocation, RevocationOutcome};
use super::peers::{OutgoingKind, QueuingKind};
use super::receive::unresolved;
use super::types::{Notify, PendingOperation, QueuedWork, Receive, Side};
use super::{ConnectionId, Engine};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::endpoint::window_work::{WindowAction, WindowPost};
use crate::endpoint::work::{OpFlags, PostError};
use crate::region::window::{Invalidator, WindowError};
use crate::region::{AccessOrigin, Refusal, Registered};
use crate::wire::head::{Flags, FrameKind, Head};

impl Core {
    /// Returns the region with this key, if the peer may access it.
    #[inline]
    pub(super) fn region(&self, from: ConnectionId, key: u64) -> Result<Arc<Registered>, Refusal> {
        self.local.find(key, self.peers.get(from).incarnation())
    }

    /// Returns the identity under which a peer's accesses are made.
    #[inline]
    pub(crate) fn via(&self, from: ConnectionId) -> AccessOrigin {
        self.local.via(self.peers.get(from).incarnation())
    }

    /// Binds a window, or begins to invalidate a key. Returns `None` if an earlier key of the window is still in use,
    /// or is being invalidated.
    fn do_window(&mut self, slot: ConnectionId, post: &WindowPost<'_>, notify: Notify) -> Option<()> {
        let entry = post.entry();
        let result = match post.what {
            WindowAction::Bind { window, region, binding, key } => {
                if self.left.has_pending_revocation(window.cell) {
                    return None; // The old key is reported as invalidated before the new one is bound.
                }
                let peer = (self.peers.get(slot).incarnation(), post.peer);
                match self.local.bind(window, (region, &binding), key, peer) {
                    Err(WindowError::Busy) => return None,
                    result => result,
                }
            }
            WindowAction::Invalidate(key) => {
                match self.local.invalidate(key, Invalidator::Owner(self.via(slot), post.peer.0)) {
                    Ok(None) => Ok(()),
                    Ok(Some(cell)) => {
                        let until = Instant::now().checked_add(self.local.revoke_timeout());
                        self.peers.started(slot);
                        self.left.await_operation(cell, key, (slot, notify, entry), until);
                        return Some(());
                    }
                    Err(error) => Err(error),
                }
            }
        };
        match result {
            Ok(()) => self.complete(Side::Transmit, notify, entry),
            Err(error) => self.fail(Side::Transmit, notify, failure(entry, error)),
        }
        Some(())
    }

    /// Handles a message that invalidates a key. Returns false if the message may not invalidate the
    /// key. The message is then not delivered, and its sender gets an error.
    #[cold]
    pub(super) fn invalidates(&mut self, from: ConnectionId, head: &Head) -> bool {
        use FrameKind::{Message, MessageOffer, Tagged, TaggedOffer};
        let message = matches!(head.kind, Message | Tagged | MessageOffer | TaggedOffer);
        if !message || !head.flags.contains(Flags::ID | Flags::ACK | Flags::DATA) {
            self.peers.flag_violation(from, "a message that invalidates a key must request an acknowledgement");
            return false;
        }
        match self.local.invalidate(head.data, Invalidator::Peer(self.via(from))) {
            Ok(None) => true,
            Ok(Some(cell)) => {
                self.left.await_message(cell, head.data, from);
                true
            }
            Err(error) => {
                // The answer is the same for every error, so a peer that guesses keys gets no information.
                crate::later::later!(debug: %error, "a peer's message invalidates a key without permission");
                self.peers.reply(from, FrameKind::Ack, head.id, ErrorCode::KeyRejected.errno() as u64);
                false
            }
        }
    }

    /// Returns whether a message that invalidated a key can be reported now that its payload is in its buffer.
    #[cold]
    pub(super) fn may_report(&mut self, from: ConnectionId, head: &Head, len: u64, receive: &Receive) -> bool {
        self.left.may_report(from, head, len, receive)
    }

    /// Reports the operation or message that waited for a dead key, because the key's users have finished, or the wait
    /// took too long.
    pub(super) fn died(&mut self, pending_revocation: PendingRevocation) {
        let is_settled = pending_revocation.is_settled();
        match pending_revocation.into_outcome() {
            RevocationOutcome::Operation { to, notify, entry, .. } => {
                self.peers.finished(to);
                if is_settled {
                    self.complete(Side::Transmit, notify, entry);
                } else {
                    self.fail(Side::Transmit, notify, failure(entry, WindowError::Busy));
                }
            }
            RevocationOutcome::Nothing { .. } => {}
            RevocationOutcome::Message { from, head, len, receive } => self.received(from, &head, len, &receive),
        }
    }

    /// Handles the end of a connection: messages of its peer that wait for dead keys are not answered.
    pub(super) fn windows_down(&mut self, from: ConnectionId) {
        self.left.peer_gone(from);
    }

    /// Counts the invalidations that have not ended, because fences wait for them. Called after the counters of a
    /// connection were reset.
    pub(super) fn windows_still_wait(&mut self, from: ConnectionId) {
        for _ in 0..self.left.operations_to(from) {
            self.peers.started(from);
        }
    }
}

/// Returns the error with which a posted operation fails.
fn failure(entry: Entry, error: WindowError) -> ErrorEntry {
    use WindowError as E;
    let code = match error {
        E::StillBound | E::Busy => ErrorCode::Busy,
        E::ReadOnly | E::NotAllowed | E::OtherPair | E::Domain => ErrorCode::Denied,
        E::NotBound | E::Deallocated | E::Closed => ErrorCode::KeyRejected,
        _ => ErrorCode::Invalid,
    };
    ErrorEntry::new(entry, code).with_text(error.to_string())
}

impl Engine {
    /// Posts a bind or an invalidation.
    pub(crate) fn post_window(&mut self, work: &WindowPost<'_>, notify: Notify) -> Result<(), PostError> {
        if !self.process.is_here() {
            return Err(self.refusal());
        }
        self.require_progress();
        let slot = self.core.peers.resolve(work.peer).map_err(|error| unresolved(error, work.peer))?;
        let peer = self.core.peers.get(slot);
        if self.core.peers.is_single() && !peer.is_up() {
            return Err(PostError::NotConnected);
        }
        let (invalidates, fenced) =
            (matches!(work.what, WindowAction::Invalidate(_)), work.flags.contains(OpFlags::FENCE));
        if !peer.may_queue(QueuingKind::Window, notify, fenced) {
            return Err(PostError::Again);
        }
        // A key can be invalidated even if its peer is not connected.
        let idle = peer.is_idle();
        if peer.may_send(OutgoingKind::Window { invalidates, fenced })
            && self.core.do_window(slot, work, notify).is_some()
        {
            return Ok(());
        }
        let pending = PendingOperation { work: QueuedWork::Window(Box::new(work.keep())), notify };
        self.core.peers.get_mut(slot).queue(pending);
        if idle {
            self.start_connecting(slot);
        }
        self.drain(slot);
        Ok(())
    }

    /// Starts the first waiting operation, if it is a window operation that may start now. Returns false otherwise.
    pub(super) fn start_window(&mut self, slot: ConnectionId) -> bool {
        let front = self.core.peers.get_mut(slot).take_first();
        let Some(PendingOperation { work: QueuedWork::Window(mut work), notify }) = front else { return false };
        if self.core.do_window(slot, &work.post(), notify).is_some() {
            return true;
        }
        if work.is_late(self.core.local.revoke_timeout()) {
            self.core.fail(Side::Transmit, notify, failure(work.post().entry(), WindowError::Busy));
            return true;
        }
        let pending = PendingOperation { work: QueuedWork::Window(work), notify };
        self.core.peers.get_mut(slot).put_back(pending);
        false
    }
}

/// Returns the completion flag for the data of a message: data of the sender, or a key that the message invalidated.
pub(super) fn data_flag(head: &Head) -> CompletionFlags {
    if head.flags.contains(Flags::INVALIDATE) { CompletionFlags::INVALIDATED } else { CompletionFlags::REMOTE_DATA }
}
