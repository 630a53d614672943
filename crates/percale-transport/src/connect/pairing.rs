//! Queue pairs of a connection being made.
//!
//! The initiator creates its queue pair and sends its identification. The acceptor creates its own, connects it, and
//! answers. Then the initiator connects its queue pair, and its final message states whether the queue pairs carry the
//! connection. So each side can receive before the other side may send. A side that cannot create or connect a queue
//! pair reports that, and both sides continue over the TCP connection that is already open.
//!
//! **Not on the service thread.** Separate threads create queue pairs (`queue_pairs`). Each job has a number, and its
//! result is used only if the set-up still waits for that number.
//!
//! **A round trip.** Two ports may both be active and still not reach each other. So before the initiator's final
//! message, a message is sent over the queue pairs and its acknowledgement has to arrive. If that fails, the connection
//! uses TCP, if that is allowed, and the address is remembered for a while.
//!
//! **The cost of callers.** A queue pair locks memory even before its caller has sent the final message. So at most
//! [`UNDECIDED`] callers of a domain have a queue pair, or wait for one, at a time. Further callers get [`CROWDED`] and
//! try again. When half of their time has passed they continue over TCP, if that is allowed.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::ConnectError;
use super::queue_pairs::{Pairing, QueuePairJob, failed};
use super::reactor::Reactor;
use super::setup::{Setup, SetupOutcome, SetupRole, commit, reason};
use crate::background::Job;
use crate::verbs::Wire;
use crate::wire::hello::{ConnectionChoice, HelloFlags};
use crate::wire::queue_pair::{Offered, QueuePairEnd};
use crate::wire::refusal_reason::RefusalReason;

/// The number of callers that may have queue pairs without having sent their final message. Their queue pairs lock 41
/// MiB of memory.
pub(super) const UNDECIDED: usize = 64;

/// The error that further callers get. A device may report the same error, and trying again is the correct reaction in
/// that case too.
pub(super) const CROWDED: u32 = libc::EBUSY.cast_unsigned();

/// The timeout of a round trip if TCP is allowed as well. If it is not, `ROUND_TRIP_ALONE` applies, because a device
/// gives up after about four seconds.
const ROUND_TRIP: Duration = Duration::from_secs(1);
const ROUND_TRIP_ALONE: Duration = Duration::from_secs(6);

impl Reactor {
    /// Returns whether one more caller may have a queue pair.
    fn has_place(&self) -> bool {
        let undecided = |setup: &&Setup| (setup.wire.is_some() || setup.pairing.is_some()) && setup.is_called();
        let waiting = self.pairs.waiting(|pair| pair.is_called && pair.is_wanted());
        self.setups.values().filter(undecided).count().max(waiting) < UNDECIDED
    }

    /// Starts a job that creates the queue pair of this side if it does not exist, and connects it if the peer's queue
    /// pair is known.
    fn pair(&self, id: u64, setup: &mut Setup, peer: Option<QueuePairEnd>) -> Result<(), u32> {
        let adapter = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.opened.verbs.as_ref());
        let adapter = adapter.ok_or_else(|| failed(&io::ErrorKind::Unsupported.into()))?;
        let tcp = setup.both().contains(HelloFlags::TCP);
        let is_last = setup.wire.is_some();
        if tcp && is_last && peer.is_some_and(|peer| adapter.was_unreached(peer.gid)) {
            return Err(libc::EHOSTUNREACH.cast_unsigned());
        }
        let (number, wire) = (self.number(), setup.wire.take());
        let alive = Arc::new(());
        let wanted = Arc::downgrade(&alive);
        setup.pairing = Some(Pairing { number, is_last, _alive: alive });
        let (is_called, adapter) = (setup.is_called(), Arc::clone(adapter));
        let (shared, caller) = (Arc::clone(&self.shared), is_called.then(|| setup.remote.ip()));
        let limit = if tcp { ROUND_TRIP } else { ROUND_TRIP_ALONE };
        self.pairs.start(QueuePairJob {
            shared,
            setup: id,
            is_called,
            number,
            adapter,
            wire,
            peer,
            limit,
            caller,
            wanted,
        });
        Ok(())
    }

    /// Creates the queue pair of this side after a verdict for verbs. Its identification is then sent to the peer.
    pub(super) fn make_pair(&self, id: u64, setup: &mut Setup) {
        if let Err(errno) = self.pair(id, setup, None) {
            setup.handshake.offer(&Err(errno));
        }
    }

    /// Handles the peer's answer: the identification of its queue pair, or the reason why it has none. Returns `None`
    /// if the handshake continues.
    pub(super) fn offered(&self, id: u64, setup: &mut Setup, theirs: Offered) -> Option<SetupOutcome> {
        if setup.is_called() {
            let place = if self.has_place() { Ok(()) } else { Err(CROWDED) };
            if let Err(errno) = theirs.and_then(|end| place.and_then(|()| self.pair(id, setup, Some(end)))) {
                setup.handshake.offer(&Err(errno));
            }
            return None;
        }
        // The peer has sent a queue pair, but this side may have none: report an error of this side.
        let ours = if setup.wire.is_some() { Ok(()) } else { Err(libc::ENOTCONN.cast_unsigned()) };
        match theirs.and_then(|end| ours.and_then(|()| self.pair(id, setup, Some(end)))) {
            Ok(()) => None,
            Err(errno) => Some(unpaired(setup, errno)),
        }
    }

    /// Handles the result of a job that created or connected a queue pair.
    pub(super) fn paired(&mut self, id: u64, number: u64, result: Result<Box<Wire>, u32>) {
        let Some(mut setup) = self.setups.remove(&id) else { return };
        let Some(pairing) = setup.pairing.take_if(|pairing| pairing.number == number) else {
            self.setups.insert(id, setup);
            return;
        };
        let offer = result.as_ref().map(|wire| wire.ours()).map_err(|errno| *errno);
        setup.wire = result.ok();
        let why = setup.why;
        let next = match offer {
            Ok(_) if pairing.is_last => commit(&mut setup, ConnectionChoice::Verbs, why, 0),
            Err(errno) if pairing.is_last => unpaired(&mut setup, errno),
            offer => {
                setup.handshake.offer(&offer);
                self.drive_handshake(id, &mut setup)
            }
        };
        self.settle(id, setup, next);
    }
}

/// Continues an initiator that has no connected queue pair: tries again, uses TCP, or fails.
fn unpaired(setup: &mut Setup, errno: u32) -> SetupOutcome {
    setup.wire = None;
    let tcp = setup.both().contains(HelloFlags::TCP);
    let error = ConnectError::NoTransport(format!("verbs: {}", reason(RefusalReason::PairFailed, errno)));
    match &mut setup.side {
        SetupRole::Initiator(attempt) if errno == CROWDED && (attempt.is_early() || !tcp) => {
            attempt.last = Some(error);
            SetupOutcome::Again { pause: true }
        }
        _ if tcp => commit(setup, ConnectionChoice::Tcp, RefusalReason::PairFailed, errno),
        _ => SetupOutcome::Fail(error),
    }
}
