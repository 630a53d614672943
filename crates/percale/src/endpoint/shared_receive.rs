//! Shared receive contexts: receives that messages to any of several endpoints can take (libfabric's `fi_srx_context`).
//!
//! The usual matching rules apply: a message takes the oldest receive that fits, whichever endpoint the message is for,
//! and a receive takes the message that arrived first. The endpoint that received the message reports it to its own
//! queue and counters. Endpoints of one connection can share receives as well. A receive that an endpoint posts for
//! itself takes precedence over shared ones.
//!
//! A receive belongs to the context, not to the endpoint that received the matching message. If that endpoint closes
//! before the message is complete, the receive ends with [`ErrorCode::Canceled`]. This is reported in the queue to
//! which the endpoint reports receives. If that is the endpoint's own queue, which is closed with it, another endpoint
//! of the context reports the error. If there is no other endpoint, the next one that joins reports it. The report then
//! does not contain the address of the sender. Receives that wait for a message are not affected: an endpoint that joins
//! later can take them. They end with [`ErrorCode::Closed`] when the last handle of the context and all its endpoints
//! are gone.
//!
//! A shared context makes no progress; its endpoints do. Posting a receive takes one lock for a short time, and so does
//! each message to one of the context's endpoints. Endpoints without a shared context never take this lock.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use super::pool::Pool;
use super::safe::{OperationError, Received};
use super::work::{OpFlags, PostError, ReceiveWork};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry, OperationResult};
use crate::deferred_actions;
use crate::domain::Domain;
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::volatile::Segments;
use crate::system::forked::Process;
use crate::types::PeerAddress;

/// A shared receive context. Clones are handles to the same context. The [module](self) describes how messages are
/// matched.
#[derive(Clone)]
pub struct SharedReceive {
    pub(super) pool: Arc<Pool>,
}

crate::short_debug!(SharedReceive, "SharedReceive");

impl Domain {
    /// Creates a shared receive context.
    #[must_use]
    pub fn shared_receive(&self) -> SharedReceive {
        SharedReceive::new()
    }
}

impl SharedReceive {
    pub(super) fn new() -> Self {
        Self { pool: Pool::new(super::builder::MULTI_MINIMUM) }
    }

    /// Posts a receive of an untagged message from any sender.
    ///
    /// # Errors
    /// If the receive cannot be posted.
    pub fn recv(&self, buffer: impl Into<Buffer>) -> Result<SharedReceiving, OperationError> {
        self.start(buffer.into(), PeerAddress::UNSPECIFIED, None)
    }

    /// Posts a receive of a message with a tag that equals `tag` in all bits except those set in `ignore`.
    ///
    /// # Errors
    /// If the receive cannot be posted.
    pub fn tagged_recv(
        &self,
        tag: u64,
        ignore: u64,
        buffer: impl Into<Buffer>,
    ) -> Result<SharedReceiving, OperationError> {
        self.start(buffer.into(), PeerAddress::UNSPECIFIED, Some((tag, ignore)))
    }

    /// Like [`recv`](Self::recv), or, with a tag and a mask, like [`tagged_recv`](Self::tagged_recv), but only from
    /// this peer of the endpoints' vector.
    ///
    /// # Errors
    /// If the receive cannot be posted.
    pub fn recv_from(
        &self,
        from: PeerAddress,
        tag: Option<(u64, u64)>,
        buffer: impl Into<Buffer>,
    ) -> Result<SharedReceiving, OperationError> {
        self.start(buffer.into(), from, tag)
    }

    fn start(
        &self,
        mut buffer: Buffer,
        from: PeerAddress,
        tag: Option<(u64, u64)>,
    ) -> Result<SharedReceiving, OperationError> {
        let Some(segment) = buffer.segment_for_receive() else {
            return Err(OperationError::new(PostError::ReadOnly, Some(buffer)));
        };
        let receive_report = ReceiveReport::new();
        let (pool, process) = (Arc::downgrade(&self.pool), self.pool.process());
        let receiving = SharedReceiving { pool, process, ticket: receive_report.alias() };
        let work = ReceiveWork { from, segments: Segments::one(segment), tag, context: 0, flags: OpFlags::empty() };
        let mut owned = Some((receive_report, buffer));
        self.pool.post(&work, &mut owned).map(|()| receiving).map_err(|error| {
            let buffer = owned.map(|(_, buffer)| buffer);
            OperationError::new(error, buffer)
        })
    }

    /// Cancels the receive that [`post_recv`](Self::post_recv) posted with this context, if it has no message yet.
    /// Returns whether there was such a receive. One of the endpoints reports its end with [`ErrorCode::Canceled`].
    pub fn cancel(&self, context: u64) -> bool {
        self.pool.cancel(context)
    }

    /// Sets the number of bytes left below which a multi-receive buffer is released (FI_OPT_MIN_MULTI_RECV). Default:
    /// 64.
    pub fn set_multi_receive_minimum(&self, bytes: usize) {
        self.pool.set_multi_minimum(bytes);
    }
}

/// The state that the handle and the receiving endpoint share.
#[derive(Debug, Default)]
struct SharedCompletion {
    state: Mutex<SharedReceiveState>,
}

#[derive(Debug, Default)]
struct SharedReceiveState {
    result: Option<Result<Received, OperationError>>,
    /// Whether the handle has returned the result or was dropped.
    taken: bool,
    waker: Option<Waker>,
}

impl SharedCompletion {
    fn lock(&self) -> MutexGuard<'_, SharedReceiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports how a receive ended. If it is dropped without a report, the receive ends with [`ErrorCode::Closed`].
#[derive(Debug)]
pub(crate) struct ReceiveReport {
    ticket: Arc<SharedCompletion>,
    is_completed: bool,
}

impl ReceiveReport {
    fn new() -> Self {
        Self { ticket: Arc::default(), is_completed: false }
    }

    fn alias(&self) -> Arc<SharedCompletion> {
        Arc::clone(&self.ticket)
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.ticket, &other.ticket)
    }

    /// Returns whether the handle was dropped. The handle marks itself before it looks for the receive in the pool, and
    /// a receive is returned to the pool under the pool's lock, so one of the two sees the other.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.ticket.lock().taken
    }

    /// Reports how the receive ended. Returns the waker to call.
    pub(crate) fn complete(mut self, result: OperationResult, buffer: Option<Buffer>) -> Option<Waker> {
        self.is_completed = true;
        let result = match (result, buffer) {
            (Ok(entry), Some(buffer)) => Ok(Received::new(buffer, &entry)),
            (Ok(entry), None) => Ok(Received::new(Buffer::from(Vec::new()), &entry)),
            (Err(error), buffer) => Err(OperationError::new(error, buffer)),
        };
        self.settle(result)
    }

    /// Ends a receive that no endpoint can take any more.
    pub(crate) fn close(self, buffer: Buffer) {
        let error = ended(ErrorCode::Closed, "the context and all its endpoints were closed");
        if let Some(waker) = self.complete(Err(Box::new(error)), Some(buffer)) {
            deferred_actions::wake(waker);
        }
    }

    fn settle(&self, result: Result<Received, OperationError>) -> Option<Waker> {
        let mut state = self.ticket.lock();
        state.result = Some(result);
        state.waker.take()
    }
}

impl Drop for ReceiveReport {
    fn drop(&mut self) {
        if !self.is_completed {
            let error = ended(
                ErrorCode::Closed,
                "the endpoint that took the receive, or every endpoint of the context, was closed",
            );
            if let Some(waker) = self.settle(Err(OperationError::new(error, None))) {
                deferred_actions::wake(waker);
            }
        }
    }
}

fn ended(code: ErrorCode, why: &str) -> ErrorEntry {
    let entry = Entry { flags: CompletionFlags::RECEIVE, ..Entry::default() };
    ErrorEntry::new(entry, code).with_text(why.to_owned())
}

/// A shared receive in progress. It is a future for any runtime. The context's endpoints have to make progress
/// meanwhile. Dropping it cancels the receive, unless a message was already matched; in that case the message is lost.
#[must_use = "dropping it cancels the receive if possible"]
pub struct SharedReceiving {
    /// The context, which the handle does not keep alive: when it and its endpoints are gone, the receive ends.
    pool: Weak<Pool>,
    process: Option<Process>,
    ticket: Arc<SharedCompletion>,
}

crate::short_debug!(SharedReceiving, "SharedReceiving");

impl SharedReceiving {
    /// Returns whether this is the process of the receive, and not a forked child of it.
    fn is_here(&self) -> bool {
        self.process.is_none_or(|process| process.is_here())
    }

    /// Returns whether the receive has ended.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        if !self.is_here() {
            return true; // Returns immediately, because the receive is refused.
        }
        let state = self.ticket.lock();
        state.taken || state.result.is_some()
    }

    /// Returns the result if the receive has ended. Otherwise returns `None`, and cancels the receive because its
    /// handle is dropped.
    #[must_use]
    pub fn take(self) -> Option<Result<Received, OperationError>> {
        self.take_end()
    }

    /// Cancels the receive, which then ends with [`ErrorCode::Canceled`], unless a message was matched first. Returns
    /// whether it was canceled.
    pub fn cancel(&self) -> bool {
        if !self.is_here() {
            return false;
        }
        let ours = ReceiveReport { ticket: Arc::clone(&self.ticket), is_completed: true };
        let withdrawn = self.pool.upgrade().and_then(|pool| pool.withdraw(&ours));
        let Some((receive_report, buffer)) = withdrawn else { return false };
        let error = ended(ErrorCode::Canceled, "cancelled before a message arrived");
        if let Some(waker) = receive_report.complete(Err(Box::new(error)), Some(buffer)) {
            deferred_actions::wake(waker);
        }
        true
    }

    fn take_end(&self) -> Option<Result<Received, OperationError>> {
        if !self.is_here() {
            return Some(Err(OperationError::new(PostError::Forked, None)));
        }
        let mut state = self.ticket.lock();
        if state.taken {
            return Some(Err(OperationError::taken()));
        }
        let end = state.result.take();
        state.taken = end.is_some();
        end
    }
}

impl Future for SharedReceiving {
    type Output = Result<Received, OperationError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.is_here() {
            return Poll::Ready(Err(OperationError::new(PostError::Forked, None)));
        }
        let mut fresh = None;
        let (end, replaced) = loop {
            let mut state = self.ticket.lock();
            if state.taken {
                break (Some(Err(OperationError::taken())), None);
            }
            if let Some(result) = state.result.take() {
                state.taken = true;
                break (Some(result), state.waker.take());
            }
            if state.waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
                break (None, None);
            }
            if let Some(fresh) = fresh.take() {
                break (None, state.waker.replace(fresh));
            }
            drop(state);
            fresh = Some(context.waker().clone());
        };
        deferred_actions::discard((fresh, replaced));
        end.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for SharedReceiving {
    fn drop(&mut self) {
        if !self.is_here() {
            return; // The receive belongs to the parent.
        }
        let mut state = self.ticket.lock();
        let (taken, waker) = (std::mem::replace(&mut state.taken, true), state.waker.take());
        drop(state);
        deferred_actions::discard(waker);
        if !taken {
            self.cancel();
        }
    }
}
