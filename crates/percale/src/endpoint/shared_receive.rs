//! Shared receive contexts: receives that are posted once and taken by messages to any of several endpoints (libfabric's
//! `fi_srx_context`).
//!
//! Messages keep their rules: the oldest receive that fits takes the message, whichever endpoint it is for, and a receive takes the
//! message that came first. The endpoint that received the message reports it, to its own queue and counters. Endpoints of one
//! connection can share receives as well. A receive that an endpoint posts for itself goes before shared ones.
//!
//! A receive belongs to the context, not to the endpoint that received the matching message. If that endpoint closes before the message is
//! complete, the receive ends with [`ErrorCode::Canceled`]: in the queue that the endpoint reports receives to or, if that is the
//! endpoint's own queue, which is closed with it, in the queue of another endpoint of the context (of the next one that joins, if
//! there is none), without the number of the sender. Receives that wait for a message are not affected.
//!
//! A shared context makes no progress: its endpoints do. Posting takes one short lock; so does each message of its endpoints.
//! Endpoints without a shared context do not use it at all.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::pool::Pool;
use super::safe::{OperationError, Received};
use super::work::{OpFlags, PostError, ReceiveWork};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::domain::Domain;
use crate::errands;
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::volatile::Segments;
use crate::types::PeerAddress;

/// A shared receive context. A handle, cheap to clone; see the [module](self).
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

    /// A receive of an untagged message, from any sender.
    ///
    /// # Errors
    /// If it cannot be posted.
    pub fn recv(&self, buffer: impl Into<Buffer>) -> Result<SharedReceiving, OperationError> {
        self.start(buffer.into(), PeerAddress::UNSPECIFIED, None)
    }

    /// A receive of a message with a tag that equals `tag` in all bits except those set in `ignore`.
    ///
    /// # Errors
    /// If it cannot be posted.
    pub fn tagged_recv(
        &self,
        tag: u64,
        ignore: u64,
        buffer: impl Into<Buffer>,
    ) -> Result<SharedReceiving, OperationError> {
        self.start(buffer.into(), PeerAddress::UNSPECIFIED, Some((tag, ignore)))
    }

    /// Like [`recv`](Self::recv) or, with tag and mask, [`tagged_recv`](Self::tagged_recv), but from this peer of the endpoints'
    /// vector only.
    ///
    /// # Errors
    /// If it cannot be posted.
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
            return Err(OperationError { cause: PostError::ReadOnly.into(), buffer: Some(buffer) });
        };
        let owed = Owed::new();
        let receiving = SharedReceiving { pool: Arc::clone(&self.pool), ticket: owed.alias() };
        let work = ReceiveWork { from, segments: Segments::one(segment), tag, context: 0, flags: OpFlags::empty() };
        let mut owned = Some((owed, buffer));
        self.pool.post(&work, &mut owned).map(|()| receiving).map_err(|error| {
            let buffer = owned.map(|(_, buffer)| buffer);
            OperationError { cause: error.into(), buffer }
        })
    }

    /// Cancels the receive posted with this context by [`post_recv`](Self::post_recv), if it has no message yet: returns whether
    /// there was one. One of the endpoints reports it with [`ErrorCode::Canceled`].
    pub fn cancel(&self, context: u64) -> bool {
        self.pool.cancel(context)
    }

    /// A multi-receive buffer with less than this many bytes left is released (FI_OPT_MIN_MULTI_RECV). Default 64.
    pub fn set_multi_receive_minimum(&self, bytes: usize) {
        self.pool.set_multi_minimum(bytes);
    }
}

/// The state that the handle and the receiving endpoint share.
#[derive(Debug, Default)]
struct Ticket {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    result: Option<Result<Received, OperationError>>,
    /// Whether the handle has returned the result, or is gone.
    taken: bool,
    waker: Option<Waker>,
}

impl Ticket {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The obligation to report how a receive ended. Dropped without a report, it ends the receive with [`ErrorCode::Closed`].
#[derive(Debug)]
pub(crate) struct Owed {
    ticket: Arc<Ticket>,
    paid: bool,
}

impl Owed {
    fn new() -> Self {
        Self { ticket: Arc::default(), paid: false }
    }

    fn alias(&self) -> Arc<Ticket> {
        Arc::clone(&self.ticket)
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.ticket, &other.ticket)
    }

    /// Whether the handle is gone. The handle marks itself before it looks for the receive in the pool, and a receive is given back
    /// to the pool under the pool's lock, so one of the two sees the other.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.ticket.lock().taken
    }

    /// Reports how the receive ended; returns the waker to call.
    pub(crate) fn pay(mut self, result: Result<Entry, ErrorEntry>, buffer: Option<Buffer>) -> Option<Waker> {
        self.paid = true;
        let result = match (result, buffer) {
            (Ok(entry), Some(buffer)) => Ok(Received::new(buffer, &entry)),
            (Ok(entry), None) => Ok(Received::new(Buffer::from(Vec::new()), &entry)),
            (Err(error), buffer) => Err(OperationError { cause: error.into(), buffer }),
        };
        self.settle(result)
    }

    fn settle(&self, result: Result<Received, OperationError>) -> Option<Waker> {
        let mut state = self.ticket.lock();
        state.result = Some(result);
        state.waker.take()
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if !self.paid {
            let error = ended(ErrorCode::Closed, "its endpoint, or all of them, were closed");
            if let Some(waker) = self.settle(Err(OperationError { cause: error.into(), buffer: None })) {
                errands::wake(waker);
            }
        }
    }
}

fn ended(code: ErrorCode, why: &str) -> ErrorEntry {
    let entry = Entry { flags: CompletionFlags::RECEIVE, ..Entry::default() };
    ErrorEntry::new(entry, code).with_text(why.to_owned())
}

/// A shared receive under way; a future for any runtime. The context's endpoints have to make progress meanwhile. Dropping it
/// cancels the receive, unless a message was matched: then that message is lost.
#[must_use = "dropping it cancels the receive if it can"]
pub struct SharedReceiving {
    pool: Arc<Pool>,
    ticket: Arc<Ticket>,
}

crate::short_debug!(SharedReceiving, "SharedReceiving");

impl SharedReceiving {
    /// Whether the receive has ended.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        if !self.pool.is_here() {
            return true; // It is refused.
        }
        let state = self.ticket.lock();
        state.taken || state.result.is_some()
    }

    /// The result, once the receive has ended.
    #[must_use]
    pub fn take(self) -> Option<Result<Received, OperationError>> {
        self.take_end()
    }

    /// Cancels the receive, which then ends with [`ErrorCode::Canceled`], unless a message came first. Returns whether it was
    /// canceled.
    pub fn cancel(&self) -> bool {
        if !self.pool.is_here() {
            return false;
        }
        let ours = Owed { ticket: Arc::clone(&self.ticket), paid: true };
        let Some((owed, buffer)) = self.pool.withdraw(&ours) else { return false };
        let error = ended(ErrorCode::Canceled, "cancelled before a message came");
        if let Some(waker) = owed.pay(Err(error), Some(buffer)) {
            errands::wake(waker);
        }
        true
    }

    fn take_end(&self) -> Option<Result<Received, OperationError>> {
        if !self.pool.is_here() {
            return Some(Err(OperationError { cause: PostError::Forked.into(), buffer: None }));
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
        if !self.pool.is_here() {
            return Poll::Ready(Err(OperationError { cause: PostError::Forked.into(), buffer: None }));
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
        errands::discard((fresh, replaced));
        end.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for SharedReceiving {
    fn drop(&mut self) {
        if !self.pool.is_here() {
            return; // The receive is the parent's.
        }
        let mut state = self.ticket.lock();
        let (taken, waker) = (std::mem::replace(&mut state.taken, true), state.waker.take());
        drop(state);
        errands::discard(waker);
        if !taken {
            self.cancel();
        }
    }
}
