//! The service thread. It has one epoll set, one list of timers, and tables of everything in progress, indexed by
//! number.
//!
//! The thread blocks only in epoll (or in short pauses, if the system does not allow waiting for events). The epoll
//! data of a descriptor contains the number of its owner and a channel. Numbers are never reused, so an event for an
//! object that no longer exists is ignored. Set-ups and callers are registered edge-triggered and are always processed
//! until the kernel returns EAGAIN; a spurious event is harmless. Listeners are level-triggered. They are removed from
//! epoll while no descriptor is available, so that the thread does not spin. With a reserved descriptor the thread
//! reports to callers that there are no descriptors, instead of leaving them in the queue.

mod accept;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::fs::{Mode, OFlags};

use super::arbiter::AddressStatus;
use super::commands::{Command, InitialState, ServiceState};
use super::liveness::WatchedObjects;
use super::mailbox::ServiceNotice;
use super::naming::Naming;
use super::queue_pairs::Pairs;
use super::setup::Setup;
use crate::later::later;
use crate::local_memory::barrier;
use crate::local_memory::kernel;
use crate::system::call::call;
use crate::system::process_socket::ProcessSocket;
use crate::system::random::random;
use crate::wire::hello::{Hello, Incarnation, Token};

/// The channel, which identifies the descriptor of the owner to which an event refers.
const TCP: u64 = 0;
const UNIX: u64 = 1;
const PIDFD: u64 = 2;

/// The number of the command queue.
const WAKE: u64 = 0;

/// The maximum number of connections of an endpoint to peers that were not met at their addresses. If there are more,
/// the oldest one is dropped. If the endpoint does not probe addresses, this counts only connections that it has not
/// yet read.
const UNPROVEN: usize = 1024;

/// Returns `count`, but at most 1/`part` of the process's descriptor limit, so that the descriptors that
/// unauthenticated clients hold leave room for those that the application opens. The limit is read on each call because
/// it can change.
fn at_most(count: usize, part: u64) -> usize {
    let descriptors = kernel::limit(libc::RLIMIT_NOFILE);
    descriptors.map_or(count, |most| count.min(usize::try_from(most / part).unwrap_or(count))).max(1)
}

/// The interval at which local peers are checked without an event.
const ROUND: Duration = Duration::from_secs(1);

/// The interval at which everything is checked if the system does not allow waiting for events.
const EVERYTHING: Duration = Duration::from_millis(2);

/// The state of an endpoint.
pub(super) struct EndpointState {
    pub(super) opened: InitialState,
    /// The established connections.
    pub(super) held: HashMap<Incarnation, HeldConnection>,
    /// The open contexts of a site.
    pub(super) members: HashMap<u16, u64>,
    /// The time at which its paused listeners resume.
    resting: Option<Instant>,
    /// The number of callers that arrived since all of them were counted.
    uncounted: usize,
}

/// An established connection.
pub(super) struct HeldConnection {
    pub(super) serial: u64,
    pub(super) token: Token,
    /// The address and context at which a call has reached the peer.
    pub(super) at: Option<(SocketAddr, u16)>,
}

impl HeldConnection {
    pub(super) const fn address_status(&self) -> AddressStatus {
        if self.at.is_some() { AddressStatus::Met } else { AddressStatus::Claimed }
    }
}

impl EndpointState {
    /// Creates a hello of this endpoint, with a new nonce.
    pub(super) fn hello(&self) -> io::Result<Hello> {
        Ok(Hello {
            flags: self.opened.flags,
            place: self.opened.place,
            address: self.opened.listeners.address,
            called: self.opened.listeners.address,
            context: self.opened.site.map_or(0, |(_, index)| index),
            wanted: 0,
            incarnation: self.opened.incarnation,
            reset: [0; 16],
            nonce: random()?,
        })
    }

    pub(super) fn post(&self, notice: ServiceNotice) {
        self.opened.mailbox.post(notice);
    }
}

/// A caller at the Unix socket that has not sent its offer yet.
struct PendingCaller {
    endpoint: u64,
    socket: ProcessSocket,
    due: Instant,
}

/// A local peer with an established connection.
struct WatchedPeer {
    endpoint: u64,
    incarnation: Incarnation,
    watched: WatchedObjects,
}

impl WatchedPeer {
    fn is_alive(&self) -> bool {
        self.watched.end_reason().is_none()
    }
}

/// The state of the service thread.
pub(super) struct Reactor {
    pub(super) shared: Arc<ServiceState>,
    pub(super) pairs: Arc<Pairs>,
    epoll: OwnedFd,
    pub(super) endpoints: HashMap<u64, EndpointState>,
    pub(super) setups: HashMap<u64, Setup>,
    callers: HashMap<u64, PendingCaller>,
    /// The watched local peers, indexed by serial.
    watches: HashMap<u64, WatchedPeer>,
    /// The time when all of them are checked, even without an event.
    round: Option<Instant>,
    timers: BTreeSet<(Instant, u64)>,
    reserve: Option<OwnedFd>,
}

impl Reactor {
    pub(super) fn new(shared: Arc<ServiceState>) -> io::Result<Self> {
        let reactor = Self {
            epoll: call("epoll_create1", || epoll::create(epoll::CreateFlags::CLOEXEC))?,
            endpoints: HashMap::new(),
            setups: HashMap::new(),
            callers: HashMap::new(),
            watches: HashMap::new(),
            round: None,
            timers: BTreeSet::new(),
            reserve: Some(call("openat", reserve)?),
            pairs: Pairs::new("percale-pairs"),
            shared,
        };
        let data = epoll::EventData::new_u64(WAKE);
        call("epoll_ctl", || epoll::add(&reactor.epoll, &reactor.shared.wake, data, epoll::EventFlags::IN))?;
        Ok(reactor)
    }

    pub(super) fn number(&self) -> u64 {
        self.shared.number()
    }

    pub(super) fn run(&mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let next = self.timers.first().map(|(due, _)| due).into_iter().chain(&self.round).min();
            let timeout = next.map(|due| {
                let rest = due.saturating_duration_since(Instant::now()).min(Duration::from_secs(3600));
                // A little more than the remaining time, so that the thread does not wake up before the timer is due.
                timespec(rest + Duration::from_micros(10))
            });
            if let Err(error) = self.wait(&mut events, timeout.as_ref()) {
                later!(debug: %error, "epoll failed: all connections are polled");
                if !self.process_all() {
                    return;
                }
            }
            for event in &events {
                let data = event.data.u64();
                if data == WAKE {
                    if !self.execute_commands() {
                        return;
                    }
                } else {
                    self.dispatch(data >> 2, data & 3);
                }
            }
            self.expire();
            self.check_local_peers();
            if !self.watches.is_empty() {
                // A local peer exists. Registering takes time, but on this thread it does not delay any sender.
                barrier::register();
            }
        }
    }

    /// Waits for events.
    fn wait(&self, events: &mut Vec<epoll::Event>, timeout: Option<&Timespec>) -> io::Result<()> {
        call("epoll_pwait2", || epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout)).map(drop)
    }

    /// Processes everything after a short pause, for systems that do not allow waiting for events. Returns `false` when
    /// the thread has to end.
    #[cold]
    fn process_all(&mut self) -> bool {
        let mut wake = [PollFd::new(&self.shared.wake, PollFlags::IN)];
        if rustix::event::poll(&mut wake, Some(&timespec(EVERYTHING))).is_err() {
            crate::system::thread::pause(EVERYTHING);
        }
        if !self.execute_commands() {
            return false;
        }
        let endpoints: Vec<u64> = self.endpoints.keys().copied().collect();
        for id in endpoints {
            self.accept_tcp(id);
            self.accept_unix(id);
        }
        let others = self.setups.keys().chain(self.callers.keys()).chain(self.watches.keys());
        let others: Vec<u64> = others.copied().collect();
        others.into_iter().for_each(|id| self.dispatch(id, TCP));
        true
    }

    /// Executes the queued commands. Returns `false` when the thread has to end.
    fn execute_commands(&mut self) -> bool {
        // Cleared before the queue is read. A command that is queued later wakes up the thread again.
        if let Err(error) = self.shared.wake.clear() {
            later!(error: %error, "the connection service's wake-up failed");
        }
        for command in self.shared.take() {
            match command {
                Command::Open(id, opened) => {
                    if let Some((site, index)) = opened.site
                        && let Some(site) = self.endpoints.get_mut(&site)
                    {
                        site.members.insert(index, id);
                    }
                    let (held, members) = (HashMap::new(), HashMap::new());
                    self.endpoints
                        .insert(id, EndpointState { opened: *opened, held, members, resting: None, uncounted: 0 });
                    self.listen(id);
                }
                Command::Connect { endpoint, attempt, peer, context } => {
                    self.begin(endpoint, attempt, peer, context);
                }
                Command::Closed { endpoint, serial } => {
                    self.unwatch(serial);
                    if let Some(endpoint) = self.endpoints.get_mut(&endpoint) {
                        endpoint.held.retain(|_, held| held.serial != serial);
                    }
                }
                Command::Close(id, done) => {
                    self.setups.retain(|_, setup| setup.endpoint != id);
                    self.callers.retain(|_, caller| caller.endpoint != id);
                    if let Some(endpoint) = self.endpoints.remove(&id) {
                        endpoint.held.values().for_each(|held| self.unwatch(held.serial));
                        if let Some((site, index)) = endpoint.opened.site
                            && let Some(site) = self.endpoints.get_mut(&site)
                        {
                            site.members.remove(&index);
                        }
                    }
                    // In a process that is exiting, no thread waits for this answer.
                    done.send(()).unwrap_or_default();
                }
                Command::Paired { setup, number, result } => self.paired(setup, number, result),
                Command::Stop => return false,
            }
        }
        true
    }

    fn dispatch(&mut self, id: u64, channel: u64) {
        if self.setups.contains_key(&id) {
            self.drive(id);
        } else if self.endpoints.contains_key(&id) {
            if channel == UNIX { self.accept_unix(id) } else { self.accept_tcp(id) }
        } else if self.callers.contains_key(&id) {
            self.read_token(id);
        } else if self.watches.contains_key(&id) {
            self.look(id);
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while let Some(&(due, id)) = self.timers.first() {
            if due > now {
                return;
            }
            self.timers.pop_first();
            let due = self.setups.get(&id).map(|setup| setup.due);
            if due.is_some_and(|due| due <= now) {
                self.overdue(id);
            } else if let Some(due) = due {
                self.timers.insert((due, id)); // The timer was postponed.
            } else if self.callers.get(&id).is_some_and(|caller| caller.due <= now) {
                self.callers.remove(&id);
            } else if self.endpoints.get(&id).and_then(|endpoint| endpoint.resting).is_some_and(|due| due <= now) {
                self.listen(id);
            }
        }
    }

    /// Sets a timer for the owner `id` at `due`. If an earlier timer of the same owner expires, it has no effect,
    /// because the owner is not due yet.
    pub(super) fn wake_at(&mut self, due: Instant, id: u64) {
        self.timers.insert((due, id));
    }

    /// Registers a socket of a set-up, edge-triggered.
    pub(super) fn register(&self, socket: &ProcessSocket, id: u64, unix: bool) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(id << 2 | if unix { UNIX } else { TCP });
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, socket, data, flags)
    }

    /// Removes a socket from epoll before it is passed on.
    pub(super) fn unregister(&self, socket: &ProcessSocket) {
        if let Err(error) = epoll::delete(&self.epoll, socket) {
            later!(debug: %error, "a socket was not registered");
        }
    }

    /// Drops a set-up and its prober.
    pub(super) fn forget_setup(&mut self, id: u64) {
        if let Some(prober) = self.setups.remove(&id).and_then(|setup| setup.prober) {
            self.setups.remove(&prober);
        }
    }

    /// Drops the oldest connection of an endpoint to a peer that was not met at its address, if there are too many of
    /// them. Called when a connection was added.
    pub(super) fn limit_unproven(&mut self, id: u64) {
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        // One connection was added, so dropping one is sufficient.
        let most = at_most(UNPROVEN, 4);
        if let Some(serial) = endpoint.opened.mailbox.retract_oldest(most) {
            return self.drop_unproven(id, serial, false);
        }
        if matches!(endpoint.opened.naming, Naming::None) {
            return; // The owner of the endpoint decides which connections it keeps.
        }
        let unproven = || endpoint.held.values().filter(|held| held.at.is_none()).map(|held| held.serial);
        if unproven().count() > most
            && let Some(oldest) = unproven().min()
        {
            let seen = !endpoint.opened.mailbox.retract(oldest);
            self.drop_unproven(id, oldest, seen);
        }
    }

    fn drop_unproven(&mut self, id: u64, serial: u64, seen: bool) {
        later!(warn: "too many peers that cannot be reached at their addresses: the oldest connection is closed");
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        let incarnation = endpoint.held.iter().find(|(_, held)| held.serial == serial).map(|(peer, _)| *peer);
        match incarnation {
            Some(incarnation) if seen => {
                let reason = "too many connected peers cannot be reached at their addresses".to_owned();
                self.remove_connection(id, incarnation, serial, reason);
            }
            Some(incarnation) => {
                endpoint.held.remove(&incarnation);
                self.unwatch(serial);
            }
            None => {}
        }
    }

    /// Starts watching the peer of an established connection.
    pub(super) fn watch(&mut self, endpoint: u64, serial: u64, incarnation: Incarnation, watched: WatchedObjects) {
        let data = |channel| epoll::EventData::new_u64(serial << 2 | channel);
        let result = epoll::add(&self.epoll, watched.process.pidfd(), data(PIDFD), epoll::EventFlags::IN)
            .and_then(|()| epoll::add(&self.epoll, &watched.control, data(UNIX), epoll::EventFlags::RDHUP));
        if let Err(error) = result {
            later!(error: %error, "cannot watch a peer process: its exit will be detected late");
        }
        self.watches.insert(serial, WatchedPeer { endpoint, incarnation, watched });
    }

    /// Stops watching a peer and ends the connection. The peer sees a hang-up even if a forked child of this process
    /// still has the socket.
    pub(super) fn unwatch(&mut self, serial: u64) {
        if let Some(WatchedPeer { watched, .. }) = self.take_watch(serial)
            && let Err(error) = rustix::net::shutdown(&watched.control, rustix::net::Shutdown::Both)
        {
            later!(debug: %error, "a control socket was closed already");
        }
    }

    /// Stops watching a peer. Both descriptors are also held elsewhere, so closing these would not remove them from
    /// epoll.
    fn take_watch(&mut self, serial: u64) -> Option<WatchedPeer> {
        let watch = self.watches.remove(&serial)?;
        for fd in [watch.watched.process.pidfd(), watch.watched.control.as_fd()] {
            if let Err(error) = epoll::delete(&self.epoll, fd) {
                later!(debug: %error, "a peer was not watched");
            }
        }
        Some(watch)
    }

    /// Checks all local peers from time to time. This is the only way to detect that a peer executes another program
    /// while a forked child of it has the control socket.
    fn check_local_peers(&mut self) {
        let now = Instant::now();
        if self.round.is_some_and(|due| due <= now) {
            let gone = |watch: &WatchedPeer| watch.watched.process.ended().is_some();
            let gone: Vec<u64> =
                self.watches.iter().filter(|(_, watch)| gone(watch)).map(|(serial, _)| *serial).collect();
            gone.into_iter().for_each(|serial| self.look(serial));
            self.round = None;
        }
        if self.watches.is_empty() {
            self.round = None;
        } else if self.round.is_none() {
            self.round = Some(now + ROUND);
        }
    }

    /// Returns whether the connection uses shared memory and the peer has neither ended nor closed it. In this case a
    /// message from a caller over TCP must not end the connection.
    pub(super) fn is_alive(&self, serial: u64) -> bool {
        self.watches.get(&serial).is_some_and(WatchedPeer::is_alive)
    }

    /// Handles an event of a local peer.
    fn look(&mut self, serial: u64) {
        let Some(reason) = self.watches.get(&serial).and_then(|watch| watch.watched.end_reason()) else { return };
        let Some(WatchedPeer { endpoint, incarnation, .. }) = self.take_watch(serial) else { return };
        self.remove_connection(endpoint, incarnation, serial, reason);
    }

    /// Removes a connection that has ended, and reports its end.
    pub(super) fn remove_connection(&mut self, endpoint: u64, incarnation: Incarnation, serial: u64, reason: String) {
        self.unwatch(serial);
        if let Some(endpoint) = self.endpoints.get_mut(&endpoint) {
            endpoint.held.retain(|_, held| held.serial != serial);
            endpoint.post(ServiceNotice::Dead { serial, incarnation, reason });
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}

/// Returns an address in the form in which it is sent.
pub(super) const fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Opens a descriptor that can be closed when no other descriptor is available.
fn reserve() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
