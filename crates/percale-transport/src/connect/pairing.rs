//! Queue pairs of a connection being made.
//!
//! The initiator makes its own queue pair and names it; the acceptor makes its own, connects it, and answers; the initiator connects, and its last
//! word states whether the queue pairs carry the connection. So each side can receive before the other may send. A side that cannot make or connect a
//! queue pair reports that, and the two go on over the TCP connection that is open already.
//!
//! **Not on the service thread.** Threads of their own make queue pairs (`queue_pairs`). A result is used if the set-up with that number still waits
//! for it.
//!
//! **A round trip.** Two ports may both be active and not reach each other. So before the initiator's last word a message goes over the queue
//! pairs, and its acknowledgement comes back; else the connection is made over TCP, if that is allowed, and the address is remembered for a while.
//!
//! **The cost of callers.** A queue pair has locked memory before its caller has sent its last word, so only [`UNDECIDED`] callers of a domain have
//! one, or wait for one, at a time. Further callers get [`CROWDED`] and try again; when half of their time is over they go on over TCP, if that is
//! allowed.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::ConnectError;
use super::queue_pairs::{Pair, Pairing, failed};
use super::reactor::Reactor;
use super::setup::{Next, Setup, Side, commit, reason};
use crate::background::Job;
use crate::verbs::Wire;
use crate::wire::hello::{Choice, HelloFlags};
use crate::wire::queue_pair::{End, Offered};
use crate::wire::why::Why;

/// How many callers may have queue pairs that they have not chosen yet: 41 MiB of locked memory.
pub(super) const UNDECIDED: usize = 64;

/// The error that further callers get. A device may report it as well: trying again is right then, too.
pub(super) const CROWDED: u32 = libc::EBUSY.cast_unsigned();

/// How long a round trip may take where TCP is allowed besides; and where it is not: a device gives up after some four seconds.
const ROUND_TRIP: Duration = Duration::from_secs(1);
const ROUND_TRIP_ALONE: Duration = Duration::from_secs(6);

impl Reactor {
    /// Returns whether one more caller may have a queue pair.
    fn has_place(&self) -> bool {
        let undecided = |setup: &&Setup| (setup.wire.is_some() || setup.pairing.is_some()) && setup.is_called();
        let waiting = self.pairs.waiting(|pair| pair.is_called && pair.is_wanted());
        self.setups.values().filter(undecided).count().max(waiting) < UNDECIDED
    }

    /// Has our queue pair made, unless it is, and connected, if the peer's is known.
    fn pair(&self, id: u64, setup: &mut Setup, peer: Option<End>) -> Result<(), u32> {
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
        self.pairs.start(Pair { shared, setup: id, is_called, number, adapter, wire, peer, limit, caller, wanted });
        Ok(())
    }

    /// The verdict is verbs: our queue pair is to be named to the peer.
    pub(super) fn make_pair(&self, id: u64, setup: &mut Setup) {
        if let Err(errno) = self.pair(id, setup, None) {
            setup.handshake.offer(&Err(errno));
        }
    }

    /// Handles the peer's answer: the name of its queue pair, or the reason why it has none. Returns `None` if the set-up goes on talking.
    pub(super) fn offered(&self, id: u64, setup: &mut Setup, theirs: Offered) -> Option<Next> {
        if setup.is_called() {
            let place = if self.has_place() { Ok(()) } else { Err(CROWDED) };
            if let Err(errno) = theirs.and_then(|end| place.and_then(|()| self.pair(id, setup, Some(end)))) {
                setup.handshake.offer(&Err(errno));
            }
            return None;
        }
        // Without one of ours the peer's is not to blame.
        let ours = if setup.wire.is_some() { Ok(()) } else { Err(libc::ENOTCONN.cast_unsigned()) };
        match theirs.and_then(|end| ours.and_then(|()| self.pair(id, setup, Some(end)))) {
            Ok(()) => None,
            Err(errno) => Some(unpaired(setup, errno)),
        }
    }

    /// Handles the result of a job.
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
            Ok(_) if pairing.is_last => commit(&mut setup, Choice::Verbs, why, 0),
            Err(errno) if pairing.is_last => unpaired(&mut setup, errno),
            offer => {
                setup.handshake.offer(&offer);
                self.talk(id, &mut setup)
            }
        };
        self.settle(id, setup, next);
    }
}

/// The initiator has no queue pair that is connected.
fn unpaired(setup: &mut Setup, errno: u32) -> Next {
    setup.wire = None;
    let tcp = setup.both().contains(HelloFlags::TCP);
    let error = ConnectError::NoTransport(reason("verbs", Why::PairFailed, errno));
    match &mut setup.side {
        Side::Initiator(attempt) if errno == CROWDED && (attempt.is_early() || !tcp) => {
            attempt.last = Some(error);
            Next::Again { pause: true }
        }
        _ if tcp => commit(setup, Choice::Tcp, Why::PairFailed, errno),
        _ => Next::Fail(error),
    }
}
