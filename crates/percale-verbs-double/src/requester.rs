//! The send side of a queue pair. Requests are executed in the order in which they were posted, and complete in that
//! order.
//!
//! A request to a queue pair of this process is executed at once. A request to another process is sent, and at most
//! [`WINDOW`] are sent at a time. A request that finds no receive, or no queue pair, is sent again later together with
//! all requests that follow it, because the peer ignores requests that arrive out of order.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use crate::abi;
use crate::control::operation;
use crate::exchange::Sent;
use crate::machine::Machine;
use crate::memory;
use crate::pair::{Pair, Request, RequestState};
use crate::responder::{Message, Response};

/// The maximum number of requests that are sent to another process at a time.
const WINDOW: usize = 16;
/// The delay until a request that found no queue pair is sent again.
const AGAIN: Duration = Duration::from_millis(20);
/// The delay until a request that found no receive is sent again.
const UNREADY: Duration = Duration::from_millis(1);

impl Machine {
    /// Continues with the posted requests.
    pub(crate) fn pump(&mut self, number: u32) {
        loop {
            let now = Instant::now();
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            if pair.state != abi::QPS_RTS {
                return;
            }
            if let Some(hold) = pair.hold {
                if hold > now {
                    return self.at(hold, number);
                }
                pair.hold = None;
            }
            let Some(at) = pair.sends.iter().position(|request| request.state == RequestState::Waiting) else { return };
            if at >= WINDOW {
                return;
            }
            if let Some(ready) = pair.sends[at].ready.filter(|ready| *ready > now) {
                return self.at(ready, number);
            }
            let request = pair.sends[at].clone();
            let sequence = pair.first + at as u64;
            if !self.begin(number, at, sequence, &request) {
                return;
            }
        }
    }

    /// Executes a request, or sends it. Returns whether the next one may begin.
    fn begin(&mut self, number: u32, at: usize, sequence: u64, request: &Request) -> bool {
        let (context, domain) = match self.pairs.get(&number) {
            Some(pair) => (pair.context, pair.domain),
            None => return false,
        };
        let (device, is_first) = (self.device(context), at == 0);
        // A request that must fail fails when all requests before it have completed.
        if is_first && let Some(status) = device.fails(operation(request.opcode)) {
            return self.done(number, at, status, 0);
        }
        let lax = device.settings.lax;
        match request.opcode {
            abi::WR_BIND_MW => {
                let status = match request.bind {
                    Some((_, key, bound)) => self.keys.bind(key, domain, (request.region, bound)).err().unwrap_or(0),
                    None => abi::WC_LOC_QP_OP_ERR,
                };
                self.done(number, at, status, 0)
            }
            abi::WR_LOCAL_INV => {
                let status =
                    self.keys.invalidate(request.immediate, number, lax).err().map_or(0, |()| abi::WC_MW_BIND_ERR);
                self.done(number, at, status, 0)
            }
            _ => self.begin_remote(number, at, sequence, domain, request),
        }
    }

    fn begin_remote(&mut self, number: u32, at: usize, sequence: u64, domain: u32, request: &Request) -> bool {
        let reads = request.opcode == abi::WR_RDMA_READ;
        let Some(data) = self.gather(domain, request, reads) else {
            // Earlier requests complete first.
            return at == 0 && self.done(number, at, abi::WC_LOC_PROT_ERR, 0);
        };
        let len: u64 = request.parts.iter().map(|part| u64::from(part.length)).sum();
        let Some(Pair { peer: Some(peer), sequence: start, context, port, .. }) = self.pairs.get(&number) else {
            return false;
        };
        let (to, context, port) = (peer.number, *context, *port);
        let message = Message {
            from: number,
            to,
            gid: peer.gid,
            start: *start,
            sequence,
            opcode: request.opcode,
            immediate: request.immediate,
            remote: request.remote,
            len: if reads { len as u32 } else { data.len() as u32 },
            data,
        };
        let settings = &self.device(context).settings;
        let answer = if settings.drop || settings.drop_port == port {
            Some(Response::Nobody)
        } else if self.network.as_ref().is_some_and(|network| network.is_ours(to)) {
            Some(self.respond(&message))
        } else {
            match self.send(&message) {
                Sent::Nobody => Some(Response::Nobody),
                Sent::Yes => None,
            }
        };
        let Some(answer) = answer else {
            if let Some(request) = self.pairs.get_mut(&number).and_then(|pair| pair.sends.get_mut(at)) {
                request.state = RequestState::Sent;
            }
            return true;
        };
        self.answered(number, sequence, answer, false)
    }

    /// Returns the bytes of a request, or `None` if it refers to memory that is not registered.
    fn gather(&self, domain: u32, request: &Request, reads: bool) -> Option<Vec<u8>> {
        if let Some(inline) = &request.inline {
            return Some(inline.clone());
        }
        let mut data = Vec::new();
        for part in &request.parts {
            if !self.keys.is_local(part.lkey, domain, (part.addr, part.length.into()), reads) {
                return None;
            }
            if !reads {
                memory::read(part.addr, part.length as usize, &mut data);
            }
        }
        Some(data)
    }

    /// Handles the answer to a request. Returns whether the next one may begin.
    pub(crate) fn answered(&mut self, number: u32, sequence: u64, answer: Response, is_remote: bool) -> bool {
        let now = Instant::now();
        let Some(pair) = self.pairs.get_mut(&number) else { return false };
        let Some(at) = sequence.checked_sub(pair.first).map(|at| at as usize) else { return true };
        let (context, domain) = (pair.context, pair.domain);
        let Some(request) =
            pair.sends.get(at).filter(|request| !matches!(request.state, RequestState::Done(..))).cloned()
        else {
            return true;
        };
        // The request may have been answered before and may be waiting to be sent again.
        if matches!(answer, Response::Nobody | Response::Unready) && is_remote && request.state != RequestState::Sent {
            return true;
        }
        match answer {
            Response::Done(data) => {
                (pair.silent, pair.unready) = (None, 0);
                let mut left = data.as_slice();
                let mut status = 0;
                for part in request.parts.iter().filter(|_| request.opcode == abi::WR_RDMA_READ) {
                    // The region may have been destroyed in the meantime.
                    if !self.keys.is_local(part.lkey, domain, (part.addr, part.length.into()), true) {
                        status = abi::WC_LOC_PROT_ERR;
                        break;
                    }
                    let (first, rest) = left.split_at((part.length as usize).min(left.len()));
                    memory::write(part.addr, first);
                    left = rest;
                }
                self.done(number, at, status, data.len() as u32)
            }
            Response::Refused(status) => self.done(number, at, status, 0),
            Response::Ignored => true,
            Response::Unready => {
                pair.silent = None;
                pair.unready += 1;
                let is_over = pair.retries != 7 && pair.unready > pair.retries;
                self.again(number, at, is_over.then_some(abi::WC_RNR_RETRY_EXC_ERR), now + UNREADY)
            }
            Response::Nobody => {
                let since = *pair.silent.get_or_insert(now);
                let limit = Duration::from_millis(self.device(context).settings.timeout);
                let is_over = now.duration_since(since) >= limit;
                self.again(number, at, is_over.then_some(abi::WC_RETRY_EXC_ERR), now + AGAIN)
            }
        }
    }

    /// Marks a request and all requests that follow it to be sent again, unless it failed permanently.
    fn again(&mut self, number: u32, at: usize, status: Option<c_int>, hold: Instant) -> bool {
        if let Some(status) = status {
            return self.done(number, at, status, 0);
        }
        let Some(pair) = self.pairs.get_mut(&number) else { return false };
        let sent = pair.sends.iter_mut().skip(at).filter(|request| request.state == RequestState::Sent);
        sent.for_each(|request| request.state = RequestState::Waiting);
        pair.hold = Some(hold);
        self.at(hold, number);
        false
    }

    /// Records the completion of a request, and completes all requests that can be completed.
    fn done(&mut self, number: u32, at: usize, status: c_int, len: u32) -> bool {
        let Some(pair) = self.pairs.get_mut(&number) else { return false };
        if let Some(request) = pair.sends.get_mut(at) {
            request.state = RequestState::Done(status, len);
        }
        loop {
            let Some(pair) = self.pairs.get_mut(&number) else { return false };
            let Some(&Request { state: RequestState::Done(status, len), .. }) = pair.sends.front() else { return true };
            let Some(request) = pair.sends.pop_front() else { return true };
            pair.first += 1;
            self.sent(number, &request, status, len);
            if status != 0 {
                self.pair_error(number);
                return false;
            }
        }
    }

    /// Handles requests that were sent to a process that has exited as if the queue pair did not exist: they are sent
    /// again, and fail after the timeout.
    pub(crate) fn lost(&mut self, is_of: impl Fn(u32) -> bool) {
        let to = |pair: &Pair| pair.peer.is_some_and(|peer| is_of(peer.number));
        let sent = |pair: &Pair| pair.sends.iter().position(|request| request.state == RequestState::Sent);
        let pairs: Vec<(u32, u64)> = self
            .pairs
            .iter()
            .filter(|(_, pair)| to(pair))
            .filter_map(|(number, pair)| Some((*number, pair.first + sent(pair)? as u64)))
            .collect();
        for (number, sequence) in pairs {
            self.answered(number, sequence, Response::Nobody, true);
        }
    }
}
