//! An endpoint with a shared receive context: see [`pool`](crate::endpoint::pool).
//!
//! Its own tables are looked at first, and mostly empty. What it takes from the pool it treats as any receive from then on; results
//! go to the growing part of its queue, since no room could be reserved in it.

use std::sync::Arc;

use super::Engine;
use super::core::Core;
use super::kinds::is_tagged;
use super::peers::State;
use super::types::{Multi, Notify, Receive, Side};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::endpoint::matching::{Held, Pattern};
use crate::endpoint::pool::{Kind, Many, Membership, Note, Over, Promise, Sender, Waiting};
use crate::table::Id;
use crate::transport::Connection;
use crate::wire::head::Head;

impl Core {
    /// The shared receive for a message that has none of ours.
    #[cold]
    #[inline(never)]
    pub(super) fn match_shared(&mut self, from: Connection, head: &Head, len: u64) -> Option<Receive> {
        let pool = self.pool.as_ref()?;
        let tagged = is_tagged(head.kind);
        let tag = if tagged { head.tag } else { 0 };
        let waiting = pool.meet(self.sender(from), tagged, tag, len)?;
        Some(self.shared_receive(waiting))
    }

    /// Tells the pool of a message that is kept here; if its receive has come meanwhile it goes there.
    #[cold]
    #[inline(never)]
    pub(super) fn announce(&mut self, tagged: bool, held: Held) {
        let (Some(pool), Some(message)) = (&self.pool, self.if_held(tagged, held)) else { return };
        let sender = self.sender(message.0);
        let tag = if tagged { message.1 } else { 0 };
        let Some(waiting) = pool.announce(sender, tagged, tag, message.2, held) else { return };
        let receive = self.shared_receive(waiting);
        if let Some(message) = self.table(tagged).take(held) {
            self.fill(message, receive);
        }
    }

    /// The peer of a slot, as the pool knows it.
    pub(super) fn sender(&self, slot: Connection) -> Sender {
        let peer = self.peers.get(slot);
        Sender { slot, at: peer.has_address().then(|| peer.at()), incarnation: peer.incarnation }
    }

    /// Tells the pool of a connection.
    pub(super) fn shared_connected(&self, slot: Connection) {
        if let Some(pool) = &self.pool {
            pool.connected(self.sender(slot));
        }
    }

    /// Two slots turned out to be one peer: `slot` leads to `real`, which had an address before or has that of `slot` now.
    pub(super) fn shared_alias(&self, slot: Connection, real: Connection, had_address: bool) {
        let Some(pool) = &self.pool else { return };
        let (peer, at) = (self.sender(real), self.peers.get(slot).at());
        if had_address { pool.met(peer, at) } else { pool.named(peer) }
    }

    /// From whom, with which tag, and how long.
    fn if_held(&self, tagged: bool, held: Held) -> Option<(Connection, u64, u64)> {
        let table = if tagged { &self.tagged } else { &self.messages };
        table.held(held).map(|message| (message.from, message.head.tag, message.len))
    }

    /// A shared receive as one of ours.
    fn shared_receive(&mut self, waiting: Waiting) -> Receive {
        let Waiting { segments, mut context, reports, kind, .. } = waiting;
        let mut notify = if reports { Notify::Shared } else { Notify::SharedSilent };
        let place = self.place(&segments);
        let mut multi = None;
        match kind {
            Kind::Plain => {}
            Kind::Safe(owed, buffer) => {
                (context, notify) = (self.operations.start_owed(buffer, owed).to_u64(), Notify::Operation);
            }
            Kind::Many(many) => {
                let (used, in_flight, closed, pooled) = (segments.len(), 1, true, Some(many));
                let state = Multi { segments, used, in_flight, closed, context, notify, pooled };
                multi = Some(self.multis.insert(state));
            }
        }
        Receive { place, context, notify, multi }
    }

    /// The buffer of a shared receive context that this one is a part of, which is over with it.
    #[cold]
    pub(super) fn shared_part(&mut self, multi: Id<Multi>) -> Option<Arc<Many>> {
        self.multis.get(multi)?.pooled.as_ref()?;
        self.multis.remove(multi)?.pooled
    }

    /// A part of a shared buffer for many messages has ended. Whether that releases the buffer is decided, and the end put in the queue, in one
    /// step, since other endpoints have parts too: no entry of a buffer comes behind the one that releases it. Counted is it afterwards: that
    /// may begin operations, which may want a part of the same buffer.
    #[cold]
    pub(super) fn shared_part_over(&mut self, many: Arc<Many>, notify: Notify, result: Result<Entry, ErrorEntry>) {
        let (success, flags) = match &result {
            Ok(entry) => (true, entry.flags),
            Err(error) => (false, error.entry.flags),
        };
        match &self.heir {
            Some(pool) => pool.report(Over { notify, part: Some(many), result }),
            None => self.report_part(&many, notify, result),
        }
        if success {
            self.counters.succeeded(flags, &self.submissions);
        } else {
            self.counters.failed(flags, &self.submissions);
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

    /// Reports the end of a shared receive where no queue of the application's takes it: in the endpoint's own or, once this is closing, in
    /// that of another member.
    #[cold]
    #[inline(never)]
    pub(super) fn report_shared(&mut self, notify: Notify, result: Result<Entry, ErrorEntry>) {
        if let Some(pool) = &self.heir {
            return pool.report(Over { notify, part: None, result });
        }
        match result {
            Ok(entry) => self.queue.push_event(entry),
            Err(error) => self.queue.push_error_event(error),
        }
        self.reported += 1;
    }

    /// Takes no more receives of the shared context. Where no queue outlives the endpoint, other members report those that it has taken.
    #[cold]
    pub(super) fn leave_pool(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        if self.queue_of(Side::Receive).is_none() {
            self.heir = Some(Arc::clone(pool.pool()));
        }
        // Those that were given messages here are among them: others may have been given later messages meanwhile.
        for promise in pool.leave() {
            if let Some(gone) = self.keep_promise(promise) {
                self.promise_over(&pool, gone);
            }
        }
    }

    /// A shared receive was given a message that is kept here: hands it back if that is gone.
    fn keep_promise(&mut self, promise: Promise) -> Option<Promise> {
        let Some(message) = self.table(promise.tagged).take(promise.held) else { return Some(promise) };
        let receive = self.shared_receive(promise.receive);
        self.fill(message, receive);
        None
    }

    /// A shared receive was given a message that is gone.
    #[cold]
    fn promise_over(&mut self, pool: &Membership, promise: Promise) {
        let Promise { tagged, receive, pattern, .. } = promise;
        let Some(receive) = pool.give_back(tagged, pattern, receive) else { return };
        let why = "its message went with the message's sender, and later ones were received meanwhile";
        self.end_shared(tagged, receive, ErrorCode::PeerDied, why);
    }

    /// Shared receives that only this peer could have satisfied end in error.
    pub(super) fn fail_shared(&mut self, from: Connection, error: ErrorCode, why: &str) {
        let Some(pool) = &self.pool else { return };
        let peer = self.sender(from);
        let receives = match (self.peers.get(from).state, peer.at) {
            (State::Up, _) => pool.disconnected(peer),
            (_, Some(at)) => pool.not_met(at),
            (_, None) => return,
        };
        for (tagged, waiting) in receives {
            self.end_shared(tagged, waiting, error, why);
        }
    }

    /// Does what the pool asks for that is about messages which are kept here, before a receive of the endpoint's own looks at them: a
    /// message that was promised to a shared receive is that receive's, which would go behind later ones otherwise.
    #[cold]
    pub(super) fn keep_promises(&mut self) {
        let Some(pool) = self.pool.as_ref().filter(|pool| pool.has_notes()) else { return };
        for note in pool.take_notes() {
            match note {
                Note::LookFor(_) | Note::LookAt(_) => {
                    if let Some(pool) = &self.pool {
                        pool.keep_note(note);
                    }
                }
                note => self.read_note(note),
            }
        }
    }

    /// The first message here that the pattern matches and that no shared receive was promised; none is from now on. It is to be taken, or
    /// claimed.
    pub(super) fn find_own(&mut self, tagged: bool, pattern: &Pattern) -> Option<Held> {
        let held = self.table(tagged).find(pattern)?;
        if self.pool.is_none() { Some(held) } else { self.keep_own(tagged, pattern) }
    }

    #[cold]
    fn keep_own(&mut self, tagged: bool, pattern: &Pattern) -> Option<Held> {
        loop {
            let held = self.table(tagged).find(pattern)?;
            if self.pool.as_ref().is_some_and(|pool| pool.withdraw(tagged, held)) {
                return Some(held);
            }
            // Its receive takes it now, if it has one.
            self.keep_promises();
            if self.table(tagged).held(held).is_some() {
                return Some(held);
            }
        }
    }

    /// Messages that were kept here are gone.
    #[cold]
    pub(super) fn withdraw_gone(&self, tagged: bool) {
        let Some(pool) = &self.pool else { return };
        let table = if tagged { &self.tagged } else { &self.messages };
        pool.withdraw_all(tagged, |held| table.held(held).is_none());
    }

    /// A note about a receive.
    fn read_note(&mut self, note: Note) {
        match note {
            Note::Fill(promise) => {
                let Some(gone) = self.keep_promise(promise) else { return };
                if let Some(pool) = self.pool.take() {
                    self.promise_over(&pool, gone);
                    self.pool = Some(pool);
                }
            }
            Note::Canceled { tagged, receive } => {
                self.end_shared(tagged, receive, ErrorCode::Canceled, "cancelled before a message came");
            }
            Note::Over(over) => {
                let Over { notify, part, result } = *over;
                // It was counted by the member that took it.
                match part {
                    Some(many) => self.report_part(&many, notify, result),
                    None => self.report_result(notify, result),
                }
            }
            Note::LookFor(_) | Note::LookAt(_) => {}
        }
    }

    /// A shared receive gets no message.
    fn end_shared(&mut self, tagged: bool, waiting: Waiting, error: ErrorCode, why: &str) {
        let released = match &waiting.kind {
            // Another endpoint receives into a part of it still: released by the last of these.
            Kind::Many(many) if !many.close() => return,
            Kind::Many(_) => CompletionFlags::MULTI_RECEIVE,
            Kind::Plain | Kind::Safe(..) => CompletionFlags::empty(),
        };
        let kind = if tagged { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE };
        let flags = CompletionFlags::RECEIVE | kind | released;
        let (context, notify) = match waiting.kind {
            Kind::Safe(owed, buffer) => (self.operations.start_owed(buffer, owed).to_u64(), Notify::Operation),
            _ => (waiting.context, Notify::Shared),
        };
        let entry = Entry { context, flags, ..Entry::default() };
        self.fail(Side::Receive, notify, ErrorEntry::new(entry, error).with_text(why.to_owned()));
    }
}

impl Engine {
    /// Does what the pool asks for; says whether there was anything.
    #[cold]
    #[inline(never)]
    pub(super) fn read_notes(&mut self) -> bool {
        let Some(pool) = self.core.pool.as_ref().filter(|pool| pool.has_notes()) else { return false };
        for note in pool.take_notes() {
            match note {
                Note::LookFor(peer) => self.look_for(peer),
                Note::LookAt(at) => {
                    let slot = self.core.peers.real_slot(at);
                    self.look_at_slot(slot);
                }
                note => self.core.read_note(note),
            }
        }
        if !self.core.outbox.is_empty() {
            self.act();
        }
        true
    }
}
