//! An endpoint of a worker, with its operations and the checks of their results.

#![expect(unsafe_code, reason = "posts raw operations; their memory stays in the ledger until they have ended")]

mod results;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use percale::endpoint::Ownership;
use percale::endpoint::safe::{Cause, OperationError};
use percale::{
    AddressVector, AtomicOp, AtomicWork, Datatype, Endpoint, Entry, EventQueue, OpFlags, PeerAddress, PostError,
    ReceiveWork, RemoteMemory, RemotePieces, RmaWork, Segment, Segments, SendWork,
};

pub(super) use self::results::check_cells;
use super::class::{ANSWER, BAD, LATE, LATE_ANSWER, MULTI, POOLED, SHORT, TAGGED, UNTAGGED, tag};
use super::ledger::{Raw, RawKind, WorkerLedger};
use super::message::{self, Identity};
use super::plan::OPERATION_TIMEOUT;
use super::task::{OperationEnd, Task};

/// The maximum number of receives for late answers while there are other receives.
const LATE_ANSWERS: usize = 30;

/// The bit of a tag that requests an answer.
const REQUEST: u64 = 1 << 48;
/// The size of a cell of a region. The first word of a cell is the region's tag.
pub(super) const CELL: usize = 64;

/// How long a worker waits for the last answers if they may have been lost.
const FINISH_LIMIT: Duration = Duration::from_secs(3);

/// A request that waits for its answer.
#[derive(Debug)]
struct Call {
    since: Instant,
    port: u16,
    peer: u16,
    /// Whether the request was delivered.
    delivered: bool,
    context: Option<u64>,
    cancelled: bool,
}

/// An endpoint of a worker, and the operations posted on it.
#[derive(Debug)]
pub(super) struct WorkerEndpoint<A: Ownership + 'static> {
    /// Leaked, so that futures need no lifetime. [`close`](Self::close) frees it after the futures were dropped.
    pub(super) endpoint: &'static Endpoint<A>,
    pub(super) vector: AddressVector,
    pub(super) events: EventQueue,
    /// The port to which it is bound.
    pub(super) port: u16,
    /// The number of this life of the endpoint.
    pub(super) id: u16,
    number: u32,
    peers: HashMap<u16, PeerAddress>,
    pub(super) tasks: Vec<Task>,
    calls: HashMap<u64, Call>,
    next_call: u64,
    /// Abandoned requests for which no receive of a late answer is posted yet.
    given_up: Vec<u64>,
    /// Requests that must be answered: peer, tag and length of each.
    owed: Vec<(PeerAddress, u64, usize)>,
    /// The times since which posts to each port have been rejected because there was no room.
    again: HashMap<(u16, bool), Instant>,
}

impl<A: Ownership + 'static> WorkerEndpoint<A> {
    pub(super) fn new(endpoint: Endpoint<A>, vector: AddressVector, events: EventQueue, id: u16) -> Self {
        let endpoint: &'static Endpoint<A> = Box::leak(Box::new(endpoint));
        let port = endpoint.address().port();
        Self {
            endpoint,
            vector,
            events,
            port,
            id,
            number: 0,
            peers: HashMap::new(),
            tasks: Vec::new(),
            calls: HashMap::new(),
            next_call: 1,
            given_up: Vec::new(),
            owed: Vec::new(),
            again: HashMap::new(),
        }
    }

    /// Returns the address of the endpoint at this port, which is reached through the port `way`.
    pub(super) fn peer(&mut self, port: u16, way: u16) -> PeerAddress {
        // An endpoint that connects to itself through a proxy is rejected, because its address differs from the one
        // that was connected to.
        let way = if port == self.port { port } else { way };
        let insert = |port: u16| self.vector.insert(format!("127.0.0.1:{port}")).expect("an address");
        *self.peers.entry(port).or_insert_with(|| {
            let own = insert(port);
            if way == port { own } else { insert(way) }
        })
    }

    /// Frees and closes the endpoint after the futures that borrow it were dropped. Its memory is kept for checks.
    pub(super) fn close(mut self, ledger: &mut WorkerLedger) {
        let tasks = std::mem::take(&mut self.tasks);
        drop(tasks);
        let endpoint = std::ptr::from_ref(self.endpoint).cast_mut();
        // SAFETY: `new` leaked this box, and the futures that borrowed from it were dropped above.
        drop(unsafe { Box::from_raw(endpoint) });
        ledger.endpoint_closed(self.id);
    }

    /// Keeps receives of each class posted.
    pub(super) fn receive(&mut self, ledger: &mut WorkerLedger, late: bool) {
        for class in [UNTAGGED, TAGGED, ANSWER, LATE, SHORT, MULTI, BAD] {
            let wanted = match class {
                // Answers to abandoned requests are received, so that their sends complete.
                ANSWER if ledger.finishing.is_some() && self.calls.is_empty() => 2,
                ANSWER => 0,
                UNTAGGED | TAGGED => 5,
                LATE if late => 4,
                LATE => 0,
                BAD if !ledger.plan.may_write_badly() => 0,
                _ => 2,
            };
            let mut posted =
                ledger.waiting(self.id, class) + self.tasks.iter().filter(|task| task.class == Some(class)).count();
            while posted < wanted {
                posted += 1;
                if !self.receive_one(ledger, class) {
                    break;
                }
            }
        }
    }

    fn receive_one(&mut self, ledger: &mut WorkerLedger, class: u8) -> bool {
        let longest = ledger.plan.longest;
        let len = match class {
            SHORT => ledger.random.below(longest.min(70_000)),
            MULTI => longest * 3,
            _ => longest,
        };
        let number = ledger.number_of_receive(self.id, class);
        if class != MULTI && class != BAD && ledger.random.below(3) == 0 {
            let buffer = ledger.buffer(self.endpoint.domain(), len);
            let request = match tag(class) {
                Some((tag, ignore)) => self.endpoint.tagged_recv(tag, ignore, buffer),
                None => self.endpoint.recv(buffer),
            };
            return match request.start() {
                Ok(receiving) => {
                    let future = Box::pin(async move { OperationEnd::Received(receiving.await) });
                    self.tasks.push(Task::new(future, Some(class), number, 0, "a receive"));
                    true
                }
                Err(error) => self.refused(ledger, error, 0),
            };
        }
        self.post_receive(ledger, class, number, len, tag(class))
    }

    fn post_receive(
        &mut self,
        ledger: &mut WorkerLedger,
        class: u8,
        number: u64,
        len: usize,
        tag: Option<(u64, u64)>,
    ) -> bool {
        let mut block = (class != BAD).then(|| vec![0x11; len]);
        let start = block.as_mut().map_or_else(|| ledger.unwritable(), |block| block.as_mut_ptr());
        // SAFETY: the block stays in the ledger until the receive has ended. The other memory is never backed, so it
        // contains no object.
        let segment = unsafe { Segment::new(start, len) };
        let context = ledger.context();
        let mut flags = OpFlags::COMPLETION;
        flags.set(OpFlags::MULTI_RECEIVE, class == MULTI);
        let work =
            ReceiveWork { from: PeerAddress::UNSPECIFIED, segments: Segments::one(segment), tag, context, flags };
        // SAFETY: as above.
        match unsafe { self.endpoint.post_recv(&work) } {
            Ok(()) => {
                ledger.insert(context, Raw::new(RawKind::Receive, block, self.id, class, number, 0));
                true
            }
            Err(error) => self.post_error(ledger, &error, 0),
        }
    }

    fn refused(&mut self, ledger: &mut WorkerLedger, error: OperationError, port: u16) -> bool {
        match error.cause() {
            Cause::Post(error) => self.post_error(ledger, error, port),
            other => {
                ledger.fault(&format!("an operation to port {port} was refused by {other}"));
                false
            }
        }
    }

    fn post_error(&mut self, ledger: &mut WorkerLedger, error: &PostError, port: u16) -> bool {
        self.post_failed(ledger, error, port, false)
    }

    fn post_failed(&mut self, ledger: &mut WorkerLedger, error: &PostError, port: u16, inject: bool) -> bool {
        if *error == PostError::Again {
            let since = *self.again.entry((port, inject)).or_insert_with(Instant::now);
            if since.elapsed() > OPERATION_TIMEOUT {
                self.again.insert((port, inject), Instant::now() + Duration::from_secs(3600));
                ledger.fault(&format!(
                    "posts at port {} to port {port} are refused with Again for {OPERATION_TIMEOUT:?}",
                    self.port
                ));
            }
        } else {
            ledger.fault(&format!("a post at port {} to port {port} is refused: {error}", self.port));
        }
        false
    }

    /// Sends a message to a peer.
    pub(super) fn send(&mut self, ledger: &mut WorkerLedger) {
        let Some((port, peer_id)) = ledger.some_peer() else { return };
        let peer = self.peer(port, ledger.book.way_to(port));
        let class = [UNTAGGED, TAGGED, TAGGED, LATE, SHORT, MULTI, POOLED, BAD][ledger.random.below(8)];
        let class = if class == POOLED && !ledger.plan.shared { TAGGED } else { class };
        // Memory that cannot be written must be detected by the kernel. This needs long messages from memory that no
        // peer maps.
        let badly = ledger.plan.may_write_badly() && !ledger.own_ports.contains(&port);
        let class = if class == BAD && !badly { SHORT } else { class };
        let low = ledger.random.next() & 0xffff_ffff;
        let mut tag = tag(class).map(|(tag, _)| tag | low);
        let mut call = None;
        if class == TAGGED && ledger.random.below(2) == 0 && self.calls.len() < 8 {
            call = self.expect_answer(ledger, port, peer_id, peer);
            let code = ledger.random.below(ledger.lengths()) as u64;
            tag = call.map_or(tag, |number| Some(u64::from(TAGGED) << 56 | REQUEST | code << 24 | number));
        }
        let len = if class == BAD { ledger.length().max(65537).min(ledger.plan.longest) } else { ledger.length() };
        self.send_as(ledger, peer, port, class, tag, len, call);
    }

    #[expect(clippy::too_many_arguments, reason = "the only function that posts messages")]
    fn send_as(
        &mut self,
        ledger: &mut WorkerLedger,
        peer: PeerAddress,
        port: u16,
        class: u8,
        tag: Option<u64>,
        len: usize,
        call: Option<u64>,
    ) -> bool {
        let data = Identity { sender: self.id, number: self.number, len }.pack();
        let bytes = message::contents(data, port);
        let way = if class == BAD { 6 } else { ledger.random.below(8) };
        let posted = if len <= 2048 && way < 2 {
            self.endpoint
                .inject_with(peer, &bytes, tag, Some(data))
                .map_err(|error| self.post_error(ledger, &error, port))
        } else if way < 5 {
            let buffer = ledger.buffer_of(self.endpoint.domain(), bytes);
            let request = match tag {
                Some(tag) => self.endpoint.tagged_send(peer, tag, buffer),
                None => self.endpoint.send(peer, buffer),
            };
            let request = request.data(data);
            let request = if way == 3 { request.delivered() } else { request };
            match request.start() {
                Ok(sending) => {
                    let future = Box::pin(async move { OperationEnd::Sent(sending.await) });
                    let mut task = Task::new(future, None, 0, port, "a send");
                    (task.call, task.send) = (call, Some(class));
                    task.detail = data;
                    self.tasks.push(task);
                    Ok(())
                }
                Err(error) => Err(self.refused(ledger, error, port)),
            }
        } else {
            let mut block = bytes;
            // SAFETY: the block stays in the ledger until the send has ended.
            let segment = unsafe { Segment::new(block.as_mut_ptr(), block.len()) };
            let level = [OpFlags::empty(), OpFlags::DELIVERY_COMPLETE, OpFlags::MATCH_COMPLETE, OpFlags::FENCE]
                [ledger.random.below(if ledger.plan.may_fence() { 4 } else { 3 })];
            let inject = if len <= 2048 && way == 5 { OpFlags::INJECT } else { OpFlags::empty() };
            let (context, flags) = (ledger.context(), OpFlags::COMPLETION | level | inject);
            let segments = Segments::one(segment);
            let work = SendWork { peer, segments, tag, data: Some(data), context, flags };
            // SAFETY: as above.
            match unsafe { self.endpoint.post_send(&work) } {
                Ok(()) => {
                    if inject.contains(OpFlags::INJECT) {
                        block.fill(0xdd);
                    }
                    let mut raw = Raw::new(RawKind::Send, Some(block), self.id, class, u64::from(self.number), port);
                    raw.call = call;
                    ledger.insert(context, raw);
                    Ok(())
                }
                Err(error) => Err(self.post_error(ledger, &error, port)),
            }
        };
        if posted.is_ok() {
            self.again.remove(&(port, len <= 2048 && way < 2));
            self.number += 1;
            ledger.counts.started += 1;
        } else if let Some(call) = call {
            self.give_up(ledger, call);
        }
        posted.is_ok()
    }

    fn expect_answer(&mut self, ledger: &mut WorkerLedger, port: u16, id: u16, from: PeerAddress) -> Option<u64> {
        let number = self.next_call;
        let (tag, len) = (u64::from(ANSWER) << 56 | number, ledger.plan.longest);
        let mut call =
            Call { since: Instant::now(), port, peer: id, delivered: false, context: None, cancelled: false };
        if ledger.random.below(2) == 0 {
            let buffer = ledger.buffer(self.endpoint.domain(), len);
            let receiving = self.endpoint.tagged_recv(tag, 0, buffer).from(from).start().ok()?;
            let future = Box::pin(async move { OperationEnd::Received(receiving.await) });
            let mut task = Task::new(future, Some(ANSWER), number, port, "an answer");
            task.call = Some(number);
            self.tasks.push(task);
        } else {
            let mut block = vec![0x22; len];
            // SAFETY: the block stays in the ledger until the receive has ended.
            let segment = unsafe { Segment::new(block.as_mut_ptr(), block.len()) };
            let (context, flags) = (ledger.context(), OpFlags::COMPLETION);
            let work = ReceiveWork { from, segments: Segments::one(segment), tag: Some((tag, 0)), context, flags };
            // SAFETY: as above.
            unsafe { self.endpoint.post_recv(&work) }.ok()?;
            let mut raw = Raw::new(RawKind::Receive, Some(block), self.id, ANSWER, number, port);
            raw.call = Some(number);
            ledger.insert(context, raw);
            call.context = Some(context);
        }
        self.next_call = (self.next_call + 1) & 0xff_ffff;
        self.calls.insert(number, call);
        Some(number)
    }

    /// Cancels the receive of an answer that will not arrive.
    fn give_up(&mut self, ledger: &mut WorkerLedger, number: u64) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        if std::mem::replace(&mut call.cancelled, true) {
            return;
        }
        match call.context {
            Some(context) => {
                let was_posted = self.endpoint.cancel(context);
                ledger.cancelled(context, was_posted);
            }
            None => {
                self.tasks.retain(|task| task.class != Some(ANSWER) || task.call != Some(number));
                self.calls.remove(&number);
            }
        }
        self.given_up.push(number);
        self.receive_late_answers(ledger);
    }

    /// Receives answers to abandoned requests. They must be received soon, because the sender of an answer may wait
    /// until it is received.
    pub(super) fn receive_late_answers(&mut self, ledger: &mut WorkerLedger) {
        while let Some(number) = self.given_up.pop() {
            let tag = Some((u64::from(ANSWER) << 56 | number, 0));
            let has_room = ledger.takes_answers() || ledger.waiting(self.id, LATE_ANSWER) < LATE_ANSWERS;
            if !has_room || !self.post_receive(ledger, LATE_ANSWER, number, ledger.plan.longest, tag) {
                self.given_up.push(number);
                return;
            }
        }
    }

    /// Reads, writes or updates a region of a peer.
    pub(super) fn access(&mut self, ledger: &mut WorkerLedger) {
        let Some((port, remote, region)) = ledger.some_region() else { return };
        let peer = self.peer(port, ledger.book.way_to(port));
        let cells = remote.len as usize / CELL;
        let len = (1 + ledger.random.below(cells)).min(if ledger.random.below(3) > 0 { 64 } else { cells }) * CELL;
        let at = ledger.random.below(cells - len / CELL + 1) * CELL;
        let piece = RemoteMemory { address: remote.address + at as u64, len: len as u64, ..remote };
        let (write, safe) = (ledger.random.below(2) == 0, ledger.random.below(2) == 0);
        let bytes = if write { cells_of(region, len, self.id) } else { vec![0; len] };
        if ledger.random.below(8) == 0 {
            return self.add(ledger, peer, port, remote);
        }
        if safe {
            let buffer = ledger.buffer_of(self.endpoint.domain(), bytes);
            let request =
                if write { self.endpoint.write(peer, buffer, piece) } else { self.endpoint.read(peer, piece, buffer) };
            match request.start() {
                Ok(access) => {
                    let future = Box::pin(async move { OperationEnd::Accessed(access.await) });
                    let mut task = Task::new(future, None, 0, port, if write { "a write" } else { "a read" });
                    task.region = (!write).then_some(region);
                    self.tasks.push(task);
                    ledger.counts.started += 1;
                }
                Err(error) => _ = self.refused(ledger, error, port),
            }
            return;
        }
        let mut block = bytes;
        // SAFETY: the block stays in the ledger until the access has ended.
        let segment = unsafe { Segment::new(block.as_mut_ptr(), block.len()) };
        let (context, flags) = (ledger.context(), OpFlags::COMPLETION);
        let (local, remote) = (Segments::one(segment), RemotePieces::one(piece));
        let work = RmaWork { peer, local, remote, data: None, context, flags };
        let posted = if write {
            // SAFETY: as above.
            unsafe { self.endpoint.post_write(&work) }
        } else {
            // SAFETY: as above.
            unsafe { self.endpoint.post_read(&work) }
        };
        match posted {
            Ok(()) => {
                let what = if write { RawKind::Write } else { RawKind::Read(region) };
                ledger.insert(context, Raw::new(what, Some(block), self.id, 0, 0, port));
                ledger.counts.started += 1;
            }
            Err(error) => _ = self.post_error(ledger, &error, port),
        }
    }

    /// Adds to the second word of a region.
    fn add(&mut self, ledger: &mut WorkerLedger, peer: PeerAddress, port: u16, remote: RemoteMemory) {
        let mut block = vec![1; 8];
        // SAFETY: the block stays in the ledger until the operation has ended.
        let segment = unsafe { Segment::new(block.as_mut_ptr(), block.len()) };
        let inject = ledger.random.below(2) == 0;
        let (context, mut flags) = (ledger.context(), OpFlags::COMPLETION);
        flags.set(OpFlags::INJECT, inject);
        let work = AtomicWork {
            peer,
            op: AtomicOp::Sum,
            datatype: Datatype::U64,
            operand: Segments::one(segment),
            compare: None,
            result: None,
            remote: RemoteMemory { address: remote.address + 8, len: 8, ..remote },
            data: None,
            context,
            flags,
        };
        // SAFETY: as above.
        match unsafe { self.endpoint.post_atomic(&work) } {
            Ok(()) => {
                ledger.insert(context, Raw::new(RawKind::Write, Some(block), self.id, 0, 0, port));
                ledger.counts.started += 1;
            }
            Err(error) => _ = self.post_error(ledger, &error, port),
        }
    }

    /// Reads results from the queue of the endpoint.
    pub(super) fn poll(&mut self, ledger: &mut WorkerLedger) -> bool {
        let mut entries = [Entry::default(); 16];
        let mut any = false;
        loop {
            match self.endpoint.poll(&mut entries) {
                Ok(0) => break,
                Ok(count) => entries[..count].iter().for_each(|entry| self.ended(ledger, Ok(*entry))),
                Err(_) => match self.endpoint.read_error() {
                    Some(error) => self.ended(ledger, Err(error)),
                    None => break,
                },
            }
            any = true;
        }
        any
    }

    /// Answers requests.
    pub(super) fn answer(&mut self, ledger: &mut WorkerLedger) {
        for (peer, tag, len) in std::mem::take(&mut self.owed) {
            let Some(port) = self.vector.lookup(peer).map(|address| ledger.book.behind(address.port())) else {
                continue;
            };
            if !self.send_as(ledger, peer, port, ANSWER, Some(tag), len, None) && self.owed.len() < 200 {
                self.owed.push((peer, tag, len));
            }
        }
    }

    /// Cancels an operation, or drops the future of an outstanding one.
    pub(super) fn cancel(&mut self, ledger: &mut WorkerLedger, drop_task: bool) {
        if drop_task && !self.tasks.is_empty() {
            let at = ledger.random.below(self.tasks.len());
            let task = self.tasks.swap_remove(at);
            let answer = task.call.filter(|_| task.class == Some(ANSWER));
            drop(task);
            if let Some(number) = answer {
                self.calls.remove(&number);
                self.given_up.push(number);
                self.receive_late_answers(ledger);
            }
            return;
        }
        if let Some((context, answer)) = ledger.some_raw(self.id) {
            let was_posted = self.endpoint.cancel(context);
            ledger.cancelled(context, was_posted);
            if let Some(number) = answer
                && let Some(call) = self.calls.get_mut(&number)
            {
                call.cancelled = true;
                self.given_up.push(number);
                self.receive_late_answers(ledger);
            }
        }
    }
}

/// Returns cells of a region with this tag.
pub(super) fn cells_of(region: u64, len: usize, writer: u16) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for cell in bytes.chunks_mut(CELL) {
        cell.fill(writer as u8);
        cell[..8].copy_from_slice(&region.to_le_bytes());
    }
    bytes
}
