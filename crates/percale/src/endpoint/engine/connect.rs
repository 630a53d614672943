//! Connections that come and go: attempts, notices of the service thread, links that break.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::core::{Core, broken_code};
use super::peers::State;
use super::poller::Poller;
use super::sleep::Sleepers;
use super::{BELL, Doorbell, Engine};
use crate::completion::entry::ErrorCode;
use crate::completion::event::Event;
use crate::domain::Trust;
use crate::fabric::TransportKind;
use crate::memory::forked::Process;
use crate::memory::region::Keys;
use crate::transport::any::AnyLink;
use crate::transport::connect::{ConnectError, LocalBell, Made, Mailbox, Notice, PeerIdentity, Registration, ShmParts};
use crate::transport::loopback::LoopbackLink;
use crate::transport::shm::{Bell, Parts, ShmLink};
use crate::transport::sim::SimNotice;
use crate::transport::tcp::{TcpLink, TcpOptions};
use crate::transport::{Broken, Connection, Link};
use crate::wire::head::{Head, Kind};

/// Who makes connections for an endpoint.
#[derive(Debug)]
pub(crate) enum Connector {
    /// The domain's service thread.
    Service {
        /// Our place with it.
        registration: Registration,
        /// Where it leaves notices.
        mailbox: Arc<Mailbox>,
        /// How sockets are set up.
        tcp: TcpOptions,
    },
    /// A simulated network.
    Sim(crate::transport::sim::Port),
}

impl Connector {
    #[inline]
    pub(super) fn has_notices(&self) -> bool {
        match self {
            Self::Service { mailbox, .. } => mailbox.has_notices(),
            Self::Sim(port) => port.has_notices(),
        }
    }
}

/// What an engine starts from.
#[derive(Debug)]
pub(crate) struct Start {
    /// The protocol's state.
    pub(crate) core: Core,
    /// Who makes connections.
    pub(crate) connector: Connector,
    /// What local peers ring.
    pub(crate) doorbell: Arc<Doorbell>,
    /// The address that peers know.
    pub(crate) address: SocketAddr,
    /// This life of the endpoint.
    pub(crate) incarnation: u128,
}

/// How long a closing endpoint tries to get rid of what it still has to send.
const LINGER: Duration = Duration::from_secs(1);

/// Numbers for endpoints.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Engine {
    /// An engine whose only peer is itself.
    pub(crate) fn new(start: Start) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Arc::clone(start.doorbell.bell());
        epoll::add(&epoll, bell.event_fd(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        let mut engine = Self {
            core: start.core,
            links: Vec::new(),
            poller: Poller::new(Arc::clone(&bell)),
            connector: start.connector,
            attempts: HashMap::new(),
            next_attempt: 1,
            bell,
            doorbell: start.doorbell,
            epoll: Arc::new(epoll),
            ticks: None,
            sleepers: Sleepers::default(),
            process: Process::current()?,
            reads: 0,
            address: start.address,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        };
        let own = engine.core.peers.slot(start.address);
        engine.attach(own, AnyLink::Loopback(Box::new(LoopbackLink::new())), start.incarnation);
        Ok(engine)
    }

    /// Asks for a connection to a slot's address.
    pub(super) fn start_connecting(&mut self, slot: Connection) {
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        self.attempts.insert(attempt, slot);
        let peer = self.core.peers.get_mut(slot);
        peer.state = State::Connecting(attempt);
        let address = peer.address;
        match &mut self.connector {
            Connector::Service { registration, .. } => registration.connect(attempt, address),
            Connector::Sim(port) => port.connect(attempt, address),
        }
    }

    /// Handles what the service thread reported.
    #[cold]
    pub(super) fn take_notices(&mut self) {
        match &mut self.connector {
            Connector::Service { mailbox, .. } => {
                for notice in mailbox.take() {
                    self.notice(notice);
                }
            }
            Connector::Sim(port) => {
                for notice in port.take_notices() {
                    self.sim_notice(notice);
                }
            }
        }
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Established { attempt, serial, identity, link, reason } => {
                self.established(attempt, serial, &identity, link, &reason);
            }
            Notice::Failed { attempt, error } => self.attempt_failed(attempt, &error),
            Notice::Aliased { attempt, incarnation } => {
                let Some(slot) = self.attempts.remove(&attempt) else { return };
                match self.core.peers.with_incarnation(u128::from_be_bytes(incarnation.0)) {
                    Some(real) => {
                        self.core.peers.alias(slot, real);
                        self.drain(real);
                    }
                    // The connection that the attempt met is gone already: try again.
                    None => self.start_connecting(slot),
                }
            }
            Notice::Dead { serial, reason, .. } => {
                if let Some(slot) = self.core.peers.with_serial(serial) {
                    self.died(slot, reason);
                }
            }
            Notice::Replaced { serial, old, new } => {
                if let Some(slot) = self.core.peers.with_serial(serial) {
                    let (peer, address) = self.core.peers.identify(slot);
                    tracing::info!(%address, ?old, ?new, "another incarnation answers at a peer's address");
                    self.core.event(|| Event::PeerReplaced { peer, address });
                    self.died(slot, "another process answers at its address".into());
                }
            }
            Notice::TurnedAway { from, error } => {
                tracing::warn!(%from, %error, "a stranger was turned away");
            }
        }
    }

    /// The peer of a link is gone: what it sent before is still delivered, then everything else fails.
    fn died(&mut self, slot: Connection, reason: String) {
        if let Some(Some(AnyLink::Shm(link))) = self.links.get_mut(slot as usize) {
            link.death().set_dead(&reason);
            for _ in 0..1 << 20 {
                // Bounded: a ring holds only so much, and nobody fills it any more.
                if !self.poll_link(slot) || self.core.peers.get(slot).state != State::Up {
                    break;
                }
            }
        }
        if self.core.peers.get(slot).state == State::Up {
            self.down(slot, &Broken::Died(reason));
        }
    }

    fn established(&mut self, attempt: Option<u64>, serial: u64, identity: &PeerIdentity, made: Made, reason: &str) {
        let slot = match attempt.and_then(|attempt| self.attempts.remove(&attempt)) {
            Some(slot) => {
                self.core.peers.also_known_as(slot, identity.address);
                slot
            }
            None => self.core.peers.real_slot(identity.address),
        };
        if self.core.peers.get(slot).state == State::Up {
            self.down(slot, &Broken::Died("it connected afresh".into()));
        }
        let bit = if let Made::Shm(parts) = &made { Some(parts.my_bit) } else { None };
        let (transport, link) = match self.link(made) {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(%error, peer = %identity.address, "an established connection cannot be used");
                bit.inspect(|bit| self.doorbell.release(*bit));
                self.close_serial(serial);
                return self.give_up(slot, ErrorCode::Io, error.to_string());
            }
        };
        let peer = self.core.peers.get_mut(slot);
        peer.serial = serial;
        peer.bit = bit.unwrap_or(0);
        self.attach(slot, link, u128::from_be_bytes(identity.incarnation.0));
        self.core.peers.get_mut(slot).reason = reason.into();
        let (peer, address) = self.core.peers.identify(slot);
        self.core.event(|| Event::Connected { peer, address, transport: transport.name(), reason: reason.into() });
        self.drain(slot);
    }

    /// Makes the link of an established connection.
    fn link(&self, made: Made) -> Result<(TransportKind, AnyLink), Box<dyn std::error::Error>> {
        match made {
            Made::Shm(parts) => {
                let keys = (self.core.trust == Trust::SameUser).then(|| Arc::clone(&self.core.keys));
                let link = ShmLink::new(shm_parts(parts, &self.bell, keys))?;
                Ok((TransportKind::Shm, AnyLink::Shm(Box::new(link))))
            }
            Made::Tcp(socket) => {
                let Connector::Service { tcp, .. } = &self.connector else {
                    unreachable!("sockets come from services")
                };
                let link = TcpLink::new(socket, *tcp)?;
                Ok((TransportKind::Tcp, AnyLink::Tcp(Box::new(link))))
            }
        }
    }

    /// Puts a link to use.
    pub(super) fn attach(&mut self, slot: Connection, link: AnyLink, incarnation: u128) {
        if self.links.len() <= slot as usize {
            self.links.resize_with(slot as usize + 1, || None);
        }
        let peer = self.core.peers.get_mut(slot);
        peer.state = State::Up;
        peer.incarnation = incarnation;
        let bit = peer.bit;
        match &link {
            AnyLink::Shm(_) => self.poller.add_shm(slot, bit),
            AnyLink::Tcp(tcp) => {
                self.poller.sockets += 1;
                self.start_ticks();
                let data = epoll::EventData::new_u64(slot.into());
                if let Err(error) = epoll::add(&*self.epoll, tcp.as_fd(), data, epoll::EventFlags::IN) {
                    tracing::error!(%error, "a socket cannot be watched");
                }
            }
            AnyLink::Sim(_) => self.poller.add_polled(slot),
            // Nothing is in it but what we sent ourselves, and then it is busy.
            AnyLink::Loopback(_) => {}
        }
        self.links[slot as usize] = Some(link);
        self.poller.waits(slot); // A first look: the peer may have sent before we watched.
        self.cool();
        let counts = self.core.counters.remote();
        if !counts.is_empty() {
            self.core.reply(slot, Kind::Counts, counts.bits(), 0);
        }
        if self.core.offers_only {
            self.core.reply(slot, Kind::Offers, 1, 0);
        }
        // Before anything that the peer asks is answered.
        self.act();
    }

    /// A connection is over: everything that waited for it ends, and the next operation connects afresh.
    #[cold]
    pub(super) fn down(&mut self, slot: Connection, broken: &Broken) {
        let link = self.links.get_mut(slot as usize).and_then(Option::take);
        if link.is_some() {
            self.poller.forget(slot, matches!(link, Some(AnyLink::Shm(_))));
        }
        if matches!(link, Some(AnyLink::Tcp(_))) {
            self.poller.sockets -= 1;
            if self.poller.sockets == 0 {
                self.ticks = None; // Nobody reads the timer any more: left in the epoll, it would wake every sleeper at once.
            }
        }
        if let Some(AnyLink::Shm(_)) = &link {
            self.doorbell.release(self.core.peers.get(slot).bit);
        }
        drop(link);
        let serial = self.core.peers.get(slot).serial;
        let (peer, address) = self.core.peers.identify(slot);
        let reason = broken.to_string();
        self.core.down(slot, broken_code(broken), &reason);
        self.close_serial(serial);
        if let Connector::Sim(port) = &self.connector {
            port.closed(address);
        }
        self.core.event(|| Event::PeerDown { peer, address, reason });
    }

    /// Handles what a simulated network reported.
    fn sim_notice(&mut self, notice: SimNotice) {
        match notice {
            SimNotice::Established { attempt, peer, incarnation, link } => {
                if let Some(attempt) = attempt {
                    self.attempts.remove(&attempt);
                }
                let slot = self.core.peers.real_slot(peer);
                if self.core.peers.get(slot).state == State::Up {
                    self.down(slot, &Broken::Died("it connected afresh".into()));
                }
                self.attach(slot, AnyLink::Sim(link), incarnation);
                let (peer, address) = self.core.peers.identify(slot);
                let reason = "both are in the simulated network".to_owned();
                let transport = TransportKind::Sim.name();
                self.core.event(|| Event::Connected { peer, address, transport, reason });
                self.drain(slot);
            }
            SimNotice::Failed { attempt, peer } => {
                if let Some(slot) = self.attempts.remove(&attempt) {
                    self.give_up(slot, ErrorCode::Refused, format!("nobody is at {peer} in the simulated network"));
                }
            }
        }
    }

    fn close_serial(&mut self, serial: u64) {
        if let Connector::Service { registration, .. } = &mut self.connector {
            registration.closed(serial);
        }
    }

    fn attempt_failed(&mut self, attempt: u64, error: &ConnectError) {
        let Some(slot) = self.attempts.remove(&attempt) else { return };
        if self.core.peers.get(slot).state != State::Connecting(attempt) {
            return; // The peer connected to us meanwhile.
        }
        self.give_up(slot, connect_code(error), error.to_string());
    }

    /// No connection came about: everything that waited for it fails.
    fn give_up(&mut self, slot: Connection, code: ErrorCode, reason: String) {
        let (peer, address) = self.core.peers.identify(slot);
        self.core.down(slot, code, &reason);
        self.core.event(|| Event::Failed { peer, address, reason });
    }

    /// Sends what is still to be sent, says goodbye and closes every connection.
    pub(crate) fn close(&mut self) {
        if !self.process.is_here() {
            return; // A forked child's copy: the connections are its parent's.
        }
        crate::endpoint::reactor::forget(self.id);
        let until = Instant::now() + LINGER;
        loop {
            let any = self.progress();
            let waiting = self.poller.is_working(&self.links) || !self.core.outbox.is_empty();
            // What was injected before the connection stood counts as sent, too.
            let pending = (0..self.core.peers.len() as u32).any(|slot| {
                let peer = self.core.peers.get(slot);
                matches!(peer.state, State::Up | State::Connecting(_)) && !peer.pending.is_empty()
            });
            if (!waiting && !pending && !any) || Instant::now() >= until {
                break;
            }
            if !any {
                std::thread::yield_now();
            }
        }
        let bye = Head { kind: Kind::Bye, ..Head::default() };
        for slot in 0..self.links.len() {
            let Some(mut link) = self.links[slot].take() else { continue };
            if link.send(&bye, &crate::memory::volatile::Segments::EMPTY, false).is_err() {
                tracing::debug!("no room for a goodbye; the peer will see the connection close");
            }
            if let AnyLink::Tcp(tcp) = link {
                tcp.linger(until.saturating_duration_since(Instant::now()));
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

/// The link's own description of what connection set-up gathered.
fn shm_parts(parts: ShmParts, bell: &Arc<Bell>, keys: Option<Arc<Keys>>) -> Parts {
    Parts {
        side: u8::from(parts.side != 0),
        pair: parts.pair,
        my_bell: Arc::clone(bell),
        my_bit: parts.my_bit,
        peer_bell: parts.peer_bell,
        peer_event: parts.peer_event,
        peer_bit: parts.peer_bit,
        control: parts.control,
        peer_pid: parts.peer_pid,
        peer_nonce: parts.peer_nonce,
        cma: parts.cma,
        pidfd: Some(parts.pidfd),
        keys,
    }
}

/// How a failed attempt is reported by the operations that waited for it.
fn connect_code(error: &ConnectError) -> ErrorCode {
    match error {
        ConnectError::Refused(_) => ErrorCode::Refused,
        ConnectError::Unreachable(..) => ErrorCode::Unreachable,
        ConnectError::Timeout { .. } => ErrorCode::TimedOut,
        ConnectError::Authorization => ErrorCode::Denied,
        ConnectError::Protocol(_) | ConnectError::Version { .. } => ErrorCode::Protocol,
        ConnectError::Closed(_) => ErrorCode::PeerDied,
        ConnectError::NoTransport(_) => ErrorCode::NotConnected,
        ConnectError::Descriptors { .. } => ErrorCode::NoDescriptors,
        _ => ErrorCode::Io,
    }
}
