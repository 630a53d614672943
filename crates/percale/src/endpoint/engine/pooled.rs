//! An endpoint with a shared receive context: see [`pool`](crate::endpoint::pool).
//!
//! The endpoint's own tables are searched first, and are mostly empty. A receive that was taken from the pool is
//! treated like any other from then on. Its results go to the part of the queue that can grow, since no room could be
//! reserved for them.

use std::sync::Arc;

use super::Engine;
use super::core::Core;
use super::kinds::is_tagged;
use super::messages::MultiReceive;
use super::peers::PeerState;
use super::types::{Notify, Receive, Side};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::endpoint::matching::{HeldMessage, Pattern};
use crate::endpoint::pool::{
    EndedReceive, Many, MemberNote, Membership, PostedReceive, ReceiveKind, ReservedReceive, SenderPeer,
};
use crate::table::Id;
use crate::transport::ConnectionId;
use crate::wire::head::Head;

impl Core {
    /// Takes a shared receive for a message that matches none of the endpoint's own receives.
    #[cold]
    #[inline(never)]
    pub(super) fn match_shared(&mut self, from: ConnectionId, head: &Head, len: u64) -> Option<Receive> {
        let pool = self.shared.membership()?;
        let tagged = is_tagged(head.kind);
        let tag = if tagged { head.tag } else { 0 };
        let waiting = pool.meet(self.sender(from), tagged, tag, len)?;
        Some(self.shared_receive(waiting))
    }

    /// Announces a message that is kept here to the pool. If a receive for it was posted meanwhile, the message goes to
    /// that receive.
    #[cold]
    #[inline(never)]
    pub(super) fn announce(&mut self, tagged: bool, held: HeldMessage) {
        let (Some(pool), Some(message)) = (self.shared.membership(), self.if_held(tagged, held)) else { return };
        let sender = self.sender(message.0);
        let tag = if tagged { message.1 } else { 0 };
        let Some(waiting) = pool.announce(sender, tagged, tag, message.2, held) else { return };
        let receive = self.shared_receive(waiting);
        if let Some(message) = self.messages.table(tagged).take(held) {
            self.fill(message, receive);
        }
    }

    /// Returns the peer of a slot in the form that the pool uses.
    pub(super) fn sender(&self, slot: ConnectionId) -> SenderPeer {
        let peer = self.peers.get(slot);
        SenderPeer { slot, at: peer.has_address().then(|| peer.at()), incarnation: peer.incarnation() }
    }

    /// Notifies the pool of a connection.
    pub(super) fn shared_connected(&self, slot: ConnectionId) {
        if let Some(pool) = self.shared.membership() {
            pool.connected(self.sender(slot));
        }
    }

    /// Notifies the pool that two slots are the same peer: `slot` is an alias of `real`. If `had_address` is false,
    /// `real` had no address before and now has that of `slot`.
    pub(super) fn shared_alias(&self, slot: ConnectionId, real: ConnectionId, had_address: bool) {
        let Some(pool) = self.shared.membership() else { return };
        let (peer, at) = (self.sender(real), self.peers.get(slot).at());
        if had_address { pool.record_reached(peer, at) } else { pool.named(peer) }
    }

    /// Returns the sender, the tag and the length of a message that is held here.
    fn if_held(&self, tagged: bool, held: HeldMessage) -> Option<(ConnectionId, u64, u64)> {
        let table = self.messages.table_ref(tagged);
        table.held(held).map(|message| (message.from, message.head.tag, message.len))
    }

    /// Converts a shared receive to a receive of this endpoint.
    fn shared_receive(&mut self, waiting: PostedReceive) -> Receive {
        let PostedReceive { segments, mut context, reports, kind, .. } = waiting;
        let mut notify = if reports { Notify::Shared } else { Notify::SharedSilent };
        let place = self.messages.memory_mut().place(&segments);
        let mut multi = None;
        match kind {
            ReceiveKind::Plain => {}
            ReceiveKind::Safe(receive_report, buffer) => {
                (context, notify) =
                    (self.operations.start_shared_receive(buffer, receive_report).to_u64(), Notify::Operation);
            }
            ReceiveKind::Many(many) => {
                multi = Some(self.messages.memory_mut().add_shared_part(segments, many, context, notify));
            }
        }
        Receive { place, context, notify, multi }
    }

    /// Removes a multi-receive buffer that is a part of a buffer of a shared receive context, and returns that buffer.
    #[cold]
    pub(super) fn shared_part(&mut self, multi: Id<MultiReceive>) -> Option<Arc<Many>> {
        self.messages.memory_mut().take_shared_part(multi)
    }

    /// Ends a part of a shared multi-receive buffer. One atomic step decides whether this releases the buffer and
    /// queues the end, because other endpoints have parts too, and the entry that releases a buffer must be its last.
    /// The end is counted afterwards, because counting may begin operations that need a part of the same buffer.
    #[cold]
    pub(super) fn shared_part_over(&mut self, many: Arc<Many>, notify: Notify, result: Result<Entry, ErrorEntry>) {
        let (success, flags) = match &result {
            Ok(entry) => (true, entry.flags),
            Err(error) => (false, error.entry.flags),
        };
        match self.shared.successor() {
            Some(pool) => pool.report(EndedReceive { notify, part: Some(many), result }),
            None => self.report_part(&many, notify, result),
        }
        if success {
            self.reporting.counters().succeeded(flags, self.triggered.submissions());
        } else {
            self.reporting.counters().failed(flags, self.triggered.submissions());
        }
    }

    fn report_part(&mut self, many: &Many, notify: Notify, mut result: Result<Entry, ErrorEntry>) {
        many.end_part(|released| {
            if released {
                match &mut result {
                    Ok(entry) => entry.flags |= CompletionFlags::MULTI_RECEIVE,
                    Err(error) => error.entry.flags |= CompletionFlags::MULTI_RECEIVE,
                }
            }
            self.report_result(notify, result);
        });
    }

    fn report_result(&mut self, notify: Notify, result: Result<Entry, ErrorEntry>) {
        match result {
            Ok(entry) => self.report(Side::Receive, notify, entry),
            Err(error) => self.report_error(Side::Receive, notify, error),
        }
    }

    /// Reports the end of a shared receive for which the application passed no queue: in the endpoint's own queue or,
    /// if the endpoint is closing, through another member.
    #[cold]
    #[inline(never)]
    pub(super) fn report_shared(&mut self, notify: Notify, result: Result<Entry, ErrorEntry>) {
        if let Some(pool) = self.shared.successor() {
            return pool.report(EndedReceive { notify, part: None, result });
        }
        match result {
            Ok(entry) => self.reporting.push_event(Side::Receive, entry),
            Err(error) => self.reporting.push_error_event(Side::Receive, error),
        }
    }

    /// Leaves the shared receive context, and takes no more receives from it. If no queue outlives the endpoint, other
    /// members report the receives that this endpoint has taken.
    #[cold]
    pub(super) fn leave_pool(&mut self) {
        let reports_elsewhere = self.reporting.queue_of(Side::Receive).is_some();
        let Some(pool) = self.shared.leave(reports_elsewhere) else { return };
        // Receives to which messages of this endpoint were promised count as taken: other receives may have been given
        // later messages meanwhile.
        for promise in pool.leave() {
            if let Some(gone) = self.keep_promise(promise) {
                let (tagged, receive) = give_back(&pool, gone);
                self.end_reserved_receive(tagged, receive);
            }
        }
    }

    /// Gives a shared receive the message that was promised to it. Returns the promise if the message no longer exists.
    fn keep_promise(&mut self, promise: ReservedReceive) -> Option<ReservedReceive> {
        let Some(message) = self.messages.table(promise.tagged).take(promise.held) else { return Some(promise) };
        let receive = self.shared_receive(promise.receive);
        self.fill(message, receive);
        None
    }

    /// Ends a shared receive whose promised message no longer exists, if the receive gets no other message.
    #[cold]
    fn end_reserved_receive(&mut self, tagged: bool, receive: Option<PostedReceive>) {
        let Some(receive) = receive else { return };
        let why = "the sender of the matched message disconnected, and later messages have been received since";
        self.end_shared(tagged, receive, ErrorCode::PeerDied, why);
    }

    /// Fails the shared receives that only this peer could have satisfied.
    pub(super) fn fail_shared(&mut self, from: ConnectionId, error: ErrorCode, why: &str) {
        let Some(pool) = self.shared.membership() else { return };
        let peer = self.sender(from);
        let receives = match (self.peers.get(from).state(), peer.at) {
            (PeerState::Up, _) => pool.disconnected(peer),
            (_, Some(at)) => pool.record_unreached(at),
            (_, None) => return,
        };
        for (tagged, waiting) in receives {
            self.end_shared(tagged, waiting, error, why);
        }
    }

    /// Handles the pool's requests that concern messages kept here. This is done before a receive of the endpoint's own
    /// is matched with them: a message that was promised to a shared receive belongs to that receive, which would
    /// otherwise be queued after later ones.
    #[cold]
    pub(super) fn keep_promises(&mut self) {
        let Some(pool) = self.shared.with_notes() else { return };
        for note in pool.take_notes() {
            match note {
                MemberNote::LookFor(_) | MemberNote::LookAt(_) => {
                    if let Some(pool) = self.shared.membership() {
                        pool.keep_note(note);
                    }
                }
                note => self.read_note(note),
            }
        }
    }

    /// Returns the first message held here that matches the pattern and was not promised to a shared receive. From now
    /// on the message cannot be promised. The caller has to take or claim it.
    pub(super) fn find_own(&mut self, tagged: bool, pattern: &Pattern) -> Option<HeldMessage> {
        let held = self.messages.table(tagged).find(pattern)?;
        if self.shared.is_member() { self.keep_own(tagged, pattern) } else { Some(held) }
    }

    #[cold]
    fn keep_own(&mut self, tagged: bool, pattern: &Pattern) -> Option<HeldMessage> {
        loop {
            let held = self.messages.table(tagged).find(pattern)?;
            if self.shared.membership().is_some_and(|pool| pool.withdraw(tagged, held)) {
                return Some(held);
            }
            // If there is a receive for this message, the receive takes it now.
            self.keep_promises();
            if self.messages.table(tagged).held(held).is_some() {
                return Some(held);
            }
        }
    }

    /// Withdraws from the pool the messages that are no longer held here.
    #[cold]
    pub(super) fn withdraw_gone(&self, tagged: bool) {
        let Some(pool) = self.shared.membership() else { return };
        let table = self.messages.table_ref(tagged);
        pool.withdraw_all(tagged, |held| table.held(held).is_none());
    }

    /// Handles a note of the pool about a receive.
    fn read_note(&mut self, note: MemberNote) {
        match note {
            MemberNote::Fill(promise) => {
                let Some(gone) = self.keep_promise(promise) else { return };
                let Some(pool) = self.shared.membership() else { return };
                let (tagged, receive) = give_back(pool, gone);
                self.end_reserved_receive(tagged, receive);
            }
            MemberNote::Canceled { tagged, receive } => {
                self.end_shared(tagged, receive, ErrorCode::Canceled, "cancelled before a message arrived");
            }
            MemberNote::Over(over) => {
                let EndedReceive { notify, part, result } = *over;
                // The member that took the receive counted it.
                match part {
                    Some(many) => self.report_part(&many, notify, result),
                    None => self.report_result(notify, result),
                }
            }
            MemberNote::LookFor(_) | MemberNote::LookAt(_) => {}
        }
    }

    /// Ends a shared receive that gets no message.
    fn end_shared(&mut self, tagged: bool, waiting: PostedReceive, error: ErrorCode, why: &str) {
        let released = match &waiting.kind {
            // Another endpoint still receives into a part of the buffer. The last such endpoint releases the buffer.
            ReceiveKind::Many(many) if !many.close() => return,
            ReceiveKind::Many(_) => CompletionFlags::MULTI_RECEIVE,
            ReceiveKind::Plain | ReceiveKind::Safe(..) => CompletionFlags::empty(),
        };
        let kind = if tagged { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE };
        let flags = CompletionFlags::RECEIVE | kind | released;
        let (context, notify) = match waiting.kind {
            ReceiveKind::Safe(receive_report, buffer) => {
                (self.operations.start_shared_receive(buffer, receive_report).to_u64(), Notify::Operation)
            }
            _ => (waiting.context, Notify::Shared),
        };
        let entry = Entry { context, flags, ..Entry::default() };
        self.fail(Side::Receive, notify, ErrorEntry::new(entry, error).with_text(why.to_owned()));
    }
}

/// Returns to the pool a shared receive whose promised message no longer exists. Returns whether it is for tagged
/// messages, and the receive if it gets no other message.
fn give_back(pool: &Membership, promise: ReservedReceive) -> (bool, Option<PostedReceive>) {
    let ReservedReceive { tagged, receive, pattern, .. } = promise;
    (tagged, pool.give_back(tagged, pattern, receive))
}

impl Engine {
    /// Handles the pool's requests. Returns whether there were any.
    #[cold]
    #[inline(never)]
    pub(super) fn read_notes(&mut self) -> bool {
        let Some(pool) = self.core.shared.with_notes() else { return false };
        for note in pool.take_notes() {
            match note {
                MemberNote::LookFor(peer) => self.reconnect_for_receive(peer),
                MemberNote::LookAt(at) => {
                    let slot = self.core.peers.real_slot(at);
                    self.reconnect_slot(slot);
                }
                note => self.core.read_note(note),
            }
        }
        if self.core.peers.has_actions() {
            self.act();
        }
        true
    }
}
