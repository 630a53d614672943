//! The allowed results of operations of an endpoint, and the checks of received data.

use percale::endpoint::Ownership;
use percale::endpoint::safe::{Cause, OperationError};
use percale::{CompletionFlags, Entry, ErrorCode, ErrorEntry, Event, PeerAddress};

use super::{CELL, FINISH_LIMIT, REQUEST, WorkerEndpoint};
use crate::search_processes::class::{ANSWER, BAD, LATE_ANSWER, MULTI, POOLED, SHORT, TAGGED};
use crate::search_processes::ledger::{RawKind, WorkerLedger};
use crate::search_processes::message::{self, Identity};
use crate::search_processes::plan::OPERATION_TIMEOUT;
use crate::search_processes::task::{OperationEnd, Task};

impl<A: Ownership + 'static> WorkerEndpoint<A> {
    /// Handles the end of a raw operation, or the arrival of one message of a multi-receive.
    pub(crate) fn ended(&mut self, ledger: &mut WorkerLedger, result: Result<Entry, ErrorEntry>) {
        let entry = match &result {
            Ok(entry) => *entry,
            Err(error) => error.entry,
        };
        let released = entry.flags.contains(CompletionFlags::MULTI_RECEIVE);
        if let (0, Err(error)) = (entry.context, &result) {
            // Injected operations have no completion, but their failures are reported.
            return self.judge(ledger, error.error, &error.to_string(), false, 0, 0, "an inject");
        }
        let Some(mut raw) = ledger.take(entry.context) else {
            let what =
                format!("port {} reports {:?} of an operation that has ended or does not exist", self.port, result);
            return ledger.fault(&what);
        };
        let error = result.as_ref().err().map(|error| (error.error, error.to_string()));
        if raw.what == RawKind::Receive {
            if let Some((code, text)) = &error {
                self.judge(ledger, *code, text, raw.cancelled, raw.class, raw.port, "a receive");
            } else if let Some(block) = &raw.block {
                let base = block.as_ptr().addr() as u64;
                let from = if raw.multi && entry.len > 0 { entry.buffer.wrapping_sub(base) as usize } else { 0 };
                let posted = (!raw.multi && ![MULTI, ANSWER, LATE_ANSWER].contains(&raw.class)).then_some(raw.number);
                match block.get(from..from.wrapping_add(entry.len as usize)) {
                    Some(bytes) => self.arrived(ledger, raw.class, posted, &entry, bytes),
                    None => ledger.fault(&format!("{entry:?} lies outside of its buffer of {} bytes", block.len())),
                }
            }
            if error.is_none() {
                ledger.matched(&raw);
            }
            if raw.multi && !released {
                return ledger.put_back(entry.context, raw);
            }
            if let Some(call) = raw.call {
                self.calls.remove(&call);
            }
        } else {
            self.over(ledger, raw.call, raw.class, raw.port, raw.cancelled, raw.what != RawKind::Send, error);
            if let (RawKind::Read(region), Some(block), Ok(_)) = (&raw.what, &raw.block, &result) {
                check_cells(ledger, block, *region, raw.port);
            }
        }
        if let Some(block) = raw.block.take() {
            ledger.graves.add_freed(block, format!("{:?} of class {} at port {}", raw.what, raw.class, self.port));
        }
    }

    /// Handles the end of a send or an access.
    #[expect(clippy::too_many_arguments, reason = "the properties of the operation")]
    fn over(
        &mut self,
        ledger: &mut WorkerLedger,
        call: Option<u64>,
        class: u8,
        port: u16,
        cancelled: bool,
        is_access: bool,
        error: Option<(ErrorCode, String)>,
    ) {
        ledger.counts.ended += 1;
        match (error, call) {
            (None, Some(call)) => {
                if let Some(call) = self.calls.get_mut(&call) {
                    call.delivered = true;
                }
            }
            (None, None) => {}
            (Some((code, text)), call) => {
                let excused = is_access && matches!(code, ErrorCode::KeyRejected);
                if !excused {
                    self.judge(
                        ledger,
                        code,
                        &text,
                        cancelled,
                        class,
                        port,
                        if is_access { "an access" } else { "a send" },
                    );
                }
                if let Some(call) = call {
                    self.give_up(ledger, call);
                }
            }
        }
    }

    /// Checks whether an operation may fail with this error.
    #[expect(clippy::too_many_arguments, reason = "the properties of the operation")]
    fn judge(
        &self,
        ledger: &mut WorkerLedger,
        code: ErrorCode,
        text: &str,
        cancelled: bool,
        class: u8,
        port: u16,
        what: &str,
    ) {
        ledger.counts.failed += 1;
        let excused =
            class == SHORT || class == BAD || cancelled && code == ErrorCode::Canceled || is_misled(ledger, text);
        let never = matches!(
            code,
            ErrorCode::Protocol
                | ErrorCode::Fault
                | ErrorCode::Io
                | ErrorCode::Invalid
                | ErrorCode::Denied
                | ErrorCode::Misaligned
                | ErrorCode::Truncated
                | ErrorCode::Busy
        ) && !ledger.plan.has("pose");
        if !excused && (never || ledger.plan.is_strict() && !ledger.parting) {
            let own = self.port;
            ledger.fault(&format!("{what} of class {class} at port {own} to port {port} failed with {code:?}: {text}"));
        }
    }

    /// Handles the arrival of a message.
    fn arrived(&mut self, ledger: &mut WorkerLedger, class: u8, posted: Option<u64>, entry: &Entry, bytes: &[u8]) {
        ledger.counts.received += 1;
        if !entry.flags.contains(CompletionFlags::REMOTE_DATA) {
            return ledger.stranger(&format!(
                "a message without data of {} bytes arrived at port {}",
                bytes.len(),
                self.port
            ));
        }
        let identity = Identity::unpack(entry.data);
        if class == POOLED {
            // Any endpoint of the shared context may have received it.
            let mut ports = ledger.own_ports.iter();
            if ports.all(|&port| message::examine(entry.data, bytes, false, port).is_some()) {
                let wrong = message::examine(entry.data, bytes, false, self.port).unwrap_or_default();
                ledger.fault(&format!("a message of the shared context: {wrong}"));
            } else if let Some(wrong) = ledger.order(0).note(class, None, identity) {
                ledger.fault(&format!("at the shared context: {wrong}"));
            }
            return;
        }
        if let Some(wrong) = message::examine(entry.data, bytes, false, self.port) {
            return ledger.fault(&format!("a message of class {class} at port {}: {wrong}", self.port));
        }
        if let Some(wrong) = ledger.order(self.id).note(class, posted, identity) {
            ledger.fault(&format!("at port {}: {wrong}", self.port));
        }
        if entry.source != PeerAddress::UNSPECIFIED
            && let (Some(from), Some(port)) = (self.vector.lookup(entry.source), ledger.book.port_of(identity.sender))
            && ledger.book.behind(from.port()) != port
        {
            let own = self.port;
            ledger.fault(&format!("at port {own}: {identity:?} of port {port} is reported as one of {from}"));
        }
        if class == TAGGED && entry.tag & REQUEST != 0 && entry.source != PeerAddress::UNSPECIFIED {
            let len = ledger.length_at((entry.tag >> 24 & 0xff) as usize);
            self.owed.push((entry.source, u64::from(ANSWER) << 56 | entry.tag & 0xff_ffff, len));
        }
    }

    /// Polls tasks that were woken, or all tasks. Returns whether one has ended.
    pub(crate) fn poll_tasks(&mut self, ledger: &mut WorkerLedger, all: bool) -> bool {
        let mut any = false;
        let mut index = 0;
        while index < self.tasks.len() {
            match self.tasks[index].poll(all) {
                Some(end) => {
                    let task = self.tasks.swap_remove(index);
                    self.task_ended(ledger, &task, end);
                    any = true;
                }
                None => index += 1,
            }
        }
        any
    }

    pub(crate) fn task_ended(&mut self, ledger: &mut WorkerLedger, task: &Task, end: OperationEnd) {
        let what = format!("the buffer of {} at port {}", task.what, self.port);
        match end {
            OperationEnd::Received(result) => {
                let class = task.class.unwrap_or_default();
                if class == ANSWER
                    && let Some(call) = task.call
                {
                    self.calls.remove(&call);
                }
                match result {
                    Ok(received) => {
                        let mut flags = CompletionFlags::RECEIVE;
                        flags.set(CompletionFlags::REMOTE_DATA, received.data.is_some());
                        let entry = Entry {
                            flags,
                            data: received.data.unwrap_or_default(),
                            tag: received.tag,
                            source: received.source.unwrap_or(PeerAddress::UNSPECIFIED),
                            ..Entry::default()
                        };
                        let posted = (class != ANSWER).then_some(task.number);
                        self.arrived(ledger, class, posted, &entry, &received.to_vec());
                        ledger.matched_task(self.id, class, task.number);
                        ledger.graves.add_freed(received.buffer, what);
                    }
                    Err(error) => {
                        let (code, text) = cause(&error);
                        self.judge(ledger, code, &text, false, class, task.port, task.what);
                        error
                            .into_buffer()
                            .into_iter()
                            .for_each(|buffer| ledger.graves.add_freed(buffer, what.clone()));
                    }
                }
            }
            OperationEnd::Sent(result) => {
                let error = result.as_ref().err().map(cause);
                self.over(ledger, task.call, task.send.unwrap_or_default(), task.port, false, false, error);
                if let Some(buffer) = result.map_or_else(|error| error.into_buffer(), Some) {
                    ledger.graves.add_freed(buffer, what);
                }
            }
            OperationEnd::Accessed(result) => {
                let error = result.as_ref().err().map(cause);
                self.over(ledger, None, 0, task.port, false, true, error);
                match result {
                    Ok(buffer) => {
                        if let Some(region) = task.region {
                            let mut bytes = vec![0; buffer.len()];
                            buffer.copy_to(0, &mut bytes);
                            check_cells(ledger, &bytes, region, task.port);
                        }
                        ledger.graves.add_freed(buffer, what);
                    }
                    Err(error) => {
                        error.into_buffer().into_iter().for_each(|buffer| ledger.graves.add_freed(buffer, what.clone()))
                    }
                }
            }
        }
    }

    /// Reports operations that should have ended. Returns the number of outstanding operations, not including receives.
    pub(crate) fn overdue(&mut self, ledger: &mut WorkerLedger) -> usize {
        let own = self.port;
        for task in &mut self.tasks {
            let waits =
                task.class.is_some() && task.due.is_none() || task.send == Some(ANSWER) && !ledger.takes_answers();
            let since = task.due.unwrap_or_else(|| ledger.since(task.send, task.since));
            if !waits && since.elapsed() > OPERATION_TIMEOUT && !std::mem::replace(&mut task.reported, true) {
                let (what, port, detail) = (task.what, task.port, task.detail);
                let identity = Identity::unpack(detail);
                let late = task.since.elapsed();
                let send = task.send;
                ledger.fault(&format!(
                    "{what} at port {own} to port {port} has not ended for {late:?} (a task; {identity:?}, class {send:?})"
                ));
            }
        }
        let mut give_up = Vec::new();
        for (&number, call) in &self.calls {
            // An answer may have been lost with its connection.
            let may_be_lost = !ledger.plan.is_strict() || ledger.plan.has("drop");
            let hurried = ledger.finishing.is_some_and(|since| since.elapsed() > FINISH_LIMIT) && may_be_lost;
            if (call.since.elapsed() > OPERATION_TIMEOUT || hurried) && !call.cancelled {
                let gone = ledger.book.gone_for(call.peer);
                let dead = call.delivered
                    && gone.is_some_and(|gone| gone > OPERATION_TIMEOUT)
                    && !ledger.book.is_there(call.port);
                let lost = !may_be_lost && gone.is_none() && call.delivered;
                if dead || lost {
                    ledger.fault(&format!(
                        "no answer from port {} arrived at port {own} for {:?}; its sender {}",
                        call.port,
                        call.since.elapsed(),
                        gone.map_or_else(|| "still runs".into(), |gone| format!("ended {gone:?} ago"))
                    ));
                }
                give_up.push(number);
            }
        }
        for number in give_up {
            self.give_up(ledger, number);
        }
        self.tasks.iter().filter(|task| task.class.is_none()).count() + self.calls.len() + self.owed.len()
    }

    /// Reads the peer events.
    pub(crate) fn read_events(&self, ledger: &mut WorkerLedger) {
        while let Some(event) = self.events.read() {
            if let Event::PeerDown { address, reason, .. } | Event::Failed { address, reason, .. } = &event {
                let honest = !ledger.parting
                    && !ledger.plan.has("stranger")
                    && !ledger.plan.has("flood")
                    && !ledger.plan.has("pose")
                    && !is_misled(ledger, reason);
                if honest && !ledger.plan.has("own-address") && (ledger.plan.is_strict() || reason.contains("protocol"))
                {
                    ledger.fault(&format!("port {} lost {address}: {reason}", self.port));
                }
            }
            ledger.note(|| format!("{event:?}"));
        }
    }
}

/// Returns whether an error is the answer of a successor at the address of an endpoint that has ended. It may return the
/// identity of the calling endpoint, or send an unrelated answer.
fn is_misled(ledger: &WorkerLedger, text: &str) -> bool {
    let answers = ["the peer claims to be the calling endpoint", "unexpected verdict"];
    ledger.plan.has("successor") && answers.iter().any(|answer| text.contains(answer))
}

fn cause(error: &OperationError) -> (ErrorCode, String) {
    match error.cause() {
        Cause::Completion(entry) => (entry.error, entry.to_string()),
        other => (ErrorCode::Invalid, other.to_string()),
    }
}

/// Reports cells that do not have this tag.
pub(crate) fn check_cells(ledger: &mut WorkerLedger, bytes: &[u8], region: u64, port: u16) {
    let wrong = bytes.chunks(CELL).position(|cell| cell[..8] != region.to_le_bytes());
    if let Some(at) = wrong {
        let seen = &bytes[at * CELL..at * CELL + 16];
        ledger.fault(&format!(
            "a region of port {port}: cell {at} has {seen:02x?}, not the tag {:02x?}",
            region.to_le_bytes()
        ));
    }
}
