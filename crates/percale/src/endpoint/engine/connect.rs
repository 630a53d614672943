//! Connections that begin and end: attempts, notices of the service thread, links that break.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::epoll;

use super::core::{Core, broken_code};
use super::linger_policy::LingerPolicy;
use super::peers::{ContextAddress, PeerState};
use super::poller::Poller;
use super::role::Role;
use super::waiting::{OptionalWork, ReadPace, Sleepers};
use super::{Connector, Engine};
use crate::completion::entry::ErrorCode;
use crate::completion::event::Event;
use crate::region::{AccessOrigin, Keys};
use crate::system::forked::Process;
use crate::transport::any::AnyLink;
use crate::transport::connect::{
    ConnectError, EstablishedTransport, LocalDoorbell, PeerIdentity, ServiceNotice, ShmParts,
};
use crate::transport::doorbell_allocator::WaitState;
use crate::transport::kind::TransportKind;
use crate::transport::loopback::LoopbackLink;
use crate::transport::shm::{Doorbell, ShmLink, ShmLinkParts};
use crate::transport::sim::SimNotice;
use crate::transport::tcp::TcpLink;
use crate::transport::verbs::VerbsLink;
use crate::transport::{Broken, ConnectionId};
use crate::types::PeerAddress;
use crate::wire::head::FrameKind;

/// The parts from which an engine is made.
#[derive(Debug)]
pub(crate) struct Start {
    /// The protocol's state.
    pub(crate) core: Core,
    /// The role of an endpoint that does not accept messages from arbitrary peers.
    pub(crate) role: Option<Role>,
    /// The source of connections.
    pub(crate) connector: Connector,
    /// The descriptor and the doorbell on which the endpoint sleeps.
    pub(crate) wait_state: WaitState,
    /// The address at which peers reach the endpoint.
    pub(crate) address: SocketAddr,
    /// The number of this endpoint's context at that address.
    pub(crate) context: u16,
    /// The incarnation of the endpoint.
    pub(crate) incarnation: u128,
}

/// The next number for an endpoint.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Engine {
    /// Creates an engine that has only itself as a peer.
    pub(crate) fn new(start: Start) -> std::io::Result<Self> {
        let WaitState { doorbell_allocator, epoll } = start.wait_state;
        let doorbell = Arc::clone(doorbell_allocator.doorbell());
        let pooled = start.core.shared.is_member();
        let mut engine = Self {
            core: start.core,
            links: Vec::new(),
            poller: Poller::new(Arc::clone(&doorbell)),
            connector: start.connector,
            attempts: BTreeMap::new(),
            next_attempt: 1,
            doorbell,
            doorbell_allocator,
            epoll,
            ticks: None,
            looks: None,
            waiting: Sleepers::default(),
            optional_work: OptionalWork::new(matches!(start.role, Some(Role::Listener(_))), pooled),
            role: start.role.map(Box::new),
            process: Process::current()?,
            closed: false,
            pace: ReadPace::new(),
            linger_policy: LingerPolicy::default(),
            address: start.address,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        };
        engine.core.local.set_endpoint(engine.id);
        let own = engine.core.peers.slot((start.address, start.context));
        engine.attach(own, AnyLink::Loopback(Box::new(LoopbackLink::new())), start.incarnation);
        Ok(engine)
    }

    /// Starts an attempt to connect to a slot's address.
    pub(super) fn start_connecting(&mut self, slot: ConnectionId) {
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        self.attempts.insert(attempt, slot);
        let (address, context) = self.core.peers.connecting(slot, attempt);
        match &mut self.connector {
            // The failure is reported like every other end of an attempt, after the caller no longer uses the slot.
            Connector::Service { mailbox, answer_only: true, .. } => {
                mailbox.post(ServiceNotice::Failed { attempt, error: ConnectError::AnswersOnly(address) });
            }
            Connector::Service { registration, .. } => registration.connect_context(attempt, address, context),
            Connector::Sim(port) => port.connect(attempt, address, context),
            Connector::Closed => {}
        }
    }

    /// Connects again to the peer of a directed receive if its connection has ended: either the peer is reachable
    /// again, or the receive fails. Does nothing if the receive is not directed at a peer.
    pub(super) fn reconnect_for_receive(&mut self, peer: PeerAddress) {
        if peer.is_specified()
            && self.role.is_none()
            && let Ok(slot) = self.core.peers.resolve(peer)
        {
            self.reconnect_slot(slot);
        }
    }

    /// Like [`reconnect_for_receive`](Self::reconnect_for_receive), but for the peer of a slot.
    #[inline]
    pub(super) fn reconnect_slot(&mut self, slot: ConnectionId) {
        let peer = self.core.peers.get(slot);
        if self.role.is_none() && peer.is_lost() && peer.is_idle() && peer.sender().is_none() {
            self.start_connecting(slot);
        }
    }

    /// Handles the notices of the service thread.
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
            Connector::Closed => {}
        }
    }

    fn notice(&mut self, notice: ServiceNotice) {
        match notice {
            ServiceNotice::Established { attempt, serial, identity, link, reason } => {
                self.established(attempt, serial, &identity, link, &reason);
            }
            ServiceNotice::Failed { attempt, error } => self.attempt_failed(attempt, &error),
            ServiceNotice::Aliased { attempt, incarnation } => {
                let Some(slot) = self.attempts.remove(&attempt) else { return };
                if self.core.peers.get(slot).state() != PeerState::Connecting(attempt) {
                    return; // The peer connected to this endpoint meanwhile.
                }
                if self.role.is_some() {
                    return self.give_up(slot, ErrorCode::Refused, "the peer is already connected".into());
                }
                match self.core.peers.with_incarnation(u128::from_be_bytes(incarnation.0)) {
                    Some(real) => {
                        let had_address = self.core.peers.get(real).has_address();
                        self.core.peers.alias(slot, real);
                        if slot != real {
                            self.core.shared_alias(slot, real, had_address);
                            self.core.redirect_receives(slot, real);
                            self.core.handle_address_mismatch(slot, self.core.peers.get(real).address());
                        }
                        self.drain(real);
                    }
                    // The existing connection that the attempt found is closed already, so try again.
                    None => self.start_connecting(slot),
                }
            }
            ServiceNotice::Dead { serial, reason, .. } => {
                if let Some(slot) = self.core.peers.with_serial(serial) {
                    self.died(slot, reason);
                }
            }
            ServiceNotice::Replaced { serial, old, new } => {
                if let Some(slot) = self.core.peers.with_serial(serial) {
                    let (peer, address) = self.core.peers.identify(slot);
                    crate::later::later!(info: %address, ?old, ?new, "the process at the peer's address has changed");
                    if self.role.is_none() {
                        self.core.event(|| Event::PeerReplaced { peer, address });
                    }
                    self.died(slot, "a different process answers at the peer's address".into());
                }
            }
            ServiceNotice::CallRejected { from, error } => {
                crate::later::later!(warn: %from, %error, "rejected an unknown peer");
            }
            _ => {} // There are no other notices.
        }
    }

    /// Handles the death of a link's peer. The frames that the peer sent before over shared memory are still delivered,
    /// then everything else fails.
    fn died(&mut self, slot: ConnectionId, reason: String) {
        if let Some(Some(AnyLink::Shm(link))) = self.links.get_mut(slot as usize) {
            link.connection_end().set(&reason);
            for _ in 0..1 << 20 {
                // The loop is bounded: a ring has a fixed size, and the peer no longer fills it.
                if !self.poll_link(slot) || !self.core.peers.get(slot).is_up() {
                    break;
                }
            }
        }
        if self.core.peers.get(slot).is_up() {
            self.down(slot, &Broken::Died(reason));
        }
    }

    fn established(
        &mut self,
        attempt: Option<u64>,
        serial: u64,
        identity: &PeerIdentity,
        made: EstablishedTransport,
        reason: &str,
    ) {
        let bit = if let EstablishedTransport::Shm(parts) = &made { Some(parts.my_bit) } else { None };
        let incarnation = u128::from_be_bytes(identity.incarnation.0);
        let attempt = attempt.and_then(|attempt| self.attempts.remove(&attempt));
        let Some(slot) = self.slot_for(attempt, (identity.address, identity.context), incarnation, identity.proven)
        else {
            crate::later::later!(debug: peer = %identity.address, "rejected a second peer at an endpoint of one connection");
            bit.inspect(|bit| self.doorbell_allocator.release(*bit));
            return self.close_serial(serial);
        };
        let (transport, link) = match self.link(made, incarnation) {
            Ok(made) => made,
            Err(error) => {
                crate::later::later!(warn: %error, peer = %identity.address, "an established connection cannot be used");
                bit.inspect(|bit| self.doorbell_allocator.release(*bit));
                self.close_serial(serial);
                return self.give_up(slot, ErrorCode::Io, error.to_string());
            }
        };
        self.core.peers.set_connection(slot, serial, bit.unwrap_or(0));
        self.attach(slot, link, incarnation);
        self.stands(slot, transport, reason);
    }

    /// Returns the slot for an established connection, after ending the old connection in that slot. Returns `None` if
    /// the connection is not accepted.
    fn slot_for(
        &mut self,
        attempt: Option<ConnectionId>,
        at: ContextAddress,
        incarnation: u128,
        proven: bool,
    ) -> Option<ConnectionId> {
        let slot = match attempt {
            Some(slot) => {
                if self.core.peers.advertise(slot, at) {
                    self.core.handle_address_mismatch(slot, at.0);
                }
                slot
            }
            None => self.welcome(at, incarnation, proven)?,
        };
        if !self.core.peers.get(slot).is_up() {
            return Some(slot);
        }
        self.down(slot, &Broken::Died("the peer reconnected".into()));
        // A listener has freed that slot.
        if attempt.is_some() { Some(slot) } else { self.welcome(at, incarnation, proven) }
    }

    /// Reports that a link is in use, and passes the waiting operations to it.
    fn stands(&mut self, slot: ConnectionId, transport: TransportKind, reason: &str) {
        self.core.peers.set_reason(slot, reason);
        if self.role.is_some() {
            self.link_established(slot, transport);
        } else {
            let (endpoint, (peer, address)) = (self.id, self.core.peers.identify(slot));
            let (transport, reason, data) = (transport.name(), reason.into(), Vec::new());
            self.core.event(|| Event::Connected { endpoint, peer, address, transport, reason, data });
        }
        self.drain(slot);
    }

    /// Makes the link of an established connection.
    fn link(
        &self,
        made: EstablishedTransport,
        peer: u128,
    ) -> Result<(TransportKind, AnyLink), Box<dyn std::error::Error>> {
        match made {
            EstablishedTransport::Shm(parts) if self.core.left.keeps_too_much(&parts.process) => {
                Err("the peer process still uses memory of ended connections".into())
            }
            EstablishedTransport::Shm(parts) => {
                let (keys, via) = self.core.local.granted(peer);
                let link = ShmLink::new(shm_parts(parts, &self.doorbell, keys, via))?;
                Ok((TransportKind::Shm, AnyLink::Shm(Box::new(link))))
            }
            EstablishedTransport::Tcp(socket) => {
                let Connector::Service { tcp, .. } = &self.connector else {
                    unreachable!("only a service thread makes sockets")
                };
                let link = TcpLink::new(socket, *tcp)?;
                Ok((TransportKind::Tcp, AnyLink::Tcp(Box::new(link))))
            }
            EstablishedTransport::Verbs(wire, socket) => {
                let Connector::Service { tcp, .. } = &self.connector else {
                    unreachable!("only a service thread makes queue pairs")
                };
                let (keys, via) = self.core.local.granted(peer);
                let link = VerbsLink::new(*wire, socket, *tcp, keys, via, self.core.local.pins())?;
                Ok((TransportKind::Verbs, AnyLink::Verbs(Box::new(link))))
            }
        }
    }

    /// Attaches a link to a slot and starts to use it.
    pub(super) fn attach(&mut self, slot: ConnectionId, link: AnyLink, incarnation: u128) {
        if self.links.len() <= slot as usize {
            self.links.resize_with(slot as usize + 1, || None);
        }
        self.core.peers.connected(slot, incarnation);
        let bit = self.core.peers.get(slot).bit();
        match &link {
            AnyLink::Shm(_) => self.poller.add_shm(slot, bit),
            AnyLink::Tcp(tcp) => {
                self.poller.sockets += 1;
                self.has_descriptor();
                self.start_ticks();
                let data = epoll::EventData::new_u64(slot.into());
                if let Err(error) = epoll::add(&*self.epoll, tcp.as_fd(), data, epoll::EventFlags::IN) {
                    crate::later::later!(error: %error, "a socket cannot be watched");
                }
            }
            AnyLink::Verbs(verbs) => self.watch_pair(slot, verbs),
            AnyLink::Sim(_) => self.poller.add_polled(slot),
            // A loopback link holds only messages that this endpoint sent, and is a busy link while it holds any.
            AnyLink::Loopback(_) => {}
        }
        self.links[slot as usize] = Some(link);
        self.core.shared_connected(slot);
        self.core.sender_connected(slot);
        self.poller.waits(slot); // This requests a first poll: the peer may have sent a frame already.
        self.move_to_cold();
        let counts = self.core.reporting.counters().remote();
        if !counts.is_empty() {
            self.core.peers.reply(slot, FrameKind::Counts, counts.bits(), 0);
        }
        self.core.peers.begin_budget(slot);
        // These actions come before the answer to any request of the peer.
        self.act();
    }

    /// Ends a broken connection. Everything that waited for it fails, and the next operation starts a new connection.
    #[cold]
    pub(super) fn down(&mut self, slot: ConnectionId, broken: &Broken) {
        let link = self.unlink(slot);
        let (error, reason) = (broken_code(broken), broken.to_string());
        if let Some(mut link) = link {
            self.leave(slot, &mut link, error, &reason);
            self.core.groups.lost(slot, error, &reason);
        }
        let (peer, address) = self.core.peers.identify(slot);
        self.forget_connection(slot, error, &reason);
        self.core.peers.set_lost(slot);
        if self.role.is_some() {
            self.link_over(slot, error, &reason);
        } else {
            self.core.event(|| Event::PeerDown { peer, address, error, reason });
            self.reclaim(slot);
        }
    }

    /// Returns whether the connection to a peer is established.
    pub(crate) fn is_connected(&mut self, peer: PeerAddress) -> bool {
        self.core.peers.resolve(peer).is_ok_and(|slot| self.core.peers.get(slot).is_up())
    }

    /// Ends the connection to a peer at the request of the application. Returns whether there was one.
    pub(crate) fn disconnect(&mut self, peer: PeerAddress) -> bool {
        let Ok(slot) = self.core.peers.resolve(peer) else { return false };
        // An endpoint's connection to itself lasts as long as the endpoint.
        let own = matches!(self.links.get(slot as usize), Some(Some(AnyLink::Loopback(_))));
        let up = self.role.is_none() && !own && self.core.peers.get(slot).is_up();
        if up {
            self.down(slot, &Broken::Closed);
        }
        up
    }

    /// Handles a notice of a simulated network.
    fn sim_notice(&mut self, notice: SimNotice) {
        match notice {
            SimNotice::Established { attempt, peer, context, incarnation, link } => {
                let attempt = attempt.and_then(|attempt| self.attempts.remove(&attempt));
                let Some(slot) = self.slot_for(attempt, (peer, context), incarnation, true) else {
                    return; // The link ends when it is dropped.
                };
                self.attach(slot, AnyLink::Sim(link), incarnation);
                self.stands(slot, TransportKind::Sim, "both are in the simulated network");
            }
            SimNotice::Failed { attempt, peer, context } => {
                if let Some(slot) = self.attempts.remove(&attempt) {
                    let reason = match context {
                        0 => format!("no endpoint at {peer} in the simulated network"),
                        _ => format!("receive context {context} of {peer} does not exist in the simulated network"),
                    };
                    self.give_up(slot, ErrorCode::Refused, reason);
                }
            }
        }
    }

    pub(super) fn close_serial(&mut self, serial: u64) {
        if let Connector::Service { registration, .. } = &mut self.connector {
            registration.closed(serial);
        }
    }

    fn attempt_failed(&mut self, attempt: u64, error: &ConnectError) {
        let Some(slot) = self.attempts.remove(&attempt) else { return };
        if self.core.peers.get(slot).state() != PeerState::Connecting(attempt) {
            return; // The peer connected to this endpoint meanwhile.
        }
        self.give_up(slot, connect_code(error), error.to_string());
    }

    /// Ends a failed attempt to connect. Everything that waited for the connection fails.
    fn give_up(&mut self, slot: ConnectionId, error: ErrorCode, reason: String) {
        let (peer, address) = self.core.peers.identify(slot);
        self.core.down(slot, error, &reason);
        if self.role.is_some() {
            self.link_over(slot, error, &reason);
        } else {
            self.core.event(|| Event::Failed { peer, address, error, reason });
            self.reclaim(slot);
        }
    }
}

/// Converts the parts that connection set-up gathered to those of a link.
fn shm_parts(parts: ShmParts, doorbell: &Arc<Doorbell>, keys: Option<Arc<Keys>>, via: AccessOrigin) -> ShmLinkParts {
    ShmLinkParts {
        side: u8::from(parts.side != 0),
        pair: parts.pair,
        my_doorbell: Arc::clone(doorbell),
        my_bit: parts.my_bit,
        peer_doorbell: parts.peer_doorbell,
        mappings: parts.mappings,
        peer_event: parts.peer_event,
        peer_bit: parts.peer_bit,
        control: parts.control,
        peer_nonce: parts.peer_nonce,
        cma: parts.cma,
        process: Some(parts.process),
        keys,
        via,
    }
}

/// Returns the error code of the operations that waited for a failed attempt.
fn connect_code(error: &ConnectError) -> ErrorCode {
    match error {
        ConnectError::Refused(_) | ConnectError::Context { .. } => ErrorCode::Refused,
        ConnectError::Unreachable(..) => ErrorCode::Unreachable,
        ConnectError::Timeout { .. } => ErrorCode::TimedOut,
        ConnectError::Authorization => ErrorCode::Denied,
        ConnectError::Protocol(_) | ConnectError::Version { .. } => ErrorCode::Protocol,
        ConnectError::Closed(_) => ErrorCode::PeerDied,
        ConnectError::NoTransport(_) | ConnectError::AnswersOnly(_) => ErrorCode::NotConnected,
        ConnectError::Descriptors { .. } => ErrorCode::NoDescriptors,
        _ => ErrorCode::Io,
    }
}
