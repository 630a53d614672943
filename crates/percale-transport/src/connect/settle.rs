//! The outcome of a connection being made (established, failed, waiting, or not needed) and the notices to its owner.

use std::time::{Duration, Instant};

use super::ConnectError;
use super::mailbox::{EstablishedTransport, PeerIdentity, ServiceNotice};
use super::reactor::{HeldConnection, Reactor};
use super::setup::{Setup, SetupOutcome, SetupRole, SetupStage, drain, reason};
use crate::later::later;
use crate::system::random::random;
use crate::wire::hello::Incarnation;
use crate::wire::refusal_reason::RefusalReason;

/// The time for which an acceptor that makes no connection keeps the socket open, so that its last message arrives.
const DRAIN: Duration = Duration::from_millis(500);

/// The first and the longest pause between tries. Each pause is twice as long as the one before.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(256));

/// The number of times that an attempt is repeated after the peer has closed the connection.
const CLOSED_TRIES: u32 = 3;

impl Reactor {
    /// Handles the outcome of a set-up.
    pub(super) fn settle(&mut self, id: u64, mut setup: Setup, next: SetupOutcome) {
        let (endpoint, peer) = (setup.endpoint, setup.incarnation());
        let next = match next {
            SetupOutcome::Tcp(..) | SetupOutcome::Shm | SetupOutcome::Verbs(_) if !self.is_new(&setup) => {
                SetupOutcome::Drop
            }
            next => next,
        };
        if let SetupRole::Prober { caller } = setup.side {
            match next {
                SetupOutcome::Stay => drop(self.setups.insert(id, setup)),
                SetupOutcome::Proved(found) => self.proved(caller, Ok(found)),
                SetupOutcome::Fail(error) => self.proved(caller, Err(error)),
                _ => self.proved(caller, Ok(false)),
            }
            return;
        }
        match next {
            SetupOutcome::Stay => {
                self.setups.insert(id, setup);
                return;
            }
            SetupOutcome::Prove => {
                setup.stage = SetupStage::Proving;
                self.setups.insert(id, setup);
                self.probe(id);
                return;
            }
            SetupOutcome::Drop | SetupOutcome::Proved(_) => {
                if let Some(prober) = setup.prober {
                    self.setups.remove(&prober);
                }
            }
            SetupOutcome::Drain(error) => {
                if let Some(error) = error {
                    self.report_refusal(&setup, error);
                }
                setup.stage = SetupStage::Draining;
                setup.due = Instant::now() + DRAIN;
                self.wake_at(setup.due, id);
                if matches!(drain(&mut setup), SetupOutcome::Stay) {
                    self.setups.insert(id, setup);
                    return;
                }
            }
            SetupOutcome::Fail(error) => {
                if !self.fail(id, setup, error) {
                    return;
                }
            }
            SetupOutcome::Again { pause } => return self.try_again(id, setup, pause),
            SetupOutcome::Aliased(incarnation) => {
                if let (SetupRole::Initiator(attempt), Some(owner)) = (&setup.side, self.endpoints.get(&endpoint)) {
                    owner.post(ServiceNotice::Aliased { attempt: attempt.number, incarnation });
                }
            }
            SetupOutcome::Tcp(why, errno) => self.establish_tcp(setup, why, errno),
            SetupOutcome::Verbs(why) => self.establish_verbs(setup, why),
            SetupOutcome::Shm => self.establish_shm(setup),
        }
        if let Some(peer) = peer {
            self.release(endpoint, peer);
        }
    }

    /// Reports the failure of a set-up. Returns false if the attempt is tried again instead, so that the set-up has not
    /// ended.
    fn fail(&mut self, id: u64, mut setup: Setup, error: ConnectError) -> bool {
        let SetupRole::Initiator(attempt) = &mut setup.side else {
            self.report_refusal(&setup, error);
            return true;
        };
        if matches!(error, ConnectError::Closed(_)) && attempt.closed < CLOSED_TRIES {
            attempt.closed += 1;
            self.try_again(id, setup, true);
            return false;
        }
        // Other set-ups may release descriptors in the meantime, because a connection being made uses many.
        if matches!(error, ConnectError::Descriptors { .. }) && attempt.is_early() {
            attempt.last = Some(error);
            self.try_again(id, setup, true);
            return false;
        }
        let (endpoint, attempt) = (setup.endpoint, attempt.number);
        drop(setup);
        if let Some(owner) = self.endpoints.get(&endpoint) {
            owner.post(ServiceNotice::Failed { attempt, error });
        }
        true
    }

    /// Restarts an initiator's attempt, after a pause or at once.
    fn try_again(&mut self, id: u64, mut setup: Setup, pause: bool) {
        let SetupRole::Initiator(attempt) = &mut setup.side else { return };
        (setup.stage, setup.tcp, setup.meeting) = (SetupStage::Waiting, None, None);
        (setup.wire, setup.pairing) = (None, None);
        attempt.claimed = false;
        if !pause {
            self.restart(id, setup);
            return;
        }
        // Half of the pause is random, so that two endpoints that wait for each other do not collide again and again.
        let chance = f64::from(random::<1>().map_or(0, |[byte]| byte)) / 512.0;
        let now = Instant::now();
        let until = *attempt.retry_until.get_or_insert(now + attempt.timeouts.host);
        setup.due = (now + attempt.pause.mul_f64(0.5 + chance)).min(until).min(attempt.deadline);
        attempt.pause = (attempt.pause * 2).min(PAUSE.1);
        self.wake_at(setup.due, id);
        self.setups.insert(id, setup);
    }

    /// Establishes a connection over TCP.
    fn establish_tcp(&mut self, mut setup: Setup, why: RefusalReason, errno: u32) {
        if let Some(socket) = setup.tcp.take() {
            self.unregister(&socket);
            let uid = setup.peer.as_ref().map_or(0, |hello| hello.place.user);
            let mut text = reason(why, errno);
            let missing = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.opened.shm_missing.as_ref());
            if let (RefusalReason::ShmNotAllowed, Some(missing)) = (why, missing) {
                text = format!("{text}: {missing}");
            }
            self.establish(setup, EstablishedTransport::Tcp(socket), (0, uid), text);
        }
    }

    /// Establishes a connection over queue pairs.
    fn establish_verbs(&mut self, mut setup: Setup, why: RefusalReason) {
        if let (Some(socket), Some(wire)) = (setup.tcp.take(), setup.wire.take()) {
            self.unregister(&socket);
            let uid = setup.peer.as_ref().map_or(0, |hello| hello.place.user);
            let text = reason(why, 0);
            self.establish(setup, EstablishedTransport::Verbs(wire, socket), (0, uid), text);
        }
    }

    /// Establishes a connection over shared memory, and starts to watch its peer.
    fn establish_shm(&mut self, mut setup: Setup) {
        let (endpoint, peer) = (setup.endpoint, setup.incarnation());
        let cma = self.endpoints.get(&endpoint).is_some_and(|owner| owner.opened.cma);
        if let Some(meeting) = setup.meeting.take() {
            self.unregister(meeting.control());
            if let Some((parts, watched, who)) = meeting.into_parts(cma) {
                let text = reason(setup.why, 0);
                let serial = self.establish(setup, EstablishedTransport::Shm(parts), (who.pid, who.uid), text);
                if let (Some(serial), Some(peer)) = (serial, peer) {
                    self.watch(endpoint, serial, peer, watched);
                }
            }
        }
    }

    /// Returns whether there is no connection yet with the peer of this set-up. (A conforming peer never causes a
    /// second one.)
    fn is_new(&self, setup: &Setup) -> bool {
        let owner = self.endpoints.get(&setup.endpoint);
        setup.incarnation().is_some_and(|peer| owner.is_some_and(|owner| !owner.held.contains_key(&peer)))
    }

    fn report_refusal(&self, setup: &Setup, error: ConnectError) {
        // A caller that only closes its connection is not reported. It may have given up this connection in favor of
        // another one, or it may be a port scanner.
        if matches!(setup.side, SetupRole::Acceptor { .. })
            && !matches!(error, ConnectError::Closed(_))
            && let Some(owner) = self.endpoints.get(&setup.endpoint)
        {
            later!(warn: from = %setup.remote, %error, "rejected a connection");
            owner.post(ServiceNotice::CallRejected { from: setup.remote, error });
        }
    }

    /// Establishes the connection: notifies its owner, and returns its serial.
    fn establish(
        &mut self,
        setup: Setup,
        link: EstablishedTransport,
        (pid, uid): (i32, u32),
        reason: String,
    ) -> Option<u64> {
        let serial = self.number();
        let hello = setup.peer.as_ref()?;
        let peer = hello.incarnation;
        let at = setup.confirmed_address();
        let advertised = (setup.peer_address(hello), hello.context);
        let (address, context) = if setup.is_initiator() { advertised } else { at.unwrap_or(advertised) };
        let identity = PeerIdentity {
            incarnation: peer,
            address,
            context,
            proven: at == Some((address, context)),
            pid,
            uid,
            host_local: hello.place.same_host(&setup.ours.place),
        };
        let owner = self.endpoints.get_mut(&setup.endpoint)?;
        // A peer that was met at an address replaces the connections of all other peers that were met there before. A
        // peer that was not met at its address replaces none.
        let others = owner.held.iter().filter(|(other, held)| **other != peer && at.is_some() && held.at == at);
        let replaced: Vec<_> = others.map(|(old, held)| (*old, held.serial)).collect();
        let attempt = match &setup.side {
            SetupRole::Initiator(attempt) => Some(attempt.number),
            _ => {
                let waiting = |other: &Setup| other.stage == SetupStage::Waiting && other.incarnation() == Some(peer);
                let there = |other: &Setup| other.endpoint == setup.endpoint && Some(other.called_address()) == at;
                let same = self.setups.iter().filter(|(_, other)| waiting(other) && there(other));
                let found = same.map(|(id, _)| *id).min();
                found.and_then(|id| self.setups.remove(&id)).and_then(|other| match other.side {
                    SetupRole::Initiator(attempt) => Some(attempt.number),
                    SetupRole::Acceptor { .. } | SetupRole::Prober { .. } => None,
                })
            }
        };
        owner.held.insert(peer, HeldConnection { serial, token: setup.token, at });
        let mut gone = Vec::new();
        for (old, serial) in replaced {
            owner.held.remove(&old);
            owner.post(ServiceNotice::Replaced { serial, old, new: peer });
            gone.push(serial);
        }
        owner.post(ServiceNotice::Established { attempt, serial, identity, link, reason });
        gone.into_iter().for_each(|serial| self.unwatch(serial));
        if at.is_none() {
            self.limit_unproven(setup.endpoint);
        }
        Some(serial)
    }

    /// Called when a set-up with `peer` has ended. If there is now a connection with this peer, the attempts that wait
    /// for it continue. An attempt that called the address at which the peer was met is notified. An attempt that
    /// called another address is repeated, because only the endpoint that answers there can prove that it is the same
    /// peer. If there is no connection, the attempts continue to wait for their timers.
    fn release(&mut self, endpoint: u64, peer: Incarnation) {
        let waits = |setup: &Setup| setup.stage == SetupStage::Waiting && setup.incarnation() == Some(peer);
        let waiting = self.setups.iter().filter(|(_, setup)| setup.endpoint == endpoint && waits(setup));
        let waiting: Vec<u64> = waiting.map(|(id, _)| *id).collect();
        let Some(held) = self.endpoints.get(&endpoint).and_then(|owner| owner.held.get(&peer)) else { return };
        let at = held.at;
        for id in waiting {
            let Some(mut setup) = self.setups.remove(&id) else { continue };
            match (&setup.side, self.endpoints.get(&endpoint)) {
                (SetupRole::Initiator(attempt), Some(owner)) if at == Some(setup.called_address()) => {
                    owner.post(ServiceNotice::Aliased { attempt: attempt.number, incarnation: peer });
                }
                _ => {
                    setup.due = Instant::now();
                    self.wake_at(setup.due, id);
                    self.setups.insert(id, setup);
                }
            }
        }
    }
}
