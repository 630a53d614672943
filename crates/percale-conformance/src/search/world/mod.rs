//! A run in this process: the endpoints, the memory lent to them, and the execution of the steps.
//!
//! * `messages`: posts messages and receives
//! * `reports`: reads and handles reports
//! * `handles`: operations of the safe API
//! * `sets`: sets of operations, and waits for several operations
//! * `many`: receives for many messages
//! * `calls`: remote procedure calls
//! * `lives`: opens and closes endpoints
//! * `devices`: fabrics, and events of RDMA devices
//! * `accesses`: regions, and accesses to them
//! * `counters`: deferred and triggered work
//! * `groups`: collectives
//! * `windows`: windows of regions, and accesses through them
//! * `settle`: ends all operations, and checks the final state

#![expect(unsafe_code, reason = "frees endpoints after all values that borrow from them")]

mod accesses;
mod calls;
mod counters;
mod devices;
mod groups;
mod handles;
mod lives;
mod many;
mod messages;
mod reports;
mod sets;
mod settle;
mod windows;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use percale::transport::sim::{Network, SimOptions};
use percale::{
    AddressVector, CompletionQueue, Counter, Domain, Endpoint, EventQueue, PeerAddress, SharedEndpoint, SharedReceive,
};

use self::accesses::Regions;
use self::calls::Calls;
use self::counters::Deferrals;
use self::devices::Fabrics;
use self::groups::Groups;
use self::handles::HeldHandle;
use self::many::HeldMany;
use self::sets::HeldSet;
use self::windows::Windows;
use super::ledger::{Criteria, EndpointAddress, Fault, Ledger, Life, Verdict};
use super::lent::{self, BufferTreatment, Lender, Lent, Returns};
use super::step::{MANY, QUEUES, RunPlan, RunTransport, SETS, SLOTS, Settings, Step};
use super::waker;
use crate::fabric::own_host;
use crate::random::Random;

/// An endpoint that its handles borrow.
#[derive(Clone, Copy, Debug)]
enum Port {
    Owned(&'static Endpoint, *mut Endpoint),
    Shared(&'static SharedEndpoint, *mut SharedEndpoint),
}

/// Calls a method of the endpoint of a port, which is owned or shared.
macro_rules! on {
    ($port:expr, $endpoint:ident => $body:expr) => {
        match $port {
            $crate::search::world::Port::Owned($endpoint, _) => $body,
            $crate::search::world::Port::Shared($endpoint, _) => $body,
        }
    };
}
use on;

impl Port {
    fn owned(endpoint: Endpoint) -> Self {
        let ptr = Box::into_raw(Box::new(endpoint));
        // SAFETY: the box lives until `take_owned`; before that, all handles that borrow from it are dropped or
        // forgotten.
        Self::Owned(unsafe { &*ptr }, ptr)
    }

    fn shared(endpoint: SharedEndpoint) -> Self {
        let ptr = Box::into_raw(Box::new(endpoint));
        // SAFETY: as above.
        Self::Shared(unsafe { &*ptr }, ptr)
    }

    /// Converts an exclusively owned endpoint into a shared one. No value may still borrow from it.
    fn share(self) -> Self {
        let Self::Owned(_, ptr) = self else { return self };
        // SAFETY: the pointer comes from `Box::into_raw` and is not used afterwards.
        let endpoint = unsafe { Box::from_raw(ptr) };
        match endpoint.share() {
            Ok(endpoint) => Self::shared(endpoint),
            Err(error) => Self::owned(error.into_inner()),
        }
    }

    /// Closes the endpoint. No value may still borrow from it. Forgotten handles keep a shared endpoint open, so it is
    /// closed by a call if there are any.
    fn close(self, has_forgotten: bool) {
        if let (Self::Shared(endpoint, _), true) = (self, has_forgotten) {
            endpoint.shut();
        }
        match self {
            // SAFETY: the pointer comes from `Box::into_raw` and is not used afterwards.
            Self::Owned(_, ptr) => drop(unsafe { Box::from_raw(ptr) }),
            // SAFETY: as above.
            Self::Shared(_, ptr) => drop(unsafe { Box::from_raw(ptr) }),
        }
    }
}

/// An open endpoint.
#[derive(Debug)]
struct Open {
    life: Life,
    port: Port,
    /// The contexts of operations of the raw API, oldest first. Ended operations are removed occasionally.
    posted: Vec<u64>,
    /// The operations of claimed messages.
    claimed: Vec<u64>,
    /// Whether a handle was forgotten.
    has_forgotten: bool,
}

/// A place: an address, and the endpoint that is open at it.
#[derive(Debug)]
struct OpenedEndpoint {
    address: SocketAddr,
    vector: AddressVector,
    domain: Domain,
    counter: Counter,
    events: EventQueue,
    open: Option<Open>,
    /// Whether an earlier endpoint was closed here.
    was_closed: bool,
}

/// The amount of work in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// The number of posted operations.
    pub operations: u64,
    /// The number of lifecycle events.
    pub lives: u64,
    /// Whether handles were forgotten, which leaks their memory.
    pub forgot: bool,
}

/// The state of a run: its endpoints and memory, and the model with the expected results.
pub(super) struct World {
    settings: Settings,
    network: Option<Network>,
    fabrics: Fabrics,
    seats: Vec<OpenedEndpoint>,
    /// The place of each address in the vectors.
    names: BTreeMap<u64, EndpointAddress>,
    queues: Vec<CompletionQueue>,
    pool: SharedReceive,
    pool_posted: Vec<u64>,
    ledger: Ledger,
    lender: Lender,
    returns: Returns,
    lent: HashMap<u64, Vec<Lent>>,
    /// The addresses and contents of shared buffers that were released.
    released: HashMap<u64, (u64, Vec<u8>)>,
    held: Vec<Option<HeldHandle>>,
    sets: Vec<Option<HeldSet>>,
    many: Vec<Option<HeldMany>>,
    calls: Option<Calls>,
    /// The windows are dropped before the regions to which they are bound, because fields are dropped in the order of
    /// declaration.
    windows: Windows,
    regions: Regions,
    deferrals: Deferrals,
    groups: Groups,
    /// The expected results of collectives.
    sums: HashMap<u64, u64>,
    random: Random,
    /// The criteria of receives that remain posted because their handles were forgotten.
    forgotten: Vec<Criteria>,
    /// Forgotten handles of shared endpoints. Each keeps the descriptors of its endpoint, and would leak them if it were
    /// never dropped. They are dropped after all endpoints were closed.
    kept: Vec<Box<dyn Any>>,
    lives: u32,
    /// The number of results read from queues and endpoints.
    results: u64,
    /// The number of wakers that existed before the run.
    wakers: usize,
    step: u32,
    done: Done,
}

/// The first port of the places on the simulated network.
const PORTS: u16 = 1000;

impl World {
    /// Creates the state for these settings, and opens every place.
    fn new(settings: &Settings) -> Verdict<Self> {
        let network = (settings.transport == RunTransport::Sim).then(|| {
            let options = SimOptions {
                delay: (100, settings.delay),
                frame_limit: settings.frame_limit,
                window: settings.window,
                ..SimOptions::default()
            };
            Network::new(settings.network_seed, options)
        });
        let fabrics = Fabrics::new(settings);
        let common = fabrics.domain(settings, network.as_ref(), 0);
        let seats = settings.seats.iter().enumerate().map(|(number, _)| {
            let domain = match settings.one_domain {
                true => common.clone(),
                false => fabrics.domain(settings, network.as_ref(), number),
            };
            let address = match network {
                Some(_) => SocketAddr::from(([10, 0, 0, 1], PORTS + number as u16)),
                None => SocketAddr::from((own_host(), 0)),
            };
            OpenedEndpoint {
                address,
                vector: domain.address_vector().build().expect("a vector"),
                domain,
                counter: Counter::new(),
                events: EventQueue::new(16),
                open: None,
                was_closed: false,
            }
        });
        let mut world = Self {
            seats: seats.collect(),
            network,
            fabrics,
            names: BTreeMap::new(),
            queues: (0..QUEUES).map(|_| CompletionQueue::new(2, settings.queue_limit)).collect(),
            pool: common.shared_receive(),
            pool_posted: Vec::new(),
            ledger: Ledger::default(),
            lender: Lender::default(),
            returns: Returns::default(),
            lent: HashMap::new(),
            released: HashMap::new(),
            held: (0..SLOTS + 2 * settings.seats.len()).map(|_| None).collect(),
            sets: (0..SETS).map(|_| None).collect(),
            many: (0..MANY).map(|_| None).collect(),
            calls: None,
            windows: Windows::default(),
            regions: Regions::default(),
            deferrals: Deferrals::new(),
            groups: Groups::default(),
            sums: HashMap::new(),
            random: Random::new(settings.network_seed ^ 1),
            forgotten: Vec::new(),
            kept: Vec::new(),
            lives: 0,
            results: 0,
            wakers: waker::live(),
            step: 0,
            done: Done::default(),
            settings: settings.clone(),
        };
        for place in 0..world.seats.len() {
            world.open(place, false)?;
        }
        Ok(world)
    }

    /// Opens another domain.
    fn domain(&self) -> Domain {
        self.fabrics.domain(&self.settings, self.network.as_ref(), 0)
    }

    fn place(&self, number: u8) -> usize {
        usize::from(number) % self.seats.len()
    }

    fn port(&self, place: usize) -> Option<(Life, Port)> {
        self.seats[place].open.as_ref().map(|open| (open.life, open.port))
    }

    /// Returns the address of a place. It is the same in all vectors.
    fn name(&self, place: usize) -> PeerAddress {
        let name = self.names.iter().rev().find(|(_, of)| of.0 as usize == place).map(|(name, _)| *name);
        PeerAddress(name.expect("each place has a name"))
    }

    /// Returns the place that a completion reports as its source.
    fn source(&self, peer: PeerAddress) -> Verdict<Option<EndpointAddress>> {
        if !peer.is_specified() {
            return Ok(None);
        }
        match self.names.get(&peer.0) {
            Some(place) => Ok(Some(*place)),
            None => Err(Fault::new(
                "wrong source",
                format!("{peer:?} was reported as a source but is not the address of an endpoint"),
            )),
        }
    }

    /// Draws what happens to the buffers of this operation after its end.
    fn watch(&mut self) -> BufferTreatment {
        let (forbidden, reused) = self.settings.watch;
        let drawn = self.random.below(16) as u8;
        match drawn {
            _ if drawn < forbidden => BufferTreatment::Forbid,
            _ if drawn < forbidden.saturating_add(reused) => BufferTreatment::Reuse,
            _ => BufferTreatment::Overwrite,
        }
    }

    /// Handles the return of the memory of an operation.
    fn give_back(&mut self, id: u64) -> Verdict {
        for lent in self.lent.remove(&id).unwrap_or_default() {
            let watch = self.watch();
            self.lender.take_back(id, lent, watch)?;
        }
        Ok(())
    }

    fn tick(&self, nanoseconds: u64) {
        if let Some(network) = &self.network {
            network.advance(nanoseconds);
        }
    }

    fn execute(&mut self, step: Step) -> Verdict {
        match step {
            Step::Send { at, to, len, tag, data, by, level, slot } => {
                let (at, to) = (self.place(at), self.place(to));
                self.send(at, to, messages::Sent { len: len as usize, tag, data, by, level, slot: usize::from(slot) })
            }
            Step::Receive { at, from, tag, len, by, slot } => {
                let (at, from) = (self.place(at), from.map(|from| self.place(from)));
                self.receive(at, from, tag, len as usize, by, usize::from(slot))
            }
            Step::Look { at, from, tag, what } => {
                let (at, from) = (self.place(at), from.map(|from| self.place(from)));
                self.look(at, from, tag, what)
            }
            Step::Claimed { at, nth, discard } => self.claimed(self.place(at), usize::from(nth), discard),
            Step::Cancel { at, nth } => {
                self.cancel(self.place(at), usize::from(nth));
                Ok(())
            }
            Step::CancelPool { nth } => {
                self.cancel_pool(usize::from(nth));
                Ok(())
            }
            Step::Poll { at, count } => self.poll(self.place(at), usize::from(count)),
            Step::Progress { at, times } => {
                if let Some((_, port)) = self.port(self.place(at)) {
                    (0..times).for_each(|_| _ = on!(port, endpoint => endpoint.progress()));
                }
                Ok(())
            }
            Step::Read { queue, count } => self.read(usize::from(queue) % QUEUES, usize::from(count)),
            Step::Tick { nanoseconds } => {
                self.tick(nanoseconds.into());
                Ok(())
            }
            Step::Handle { slot, what } => self.handle(usize::from(slot), what),
            Step::WaitSeveral { slot, count, all } => self.wait_several(usize::from(slot), usize::from(count), all),
            Step::Set { set, what } => self.set(usize::from(set), what),
            Step::Many { slot, what } => self.many(usize::from(slot), what),
            Step::Call(what) => self.call(what),
            Step::Close { at, forget } => self.close(self.place(at), forget),
            Step::Open { at, moved } => {
                let place = self.place(at);
                if self.seats[place].open.is_none() { self.open(place, moved) } else { Ok(()) }
            }
            Step::Share { at } => {
                self.share(self.place(at));
                Ok(())
            }
            Step::Break { nth } => {
                if let Some(network) = &self.network {
                    network.lose(usize::from(nth));
                    self.ledger.harm(None, None);
                }
                Ok(())
            }
            Step::Device { device, what } => {
                self.device(usize::from(device), what);
                Ok(())
            }
            Step::Register { at, raw } => self.register(self.place(at), raw),
            Step::Deregister { at, nth, forget } => self.deregister(self.place(at), usize::from(nth), forget),
            Step::Access { at, to, block, by, slot, fenced } => {
                let (at, to) = (self.place(at), self.place(to));
                self.access(at, to, usize::from(block), by, usize::from(slot), fenced)
            }
            Step::Window { at, nth, what } => self.window(self.place(at), usize::from(nth), what),
            Step::Reach { at, to, nth, block, by, slot, fenced } => {
                let (at, to) = (self.place(at), (self.place(to), usize::from(nth)));
                self.reach(at, to, usize::from(block), by, usize::from(slot), fenced)
            }
            Step::Counter { counter, what } => self.counter(usize::from(counter), what),
            Step::SendWhen { at, to, len, counter, threshold, slot, safe } => {
                let (at, to) = (self.place(at), self.place(to));
                self.send_when(at, to, len as usize, (usize::from(counter), threshold.into()), usize::from(slot), safe)
            }
            Step::Group { at, what } => self.group(self.place(at), what),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        waker::set_call(None);
        // Handles are dropped before the objects that they borrow from.
        self.held.clear();
        self.sets.clear();
        self.many.clear();
        self.calls = None;
        self.groups = Groups::default();
        for opened_endpoint in &mut self.seats {
            if let Some(open) = opened_endpoint.open.take() {
                open.port.close(open.has_forgotten);
            }
        }
    }
}

/// Returns the message of a panic.
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}

/// Executes a run. Returns the amount of work, the verdict, and the step at which the run ended.
pub fn run(plan: &RunPlan) -> (Done, Verdict<()>, usize) {
    lent::RUN.store(plan.seed, Ordering::Relaxed);
    let world = catch_unwind(AssertUnwindSafe(|| World::new(&plan.settings)));
    let mut world = match world {
        Ok(Ok(world)) => world,
        Ok(Err(fault)) => return (Done::default(), Err(fault), 0),
        Err(panic) => return (Done::default(), Err(Fault::new("panicked", words(&*panic))), 0),
    };
    let (verdict, at) = world.steps(plan);
    let mut done = world.done;
    done.operations = world.ledger.posted();
    if verdict.is_err() {
        // The other objects may be in any state, and the process exits soon.
        std::mem::forget(world);
        return (done, verdict, at);
    }
    match catch_unwind(AssertUnwindSafe(|| drop(world))) {
        Ok(()) => (done, Ok(()), at),
        Err(panic) => (done, Err(Fault::new("panicked", words(&*panic))), at),
    }
}

impl World {
    fn steps(&mut self, plan: &RunPlan) -> (Verdict, usize) {
        for (index, step) in plan.steps.iter().enumerate() {
            lent::STEP.store(index, Ordering::Relaxed);
            self.step = index as u32;
            self.done.lives += u64::from(step.is_life());
            if let Err(fault) = self.guarded(|world| world.execute(*step)) {
                return (Err(fault), index);
            }
        }
        lent::STEP.store(plan.steps.len(), Ordering::Relaxed);
        (self.guarded(Self::settle), plan.steps.len())
    }

    /// Calls `what`. A panic of one of the run's wakers is expected. Any other panic is a fault.
    fn guarded(&mut self, what: impl FnOnce(&mut Self) -> Verdict) -> Verdict {
        match catch_unwind(AssertUnwindSafe(|| what(self))) {
            Ok(verdict) => verdict,
            Err(panic) if panic.downcast_ref::<&str>().is_some_and(|text| *text == waker::PANIC) => Ok(()),
            Err(panic) => Err(Fault::new("panicked", words(&*panic))),
        }
    }
}
