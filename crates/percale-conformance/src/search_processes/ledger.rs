//! The records of a worker: outstanding raw operations, other workers, returned memory, and detected faults.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::time::{Duration, Instant};

use percale::{Buffer, Domain, RemoteMemory};

use super::class::{ANSWER, LATE_ANSWER, MULTI, POOLED};
use super::counts::Counts;
use super::freed_memory::FreedMemoryList;
use super::message::Order;
use super::plan::{OPERATION_TIMEOUT, RoundPlan};
use crate::random::Random;

/// The kind of a raw operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RawKind {
    Send,
    Receive,
    Write,
    /// A read of the region with this tag.
    Read(u64),
}

/// An outstanding raw operation.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) what: RawKind,
    pub(super) block: Option<Vec<u8>>,
    /// The life of the endpoint, or 0 if the operation was posted to the shared context.
    pub(super) life: u16,
    pub(super) class: u8,
    /// The number of a receive in its class, or the number of a send at its endpoint.
    pub(super) number: u64,
    pub(super) port: u16,
    pub(super) since: Instant,
    /// The time at which a receive should have ended, and the reason. Either it was cancelled, or a later receive has
    /// already received a message.
    pub(super) due: Option<(Instant, String)>,
    pub(super) cancelled: bool,
    pub(super) call: Option<u64>,
    /// Whether the buffer accepts many messages.
    pub(super) multi: bool,
    reported: bool,
}

impl Raw {
    pub(super) fn new(what: RawKind, block: Option<Vec<u8>>, life: u16, class: u8, number: u64, port: u16) -> Self {
        let (since, due, cancelled, call, reported) = (Instant::now(), None, false, None, false);
        let multi = class == MULTI && what == RawKind::Receive;
        Self { what, block, life, class, number, port, since, due, cancelled, call, multi, reported }
    }
}

/// A region of a peer.
#[derive(Clone, Copy, Debug)]
struct Remote {
    port: u16,
    memory: RemoteMemory,
    tag: u64,
}

/// The endpoints of other workers, as reported by the supervisor.
#[derive(Debug, Default)]
pub(super) struct WorkerDirectory {
    there: HashMap<u16, u16>,
    ports: HashMap<u16, u16>,
    gone: HashMap<u16, Instant>,
    regions: Vec<Remote>,
    /// Maps the ports of endpoints to the ports of their proxies, and the reverse.
    proxies: HashMap<u16, u16>,
    behind: HashMap<u16, u16>,
    /// The ports of listeners. Some of them are closed.
    listeners: Vec<u16>,
}

impl WorkerDirectory {
    /// Parses a line from the supervisor.
    pub(super) fn read(&mut self, line: &str) {
        let words = line.split(' ').collect::<Vec<_>>();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or_default();
        match words.first() {
            Some(&"there") => {
                self.there.insert(number(1) as u16, number(2) as u16);
                self.ports.insert(number(2) as u16, number(1) as u16);
            }
            Some(&"gone") => {
                let (port, id) = (number(1) as u16, number(2) as u16);
                if self.there.get(&port) == Some(&id) {
                    self.there.remove(&port);
                }
                self.gone.insert(id, Instant::now());
            }
            Some(&"proxy") => {
                self.proxies.insert(number(1) as u16, number(2) as u16);
                self.behind.insert(number(2) as u16, number(1) as u16);
            }
            Some(&"listener") => {
                self.listeners.push(number(1) as u16);
                if self.listeners.len() > 10 {
                    self.listeners.remove(0);
                }
            }
            Some(&"region") => {
                let memory = RemoteMemory { key: number(2), address: number(3), len: number(4) };
                self.regions.push(Remote { port: number(1) as u16, memory, tag: number(5) });
                if self.regions.len() > 40 {
                    self.regions.remove(0);
                }
            }
            _ => {}
        }
    }

    pub(super) fn port_of(&self, id: u16) -> Option<u16> {
        self.ports.get(&id).copied()
    }

    /// Returns the port through which to connect to the endpoint with this port.
    pub(super) fn way_to(&self, port: u16) -> u16 {
        self.proxies.get(&port).copied().unwrap_or(port)
    }

    /// Returns the port of the endpoint that is reached through this port.
    pub(super) fn behind(&self, port: u16) -> u16 {
        self.behind.get(&port).copied().unwrap_or(port)
    }

    pub(super) fn gone_for(&self, id: u16) -> Option<Duration> {
        self.gone.get(&id).map(Instant::elapsed)
    }

    pub(super) fn is_there(&self, port: u16) -> bool {
        self.there.contains_key(&port)
    }

    pub(super) fn ports(&self) -> Vec<u16> {
        self.there.keys().copied().collect()
    }
}

/// The operations, peers, returned memory and faults of a worker.
#[derive(Debug)]
pub(super) struct WorkerLedger {
    pub(super) plan: RoundPlan,
    pub(super) random: Random,
    pub(super) graves: FreedMemoryList,
    pub(super) book: WorkerDirectory,
    /// The ports of the current and former endpoints of this worker.
    pub(super) own_ports: Vec<u16>,
    raw: HashMap<u64, Raw>,
    /// The contexts of operations at closed endpoints.
    over: HashSet<u64>,
    next: u64,
    numbers: HashMap<(u16, u8), u64>,
    orders: HashMap<u16, Order>,
    notes: Vec<String>,
    unwritable: Option<usize>,
    begun: Instant,
    faults: usize,
    /// When the worker stopped starting operations.
    pub(super) finishing: Option<Instant>,
    /// Whether workers have finished their work, so that endpoints may close.
    pub(super) parting: bool,
    pub(super) counts: Counts,
}

/// Message lengths near the limits of the protocols.
const LENGTHS: [usize; 38] = [
    0, 1, 7, 8, 16, 40, 47, 48, 49, 64, 96, 103, 104, 105, 128, 192, 200, 256, 500, 1000, 1500, 2047, 2048, 2049, 4096,
    8192, 16383, 16384, 16385, 32768, 65536, 65537, 131_072, 200_000, 262_144, 524_288, 524_289, 1_048_576,
];

impl WorkerLedger {
    pub(super) fn new(plan: RoundPlan, seed: u64) -> Self {
        Self {
            plan,
            random: Random::new(seed),
            graves: FreedMemoryList::default(),
            book: WorkerDirectory::default(),
            own_ports: Vec::new(),
            raw: HashMap::new(),
            over: HashSet::new(),
            next: 1,
            numbers: HashMap::new(),
            orders: HashMap::new(),
            notes: Vec::new(),
            unwritable: None,
            begun: Instant::now(),
            faults: 0,
            finishing: None,
            parting: false,
            counts: Counts::default(),
        }
    }

    /// Sends a line to the supervisor.
    pub(super) fn print_line(&self, line: &str) {
        let mut out = std::io::stdout().lock();
        if writeln!(out, "@{line}").and_then(|()| out.flush()).is_err() {
            std::process::exit(3);
        }
    }

    /// Reports the current counts to the supervisor. This is done repeatedly because a worker may be killed at any
    /// time.
    pub(super) fn say_counts(&self) {
        self.print_line(&format!("counts {}", self.counts.write()));
    }

    /// Reports a fault.
    pub(super) fn fault(&mut self, text: &str) {
        self.faults += 1;
        if self.faults <= 12 {
            self.print_line(&format!("fault {text}"));
            self.note(|| format!("FAULT {text}"));
        }
        if self.faults == 1 {
            self.dump();
        }
    }

    /// Writes the collected notes to the log.
    pub(super) fn dump(&mut self) {
        self.notes.drain(..).for_each(|note| eprintln!("{note}"));
    }

    /// Writes the current stage of the worker's shutdown to the log, in case the worker hangs there.
    pub(super) fn stage(&self, name: &str) {
        eprintln!("{:9.3} {name}", self.begun.elapsed().as_secs_f64());
    }

    /// Handles a message that no worker can have sent. In a round with strangers it is only logged, otherwise it is a
    /// fault.
    pub(super) fn stranger(&mut self, text: &str) {
        if ["stranger", "flood", "pose", "own-address"].iter().any(|kind| self.plan.has(kind)) {
            self.note(|| text.to_owned());
        } else {
            self.fault(text);
        }
    }

    /// Logs an event. Before the first fault, only the most recent notes are kept.
    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        let line = format!("{:9.3} {}", self.begun.elapsed().as_secs_f64(), text());
        if self.faults > 0 {
            eprintln!("{line}");
        } else {
            self.notes.push(line);
            if self.notes.len() > 4000 {
                self.notes.drain(..2000);
            }
        }
    }

    pub(super) fn lengths(&self) -> usize {
        LENGTHS.iter().filter(|&&len| len <= self.plan.longest).count()
    }

    /// Returns a random message length.
    pub(super) fn length(&mut self) -> usize {
        let most = self.lengths();
        let short = self.random.below(3) > 0;
        let index = self.random.below(if short { most.min(24) } else { most });
        LENGTHS[index]
    }

    pub(super) fn length_at(&self, index: usize) -> usize {
        LENGTHS[index.min(self.lengths() - 1)]
    }

    /// Returns memory for a safe operation. Sometimes it is memory that peers map.
    pub(super) fn buffer(&mut self, domain: &Domain, len: usize) -> Buffer {
        if len >= 4096
            && self.random.below(3) == 0
            && let Ok(allocation) = domain.allocate(len)
        {
            return allocation.into();
        }
        vec![0x33; len].into()
    }

    /// Like [`buffer`](Self::buffer), with these contents.
    pub(super) fn buffer_of(&mut self, domain: &Domain, bytes: Vec<u8>) -> Buffer {
        if bytes.len() >= 4096
            && self.random.below(3) == 0
            && let Ok(mut allocation) = domain.allocate(bytes.len())
        {
            allocation.write(0, &bytes);
            return allocation.into();
        }
        bytes.into()
    }

    pub(super) fn context(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn number_of_receive(&mut self, life: u16, class: u8) -> u64 {
        let number = self.numbers.entry((life, class)).or_default();
        *number += 1;
        *number
    }

    pub(super) fn order(&mut self, life: u16) -> &mut Order {
        self.orders.entry(life).or_default()
    }

    pub(super) fn insert(&mut self, context: u64, raw: Raw) {
        self.raw.insert(context, raw);
    }

    pub(super) fn take(&mut self, context: u64) -> Option<Raw> {
        self.raw.remove(&context)
    }

    pub(super) fn put_back(&mut self, context: u64, raw: Raw) {
        self.raw.insert(context, raw);
    }

    /// Returns the number of posted raw receives of a class.
    pub(super) fn waiting(&self, life: u16, class: u8) -> usize {
        let is = |raw: &&Raw| raw.life == life && raw.class == class && raw.what == RawKind::Receive;
        self.raw.values().filter(is).count()
    }

    /// Records that a receive has received a message. Earlier receives of its class match the same messages, so each of
    /// them must also have received one.
    pub(super) fn matched(&mut self, ended: &Raw) {
        self.older_have_theirs(ended.life, ended.class, ended.number);
    }

    /// Like [`matched`](Self::matched), for a safe operation.
    pub(super) fn matched_task(&mut self, life: u16, class: u8, number: u64) {
        self.older_have_theirs(life, class, number);
    }

    fn older_have_theirs(&mut self, life: u16, class: u8, number: u64) {
        // Answers have separate tags, and a multi-receive is reported many times.
        if class == ANSWER || class == MULTI || class > POOLED {
            return;
        }
        for raw in self.raw.values_mut() {
            if raw.what == RawKind::Receive
                && raw.life == life
                && raw.class == class
                && raw.number < number
                && !raw.multi
            {
                raw.due.get_or_insert_with(|| (Instant::now(), format!("the later receive {number} has ended")));
            }
        }
    }

    /// Records that an operation was cancelled. `was_posted` is the result of the call.
    pub(super) fn cancelled(&mut self, context: u64, was_posted: bool) {
        if let Some(raw) = self.raw.get_mut(&context) {
            raw.cancelled |= was_posted;
            self.counts.lives += u64::from(was_posted);
            // A multi-receive that has received a message ends after its last message. A receive that was "not posted"
            // has received a message.
            let text = format!(
                "cancels {:?} of class {} number {} to port {}: {was_posted}",
                raw.what, raw.class, raw.number, raw.port
            );
            let why = if was_posted {
                "the operation was cancelled"
            } else {
                "cancel reported that the operation was not posted"
            };
            raw.due.get_or_insert_with(|| (Instant::now(), why.to_owned()));
            self.note(|| text);
        }
    }

    /// Returns a random operation of this endpoint for cancellation, and the number of the answer that it receives.
    /// Sends of answers are excluded, because their receivers wait for them. Receives of late answers are also
    /// excluded, because an answer that is never received delays the fenced operations of its sender.
    pub(super) fn some_raw(&mut self, life: u16) -> Option<(u64, Option<u64>)> {
        let is_answer = |raw: &Raw| (raw.class == ANSWER && raw.what == RawKind::Send) || raw.class == LATE_ANSWER;
        let of = self.raw.iter().filter(|(_, raw)| raw.life == life && !raw.cancelled && !is_answer(raw));
        let mut contexts = of.map(|(&context, _)| context).collect::<Vec<_>>();
        contexts.sort_unstable();
        let context = *contexts.get(self.random.below(contexts.len().max(1)))?;
        let answer = self
            .raw
            .get(&context)
            .and_then(|raw| raw.call.filter(|_| raw.class == ANSWER && raw.what == RawKind::Receive));
        Some((context, answer))
    }

    /// Returns the receives of this endpoint.
    pub(super) fn receives(&self, life: u16) -> Vec<u64> {
        let of = self.raw.iter().filter(|(_, raw)| raw.life == life && raw.what == RawKind::Receive);
        of.map(|(&context, _)| context).collect()
    }

    /// Reports raw operations that should have ended. Returns the number of outstanding operations, not including idle
    /// receives.
    pub(super) fn overdue(&mut self) -> usize {
        let mut late = Vec::new();
        let mut busy = 0;
        let (finishing, takes_answers) = (self.finishing, self.takes_answers());
        for raw in self.raw.values_mut() {
            let Some(mut since) =
                (if raw.what == RawKind::Receive { raw.due.as_ref().map(|due| due.0) } else { Some(raw.since) })
            else {
                continue;
            };
            busy += 1;
            if raw.what == RawKind::Send && raw.class == ANSWER {
                if !takes_answers {
                    continue;
                }
                since = since.max(finishing.unwrap_or(since) + OPERATION_TIMEOUT);
            }
            if since.elapsed() > OPERATION_TIMEOUT && !std::mem::replace(&mut raw.reported, true) {
                late.push(format!(
                    "{:?} of class {} number {} of life {} to port {} has not ended for {:?} since {}{}",
                    raw.what,
                    raw.class,
                    raw.number,
                    raw.life,
                    raw.port,
                    since.elapsed(),
                    raw.due.as_ref().map_or("the operation was posted", |due| &due.1),
                    if raw.cancelled { " (cancelled)" } else { "" }
                ));
            }
        }
        late.iter().for_each(|late| self.fault(late));
        busy
    }

    /// Returns whether each endpoint receives the answers to its abandoned requests, so that sends of answers complete.
    pub(super) const fn takes_answers(&self) -> bool {
        self.finishing.is_some()
    }

    /// Returns the time at which the timeout of a send starts.
    pub(super) fn since(&self, class: Option<u8>, posted: Instant) -> Instant {
        if class == Some(ANSWER) {
            self.finishing.map_or(posted, |at| posted.max(at + OPERATION_TIMEOUT))
        } else {
            posted
        }
    }

    /// Records that an endpoint was closed. The operations posted to it are over, and their memory must not be written
    /// any more.
    pub(super) fn endpoint_closed(&mut self, life: u16) {
        let contexts = self.raw.iter().filter(|(_, raw)| raw.life == life).map(|(&context, _)| context);
        for context in contexts.collect::<Vec<_>>() {
            let Some(mut raw) = self.raw.remove(&context) else { continue };
            self.over.insert(context);
            let what = format!("{:?} of class {} posted at life {life}, which was closed", raw.what, raw.class);
            raw.block.take().into_iter().for_each(|block| self.graves.add_freed(block, what.clone()));
        }
    }

    /// Returns the port and the life of a random endpoint to send to.
    pub(super) fn some_peer(&mut self) -> Option<(u16, u16)> {
        let mut ports = self.book.there.iter().map(|(&port, &id)| (port, id)).collect::<Vec<_>>();
        ports.sort_unstable();
        (!ports.is_empty()).then(|| ports[self.random.below(ports.len())])
    }

    /// Returns the port, the address and the tag of a random region of a peer.
    pub(super) fn some_region(&mut self) -> Option<(u16, RemoteMemory, u64)> {
        if self.book.regions.is_empty() {
            return None;
        }
        let at = self.random.below(self.book.regions.len());
        let Remote { port, memory, tag } = self.book.regions[at];
        Some((port, memory, tag))
    }

    /// Returns the port of a random listener.
    pub(super) fn some_listener(&mut self) -> Option<u16> {
        let ports = &self.book.listeners;
        (!ports.is_empty()).then(|| ports[self.random.below(ports.len())])
    }

    /// Returns whether there has been no fault.
    pub(super) const fn is_good(&self) -> bool {
        self.faults == 0
    }
}

impl WorkerLedger {
    /// Returns whether this operation was posted at an endpoint that was closed.
    pub(super) fn is_over(&self, context: u64) -> bool {
        self.over.contains(&context)
    }

    /// Returns memory of the maximum message size that can be neither read nor written.
    pub(super) fn unwritable(&mut self) -> *mut u8 {
        *self.unwritable.get_or_insert_with(|| crate::memory::Memory::unmapped(self.plan.longest).address() as usize)
            as *mut u8
    }

    /// Returns the life of the endpoint at which the operation with this context was posted.
    pub(super) fn life_of(&self, context: u64) -> Option<u16> {
        self.raw.get(&context).map(|raw| raw.life)
    }
}
