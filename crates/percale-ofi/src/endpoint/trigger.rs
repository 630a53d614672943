//! Operations that begin when a counter has reached a value (fi_trigger(3)): triggered operations and those of deferred
//! work.
//!
//! Endpoints for such operations are opened with FI_TRIGGER. The thread that increments the counter begins the
//! operations, so the first such operation adds a lock to an endpoint without one. (Some clients request FI_TRIGGER
//! without using it, because they request all capabilities.)

use std::ffi::c_void;

use percale::trigger::RawOperation;
use percale::{OpFlags, PostError, ReceiveWork, SendWork, SharedEndpoint};

use super::client_message::Message;
use super::flags::{Direction, TRIGGERED};
use super::{Endpoint, answer, local, unsupported};
use crate::abi::{
    FI_COMPLETION, FI_EBADFLAGS, FI_LOG_EP_DATA, FI_TRIGGER, FI_TRIGGER_THRESHOLD, FI_TRIGGER_XPU, fi_triggered_context,
};
use crate::counter::Count;
use crate::log;
use crate::object::Object;
use crate::port::Port;

const INVALID: isize = -(libc::EINVAL as isize);

/// The moment at which an operation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartMode {
    /// At once.
    Now,
    /// When the condition in its FI_TRIGGER context is met.
    Triggered,
    /// As deferred work, which reports a completion only if that is requested.
    Deferred,
}

impl StartMode {
    /// Returns how an operation with these flags begins.
    #[inline]
    pub(super) const fn of(flags: u64) -> Self {
        if flags & FI_TRIGGER == 0 { Self::Now } else { Self::Triggered }
    }
}

/// Removes the mark `TRIGGERED`, which percale does not use.
const fn without_mark(mut operation: RawOperation) -> RawOperation {
    let flags = match &mut operation {
        RawOperation::Send(work) => &mut work.flags,
        RawOperation::Receive(work) => &mut work.flags,
        RawOperation::Read(work) | RawOperation::Write(work) => &mut work.flags,
        RawOperation::Atomic(work) => &mut work.flags,
        RawOperation::Collective(work) => &mut work.flags,
    };
    *flags = flags.difference(TRIGGERED);
    operation
}

impl Endpoint {
    /// Returns percale's flags for the flags of an operation.
    #[inline]
    pub(super) fn flags_for(&self, direction: &Direction, begins: StartMode, flags: u64) -> Result<OpFlags, isize> {
        self.is_ready();
        if begins == StartMode::Now {
            return direction.flags(flags).ok_or_else(|| unsupported(flags));
        }
        let mut ours = direction.flags(flags & !FI_TRIGGER).ok_or_else(|| unsupported(flags))?;
        if begins == StartMode::Deferred && flags & FI_COMPLETION == 0 {
            ours.remove(OpFlags::COMPLETION);
        }
        Ok(ours)
    }

    /// Builds a send or a receive.
    ///
    /// # Safety
    /// The message meets the requirements of fi_msg(3) or fi_tagged(3).
    pub(crate) unsafe fn message(
        &self,
        receives: bool,
        message: &Message,
        begins: StartMode,
        flags: u64,
    ) -> Result<RawOperation, isize> {
        // SAFETY: the caller guarantees this.
        let segments = unsafe { message.segments() }?;
        let (tag, context) = (message.tag, local::context(message.context));
        if receives {
            let flags = self.flags_for(&self.receive, begins, flags)?;
            return Ok(RawOperation::Receive(ReceiveWork {
                from: self.from(message.peer),
                segments,
                tag,
                context,
                flags,
            }));
        }
        let (tag, data) = (tag.map(|(tag, _)| tag), message.data(flags));
        let flags = self.flags_for(&self.transmit, begins, flags)?;
        Ok(RawOperation::Send(SendWork { peer: self.peer(message.peer), segments, tag, data, context, flags }))
    }

    /// Posts work. It begins at once or, if its flags contain the mark of triggered operations, when the condition in
    /// its context is met.
    #[inline(always)]
    pub(super) fn post<W>(
        &self,
        work: W,
        flags: OpFlags,
        context: *mut c_void,
        operation: impl FnOnce(W) -> RawOperation,
        post: impl FnOnce(&Port, &W) -> Result<(), PostError>,
    ) -> isize {
        let port = match self.port() {
            Ok(port) => port,
            Err(refused) => return refused,
        };
        if flags.contains(TRIGGERED) {
            // SAFETY: the flags state that the context belongs to a triggered operation.
            return unsafe { self.post_triggered(Ok(operation(work)), context) };
        }
        answer(post(port, &work))
    }

    /// Posts an operation that begins when the condition in its context is met.
    ///
    /// # Safety
    /// The context and the operation's memory meet the requirements of fi_trigger(3).
    #[cold]
    pub(super) unsafe fn post_triggered(&self, operation: Result<RawOperation, isize>, context: *mut c_void) -> isize {
        let operation = match operation {
            Ok(operation) => without_mark(operation),
            Err(refused) => return refused,
        };
        let port = match self.port() {
            Ok(port) => port,
            Err(refused) => return refused,
        };
        if !self.triggers {
            log::warning!(FI_LOG_EP_DATA, "an operation was not posted: the endpoint was opened without FI_TRIGGER");
            return -(FI_EBADFLAGS as isize);
        }
        if context.is_null() {
            log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER needs a struct fi_triggered_context as the operation's context");
            return INVALID;
        }
        // SAFETY: with FI_TRIGGER the context is such a structure. The longer structure begins with the same members.
        let trigger = unsafe { context.cast::<fi_triggered_context>().read_unaligned() };
        if let Err(refused) = port.share() {
            return refused;
        }
        match trigger.event_type {
            FI_TRIGGER_THRESHOLD => {
                // SAFETY: this member of the union is the valid one.
                let threshold = unsafe { trigger.trigger.threshold };
                // SAFETY: the pointer is null or an open counter of the client.
                let Some(counter) = (unsafe { Count::of_class(threshold.cntr.cast()) }) else {
                    log::warning!(FI_LOG_EP_DATA, "FI_TRIGGER_THRESHOLD needs a counter of this provider");
                    return INVALID;
                };
                let percale = &counter.shared().percale;
                // SAFETY: the client keeps the memory valid until the operation has completed.
                answer(unsafe { port.when(&operation, percale, threshold.threshold as u64) })
            }
            // SAFETY: the caller upholds the same contract.
            FI_TRIGGER_XPU => unsafe { self.post_xpu(port, &operation, context) },
            other => {
                log::warning!(FI_LOG_EP_DATA, "unknown trigger event type {other}");
                INVALID
            }
        }
    }

    /// Returns the endpoint that executes deferred work.
    pub(crate) fn for_work(&self) -> Result<&SharedEndpoint, isize> {
        if !self.triggers {
            log::warning!(FI_LOG_EP_DATA, "deferred work needs an endpoint that was opened with FI_TRIGGER");
            return Err(INVALID);
        }
        self.port()?.share()
    }
}
