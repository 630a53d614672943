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

use super::arbiter::{self, Asked, Call, Knows, Reply, Stands, Whereabouts};
use super::degraded::Degraded;
use super::handshake::{Event, Handshake};
use super::mailbox::Notice;
use super::meeting::Meeting;
use super::reactor::{Held, Reactor, plain};
use super::settle::PAUSE;
use super::setup::{Attempt, Next, Setup, Side, Stage, commit, degrade, drain};
use super::{ConnectError, ConnectTimeouts, listen};
use crate::later::later;
use crate::system::interrupted::uninterrupted;
use crate::system::process_socket::ProcessSocket;
use crate::system::random::random;
use crate::wire::hello::{
    Choice, Hello, HelloFlags, Incarnation, Ruling, Token, Verdict, name_of_call, proof_of_holding,
};
use crate::wire::why::Why;

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
                owner.post(Notice::Failed { attempt: number, error });
                return;
            }
        };
        let handshake = Handshake::new(true, &hello, None);
        let setup = Setup::new(endpoint, Side::Initiator(attempt), Stage::Waiting, handshake, hello, peer, deadline);
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
            Err(error) => self.settle(id, setup, Next::Fail(error)),
        }
    }

    fn dial(&mut self, id: u64, setup: &mut Setup) -> Result<(), ConnectError> {
        let owner = self.endpoints.get(&setup.endpoint).ok_or(ConnectError::Closed(setup.remote))?;
        let mut hello = owner.hello().map_err(|error| ConnectError::of_error(&error))?;
        (hello.wanted, hello.called) = (setup.ours.wanted, plain(setup.remote));
        match &mut setup.side {
            Side::Initiator(attempt) => {
                if attempt.asks {
                    hello.flags |= HelloFlags::PROBE;
                } else if let Some(token) = attempt.reset.take() {
                    hello.flags |= HelloFlags::RESET;
                    hello.reset = token;
                }
                attempt.claimed = false;
                setup.due = attempt.deadline.min(Instant::now() + attempt.timeouts.host);
            }
            Side::Prober { .. } => {
                hello.flags |= HelloFlags::PROBE;
                hello.reset = setup.name;
            }
            Side::Acceptor { .. } => return Ok(()),
        }
        if setup.is_initiator() {
            (setup.name, setup.at_home) = (name_of_call(&hello.nonce, hello.called), false);
        }
        setup.handshake = Handshake::new(true, &hello, owner.opened.key.clone());
        setup.ours = hello;
        (setup.stage, setup.peer, setup.meeting) = (Stage::Connecting, None, None);
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
            Stage::Connecting => match setup.connected() {
                Ok(false) => Next::Stay,
                Ok(true) => {
                    setup.stage = Stage::Talking;
                    if let Side::Initiator(attempt) = &setup.side {
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
                    self.talk(id, &mut setup)
                }
                Err(error) => Next::Fail(error),
            },
            Stage::Talking => self.talk(id, &mut setup),
            Stage::Meeting => self.meet(&mut setup),
            Stage::Waiting => Next::Stay,
            Stage::Proving if setup.is_abandoned() => Next::Drop,
            Stage::Proving => Next::Stay,
            Stage::Draining => drain(&mut setup),
        };
        self.settle(id, setup, next);
    }

    pub(super) fn talk(&mut self, id: u64, setup: &mut Setup) -> Next {
        loop {
            match setup.flush() {
                Ok(true) => {}
                Ok(false) => return Next::Stay,
                Err(errno) => return Next::Fail(setup.socket_error("sendto", errno)),
            }
            // The meeting may have been confirmed, and the initiator may have closed TCP immediately afterwards, so
            // check the meeting first.
            if setup.tcp.is_none() && setup.meeting.is_none() {
                return Next::Drop;
            }
            let met = match setup.meeting.as_ref().map(Meeting::read_confirm) {
                Some(Ok(true)) => return Next::Shm,
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
                Ok(None) => return Next::Stay,
                // The end of TCP is ignored while the confirmation may still arrive.
                Err(Next::Fail(ConnectError::Closed(_))) if met => {
                    if let Some(socket) = setup.tcp.take() {
                        self.unregister(&socket);
                    }
                    continue;
                }
                Err(next) => return next,
            };
            let event = match event {
                Event::Wanted { context, probes } => match self.answer_as(setup, context, probes) {
                    Ok(Some(event)) => event,
                    Ok(None) => continue,
                    Err(next) => return next,
                },
                event => event,
            };
            match event {
                Event::Wanted { .. } => {}
                Event::Hello(hello) => {
                    if let Err(next) = self.greet(setup, hello) {
                        return next;
                    }
                }
                Event::Verdict(hello, verdict) => {
                    if let Some(next) = self.heard(id, setup, hello, verdict) {
                        return next;
                    }
                }
                Event::Offered(offered) => {
                    if let Some(next) = self.offered(id, setup, offered) {
                        return next;
                    }
                }
                Event::Commit(commit) => {
                    return match commit.choice {
                        Choice::Tcp if setup.both().contains(HelloFlags::TCP) => Next::Tcp(commit.why, commit.errno),
                        Choice::Verbs if setup.wire.is_some() => Next::Verbs(commit.why),
                        Choice::Tcp | Choice::Verbs => {
                            Next::Fail(ConnectError::Protocol("the peer chose a transport that is not allowed".into()))
                        }
                        Choice::Nothing => Next::Drop,
                    };
                }
            }
        }
    }

    fn knows(&self, setup: &Setup, peer: Incarnation) -> Option<Knows> {
        let owner = self.endpoints.get(&setup.endpoint)?;
        let others = || {
            let same = move |other: &&Setup| other.endpoint == setup.endpoint && other.incarnation() == Some(peer);
            self.setups.values().filter(same)
        };
        let accepted = || others().filter(|other| other.is_accepted()).map(|other| other.whereabouts);
        let there = |held: &Held| setup.is_initiator() && held.at == Some(setup.called_at());
        Some(Knows {
            own: owner.opened.incarnation,
            held: owner.held.get(&peer).map(|held| Stands {
                token: held.token,
                whereabouts: held.whereabouts(),
                there: there(held),
            }),
            claimed: others().any(Setup::is_claimed),
            accepted: accepted().find(|whereabouts| *whereabouts == Whereabouts::Met).or_else(|| accepted().next()),
            met: others().any(Setup::is_initiator),
            at_home: setup.at_home,
        })
    }

    /// Selects the context of a site that answers a call. If the wanted context does not exist, the site itself answers
    /// with a refusal. Contexts that do not accept connections still answer probes about their own calls.
    fn answer_as(&self, setup: &mut Setup, context: u16, probes: bool) -> Result<Option<Event>, Next> {
        let listener = self.endpoints.get(&setup.listener).ok_or(Next::Drop)?;
        match (listener.opened.contexts, listener.members.get(&context)) {
            (None, _) if context == 0 => {}
            (Some(contexts), None) if context < contexts => setup.refusal = Some(Why::ContextClosed),
            (_, None) => setup.refusal = Some(Why::NoContext),
            (Some(contexts), _) if context >= contexts && !probes => setup.refusal = Some(Why::NoContext),
            (_, Some(member)) => {
                let owner = self.endpoints.get(member).ok_or(Next::Drop)?;
                let called = setup.ours.called;
                setup.ours = Hello { called, ..owner.hello().map_err(|_| Next::Drop)? };
                setup.endpoint = *member;
            }
        }
        setup.handshake.speak_for(&setup.ours).map_err(|error| Next::Drain(Some(error)))
    }

    /// Handles the caller's hello at the acceptor. The acceptor uses the caller's statements about itself only for the
    /// connection that the caller requests, unless a call to the caller's advertised address reaches the caller.
    fn greet(&mut self, setup: &mut Setup, hello: Hello) -> Result<(), Next> {
        if setup.refusal.is_none() && !setup.handshake.is_direct() {
            setup.refusal = Some(Why::NotItsAddress);
        }
        if hello.flags.contains(HelloFlags::PROBE) {
            return Err(self.answer_probe(setup, &hello));
        }
        let owner = self.endpoints.get(&setup.endpoint).ok_or(Next::Drop)?;
        let advertised = setup.peer_address(&hello);
        if setup.refusal.is_some() {
        } else if hello.incarnation == owner.opened.incarnation {
            let ours = |other: &&mut Setup| {
                let call = other.endpoint == setup.endpoint && other.is_initiator() && other.ours.nonce == hello.nonce;
                call && other.ours.called == setup.ours.called
            };
            match self.setups.values_mut().find(ours) {
                Some(call) => call.at_home = true,
                None => setup.refusal = Some(Why::OwnIncarnation),
            }
            if setup.refusal.is_none() {
                setup.handshake.answer(Verdict { ruling: Ruling::Duplicate, why: Why::SameHost, token: [0; 16] });
                setup.peer = Some(hello);
                return Err(Next::Drain(None));
            }
        } else if (advertised, hello.context) == (setup.ours.address, setup.ours.context) {
            setup.refusal = Some(Why::OwnAddress);
        } else {
            setup.at = owner.opened.naming.candidate(advertised, plain(setup.remote));
        }
        setup.peer = Some(hello);
        if setup.refusal.is_none() && setup.at.is_some() { Err(Next::Prove) } else { self.decide(setup) }
    }

    /// Answers a probe, which asks whether this endpoint made a certain call, or whether it holds a connection with the
    /// caller.
    fn answer_probe(&self, setup: &mut Setup, hello: &Hello) -> Next {
        let others = || self.setups.values().filter(|other| other.endpoint == setup.endpoint && other.is_initiator());
        let token = if setup.refusal.is_some() {
            None
        } else if hello.reset != [0; 16] {
            others().any(|call| call.name == hello.reset && call.stage == Stage::Talking).then_some(hello.reset)
        } else {
            let held = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.held.get(&hello.incarnation));
            let claimed = || others().find(|call| call.is_claimed() && call.incarnation() == Some(hello.incarnation));
            let token = held.map(|held| held.token).or_else(|| claimed().map(|call| call.token));
            token.map(|token| proof_of_holding(&token, &hello.nonce, &setup.ours.nonce))
        };
        let (ruling, why) = match token {
            Some(_) => (Ruling::Known, Why::SameHost),
            None => (Ruling::Refuse, setup.refusal.unwrap_or(Why::NotKnown)),
        };
        setup.handshake.answer(Verdict { ruling, why, token: token.unwrap_or_default() });
        Next::Drain(None)
    }

    /// Calls the address that the caller of an acceptor advertises.
    pub(super) fn probe(&mut self, id: u64) {
        let Some(setup) = self.setups.get(&id) else { return };
        let (Some(at), Some(peer)) = (setup.at, &setup.peer) else { return };
        let Some(timeout) = self.endpoints.get(&setup.endpoint).map(|owner| owner.opened.timeouts.host) else { return };
        let (side, hello) = (Side::Prober { caller: id }, Hello { wanted: peer.context, ..setup.ours.clone() });
        // The caller itself does not wait longer than this for its answer.
        let due = setup.due.min(Instant::now() + timeout / 2);
        let handshake = Handshake::new(true, &hello, None);
        let name = name_of_call(&peer.nonce, setup.ours.called);
        let mut prober = Setup::new(setup.endpoint, side, Stage::Waiting, handshake, hello, at, due);
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
            Ok(true) => setup.whereabouts = Whereabouts::Met,
            Ok(false) => {}
            Err(error) => {
                later!(debug: %error, "cannot connect to the address of a caller");
                if matches!(error, ConnectError::Descriptors { .. }) {
                    setup.refusal = Some(Why::Descriptors);
                }
            }
        }
        setup.stage = Stage::Talking;
        let next = match self.decide(&mut setup) {
            Ok(()) => self.talk(caller, &mut setup),
            Err(next) => next,
        };
        self.settle(caller, setup, next);
    }

    /// Returns whether there is a shared-memory connection with `peer` that neither side has ended.
    fn holds(&self, endpoint: u64, peer: Incarnation) -> bool {
        let held = self.endpoints.get(&endpoint).and_then(|owner| owner.held.get(&peer));
        held.is_some_and(|held| self.lives(held.serial))
    }

    /// Decides about a call as the acceptor.
    fn decide(&mut self, setup: &mut Setup) -> Result<(), Next> {
        let hello = setup.peer.clone().ok_or(Next::Drop)?;
        let knows = self.knows(setup, hello.incarnation).ok_or(Next::Drop)?;
        let call = match arbiter::call(&knows, &hello, setup.whereabouts) {
            // A peer that lost the connection has closed its end of it, and this side will detect that.
            Call::AcceptInstead if self.holds(setup.endpoint, hello.incarnation) => Call::Busy,
            call => call,
        };
        let (ruling, why, token) = match call {
            _ if setup.refusal.is_some() => (Ruling::Refuse, setup.refusal.unwrap_or(Why::NoContext), [0; 16]),
            Call::Duplicate(token) => (Ruling::Duplicate, Why::SameHost, token),
            Call::Busy => (Ruling::Busy, Why::SameHost, [0; 16]),
            Call::Accept | Call::AcceptInstead => match arbiter::transport(&setup.ours, &hello) {
                Ok((ruling, why)) => (ruling, why, random().map_err(|_| Next::Drop)?),
                Err(why) => (Ruling::Refuse, why, [0; 16]),
            },
        };
        let accepts = matches!(ruling, Ruling::Tcp | Ruling::Shm | Ruling::Verbs);
        if accepts
            && call == Call::AcceptInstead
            && let Some(old) = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.held.get(&hello.incarnation))
        {
            let (serial, reason) = (old.serial, "the peer lost the connection and reconnects".to_owned());
            self.bury(setup.endpoint, hello.incarnation, serial, reason);
        }
        if accepts && setup.whereabouts == Whereabouts::Met {
            // A third party that uses this caller's incarnation must not block the caller itself.
            let posing = |other: &Setup| {
                other.endpoint == setup.endpoint
                    && other.incarnation() == Some(hello.incarnation)
                    && other.is_accepted()
                    && other.whereabouts == Whereabouts::Claimed
            };
            let posing: Vec<u64> = self.setups.iter().filter(|(_, other)| posing(other)).map(|(id, _)| *id).collect();
            posing.into_iter().for_each(|id| self.forget_setup(id));
        }
        setup.handshake.answer(Verdict { ruling, why, token });
        (setup.ruling, setup.why, setup.token) = (ruling, why, token);
        if !accepts {
            return Err(Next::Drain(None));
        }
        setup.side = Side::Acceptor { accepted: true };
        // The caller has sent its hello and, if a key is used, has proved that it has the key. So it may be slow from
        // now on.
        if let Some(owner) = self.endpoints.get(&setup.endpoint) {
            setup.due = setup.due.max(Instant::now() + owner.opened.timeouts.process);
        }
        Ok(())
    }

    /// Handles the verdict at the initiator. Returns `None` if the handshake continues.
    fn heard(&mut self, id: u64, setup: &mut Setup, hello: Hello, verdict: Verdict) -> Option<Next> {
        let Some(knows) = self.knows(setup, hello.incarnation) else { return Some(Next::Drop) };
        let peer = hello.incarnation;
        if let Side::Prober { caller } = setup.side {
            let caller = self.setups.get(&caller).and_then(Setup::incarnation);
            let found = verdict.ruling == Ruling::Known && verdict.token == setup.name && caller == Some(peer);
            return Some(Next::Proved(found));
        }
        setup.peer = Some(hello);
        if matches!(&setup.side, Side::Initiator(attempt) if attempt.asks) {
            return Some(self.asked(setup, peer, &verdict, &knows));
        }
        let reply = arbiter::verdict(&knows, peer, &verdict, (setup.remote, setup.ours.wanted));
        let Side::Initiator(attempt) = &mut setup.side else { return Some(Next::Drop) };
        match reply {
            Reply::Aliased => return Some(Next::Aliased(peer)),
            Reply::Wait => return Some(Next::Again { pause: true }),
            Reply::Later(error) => {
                attempt.last = Some(error);
                return Some(Next::Again { pause: true });
            }
            Reply::Reset(token) => {
                attempt.reset = Some(token);
                return Some(Next::Again { pause: std::mem::replace(&mut attempt.has_reset, true) });
            }
            Reply::Ask => {
                attempt.asks = true;
                return Some(Next::Again { pause: false });
            }
            Reply::Fail(error) => return Some(Next::Fail(error)),
            Reply::Claim => {}
        }
        attempt.claimed = true;
        (setup.token, setup.ruling, setup.why) = (verdict.token, verdict.ruling, verdict.why);
        match verdict.ruling {
            Ruling::Verbs => {
                self.make_pair(id, setup);
                None
            }
            Ruling::Tcp if !setup.ours.flags.contains(HelloFlags::TCP) => {
                Some(Next::Fail(ConnectError::NoTransport(verdict.why.to_string())))
            }
            Ruling::Tcp => Some(commit(setup, Choice::Tcp, verdict.why, 0)),
            _ => Some(self.call_meeting(id, setup, &peer, verdict.token)),
        }
    }

    /// Handles the called endpoint's answer to the query whether it is the peer of the established connection.
    fn asked(&mut self, setup: &mut Setup, peer: Incarnation, verdict: &Verdict, knows: &Knows) -> Next {
        let (at, nonces) = (setup.called_at(), setup.handshake.nonces());
        let Side::Initiator(attempt) = &mut setup.side else { return Next::Drop };
        attempt.asks = false;
        // Either another endpoint answers now, or the connection has ended.
        let (Some(held), Some((asking, asked))) = (knows.held, nonces) else { return Next::Again { pause: true } };
        let holds = verdict.ruling == Ruling::Known && verdict.token == proof_of_holding(&held.token, &asking, &asked);
        match arbiter::asked(held.whereabouts, holds, at.0) {
            Asked::Aliased => {
                if let Some(owner) = self.endpoints.get_mut(&setup.endpoint)
                    && let Some(held) = owner.held.get_mut(&peer)
                {
                    held.at.get_or_insert(at);
                }
                Next::Aliased(peer)
            }
            Asked::Displace => {
                let old = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.held.get(&peer));
                if let Some(serial) = old.map(|held| held.serial) {
                    let reason = "it had taken the name of another endpoint".to_owned();
                    self.bury(setup.endpoint, peer, serial, reason);
                }
                Next::Again { pause: true }
            }
            Asked::Later(error) => {
                attempt.last = Some(error);
                Next::Again { pause: true }
            }
        }
    }

    /// Connects the initiator to the peer's Unix socket.
    fn call_meeting(&mut self, id: u64, setup: &mut Setup, peer: &Incarnation, token: Token) -> Next {
        let bell = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.opened.bell.clone());
        let meeting = match bell {
            Some(bell) => Meeting::call(&bell, peer, token, setup.room()),
            None => Err(Degraded::from(Errno::OPNOTSUPP)),
        };
        let registered = meeting.and_then(|meeting| {
            self.register(meeting.control(), id, true)?;
            Ok(meeting)
        });
        match registered {
            Ok(meeting) => {
                setup.stage = Stage::Meeting;
                setup.meeting = Some(meeting);
                self.meet(setup)
            }
            Err(degraded) => degrade(setup, degraded),
        }
    }

    /// Checks, as the initiator, for the answer at the Unix socket.
    fn meet(&mut self, setup: &mut Setup) -> Next {
        match setup.meeting.as_mut().map(Meeting::read_answer) {
            Some(Ok(true)) => Next::Shm,
            Some(Ok(false)) => Next::Stay,
            Some(Err(degraded)) => degrade(setup, degraded),
            None => Next::Drop,
        }
    }

    /// Handles the timeout of a set-up.
    pub(super) fn overdue(&mut self, id: u64) {
        let Some(setup) = self.setups.remove(&id) else { return };
        let next = match (&setup.side, setup.stage) {
            (Side::Initiator(attempt), Stage::Waiting) if attempt.may_try_again() => {
                self.restart(id, setup);
                return;
            }
            (Side::Initiator(attempt), stage) => {
                let ConnectTimeouts { host, process } = attempt.timeouts;
                let timeout = if stage == Stage::Connecting { host } else { process };
                let timeout = ConnectError::Timeout { peer: setup.remote, timeout };
                Next::Fail(attempt.last.clone().unwrap_or(timeout))
            }
            (Side::Prober { .. }, _) => Next::Proved(false),
            (Side::Acceptor { .. }, Stage::Draining) => Next::Drop,
            (Side::Acceptor { .. }, _) => {
                let timeout =
                    self.endpoints.get(&setup.endpoint).map_or(Duration::ZERO, |owner| owner.opened.timeouts.host);
                Next::Fail(ConnectError::Timeout { peer: setup.remote, timeout })
            }
        };
        self.settle(id, setup, next);
    }
}
