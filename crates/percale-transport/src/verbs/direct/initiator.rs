//! An initiator's side of a link: the life cycle of its queue pair for accesses, and the accesses over it.

use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use super::super::makers::{self, Making};
use super::grants::Grants;
use super::lane::{AccessQueue, OutstandingAccess, RdmaRequest};
use super::local::{CacheUser, Pins};
use super::making::{self, CreatedPair};
use super::{ASKS, FORGOTTEN, Offered, PendingFrames, PostFailure, WireParts};
use crate::local_memory::volatile::{Segments, View, ViewExt as _};
use crate::region::{RemoteMemory, admit};
use crate::verbs::{Wire, errno_of, status};
use crate::wire::head::{FrameKind, Head};
use crate::wire::located::{AccessGrant, LocatedBytes};
use crate::{Broken, ConnectionId, PullError, Sink};

/// The maximum number of bytes of one request, even if the device allows more.
const LONGEST: u64 = 32 << 20;
/// The pause after the first failure of a queue pair, before another one is created. It doubles with each further
/// failure.
const PAUSE: Duration = Duration::from_millis(10);
/// The maximum number of times that the pause is doubled.
const DOUBLED: u32 = 4;
/// The number of accesses over a queue pair after which earlier failures no longer count.
const PROVEN: u64 = 64;

/// The state of the queue pair.
#[derive(Debug)]
enum PairState {
    /// There is no queue pair, and none is created before this time.
    None(Option<Instant>),
    /// The queue pair of this side is being created.
    Making(Making<CreatedPair>),
    /// The queue pair of this side was offered to the peer.
    Offered(CreatedPair),
    /// The queue pair is being connected.
    Connecting(Making<CreatedPair>),
    Up(AccessQueue),
    /// Nothing more is posted. Once no request is outstanding, these accesses are returned to the engine.
    Broken(AccessQueue, Vec<UnacknowledgedAccess>),
    /// Accesses are not possible with this peer or this device, for this reason.
    Off(String),
}

/// An access, or a part of one, that was not acknowledged.
#[derive(Clone, Copy, Debug)]
struct UnacknowledgedAccess {
    token: u32,
    /// Whether the access may have taken place, so that it must not be repeated.
    lost: bool,
}

/// The initiator's side of a link: its queue pair and the accesses on it.
#[derive(Debug)]
pub(super) struct Initiator {
    state: PairState,
    /// The parts from which the queue pair is created, once an access was requested.
    wire: Option<WireParts>,
    grants: Grants,
    local: CacheUser,
    /// The number of the next request.
    next: u64,
    /// The number of the first request over this queue pair.
    first: u64,
    /// The number of queue pairs that failed since the last one that worked.
    broken: u32,
    /// Whether the peer has reported that its end of the queue pair is in the error state.
    is_over: bool,
    /// Whether a request got no answer because the peer's end is in the error state. If so, it is unknown which of the
    /// posted requests took place.
    unsure: bool,
    /// Whether the device did not accept a request although there was room.
    is_dead: bool,
    /// Grants that have ended: the key, the target's number, and the number of the first request that was posted after
    /// the report.
    gone: Vec<(u64, u32, u64)>,
}

impl Initiator {
    pub(super) fn new(pins: &Pins) -> Self {
        Self {
            state: PairState::None(None),
            wire: None,
            grants: Grants::default(),
            local: CacheUser::new(pins),
            next: 0,
            first: 0,
            broken: 0,
            is_over: false,
            unsure: false,
            is_dead: false,
            gone: Vec::new(),
        }
    }

    /// Returns whether an access to this memory can be posted. Sends a request to the target if there is no entry for
    /// the key.
    pub(super) fn reaches(
        &mut self,
        wire: &WireParts,
        remote: &RemoteMemory,
        writes: bool,
        pending_frames: &mut PendingFrames,
    ) -> bool {
        if let PairState::None(pause) = self.state {
            if pause.is_none_or(|until| Instant::now() >= until) {
                let (parts, wire) = (wire.clone(), wire.clone());
                self.wire = Some(parts);
                let makers = wire.adapter.makers().clone();
                self.state = PairState::Making(Making::start(&makers, move || making::initiators(&wire)));
            }
            return false;
        }
        let up = matches!(self.state, PairState::Up(_)) && !self.is_over;
        match self.grants.find(remote.key, up) {
            Ok(grant) => up && offset(&grant, remote, writes).is_some(),
            Err(question) => {
                if let Some(id) = question {
                    pending_frames.push(Head { kind: FrameKind::Locate, data: remote.key, id, ..Head::default() }, &[]);
                }
                false
            }
        }
    }

    /// Returns the maximum number of bytes of one request.
    pub(super) fn longest(&self) -> u64 {
        let port = self.wire.as_ref().map_or(0, |wire| wire.adapter.longest());
        LONGEST.min(port.into()).max(1)
    }

    /// Posts an access of at least one byte.
    pub(super) fn post(
        &mut self,
        writes: bool,
        remote: &RemoteMemory,
        local: &Segments,
        token: u32,
    ) -> Result<(), PostFailure> {
        let (PairState::Up(lane), Some(wire), false) = (&mut self.state, &self.wire, self.is_over) else {
            return Err(PostFailure::Unreachable);
        };
        let grant = self.grants.find(remote.key, false).map_err(|_| PostFailure::Unreachable)?;
        let offset = offset(&grant, remote, writes).ok_or(PostFailure::Unreachable)?;
        // The granted range does not exceed 64 bits, and the access lies within it.
        let address = grant.address.wrapping_add(offset);
        let wanted = RdmaRequest { writes, key: remote.key, grant: &grant, address, local, token };
        let posted = lane.post(self.next, &wanted, &mut self.local, &wire.adapter);
        self.is_dead |= posted == Err(PostFailure::Broken);
        posted?;
        self.next += 1;
        if self.next - self.first == PROVEN {
            self.broken = 0;
        }
        Ok(())
    }

    /// Stops using the queue pair, because it failed. `undone` is the access that caused the failure, if any.
    fn failed(&mut self, undone: Option<UnacknowledgedAccess>) {
        if let PairState::Up(lane) = std::mem::replace(&mut self.state, PairState::None(None)) {
            lane.fail();
            self.state = PairState::Broken(lane, undone.into_iter().collect());
        }
    }

    /// Handles the report that the peer's end of the queue pair is in the error state. Posted requests then have no
    /// effect any more.
    pub(super) fn over(&mut self) {
        match self.state {
            PairState::Up(_) => self.is_over = true,
            PairState::Connecting(_) => self.state = self.again(),
            _ => {} // The report refers to a queue pair that this side has already found to be in error.
        }
    }

    /// If the peer's end is in the error state, ends this side's queue pair as soon as all outstanding accesses can be
    /// repeated. Accesses that cannot be repeated may have been acknowledged or refused before, and their completions
    /// will soon report this. Otherwise they end when the device's retries are exhausted.
    pub(super) fn retire(&mut self) {
        if let PairState::Up(lane) = &self.state
            && self.is_over
            && lane.flights.iter().all(|flight| flight.reads || self.is_gone(flight))
        {
            self.failed(None);
        }
    }

    /// Processes completions. Returns whether there were any.
    ///
    /// # Errors
    /// If the connection cannot continue, because it is unknown which accesses took place.
    pub(super) fn completions(
        &mut self,
        me: ConnectionId,
        wire: &mut Wire,
        sink: &mut impl Sink,
    ) -> Result<bool, Broken> {
        if self.is_dead {
            return Err(Broken::Died("the peer's device does not accept accesses".into()));
        }
        if wire.accesses().is_empty() {
            return Ok(false);
        }
        let mut all = std::mem::take(wire.accesses());
        for &(number, status) in &all {
            self.completed(number, status, wire, me, sink)?;
        }
        all.clear();
        *wire.accesses() = all;
        Ok(true)
    }

    fn completed(
        &mut self,
        number: u64,
        status: i32,
        wire: &Wire,
        me: ConnectionId,
        sink: &mut impl Sink,
    ) -> Result<(), Broken> {
        let (PairState::Up(lane) | PairState::Broken(lane, _)) = &mut self.state else { return Ok(()) };
        match lane.flights.front() {
            Some(first) if first.number == number => {}
            // The completion belongs to a queue pair that no longer exists.
            _ if number < self.first => return Ok(()),
            _ => return Err(Broken::Protocol("the device completed an access that was not in progress".into())),
        }
        let Some(flight) = lane.over(status == 0, &self.local) else { return Ok(()) };
        if status == 0 {
            sink.assisted(me, flight.token, Ok(()));
            return Ok(());
        }
        // Accesses that were posted after a refused access do not take place.
        let lost = self.unsure && !flight.reads && !self.is_gone(&flight);
        if let PairState::Broken(_, back) = &mut self.state {
            back.push(UnacknowledgedAccess { token: flight.token, lost });
            return Ok(());
        }
        if is_refused(status) || is_unanswered(status) && self.may_repeat(&flight) {
            // A new request is sent for the key of a refused access.
            self.grants.forget(flight.grant.0, flight.grant.1);
            self.failed(Some(UnacknowledgedAccess { token: flight.token, lost: false }));
            return Ok(());
        }
        if is_unanswered(status) && self.is_over {
            self.unsure = true;
            let lost = !flight.reads && !self.is_gone(&flight);
            self.failed(Some(UnacknowledgedAccess { token: flight.token, lost }));
            return Ok(());
        }
        let why = wire.explain(status);
        Err(match is_unanswered(status) {
            true => Broken::Timeout(format!("the peer's device did not answer: {why}")),
            false => Broken::Died(format!("an access failed: {why}")),
        })
    }

    /// Returns whether an access that got no answer, and all accesses posted after it, can be repeated. They can if the
    /// target has reported that the grant of the access has ended, because the access may have been refused. If it was
    /// not refused, a repetition cannot be observed, because all accesses after it are reads or use grants that have
    /// ended.
    fn may_repeat(&self, flight: &OutstandingAccess) -> bool {
        let PairState::Up(lane) = &self.state else { return false };
        self.is_gone(flight) && lane.flights.iter().all(|flight| flight.reads || self.is_gone(flight))
    }

    /// Returns whether the target has reported that the grant of an access has ended.
    fn is_gone(&self, flight: &OutstandingAccess) -> bool {
        self.gone.iter().any(|&(key, number, _)| (key, number) == flight.grant)
    }

    /// If the queue pair has failed and no request is outstanding, returns the accesses that did not take place to the
    /// engine, the most recent one first. Returns false if this condition is not met.
    pub(super) fn give_back(&mut self, me: ConnectionId, sink: &mut impl Sink) -> bool {
        if !matches!(&self.state, PairState::Broken(lane, _) if lane.flights.is_empty()) {
            return false;
        }
        let none = self.again();
        let PairState::Broken(lane, back) = std::mem::replace(&mut self.state, none) else { return false };
        match &self.wire {
            Some(wire) => makers::end(wire.adapter.makers(), lane),
            None => drop(lane),
        }
        // The parts of an access were posted consecutively.
        for parts in back.chunk_by(|one, other| one.token == other.token).rev() {
            let token = parts[0].token;
            if parts.iter().any(|part| part.lost) {
                parts.iter().for_each(|_| sink.assisted(me, token, Err(PullError::Unknown)));
            } else {
                sink.undone(me, token);
            }
        }
        true
    }

    /// Advances the creation of the queue pair, and reports to the target which ended grants are no longer used.
    /// Returns whether anything happened.
    pub(super) fn advance(&mut self, pending_frames: &mut PendingFrames) -> bool {
        let any = self.answer_gone(pending_frames);
        let (PairState::Making(making) | PairState::Connecting(making)) = &self.state else { return any };
        let Some(result) = making.result() else { return any };
        let is_first = matches!(self.state, PairState::Making(_));
        self.state = match result {
            Ok(made) if is_first => {
                pending_frames.offer(ASKS, &Ok(made.ours));
                PairState::Offered(made)
            }
            Ok(made) => {
                self.first = self.next;
                (self.is_over, self.unsure) = (false, false);
                PairState::Up(AccessQueue::new(made.pair))
            }
            Err(error) => {
                crate::later::later!(warn: %error, "cannot create a queue pair for accesses: the peer's processor executes them");
                match errno_of(&error) {
                    libc::EPERM => PairState::Off("the limits of the device are too low for RDMA accesses".to_owned()),
                    _ => self.again(),
                }
            }
        };
        true
    }

    /// Returns the state without a queue pair, with the pause before another queue pair is created.
    fn again(&mut self) -> PairState {
        let pause = PAUSE * (1 << self.broken.min(DOUBLED));
        self.broken += 1;
        PairState::None(Some(Instant::now() + pause))
    }

    /// Handles the peer's answer, which contains its end of the queue pair or the reason why it has none.
    pub(super) fn answered(&mut self, wire: &WireParts, offered: Offered) -> Result<(), &'static str> {
        match std::mem::replace(&mut self.state, PairState::None(None)) {
            PairState::Offered(made) => {
                self.state = match offered {
                    Ok(peer) => {
                        let makers = wire.adapter.makers().clone();
                        PairState::Connecting(Making::start(&makers, move || making::connect(made, &peer)))
                    }
                    Err(errno) => {
                        makers::end(wire.adapter.makers(), made);
                        let error = std::io::Error::from_raw_os_error(errno.cast_signed());
                        crate::later::later!(debug: %error, "the peer has no queue pair for accesses");
                        if errno == libc::EPERM.cast_unsigned() {
                            PairState::Off("the peer executes all accesses".to_owned())
                        } else {
                            self.again()
                        }
                    }
                };
                Ok(())
            }
            other => {
                self.state = other;
                Err("reply about a queue pair that was not offered")
            }
        }
    }

    /// Handles the target's answer to the request for the location of a region.
    pub(super) fn located(&mut self, question: u32, payload: View<'_>) -> Result<(), &'static str> {
        let mut bytes = [0; size_of::<LocatedBytes>()];
        let whole = payload.len() == bytes.len() && payload.read_into(&mut bytes) == bytes.len();
        let read = LocatedBytes::read_from_bytes(&bytes).ok().filter(|_| whole);
        let located = read.and_then(|read| read.parse()).ok_or("region without an address")?;
        self.grants.learn(question, &located)
    }

    /// Handles the report that a grant has ended.
    pub(super) fn revoked(&mut self, number: u32, key: u64) -> Result<(), &'static str> {
        if self.gone.len() >= super::record::GRANTS {
            return Err("too many revoked grants");
        }
        self.grants.forget(key, number);
        self.gone.push((key, number, self.next));
        Ok(())
    }

    /// Reports to the target the ended grants that outstanding requests no longer use. Returns whether there were any.
    fn answer_gone(&mut self, pending_frames: &mut PendingFrames) -> bool {
        if self.gone.is_empty() {
            return false;
        }
        let oldest = match &self.state {
            PairState::Up(lane) | PairState::Broken(lane, _) => lane.flights.front().map(|flight| flight.number),
            _ => None,
        };
        let before = self.gone.len();
        self.gone.retain(|&(key, id, posted)| {
            let over = is_unused(posted, oldest);
            if over {
                pending_frames
                    .push(Head { kind: FrameKind::Revoked, tag: FORGOTTEN, data: key, id, ..Head::default() }, &[]);
            }
            !over
        });
        self.gone.len() != before
    }

    /// Returns whether a queue pair is being created, or the device has stopped accepting requests.
    pub(super) const fn has_background_work(&self) -> bool {
        self.is_dead || matches!(self.state, PairState::Making(_) | PairState::Connecting(_))
    }

    /// Returns whether no access is outstanding.
    pub(super) fn is_calm(&self) -> bool {
        match &self.state {
            PairState::Up(lane) => lane.flights.is_empty(),
            PairState::Broken(..) => false,
            _ => true,
        }
    }

    pub(super) fn describe(&self) -> String {
        match &self.state {
            PairState::Up(_) => format!("RDMA to {} of its regions, {} accesses", self.grants.granted(), self.next),
            PairState::Off(why) => why.clone(),
            _ => format!("no queue pair for accesses now, {} accesses by RDMA", self.next),
        }
    }

    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn fail(&self) {
        let PairState::Up(lane) = &self.state else { panic!("no queue pair for accesses: {:?}", self.state) };
        lane.fail();
    }
}

impl Drop for Initiator {
    /// Destroys the queue pair first. After that no outstanding request uses its memory.
    fn drop(&mut self) {
        if let PairState::Up(lane) | PairState::Broken(lane, _) =
            std::mem::replace(&mut self.state, PairState::None(None))
        {
            let here = lane.is_here();
            let mut flights = lane.into_flights();
            if !here {
                return std::mem::forget(flights); // The registrations in use belong to the parent.
            }
            flights.iter_mut().for_each(|flight| self.local.end(&mut flight.uses));
        }
    }
}

/// Returns whether the peer's device refused the request. If so, all requests before it took place, and none after it
/// will.
const fn is_refused(status: i32) -> bool {
    matches!(status, status::REM_ACCESS_ERR | status::REM_INV_REQ_ERR | status::REM_OP_ERR)
}

/// Returns whether there was no answer. The lost answer may have been a refusal.
const fn is_unanswered(status: i32) -> bool {
    matches!(status, status::RETRY_EXC_ERR | status::RNR_RETRY_EXC_ERR)
}

/// Returns whether no outstanding request uses a grant that had ended when `posted` was the number of the next request.
/// `oldest` is the number of the oldest outstanding request.
fn is_unused(posted: u64, oldest: Option<u64>) -> bool {
    oldest.is_none_or(|oldest| posted <= oldest)
}

/// Returns the offset of an access in a granted region, if the access is allowed.
fn offset(grant: &AccessGrant, remote: &RemoteMemory, writes: bool) -> Option<u64> {
    let right = if writes { grant.writes } else { grant.reads };
    admit(right, (grant.base, grant.len), (remote.address, remote.len)).ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ended_grant_is_unused_after_the_last_request_before_its_end() {
        assert!(is_unused(0, None) && is_unused(7, None));
        assert!(!is_unused(7, Some(0)) && !is_unused(7, Some(6)));
        assert!(is_unused(7, Some(7)) && is_unused(7, Some(8)));
    }
}
