//! The raw API: operations on memory for which the caller is responsible, with results in completion queues.
//!
//! Providers for other interfaces call this API. It adds no cost to the engine: it owns no buffers, does not allocate,
//! and returns errors of posting immediately.

#![expect(
    unsafe_code,
    reason = "the callers fulfil the safety contracts; injected memory is borrowed until the call returns"
)]

use super::Endpoint;
use super::engine::Engine;
use super::engine::types::{Notify, Side};
use super::ownership::Ownership;
use super::ownership::reach::EngineCall;
use super::shared_receive::SharedReceive;
use super::work::{OpFlags, PostError, ReceiveWork, SendWork};
use crate::completion::entry::{Entry, ErrorEntry};
use crate::completion::ring::ErrorAvailable;
use crate::endpoint::operation::RawOperation;
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _};
use crate::types::PeerAddress;

impl SharedReceive {
    /// Posts a receive for the endpoints of the context (fi_recvmsg(3); fi_trecvmsg(3) of a shared receive context).
    /// The endpoint that receives the message reports the completion.
    ///
    /// # Errors
    /// See [`PostError`]. After an error, the operation was not started. Peeking, claiming and discarding are not
    /// supported.
    ///
    /// # Safety
    /// The segments' memory stays allocated, and is neither read nor written, until the operation has completed.
    pub unsafe fn post_recv(&self, work: &ReceiveWork) -> Result<(), PostError> {
        self.pool.post(work, &mut None)
    }
}

impl<A: Ownership> Endpoint<A> {
    /// Posts a send (fi_sendmsg(3), fi_tsendmsg(3)).
    ///
    /// # Errors
    /// See [`PostError`]. After an error, the operation was not started.
    ///
    /// # Safety
    /// The segments' memory stays allocated and unwritten until the operation has completed; with [`OpFlags::INJECT`]
    /// until the call returns.
    #[inline]
    pub unsafe fn post_send(&self, work: &SendWork) -> Result<(), PostError> {
        self.access.with(|engine| engine.post_raw_send(work))
    }

    /// Like [`post_send`](Self::post_send), but for a message in one segment. This is the shortest path if the message
    /// is short and can be sent immediately.
    ///
    /// # Errors
    /// Those of [`post_send`](Self::post_send).
    ///
    /// # Safety
    /// As for [`post_send`](Self::post_send).
    #[inline(always)]
    pub unsafe fn post_send_one(
        &self,
        peer: PeerAddress,
        segment: Segment,
        tag: Option<u64>,
        data: Option<u64>,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        self.access.run(SendOne { peer, segment, tag, data, context, flags })
    }

    /// Posts a receive (fi_recvmsg(3), fi_trecvmsg(3)), or peeks, claims or discards a message, depending on the flags.
    ///
    /// # Errors
    /// See [`PostError`]. After an error, the operation was not started.
    ///
    /// # Safety
    /// The segments' memory stays allocated, and is neither read nor written, until the operation has completed.
    #[inline]
    pub unsafe fn post_recv(&self, work: &ReceiveWork) -> Result<(), PostError> {
        self.access.with(|engine| engine.post_raw_receive(work))
    }

    /// Like [`post_recv`](Self::post_recv), but for a receive into one segment. This is the shortest path if no
    /// matching message has arrived yet.
    ///
    /// # Errors
    /// Those of [`post_recv`](Self::post_recv).
    ///
    /// # Safety
    /// As for [`post_recv`](Self::post_recv).
    #[inline(always)]
    pub unsafe fn post_recv_one(
        &self,
        from: PeerAddress,
        segment: Segment,
        tag: Option<(u64, u64)>,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        self.access.run(ReceiveOne { from, segment, tag, context, flags })
    }

    /// Sends up to [`INJECT_LIMIT`](super::work::INJECT_LIMIT) bytes that may be reused when the call returns
    /// (fi_inject(3)). There is no completion unless the send fails.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn inject(&self, peer: PeerAddress, bytes: &[u8]) -> Result<(), PostError> {
        self.inject_with(peer, bytes, None, None)
    }

    /// Like [`inject`](Self::inject), but tagged (fi_tinject(3)).
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn tagged_inject(&self, peer: PeerAddress, tag: u64, bytes: &[u8]) -> Result<(), PostError> {
        self.inject_with(peer, bytes, Some(tag), None)
    }

    /// Like [`inject`](Self::inject), but with a tag, remote completion data, or both (fi_injectdata(3),
    /// fi_tinjectdata(3)).
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn inject_with(
        &self,
        peer: PeerAddress,
        bytes: &[u8],
        tag: Option<u64>,
        data: Option<u64>,
    ) -> Result<(), PostError> {
        // SAFETY: the bytes outlive the call, nothing writes them meanwhile, and injected memory is not read after the
        // call.
        let segment = unsafe { Segment::new(bytes.as_ptr().cast_mut(), bytes.len()) };
        // SAFETY: as above.
        unsafe { self.post_send_one(peer, segment, tag, data, 0, OpFlags::INJECT) }
    }

    /// Cancels the first operation that was posted with this context and can still be canceled (fi_cancel(3)): a
    /// receive that has no message yet, another operation that was not yet passed to its connection, or an operation
    /// that waits for a counter or a variable. Returns whether there was such an operation. It completes with
    /// [`ErrorCode::Canceled`](crate::completion::entry::ErrorCode::Canceled).
    pub fn cancel(&self, context: u64) -> bool {
        self.access.with(|engine| engine.core.cancel(context, false))
    }

    /// Reads results from the endpoint's own completion queue (fi_cq_read(3)) and returns their number. If there are
    /// none, it makes progress first; if there are some, it makes progress only occasionally. A caller that repeatedly
    /// finds no results occasionally yields its processor to other threads, and more often while other threads use it,
    /// because the message may come from a process that needs this processor.
    ///
    /// # Errors
    /// If the next result is an error. [`read_error`](Self::read_error) takes it.
    #[inline]
    pub fn poll(&self, entries: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        if !self.access.is_here() {
            return Ok(0);
        }
        self.access.run_here(Poll(entries))
    }

    /// Polls like [`poll`](Self::poll), for an application that waits by polling in a loop and does other work between
    /// two polls. If there is no result and a receive is posted, the call may watch shared memory for up to 1.5 µs
    /// before it returns, so that a message that arrives is received immediately. The endpoint adapts to the results:
    /// it stops watching if the application computes between two polls. A shared endpoint stays locked during the call.
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll).
    #[inline]
    pub fn poll_lingering(&self, entries: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        if !self.access.is_here() {
            return Ok(0);
        }
        self.access.run_here(PollLingering(entries))
    }

    /// Takes the next result of the endpoint's own completion queue if it is an error (fi_cq_readerr(3)).
    pub fn read_error(&self) -> Option<ErrorEntry> {
        self.access.with(|engine| engine.core.reporting.read_error())
    }

    /// Makes progress. Returns whether anything happened. With [`Progress::Manual`](crate::domain::Progress::Manual),
    /// an endpoint makes progress in calls of the application: of this function, of [`poll`](Self::poll), of functions
    /// that wait for an operation or check whether it is ready, and, if it is shared, of functions that read or wait
    /// for the queues and counters to which it reports. Only deferred work starts a thread that makes progress.
    #[inline]
    pub fn progress(&self) -> bool {
        self.access.with(Engine::progress)
    }
}

struct SendOne {
    peer: PeerAddress,
    segment: Segment,
    tag: Option<u64>,
    data: Option<u64>,
    context: u64,
    flags: OpFlags,
}

impl EngineCall for SendOne {
    type Result = Result<(), PostError>;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) -> Result<(), PostError> {
        let Self { peer, segment, tag, data, context, flags } = self;
        match engine.send_in_place(peer, segment, tag, data, context, flags) {
            Some(result) => result,
            None => engine.post_other_send(peer, segment, tag, data, context, flags),
        }
    }
}

struct ReceiveOne {
    from: PeerAddress,
    segment: Segment,
    tag: Option<(u64, u64)>,
    context: u64,
    flags: OpFlags,
}

impl EngineCall for ReceiveOne {
    type Result = Result<(), PostError>;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) -> Result<(), PostError> {
        let Self { from, segment, tag, context, flags } = self;
        if engine.receive_in_place(from, segment, tag, context, flags) {
            return Ok(());
        }
        engine.post_other_receive(from, segment, tag, context, flags)
    }
}

struct Poll<'a>(&'a mut [Entry]);

impl EngineCall for Poll<'_> {
    type Result = Result<usize, ErrorAvailable>;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) -> Result<usize, ErrorAvailable> {
        engine.poll(self.0)
    }
}

struct PollLingering<'a>(&'a mut [Entry]);

impl EngineCall for PollLingering<'_> {
    type Result = Result<usize, ErrorAvailable>;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) -> Result<usize, ErrorAvailable> {
        engine.poll_lingering(self.0)
    }
}

impl Engine {
    /// Posts a send that reports to a completion queue.
    #[inline(never)]
    fn post_raw_send(&mut self, work: &SendWork) -> Result<(), PostError> {
        let &SendWork { peer, tag, data, context, flags, .. } = work;
        match work.segments.only().and_then(|only| self.send_in_place(peer, only, tag, data, context, flags)) {
            Some(result) => result,
            None => self.post_any_send(work),
        }
    }

    // The arguments are separate, so that callers need not build a `SendWork`.
    #[inline(never)]
    fn post_other_send(
        &mut self,
        peer: PeerAddress,
        segment: Segment,
        tag: Option<u64>,
        data: Option<u64>,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        self.post_any_send(&SendWork { peer, segments: Segments::one(segment), tag, data, context, flags })
    }

    #[inline(never)]
    fn post_any_send(&mut self, work: &SendWork) -> Result<(), PostError> {
        let notify = Notify::from_flags(work.flags);
        self.core.reserve(Side::Transmit, notify).map_err(|_| PostError::Again)?;
        let result = self.post_send(work, notify);
        if result.is_err() {
            self.core.unreserve(Side::Transmit, notify);
        }
        self.core.operations.note_events();
        result
    }

    /// Posts a receive that reports to a completion queue.
    #[inline(never)]
    fn post_raw_receive(&mut self, work: &ReceiveWork) -> Result<(), PostError> {
        let &ReceiveWork { from, tag, context, flags, .. } = work;
        match work.segments.only() {
            Some(only) if self.receive_in_place(from, only, tag, context, flags) => Ok(()),
            _ => self.post_any_receive(work),
        }
    }

    // The arguments are separate, as in `post_other_send`.
    #[inline(never)]
    fn post_other_receive(
        &mut self,
        from: PeerAddress,
        segment: Segment,
        tag: Option<(u64, u64)>,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        self.post_any_receive(&ReceiveWork { from, segments: Segments::one(segment), tag, context, flags })
    }

    #[inline(never)]
    fn post_any_receive(&mut self, work: &ReceiveWork) -> Result<(), PostError> {
        let mut notify = Notify::from_flags(work.flags);
        let mut located = false;
        if work.flags.intersects(OpFlags::MULTI_RECEIVE | OpFlags::DEVICE) {
            located = work.flags.contains(OpFlags::DEVICE);
            if work.flags.contains(OpFlags::MULTI_RECEIVE) && notify == Notify::Queue {
                notify = Notify::Event;
            }
        }
        self.core.reserve(Side::Receive, notify).map_err(|_| PostError::Again)?;
        let result = match located {
            false => self.post_receive(work, notify),
            true => self.post_located(RawOperation::Receive(*work), notify),
        };
        if result.is_err() {
            self.core.unreserve(Side::Receive, notify);
        }
        self.core.operations.note_events();
        result
    }
}
