//! The progress of a connection being made: handles its events and determines the next step.
//!
//! Stages of an initiator: connecting → talking → (meeting) → established. If it has to wait, it starts again after
//! that. Stages of an acceptor: talking (possibly with a meeting at the same time) → established. If the acceptor makes
//! no connection but its last message has to arrive, the last stage is draining. Before the acceptor decides, a prober
//! may check whether the caller is at its address. A set-up is removed from the table while it is processed, so that
//! decisions see only the *other* set-ups.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::arbiter::{
    self, AddressStatus, CallDecision, EstablishedConnection, PeerKnowledge, QueryDecision, VerdictDecision,
};
use super::degraded::Degraded;
use super::handshake::{Handshake, HandshakeEvent};
use super::mailbox::ServiceNotice;
use super::meeting::Meeting;
use super::reactor::{HeldConnection, Reactor, plain};
use super::settle::PAUSE;
use super::setup::{Attempt, Setup, SetupOutcome, SetupRole, SetupStage, commit, degrade, drain};
use super::{ConnectError, ConnectTimeouts, listen};
use crate::later::later;
use crate::system::interrupted::uninterrupted;
use crate::system::process_socket::ProcessSocket;
use crate::system::random::random;
use crate::wire::hello::{
    ConnectionChoice, Hello, HelloFlags, Incarnation, Ruling, Token, Verdict, name_of_call, proof_of_holding,
};
use crate::wire::refusal_reason::RefusalReason;

/// Configures keepalive so that the socket of a call fails once its host has been silent for `timeout`.
fn watch_host(socket: &ProcessSocket, timeout: Duration) -> rustix::io::Result<()> {
    let third = Duration::from_secs((timeout.as_secs() / 3).clamp(1, 32_767));
    rustix::net::sockopt::set_socket_keepalive(socket, true)?;
    rustix::net::sockopt::set_tcp_keepidle(socket, third)?;
    rustix::net::sockopt::set_tcp_keepintvl(socket, third)?;
    rustix::net::sockopt::set_tcp_keepcnt(socket, 2)
}

impl Reactor {
    /// Starts an attempt to connect.
    pub(super) fn begin(&mut self, endpoint: u64, number: u64, peer: SocketAddr, context: u16) {
        let Some(owner) = self.endpoints.get(&endpoint) else { return };
        let timeouts = owner.opened.timeouts;
        let deadline = Instant::now() + timeouts.longest();
        let attempt = Attempt {
            number,
            timeouts,
            deadline,
            retry_until: None,
            last: None,
            closed: 0,
            pause: PAUSE.0,
            reset: None,
            has_reset: false,
            claimed: false,
            asks: false,
        };
        let hello = match owner.hello() {
            Ok(hello) => Hello { wanted: context, ..hello },
            Err(error) => {
                let error = ConnectError::of_error(&error);
                owner.post(ServiceNotice::Failed { attempt: number, error });
                return;
            }
        };
        let handshake = Handshake::new(true, &hello, None);
        let setup =
            Setup::new(endpoint, SetupRole::Initiator(attempt), SetupStage::Waiting, handshake, hello, peer, deadline);
        let id = self.number();
        self.restart(id, setup);
    }

    /// Starts or restarts the set-up of an initiator, from the first step.
    pub(super) fn restart(&mut self, id: u64, mut setup: Setup) {
        let result = self.dial(id, &mut setup);
        self.wake_at(setup.due, id);
        match result {
            Ok(()) => {
                self.setups.insert(id, setup);
                self.drive(id);
            }
            Err(error) => self.settle(id, setup, SetupOutcome::Fail(error)),
        }
    }

    fn dial(&mut self, id: u64, setup: &mut Setup) -> Result<(), ConnectError> {
        let owner = self.endpoints.get(&setup.endpoint).ok_or(ConnectError::Closed(setup.remote))?;
        let mut hello = owner.hello().map_err(|error| ConnectError::of_error(&error))?;
        (hello.wanted, hello.called) = (setup.ours.wanted, plain(setup.remote));
        match &mut setup.side {
            SetupRole::Initiator(attempt) => {
                if attempt.asks {
                    hello.flags |= HelloFlags::PROBE;
                } else if let Some(token) = attempt.reset.take() {
                    hello.flags |= HelloFlags::RESET;
                    hello.reset = token;
                }
                attempt.claimed = false;
                setup.due = attempt.deadline.min(Instant::now() + attempt.timeouts.host);
            }
            SetupRole::Prober { .. } => {
                hello.flags |= HelloFlags::PROBE;
                hello.reset = setup.name;
            }
            SetupRole::Acceptor { .. } => return Ok(()),
        }
        if setup.is_initiator() {
            (setup.name, setup.at_home) = (name_of_call(&hello.nonce, hello.called), false);
        }
        setup.handshake = Handshake::new(true, &hello, owner.opened.key.clone());
        setup.ours = hello;
        (setup.stage, setup.peer, setup.meeting) = (SetupStage::Connecting, None, None);
        let connect = || {
            let socket = listen::tcp_socket(setup.remote).map_err(|errno| ("socket", errno))?;
            listen::send_at_once(&socket);
            match uninterrupted(|| rustix::net::connect(&socket, &setup.remote)) {
                // After an interruption the connect may be in progress or complete.
                Ok(()) | Err(Errno::INPROGRESS | Errno::ALREADY | Errno::ISCONN) => {}
                Err(errno) => return Err(("connect", errno)),
            }
            self.register(&socket, id, false).map_err(|errno| ("epoll_ctl", errno))?;
            Ok(socket)
        };
        setup.tcp = Some(connect().map_err(|(call, errno)| setup.socket_error(call, errno))?);
        Ok(())
    }

    /// Advances a set-up as far as possible.
    pub(super) fn drive(&mut self, id: u64) {
        let Some(mut setup) = self.setups.remove(&id) else { return };
        let next = match setup.stage {
            SetupStage::Connecting => match setup.connected() {
                Ok(false) => SetupOutcome::Stay,
                Ok(true) => {
                    setup.stage = SetupStage::Talking;
                    if let SetupRole::Initiator(attempt) = &setup.side {
                        // The host has accepted the connection. The process may now use the rest of the attempt's time
                        // to answer, as long as the host is reachable.
                        if let Some(Err(error)) =
                            setup.tcp.as_ref().map(|socket| watch_host(socket, attempt.timeouts.host))
                        {
                            later!(debug: %error, "cannot set keepalive: the failure of a peer's host will be detected late");
                        }
                        setup.due = attempt.deadline;
                        self.wake_at(setup.due, id);
                    }
                    self.drive_handshake(id, &mut setup)
                }
                Err(error) => SetupOutcome::Fail(error),
            },
            SetupStage::Talking => self.drive_handshake(id, &mut setup),
            SetupStage::Meeting => self.meet(&mut setup),
            SetupStage::Waiting => SetupOutcome::Stay,
            SetupStage::Proving if setup.is_abandoned() => SetupOutcome::Drop,
            SetupStage::Proving => SetupOutcome::Stay,
            SetupStage::Draining => drain(&mut setup),
        };
        self.settle(id, setup, next);
    }

    pub(super) fn drive_handshake(&mut self, id: u64, setup: &mut Setup) -> SetupOutcome {
        loop {
            match setup.flush() {
                Ok(true) => {}
                Ok(false) => return SetupOutcome::Stay,
                Err(errno) => return SetupOutcome::Fail(setup.socket_error("sendto", errno)),
            }
            // The meeting may have been confirmed, and the initiator may have closed the TCP connection immediately
            // afterwards, so check the meeting first.
            if setup.tcp.is_none() && setup.meeting.is_none() {
                return SetupOutcome::Drop;
            }
            let met = match setup.meeting.as_ref().map(Meeting::read_confirm) {
                Some(Ok(true)) => return SetupOutcome::Shm,
                Some(Ok(false)) => true,
                Some(Err(degraded)) => {
                    later!(debug: ?degraded, "set-up of shared memory was not confirmed");
                    setup.meeting = None;
                    false
                }
                None => false,
            };
            let event = match setup.read() {
                Ok(Some(event)) => event,
                // The bytes that were read may have produced a proof to send.
                Ok(None) if !setup.handshake.output().is_empty() => continue,
                Ok(None) => return SetupOutcome::Stay,
                // The end of the TCP connection is ignored while the confirmation may still arrive.
                Err(SetupOutcome::Fail(ConnectError::Closed(_))) if met => {
                    if let Some(socket) = setup.tcp.take() {
                        self.unregister(&socket);
                    }
                    continue;
                }
                Err(next) => return next,
            };
            let event = match event {
                HandshakeEvent::Wanted { context, probes } => match self.select_context(setup, context, probes) {
                    Ok(Some(event)) => event,
                    Ok(None) => continue,
                    Err(next) => return next,
                },
                event => event,
            };
            match event {
                HandshakeEvent::Wanted { .. } => {}
                HandshakeEvent::Hello(hello) => {
                    if let Err(next) = self.handle_hello(setup, hello) {
                        return next;
                    }
                }
                HandshakeEvent::Verdict(hello, verdict) => {
                    if let Some(next) = self.handle_verdict(id, setup, hello, verdict) {
                        return next;
                    }
                }
                HandshakeEvent::Offered(offered) => {
                    if let Some(next) = self.offered(id, setup, offered) {
                        return next;
                    }
                }
                HandshakeEvent::Commit(commit) => {
                    return match commit.choice {
                        ConnectionChoice::Tcp if setup.both().contains(HelloFlags::TCP) => {
                            SetupOutcome::Tcp(commit.why, commit.errno)
                        }
                        ConnectionChoice::Verbs if setup.wire.is_some() => SetupOutcome::Verbs(commit.why),
                        ConnectionChoice::Tcp | ConnectionChoice::Verbs => SetupOutcome::Fail(ConnectError::Protocol(
                            "the peer chose a transport that is not allowed".into(),
                        )),
                        ConnectionChoice::Nothing => SetupOutcome::Drop,
                    };
                }
            }
        }
    }

    fn knowledge(&self, setup: &Setup, peer: Incarnation) -> Option<PeerKnowledge> {
        let owner = self.endpoints.get(&setup.endpoint)?;
        let others = || {
            let same = move |other: &&Setup| other.endpoint == setup.endpoint && other.incarnation() == Some(peer);
            self.setups.values().filter(same)
        };
        let accepted = || others().filter(|other| other.is_accepted()).map(|other| other.address_status);
        let there = |held: &HeldConnection| setup.is_initiator() && held.at == Some(setup.called_address());
        Some(PeerKnowledge {
            own: owner.opened.incarnation,
            held: owner.held.get(&peer).map(|held| EstablishedConnection {
                token: held.token,
                address_status: held.address_status(),
                there: there(held),
            }),
            claimed: others().any(Setup::is_claimed),
            accepted: accepted()
                .find(|address_status| *address_status == AddressStatus::Met)
                .or_else(|| accepted().next()),
            met: others().any(Setup::is_initiator),
            at_home: setup.at_home,
        })
    }

    /// Selects the context of a site that answers a call. If the wanted context does not exist, the site itself answers
    /// with a refusal. Contexts that do not accept connections still answer probes about their own calls.
    fn select_context(
        &self,
        setup: &mut Setup,
        context: u16,
        probes: bool,
    ) -> Result<Option<HandshakeEvent>, SetupOutcome> {
        let listener = self.endpoints.get(&setup.listener).ok_or(SetupOutcome::Drop)?;
        match (listener.opened.contexts, listener.members.get(&context)) {
            (None, _) if context == 0 => {}
            (Some(contexts), None) if context < contexts => setup.refusal = Some(RefusalReason::ContextClosed),
            (_, None) => setup.refusal = Some(RefusalReason::NoContext),
            (Some(contexts), _) if context >= contexts && !probes => setup.refusal = Some(RefusalReason::NoContext),
            (_, Some(member)) => {
                let owner = self.endpoints.get(member).ok_or(SetupOutcome::Drop)?;
                let called = setup.ours.called;
                setup.ours = Hello { called, ..owner.hello().map_err(|_| SetupOutcome::Drop)? };
                setup.endpoint = *member;
            }
        }
        setup.handshake.answer_with_hello(&setup.ours).map_err(|error| SetupOutcome::Drain(Some(error)))
    }

    /// Handles the caller's hello at the acceptor. The acceptor uses the caller's statements about itself only for the
    /// connection that the caller requests, unless a call to the caller's advertised address reaches the caller.
    fn handle_hello(&mut self, setup: &mut Setup, hello: Hello) -> Result<(), SetupOutcome> {
        if setup.refusal.is_none() && !setup.handshake.is_direct() {
            setup.refusal = Some(RefusalReason::NotItsAddress);
        }
        if hello.flags.contains(HelloFlags::PROBE) {
            return Err(self.answer_probe(setup, &hello));
        }
        let owner = self.endpoints.get(&setup.endpoint).ok_or(SetupOutcome::Drop)?;
        let advertised = setup.peer_address(&hello);
        if setup.refusal.is_some() {
        } else if hello.incarnation == owner.opened.incarnation {
            let ours = |other: &&mut Setup| {
                let call = other.endpoint == setup.endpoint && other.is_initiator() && other.ours.nonce == hello.nonce;
                call && other.ours.called == setup.ours.called
            };
            match self.setups.values_mut().find(ours) {
                Some(call) => call.at_home = true,
                None => setup.refusal = Some(RefusalReason::OwnIncarnation),
            }
            if setup.refusal.is_none() {
                setup.handshake.answer(Verdict {
                    ruling: Ruling::Duplicate,
                    why: RefusalReason::SameHost,
                    token: [0; 16],
                });
                setup.peer = Some(hello);
                return Err(SetupOutcome::Drain(None));
            }
        } else if (advertised, hello.context) == (setup.ours.address, setup.ours.context) {
            setup.refusal = Some(RefusalReason::OwnAddress);
        } else {
            setup.at = owner.opened.naming.candidate(advertised, plain(setup.remote));
        }
        setup.peer = Some(hello);
        if setup.refusal.is_none() && setup.at.is_some() { Err(SetupOutcome::Prove) } else { self.decide(setup) }
    }

    /// Answers a probe, which asks whether this endpoint made a certain call, or whether it holds a connection with the
    /// caller.
    fn answer_probe(&self, setup: &mut Setup, hello: &Hello) -> SetupOutcome {
        let others = || self.setups.values().filter(|other| other.endpoint == setup.endpoint && other.is_initiator());
        let token = if setup.refusal.is_some() {
            None
        } else if hello.reset != [0; 16] {
            others().any(|call| call.name == hello.reset && call.stage == SetupStage::Talking).then_some(hello.reset)
        } else {
            let held = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.held.get(&hello.incarnation));
            let claimed = || others().find(|call| call.is_claimed() && call.incarnation() == Some(hello.incarnation));
            let token = held.map(|held| held.token).or_else(|| claimed().map(|call| call.token));
            token.map(|token| proof_of_holding(&token, &hello.nonce, &setup.ours.nonce))
        };
        let (ruling, why) = match token {
            Some(_) => (Ruling::Known, RefusalReason::SameHost),
            None => (Ruling::Refuse, setup.refusal.unwrap_or(RefusalReason::NotKnown)),
        };
        setup.handshake.answer(Verdict { ruling, why, token: token.unwrap_or_default() });
        SetupOutcome::Drain(None)
    }

    /// Calls the address that the caller of an acceptor advertises.
    pub(super) fn probe(&mut self, id: u64) {
        let Some(setup) = self.setups.get(&id) else { return };
        let (Some(at), Some(peer)) = (setup.at, &setup.peer) else { return };
        let Some(timeout) = self.endpoints.get(&setup.endpoint).map(|owner| owner.opened.timeouts.host) else { return };
        let (side, hello) = (SetupRole::Prober { caller: id }, Hello { wanted: peer.context, ..setup.ours.clone() });
        // The caller itself does not wait longer than this for its answer.
        let due = setup.due.min(Instant::now() + timeout / 2);
        let handshake = Handshake::new(true, &hello, None);
        let name = name_of_call(&peer.nonce, setup.ours.called);
        let mut prober = Setup::new(setup.endpoint, side, SetupStage::Waiting, handshake, hello, at, due);
        prober.name = name;
        let number = self.number();
        if let Some(setup) = self.setups.get_mut(&id) {
            setup.prober = Some(number);
        }
        self.restart(number, prober);
    }

    /// Decides about a call after the probe of its caller. `found` contains whether the caller is at the address that
    /// it advertises, or the reason why this could not be determined.
    pub(super) fn proved(&mut self, caller: u64, found: Result<bool, ConnectError>) {
        let Some(mut setup) = self.setups.remove(&caller) else { return };
        setup.prober = None;
        match found {
            Ok(true) => setup.address_status = AddressStatus::Met,
            Ok(false) => {}
            Err(error) => {
                later!(debug: %error, "cannot connect to the address of a caller");
                if matches!(error, ConnectError::Descriptors { .. }) {
                    setup.refusal = Some(RefusalReason::Descriptors);
                }
            }
        }
        setup.stage = SetupStage::Talking;
        let next = match self.decide(&mut setup) {
            Ok(()) => self.drive_handshake(caller, &mut setup),
            Err(next) => next,
        };
        self.settle(caller, setup, next);
    }

    /// Returns whether there is a shared-memory connection with `peer` that neither side has ended.
    fn holds(&self, endpoint: u64, peer: Incarnation) -> bool {
        let held = self.endpoints.get(&endpoint).and_then(|owner| owner.held.get(&peer));
        held.is_some_and(|held| self.is_alive(held.serial))
    }

    /// Decides about a call as the acceptor.
    fn decide(&mut self, setup: &mut Setup) -> Result<(), SetupOutcome> {
        let hello = setup.peer.clone().ok_or(SetupOutcome::Drop)?;
        let knowledge = self.knowledge(setup, hello.incarnation).ok_or(SetupOutcome::Drop)?;
        let call = match arbiter::call(&knowledge, &hello, setup.address_status) {
            // A peer that lost the connection has closed its end of it, and this side will detect that.
            CallDecision::AcceptInstead if self.holds(setup.endpoint, hello.incarnation) => CallDecision::Busy,
            call => call,
        };
        let (ruling, why, token) = match call {
            _ if setup.refusal.is_some() => {
                (Ruling::Refuse, setup.refusal.unwrap_or(RefusalReason::NoContext), [0; 16])
            }
            CallDecision::Duplicate(token) => (Ruling::Duplicate, RefusalReason::SameHost, token),
            CallDecision::Busy => (Ruling::Busy, RefusalReason::SameHost, [0; 16]),
            CallDecision::Accept | CallDecision::AcceptInstead => match arbiter::transport(&setup.ours, &hello) {
                Ok((ruling, why)) => (ruling, why, random().map_err(|_| SetupOutcome::Drop)?),
                Err(why) => (Ruling::Refuse, why, [0; 16]),
            },
        };
        let accepts = matches!(ruling, Ruling::Tcp | Ruling::Shm | Ruling::Verbs);
        if accepts
            && call == CallDecision::AcceptInstead
            && let Some(old) = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.held.get(&hello.incarnation))
        {
            let (serial, reason) = (old.serial, "the peer lost the connection and reconnects".to_owned());
            self.remove_connection(setup.endpoint, hello.incarnation, serial, reason);
        }
        if accepts && setup.address_status == AddressStatus::Met {
            // A third party that uses this caller's incarnation must not block the caller itself.
            let posing = |other: &Setup| {
                other.endpoint == setup.endpoint
                    && other.incarnation() == Some(hello.incarnation)
                    && other.is_accepted()
                    && other.address_status == AddressStatus::Claimed
            };
            let posing: Vec<u64> = self.setups.iter().filter(|(_, other)| posing(other)).map(|(id, _)| *id).collect();
            posing.into_iter().for_each(|id| self.forget_setup(id));
        }
        setup.handshake.answer(Verdict { ruling, why, token });
        (setup.ruling, setup.why, setup.token) = (ruling, why, token);
        if !accepts {
            return Err(SetupOutcome::Drain(None));
        }
        setup.side = SetupRole::Acceptor { accepted: true };
        // The caller has sent its hello and, if a key is used, has proved that it has the key. So it may be slow from
        // now on.
        if let Some(owner) = self.endpoints.get(&setup.endpoint) {
            setup.due = setup.due.max(Instant::now() + owner.opened.timeouts.process);
        }
        Ok(())
    }

    /// Handles the verdict at the initiator. Returns `None` if the handshake continues.
    fn handle_verdict(&mut self, id: u64, setup: &mut Setup, hello: Hello, verdict: Verdict) -> Option<SetupOutcome> {
        let Some(knowledge) = self.knowledge(setup, hello.incarnation) else { return Some(SetupOutcome::Drop) };
        let peer = hello.incarnation;
        if let SetupRole::Prober { caller } = setup.side {
            let caller = self.setups.get(&caller).and_then(Setup::incarnation);
            let found = verdict.ruling == Ruling::Known && verdict.token == setup.name && caller == Some(peer);
            return Some(SetupOutcome::Proved(found));
        }
        setup.peer = Some(hello);
        if matches!(&setup.side, SetupRole::Initiator(attempt) if attempt.asks) {
            return Some(self.handle_query_answer(setup, peer, &verdict, &knowledge));
        }
        let both = setup.both();
        let reply = arbiter::verdict(&knowledge, peer, &verdict, (setup.remote, setup.ours.wanted));
        let SetupRole::Initiator(attempt) = &mut setup.side else { return Some(SetupOutcome::Drop) };
        match reply {
            VerdictDecision::Aliased => return Some(SetupOutcome::Aliased(peer)),
            VerdictDecision::Wait => return Some(SetupOutcome::Again { pause: true }),
            VerdictDecision::Later(error) => {
                attempt.last = Some(error);
                return Some(SetupOutcome::Again { pause: true });
            }
            VerdictDecision::Reset(token) => {
                attempt.reset = Some(token);
                return Some(SetupOutcome::Again { pause: std::mem::replace(&mut attempt.has_reset, true) });
            }
            VerdictDecision::Ask => {
                attempt.asks = true;
                return Some(SetupOutcome::Again { pause: false });
            }
            VerdictDecision::Fail(error) => return Some(SetupOutcome::Fail(error)),
            VerdictDecision::Claim => {}
        }
        let needed = match verdict.ruling {
            Ruling::Shm => HelloFlags::SHM,
            Ruling::Verbs => HelloFlags::VERBS,
            _ => HelloFlags::TCP,
        };
        attempt.claimed = both.contains(needed);
        if !both.contains(needed) {
            let why = "the peer chose a transport that is not allowed";
            return Some(SetupOutcome::Fail(ConnectError::Protocol(why.into())));
        }
        (setup.token, setup.ruling, setup.why) = (verdict.token, verdict.ruling, verdict.why);
        match verdict.ruling {
            Ruling::Verbs => {
                self.make_pair(id, setup);
                None
            }
            Ruling::Tcp => Some(commit(setup, ConnectionChoice::Tcp, verdict.why, 0)),
            _ => Some(self.call_meeting(id, setup, &peer, verdict.token)),
        }
    }

    /// Handles the called endpoint's answer to the query whether it is the peer of the established connection.
    fn handle_query_answer(
        &mut self,
        setup: &mut Setup,
        peer: Incarnation,
        verdict: &Verdict,
        knowledge: &PeerKnowledge,
    ) -> SetupOutcome {
        let (at, nonces) = (setup.called_address(), setup.handshake.nonces());
        let SetupRole::Initiator(attempt) = &mut setup.side else { return SetupOutcome::Drop };
        attempt.asks = false;
        // Either another endpoint answers now, or the connection has ended.
        let (Some(held), Some((asking, queried))) = (knowledge.held, nonces) else {
            return SetupOutcome::Again { pause: true };
        };
        let holds =
            verdict.ruling == Ruling::Known && verdict.token == proof_of_holding(&held.token, &asking, &queried);
        match arbiter::handle_query_answer(held.address_status, holds, at.0) {
            QueryDecision::Aliased => {
                if let Some(owner) = self.endpoints.get_mut(&setup.endpoint)
                    && let Some(held) = owner.held.get_mut(&peer)
                {
                    held.at.get_or_insert(at);
                }
                SetupOutcome::Aliased(peer)
            }
            QueryDecision::Displace => {
                let old = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.held.get(&peer));
                if let Some(serial) = old.map(|held| held.serial) {
                    let reason = "the peer claimed the identity of another endpoint".to_owned();
                    self.remove_connection(setup.endpoint, peer, serial, reason);
                }
                SetupOutcome::Again { pause: true }
            }
            QueryDecision::Later(error) => {
                attempt.last = Some(error);
                SetupOutcome::Again { pause: true }
            }
        }
    }

    /// Connects the initiator to the peer's Unix socket.
    fn call_meeting(&mut self, id: u64, setup: &mut Setup, peer: &Incarnation, token: Token) -> SetupOutcome {
        let doorbell = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.opened.doorbell.clone());
        let meeting = match doorbell {
            Some(doorbell) => Meeting::call(&doorbell, peer, token, setup.room()),
            None => Err(Degraded::from(Errno::OPNOTSUPP)),
        };
        let registered = meeting.and_then(|meeting| {
            self.register(meeting.control(), id, true)?;
            Ok(meeting)
        });
        match registered {
            Ok(meeting) => {
                setup.stage = SetupStage::Meeting;
                setup.meeting = Some(meeting);
                self.meet(setup)
            }
            Err(degraded) => degrade(setup, degraded),
        }
    }

    /// Checks, as the initiator, for the answer at the Unix socket.
    fn meet(&mut self, setup: &mut Setup) -> SetupOutcome {
        match setup.meeting.as_mut().map(Meeting::read_answer) {
            Some(Ok(true)) => SetupOutcome::Shm,
            Some(Ok(false)) => SetupOutcome::Stay,
            Some(Err(degraded)) => degrade(setup, degraded),
            None => SetupOutcome::Drop,
        }
    }

    /// Handles the timeout of a set-up.
    pub(super) fn overdue(&mut self, id: u64) {
        let Some(setup) = self.setups.remove(&id) else { return };
        let next = match (&setup.side, setup.stage) {
            (SetupRole::Initiator(attempt), SetupStage::Waiting) if attempt.may_try_again() => {
                self.restart(id, setup);
                return;
            }
            (SetupRole::Initiator(attempt), stage) => {
                let ConnectTimeouts { host, process } = attempt.timeouts;
                let timeout = if stage == SetupStage::Connecting { host } else { process };
                let timeout = ConnectError::Timeout { peer: setup.remote, timeout };
                SetupOutcome::Fail(attempt.last.clone().unwrap_or(timeout))
            }
            (SetupRole::Prober { .. }, _) => SetupOutcome::Proved(false),
            (SetupRole::Acceptor { .. }, SetupStage::Draining) => SetupOutcome::Drop,
            (SetupRole::Acceptor { .. }, _) => {
                let timeout =
                    self.endpoints.get(&setup.endpoint).map_or(Duration::ZERO, |owner| owner.opened.timeouts.host);
                SetupOutcome::Fail(ConnectError::Timeout { peer: setup.remote, timeout })
            }
        };
        self.settle(id, setup, next);
    }
}
