//! Establishes and ends the connection of an endpoint of one connection (FI_EP_MSG).
//!
//! One side *calls*: it connects to a listener and sends a request. The answer contains the address of another
//! endpoint, and the caller connects to that endpoint. The endpoint on the other side *awaits* this caller, after the
//! listener's owner has accepted the request with it. The two sides identify each other by their incarnations, so no
//! other peer can take the place of either: any other peer that connects is rejected before it can send a frame.
//!
//! ```text
//! Unconnected ── call ──> Calling ──> Asking ──> Joining ──> Connected ──> Over
//!       └─────── await ─────────────────────────> Awaiting ────┘
//! ```
//! Every state before `Connected` can also lead to `Over`, without a connection. Until the connection is established
//! the filter is closed, sends are refused, and receives can be posted.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::Engine;
use crate::completion::entry::ErrorCode;
use crate::completion::event::Event;
use crate::endpoint::connection::{ConnectionError, ConnectionState};
use crate::transport::ConnectionId;
use crate::transport::kind::TransportKind;
use crate::wire::control::{Control, DATA_LIMIT};

/// The state of an endpoint that has one connection (FI_EP_MSG).
#[derive(Debug)]
pub(crate) struct Single {
    stage: ConnectStage,
    /// Whether the endpoint listens on every interface.
    anywhere: bool,
    /// The address of the other side: the called listener, or the awaited caller.
    remote: Option<SocketAddr>,
    /// The data that the other side passed.
    data: Vec<u8>,
    deadline: Option<Deadline>,
    ending: Option<EndingConnection>,
}

/// A connection that has ended, with receives that found no message and are about to fail.
///
/// Other endpoints may report to the same queue, and may have received messages before this connection ended. So a
/// reader of the queue polls all of them before these receives fail.
#[derive(Debug)]
struct EndingConnection {
    /// The remaining rounds of progress.
    rounds: u32,
    error: ErrorCode,
    why: String,
}

/// Rounds of progress between the end of a connection and the failure of its receives. A thread that goes to sleep
/// polls each endpoint twice before it reads the queue.
const ROUNDS: u32 = 2;

#[derive(Debug)]
enum ConnectStage {
    Unconnected,
    /// The endpoint connects to a listener, in order to send a request with this data.
    Calling(ConnectionId, Vec<u8>),
    /// The endpoint has sent a request to this listener.
    Asking(ConnectionId),
    /// The endpoint connects to the endpoint whose address this listener sent.
    Joining {
        listener: ConnectionId,
        peer: ConnectionId,
        incarnation: u128,
    },
    /// The endpoint awaits the call of this peer.
    Awaiting {
        peer: ConnectionId,
        incarnation: u128,
    },
    Connected(ConnectionId),
    Over {
        stood: bool,
        error: ErrorCode,
        reason: String,
    },
}

/// The time by which a connection has to be established, with the timer that wakes sleepers then.
#[derive(Debug)]
struct Deadline {
    at: Instant,
    after: Duration,
    _timer: Option<OwnedFd>,
}

/// The description, sent to the caller, of the endpoint that awaits it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaiting {
    pub(crate) address: SocketAddr,
    pub(crate) anywhere: bool,
    pub(crate) incarnation: u128,
}

impl Single {
    pub(crate) const fn new(anywhere: bool) -> Self {
        Self {
            stage: ConnectStage::Unconnected,
            anywhere,
            remote: None,
            data: Vec::new(),
            deadline: None,
            ending: None,
        }
    }

    /// Returns the slot of the awaited peer if this is its incarnation.
    pub(super) fn awaited(&self, incarnation: u128) -> Option<ConnectionId> {
        match self.stage {
            ConnectStage::Awaiting { peer, incarnation: awaited } if awaited == incarnation => Some(peer),
            _ => None,
        }
    }
}

impl Engine {
    fn unconnected(&mut self, data: &[u8]) -> Result<&mut Single, ConnectionError> {
        if !self.process.is_here() {
            return Err(self.refused_connection());
        }
        if data.len() > DATA_LIMIT {
            return Err(ConnectionError::TooMuchData(data.len()));
        }
        let single = self.single()?;
        match single.stage {
            ConnectStage::Unconnected => Ok(single),
            _ => Err(ConnectionError::Used),
        }
    }

    /// Calls the listener at an address.
    pub(crate) fn call(&mut self, address: SocketAddr, data: &[u8], after: Duration) -> Result<(), ConnectionError> {
        self.unconnected(data)?;
        let deadline = self.deadline(after);
        let slot = self.core.peers.slot((address, 0));
        let single = self.single()?;
        single.stage = ConnectStage::Calling(slot, data.to_vec());
        (single.remote, single.deadline) = (Some(address), Some(deadline));
        self.optional_work.set_role(true);
        if slot == 0 {
            self.fail_single(ErrorCode::Refused, "the address is this endpoint's own", Vec::new());
        } else {
            self.start_connecting(slot);
        }
        Ok(())
    }

    /// Awaits a caller, which sent the data `theirs`. `ours` is the data for the caller; only its length is checked
    /// here.
    pub(crate) fn await_caller(
        &mut self,
        caller: (SocketAddr, u128),
        (theirs, ours): (&[u8], &[u8]),
        after: Duration,
    ) -> Result<Awaiting, ConnectionError> {
        self.unconnected(ours)?;
        let (address, incarnation) = caller;
        let deadline = self.deadline(after);
        let peer = self.core.peers.slot((address, 0));
        let (own, own_incarnation) = (self.address(), self.core.peers.get(0).incarnation());
        self.core.peers.name_single(address).map_err(|_| ConnectionError::Gone)?;
        let single = self.single()?;
        single.stage = ConnectStage::Awaiting { peer, incarnation };
        (single.remote, single.data, single.deadline) = (Some(address), theirs.to_vec(), Some(deadline));
        let anywhere = single.anywhere;
        self.optional_work.set_role(true);
        Ok(Awaiting { address: own, anywhere, incarnation: own_incarnation })
    }

    /// Stops awaiting a caller that will not connect, because its request no longer exists.
    pub(crate) fn stop_awaiting(&mut self, why: &str) {
        self.end_single(false, ErrorCode::Refused, why);
    }

    fn deadline(&self, after: Duration) -> Deadline {
        let timer = self.timer(after, None, super::ALARM);
        if let Err(error) = &timer {
            crate::later::later!(warn: %error, "no timer: the connect timeout may be detected late");
        }
        Deadline { at: Instant::now() + after, after, _timer: timer.ok() }
    }

    /// Handles a new link of this endpoint.
    pub(super) fn single_link(&mut self, slot: ConnectionId, transport: TransportKind) {
        let there = self.core.peers.get(slot).incarnation();
        let Ok(single) = self.single() else { return };
        match &mut single.stage {
            ConnectStage::Calling(listener, data) if *listener == slot => {
                let data = std::mem::take(data);
                single.stage = ConnectStage::Asking(slot);
                self.send_control(slot, &Control::Request { data });
            }
            ConnectStage::Joining { listener, peer, incarnation } if *peer == slot => {
                if *incarnation != there {
                    return self.fail_single(
                        ErrorCode::Refused,
                        "another endpoint has replaced the endpoint that accepted the request",
                        Vec::new(),
                    );
                }
                let listener = *listener;
                self.connected(slot, transport);
                self.close_gracefully(listener, ErrorCode::Closed, "the listener has answered", Instant::now());
            }
            ConnectStage::Awaiting { peer, .. } if *peer == slot => self.connected(slot, transport),
            _ => {}
        }
    }

    /// Handles the established connection.
    fn connected(&mut self, slot: ConnectionId, transport: TransportKind) {
        let Ok(single) = self.single() else { return };
        (single.stage, single.deadline) = (ConnectStage::Connected(slot), None);
        let data = single.data.clone();
        self.optional_work.set_role(false);
        if transport == TransportKind::Tcp {
            self.poller.make_hot(slot);
        }
        self.core.admit_peers();
        self.core.reporting.count_change(); // This wakes threads that wait for the connection.
        let (peer, address) = self.core.peers.identify(slot);
        let (endpoint, reason) = (self.id(), self.core.peers.get(slot).reason().to_owned());
        let transport = transport.name();
        self.core.event(|| Event::Connected { endpoint, peer, address, transport, reason, data });
    }

    /// Handles the end of a link, or of an attempt to establish one.
    pub(super) fn single_over(&mut self, slot: ConnectionId, error: ErrorCode, reason: &str) {
        self.receive_control(); // An answer may have arrived before.
        let Ok(single) = self.single() else { return };
        match single.stage {
            ConnectStage::Asking(listener) if listener == slot && error == ErrorCode::Closed => {
                self.fail_single(ErrorCode::Refused, "the listener closed before it answered", Vec::new());
            }
            ConnectStage::Calling(wanted, _)
            | ConnectStage::Asking(wanted)
            | ConnectStage::Joining { peer: wanted, .. }
                if wanted == slot =>
            {
                self.fail_single(error, reason, Vec::new());
            }
            ConnectStage::Connected(peer) if peer == slot => {
                self.leave_single(true, error, reason);
                let why = reason.to_owned();
                if let Ok(single) = self.single() {
                    single.ending = Some(EndingConnection { rounds: ROUNDS, error, why });
                }
                self.optional_work.set_role(true);
                self.ring(); // Sleepers wake up and perform the rounds.
                let (endpoint, reason) = (self.id(), reason.to_owned());
                let address = self.core.peers.get(slot).address();
                self.core.event(|| Event::Shutdown { endpoint, address, error, reason });
            }
            _ => {}
        }
    }

    /// Ends the attempt to connect. There will be no connection.
    fn fail_single(&mut self, error: ErrorCode, reason: &str, data: Vec<u8>) {
        let Ok(single) = self.single() else { return };
        let address = single.remote.unwrap_or(self.address);
        let Ok(single) = self.single() else { return };
        single.data.clone_from(&data);
        self.end_single(false, error, reason);
        let (endpoint, reason) = (self.id(), reason.to_owned());
        self.core.event(|| Event::ConnectionRefused { endpoint, address, error, reason, data });
    }

    /// Ends the connection or the attempt to establish it, and fails everything that waits for it.
    fn end_single(&mut self, stood: bool, error: ErrorCode, why: &str) {
        self.leave_single(stood, error, why);
        self.core.stop_admitting(error, why);
        self.core.reporting.count_change();
    }

    /// Ends the connection or the attempt to establish it, and closes all links to peers.
    fn leave_single(&mut self, stood: bool, error: ErrorCode, why: &str) {
        let Ok(single) = self.single() else { return };
        single.stage = ConnectStage::Over { stood, error, reason: why.to_owned() };
        single.deadline = None;
        self.optional_work.set_role(false);
        self.attempts.clear();
        for slot in 1..self.links.len() {
            if self.links[slot].is_some() {
                self.close_gracefully(slot as ConnectionId, error, why, Instant::now());
            }
        }
    }

    /// Performs a round of progress: fails the receives of an ended connection once the rounds have passed. Returns
    /// whether the end of a connection was pending.
    fn end_receives(&mut self) -> bool {
        let Ok(single) = self.single() else { return false };
        match &mut single.ending {
            Some(ending) if ending.rounds > 0 => ending.rounds -= 1,
            Some(_) => self.end_receives_now(),
            None => return false,
        }
        true
    }

    /// Fails the receives of an ended connection without waiting for the remaining rounds.
    fn end_receives_now(&mut self) {
        let Some(EndingConnection { error, why, .. }) = self.single().ok().and_then(|single| single.ending.take())
        else {
            return;
        };
        self.optional_work.set_role(false);
        self.core.stop_admitting(error, &why);
        self.core.reporting.count_change();
    }

    /// Handles the answer of a listener, and the deadline. Returns whether the end of a connection was pending in this
    /// round.
    pub(super) fn poll_single(&mut self) -> bool {
        self.receive_control();
        self.end_receives()
    }

    fn receive_control(&mut self) {
        for (from, control) in self.core.take_control_frames() {
            let Ok(single) = self.single() else { return };
            match (control, &single.stage) {
                (Control::Granted { address, anywhere, incarnation, data }, ConnectStage::Asking(listener))
                    if *listener == from =>
                {
                    single.data = data;
                    self.join(from, address, anywhere, incarnation);
                }
                (Control::Rejected { why, data }, ConnectStage::Asking(listener)) if *listener == from => {
                    self.fail_single(ErrorCode::Refused, why.text(), data);
                }
                _ => self.core.peers.flag_violation(from, "unexpected reply"),
            }
        }
        let Ok(single) = self.single() else { return };
        let Some(deadline) = &single.deadline else { return };
        if Instant::now() >= deadline.at {
            let what =
                if matches!(single.stage, ConnectStage::Asking(_)) { "the listener's owner" } else { "the peer" };
            let reason = format!("{what} did not answer within {:?}", deadline.after);
            self.fail_single(ErrorCode::TimedOut, &reason, Vec::new());
        }
    }

    /// Connects to the endpoint whose address a listener sent.
    fn join(&mut self, listener: ConnectionId, mut address: SocketAddr, anywhere: bool, incarnation: u128) {
        let there = self.core.peers.get(listener).address().ip();
        if anywhere && !there.is_unspecified() {
            address.set_ip(there);
        }
        let peer = self.core.peers.slot((address, 0));
        let known = self.links.get(peer as usize).is_some_and(Option::is_some);
        if known || self.core.peers.name_single(address).is_err() {
            return self
                .core
                .peers
                .flag_violation(listener, "the listener sent an address to which no connection can be made");
        }
        if let Ok(single) = self.single() {
            single.stage = ConnectStage::Joining { listener, peer, incarnation };
            self.start_connecting(peer);
        }
    }

    /// Ends the connection in an orderly way (fi_shutdown(3)): posted messages are sent first, and operations that are
    /// still outstanding then fail.
    pub(crate) fn shutdown(&mut self) -> Result<(), ConnectionError> {
        if !self.process.is_here() {
            return Err(self.refused_connection()); // The connection belongs to the parent.
        }
        let single = self.single()?;
        match single.stage {
            ConnectStage::Connected(slot) => {
                let until = self.flush();
                let why = "the endpoint was shut down";
                if !matches!(self.single()?.stage, ConnectStage::Connected(_)) {
                    return Ok(()); // The peer has already ended the connection.
                }
                self.close_gracefully(slot, ErrorCode::Canceled, why, until);
                self.end_single(true, ErrorCode::Canceled, why);
            }
            ConnectStage::Over { .. } => self.end_receives_now(),
            _ => self.end_single(false, ErrorCode::Canceled, "the endpoint was shut down before it was connected"),
        }
        Ok(())
    }

    /// Gives up a connection that is not established yet, because the endpoint is being closed.
    pub(super) fn stop_connecting(&mut self) {
        self.end_receives_now();
        if matches!(self.connection_state(), Some(ConnectionState::Unconnected | ConnectionState::Connecting)) {
            self.end_single(false, ErrorCode::Canceled, "the endpoint was closed");
        }
    }

    /// Returns the state of the connection.
    pub(crate) fn connection_state(&mut self) -> Option<ConnectionState> {
        Some(match self.single().ok()?.stage {
            ConnectStage::Unconnected => ConnectionState::Unconnected,
            ConnectStage::Connected(_) => ConnectionState::Connected,
            ConnectStage::Over { stood: true, .. } => ConnectionState::Shutdown,
            ConnectStage::Over { stood: false, .. } => ConnectionState::Refused,
            _ => ConnectionState::Connecting,
        })
    }

    /// Returns the data of the other side if the connection was established, or the reason why there is no connection.
    /// Returns `None` while this is undecided.
    pub(crate) fn outcome(&mut self) -> Option<Result<Vec<u8>, ConnectionError>> {
        let single = match self.single() {
            Ok(single) => single,
            Err(error) => return Some(Err(error)),
        };
        match &single.stage {
            ConnectStage::Connected(_) | ConnectStage::Over { stood: true, .. } => Some(Ok(single.data.clone())),
            ConnectStage::Over { error, reason, .. } => {
                let (error, reason, data) = (*error, reason.clone(), single.data.clone());
                Some(Err(ConnectionError::Refused { error, reason, data }))
            }
            ConnectStage::Unconnected => Some(Err(ConnectionError::Unconnected)),
            _ => None,
        }
    }

    /// Returns the address of the other side, once it is known.
    pub(crate) fn remote(&mut self) -> Option<SocketAddr> {
        self.single().ok()?.remote
    }
}
