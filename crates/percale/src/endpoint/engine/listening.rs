//! A listener, which receives connection requests and sends the answers of its owner.
//!
//! A requester stays connected until it gets its answer, or gives up. Its request is valid for that time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Engine;
use super::types::LinkAction;
use crate::completion::event::Event;
use crate::completion::request::{ConnectionRequest, RequestData};
use crate::endpoint::connection::{ConnectionError, Requested};
use crate::endpoint::ownership::WeakShared;
use crate::system::forked::ProcessMutex;
use crate::transport::ConnectionId;
use crate::transport::shm::Doorbell;
use crate::wire::control::{Control, Rejection};

/// The maximum number of a listener's connections that have no request waiting for an answer.
const IDLE: usize = 2048;

/// The state of a listener: the connection requests that have no answer yet.
#[derive(Debug)]
pub(crate) struct Listening {
    /// The number of requests that may wait for an answer.
    backlog: usize,
    anywhere: bool,
    next: u64,
    /// The requesters of unanswered requests, by the number of the request.
    pending: HashMap<u64, ConnectionId>,
    /// The peers that have sent a request, with the number of the request until it was answered.
    requests: HashMap<ConnectionId, Option<u64>>,
    /// All connected peers, in the order in which they connected.
    connected: VecDeque<ConnectionId>,
    /// The listener through which requests are answered. Set once the listener exists.
    owner: Option<WeakShared>,
    dropped_requests: Option<Arc<DroppedRequests>>,
}

/// Connection requests that the application dropped. The thread that drops a request may hold any lock, including the
/// listener's, so the request is only recorded here.
#[derive(Debug)]
pub(crate) struct DroppedRequests {
    any: AtomicBool,
    numbers: ProcessMutex<Vec<u64>>,
    doorbell: Arc<Doorbell>,
}

impl DroppedRequests {
    /// Records that this request was dropped, perhaps after it was answered.
    pub(crate) fn push(&self, number: u64) {
        let Some(mut numbers) = self.numbers.lock() else { return }; // In a forked child, the parent answers it.
        numbers.push(number);
        drop(numbers);
        self.any.store(true, Ordering::Release);
        self.doorbell.wake();
    }

    fn take(&self) -> Vec<u64> {
        if !self.any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        self.numbers.lock().map_or_else(Vec::new, |mut numbers| std::mem::take(&mut *numbers))
    }
}

impl Listening {
    pub(crate) fn new(backlog: usize, anywhere: bool) -> Self {
        let (pending, requests, connected) = (HashMap::new(), HashMap::new(), VecDeque::new());
        Self { backlog, anywhere, next: 1, pending, requests, connected, owner: None, dropped_requests: None }
    }
}

impl Engine {
    /// Sets the listener through which requests are answered from now on.
    pub(crate) fn listen(&mut self, owner: WeakShared) {
        let dropped_requests = DroppedRequests {
            any: AtomicBool::new(false),
            numbers: ProcessMutex::default(),
            doorbell: Arc::clone(&self.doorbell),
        };
        if let Some(listening) = self.listening() {
            (listening.owner, listening.dropped_requests) = (Some(owner), Some(Arc::new(dropped_requests)));
        }
    }

    /// Sets the number of requests that may wait for an answer from now on.
    pub(crate) fn set_backlog(&mut self, backlog: usize) {
        if let Some(listening) = self.listening() {
            listening.backlog = backlog;
        }
    }

    /// Returns the number of requests that wait for an answer.
    pub(crate) fn pending_requests(&mut self) -> usize {
        self.listening().map_or(0, |listening| listening.pending.len())
    }

    /// Handles new requests, and rejects requests that the application dropped without an answer.
    pub(super) fn poll_listener(&mut self) {
        for (from, control) in self.core.take_control_frames() {
            match control {
                Control::Request { data } => self.handle_connection_request(from, data),
                _ => self.core.peers.flag_violation(from, "unexpected reply at a listener"),
            }
        }
        let dropped_requests = self
            .listening()
            .and_then(|listening| listening.dropped_requests.as_ref().map(|dropped_requests| dropped_requests.take()));
        for number in dropped_requests.unwrap_or_default() {
            let unanswered = Control::Rejected { why: Rejection::Unanswered, data: Vec::new() };
            if self.answer_request(number, &unanswered).is_ok() {
                crate::later::later!(warn: "a connection request was dropped without a reply");
            }
        }
    }

    fn handle_connection_request(&mut self, from: ConnectionId, data: Vec<u8>) {
        let (address, incarnation) = (self.core.peers.get(from).address(), self.core.peers.get(from).incarnation());
        let at = self.address();
        let Some(listening) = self.listening() else { return };
        if listening.requests.contains_key(&from) {
            return self.core.peers.flag_violation(from, "second request on one connection");
        }
        let (Some(owner), Some(dropped_requests)) = (&listening.owner, &listening.dropped_requests) else { return };
        if listening.pending.len() >= listening.backlog {
            listening.requests.insert(from, None);
            return self.send_control(from, &Control::Rejected { why: Rejection::Backlog, data: Vec::new() });
        }
        let number = listening.next;
        listening.next += 1;
        let request = ConnectionRequest::new(RequestData {
            number,
            listener: Box::new(Requested { listener: owner.clone(), dropped_requests: Arc::clone(dropped_requests) }),
            at,
            anywhere: listening.anywhere,
            from: address,
            incarnation,
            data,
        });
        listening.pending.insert(number, from);
        listening.requests.insert(from, Some(number));
        self.core.event(|| Event::ConnectionRequest(request));
    }

    /// Answers a request.
    ///
    /// # Errors
    /// If the requester is disconnected, or has an answer already.
    pub(crate) fn answer_request(&mut self, number: u64, answer: &Control) -> Result<(), ConnectionError> {
        if !self.process.is_here() {
            return Err(self.refused_connection());
        }
        self.progress(); // The requester may have disconnected.
        let listening = self.listening().ok_or(ConnectionError::Gone)?;
        let slot = listening.pending.remove(&number).ok_or(ConnectionError::Gone)?;
        listening.requests.insert(slot, None);
        self.send_control(slot, answer);
        Ok(())
    }

    /// Records a new connection of a requester. The number of connections that have no request waiting for an answer is
    /// bounded: above the bound, the oldest of them is closed.
    pub(super) fn listener_link(&mut self, slot: ConnectionId) {
        let Some(listening) = self.listening() else { return };
        listening.connected.push_back(slot);
        if listening.connected.len() <= listening.pending.len() + IDLE {
            return;
        }
        let waits = |slot: &ConnectionId| matches!(listening.requests.get(slot), Some(Some(_)));
        if let Some(oldest) = listening.connected.iter().copied().find(|slot| !waits(slot)) {
            self.core.peers.flag_violation(oldest, "timeout: the peer sent no connection request");
        }
    }

    /// Removes a requester that has disconnected.
    pub(super) fn listener_over(&mut self, slot: ConnectionId) {
        self.core.admission.forget(slot);
        let Some(listening) = self.listening() else { return };
        listening.connected.retain(|other| *other != slot);
        if let Some(Some(number)) = listening.requests.remove(&slot) {
            listening.pending.remove(&number);
        }
        self.core.peers.give_up(slot);
    }

    /// Sends a control frame.
    pub(super) fn send_control(&mut self, to: ConnectionId, control: &Control) {
        let (head, payload) = control.to_frame();
        self.core.peers.push(to, LinkAction::Bytes(head, payload.into()));
        self.act();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A request that is dropped while earlier ones are taken is taken by that call or by the next one.
    #[test]
    fn request_dropped_while_others_are_taken_is_not_lost() {
        let (any, numbers) = (AtomicBool::new(false), ProcessMutex::default());
        let dropped = DroppedRequests { any, numbers, doorbell: Arc::new(Doorbell::private().unwrap()) };
        for round in 0..400 {
            dropped.push(1);
            let held = dropped.numbers.lock().unwrap();
            let mut taken = std::thread::scope(|scope| {
                let takes = scope.spawn(|| dropped.take());
                // While another thread waits for the lock too, the thread that takes the numbers spends more time on
                // unlocking it.
                let _waits = (round % 2 == 0).then(|| scope.spawn(|| drop(dropped.numbers.lock())));
                // In most rounds these threads wait for the lock after this time.
                std::thread::sleep(Duration::from_micros(200));
                drop(held);
                while !dropped.numbers.lock().unwrap().is_empty() {
                    std::hint::spin_loop();
                }
                dropped.push(2);
                takes.join().unwrap()
            });
            taken.extend(dropped.take());
            assert_eq!(taken, [1, 2], "in round {round}");
        }
    }
}
