//! The membership of an endpoint in a pool: the calls of an engine to its shared receive context.

use std::sync::Arc;

use super::notes::{MemberNote, Notes, ReservedReceive};
use super::{ContextAddress, Member, Pool, PostedReceive, ReceiveKind, SenderPeer, StoredMessage};
use crate::endpoint::matching::{Envelope, HeldMessage, Pattern, SourceFilter};
use crate::table::Id;

/// The membership of an endpoint in a pool.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(super) pool: Arc<Pool>,
    pub(super) id: Id<Member>,
    pub(super) notes: Arc<Notes>,
}

impl Membership {
    /// Takes the receive for a message that has arrived.
    pub(crate) fn meet(&self, sender: SenderPeer, tagged: bool, tag: u64, len: u64) -> Option<PostedReceive> {
        let mut state = self.pool.lock()?;
        let source = state.source_of(self.id, sender);
        state.meet(tagged, Envelope { tag, source }, len)
    }

    /// Like [`meet`](Self::meet), but for a message that the member stores: if there is no receive, the message is
    /// announced.
    pub(crate) fn announce(
        &self,
        sender: SenderPeer,
        tagged: bool,
        tag: u64,
        len: u64,
        held: HeldMessage,
    ) -> Option<PostedReceive> {
        let mut state = self.pool.lock()?;
        let envelope = Envelope { tag, source: state.source_of(self.id, sender) };
        let receive = state.meet(tagged, envelope, len);
        if receive.is_none() {
            state.tables[usize::from(tagged)].hold(envelope, StoredMessage { member: self.id, held, len });
        }
        receive
    }

    /// Reserves a stored message for the member's own receives: it is not matched with a shared receive from now on.
    /// Returns false if it was matched before, or was not announced.
    pub(crate) fn withdraw(&self, tagged: bool, held: HeldMessage) -> bool {
        let Some(mut state) = self.pool.lock() else { return false };
        let ours = |announced: &StoredMessage| announced.member == self.id && announced.held == held;
        // The message is usually the oldest.
        state.tables[usize::from(tagged)].extract_held(|_, _, announced| ours(announced)).next().is_some()
    }

    /// Withdraws the announcements of stored messages for which `is_gone` returns true, so that they match no shared
    /// receive.
    pub(crate) fn withdraw_all(&self, tagged: bool, is_gone: impl Fn(HeldMessage) -> bool) {
        let Some(mut state) = self.pool.lock() else { return };
        let gone = |announced: &StoredMessage| announced.member == self.id && is_gone(announced.held);
        state.tables[usize::from(tagged)].extract_held(|_, _, announced| gone(announced)).for_each(drop);
    }

    /// Matches a receive again after its message was lost. If a receive that was posted later has been matched, returns
    /// this receive, which must end with an error: a message found now would be out of order.
    #[must_use]
    pub(crate) fn give_back(&self, tagged: bool, pattern: Pattern, receive: PostedReceive) -> Option<PostedReceive> {
        let mut state = self.pool.lock()?;
        let many = match &receive.kind {
            ReceiveKind::Many(many) => many,
            // The handle of the receive was dropped, so it takes no other message.
            ReceiveKind::Safe(receive_report, _) if receive_report.is_abandoned() => {
                drop(state);
                drop(receive);
                return None;
            }
            ReceiveKind::Plain | ReceiveKind::Safe(..) if state.given[usize::from(tagged)] > receive.number + 1 => {
                return Some(receive);
            }
            ReceiveKind::Plain | ReceiveKind::Safe(..) => {
                // The receive returns to its position, before receives that were posted later.
                let number = receive.number;
                let younger = state.take_from(tagged, |_, other| other.number > number);
                state.post(tagged, pattern, receive);
                younger.into_iter().for_each(|(pattern, receive)| state.post(tagged, pattern, receive));
                return None;
            }
        };
        // The receive's part stays unused. If it was the last part, the whole buffer is released.
        let mut released = false;
        many.end_part(|last| released = last);
        if released {
            state.add_note_for_any(MemberNote::Canceled { tagged, receive });
        }
        None
    }

    /// Ends the membership. Withdraws the member's messages, except those that were matched with a receive before,
    /// which it returns.
    pub(crate) fn leave(&self) -> Vec<ReservedReceive> {
        let Some(mut state) = self.pool.lock() else { return Vec::new() };
        if state.members.remove(self.id).is_none() {
            return Vec::new();
        }
        state.nameless.retain(|(member, _), _| *member != self.id);
        state.leave(self.id);
        for table in &mut state.tables {
            table.extract_held(|_, _, message| message.member == self.id).for_each(drop);
        }
        let mut promises = Vec::new();
        for note in self.notes.take() {
            match note {
                MemberNote::Fill(promise) => promises.push(promise),
                MemberNote::LookFor(_) | MemberNote::LookAt(_) => {}
                end @ (MemberNote::Canceled { .. } | MemberNote::Over(_)) => state.add_note_for_any(end),
            }
        }
        promises
    }

    /// Records that there is a connection to this peer.
    pub(crate) fn connected(&self, peer: SenderPeer) {
        if let (Some(at), Some(mut state)) = (peer.at, self.pool.lock()) {
            state.connected(self.id, at, peer.incarnation);
        }
    }

    /// Records that a connected peer was reached at one more address.
    pub(crate) fn record_reached(&self, peer: SenderPeer, at: ContextAddress) {
        if let Some(mut state) = self.pool.lock() {
            state.alias(at, peer.incarnation);
        }
    }

    /// Records that a connected peer that had no address was reached at one. Its messages have this address from now
    /// on.
    pub(crate) fn named(&self, peer: SenderPeer) {
        let (Some(at), Some(mut state)) = (peer.at, self.pool.lock()) else { return };
        let before = state.nameless.remove(&(self.id, peer.slot));
        state.connected(self.id, at, peer.incarnation);
        let (Some(before), source) = (before, state.source_of(self.id, peer)) else { return };
        for table in &mut state.tables {
            let held: Vec<_> = table.extract_held(|envelope, _, _| envelope.source == before).collect();
            held.into_iter().for_each(|(envelope, message)| _ = table.hold(Envelope { source, ..envelope }, message));
        }
        state.post_again(|pattern, _| pattern.source == SourceFilter::From(source), |source| source);
    }

    /// Records that the connection to this peer has ended. If no other member is connected to the peer, returns the
    /// receives that only this peer could have matched.
    pub(crate) fn disconnected(&self, peer: SenderPeer) -> Vec<(bool, PostedReceive)> {
        let Some(mut state) = self.pool.lock() else { return Vec::new() };
        if peer.at.is_none() {
            state.nameless.remove(&(self.id, peer.slot));
            return Vec::new();
        }
        let source = state.disconnected(self.id, peer.incarnation);
        source.map_or_else(Vec::new, |source| state.directed(source))
    }

    /// Records that no peer was reached at this address. Returns the receives directed at it, if no other member has
    /// reached a peer there.
    pub(crate) fn record_unreached(&self, at: ContextAddress) -> Vec<(bool, PostedReceive)> {
        let Some(mut state) = self.pool.lock() else { return Vec::new() };
        let source = state.source_at(at);
        if state.is_up(source) { Vec::new() } else { state.directed(source) }
    }

    /// Returns the pool of the membership.
    pub(crate) const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns whether there are notes ([`Notes::any`]).
    #[inline]
    pub(crate) fn has_notes(&self) -> bool {
        self.notes.any()
    }

    /// Stores a note for later.
    pub(crate) fn keep_note(&self, note: MemberNote) {
        self.notes.add(note);
    }

    /// Takes the notes, oldest first.
    pub(crate) fn take_notes(&self) -> Vec<MemberNote> {
        self.notes.take()
    }
}

impl Drop for Membership {
    /// Usually the endpoint has already left the pool. If opening the endpoint failed, its messages are dropped with
    /// it, and receives that it had to fill are matched again.
    fn drop(&mut self) {
        for ReservedReceive { tagged, receive, pattern, .. } in self.leave() {
            let over = self.give_back(tagged, pattern, receive);
            if let (Some(receive), Some(mut state)) = (over, self.pool.lock()) {
                state.add_note_for_any(MemberNote::Canceled { tagged, receive });
            }
        }
    }
}
