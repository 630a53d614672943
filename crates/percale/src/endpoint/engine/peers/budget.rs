//! Limits for the memory that one peer can make this endpoint keep: unexpected messages, and answers that the peer does
//! not take.
//!
//! Every connection has a separate budget, so the use of one peer does not affect another peer. The budget is charged
//! when something arrives and released when that is received, discarded or sent.
//!
//! 1. *Unexpected messages.* For each message, and each offer, the charge is the number of its bytes that are here,
//!    plus [`HEAD`]. Above the cap ([`DomainBuilder::unexpected_cap`](crate::DomainBuilder::unexpected_cap)) the peer
//!    is asked to offer messages rather than to send them, until half of the cap is free. A peer that continues to send
//!    is not read while its messages exceed the cap by more than [`BEYOND`]. percale's senders do not reach that limit:
//!    they stop when they read the request.
//! 2. *Answers* that the link does not take wait in the peer's backlog, in order. When more than [`BACKLOG`] wait, the
//!    peer is not read, and messages to it wait for the answers, until half of that number is left. Two peers that both
//!    have many answers to send cannot block each other permanently: a backlog can hold more answers than the
//!    connection between them can hold requests, and answers leave first.
//! 3. *Messages of disconnected peers* that have not been received yet are kept up to [`DISCONNECTED_LIMIT`] times the
//!    maximum for one peer. Beyond that, the messages of the peer that disconnected first are dropped.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::VecDeque;

use super::super::types::{LinkAction, Unexpected, UnexpectedPayload};
use super::{Peer, PeerState, Peers};
use crate::local_memory::buffer::Buffer;
use crate::transport::ConnectionId;
use crate::wire::head::{FrameKind, Head};

/// The charge for an unexpected message besides its bytes, for its head and its entry in the tables. An entry has 192
/// bytes, and half of a table may be unused, because tables double when they grow.
pub(in super::super) const HEAD: usize = 384;

/// The number of bytes that may be held for one peer beyond the cap: bytes that were on their way when the peer was
/// asked to stop, and offers.
pub(in super::super) const BEYOND: usize = 64 << 20;

/// The number of answers that may wait for one peer's link. An answer with a payload or a transfer counts as [`HEAVY`].
pub(in super::super) const BACKLOG: usize = 1 << 18;

/// The weight of an answer that is more than a head.
const HEAVY: usize = 8;

/// The messages of all disconnected peers together are limited to this many times the maximum for one peer.
const DISCONNECTED_LIMIT: usize = 2;

/// The maximum number of answers to accesses of one peer that its link has not taken. A peer that makes more accesses
/// without taking the answers is disconnected.
const REPLIES_LIMIT: u32 = 8192;

/// An answer that waits. Most are heads, which are kept small.
#[derive(Debug)]
enum QueuedAnswer {
    Frame(Head),
    Other(Box<LinkAction>),
}

impl QueuedAnswer {
    const fn weight(&self) -> usize {
        match self {
            Self::Frame(_) => 1,
            Self::Other(_) => HEAVY,
        }
    }
}

/// The budget of one peer.
#[derive(Debug, Default)]
pub(crate) struct PeerBudget {
    /// Bytes of the peer's unexpected messages.
    held: usize,
    /// Whether the peer was requested to offer rather than to send.
    notified: bool,
    backlog: VecDeque<QueuedAnswer>,
    /// The weight of the backlog.
    weight: usize,
    /// Whether the backlog is too long.
    choked: bool,
    /// Whether the peer is not read.
    stopped: bool,
}

/// The actions that a change of a budget requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BudgetChange {
    None,
    /// Ask the peer to offer messages instead of sending them, or withdraw that request.
    Notify(bool),
}

impl PeerBudget {
    /// Returns the bytes of unexpected messages.
    #[cfg(any(test, feature = "sim"))]
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// Returns the weight of the answers that wait in the backlog.
    #[cfg(any(test, feature = "sim"))]
    pub(super) const fn weight(&self) -> usize {
        self.weight
    }

    /// Returns whether answers wait.
    #[inline]
    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Returns whether frames of the peer are read.
    #[inline]
    pub(super) const fn is_read(&self) -> bool {
        !self.stopped
    }

    /// Resets the budget because the connection has ended: drops the backlog, and clears the record that the peer was
    /// requested to offer. Its messages stay.
    pub(super) fn end(&mut self) {
        *self = Self { held: self.held, ..Self::default() };
    }

    fn review(&mut self, cap: usize) -> BudgetChange {
        self.choked = self.weight > if self.choked { BACKLOG / 2 } else { BACKLOG };
        self.stopped = self.choked || self.held > cap.saturating_add(BEYOND);
        let notify = self.held > if self.notified { cap / 2 } else { cap };
        if std::mem::replace(&mut self.notified, notify) == notify {
            BudgetChange::None
        } else {
            BudgetChange::Notify(notify)
        }
    }

    fn push(&mut self, answer: QueuedAnswer) {
        self.weight = self.weight.saturating_add(answer.weight());
        self.backlog.push_back(answer);
    }

    fn pop(&mut self) -> Option<LinkAction> {
        let answer = self.backlog.pop_front()?;
        self.weight = self.weight.saturating_sub(answer.weight());
        if self.backlog.is_empty() {
            self.backlog = VecDeque::new();
        }
        Some(match answer {
            QueuedAnswer::Frame(head) => LinkAction::Frame(head),
            QueuedAnswer::Other(action) => *action,
        })
    }
}

impl From<LinkAction> for QueuedAnswer {
    fn from(action: LinkAction) -> Self {
        match action {
            LinkAction::Frame(head) => Self::Frame(head),
            action => Self::Other(Box::new(action)),
        }
    }
}

impl Peers {
    /// Charges bytes of an unexpected message to its peer's budget.
    #[inline]
    pub(in super::super) fn charge(&mut self, from: ConnectionId, bytes: usize) {
        let budget = &mut self.get_mut(from).budget;
        budget.held = budget.held.saturating_add(bytes);
        if budget.held > self.unexpected_cap {
            self.review(from);
        }
    }

    /// Releases bytes that were [charged](Self::charge).
    #[inline]
    pub(in super::super) fn release(&mut self, from: ConnectionId, bytes: usize) {
        let budget = &mut self.get_mut(from).budget;
        budget.held = budget.held.saturating_sub(bytes);
        if budget.notified {
            self.review(from);
        }
    }

    /// Applies the consequences of a change of a budget.
    #[cold]
    fn review(&mut self, from: ConnectionId) {
        let cap = self.unexpected_cap;
        let peer = self.get_mut(from);
        let (was_choked, was_read) = (peer.budget.choked, peer.budget.is_read());
        let change = peer.budget.review(cap);
        // While the backlog is too long, messages wait for the answers. Counting a notice makes them wait.
        match (was_choked, peer.budget.choked) {
            (false, true) => peer.notice_queued(),
            (true, false) => peer.notice_left(),
            _ => {}
        }
        let is_read = peer.budget.is_read();
        let is_up = peer.state == PeerState::Up;
        if was_read != is_read {
            self.count_stopped(is_read);
            let address = self.get(from).address;
            crate::later::later!(debug: %address, is_read, "a peer has reached the limit of memory that is kept for it");
        }
        if let BudgetChange::Notify(on) = change
            && is_up
        {
            self.reply(from, FrameKind::Offers, u32::from(on), 0);
        }
    }

    /// Reviews the budget when a connection begins, because messages of an earlier connection may still be held.
    pub(in super::super) fn begin_budget(&mut self, slot: ConnectionId) {
        if self.get(slot).budget.held > self.unexpected_cap {
            self.review(slot);
        }
    }

    /// Appends an answer that a link did not take to the backlog.
    #[cold]
    pub(in super::super) fn queue_answer(&mut self, to: ConnectionId, action: LinkAction) {
        let budget = &mut self.get_mut(to).budget;
        let first = !budget.has_backlog();
        budget.push(action.into());
        let review = budget.weight > BACKLOG && !budget.choked;
        if first {
            self.count_owing(true);
        }
        if review {
            self.review(to);
        }
    }

    /// Takes the first answer that waits.
    #[cold]
    pub(in super::super) fn next_queued_answer(&mut self, to: ConnectionId) -> Option<LinkAction> {
        let budget = &mut self.get_mut(to).budget;
        let action = budget.pop()?;
        let (last, review) = (!budget.has_backlog(), budget.choked && budget.weight <= BACKLOG / 2);
        if last {
            self.count_owing(false);
        }
        if review {
            self.review(to);
        }
        Some(action)
    }

    /// Puts an answer back to the head of the backlog, because the link did not take it.
    #[cold]
    pub(in super::super) fn requeue_answer(&mut self, to: ConnectionId, action: LinkAction) {
        let budget = &mut self.get_mut(to).budget;
        let first = !budget.has_backlog();
        let answer = QueuedAnswer::from(action);
        budget.weight = budget.weight.saturating_add(answer.weight());
        budget.backlog.push_front(answer);
        if first {
            self.count_owing(true);
        }
    }

    /// Ends the budget of a connection that has ended.
    pub(in super::super) fn end_budget(&mut self, slot: ConnectionId) {
        let budget = &mut self.get_mut(slot).budget;
        let (had_backlog, stopped) = (budget.has_backlog(), !budget.is_read());
        budget.end();
        if had_backlog {
            self.count_owing(false);
        }
        if stopped {
            self.count_stopped(true);
        }
    }

    /// Returns whether anything waits to be passed to a link.
    #[inline]
    pub(in super::super) fn has_answers(&self) -> bool {
        self.has_actions() || self.any_owing()
    }

    /// Returns the disconnected peers whose messages have to be dropped, in the order in which they disconnected,
    /// because the messages of all disconnected peers exceed the limit. `slot` is a peer that has just disconnected.
    #[cold]
    pub(in super::super) fn take_overdue(&mut self, slot: ConnectionId) -> Vec<ConnectionId> {
        let mut overdue = Vec::new();
        if self.get(slot).budget.held == 0 {
            return overdue;
        }
        let list = &self.list;
        let keeps = |slot: ConnectionId| {
            list.get(slot as usize).is_some_and(|peer| peer.budget.held > 0 && peer.state != PeerState::Up)
        };
        self.left_messages.retain(|other| *other != slot && keeps(*other));
        if keeps(slot) {
            self.left_messages.push_back(slot);
        }
        let limit = self.unexpected_cap.saturating_add(BEYOND).saturating_mul(DISCONNECTED_LIMIT);
        let all = self.left_messages.iter().map(|slot| self.get(*slot).budget.held);
        let mut held = all.fold(0_usize, usize::saturating_add);
        while held > limit
            && self.left_messages.len() > 1
            && let Some(oldest) = self.left_messages.pop_front()
        {
            held = held.saturating_sub(self.get(oldest).budget.held);
            let address = self.get(oldest).address;
            crate::later::later!(warn: %address, "unreceived messages of a disconnected peer are dropped (limit reached)");
            overdue.push(oldest);
        }
        overdue
    }

    /// Returns whether frames of this peer are taken.
    #[inline]
    pub(in super::super) fn is_read(&self, slot: ConnectionId) -> bool {
        self.stopped == 0 || self.get(slot).budget.is_read()
    }

    /// Counts a peer that is read again, or that is no longer read.
    const fn count_stopped(&mut self, is_read: bool) {
        self.stopped = if is_read { self.stopped.saturating_sub(1) } else { self.stopped.saturating_add(1) };
    }

    /// Returns whether answers wait for any peer.
    #[inline]
    pub(super) const fn any_owing(&self) -> bool {
        self.owing > 0
    }

    /// Counts one more peer for which answers wait, or one fewer.
    const fn count_owing(&mut self, more: bool) {
        self.owing = if more { self.owing.saturating_add(1) } else { self.owing.saturating_sub(1) };
    }
}

impl Peer {
    /// Returns the bytes of the peer's unexpected messages.
    #[cfg(all(test, not(loom)))]
    pub(in super::super) const fn held(&self) -> usize {
        self.budget.held()
    }

    /// Returns the weight of the answers that wait in the peer's backlog.
    #[cfg(all(test, not(loom)))]
    pub(in super::super) const fn backlog(&self) -> usize {
        self.budget.weight()
    }

    /// Returns whether answers wait in the peer's backlog.
    pub(in super::super) fn has_queued_answers(&self) -> bool {
        self.budget.has_backlog()
    }

    /// Returns whether the peer has more requests under way than it may. Such a peer is disconnected.
    pub(in super::super) const fn exceeds_request_limit(&self) -> bool {
        self.replies > REPLIES_LIMIT || self.serving > 2 * super::PARTS_LIMIT
    }

    /// Counts one more answer to an access of this peer.
    #[inline]
    pub(in super::super) const fn reply_queued(&mut self) {
        self.replies = self.replies.saturating_add(1);
    }

    /// Counts an answer to an access that the link took.
    #[inline]
    pub(in super::super) const fn reply_left(&mut self) {
        self.replies = self.replies.saturating_sub(1);
    }

    /// Counts one more transfer of this peer that is under way.
    #[inline]
    pub(in super::super) const fn serving_started(&mut self) {
        self.serving = self.serving.saturating_add(1);
    }

    /// Counts a transfer that has ended, and releases its staged bytes.
    pub(in super::super) fn serving_ended(&mut self, staged: Option<&Buffer>) {
        self.serving = self.serving.saturating_sub(1);
        self.staged = self.staged.saturating_sub(staged.map_or(0, |buffer| buffer.len() as u64));
    }

    /// Counts bytes that are kept for a transfer of this peer. Returns false, and does nothing, if that would be too
    /// many. percale's initiators never exceed the limit, not even while some of the bytes are in flight.
    pub(in super::super) const fn stage(&mut self, len: u64) -> bool {
        let staged = self.staged.saturating_add(len);
        if staged > 2 * super::LONG_BYTES {
            return false;
        }
        self.staged = staged;
        true
    }

    /// Counts bytes that are kept for an answer. They are never refused.
    pub(in super::super) const fn stage_answer(&mut self, len: u64) {
        self.staged = self.staged.saturating_add(len);
    }
}

/// Returns the charge of a held message. The bytes of a message that is still arriving are charged with its arrival.
pub(in super::super) fn charge_of(message: &Unexpected) -> usize {
    let here = match &message.body {
        UnexpectedPayload::Short(short) => short.as_slice().len(),
        UnexpectedPayload::Whole(bytes) => bytes.len(),
        UnexpectedPayload::Arriving(_) | UnexpectedPayload::Offered(_) => 0,
    };
    here.saturating_add(HEAD)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::local_memory::short_bytes::ShortBytes;
    use proptest::prelude::*;

    proptest! {
        /// Compares a budget with plain sums: its state follows from the sums, with the hysteresis between the two
        /// limits.
        #[test]
        fn budget_matches_sum_of_charges_and_releases(
            cap in 0_usize..1 << 20,
            steps in proptest::collection::vec((0_u8..4, 0_usize..BEYOND / 2), 1..100),
        ) {
            let mut budget = PeerBudget::default();
            let (mut held, mut answers, mut notified) = (0_usize, Vec::new(), false);
            for (what, amount) in steps {
                match what {
                    0 => { budget.held += amount; held += amount; }
                    1 => { let less = amount.min(held); budget.held -= less; held -= less; }
                    2 => for number in 0..amount % (BACKLOG / 8) {
                        let head = Head { id: number as u32, ..Head::default() };
                        let action = if number % 3 == 0 { LinkAction::Bytes(head, ShortBytes::zeroed(0)) } else { LinkAction::Frame(head) };
                        answers.insert(0, (number as u32, if number % 3 == 0 { HEAVY } else { 1 }));
                        budget.push(action.into());
                        if answers.len() > 200 { break; }
                    },
                    _ => for _ in 0..amount % 400 {
                        let expected = answers.pop();
                        let found = budget.pop().map(|action| match action {
                            LinkAction::Frame(head) => (head.id, 1),
                            LinkAction::Bytes(head, _) => (head.id, HEAVY),
                            other => panic!("{other:?}"),
                        });
                        prop_assert_eq!(found, expected, "in order");
                    },
                }
                let change = budget.review(cap);
                prop_assert_eq!(budget.held(), held);
                prop_assert_eq!(budget.weight(), answers.iter().map(|(_, weight)| weight).sum::<usize>());
                if held > cap { prop_assert!(budget.notified) }
                if held <= cap / 2 { prop_assert!(!budget.notified) }
                prop_assert_eq!(change, if budget.notified == notified { BudgetChange::None } else { BudgetChange::Notify(budget.notified) });
                notified = budget.notified;
                prop_assert_eq!(budget.is_read(), !budget.choked && held <= cap + BEYOND);
            }
        }
    }

    #[test]
    fn long_backlog_pauses_reading_until_half_is_sent() {
        let mut budget = PeerBudget::default();
        for _ in 0..=BACKLOG {
            assert!(budget.is_read());
            budget.push(QueuedAnswer::Frame(Head::default()));
            budget.review(0);
        }
        while budget.weight() > BACKLOG / 2 {
            assert!(!budget.is_read());
            budget.pop().unwrap();
            budget.review(0);
        }
        assert!(budget.is_read());
        budget.end();
        assert!(!budget.has_backlog() && budget.weight() == 0);
    }
}
