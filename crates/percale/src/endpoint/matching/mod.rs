//! Matching of messages and posted receives.
//!
//! [`Matching`] owns, for one kind of message (tagged, or untagged as tag 0), the receives that wait for a message
//! ([`posted`]) and the messages that wait for a receive ([`unexpected`]). Each endpoint and each shared receive
//! context has one for each kind. The owner chooses what is stored with each: `R` for a receive, `U` for a message.
//!
//! The rules are those of `fi_trecv` and of MPI:
//! * a message takes the first receive, in posting order, with a pattern that it fits;
//! * a receive takes the first unexpected message, in arrival order, that fits its pattern;
//! * a message fits a pattern when the tags agree in every bit that is not ignored, and the source is the requested
//!   one, if any.
//!
//! So the owner calls [`Matching::find`] before [`Matching::post`], and [`Matching::arrive_with`] before
//! [`Matching::hold`]. A receive and a message that fit each other never wait at the same time.
//!
//! # Performance
//! While few entries wait, they are one ordered list, and a search walks it. When more entries wait, they are filed in
//! hash tables, one for each *class* of patterns: those that compare the same bits of tag and source (see [`key`]).
//! Real programs use very few classes, but not always `ignore == 0`: MPICH masks two protocol bits in every receive.
//! Within a class a search is one look-up, whichever bits it compares.
//!
//! All data is in vectors that are reused and linked by index ([`arena`], [`bins`]). Memory is allocated only when more
//! entries wait at the same time than ever before. There are no locks: one thread at a time uses an endpoint's engine,
//! and a shared receive context has its own lock.

mod arena;
mod bins;
mod departed;
mod key;
mod posted;
mod steps;
#[cfg(test)]
mod tests;
mod unexpected;

use std::collections::HashSet;

pub(crate) use arena::{HeldMessage, PostedHandle};
pub(crate) use key::{Envelope, Pattern, SourceFilter};
pub(crate) use posted::{AfterMatch, MatchedReceive};

/// The posted receives (`R`) and the unexpected messages (`U`) of one kind.
#[derive(Debug)]
pub(crate) struct Matching<R, U> {
    posted: posted::PostedQueue<R>,
    unexpected: unexpected::UnexpectedQueue<U>,
    /// Created when a sender first disconnects while its messages are held. It is boxed because there are many
    /// endpoints and this is rare.
    left: Option<Box<departed::DepartedSenders>>,
}

impl<R, U> Matching<R, U> {
    /// Creates an empty state, without allocating memory.
    pub(crate) fn new() -> Self {
        Self { posted: posted::PostedQueue::new(), unexpected: unexpected::UnexpectedQueue::new(), left: None }
    }

    /// Appends a receive. Does not search the held messages: call [`find`](Self::find) first.
    #[inline(always)]
    pub(crate) fn post(&mut self, pattern: Pattern, receive: R) -> PostedHandle {
        self.posted.post(pattern, receive)
    }

    /// Removes and returns the receive that a message with this envelope takes.
    #[cfg(test)]
    pub(crate) fn arrive(&mut self, envelope: Envelope) -> Option<R> {
        self.posted.arrive(envelope)
    }

    /// Passes the receive that a message with this envelope takes to `decide`, and removes the receive unless it keeps
    /// its position (a multi-receive buffer with room left). Returns the result of `decide`, and the receive if it was
    /// removed.
    #[inline]
    pub(crate) fn arrive_with<X>(
        &mut self,
        envelope: Envelope,
        decide: impl FnOnce(PostedHandle, &mut R) -> (AfterMatch, X),
    ) -> Option<(X, Option<R>)> {
        self.posted.arrive_with(envelope, decide)
    }

    /// Returns the receive that a message with this envelope takes. This path is shorter than
    /// [`arrive_with`](Self::arrive_with), for a receive that is processed in place. The receive stays posted until
    /// [`use_up`](Self::use_up) is called.
    #[inline(always)]
    pub(crate) fn meet(&mut self, envelope: Envelope) -> Option<MatchedReceive> {
        self.posted.meet(envelope)
    }

    /// Returns a receive that was just matched.
    #[inline(always)]
    pub(crate) fn met(&self, met: MatchedReceive) -> &R {
        self.posted.met(met)
    }

    /// Drops a receive that was just matched.
    #[inline(always)]
    pub(crate) fn use_up(&mut self, met: MatchedReceive) {
        self.posted.use_up(met);
    }

    /// Redirects the receives from one source to another and keeps their positions. Returns their patterns in posting
    /// order. The caller then matches them with the held messages that fit.
    pub(crate) fn redirect(&mut self, from: SourceFilter, to: SourceFilter) -> Vec<Pattern> {
        self.posted.redirect(from, to)
    }

    /// Removes the first receive, in posting order, that `pick` accepts (`fi_cancel` identifies a receive by its
    /// context).
    pub(crate) fn cancel_first(&mut self, mut pick: impl FnMut(&R) -> bool) -> Option<R> {
        self.posted.extract(move |_, receive| pick(receive)).next()
    }

    /// Removes, in posting order, the receives directed at one source after its peer has died, or with
    /// [`SourceFilter::Any`] every receive, directed or not. Receives that the iterator has not reached stay posted.
    pub(crate) fn drain_posted(&mut self, source: SourceFilter) -> impl Iterator<Item = R> {
        self.posted.extract(move |pattern, _| source == SourceFilter::Any || source == pattern.source)
    }

    /// Removes, in posting order, the receives that `pick` accepts. Receives that the iterator has not reached stay
    /// posted.
    pub(crate) fn extract_posted(&mut self, pick: impl FnMut(Pattern, &R) -> bool) -> impl Iterator<Item = R> {
        self.posted.extract(pick)
    }

    /// Returns whether a receive is directed at this source. Examines all receives.
    pub(crate) fn is_directed_at(&self, source: u64) -> bool {
        self.posted.sources().any(|from| from == SourceFilter::From(source))
    }

    /// Returns whether a message that fits receives directed at this source is held, claimed or not. Examines all
    /// messages.
    pub(crate) fn holds_of(&self, source: u64) -> bool {
        let labels: Vec<u64> = self.left.iter().flat_map(|left| left.labels_of(source)).collect();
        self.unexpected.sources().any(|from| from == source || labels.contains(&from))
    }

    /// Makes the held messages of `from` available to receives directed at `from` or at one of `names`. Their sender
    /// has disconnected, and had these names too. Messages that arrive later from any of these sources are not
    /// available to the other names.
    pub(crate) fn leave(&mut self, from: u64, names: &[u64]) {
        if names.is_empty() || !self.unexpected.sources().any(|source| source == from) {
            return;
        }
        let Self { unexpected, left, .. } = self;
        let left = left.get_or_insert_with(|| Box::new(departed::DepartedSenders::new()));
        let held: HashSet<u64> = unexpected.sources().collect();
        left.retain(|label| held.contains(&label));
        unexpected.rename(from, left.label([names, &[from]].concat()));
    }

    /// Returns the sources (names of disconnected senders) for which messages that these senders left are held.
    pub(crate) fn left(&self) -> impl Iterator<Item = u64> {
        self.left.iter().flat_map(|left| left.names())
    }

    /// Returns the posted receives in posting order.
    #[cfg(test)]
    pub(crate) fn posted(&self) -> impl Iterator<Item = (PostedHandle, Pattern, &R)> {
        self.posted.iter()
    }

    /// Returns the number of posted receives.
    #[inline]
    pub(crate) fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// Appends a message that no receive took.
    #[inline]
    pub(crate) fn hold(&mut self, envelope: Envelope, message: U) -> HeldMessage {
        self.unexpected.hold(envelope, message)
    }

    /// Returns whether any message is held and not claimed.
    #[inline]
    pub(crate) fn holds_any(&self) -> bool {
        !self.unexpected.is_empty()
    }

    /// Returns the first held message, in arrival order, that fits the pattern and is not claimed. It stays held.
    #[inline]
    pub(crate) fn find(&mut self, pattern: &Pattern) -> Option<HeldMessage> {
        if self.left.is_none() { self.unexpected.find(pattern) } else { self.find_departed(pattern) }
    }

    /// Like [`find`](Self::find), for the case that messages of disconnected senders may be held.
    #[cold]
    #[inline(never)]
    fn find_departed(&mut self, pattern: &Pattern) -> Option<HeldMessage> {
        let Self { unexpected, left, .. } = self;
        let (SourceFilter::From(source), Some(left)) = (pattern.source, left) else { return unexpected.find(pattern) };
        let sources = left.labels_of(source).chain([source]);
        let found = sources.filter_map(|of| unexpected.find(&Pattern { source: SourceFilter::From(of), ..*pattern }));
        found.min_by_key(HeldMessage::sequence)
    }

    /// Returns the message of a handle, claimed or not, unless it was taken.
    #[inline]
    pub(crate) fn held(&self, handle: HeldMessage) -> Option<&U> {
        self.unexpected.get(handle)
    }

    /// Like [`held`](Self::held), but mutable (when more of its payload arrived).
    #[inline]
    pub(crate) fn held_mut(&mut self, handle: HeldMessage) -> Option<&mut U> {
        self.unexpected.get_mut(handle)
    }

    /// Claims a held message (`FI_PEEK | FI_CLAIM`): [`find`](Self::find) skips it, and only its handle can take it.
    /// Returns false if it was taken or claimed before.
    pub(crate) fn claim(&mut self, handle: HeldMessage) -> bool {
        self.unexpected.claim(handle)
    }

    /// Removes a held message, claimed or not, unless it was taken before.
    #[inline]
    pub(crate) fn take(&mut self, handle: HeldMessage) -> Option<U> {
        self.unexpected.take(handle)
    }

    /// Removes the held messages that `pick` accepts: first those not claimed, in arrival order, then the claimed ones
    /// (for which `pick`'s second argument is true), in the order of claiming. Messages that the iterator has not
    /// reached stay held.
    pub(crate) fn extract_held(
        &mut self,
        pick: impl FnMut(Envelope, bool, &U) -> bool,
    ) -> impl Iterator<Item = (Envelope, U)> {
        self.unexpected.extract(pick)
    }

    /// Calls `change` with each held message, claimed or not.
    pub(crate) fn change_held(&mut self, change: impl FnMut(&mut U)) {
        self.unexpected.change(change);
    }

    /// Returns the held messages that are not claimed, in arrival order.
    pub(crate) fn unexpected(&self) -> impl Iterator<Item = (HeldMessage, Envelope, &U)> {
        self.unexpected.iter()
    }

    /// Returns the number of held messages, without the claimed ones.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }
}

impl<R, U> Default for Matching<R, U> {
    fn default() -> Self {
        Self::new()
    }
}
