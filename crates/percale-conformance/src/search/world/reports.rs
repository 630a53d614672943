//! Reads and handles reports.

use percale::{CompletionFlags, CompletionQueue, Entry, ErrorCode, ErrorEntry};

use super::{EndpointAddress, World, on};
use crate::search::ledger::{Criteria, Fault, LedgerReceive, MessageReport, Operation, Verdict};
use crate::search::payload;

/// The report of a receive, and the ledger's record of the receive.
struct ReceiveReport<'a> {
    report: Result<&'a Entry, &'a ErrorEntry>,
    /// The entry of a success, or of an error.
    entry: Entry,
    result: Result<(), (ErrorCode, &'a str)>,
    operation: &'a Operation,
    receive: LedgerReceive,
}

impl ReceiveReport<'_> {
    /// Returns whether the receive accepts several messages.
    fn is_multi(&self) -> bool {
        self.operation.what.ends_with("multi-receive")
    }

    /// Returns whether a buffer for several messages is released.
    fn is_released(&self) -> bool {
        self.entry.flags.contains(CompletionFlags::MULTI_RECEIVE)
    }

    /// Returns whether a message arrived.
    fn has_message(&self) -> bool {
        match self.report {
            Ok(entry) => !self.is_multi() || entry.len > 0 || entry.flags.contains(CompletionFlags::REMOTE_DATA),
            Err(error) => error.error == ErrorCode::Truncated,
        }
    }

    /// Returns the number of bytes of the message that did not fit.
    fn overflow(&self) -> u64 {
        self.report.map_or_else(|error| error.overflow, |_| 0)
    }

    /// Returns the length of the message, including the bytes that did not fit.
    fn came(&self) -> u64 {
        self.entry.len + self.overflow()
    }
}

impl World {
    pub(super) fn poll(&mut self, at: usize, count: usize) -> Verdict {
        let Some((_, port)) = self.port(at) else { return Ok(()) };
        let mut entries = [Entry::default(); 16];
        let count = count.clamp(1, 16);
        match on!(port, endpoint => endpoint.poll(&mut entries[..count])) {
            Ok(count) => entries[..count].iter().try_for_each(|entry| self.handle_report(Some(at), Ok(entry))),
            Err(_) => match on!(port, endpoint => endpoint.read_error()) {
                Some(error) => self.handle_report(Some(at), Err(&error)),
                None => Err(Fault::new("no error", "a poll reported an error entry, but none exists")),
            },
        }
    }

    pub(super) fn read(&mut self, queue: usize, count: usize) -> Verdict {
        let queue: CompletionQueue = self.queues[queue].clone();
        let mut entries = [Entry::default(); 16];
        let count = count.clamp(1, 16);
        match queue.read(&mut entries[..count]) {
            Ok(count) => entries[..count].iter().try_for_each(|entry| self.handle_report(None, Ok(entry))),
            Err(_) => match queue.read_error() {
                Some(error) => self.handle_report(None, Err(&error)),
                None => Err(Fault::new("no error", "a read reported an error entry, but none exists")),
            },
        }
    }

    /// Handles a report of an endpoint, or of a queue that several endpoints use.
    fn handle_report(&mut self, at: Option<usize>, report: Result<&Entry, &ErrorEntry>) -> Verdict {
        self.results += 1;
        let entry = report.map_or_else(|error| error.entry, |entry| *entry);
        let id = entry.context;
        if id == 0 && report.is_err() {
            return Ok(()); // The failure of an injected message.
        }
        let Some(operation) = self.ledger.operation(id).cloned() else {
            return Err(Fault::new(
                "unknown context",
                format!("{report:?} is reported, but no such operation was posted"),
            ));
        };
        let result = report.map(|_| ()).map_err(|error| (error.error, error.text.as_ref()));
        if operation.is_closed && operation.what.contains("receive") {
            // The operation was reported before its endpoint was closed, and the report is read only now. Its memory
            // belongs to the application again.
            let is_released =
                !operation.what.ends_with("multi-receive") || entry.flags.contains(CompletionFlags::MULTI_RECEIVE);
            return if is_released { self.ledger.end(id, result) } else { Ok(()) };
        }
        let Some(receive) = self.ledger.received_by(id).copied() else {
            return self.over(id, result);
        };
        self.receive_reported(at, &ReceiveReport { report, entry, result, operation: &operation, receive })
    }

    /// Handles the report of a receive.
    fn receive_reported(&mut self, at: Option<usize>, report: &ReceiveReport<'_>) -> Verdict {
        let ReceiveReport { entry, operation, receive, .. } = report;
        if !report.has_message() || operation.what.ends_with("discard") {
            if operation.what.ends_with("discard") && report.result.is_ok() {
                // The report does not always identify the message. Any matching message may have been discarded.
                self.discarded(at, entry, &receive.criteria);
            }
            if report.is_multi() && !report.is_released() && report.result.is_err() {
                return Ok(()); // A message failed; the buffer stays in use.
            }
            return self.receive_over(report);
        }
        let Some(place) = self.receiver(at, operation, entry)? else {
            let came = report.came() as usize;
            self.ledger.arrived_nameless(None, &receive.criteria, came);
            let stays = report.is_multi() && !report.is_released();
            return if stays { Ok(()) } else { self.over(entry.context, report.result) };
        };
        match operation.what {
            "peek" | "claim" => self.message_seen(place, report),
            _ => self.message_received(place, report),
        }
    }

    /// Handles a message that a peek or a claim has found.
    fn message_seen(&mut self, place: usize, report: &ReceiveReport<'_>) -> Verdict {
        let (entry, id) = (&report.entry, report.entry.context);
        if entry.flags.contains(CompletionFlags::REMOTE_DATA) {
            self.ledger.seen(EndpointAddress(place as u32), entry.data, &report.receive.criteria, false)?;
        }
        if report.operation.what == "claim"
            && let Some(open) = &mut self.seats[place].open
        {
            open.claimed.push(id);
        }
        self.over(id, report.result)
    }

    /// Handles a message that arrived at a place. Checks it, and ends the receive unless its buffer has room for more
    /// messages.
    fn message_received(&mut self, place: usize, report: &ReceiveReport<'_>) -> Verdict {
        let ReceiveReport { entry, operation, receive, .. } = report;
        let id = entry.context;
        let source = self.source(entry.source)?;
        let (len, overflow) = (entry.len as usize, report.overflow() as usize);
        let (offset, bytes) = self.received_bytes(report, len)?;
        let data = entry.flags.contains(CompletionFlags::REMOTE_DATA).then_some(entry.data);
        let tag = entry.flags.contains(CompletionFlags::TAGGED).then_some(entry.tag);
        let message = MessageReport { len, tag, data, source, bytes: &bytes, overflow, offset };
        let life = self.seats[place].open.as_ref().map(|open| open.life);
        let life = operation.at.or(life).unwrap_or(crate::search::ledger::Life(u32::MAX));
        if report.is_multi() || data.is_some() || len >= 8 {
            self.ledger.arrive((life, EndpointAddress(place as u32)), id, &message)?;
        } else {
            self.ledger.arrived_nameless(Some(EndpointAddress(place as u32)), &receive.criteria, len + overflow);
        }
        if report.is_multi() && !report.is_released() {
            return Ok(());
        }
        self.receive_over(report)
    }

    /// Returns the offset of a received message in the buffer of its receive, and its bytes.
    fn received_bytes(&self, report: &ReceiveReport<'_>, len: usize) -> Verdict<(usize, Vec<u8>)> {
        let ReceiveReport { entry, operation, receive, .. } = report;
        let id = entry.context;
        // The queue of another member may already have reported the release of the buffer. Its contents at that time
        // are used then.
        let (address, whole) = match (self.lent.get(&id).and_then(|lent| lent.first()), self.released.get(&id)) {
            (Some(lent), _) => (lent.address(), None),
            (None, Some((address, whole))) => (*address, Some(whole)),
            (None, None) => {
                let text = format!("{} {id} got a message after it had ended: {entry:?}", operation.what);
                return Err(Fault::new("ended twice", text));
            }
        };
        let room = receive.capacity;
        let offset = if report.is_multi() { entry.buffer.wrapping_sub(address) as usize } else { 0 };
        if offset.checked_add(len).is_none_or(|end| end > room) {
            let text = format!("{} {id}: {len} bytes at offset {offset} of {room}: {entry:?}", operation.what);
            return Err(Fault::new("wrong length", text));
        }
        let bytes = match (whole, self.lent.get(&id).and_then(|lent| lent.first())) {
            (Some(whole), _) => whole[offset..offset + len].to_vec(),
            (None, Some(lent)) => lent.read(offset, len),
            (None, None) => Vec::new(),
        };
        Ok((offset, bytes))
    }

    /// Ends a receive and releases its buffer.
    fn receive_over(&mut self, report: &ReceiveReport<'_>) -> Verdict {
        let id = report.entry.context;
        self.release(id, report.is_multi() && report.operation.at.is_none());
        self.over(id, report.result)
    }

    /// Releases a shared buffer. Its contents are kept for reports in other queues.
    fn release(&mut self, id: u64, is_shared: bool) {
        if is_shared && let Some(lent) = self.lent.get(&id).and_then(|lent| lent.first()) {
            self.released.insert(id, (lent.address(), lent.read(0, lent.len())));
        }
    }

    /// Returns the place at which the message of an operation arrived. This is the place of the operation or, for a
    /// shared receive, the target of the message.
    fn receiver(&self, at: Option<usize>, operation: &Operation, entry: &Entry) -> Verdict<Option<usize>> {
        if let Some(life) = operation.at {
            let place = self
                .seats
                .iter()
                .position(|opened_endpoint| opened_endpoint.open.as_ref().is_some_and(|open| open.life == life));
            if let (Some(at), Some(place)) = (at, place)
                && at != place
            {
                let text = format!("{entry:?} of an operation at place {place} is reported at place {at}");
                return Err(Fault::new("reported elsewhere", text));
            }
            return Ok(place);
        }
        if at.is_some() {
            return Ok(at);
        }
        let id = entry.context;
        let bytes = self.lent.get(&id).and_then(|lent| lent.first()).map(|lent| {
            let offset = entry.buffer.checked_sub(lent.address()).filter(|_| entry.buffer != 0).unwrap_or(0) as usize;
            lent.read(offset.min(lent.len()), 8.min(lent.len().saturating_sub(offset)))
        });
        let number = entry.flags.contains(CompletionFlags::REMOTE_DATA).then_some(entry.data);
        let number = number.or_else(|| bytes.as_deref().and_then(payload::name_of));
        Ok(number.and_then(|number| self.ledger.message(number)).map(|message| message.to.0 as usize))
    }

    fn discarded(&mut self, at: Option<usize>, entry: &Entry, criteria: &Criteria) {
        let number = entry.flags.contains(CompletionFlags::REMOTE_DATA).then_some(entry.data);
        for (id, message) in self.ledger.messages_mut() {
            let here = at.is_none_or(|at| message.to.0 as usize == at);
            if here && message.arrivals == 0 && criteria.fits(message) && number.is_none_or(|number| number == id) {
                message.may_be_lost = true;
            }
        }
    }

    /// Handles the end of an operation. Its memory belongs to the application again.
    pub(super) fn over(&mut self, id: u64, result: Result<(), (ErrorCode, &str)>) -> Verdict {
        if let Err((code, _)) = result
            && let Some(message) = self.ledger.message_mut(id)
            && code != ErrorCode::Truncated
        {
            message.may_be_lost = true;
        }
        self.ledger.end(id, result)?;
        self.accessed(id, result.is_ok(), None)?;
        self.summed(id, result.is_ok())?;
        self.give_back(id)
    }
}
