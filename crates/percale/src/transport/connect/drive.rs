//! How a connection being made goes on: from an attempt to an event, from an event to what becomes of it.
//!
//! Stages of an initiator: connecting → talking → (meeting) → established; or waiting, then from the start again. Of an
//! acceptor: talking (and met, meanwhile) → established; or draining, when something was said that must arrive. A
//! set-up is taken out of the table while it is driven, so that decisions see only the *other* ones.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::arbiter::{self, Call, Knows, Reply};
use super::handshake::{Event, Handshake};
use super::mailbox::Notice;
use super::meeting::{Degraded, Meeting};
use super::reactor::Reactor;
use super::settle::PAUSE;
use super::setup::{Attempt, Next, Setup, Side, Stage, commit, degrade, drain};
use super::{ConnectError, listen};
use crate::wire::hello::{Choice, Hello, HelloFlags, Incarnation, Ruling, Token, Verdict, random};
use crate::wire::why::Why;

/// The longest that a meeting may keep a connection from going on over TCP.
const MEETING: Duration = Duration::from_secs(1);

impl Reactor {
    /// Starts an attempt.
    pub(super) fn begin(&mut self, endpoint: u64, number: u64, peer: SocketAddr, context: u16) {
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
            Ok(hello) => Hello { wanted: context, ..hello },
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
        let Side::Initiator(attempt) = &mut setup.side else { return Ok(()) };
        let owner = self.endpoints.get(&setup.endpoint).ok_or(ConnectError::Closed(setup.remote))?;
        let mut hello = owner.hello().map_err(|error| ConnectError::System(error.to_string(), libc::EIO))?;
        hello.wanted = setup.ours.wanted;
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

    pub(super) fn talk(&mut self, id: u64, setup: &mut Setup) -> Next {
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
                // What was read may have called for a proof.
                Ok(None) if !setup.handshake.output().is_empty() => continue,
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
            let event = match event {
                Event::Wanted(context) => match self.answer_as(setup, context) {
                    Ok(Some(event)) => event,
                    Ok(None) => continue,
                    Err(next) => return next,
                },
                event => event,
            };
            match event {
                Event::Wanted(_) => {}
                Event::Hello(hello) => {
                    if let Err(next) = self.decide(setup, hello) {
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
                            Next::Fail(ConnectError::Protocol("it chose a transport that is not allowed".into()))
                        }
                        Choice::Nothing => Next::Drop,
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

    /// The context of a site that is wanted answers a call. Where there is none the site does, and refuses.
    fn answer_as(&self, setup: &mut Setup, context: u16) -> Result<Option<Event>, Next> {
        let listener = self.endpoints.get(&setup.listener).ok_or(Next::Drop)?;
        match (listener.opened.contexts, listener.members.get(&context)) {
            (None, _) if context == 0 => {}
            (Some(contexts), None) if context < contexts => setup.refusal = Some(Why::ContextClosed),
            (_, None) => setup.refusal = Some(Why::NoContext),
            (Some(contexts), _) if context >= contexts => setup.refusal = Some(Why::NoContext),
            (_, Some(member)) => {
                let owner = self.endpoints.get(member).ok_or(Next::Drop)?;
                setup.ours = owner.hello().map_err(|_| Next::Drop)?;
                setup.endpoint = *member;
            }
        }
        setup.handshake.speak_for(&setup.ours).map_err(|error| Next::Drain(Some(error)))
    }

    /// The acceptor decides about a call.
    fn decide(&mut self, setup: &mut Setup, hello: Hello) -> Result<(), Next> {
        let knows = self.knows(setup.endpoint, hello.incarnation).ok_or(Next::Drop)?;
        let call = arbiter::call(&knows, &hello);
        let (ruling, why, token) = match call {
            _ if setup.refusal.is_some() => (Ruling::Refuse, setup.refusal.unwrap_or(Why::NoContext), [0; 16]),
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
        if !matches!(ruling, Ruling::Tcp | Ruling::Shm | Ruling::Verbs) {
            return Err(Next::Drain(None));
        }
        setup.side = Side::Acceptor { accepted: true };
        Ok(())
    }

    /// The initiator has heard the verdict; `None` if it goes on talking.
    fn heard(&mut self, id: u64, setup: &mut Setup, hello: Hello, verdict: Verdict) -> Option<Next> {
        let Some(knows) = self.knows(setup.endpoint, hello.incarnation) else { return Some(Next::Drop) };
        let peer = hello.incarnation;
        setup.peer = Some(hello);
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

    /// The initiator goes to the peer's Unix socket.
    fn call_meeting(&mut self, id: u64, setup: &mut Setup, peer: &Incarnation, token: Token) -> Next {
        let bell = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.opened.bell.clone());
        let meeting = match bell {
            Some(bell) => Meeting::call(&bell, peer, token),
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
                degrade(&mut setup, Degraded { why: Why::MeetingFailed, errno: libc::ETIMEDOUT })
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
}
