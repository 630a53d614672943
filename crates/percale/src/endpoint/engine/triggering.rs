//! Operations that a counter begins, from the submission list of their endpoint to their end.
//!
//! Once such an operation has begun, it is treated like any other, except that its end is first reported to a
//! [`Triggered`]. It never fails for lack of room: results go to the part of the queue that can grow, and an operation
//! that a link does not take waits. If posting an operation makes another one due, that one does not begin within the
//! call, but during the next progress.

use std::sync::Arc;

use super::Engine;
use super::collective::collective_entry;
use super::core::{Core, send_flags, sent_entry};
use super::remote::{atomic_entry, rma_entry};
use super::staged::{OperationLocation, refused};
use super::triggered::Triggered;
use super::types::{Notify, Side};
use crate::collective::CollectiveWork;
use crate::completion::counter::Condition;
use crate::completion::counter::Counter;
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::conditions::variable::Variable;
use crate::device::Arriving;
use crate::endpoint::operation::RawOperation;
use crate::endpoint::posted::Posted;
use crate::endpoint::remote_work::{AtomicWork, RmaWork};
use crate::endpoint::submissions::Transfer;
use crate::endpoint::work::{OpFlags, PostError, ReceiveWork, SendWork};
use crate::table::Id;
use crate::types::PeerAddress;

impl RawOperation {
    const fn flags(&self) -> OpFlags {
        match self {
            Self::Send(work) => work.flags,
            Self::Receive(work) => work.flags,
            Self::Read(work) | Self::Write(work) => work.flags,
            Self::Atomic(work) => work.flags,
            Self::Collective(work) => work.flags,
        }
    }

    pub(crate) const fn side(&self) -> Side {
        if matches!(self, Self::Receive(_)) { Side::Receive } else { Side::Transmit }
    }

    /// Removes the INJECT flag, because the operation owns its memory now and nothing need be copied again.
    pub(super) const fn not_injected(mut self) -> Self {
        match &mut self {
            Self::Send(SendWork { flags, .. })
            | Self::Write(RmaWork { flags, .. })
            | Self::Atomic(AtomicWork { flags, .. }) => *flags = flags.difference(OpFlags::INJECT),
            Self::Receive(_) | Self::Read(_) | Self::Collective(_) => {}
        }
        self
    }

    pub(super) const fn set_context(&mut self, to: u64) {
        match self {
            Self::Send(SendWork { context, .. })
            | Self::Receive(ReceiveWork { context, .. })
            | Self::Read(RmaWork { context, .. })
            | Self::Write(RmaWork { context, .. })
            | Self::Atomic(AtomicWork { context, .. })
            | Self::Collective(CollectiveWork { context, .. }) => *context = to,
        }
    }

    /// Returns the completion of the operation.
    pub(crate) fn entry(&self) -> Entry {
        match self {
            Self::Send(work) => sent_entry(work.context, send_flags(work.tag.is_some()), work.segments.len()),
            Self::Receive(work) => {
                let kind = if work.tag.is_some() { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE };
                Entry { context: work.context, flags: CompletionFlags::RECEIVE | kind, ..Entry::default() }
            }
            Self::Read(work) => rma_entry(false, work.context, work.remote.len()),
            Self::Write(work) => rma_entry(true, work.context, work.remote.len()),
            Self::Atomic(work) => atomic_entry(work),
            Self::Collective(work) => collective_entry(work),
        }
    }
}

impl Engine {
    /// Prepares an operation that waits for a counter. Injected data is copied now. Deferred work may have a separate
    /// counter.
    pub(crate) fn transfer(
        &mut self,
        operation: &RawOperation,
        deferred: Option<Option<Counter>>,
    ) -> Result<Transfer, PostError> {
        let mut operation = *operation;
        let flags = operation.flags();
        if flags.intersects(OpFlags::MULTI_RECEIVE | OpFlags::PEEK | OpFlags::CLAIM | OpFlags::DISCARD) {
            return Err(PostError::Flags("triggered receives cannot be multi-receive, peek, claim or discard"));
        }
        if !self.process.is_here() {
            return Err(self.refusal());
        }
        let located = OperationLocation::find(&mut operation)?;
        self.watch_begun();
        let posted = if !flags.contains(OpFlags::INJECT) {
            Posted::lent(operation)
        } else if located.is_some() {
            // The data would have to be copied now, and again when the operation begins.
            return Err(PostError::Device("triggered injects from device memory are not supported", libc::EOPNOTSUPP));
        } else {
            Posted::injected(operation).map_err(PostError::InjectTooLong)?.map(RawOperation::not_injected)
        };
        // No room is reserved, because the operation may wait forever.
        let notify = if flags.contains(OpFlags::COMPLETION) { Notify::Event } else { Notify::Silent };
        let (quiet, counting) = (deferred.is_some(), deferred.flatten());
        let endpoint = Some(Arc::clone(self.core.triggered.submissions()));
        Ok(Transfer { operation: posted, notify, counting, quiet, canceled: false, located, endpoint })
    }

    /// Makes progress check, from now on, for operations that are due and for the end of operations that have begun.
    /// This adds no cost to other endpoints.
    pub(super) const fn watch_begun(&mut self) {
        self.optional_work.expect_triggers();
        self.core.triggered.expect();
        self.core.reporting.count_all();
    }

    /// Adds an operation to the queue of a counter. Returns whether operations may be due there, or `None` if the counter
    /// was inherited from a parent process.
    pub(crate) fn queue(&mut self, transfer: Transfer, counter: &Counter, condition: Condition) -> Option<bool> {
        self.core.triggered.queue(transfer, counter, condition)
    }

    /// Makes an operation wait for a variable.
    pub(crate) fn queue_written(&mut self, transfer: Transfer, variable: Variable) {
        self.core.triggered.watch(variable, transfer);
        // Sleepers poll again, and then sleep for a shorter time.
        self.ring();
    }

    /// Begins the operations that are due, in order. Returns whether there were any.
    #[inline(never)]
    pub(crate) fn begin_due(&mut self) -> bool {
        let mut any = false;
        while let Some(transfer) = self.core.triggered.take_written() {
            self.begin(transfer);
            any = true;
        }
        // An operation may end as soon as it begins, which may make others due.
        while let Some(mut due) = self.core.triggered.take_due() {
            while let Some(transfer) = due.pop_front() {
                self.begin(transfer);
                any = true;
            }
            self.core.triggered.return_due(due);
        }
        any
    }

    /// Posts an operation.
    #[inline]
    pub(crate) fn post_operation(&mut self, operation: &RawOperation, notify: Notify) -> Result<(), PostError> {
        match operation {
            RawOperation::Send(work) => self.post_send_by_call(work, notify),
            RawOperation::Receive(work) => self.post_receive(work, notify),
            RawOperation::Read(work) => self.post_rma(false, work, notify),
            RawOperation::Write(work) => self.post_rma(true, work, notify),
            RawOperation::Atomic(work) => self.post_atomic(work, notify),
            RawOperation::Collective(work) => self.post_collective(work, notify),
        }
    }

    /// Begins an operation.
    pub(crate) fn begin(&mut self, transfer: Box<Transfer>) {
        // The most common operation, a short message, usually ends as soon as it begins.
        if let Transfer { operation: posted, located: None, canceled: false, .. } = &*transfer
            && let RawOperation::Send(work) = posted.work()
            && self.send_at_once(work)
        {
            let entry = sent_entry(work.context, send_flags(work.tag.is_some()), work.segments.len());
            // The other fields, which own the memory of the operation, are dropped when it has been reported.
            let Transfer { notify, quiet, counting, .. } = *transfer;
            return self.core.sent_at_once(entry, notify, quiet, counting);
        }
        self.begin_any(transfer);
    }

    /// Begins an operation of any kind.
    #[inline(never)]
    fn begin_any(&mut self, mut transfer: Box<Transfer>) {
        let canceled = transfer.canceled;
        if canceled {
            // A canceled operation is not counted: work that waits for the count would begin.
            (transfer.counting, transfer.quiet) = (None, true);
        }
        let mut operation = *transfer.operation.work();
        let staged = transfer.located.as_ref().filter(|_| !canceled).map(|located| located.stage(&mut operation));
        let (staged, refused) = match staged.transpose() {
            Ok(staged) => (staged.map(Box::new), None),
            Err(error) => (None, Some(refused(error))),
        };
        let id = self.core.triggered.add_begun(Triggered::new(transfer, staged));
        operation.set_context(id.to_u64());
        let result = match refused {
            _ if canceled => Err(None),
            Some(refused) => Err(Some(refused)),
            None => self.post_operation(&operation, Notify::Triggered).map_err(Some),
        };
        if let Err(why) = result {
            self.report_not_begun(&operation, why);
        }
    }

    /// Reports an operation that did not begin: because of an error, or because it was canceled.
    #[cold]
    fn report_not_begun(&mut self, operation: &RawOperation, why: Option<PostError>) {
        let entry = operation.entry();
        let error = match why {
            None => ErrorEntry::new(entry, ErrorCode::Canceled).with_text("cancelled before it started"),
            Some(why) => {
                let peer = why.peer().unwrap_or(PeerAddress::UNSPECIFIED);
                let text = format!("the triggered operation failed to start: {why}");
                ErrorEntry::new(entry, code(&why)).with_text(text).with_peer(peer)
            }
        };
        self.core.fail(operation.side(), Notify::Triggered, error);
    }
}

/// Returns the error code of an operation that could not be posted when it was due.
const fn code(why: &PostError) -> ErrorCode {
    match why {
        PostError::UnknownPeer(_) | PostError::NoVector => ErrorCode::UnknownAddress,
        PostError::NotConnected | PostError::ConnectionEnded => ErrorCode::NotConnected,
        PostError::Again => ErrorCode::NoMemory,
        PostError::ReadOnly => ErrorCode::Denied,
        PostError::NotMapped(_) => ErrorCode::KeyRejected,
        PostError::Device(..) => ErrorCode::Fault,
        _ => ErrorCode::Io,
    }
}

impl Core {
    /// Ends an operation that a counter began. Reports it with its own context, to the destination that was requested
    /// when it was posted.
    #[cold]
    pub(super) fn triggered_over(&mut self, side: Side, result: Result<Entry, ErrorEntry>) {
        let id = match &result {
            Ok(entry) => entry.context,
            Err(error) => error.entry.context,
        };
        // The memory of the operation is freed when this returns: it is not accessed any more.
        let Some(begun) = self.triggered.take_begun(Id::from_u64(id)) else { return };
        let transfer = begun.transfer();
        let (context, notify, quiet) = (transfer.context(), transfer.notify, transfer.quiet);
        let result = begun.land(side, result);
        let success = result.is_ok();
        match result {
            Ok(mut entry) => {
                entry.context = context;
                if quiet { self.report(side, notify, entry) } else { self.complete(side, notify, entry) }
            }
            Err(mut error) => {
                error.entry.context = context;
                if quiet { self.report_error(side, notify, error) } else { self.fail(side, notify, error) }
            }
        }
        if let Some(counter) = &transfer.counting {
            self.triggered.submissions().counting(|| if success { counter.add(1) } else { counter.add_error(1) });
        }
    }

    /// Like [`triggered_over`](Self::triggered_over), but for a message that was sent as soon as it began.
    #[inline]
    fn sent_at_once(&mut self, entry: Entry, notify: Notify, quiet: bool, counting: Option<Counter>) {
        if quiet {
            self.report(Side::Transmit, notify, entry);
        } else {
            self.complete(Side::Transmit, notify, entry);
        }
        if let Some(counter) = counting {
            self.triggered.submissions().counting(|| counter.add(1));
        }
    }

    /// Returns the memory to which the payload of an operation that has begun is still being copied.
    #[inline]
    pub(super) fn arriving(&self, notify: Notify, context: u64) -> Option<&Arc<Arriving>> {
        if notify == Notify::Triggered { self.triggered.arriving(context) } else { None }
    }

    /// Cancels an operation that waits for a counter or a variable. Returns whether there was one.
    #[cold]
    pub(super) fn cancel_waiting(&mut self, context: u64, operation: bool) -> bool {
        let Some(transfer) = self.triggered.cancel(context, operation) else { return false };
        self.cancelled(*transfer, "cancelled before it started");
        true
    }

    /// Reports an operation that was canceled before it was due.
    fn cancelled(&mut self, transfer: Transfer, why: &str) {
        let Transfer { operation, notify, quiet, .. } = transfer;
        let (side, entry) = (operation.work().side(), operation.work().entry());
        let error = ErrorEntry::new(entry, ErrorCode::Canceled).with_text(why.to_owned());
        if quiet {
            self.report_error(side, notify, error);
        } else {
            self.fail(side, notify, error);
        }
    }

    /// Ends all operations that wait for counters and variables, because the endpoint closes. From now on no such
    /// operation begins.
    pub(super) fn end_waiting(&mut self, why: &str) {
        let ended = self.triggered.close(self.reporting.queues());
        for transfer in ended {
            self.cancelled(*transfer, why);
        }
    }
}
