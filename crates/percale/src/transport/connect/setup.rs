//! One connection being made: its socket, its handshake, its meeting, and what happens to it next.
//!
//! Stages of an initiator: connecting → talking → (meeting) → established; or waiting, then from the start again. Of an
//! acceptor: talking (and met, meanwhile) → established; or draining, when something was said that must arrive. A
//! set-up is taken out of the table while it is driven, so that decisions see only the *other* ones.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use zerocopy::IntoBytes;

use super::arbiter::{self, Call, Knows, Reply};
use super::handshake::{Event, Handshake};
use super::mailbox::{Made, Notice, PeerIdentity};
use super::meeting::{Degraded, Meeting};
use super::reactor::{Held, Reactor};
use super::{ConnectError, listen};
use crate::wire::hello::{Commit, Hello, HelloFlags, Incarnation, Ruling, Token, Verdict, Why, random};

/// The longest that a meeting may keep a connection from going on over TCP.
const MEETING: Duration = Duration::from_secs(1);

/// How long a refusal may take to arrive.
const DRAIN: Duration = Duration::from_millis(500);

/// Pauses between tries double from the first to the second of these.
const PAUSE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(256));

/// How often a connection that the peer closes is tried again.
const CLOSED_TRIES: u32 = 3;

/// What an endpoint asked for.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) number: u64,
    deadline: Instant,
    timeout: Duration,
    /// What to say at the deadline, if there is something better than that it has passed.
    last: Option<ConnectError>,
    closed: u32,
    pause: Duration,
    reset: Option<Token>,
    /// Whether it has asked for a reset before.
    has_reset: bool,
    /// Whether its connection was claimed.
    claimed: bool,
}

/// Which side of the connection this is.
#[derive(Debug)]
pub(super) enum Side {
    Initiator(Attempt),
    Acceptor { accepted: bool },
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    Talking,
    Meeting,
    Waiting,
    Draining,
}

/// One connection being made.
pub(super) struct Setup {
    pub(super) endpoint: u64,
    side: Side,
    stage: Stage,
    handshake: Handshake,
    ours: Hello,
    remote: SocketAddr,
    pub(super) tcp: Option<OwnedFd>,
    peer: Option<Hello>,
    token: Token,
    ruling: Ruling,
    why: Why,
    pub(super) meeting: Option<Meeting>,
    pub(super) due: Instant,
}

/// What becomes of a set-up that was driven.
enum Next {
    /// It goes on.
    Stay,
    /// It is over, and nobody needs to know.
    Drop,
    /// It failed.
    Fail(ConnectError),
    /// The acceptor failed, but what it said must arrive.
    Drain(Option<ConnectError>),
    /// The initiator tries again: after a pause or at once.
    Again { pause: bool },
    /// The initiator reached somebody that it is connected to.
    Aliased(Incarnation),
    /// It stands, over this.
    Tcp(Why, u32),
    /// It stands, over shared memory.
    Shm,
}

impl Setup {
    /// A call that came in over `socket`.
    pub(super) fn called(
        endpoint: u64,
        handshake: Handshake,
        ours: Hello,
        (socket, remote): (OwnedFd, SocketAddr),
        due: Instant,
    ) -> Self {
        let side = Side::Acceptor { accepted: false };
        Self { tcp: Some(socket), ..Self::new(endpoint, side, Stage::Talking, handshake, ours, remote, due) }
    }

    const fn new(
        endpoint: u64,
        side: Side,
        stage: Stage,
        handshake: Handshake,
        ours: Hello,
        remote: SocketAddr,
        due: Instant,
    ) -> Self {
        let (tcp, peer, meeting) = (None, None, None);
        let (token, ruling, why) = ([0; 16], Ruling::Refuse, Why::NoTransport);
        Self { endpoint, side, stage, handshake, ours, remote, tcp, peer, token, ruling, why, meeting, due }
    }

    /// Whether it is a call from somebody who has not yet said (and proved) who it is.
    pub(super) const fn is_stranger(&self) -> bool {
        matches!(self.side, Side::Acceptor { .. }) && (!self.handshake.knows_peer() || self.peer.is_none())
    }

    /// Whether it waits for somebody with this token at the Unix socket.
    pub(super) fn expects(&self, token: &Token) -> bool {
        let invited = matches!(self.side, Side::Acceptor { accepted: true }) && self.ruling == Ruling::Shm;
        invited && self.meeting.is_none() && self.token == *token
    }

    fn incarnation(&self) -> Option<Incarnation> {
        self.peer.as_ref().map(|hello| hello.incarnation)
    }

    const fn is_claimed(&self) -> bool {
        matches!(&self.side, Side::Initiator(attempt) if attempt.claimed)
    }

    const fn is_accepted(&self) -> bool {
        matches!(self.side, Side::Acceptor { accepted: true })
    }

    /// Sends what waits. `Ok(true)` once nothing does.
    fn flush(&mut self) -> Result<bool, Errno> {
        let Some(socket) = &self.tcp else { return Ok(true) };
        let output = self.handshake.output();
        while !output.is_empty() {
            match rustix::net::send(socket, output, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(output.drain(..sent)),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    /// Reads exactly as far as the handshake wants. `Ok(None)` if more has to arrive first.
    fn read(&mut self) -> Result<Option<Event>, Next> {
        let mut buffer = [0u8; 256];
        loop {
            let wants = self.handshake.wants().min(buffer.len());
            let Some(socket) = &self.tcp else { return Ok(None) };
            if wants == 0 {
                return Ok(None);
            }
            match rustix::net::recv(socket, &mut buffer[..wants], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Next::Fail(ConnectError::Closed(self.remote))),
                Ok((got, _)) => match self.handshake.feed(&buffer[..got]) {
                    Ok(None) => {}
                    Ok(event) => return Ok(event),
                    Err(error) => {
                        let says = matches!(self.side, Side::Acceptor { .. }) && !self.handshake.output().is_empty();
                        return Err(if says { Next::Drain(Some(error)) } else { Next::Fail(error) });
                    }
                },
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Next::Fail(self.socket_error(errno))),
            }
        }
    }

    fn socket_error(&self, errno: Errno) -> ConnectError {
        let timeout = if let Side::Initiator(attempt) = &self.side { attempt.timeout } else { Duration::ZERO };
        ConnectError::of_socket(errno, self.remote, timeout)
    }

    /// Whether the TCP connection stands by now.
    fn connected(&self) -> Result<bool, ConnectError> {
        let Some(socket) = &self.tcp else { return Ok(false) };
        match rustix::net::sockopt::socket_error(socket) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) | Err(errno) => return Err(self.socket_error(errno)),
        }
        if !matches!(rustix::net::getpeername(socket), Ok(Some(_))) {
            return Ok(false);
        }
        // Nobody listened, but the kernel chose that very port for us: the socket is connected to itself.
        if rustix::net::getsockname(socket).ok() == rustix::net::getpeername(socket).ok().flatten() {
            return Err(ConnectError::Refused(self.remote));
        }
        Ok(true)
    }

    /// The peer's address as it can be used from here.
    fn peer_address(&self, hello: &Hello) -> SocketAddr {
        let (mut address, from) = (hello.address, self.remote);
        if address.ip().is_loopback() && !hello.place.same_network(&self.ours.place) {
            address.set_ip(from.ip());
        }
        match (address.ip(), from) {
            (IpAddr::V6(ip), SocketAddr::V6(from)) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, address.port(), 0, from.scope_id()).into()
            }
            _ => address,
        }
    }
}

impl Reactor {
    /// Starts an attempt.
    pub(super) fn begin(&mut self, endpoint: u64, number: u64, peer: SocketAddr) {
        let Some(owner) = self.endpoints.get(&endpoint) else { return };
        let timeout = owner.opened.timeout;
        let deadline = Instant::now() + timeout;
        let attempt = Attempt {
            number,
            deadline,
            timeout,
            last: None,
            closed: 0,
            pause: PAUSE.0,
            reset: None,
            has_reset: false,
            claimed: false,
        };
        let hello = match owner.hello() {
            Ok(hello) => hello,
            Err(error) => {
                let error = ConnectError::System(error.to_string(), libc::EIO);
                owner.post(Notice::Failed { attempt: number, error });
                return;
            }
        };
        let handshake = Handshake::new(true, &hello, None);
        let setup = Setup::new(endpoint, Side::Initiator(attempt), Stage::Waiting, handshake, hello, peer, deadline);
        let id = self.number();
        self.restart(id, setup);
    }

    /// Calls the peer of an initiator, from the start.
    fn restart(&mut self, id: u64, mut setup: Setup) {
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
        let Side::Initiator(attempt) = &mut setup.side else { return Ok(()) };
        let owner = self.endpoints.get(&setup.endpoint).ok_or(ConnectError::Closed(setup.remote))?;
        let mut hello = owner.hello().map_err(|error| ConnectError::System(error.to_string(), libc::EIO))?;
        if let Some(token) = attempt.reset.take() {
            hello.flags |= HelloFlags::RESET;
            hello.reset = token;
        }
        attempt.claimed = false;
        setup.due = attempt.deadline;
        setup.handshake = Handshake::new(true, &hello, owner.opened.key.clone());
        setup.ours = hello;
        (setup.stage, setup.peer, setup.meeting) = (Stage::Connecting, None, None);
        let connect = || {
            let socket = listen::tcp_socket(setup.remote)?;
            rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
            match rustix::net::connect(&socket, &setup.remote) {
                Ok(()) | Err(Errno::INPROGRESS) => {}
                Err(errno) => return Err(errno),
            }
            self.register(&socket, id, false)?;
            Ok(socket)
        };
        setup.tcp = Some(connect().map_err(|errno| setup.socket_error(errno))?);
        Ok(())
    }

    /// Goes on with a set-up as far as it goes.
    pub(super) fn drive(&mut self, id: u64) {
        let Some(mut setup) = self.setups.remove(&id) else { return };
        let next = match setup.stage {
            Stage::Connecting => match setup.connected() {
                Ok(false) => Next::Stay,
                Ok(true) => {
                    setup.stage = Stage::Talking;
                    self.talk(id, &mut setup)
                }
                Err(error) => Next::Fail(error),
            },
            Stage::Talking => self.talk(id, &mut setup),
            Stage::Meeting => self.meet(&mut setup),
            Stage::Waiting => Next::Stay,
            Stage::Draining => drain(&mut setup),
        };
        self.settle(id, setup, next);
    }

    fn talk(&mut self, id: u64, setup: &mut Setup) -> Next {
        loop {
            match setup.flush() {
                Ok(true) => {}
                Ok(false) => return Next::Stay,
                Err(errno) => return Next::Fail(setup.socket_error(errno)),
            }
            // The meeting may have been confirmed, and the initiator may have closed TCP right after: look there first.
            if setup.tcp.is_none() && setup.meeting.is_none() {
                return Next::Drop;
            }
            let met = match setup.meeting.as_ref().map(Meeting::read_confirm) {
                Some(Ok(true)) => return Next::Shm,
                Some(Ok(false)) => true,
                Some(Err(degraded)) => {
                    tracing::debug!(?degraded, "a meeting was not confirmed");
                    setup.meeting = None;
                    false
                }
                None => false,
            };
            let event = match setup.read() {
                Ok(Some(event)) => event,
                Ok(None) => return Next::Stay,
                // The end of TCP says nothing while the confirmation may be on its way.
                Err(Next::Fail(ConnectError::Closed(_))) if met => {
                    if let Some(socket) = setup.tcp.take() {
                        self.unregister(&socket);
                    }
                    continue;
                }
                Err(next) => return next,
            };
            match event {
                Event::Hello(hello) => {
                    if let Err(next) = self.decide(setup, hello) {
                        return next;
                    }
                }
                Event::Verdict(hello, verdict) => return self.heard(id, setup, hello, verdict),
                Event::Commit(commit) => {
                    let allowed = (setup.ours.flags
                        & setup.peer.as_ref().map_or(HelloFlags::empty(), |peer| peer.flags))
                    .contains(HelloFlags::TCP);
                    return match (commit.tcp, allowed) {
                        (true, true) => Next::Tcp(commit.why, commit.errno),
                        (true, false) => {
                            Next::Fail(ConnectError::Protocol("it chose a transport that is not allowed".into()))
                        }
                        (false, _) => Next::Drop,
                    };
                }
            }
        }
    }

    fn knows(&self, endpoint: u64, peer: Incarnation) -> Option<Knows> {
        let owner = self.endpoints.get(&endpoint)?;
        let others = || {
            let same = move |setup: &&Setup| setup.endpoint == endpoint && setup.incarnation() == Some(peer);
            self.setups.values().filter(same)
        };
        Some(Knows {
            own: owner.opened.incarnation,
            held: owner.held.get(&peer).map(|held| held.token),
            claimed: others().any(Setup::is_claimed),
            accepted: others().any(Setup::is_accepted),
        })
    }

    /// The acceptor decides about a call.
    fn decide(&mut self, setup: &mut Setup, hello: Hello) -> Result<(), Next> {
        let knows = self.knows(setup.endpoint, hello.incarnation).ok_or(Next::Drop)?;
        let call = arbiter::call(&knows, &hello);
        let (ruling, why, token) = match call {
            Call::Duplicate(token) => (Ruling::Duplicate, Why::SameHost, token),
            Call::Busy => (Ruling::Busy, Why::SameHost, [0; 16]),
            Call::Accept | Call::AcceptInstead => match arbiter::transport(&setup.ours, &hello) {
                Ok((ruling, why)) => (ruling, why, random().map_err(|_| Next::Drop)?),
                Err(why) => (Ruling::Refuse, why, [0; 16]),
            },
        };
        if call == Call::AcceptInstead
            && let Some(old) = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.held.get(&hello.incarnation))
        {
            let (serial, reason) = (old.serial, "the peer lost the connection and makes a new one".to_owned());
            self.bury(setup.endpoint, hello.incarnation, serial, reason);
        }
        setup.handshake.answer(Verdict { ruling, why, token });
        (setup.ruling, setup.why, setup.token, setup.peer) = (ruling, why, token, Some(hello));
        if !matches!(ruling, Ruling::Tcp | Ruling::Shm) {
            return Err(Next::Drain(None));
        }
        setup.side = Side::Acceptor { accepted: true };
        Ok(())
    }

    /// The initiator has heard the verdict.
    fn heard(&mut self, id: u64, setup: &mut Setup, hello: Hello, verdict: Verdict) -> Next {
        let Some(knows) = self.knows(setup.endpoint, hello.incarnation) else { return Next::Drop };
        let peer = hello.incarnation;
        setup.peer = Some(hello);
        let reply = arbiter::verdict(&knows, peer, &verdict);
        let Side::Initiator(attempt) = &mut setup.side else { return Next::Drop };
        match reply {
            Reply::Aliased => return Next::Aliased(peer),
            Reply::Wait => return Next::Again { pause: true },
            Reply::Later(error) => {
                attempt.last = Some(error);
                return Next::Again { pause: true };
            }
            Reply::Reset(token) => {
                attempt.reset = Some(token);
                return Next::Again { pause: std::mem::replace(&mut attempt.has_reset, true) };
            }
            Reply::Fail(error) => return Next::Fail(error),
            Reply::Claim => {}
        }
        attempt.claimed = true;
        (setup.token, setup.ruling, setup.why) = (verdict.token, verdict.ruling, verdict.why);
        if verdict.ruling == Ruling::Tcp {
            if !setup.ours.flags.contains(HelloFlags::TCP) {
                return Next::Fail(ConnectError::NoTransport(verdict.why.to_string()));
            }
            return commit(setup, verdict.why, 0);
        }
        let bell = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.opened.bell.clone());
        let meeting = match bell {
            Some(bell) => Meeting::call(&bell, &peer, verdict.token),
            None => Err(Degraded::from(Errno::OPNOTSUPP)),
        };
        let registered = meeting.and_then(|meeting| {
            self.register(meeting.control(), id, true)?;
            Ok(meeting)
        });
        match registered {
            Ok(meeting) => {
                setup.stage = Stage::Meeting;
                setup.due = setup.due.min(Instant::now() + MEETING);
                self.wake_at(setup.due, id);
                setup.meeting = Some(meeting);
                self.meet(setup)
            }
            Err(degraded) => degrade(setup, degraded),
        }
    }

    /// The initiator waits for the answer at the Unix socket.
    fn meet(&mut self, setup: &mut Setup) -> Next {
        match setup.meeting.as_mut().map(Meeting::read_answer) {
            Some(Ok(true)) => Next::Shm,
            Some(Ok(false)) => Next::Stay,
            Some(Err(degraded)) => degrade(setup, degraded),
            None => Next::Drop,
        }
    }

    /// Time is up for a set-up.
    pub(super) fn overdue(&mut self, id: u64) {
        let Some(mut setup) = self.setups.remove(&id) else { return };
        let next = match (&setup.side, setup.stage) {
            (Side::Initiator(attempt), Stage::Waiting) if Instant::now() < attempt.deadline => {
                self.restart(id, setup);
                return;
            }
            (Side::Initiator(attempt), Stage::Meeting) if Instant::now() < attempt.deadline => {
                setup.due = attempt.deadline;
                self.wake_at(setup.due, id);
                degrade(&mut setup, Degraded { why: Why::MeetingFailed, errno: Errno::TIMEDOUT })
            }
            (Side::Initiator(attempt), _) => {
                let timeout = ConnectError::Timeout { peer: setup.remote, timeout: attempt.timeout };
                Next::Fail(attempt.last.clone().unwrap_or(timeout))
            }
            (Side::Acceptor { .. }, Stage::Draining) => Next::Drop,
            (Side::Acceptor { .. }, _) => {
                let timeout = self.endpoints.get(&setup.endpoint).map_or(Duration::ZERO, |owner| owner.opened.timeout);
                Next::Fail(ConnectError::Timeout { peer: setup.remote, timeout })
            }
        };
        self.settle(id, setup, next);
    }

    /// Carries out what became of a set-up.
    fn settle(&mut self, id: u64, mut setup: Setup, next: Next) {
        let (endpoint, peer) = (setup.endpoint, setup.incarnation());
        let next = match next {
            Next::Tcp(..) | Next::Shm if !self.is_new(&setup) => Next::Drop,
            next => next,
        };
        match next {
            Next::Stay => {
                self.setups.insert(id, setup);
                return;
            }
            Next::Drop => {}
            Next::Drain(error) => {
                if let Some(error) = error {
                    self.turned_away(&setup, error);
                }
                setup.stage = Stage::Draining;
                setup.due = Instant::now() + DRAIN;
                self.wake_at(setup.due, id);
                if matches!(drain(&mut setup), Next::Stay) {
                    self.setups.insert(id, setup);
                    return;
                }
            }
            Next::Fail(error) => {
                if let Side::Initiator(attempt) = &mut setup.side {
                    if matches!(error, ConnectError::Closed(_)) && attempt.closed < CLOSED_TRIES {
                        attempt.closed += 1;
                        self.settle(id, setup, Next::Again { pause: true });
                        return;
                    }
                    let attempt = attempt.number;
                    drop(setup);
                    if let Some(owner) = self.endpoints.get(&endpoint) {
                        owner.post(Notice::Failed { attempt, error });
                    }
                } else {
                    self.turned_away(&setup, error);
                }
            }
            Next::Again { pause } => {
                let Side::Initiator(attempt) = &mut setup.side else { return };
                (setup.stage, setup.tcp, setup.meeting) = (Stage::Waiting, None, None);
                attempt.claimed = false;
                if !pause {
                    self.restart(id, setup);
                    return;
                }
                // Half of it by chance, so that two who wait for each other do not meet again and again.
                let chance = f64::from(random::<1>().map_or(0, |[byte]| byte)) / 512.0;
                setup.due = (Instant::now() + attempt.pause.mul_f64(0.5 + chance)).min(attempt.deadline);
                attempt.pause = (attempt.pause * 2).min(PAUSE.1);
                self.wake_at(setup.due, id);
                self.setups.insert(id, setup);
                return;
            }
            Next::Aliased(incarnation) => {
                if let (Side::Initiator(attempt), Some(owner)) = (&setup.side, self.endpoints.get(&endpoint)) {
                    owner.post(Notice::Aliased { attempt: attempt.number, incarnation });
                }
            }
            Next::Tcp(why, errno) => {
                if let Some(socket) = setup.tcp.take() {
                    self.unregister(&socket);
                    let uid = setup.peer.as_ref().map_or(0, |hello| hello.place.user);
                    self.establish(setup, Made::Tcp(socket), (0, uid), reason("tcp", why, errno));
                }
            }
            Next::Shm => {
                let cma = self.endpoints.get(&endpoint).is_some_and(|owner| owner.opened.cma);
                if let Some(meeting) = setup.meeting.take() {
                    self.unregister(meeting.control());
                    if let Some((parts, watched, who)) = meeting.into_parts(cma) {
                        let text = reason("shared memory", setup.why, 0);
                        let serial = self.establish(setup, Made::Shm(parts), (who.pid, who.uid), text);
                        if let (Some(serial), Some(peer)) = (serial, peer) {
                            self.watch(endpoint, serial, peer, watched);
                        }
                    }
                }
            }
        }
        if let Some(peer) = peer {
            self.release(endpoint, peer);
        }
    }

    /// Whether there is no connection with its peer yet. (No percale brings about a second one.)
    fn is_new(&self, setup: &Setup) -> bool {
        let owner = self.endpoints.get(&setup.endpoint);
        setup.incarnation().is_some_and(|peer| owner.is_some_and(|owner| !owner.held.contains_key(&peer)))
    }

    fn turned_away(&self, setup: &Setup, error: ConnectError) {
        // Who merely hangs up has lost interest: a connection given up for another one, or a port scanner.
        if matches!(setup.side, Side::Acceptor { .. })
            && !matches!(error, ConnectError::Closed(_))
            && let Some(owner) = self.endpoints.get(&setup.endpoint)
        {
            tracing::warn!(from = %setup.remote, %error, "a call was turned away");
            owner.post(Notice::TurnedAway { from: setup.remote, error });
        }
    }

    /// A connection stands: tells its owner, and gives its serial.
    fn establish(&mut self, setup: Setup, link: Made, (pid, uid): (i32, u32), reason: String) -> Option<u64> {
        let serial = self.number();
        let hello = setup.peer.as_ref()?;
        let peer = hello.incarnation;
        let identity = PeerIdentity {
            incarnation: peer,
            address: setup.peer_address(hello),
            pid,
            uid,
            host_local: hello.place.same_host(&setup.ours.place),
        };
        let mut replaced = Vec::new();
        let owner = self.endpoints.get_mut(&setup.endpoint)?;
        // Who answers at an address is the one that lives there; who only claims it is believed nothing about others.
        let attempt = match &setup.side {
            Side::Initiator(attempt) => {
                let address = identity.address;
                let old = owner.held.iter().filter(|(_, held)| held.address == address && setup.remote == address);
                replaced.extend(old.map(|(old, held)| (*old, held.serial)));
                Some(attempt.number)
            }
            Side::Acceptor { .. } => {
                let waiting = |setup: &Setup| setup.stage == Stage::Waiting && setup.incarnation() == Some(peer);
                let same = |other: &Setup| other.endpoint == setup.endpoint && waiting(other);
                let found = self.setups.iter().filter(|(_, other)| same(other)).map(|(id, _)| *id).min();
                found.and_then(|id| self.setups.remove(&id)).and_then(|other| match other.side {
                    Side::Initiator(attempt) => Some(attempt.number),
                    Side::Acceptor { .. } => None,
                })
            }
        };
        owner.held.insert(peer, Held { serial, token: setup.token, address: identity.address });
        for (old, serial) in replaced {
            owner.held.remove(&old);
            owner.post(Notice::Replaced { serial, old, new: peer });
        }
        owner.post(Notice::Established { attempt, serial, identity, link, reason });
        Some(serial)
    }

    /// A set-up with `peer` is over: if a connection stands now, whoever waited for it is told. Else its timer runs.
    fn release(&mut self, endpoint: u64, peer: Incarnation) {
        let waits = |setup: &Setup| setup.stage == Stage::Waiting && setup.incarnation() == Some(peer);
        let waiting = self.setups.iter().filter(|(_, setup)| setup.endpoint == endpoint && waits(setup));
        let waiting: Vec<u64> = waiting.map(|(id, _)| *id).collect();
        let Some(owner) = self.endpoints.get(&endpoint) else { return };
        let stands = owner.held.contains_key(&peer);
        for id in waiting {
            let Some(setup) = self.setups.remove(&id) else { continue };
            if let (true, Side::Initiator(attempt)) = (stands, &setup.side) {
                if let Some(owner) = self.endpoints.get(&endpoint) {
                    owner.post(Notice::Aliased { attempt: attempt.number, incarnation: peer });
                }
            } else {
                self.setups.insert(id, setup);
            }
        }
    }
}

/// Why this transport, in words.
fn reason(transport: &str, why: Why, errno: u32) -> String {
    match i32::try_from(errno) {
        Ok(errno @ 1..) => format!("{transport}: {why} ({})", Errno::from_raw_os_error(errno)),
        _ => format!("{transport}: {why}"),
    }
}

/// The initiator's last word over TCP.
fn commit(setup: &mut Setup, why: Why, errno: u32) -> Next {
    setup.handshake.output().extend_from_slice(Commit { tcp: true, why, errno }.to_bytes().as_bytes());
    match setup.flush() {
        Ok(true) => Next::Tcp(why, errno),
        // A few bytes into an empty socket buffer: if they do not fit, something is very wrong.
        Ok(false) => Next::Fail(ConnectError::Closed(setup.remote)),
        Err(errno) => Next::Fail(setup.socket_error(errno)),
    }
}

/// The meeting failed: the initiator goes on over TCP, if that is allowed.
fn degrade(setup: &mut Setup, degraded: Degraded) -> Next {
    setup.meeting = None;
    let both = setup.ours.flags & setup.peer.as_ref().map_or(HelloFlags::empty(), |peer| peer.flags);
    if both.contains(HelloFlags::TCP) {
        return commit(setup, degraded.why, degraded.number());
    }
    Next::Fail(ConnectError::NoTransport(reason("shared memory", degraded.why, degraded.number())))
}

/// The acceptor has said its last; waits until the caller has it, so that closing does not destroy it on the way.
fn drain(setup: &mut Setup) -> Next {
    match setup.flush() {
        Ok(true) => {}
        Ok(false) => return Next::Stay,
        Err(_) => return Next::Drop,
    }
    let Some(socket) = &setup.tcp else { return Next::Drop };
    if rustix::net::shutdown(socket, Shutdown::Write).is_err() {
        return Next::Drop;
    }
    let mut discard = [0u8; 1024];
    loop {
        match rustix::net::recv(socket, &mut discard, RecvFlags::DONTWAIT) {
            Ok((1.., _)) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Next::Stay,
            Ok((0, _)) | Err(_) => return Next::Drop,
        }
    }
}
