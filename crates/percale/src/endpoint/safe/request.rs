//! Requests: operations that are not posted yet.

use std::mem::ManuallyDrop;

use super::many::ReceivingMany;
use super::operation::{InProgress, Operation};
use super::when::StartCondition;
use super::{OperationError, Received};
use crate::completion::counter::Counter;
use crate::conditions::variable::Variable;
use crate::endpoint::Endpoint;
use crate::endpoint::engine::Engine;
use crate::endpoint::engine::types::Notify;
use crate::endpoint::operation::RawOperation as Work;
use crate::endpoint::operations::OperationId;
use crate::endpoint::ownership::Ownership;
use crate::endpoint::ownership::reach::EngineCall;
use crate::endpoint::work::{OpFlags, PostError, ReceiveWork, SendWork};
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::volatile::{Segment, Segments};
use crate::types::PeerAddress;

/// A send that is not posted yet.
#[must_use = "nothing is sent before start, wait or await"]
pub struct SendRequest<'e, A: Ownership> {
    pub(super) endpoint: &'e Endpoint<A>,
    pub(super) buffer: Buffer,
    pub(super) peer: PeerAddress,
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
    pub(super) flags: OpFlags,
    pub(super) when: Option<Box<StartCondition>>,
}

crate::short_debug!(for [A: Ownership] SendRequest<'_, A>, "SendRequest");

/// A receive that is not posted yet.
#[must_use = "nothing is received before start, wait or await"]
pub struct ReceiveRequest<'e, A: Ownership> {
    pub(super) endpoint: &'e Endpoint<A>,
    pub(super) buffer: Buffer,
    pub(super) from: PeerAddress,
    pub(super) tag: Option<(u64, u64)>,
    pub(super) when: Option<Box<StartCondition>>,
}

crate::short_debug!(for [A: Ownership] ReceiveRequest<'_, A>, "ReceiveRequest");

impl<A: Ownership> Endpoint<A> {
    #[inline(always)]
    /// Creates a send of a message.
    pub fn send(&self, peer: PeerAddress, buffer: impl Into<Buffer>) -> SendRequest<'_, A> {
        let buffer = buffer.into();
        SendRequest { endpoint: self, buffer, peer, tag: None, data: None, flags: OpFlags::empty(), when: None }
    }

    #[inline(always)]
    /// Creates a send of a tagged message.
    pub fn tagged_send(&self, peer: PeerAddress, tag: u64, buffer: impl Into<Buffer>) -> SendRequest<'_, A> {
        let mut request = self.send(peer, buffer);
        request.tag = Some(tag);
        request
    }

    #[inline(always)]
    /// Creates a receive of an untagged message, from any sender unless [`from`](ReceiveRequest::from) specifies one.
    pub fn recv(&self, buffer: impl Into<Buffer>) -> ReceiveRequest<'_, A> {
        ReceiveRequest { endpoint: self, buffer: buffer.into(), from: PeerAddress::UNSPECIFIED, tag: None, when: None }
    }

    #[inline(always)]
    /// Creates a receive of a message with a tag that equals `tag` in all bits except those set in `ignore`.
    pub fn tagged_recv(&self, tag: u64, ignore: u64, buffer: impl Into<Buffer>) -> ReceiveRequest<'_, A> {
        let mut request = self.recv(buffer);
        request.tag = Some((tag, ignore));
        request
    }
}

/// Generates the methods that make a request wait for a counter or a variable before it begins.
macro_rules! begins_later {
    () => {
        /// Delays the operation until `counter` has counted `threshold` successes (FI_TRIGGER_THRESHOLD); see
        /// [`trigger`](crate::trigger). Before that nothing is read or written, and dropping the operation cancels it.
        pub fn when(mut self, counter: &Counter, threshold: u64) -> Self {
            self.when = Some(StartCondition::once(self.when.take(), counter, threshold));
            self
        }

        /// Delays the operation until `variable` is written, by a device's store or by [`Variable::write`]
        /// (FI_TRIGGER_XPU), and all earlier operations that wait for variables have begun; see
        /// [`post_when_written`](Endpoint::post_when_written). The operation keeps the variable. Dropping the operation
        /// cancels it.
        pub fn when_written(mut self, variable: &Variable) -> Self {
            self.when = Some(StartCondition::written(self.when.take(), variable));
            self
        }

        /// Makes the operation deferred work. It waits for successes *and errors* of its counter
        /// ([`when`](Self::when)), and `counter` counts its end in place of the endpoint's counters. If it is canceled
        /// before it has begun, nothing is counted. From now on a shared endpoint makes progress without calls by the
        /// application.
        pub fn counting(mut self, counter: &Counter) -> Self {
            self.when = Some(StartCondition::counting(self.when.take(), counter));
            self
        }
    };
}
pub(super) use begins_later;

impl<'e, A: Ownership> SendRequest<'e, A> {
    /// Sets 8 bytes that the receiver's completion carries.
    pub fn data(mut self, data: u64) -> Self {
        self.data = Some(data);
        self
    }

    /// Makes the send complete only when the message is in the receiver's buffer.
    pub fn delivered(mut self) -> Self {
        self.flags |= OpFlags::DELIVERY_COMPLETE;
        self
    }

    /// Makes the operation start only after all earlier operations to this peer have completed.
    pub fn fenced(mut self) -> Self {
        self.flags |= OpFlags::FENCE;
        self
    }

    begins_later!();

    /// Posts the send.
    ///
    /// # Errors
    /// If the send cannot be posted.
    #[inline(always)]
    pub fn start(self) -> Result<Operation<A::Handle<'e>, Buffer>, OperationError> {
        let Self { endpoint, buffer, peer, tag, data, flags, when } = self;
        // Values without destructors stay in registers. Others would be kept in memory, for a call that panics.
        let (buffer, when) = (ManuallyDrop::new(buffer), ManuallyDrop::new(when));
        if when.is_none() {
            let segment = buffer.segment_for_send();
            if endpoint.access.run(SendAtOnce { peer, segment, tag, data, flags }) {
                return Ok(Operation::ended(endpoint.access.process(), ManuallyDrop::into_inner(buffer)));
            }
        }
        let (buffer, when) = (ManuallyDrop::into_inner(buffer), ManuallyDrop::into_inner(when));
        Self { endpoint, buffer, peer, tag, data, flags, when }.start_other()
    }

    /// Posts a send that cannot leave at once.
    #[inline(never)]
    fn start_other(self) -> Result<Operation<A::Handle<'e>, Buffer>, OperationError> {
        let Self { endpoint, buffer, peer, tag, data, flags, when } = self;
        let id = match when {
            Some(when) => when.start(&endpoint.access, buffer, |context, buffer| {
                let segments = Segments::one(buffer.segment_for_send());
                Work::Send(SendWork { peer, segments, tag, data, context, flags })
            })?,
            None => endpoint.access.with(|engine| {
                let segments = Segments::one(buffer.segment_for_send());
                let id = engine.core.operations.start(buffer);
                let work = SendWork { peer, segments, tag, data, context: id.to_u64(), flags };
                posted(engine, id, |engine| engine.post_send_by_call(&work, Notify::Operation))
            })?,
        };
        Ok(Operation::in_progress(endpoint.access.handle(), id, ()))
    }

    /// Posts the send and waits for it.
    ///
    /// # Errors
    /// If the send cannot be posted, or fails.
    #[inline(always)]
    pub fn wait(self) -> Result<Buffer, OperationError> {
        self.start()?.wait()
    }
}

impl<'e, A: Ownership> ReceiveRequest<'e, A> {
    /// Restricts the receive to messages from this peer.
    pub fn from(mut self, peer: PeerAddress) -> Self {
        self.from = peer;
        self
    }

    begins_later!();

    /// Posts the receive.
    ///
    /// # Errors
    /// If the receive cannot be posted.
    #[inline(always)]
    pub fn start(self) -> Result<Operation<A::Handle<'e>, Received>, OperationError> {
        let endpoint = self.endpoint;
        let id = self.post(OpFlags::empty())?;
        Ok(Operation::in_progress(endpoint.access.handle(), id, ()))
    }

    /// Posts the receive and waits for a message.
    ///
    /// # Errors
    /// If the receive cannot be posted, or fails.
    #[inline(always)]
    pub fn wait(self) -> Result<Received, OperationError> {
        self.start()?.wait()
    }

    /// Posts the buffer for many messages. Each message takes the next part of the buffer, until less than the
    /// endpoint's minimum is free.
    ///
    /// # Errors
    /// If the receive cannot be posted.
    pub fn many(self) -> Result<ReceivingMany<A::Handle<'e>>, OperationError> {
        let base = self.buffer.segment_for_send().as_ptr().addr() as u64;
        let endpoint = self.endpoint;
        let operation = InProgress::new(endpoint.access.handle(), self.post(OpFlags::MULTI_RECEIVE)?);
        Ok(ReceivingMany { operation, base, ended: false })
    }

    #[inline(always)]
    fn post(self, flags: OpFlags) -> Result<OperationId, OperationError> {
        let Self { endpoint, buffer, from, tag, when } = self;
        // As in `SendRequest::start`.
        let (mut buffer, when) = (ManuallyDrop::new(buffer), ManuallyDrop::new(when));
        if when.is_none()
            && endpoint.access.is_here()
            && let Some(segment) = buffer.segment_for_receive()
        {
            return endpoint.access.run_here(ReceiveOperation { from, segment, tag, flags, buffer });
        }
        let (buffer, when) = (ManuallyDrop::into_inner(buffer), ManuallyDrop::into_inner(when));
        Self { endpoint, buffer, from, tag, when }.post_other(flags)
    }

    /// Posts a receive that has a condition, or that cannot be posted.
    #[inline(never)]
    fn post_other(self, flags: OpFlags) -> Result<OperationId, OperationError> {
        let Self { endpoint, mut buffer, from, tag, when } = self;
        let Some(segment) = buffer.segment_for_receive() else {
            return Err(OperationError::new(PostError::ReadOnly, Some(buffer)));
        };
        let Some(when) = when else { return Err(OperationError::new(PostError::Forked, Some(buffer))) };
        when.start(&endpoint.access, buffer, |context, _| {
            Work::Receive(ReceiveWork { from, segments: Segments::one(segment), tag, context, flags })
        })
    }
}

/// Sends a message if it can leave at once. Returns false, and does nothing, if it cannot.
struct SendAtOnce {
    peer: PeerAddress,
    segment: Segment,
    tag: Option<u64>,
    data: Option<u64>,
    flags: OpFlags,
}

impl EngineCall for SendAtOnce {
    type Result = bool;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) -> bool {
        let Self { peer, segment, tag, data, flags } = self;
        matches!(engine.send_in_place(peer, segment, tag, data, 0, flags), Some(Ok(())))
    }
}

/// Posts a receive, which owns its buffer.
struct ReceiveOperation {
    from: PeerAddress,
    segment: Segment,
    tag: Option<(u64, u64)>,
    flags: OpFlags,
    buffer: ManuallyDrop<Buffer>,
}

impl EngineCall for ReceiveOperation {
    type Result = Result<OperationId, OperationError>;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) -> Self::Result {
        let Self { from, segment, tag, flags, buffer } = self;
        let id = engine.core.operations.start(ManuallyDrop::into_inner(buffer));
        if flags.is_empty() && engine.receive_for_operation(from, segment, tag, id) {
            return Ok(id);
        }
        // Described only here: a description that a call can access would be kept in memory, with the buffer.
        let work = ReceiveWork { from, segments: Segments::one(segment), tag, context: id.to_u64(), flags };
        engine.post_other_operation(id, &work)
    }
}

impl Engine {
    /// Posts a receive of any kind, which owns its buffer.
    #[inline(never)]
    fn post_other_operation(&mut self, id: OperationId, work: &ReceiveWork) -> Result<OperationId, OperationError> {
        if work.flags.contains(OpFlags::MULTI_RECEIVE) {
            self.core.operations.many(id);
        }
        let result = posted(self, id, |engine| engine.post_receive(work, Notify::Operation));
        self.core.operations.note_events();
        result
    }
}

/// Posts the operation. Returns the buffer in the error if that fails.
pub(super) fn posted(
    engine: &mut Engine,
    id: OperationId,
    post: impl FnOnce(&mut Engine) -> Result<(), PostError>,
) -> Result<OperationId, OperationError> {
    match post(engine) {
        Ok(()) => Ok(id),
        Err(cause) => Err(OperationError::new(cause, engine.core.operations.release(id))),
    }
}
