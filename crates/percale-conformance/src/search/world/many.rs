//! Receives of the safe API for many messages.

use std::task::{Context, Poll};

use percale::endpoint::Ownership;
use percale::endpoint::safe::{Cause, Finished, OperationError, Part, ReceivingMany};
use percale::{Buffer, CompletionFlags, Endpoint, ErrorCode, PeerAddress};

use super::handles::{SHORT, place_of};
use super::{EndpointAddress, World, on};
use crate::search::ledger::{Criteria, Fault, LedgerReceive, Life, MessageReport, ReceiveHome, Verdict};
use crate::search::step::ManyStep;
use crate::search::waker::RecordingWaker;

/// The result of a wait: a message or an error, or `None` if the receive has ended.
type NextPart = Option<Result<Part, OperationError>>;

/// The handle of a receive for many messages.
trait Many {
    /// Returns `None` if there is no result within a short time.
    fn wait(&mut self) -> Option<NextPart>;
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<NextPart>;
    fn finish(self: Box<Self>) -> Finished;
}

impl<H: percale::endpoint::EndpointHandle> Many for ReceivingMany<H> {
    fn wait(&mut self) -> Option<NextPart> {
        match self.wait_for(SHORT) {
            Err(error) if matches!(error.cause(), Cause::TimedOut) => None,
            next => Some(next.transpose()),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<NextPart> {
        self.poll_next(context)
    }

    fn finish(self: Box<Self>) -> Finished {
        (*self).finish()
    }
}

/// A receive that the run holds.
pub(super) struct HeldMany {
    id: u64,
    life: Life,
    many: Box<dyn Many>,
    /// The address and the length of the buffer.
    buffer: (usize, usize),
    /// Whether the end of the receive was reported.
    is_ended: bool,
    /// The offsets and bytes of the messages, which the buffer contains when it is returned.
    parts: Vec<(usize, Vec<u8>)>,
}

fn start<A: Ownership + 'static>(
    endpoint: &'static Endpoint<A>,
    peer: PeerAddress,
    tag: Option<(u64, u64)>,
    buffer: Buffer,
) -> Result<Box<dyn Many>, OperationError> {
    let request = match tag {
        Some((tag, ignore)) => endpoint.tagged_recv(tag, ignore, buffer),
        None => endpoint.recv(buffer),
    };
    let request = if peer.is_specified() { request.from(peer) } else { request };
    request.many().map(|many| Box::new(many) as Box<dyn Many>)
}

impl World {
    /// Returns whether a receive of this endpoint is held.
    pub(super) fn has_many(&self, life: Life) -> bool {
        self.many.iter().flatten().any(|held| held.life == life)
    }

    pub(super) fn receive_many(
        &mut self,
        at: usize,
        from: Option<usize>,
        criteria: Criteria,
        len: usize,
        slot: usize,
    ) -> Verdict {
        let slot = slot % self.many.len();
        let Some((life, port)) = self.port(at).filter(|_| self.many[slot].is_none()) else { return Ok(()) };
        let id = self.ledger.number();
        let peer = from.map_or(PeerAddress::UNSPECIFIED, |from| self.name(from));
        self.enter(id, "safe multi-receive", at, from, true);
        self.ledger
            .receive(id, LedgerReceive { home: ReceiveHome::Own(life), criteria, capacity: len, is_ordered: true });
        let buffer = Buffer::from(vec![0xEE; len]);
        let place = place_of(&buffer);
        match on!(port, endpoint => start(endpoint, peer, criteria.tag, buffer)) {
            Ok(many) => {
                self.many[slot] = Some(HeldMany { id, life, many, buffer: place, is_ended: false, parts: Vec::new() });
                Ok(())
            }
            Err(error) => self.refused_safe(id, &error),
        }
    }

    /// Executes an operation on a receive for many messages.
    pub(super) fn many(&mut self, slot: usize, what: ManyStep) -> Verdict {
        let slot = slot % self.many.len();
        let Some(held) = &mut self.many[slot] else { return Ok(()) };
        match what {
            ManyStep::Poll(waking) => {
                let (_bell, waker) = RecordingWaker::new(waking);
                match held.many.poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(next) => self.next_part(slot, next),
                    Poll::Pending => self.no_part(slot),
                }
            }
            ManyStep::Wait => match held.many.wait() {
                Some(next) => self.next_part(slot, next),
                None => self.no_part(slot),
            },
            ManyStep::Drop | ManyStep::Forget => {
                self.let_go_of_one_many(slot, what == ManyStep::Forget);
                Ok(())
            }
        }
    }

    /// Checks that a receive without a result has not ended.
    fn no_part(&self, slot: usize) -> Verdict {
        match &self.many[slot] {
            Some(HeldMany { id, is_ended: true, .. }) => {
                let text = format!("safe multi-receive {id} has ended, and a wait for it does not end");
                Err(Fault::new("finished handle acted", text))
            }
            _ => Ok(()),
        }
    }

    /// Handles a result of a receive.
    fn next_part(&mut self, slot: usize, next: NextPart) -> Verdict {
        let Some(held) = &mut self.many[slot] else { return Ok(()) };
        let id = held.id;
        match next {
            Some(_) if held.is_ended => {
                let text = format!("safe multi-receive {id} had ended, and returned a result");
                Err(Fault::new("finished handle acted", text))
            }
            Some(part) => {
                held.parts.extend(part.as_ref().ok().map(|part| (part.offset, part.bytes.clone())));
                self.part(id, part)
            }
            None if held.is_ended => Ok(()),
            None => {
                held.is_ended = true;
                self.ledger.end(id, Ok(()))
            }
        }
    }

    /// Handles a message of a receive, or the error of one.
    fn part(&mut self, id: u64, part: Result<Part, OperationError>) -> Verdict {
        self.results += 1;
        let Some(receive) = self.ledger.received_by(id).copied() else { return Ok(()) };
        let at = self.ledger.operation(id).and_then(|operation| operation.at);
        let place = self.seats.iter().position(|seat| seat.open.as_ref().is_some_and(|open| Some(open.life) == at));
        let (Some(life), Some(place)) = (at, place) else { return Ok(()) };
        match part {
            Ok(part) => {
                let source = self.source(part.source.unwrap_or(PeerAddress::UNSPECIFIED))?;
                let (len, offset, bytes) = (part.bytes.len(), part.offset, &part.bytes[..]);
                if offset.checked_add(len).is_none_or(|end| end > receive.capacity) {
                    let text = format!("safe multi-receive {id}: {len} bytes at offset {offset} of {receive:?}");
                    return Err(Fault::new("wrong length", text));
                }
                let tag = receive.criteria.tag.map(|_| part.tag);
                let report = MessageReport { len, tag, data: part.data, source, bytes, overflow: 0, offset };
                self.ledger.arrive((life, EndpointAddress(place as u32)), id, &report).map(|_| ())
            }
            Err(error) => match error.cause() {
                Cause::Completion(error) if error.error == ErrorCode::Truncated => {
                    let entry = &error.entry;
                    let data = entry.flags.contains(CompletionFlags::REMOTE_DATA).then_some(entry.data);
                    let message = data.and_then(|number| self.ledger.message_mut(number));
                    match message {
                        // The handle does not give access to the bytes of a truncated message.
                        Some(message) => (message.arrivals, message.may_be_lost) = (message.arrivals + 1, true),
                        None => {
                            let len = entry.len as usize + error.overflow as usize;
                            let here = Some(EndpointAddress(place as u32));
                            self.ledger.arrived_nameless(here, &receive.criteria, len);
                        }
                    }
                    Ok(())
                }
                cause => {
                    let may = |operation: &crate::search::ledger::Operation| {
                        operation.may_fail || operation.is_closed || operation.is_cancelled
                    };
                    if self.ledger.operation(id).is_some_and(may) {
                        return Ok(());
                    }
                    Err(Fault::new("failed without a cause", format!("safe multi-receive {id}: {cause}")))
                }
            },
        }
    }

    fn let_go_of_one_many(&mut self, slot: usize, forget: bool) {
        let Some(HeldMany { id, life, many, is_ended, .. }) = self.many[slot].take() else { return };
        self.let_go(id, is_ended);
        if forget {
            self.forget(Some(life), many);
        }
    }

    /// Drops or forgets the receives of an endpoint.
    pub(super) fn let_go_of_many(&mut self, life: Life, forget: bool) {
        for slot in 0..self.many.len() {
            if self.many[slot].as_ref().is_some_and(|held| held.life == life) {
                let forget = forget && self.random.below(2) == 0;
                self.let_go_of_one_many(slot, forget);
            }
        }
    }

    /// Takes the results of all receives.
    pub(super) fn settle_many(&mut self) -> Verdict {
        for slot in 0..self.many.len() {
            while let Some(HeldMany { many, is_ended: false, .. }) = &mut self.many[slot]
                && let Poll::Ready(next) = many.poll(&mut Context::from_waker(std::task::Waker::noop()))
            {
                self.next_part(slot, next)?;
            }
            if self.many[slot].as_ref().is_some_and(|held| held.is_ended) && !self.settings.again {
                self.many[slot] = None;
            }
        }
        Ok(())
    }

    /// Finishes all receives, when no message is on its way to them. Checks the returned buffers and results.
    pub(super) fn finish_many(&mut self) -> Verdict {
        for slot in 0..self.many.len() {
            let Some(HeldMany { id, many, buffer, is_ended, mut parts, .. }) = self.many[slot].take() else { continue };
            if let Some(operation) = self.ledger.operation_mut(id) {
                operation.is_cancelled = true;
            }
            let Finished { buffer: found, unread } = many.finish();
            if is_ended && !unread.is_empty() {
                let text = format!("safe multi-receive {id} had ended, and returned {} results", unread.len());
                return Err(Fault::new("finished handle acted", text));
            }
            if place_of(&found) != buffer {
                let text = format!("safe multi-receive {id} owned {buffer:x?} and returned {:x?}", place_of(&found));
                return Err(Fault::new("foreign buffer", text));
            }
            for part in unread {
                parts.extend(part.as_ref().ok().map(|part| (part.offset, part.bytes.clone())));
                self.part(id, part)?;
            }
            let whole = found.as_slice().unwrap_or_default();
            if let Some((offset, bytes)) = parts.iter().find(|(offset, bytes)| !whole[*offset..].starts_with(bytes)) {
                let text = format!("the buffer of safe multi-receive {id}: {} bytes at offset {offset}", bytes.len());
                return Err(Fault::new("wrong bytes", text));
            }
            if !is_ended {
                self.ledger.end(id, Ok(()))?;
            }
            self.returns.keep(id, found.into_vec())?;
        }
        Ok(())
    }
}
