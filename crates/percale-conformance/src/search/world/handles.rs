//! Operations of the safe API, and operations on their handles.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use percale::endpoint::Ownership;
use percale::endpoint::safe::{
    Cause, EndedOperation, Operation, OperationError, OperationSet, Outcome, PushCause, PushError, Received, TimedOut,
    wait_all, wait_all_until, wait_any, wait_any_until,
};
use percale::{Buffer, Endpoint, ErrorCode, PeerAddress, PostError, SharedReceiving};

use super::{EndpointAddress, Open, Port, World, on};
use crate::search::ledger::{Criteria, Fault, LedgerReceive, Life, MessageReport, ReceiveHome, Verdict};
use crate::search::payload;
use crate::search::step::{HandleStep, Level, NextBy};
use crate::search::waker::RecordingWaker;

/// The result of an operation of the safe API.
pub(super) enum HandleOutcome {
    /// The buffer of a send or an access.
    Buffer(Buffer),
    /// A received message.
    Received(Received),
    /// The value of an atomic operation.
    Value(u64),
    /// An error.
    Failed(OperationError),
}

/// A handle of any operation.
pub(super) trait Handle: 'static {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<HandleOutcome>;
    fn is_ready(&self) -> bool;
    /// Cancels the operation. Returns whether it was cancelled.
    fn cancel(&self) -> bool;
    /// Waits for at most `timeout`, or without a limit if the operation has ended. Returns the handle, unless the wait
    /// consumes it.
    fn wait(self: Box<Self>, timeout: Duration) -> (Option<Box<dyn Handle>>, Option<HandleOutcome>);
    /// Waits for any or all of the operations, whose handles have the type of this one.
    fn wait_several(self: Box<Self>, others: Vec<Box<dyn Handle>>, all: bool) -> Several;
    /// Opens a set for operations of this kind at this endpoint. `None` if there are no such sets.
    fn open_set(&self, port: Port, capacity: usize) -> Option<Box<dyn HandleSet>>;
    fn as_any(&self) -> &dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// The timeout of waits. The peers of an operation make no progress during a wait.
pub(super) const SHORT: Duration = Duration::from_micros(1);

/// A result of the safe API.
pub(super) trait IntoOutcome {
    fn into_outcome(self) -> HandleOutcome;
}

impl IntoOutcome for Received {
    fn into_outcome(self) -> HandleOutcome {
        HandleOutcome::Received(self)
    }
}

impl IntoOutcome for Buffer {
    fn into_outcome(self) -> HandleOutcome {
        HandleOutcome::Buffer(self)
    }
}

impl IntoOutcome for u64 {
    fn into_outcome(self) -> HandleOutcome {
        HandleOutcome::Value(self)
    }
}

pub(super) fn outcome<T: IntoOutcome>(result: Result<T, OperationError>) -> HandleOutcome {
    result.map_or_else(HandleOutcome::Failed, T::into_outcome)
}

impl<H: percale::endpoint::EndpointHandle + 'static, R: Outcome + IntoOutcome + 'static> Handle for Operation<H, R> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<HandleOutcome> {
        Future::poll(Pin::new(self), context).map(outcome)
    }

    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }

    fn cancel(&self) -> bool {
        Self::cancel(self)
    }

    fn wait(mut self: Box<Self>, timeout: Duration) -> (Option<Box<dyn Handle>>, Option<HandleOutcome>) {
        let result = if Self::is_ready(&self) { Self::wait(&mut self) } else { self.wait_for(timeout) };
        (Some(self), Some(outcome(result)))
    }

    fn wait_several(self: Box<Self>, others: Vec<Box<dyn Handle>>, all: bool) -> Several {
        let others = others.into_iter().filter_map(|other| other.into_any().downcast::<Self>().ok());
        let mut operations: Vec<Self> = std::iter::once(self).chain(others).map(|boxed| *boxed).collect();
        let deadline = Some(Instant::now() + SHORT);
        let can_end = |operation: &Self| !operation.is_taken() && Self::is_ready(operation);
        let ended = if all {
            let results = match operations.iter().all(Self::is_ready) {
                true => wait_all(&mut operations),
                false => wait_all_until(&mut operations, deadline),
            };
            Ended::All(results.into_iter().map(outcome).collect())
        } else {
            let any = match operations.iter().any(can_end) {
                true => Ok(wait_any(&mut operations)),
                false => wait_any_until(&mut operations, deadline),
            };
            match any {
                Ok(Some((index, result))) => Ended::One(index, outcome(result)),
                Ok(None) => Ended::Nothing,
                Err(TimedOut) => Ended::TimedOut,
            }
        };
        let handles = operations.into_iter().map(|operation| Box::new(operation) as Box<dyn Handle>).collect();
        Several { handles, ended }
    }

    fn open_set(&self, port: Port, capacity: usize) -> Option<Box<dyn HandleSet>> {
        Some(on!(port, endpoint => Box::new(endpoint.operation_set::<R, Member>(capacity)) as Box<dyn HandleSet>))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Handle for SharedReceiving {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<HandleOutcome> {
        Future::poll(Pin::new(self), context).map(outcome)
    }

    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }

    fn cancel(&self) -> bool {
        Self::cancel(self)
    }

    fn wait(self: Box<Self>, _: Duration) -> (Option<Box<dyn Handle>>, Option<HandleOutcome>) {
        (None, self.take().map(outcome))
    }

    /// A shared receive has no such waits, so nothing ends.
    fn wait_several(self: Box<Self>, others: Vec<Box<dyn Handle>>, _: bool) -> Several {
        let first: Box<dyn Handle> = self;
        Several { handles: std::iter::once(first).chain(others).collect(), ended: Ended::TimedOut }
    }

    fn open_set(&self, _: Port, _: usize) -> Option<Box<dyn HandleSet>> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A handle that the run holds.
pub(super) struct HeldHandle {
    pub(super) id: u64,
    /// The life of the endpoint. `None` for a shared receive.
    pub(super) life: Option<Life>,
    pub(super) handle: Box<dyn Handle>,
    /// The address and the length of the buffer that the operation owns.
    pub(super) buffer: (usize, usize),
    /// Whether the handle has returned its result.
    pub(super) is_finished: bool,
}

pub(super) fn place_of(buffer: &Buffer) -> (usize, usize) {
    (buffer.as_slice().map_or(0, |bytes| bytes.as_ptr().addr()), buffer.len())
}

/// The record of a member, which is its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) id: u64,
    /// The address and the length of the buffer that the operation owns.
    pub(super) buffer: (usize, usize),
    /// Whether the result was taken before the operation was added to the set.
    pub(super) was_finished: bool,
}

/// The result of a call that takes the next result of a set.
pub(super) enum Next {
    Ended(Member, HandleOutcome),
    /// The set is empty.
    Empty,
    /// Nothing has ended.
    Nothing,
}

/// A set of operations of any kind.
pub(super) trait HandleSet {
    /// Returns whether this handle has the type of the members.
    fn is_of_kind(&self, handle: &dyn Handle) -> bool;
    /// Adds an operation of the kind of the set.
    fn push(&mut self, handle: Box<dyn Handle>, member: Member) -> Result<(), (Box<dyn Handle>, Member, PushCause)>;
    fn next(&mut self, by: NextBy) -> Next;
    fn cancel_all(&self) -> usize;
    fn len(&self) -> usize;
    fn capacity(&self) -> usize;
}

fn ended<R: IntoOutcome>(ended: Option<EndedOperation<Member, R>>, otherwise: Next) -> Next {
    ended.map_or(otherwise, |(member, result)| Next::Ended(member, outcome(result)))
}

impl<H: percale::endpoint::EndpointHandle + 'static, R: Outcome + IntoOutcome + 'static> HandleSet
    for OperationSet<H, R, Member>
{
    fn is_of_kind(&self, handle: &dyn Handle) -> bool {
        handle.as_any().is::<Operation<H, R>>()
    }

    fn push(&mut self, handle: Box<dyn Handle>, member: Member) -> Result<(), (Box<dyn Handle>, Member, PushCause)> {
        let operation = handle.into_any().downcast::<Operation<H, R>>().expect("an operation of the kind of the set");
        Self::push(self, *operation, member)
            .map_err(|PushError { operation, key, cause, .. }| (Box::new(operation) as Box<dyn Handle>, key, cause))
    }

    fn next(&mut self, by: NextBy) -> Next {
        let is_empty = self.is_empty();
        let otherwise = || if is_empty { Next::Empty } else { Next::Nothing };
        match by {
            NextBy::Try => ended(self.try_next(), otherwise()),
            NextBy::Wait => self.next_for(SHORT).map_or(Next::Nothing, |next| ended(next, Next::Empty)),
            NextBy::Poll(waking) => {
                let (_bell, waker) = RecordingWaker::new(waking);
                match self.poll_next(&mut Context::from_waker(&waker)) {
                    Poll::Ready(next) => ended(next, Next::Empty),
                    Poll::Pending => Next::Nothing,
                }
            }
            NextBy::Future(waking) => {
                let (_bell, waker) = RecordingWaker::new(waking);
                match Pin::new(&mut self.next_ended()).poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(next) => ended(next, Next::Empty),
                    Poll::Pending => Next::Nothing,
                }
            }
        }
    }

    fn cancel_all(&self) -> usize {
        Self::cancel_all(self)
    }

    fn len(&self) -> usize {
        Self::len(self)
    }

    fn capacity(&self) -> usize {
        Self::capacity(self)
    }
}

/// The result of a wait for several operations.
pub(super) enum Ended {
    /// The result of the operation with this index.
    One(usize, HandleOutcome),
    /// The results of all operations.
    All(Vec<HandleOutcome>),
    /// All results were taken before.
    Nothing,
    TimedOut,
}

/// The handles of a wait for several operations, and its result.
pub(super) struct Several {
    pub(super) handles: Vec<Box<dyn Handle>>,
    pub(super) ended: Ended,
}

impl World {
    pub(super) fn is_free(&self, slot: usize) -> bool {
        self.held[slot].is_none()
    }

    /// Stores a handle, or records that the operation was rejected.
    pub(super) fn keep(
        &mut self,
        id: u64,
        life: Option<Life>,
        slot: usize,
        buffer: (usize, usize),
        started: Result<Box<dyn Handle>, OperationError>,
    ) -> Verdict {
        match started {
            Ok(handle) => {
                self.held[slot] = Some(HeldHandle { id, life, handle, buffer, is_finished: false });
                Ok(())
            }
            Err(error) => self.refused_safe(id, &error),
        }
    }

    /// Records that an operation of the safe API was rejected.
    pub(super) fn refused_safe(&mut self, id: u64, error: &OperationError) -> Verdict {
        self.ledger.refuse(id);
        match error.cause() {
            Cause::Post(PostError::Again) => Ok(()),
            other => Err(Fault::new("refused without a cause", format!("safe operation {id}: {other}"))),
        }
    }

    pub(super) fn send_safe(
        &mut self,
        at: usize,
        to: usize,
        message: (usize, Option<u64>, bool),
        level: Level,
        slot: usize,
    ) -> Verdict {
        let Some((life, port)) = self.port(at).filter(|_| self.is_free(slot)) else { return Ok(()) };
        let (len, tag, data) = message;
        let id = self.ledger.number();
        let peer = self.name(to);
        self.enter(id, "safe send", at, Some(to), true);
        self.enter_message(id, at, to, message, (true, level.fenced));
        let buffer = Buffer::from(payload::of(id, len));
        let place = place_of(&buffer);
        let started = on!(port, endpoint => start_send(endpoint, peer, tag, data.then_some(id), level, buffer));
        self.keep(id, Some(life), slot, place, started)
    }

    pub(super) fn send_safe_when(
        &mut self,
        at: usize,
        to: usize,
        len: usize,
        (counter, threshold): (&percale::Counter, u64),
        slot: usize,
    ) -> Verdict {
        let Some((life, port)) = self.port(at).filter(|_| self.is_free(slot)) else { return Ok(()) };
        let id = self.ledger.number();
        let peer = self.name(to);
        self.enter(id, "safe send", at, Some(to), true);
        self.enter_message(id, at, to, (len, None, true), (false, false));
        let buffer = Buffer::from(payload::of(id, len));
        let place = place_of(&buffer);
        let started: Result<Box<dyn Handle>, _> = on!(port, endpoint => {
            let request = endpoint.send(peer, buffer).data(id).when(counter, threshold);
            request.start().map(|handle| Box::new(handle) as Box<dyn Handle>)
        });
        self.keep(id, Some(life), slot, place, started)
    }

    pub(super) fn receive_safe(
        &mut self,
        at: usize,
        from: Option<usize>,
        criteria: Criteria,
        len: usize,
        slot: usize,
    ) -> Verdict {
        let Some((life, port)) = self.port(at).filter(|_| self.is_free(slot)) else { return Ok(()) };
        let id = self.ledger.number();
        let peer = from.map_or(PeerAddress::UNSPECIFIED, |from| self.name(from));
        self.enter(id, "safe receive", at, from, true);
        self.ledger
            .receive(id, LedgerReceive { home: ReceiveHome::Own(life), criteria, capacity: len, is_ordered: true });
        let buffer = Buffer::from(vec![0xEE; len]);
        let place = place_of(&buffer);
        let started = on!(port, endpoint => start_receive(endpoint, peer, criteria.tag, buffer));
        self.keep(id, Some(life), slot, place, started)
    }

    pub(super) fn receive_pooled(
        &mut self,
        from: Option<usize>,
        criteria: Criteria,
        len: usize,
        slot: usize,
    ) -> Verdict {
        if !self.is_free(slot) || !self.settings.seats.iter().any(|opened_endpoint| opened_endpoint.pool) {
            return Ok(());
        }
        let id = self.ledger.number();
        self.enter_pooled(id, "safe shared receive", from);
        self.ledger
            .receive(id, LedgerReceive { home: ReceiveHome::Pool(0), criteria, capacity: len, is_ordered: true });
        let from = from.map_or(PeerAddress::UNSPECIFIED, |from| self.name(from));
        let buffer = Buffer::from(vec![0xEE; len]);
        let place = place_of(&buffer);
        let started = self.pool.recv_from(from, criteria.tag, buffer).map(|handle| Box::new(handle) as Box<dyn Handle>);
        self.keep(id, None, slot, place, started)
    }

    pub(super) fn handle(&mut self, slot: usize, what: HandleStep) -> Verdict {
        let Some(held) = &mut self.held[slot] else { return Ok(()) };
        let (id, was_finished) = (held.id, held.is_finished);
        if was_finished && !self.settings.again && !matches!(what, HandleStep::Forget) {
            self.held[slot] = None;
            return Ok(());
        }
        match what {
            HandleStep::Poll(waking) => {
                let (_bell, waker) = RecordingWaker::new(waking);
                let polled = held.handle.poll(&mut Context::from_waker(&waker));
                match polled {
                    Poll::Pending => Ok(()),
                    Poll::Ready(outcome) if was_finished => again(id, &outcome),
                    Poll::Ready(outcome) => {
                        held.is_finished = true;
                        let buffer = held.buffer;
                        self.ended(id, buffer, outcome)
                    }
                }
            }
            HandleStep::Ready => {
                _ = held.handle.is_ready();
                Ok(())
            }
            HandleStep::Cancel => {
                if held.handle.cancel() {
                    if was_finished {
                        let text = format!("the handle of the completed safe operation {id} cancelled an operation");
                        return Err(Fault::new("finished handle acted", text));
                    }
                    self.ledger.cancelled(id);
                }
                Ok(())
            }
            HandleStep::Wait | HandleStep::WaitAndDrop => {
                let Some(held) = self.held[slot].take() else { return Ok(()) };
                let (buffer, life) = (held.buffer, held.life);
                let (handle, outcome) = held.handle.wait(SHORT);
                let is_finished = was_finished || outcome.as_ref().is_some_and(|outcome| !is_timeout(outcome));
                match handle.filter(|_| what == HandleStep::Wait) {
                    Some(handle) => self.held[slot] = Some(HeldHandle { id, life, handle, buffer, is_finished }),
                    None => self.let_go(id, is_finished),
                }
                match outcome {
                    Some(outcome) if was_finished => again(id, &outcome),
                    Some(outcome) if is_finished => self.ended(id, buffer, outcome),
                    _ => Ok(()),
                }
            }
            HandleStep::Drop | HandleStep::Forget => {
                let Some(held) = self.held[slot].take() else { return Ok(()) };
                self.let_go(id, was_finished);
                match what {
                    HandleStep::Drop => drop(held),
                    _ => self.forget(held.life, held.handle),
                }
                Ok(())
            }
        }
    }

    /// Records that a handle was dropped or forgotten. Its operation continues without it, or is cancelled. A message
    /// that it had received is lost.
    pub(super) fn let_go(&mut self, id: u64, was_finished: bool) {
        if was_finished {
            return;
        }
        self.regions.lose(id);
        if let Some(operation) = self.ledger.operation_mut(id) {
            operation.is_closed = true;
        }
        if let Some(message) = self.ledger.message_mut(id) {
            message.may_be_lost = true;
        }
        if let Some(receive) = self.ledger.received_by(id).copied() {
            for (_, message) in self.ledger.messages_mut() {
                message.may_be_lost |= receive.criteria.fits(message);
            }
            self.forgotten.push(receive.criteria);
        }
    }

    /// Forgets a handle of an endpoint. `life` is `None` for a shared receive.
    pub(super) fn forget(&mut self, life: Option<Life>, handle: impl Any) {
        self.done.forgot = true;
        let mut open = self.seats.iter_mut().filter_map(|seat| seat.open.as_mut());
        match open.find(|open| Some(open.life) == life) {
            Some(Open { port: Port::Shared(..), has_forgotten, .. }) => {
                *has_forgotten = true;
                self.kept.push(Box::new(handle));
            }
            _ => std::mem::forget(handle),
        }
    }

    /// Removes all handles of an endpoint in a random order.
    pub(super) fn let_go_of_handles(&mut self, life: Life, forget: bool) {
        let slots = self.held.len();
        let first = self.random.below(slots);
        for slot in (0..slots).map(|slot| (slot + first) % slots) {
            if self.held[slot].as_ref().is_some_and(|held| held.life == Some(life))
                && let Some(held) = self.held[slot].take()
            {
                self.let_go(held.id, held.is_finished);
                if forget && self.random.below(2) == 0 {
                    self.forget(held.life, held.handle);
                }
            }
        }
        self.let_go_of_sets(life, forget);
        self.let_go_of_many(life, forget);
    }

    /// Handles the end of a safe operation and checks its outcome.
    pub(super) fn ended(&mut self, id: u64, buffer: (usize, usize), outcome: HandleOutcome) -> Verdict {
        let what = self.ledger.operation(id).map_or("safe operation", |operation| operation.what);
        let ours = |found: &Buffer| {
            if place_of(found) == buffer || buffer == (0, 0) {
                return Ok(());
            }
            let text = format!("{what} {id} owned {buffer:x?} (address, bytes) and returned {:x?}", place_of(found));
            Err(Fault::new("foreign buffer", text))
        };
        let (found, result) = match outcome {
            HandleOutcome::Value(value) => {
                self.accessed(id, true, Some(&value.to_le_bytes()))?;
                (None, Ok(()))
            }
            HandleOutcome::Buffer(found) if what == "safe access" => {
                ours(&found)?;
                self.accessed(id, true, found.as_slice())?;
                (Some(found), Ok(()))
            }
            HandleOutcome::Buffer(found) => {
                ours(&found)?;
                if let Some(why) = found.as_slice().and_then(|bytes| payload::describe(id, bytes)) {
                    return Err(Fault::new("wrong bytes", format!("the buffer returned by {what} {id}: {why}")));
                }
                (Some(found), Ok(()))
            }
            HandleOutcome::Received(received) => {
                ours(&received.buffer)?;
                self.took(id, &received)?;
                (Some(received.buffer), Ok(()))
            }
            HandleOutcome::Failed(error) => {
                let (cause, found) = error.into_parts();
                if let Some(found) = &found {
                    ours(found)?;
                }
                match cause {
                    Cause::Completion(error) => (found, Err((error.error, error.text.to_string(), error))),
                    Cause::Post(_) if self.ledger.operation(id).is_some_and(|operation| operation.may_fail) => {
                        self.ledger.end(id, Ok(()))?;
                        return Ok(());
                    }
                    other => return Err(Fault::new("failed without a cause", format!("{what} {id}: {other}"))),
                }
            }
        };
        let result = match result {
            Ok(()) => Ok(()),
            Err((code, text, error)) => {
                if code == ErrorCode::Truncated
                    && let (Some(receive), Some(found)) = (self.ledger.received_by(id).copied(), &found)
                {
                    self.took_part(id, &receive, &error, found)?;
                }
                Err((code, text))
            }
        };
        self.over(id, result.as_ref().copied().map_err(|(code, text)| (*code, text.as_str())))?;
        if let Some(found) = found {
            self.returns.keep(id, found.into_vec())?;
        }
        Ok(())
    }

    fn took(&mut self, id: u64, received: &Received) -> Verdict {
        let Some(receive) = self.ledger.received_by(id).copied() else { return Ok(()) };
        let bytes = received.to_vec();
        let source = self.source(received.source.unwrap_or(PeerAddress::UNSPECIFIED))?;
        let tag = receive.criteria.tag.map(|_| received.tag);
        let (len, data) = (received.len, received.data);
        let report = MessageReport { len, tag, data, source, bytes: &bytes, overflow: 0, offset: 0 };
        self.took_report(id, &report)
    }

    fn took_part(&mut self, id: u64, receive: &LedgerReceive, error: &percale::ErrorEntry, found: &Buffer) -> Verdict {
        let entry = &error.entry;
        let len = entry.len as usize;
        if len > found.len() {
            return Err(Fault::new(
                "wrong length",
                format!("safe receive {id}: {len} bytes in a buffer of {}", found.len()),
            ));
        }
        let mut bytes = vec![0; len];
        found.copy_to(0, &mut bytes);
        let data = entry.flags.contains(percale::CompletionFlags::REMOTE_DATA).then_some(entry.data);
        let source = self.source(entry.source)?;
        let tag = receive.criteria.tag.map(|_| entry.tag);
        let overflow = error.overflow as usize;
        self.took_report(id, &MessageReport { len, tag, data, source, bytes: &bytes, overflow, offset: 0 })
    }

    fn took_report(&mut self, id: u64, report: &MessageReport<'_>) -> Verdict {
        let number = report.data.or_else(|| payload::name_of(report.bytes));
        let Some(number) = number else {
            // A truncated message without data cannot be identified.
            if let Some(receive) = self.ledger.received_by(id).copied() {
                self.ledger.arrived_nameless(None, &receive.criteria, report.len + report.overflow);
            }
            return Ok(());
        };
        let at = self.ledger.operation(id).and_then(|operation| operation.at);
        let place = match at {
            Some(life) => self
                .seats
                .iter()
                .position(|opened_endpoint| opened_endpoint.open.as_ref().is_some_and(|open| open.life == life)),
            None => self.ledger.message(number).map(|message| message.to.0 as usize),
        };
        let place = place.unwrap_or(usize::MAX);
        let life = at.or_else(|| self.seats.get(place)?.open.as_ref().map(|open| open.life));
        let life = life.unwrap_or(Life(u32::MAX));
        self.ledger.arrive((life, EndpointAddress(place as u32)), id, report).map(|_| ())
    }

    /// Polls the handles and checks the results. If `cancel` is set, first cancels the operations. Returns the number
    /// of operations that have not ended.
    pub(super) fn settle_handles(&mut self, cancel: bool) -> Verdict<usize> {
        let mut left = 0;
        for slot in 0..self.held.len() {
            let Some(held) = &mut self.held[slot] else { continue };
            if held.is_finished {
                continue;
            }
            let (id, buffer) = (held.id, held.buffer);
            if cancel && held.handle.cancel() {
                self.ledger.cancelled(id);
            }
            let polled = held.handle.poll(&mut Context::from_waker(std::task::Waker::noop()));
            match polled {
                Poll::Pending => left += 1,
                Poll::Ready(outcome) => {
                    held.is_finished = true;
                    self.ended(id, buffer, outcome)?;
                }
            }
        }
        Ok(left + self.settle_sets(cancel)?)
    }
}

/// Returns whether a wait ended because of its timeout. The operation continues.
pub(super) fn is_timeout(outcome: &HandleOutcome) -> bool {
    matches!(outcome, HandleOutcome::Failed(error) if matches!(error.cause(), Cause::TimedOut))
}

/// Checks the second result of a handle that had already returned a result.
pub(super) fn again(id: u64, outcome: &HandleOutcome) -> Verdict {
    let what = match outcome {
        HandleOutcome::Received(received) => format!("a message of {} bytes", received.len),
        HandleOutcome::Buffer(buffer) => format!("a buffer of {} bytes", buffer.len()),
        HandleOutcome::Value(value) => format!("the value {value}"),
        HandleOutcome::Failed(error) => match error.buffer() {
            Some(buffer) => format!("an error with a buffer of {} bytes", buffer.len()),
            None => return Ok(()),
        },
    };
    Err(Fault::new("finished handle acted", format!("the handle of the completed safe operation {id} returned {what}")))
}

fn start_send<A: Ownership + 'static>(
    endpoint: &'static Endpoint<A>,
    peer: PeerAddress,
    tag: Option<u64>,
    data: Option<u64>,
    level: Level,
    buffer: Buffer,
) -> Result<Box<dyn Handle>, OperationError> {
    let mut request = match tag {
        Some(tag) => endpoint.tagged_send(peer, tag, buffer),
        None => endpoint.send(peer, buffer),
    };
    if let Some(data) = data {
        request = request.data(data);
    }
    if level.level >= 2 {
        request = request.delivered();
    }
    if level.fenced {
        request = request.fenced();
    }
    request.start().map(|handle| Box::new(handle) as Box<dyn Handle>)
}

fn start_receive<A: Ownership + 'static>(
    endpoint: &'static Endpoint<A>,
    peer: PeerAddress,
    tag: Option<(u64, u64)>,
    buffer: Buffer,
) -> Result<Box<dyn Handle>, OperationError> {
    let request = match tag {
        Some((tag, ignore)) => endpoint.tagged_recv(tag, ignore, buffer),
        None => endpoint.recv(buffer),
    };
    let request = if peer.is_specified() { request.from(peer) } else { request };
    request.start().map(|handle| Box::new(handle) as Box<dyn Handle>)
}
