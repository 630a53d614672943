//! The loop of a worker, and the events that it causes in its own process.

#![expect(unsafe_code, reason = "forbids kernel copies, installs signal handlers, executes another program")]

mod connected;
mod life;
mod reader;
mod windows;

use std::io::Read;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use percale::endpoint::{EndpointBuilder, Owned, Ownership, Shared};
use percale::{
    Access, CompletionQueue, Domain, Endpoint, EventQueue, OpFlags, PeerAddress, Progress, ReceiveWork, Region,
    RemoteMemory, Segment, Segments, SharedReceive,
};
use rustix::fs::OFlags;

use self::connected::EndpointPairs;
use self::reader::{Reader, read};
use self::windows::WindowRegion;
use super::class::{POOLED, tag};
use super::freed_memory::FreedMemoryList;
use super::inherited::Child;
use super::ledger::{Raw, RawKind, WorkerLedger};
use super::plan::{OPERATION_TIMEOUT, PART, RoundPlan};
use super::worker_endpoint::{CELL, WorkerEndpoint, cells_of, check_cells};
use crate::measure::ResourceCounts;

/// Opens the endpoints of a worker, which are owned or shared.
trait Open: Ownership + Sized + 'static {
    const THREADS: bool;
    fn bind(builder: EndpointBuilder<'_>, address: &str) -> Result<Endpoint<Self>, String>;
}

impl Open for Owned {
    const THREADS: bool = false;
    fn bind(builder: EndpointBuilder<'_>, address: &str) -> Result<Endpoint<Self>, String> {
        builder.bind(address).map_err(|error| error.to_string())
    }
}

impl Open for Shared {
    const THREADS: bool = true;
    fn bind(builder: EndpointBuilder<'_>, address: &str) -> Result<Endpoint<Self>, String> {
        builder.bind_shared(address).map_err(|error| error.to_string())
    }
}

/// Runs the role that this process was started for, if any, and exits.
pub fn play() {
    let Ok(part) = std::env::var(PART) else { return };
    super::ignored(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)));
    if part == "linger" {
        std::thread::sleep(Duration::from_secs(60));
        std::process::exit(0);
    }
    let (head, plan) = part.split_once('|').expect("a worker is given its number and its round");
    let words = head.split(' ').map(|word| word.parse().expect("a number")).collect::<Vec<u64>>();
    let plan = RoundPlan::read(plan).expect("a round");
    let good = if plan.threads { worker::<Shared>(plan, &words) } else { worker::<Owned>(plan, &words) };
    std::process::exit(if good { 0 } else { 5 });
}

fn worker<A: Open>(plan: RoundPlan, words: &[u64]) -> bool {
    let before = ResourceCounts::now();
    let mut ledger = {
        let mut worker = Worker::<A>::new(plan, words);
        worker.work();
        worker.end()
    };
    ledger.stage("checks returned memory");
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(100));
        for changed in ledger.graves.look_at_all() {
            ledger.fault(&changed);
        }
    }
    ledger.graves = FreedMemoryList::default();
    ledger.stage("counts what is left");
    // Counting needs a descriptor.
    super::ignored(crate::measure::most_descriptors());
    let after = ResourceCounts::settled(&before);
    // The wake-up thread of futures remains, with its epoll and its eventfd. One arena for the next allocation remains
    // as well.
    let (descriptors, threads) = (before.descriptors + 4, before.threads + 2);
    let allowed = ResourceCounts { descriptors, threads, mappings: before.mappings + 1 };
    if !after.is_within(&allowed) {
        let (maps, files) = (crate::measure::mappings(), crate::measure::descriptors());
        ledger.fault(&format!("left over: {after:?}, at the beginning {before:?}; {maps:?}; {files:?}"));
    }
    ledger.print_line(&format!("done {}", ledger.counts.write()));
    ledger.is_good()
}

/// A region of this worker.
#[derive(Debug)]
struct OwnRegion {
    region: Region,
    tag: u64,
    busy: Option<Instant>,
}

#[derive(Debug)]
struct Worker<A: Open> {
    stations: Vec<WorkerEndpoint<A>>,
    regions: Vec<OwnRegion>,
    panes: Vec<WindowRegion>,
    lines: Option<EndpointPairs>,
    pool: Option<SharedReceive>,
    /// The queue to which endpoints report, if they have no queues of their own.
    queue: Option<CompletionQueue>,
    /// A thread that reads the queue.
    reader: Option<Reader>,
    domain: Domain,
    ledger: WorkerLedger,
    /// The first life of an endpoint of this worker.
    first_id: u16,
    next_id: u16,
    next_region: u64,
    /// The unused ports to bind to.
    ports: Vec<u16>,
    children: Vec<Child>,
    input: Vec<u8>,
    next_event: Instant,
    going: bool,
    finishing: bool,
    closing: bool,
    idle: bool,
}

impl<A: Open> Worker<A> {
    fn new(plan: RoundPlan, words: &[u64]) -> Self {
        let seed = plan.seed ^ words[0].wrapping_mul(0x5851_f42d_4c95_7f2d);
        let ledger = WorkerLedger::new(plan, seed);
        let plan = &ledger.plan;
        let builder = percale::Info::discover().expect("discovery").domain();
        let builder = builder.transport(plan.transport.parse().expect("a transport"));
        // A peer may be stopped for eight seconds while other workers connect to it.
        let builder = builder.connect_timeout(OPERATION_TIMEOUT / 2);
        let builder = if plan.cap > 0 { builder.unexpected_cap(plan.cap) } else { builder };
        let builder = if A::THREADS && seed & 1 == 0 { builder.progress(Progress::Automatic) } else { builder };
        let domain = builder.open().unwrap_or_else(|error| panic!("no domain: {error}"));
        let pool = plan.shared.then(|| domain.shared_receive());
        if let Some(pool) = &pool {
            pool.set_multi_receive_minimum(plan.longest);
        }
        let queue = (plan.seed & 6 == 0 || plan.shared).then(|| CompletionQueue::new(512, 512));
        let ports = words[2..].iter().map(|&port| port as u16).collect();
        let (regions, children, input) = (Vec::new(), Vec::new(), Vec::new());
        let (next_id, next_region) = (words[1] as u16, words[1] << 20);
        let (finishing, closing, idle) = (false, false, false);
        let stations = Vec::new();
        let flags = rustix::fs::fcntl_getfl(std::io::stdin().as_fd()).unwrap_or(OFlags::empty());
        super::ignored(rustix::fs::fcntl_setfl(std::io::stdin().as_fd(), flags | OFlags::NONBLOCK));
        Self {
            stations,
            regions,
            panes: Vec::new(),
            lines: None,
            first_id: next_id,
            pool,
            reader: queue.as_ref().filter(|_| A::THREADS).map(Reader::start),
            queue,
            domain,
            ledger,
            next_id,
            next_region,
            ports,
            children,
            input,
            next_event: Instant::now(),
            going: false,
            finishing,
            closing,
            idle,
        }
    }

    /// Opens an endpoint.
    fn open(&mut self) {
        let vector = self.domain.address_vector().build().expect("a vector");
        let events = EventQueue::default();
        let address = format!("127.0.0.1:{}", self.ports.pop().unwrap_or(0));
        let until = Instant::now() + Duration::from_secs(10);
        let endpoint = loop {
            let mut builder = self.domain.endpoint().connection_addresses(false).vector(&vector).event_queue(&events);
            builder = builder.multi_receive_minimum(self.ledger.plan.longest);
            if let Some(pool) = &self.pool {
                builder = builder.shared_receive(pool);
            }
            if let Some(queue) = &self.queue {
                builder = builder.transmit_queue(queue).receive_queue(queue);
            }
            match A::bind(builder, &address) {
                Ok(endpoint) => break endpoint,
                Err(error) if Instant::now() < until => self.ledger.note(|| error),
                Err(error) if self.ledger.plan.has("files") || self.ledger.plan.has("no-mappings") => {
                    return self.ledger.note(|| error);
                }
                Err(error) => return self.ledger.fault(&format!("no endpoint at {address}: {error}")),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        self.next_id += 1;
        self.ledger.own_ports.push(endpoint.address().port());
        let worker_endpoint = WorkerEndpoint::new(endpoint, vector, events, self.next_id);
        self.ledger.print_line(&format!("there {} {}", worker_endpoint.port, worker_endpoint.id));
        self.stations.push(worker_endpoint);
    }

    /// Registers a region, and publishes it.
    fn register(&mut self) {
        let cells = 16 << self.ledger.random.below(9);
        let tag = self.next_tag();
        let buffer = self.ledger.buffer_of(&self.domain, cells_of(tag, cells * CELL, 0));
        match self.domain.register(buffer, Access::REMOTE_READ | Access::REMOTE_WRITE) {
            Ok(region) => {
                self.publish(&region.remote(), tag);
                self.regions.push(OwnRegion { region, tag, busy: None });
            }
            Err(error) if self.ledger.plan.has("no-mappings") => self.ledger.note(|| format!("no region: {error}")),
            Err(error) => self.ledger.fault(&format!("no region: {error}")),
        }
    }

    /// Publishes memory to the other workers.
    fn publish(&mut self, name: &RemoteMemory, tag: u64) {
        let at = self.ledger.random.below(self.stations.len().max(1));
        if let Some(worker_endpoint) = self.stations.get(at) {
            let port = worker_endpoint.port;
            self.ledger.print_line(&format!("region {port} {} {} {} {tag}", name.key, name.address, name.len));
        }
    }

    /// Closes a region. Its memory must not be written afterwards.
    fn close_region(&mut self) {
        if self.regions.is_empty() {
            return;
        }
        let at = self.ledger.random.below(self.regions.len());
        let OwnRegion { region, tag, busy } = self.regions.swap_remove(at);
        match region.close() {
            Ok(buffer) => {
                self.ledger.counts.lives += 1;
                let mut bytes = vec![0; buffer.len()];
                buffer.copy_to(0, &mut bytes);
                check_cells(&mut self.ledger, &bytes, tag, 0);
                self.ledger.graves.add_freed(buffer, "a closed region".into());
            }
            Err(error) => {
                let busy = busy.unwrap_or_else(Instant::now);
                if busy.elapsed() > OPERATION_TIMEOUT {
                    self.ledger.fault(&format!("a region has been busy for {:?}", busy.elapsed()));
                    return std::mem::forget(error);
                }
                self.regions.push(OwnRegion { region: error.into_inner(), tag, busy: Some(busy) });
            }
        }
    }

    fn check_regions(&mut self) {
        for own in &self.regions {
            let at = self.ledger.random.below(own.region.len() / CELL) * CELL;
            let mut cell = [0; CELL];
            own.region.read(at, &mut cell);
            check_cells(&mut self.ledger, &cell, own.tag, 0);
        }
    }

    /// Posts receives to the shared context.
    fn receive_pooled(&mut self) {
        let Some(pool) = &self.pool else { return };
        while self.ledger.waiting(0, POOLED) < 6 {
            let multi = self.ledger.random.below(3) == 0;
            let longest = self.ledger.plan.longest;
            let mut block = vec![0x44; if multi { longest * 3 } else { longest }];
            // SAFETY: the block stays in the ledger until the receive has ended.
            let segment = unsafe { Segment::new(block.as_mut_ptr(), block.len()) };
            let context = self.ledger.context();
            let number = self.ledger.number_of_receive(0, POOLED);
            let work = ReceiveWork {
                from: PeerAddress::UNSPECIFIED,
                segments: Segments::one(segment),
                tag: tag(POOLED),
                context,
                flags: if multi { OpFlags::COMPLETION | OpFlags::MULTI_RECEIVE } else { OpFlags::COMPLETION },
            };
            if crate::memory::post_shared(pool, &work).is_err() {
                break;
            }
            let mut raw = Raw::new(RawKind::Receive, Some(block), 0, POOLED, number, 0);
            raw.multi = multi;
            self.ledger.insert(context, raw);
        }
    }

    /// Reads the commands of the supervisor.
    fn listen(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match std::io::stdin().read(&mut bytes) {
                Ok(0) => std::process::exit(3),
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        while let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
            let line = String::from_utf8_lossy(&self.input[..end]).into_owned();
            self.input.drain(..=end);
            self.ledger.note(|| format!("heard {line}"));
            match &*line {
                // All addresses that were received earlier are in the vectors now.
                "meet" => self.ledger.print_line("met"),
                "go" => self.going = true,
                "dump" => self.ledger.dump(),
                "finish" => {
                    self.finishing = true;
                    self.ledger.finishing = Some(Instant::now());
                }
                "close" => self.closing = true,
                other => self.ledger.book.read(other),
            }
            let ports = self.ledger.book.ports();
            for worker_endpoint in &mut self.stations {
                for &port in &ports {
                    worker_endpoint.peer(port, self.ledger.book.way_to(port));
                }
            }
        }
    }

    /// Collects results from the common queue or from the queue of each endpoint.
    fn collect(&mut self) -> bool {
        let mut any = false;
        for worker_endpoint in &mut self.stations {
            any |= worker_endpoint.poll(&mut self.ledger);
        }
        let Some(queue) = self.queue.clone() else { return any };
        loop {
            let results = self.reader.as_ref().map_or_else(|| read(&queue), Reader::take);
            if results.is_empty() {
                return any;
            }
            any = true;
            for result in results {
                let context = result.as_ref().map_or_else(|error| error.entry.context, |entry| entry.context);
                let life = self.ledger.life_of(context);
                if life.is_none() && context > 0 && self.ledger.is_over(context) {
                    // The result belongs to a closed endpoint.
                    continue;
                }
                let at = self
                    .stations
                    .iter()
                    .position(|worker_endpoint| life.is_none_or(|life| life == 0 || worker_endpoint.id == life));
                if let Some(at) = at {
                    self.stations[at].ended(&mut self.ledger, result);
                }
            }
        }
    }

    fn work(&mut self) {
        Self::tell_where();
        for _ in 0..self.ledger.plan.endpoints {
            self.open();
        }
        let active = Instant::now() + self.ledger.plan.active;
        let mut slow = Instant::now();
        loop {
            self.listen();
            let busy = self.going && !self.finishing && Instant::now() < active + Duration::from_secs(20);
            self.receive_pooled();
            let any = self.collect();
            let mut ended = false;
            for index in 0..self.stations.len() {
                let (worker_endpoint, ledger) = (&mut self.stations[index], &mut self.ledger);
                let late = self.finishing || ledger.random.below(50) == 0;
                worker_endpoint.receive(ledger, late);
                worker_endpoint.receive_late_answers(ledger);
                worker_endpoint.answer(ledger);
                let under_way = worker_endpoint.tasks.len();
                let burst = if busy { [0, 0, 0, 1, 1, 1, 2, 8][ledger.random.below(8)] } else { 0 };
                for _ in under_way..40.min(under_way + burst) {
                    match ledger.random.below(6) {
                        0 | 1 => worker_endpoint.access(ledger),
                        _ => worker_endpoint.send(ledger),
                    }
                }
                ended |= worker_endpoint.poll_tasks(ledger, false);
                worker_endpoint.read_events(ledger);
            }
            if let Some(lines) = &mut self.lines {
                lines.drive(&mut self.ledger, busy);
            }
            if busy {
                self.live();
            }
            if slow.elapsed() > Duration::from_millis(200) {
                slow = Instant::now();
                if self.look() {
                    return;
                }
            }
            if !any && !ended {
                self.rest(busy);
            }
        }
    }

    /// Makes the slow checks. Returns whether the worker is closing.
    fn look(&mut self) -> bool {
        self.ledger.say_counts();
        for changed in self.ledger.graves.look(4 << 20) {
            self.ledger.fault(&changed);
        }
        self.check_regions();
        self.look_at_windows();
        let mut under_way = self.ledger.overdue();
        for worker_endpoint in &mut self.stations {
            under_way += worker_endpoint.overdue(&mut self.ledger);
        }
        under_way += self.lines.as_ref().map_or(0, EndpointPairs::under_way);
        let mut found = Vec::new();
        self.children.retain_mut(|child| child.ended().map(|end| found.extend(end)).is_none());
        found.iter().for_each(|found| self.ledger.fault(found));
        let idle = self.finishing && under_way == 0 && self.children.is_empty();
        if idle && !self.idle {
            self.ledger.print_line("idle");
            // From now on other workers may close.
            self.ledger.parting = true;
        }
        self.idle = idle;
        self.closing
    }

    /// Waits in a random way: sleeps until a task is woken, yields, or waits on an endpoint.
    fn rest(&mut self, busy: bool) {
        let rarely = if self.next_id & 64 == 0 { 8 } else { 200 };
        let has_tasks = self.stations.iter().any(|worker_endpoint| !worker_endpoint.tasks.is_empty());
        if self.ledger.plan.sleepy && !self.finishing && has_tasks && self.ledger.random.below(rarely) == 0 {
            return self.sleep();
        }
        // A busy worker usually continues immediately.
        if self.ledger.random.below(16) < if busy { 14 } else { 5 } {
            return std::thread::yield_now();
        }
        let at = self.ledger.random.below(self.stations.len().max(1));
        let alone = self.stations.len() == 1 && self.lines.is_none();
        if let Some(worker_endpoint) = self.stations.get(at) {
            worker_endpoint.endpoint.wait(Some(Duration::from_millis(if alone { 5 } else { 1 })));
        }
    }

    /// Sleeps until a task is woken. Reports a fault if a task has ended without being woken.
    fn sleep(&mut self) {
        for worker_endpoint in &mut self.stations {
            // Poll often enough that the tasks wait for the descriptor.
            for _ in 0..40 {
                worker_endpoint.poll_tasks(&mut self.ledger, true);
            }
        }
        let woken = |worker: &Self| {
            let mut tasks = worker.stations.iter().flat_map(|worker_endpoint| &worker_endpoint.tasks);
            tasks.any(|task| task.is_woken())
        };
        let until = Instant::now() + Duration::from_secs(12);
        while !woken(self) {
            let now = Instant::now();
            if now >= until {
                break;
            }
            std::thread::park_timeout(until - now);
        }
        if woken(self) {
            return;
        }
        std::thread::sleep(Duration::from_secs(1));
        if woken(self) {
            return;
        }
        for worker_endpoint in &mut self.stations {
            let mut index = 0;
            while index < worker_endpoint.tasks.len() {
                let was_woken = worker_endpoint.tasks[index].is_woken();
                let Some(end) = worker_endpoint.tasks[index].poll(true) else {
                    index += 1;
                    continue;
                };
                let task = worker_endpoint.tasks.swap_remove(index);
                if !was_woken {
                    self.ledger.fault(&format!(
                        "{task:?} at port {} had ended ({}) but was not woken for 13 s",
                        worker_endpoint.port,
                        match &end {
                            super::task::OperationEnd::Sent(end) => format!("{:?}", end.as_ref().map(drop)),
                            super::task::OperationEnd::Received(end) => format!("{:?}", end.as_ref().map(drop)),
                            super::task::OperationEnd::Accessed(end) => format!("{:?}", end.as_ref().map(drop)),
                        }
                    ));
                }
                worker_endpoint.task_ended(&mut self.ledger, &task, end);
                return;
            }
        }
    }

    /// Cancels posted operations, closes all objects in a random order, and checks that no memory is written
    /// afterwards.
    fn end(mut self) -> WorkerLedger {
        let mut contexts = self.ledger.receives(0);
        if let Some(pool) = self.pool.clone() {
            for context in contexts.drain(..) {
                let was_posted = pool.cancel(context);
                // If no endpoint uses the context, the end of its receives is not reported.
                if !self.stations.is_empty() {
                    self.ledger.cancelled(context, was_posted);
                }
            }
        }
        for index in 0..self.stations.len() {
            for context in self.ledger.receives(self.stations[index].id) {
                let was_posted = self.stations[index].endpoint.cancel(context);
                self.ledger.cancelled(context, was_posted);
            }
        }
        self.ledger.stage("waits for operations");
        let until = Instant::now() + OPERATION_TIMEOUT + Duration::from_secs(1);
        while self.ledger.overdue() > 0 && Instant::now() < until {
            if !self.collect() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        while let Some(worker_endpoint) = self.stations.pop() {
            self.ledger.stage("closes an endpoint");
            worker_endpoint.close(&mut self.ledger);
        }
        self.ledger.stage("closes endpoints of one connection");
        self.close_connections();
        self.ledger.stage("closes windows");
        self.close_windows();
        // The remaining steps concern only the worker itself. Frequent signals would slow them down.
        life::interrupt_every(0);
        self.ledger.stage("closes regions");
        let until = Instant::now() + OPERATION_TIMEOUT + Duration::from_secs(1);
        while !self.regions.is_empty() && Instant::now() < until {
            self.close_region();
        }
        self.ledger.stage("closes its domain");
        self.reader.take().into_iter().for_each(Reader::stop);
        drop((self.pool.take(), self.queue.take(), std::mem::take(&mut self.regions)));
        let Self { domain, ledger, .. } = self;
        drop(domain);
        ledger
    }
}
