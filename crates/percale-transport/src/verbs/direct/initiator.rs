//! An initiator's side of a link: its queue pair for accesses, from being made to its end, and the accesses that go over it.

use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use super::super::makers::{self, Making};
use super::grants::Grants;
use super::lane::{Flight, Lane, Wanted};
use super::local::{Local, Pins};
use super::making::{self, Made};
use super::{ASKS, FORGOTTEN, Offered, Owed, Unposted, WireParts};
use crate::local_memory::volatile::{Segments, View, ViewExt as _};
use crate::region::{RemoteMemory, admit};
use crate::verbs::{Wire, errno_of, status};
use crate::wire::head::{Head, Kind};
use crate::wire::located::{Grant, LocatedBytes};
use crate::{Broken, Connection, PullError, Sink};

/// Bytes of one request at most, whatever the device allows.
const LONGEST: u64 = 32 << 20;
/// How long to do without a queue pair after the first one broke; twice as long after the next, and so on.
const PAUSE: Duration = Duration::from_millis(10);
/// How often that is doubled at most.
const DOUBLED: u32 = 4;
/// Accesses over a queue pair after which those that broke before it are forgotten.
const PROVEN: u64 = 64;

/// How far the queue pair is.
#[derive(Debug)]
enum State {
    /// None; not tried again before this time.
    None(Option<Instant>),
    /// Ours is being made.
    Making(Making<Made>),
    /// Ours was offered to the peer.
    Offered(Made),
    /// It is being connected.
    Connecting(Making<Made>),
    Up(Lane),
    /// No more is posted. When nothing is under way any more, these accesses are given back.
    Broken(Lane, Vec<Undone>),
    /// The peer refuses to have one.
    Off(String),
}

/// An access, or a part of one, that was not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Undone {
    token: u32,
    /// Perhaps it was made, and must not be so twice.
    lost: bool,
}

/// The initiator's side of a link: its queue pair and the accesses on it.
#[derive(Debug)]
pub(super) struct Initiator {
    state: State,
    /// What the queue pair is made with, once one was asked for.
    wire: Option<WireParts>,
    grants: Grants,
    local: Local,
    /// The number of the next request.
    next: u64,
    /// The number of the first request over this queue pair.
    first: u64,
    /// Queue pairs that broke since one proved to be good.
    broken: u32,
    /// The peer has reported that its end of the queue pair is in error.
    is_over: bool,
    /// A request got no answer for that reason: it is unknown how much was done of what was posted.
    unsure: bool,
    /// The device took no request, though there was room.
    is_dead: bool,
    /// Grants that are gone: key, the target's number, and the first request that was posted after the report.
    gone: Vec<(u64, u32, u64)>,
}

impl Initiator {
    pub(super) fn new(pins: &Pins) -> Self {
        Self {
            state: State::None(None),
            wire: None,
            grants: Grants::default(),
            local: Local::new(pins),
            next: 0,
            first: 0,
            broken: 0,
            is_over: false,
            unsure: false,
            is_dead: false,
            gone: Vec::new(),
        }
    }

    /// Returns whether an access to this memory can be posted. If the target was never asked, it is.
    pub(super) fn reaches(&mut self, wire: &WireParts, remote: &RemoteMemory, writes: bool, owed: &mut Owed) -> bool {
        if let State::None(pause) = self.state {
            if pause.is_none_or(|until| Instant::now() >= until) {
                let (parts, wire) = (wire.clone(), wire.clone());
                self.wire = Some(parts);
                let makers = wire.adapter.makers().clone();
                self.state = State::Making(Making::start(&makers, move || making::initiators(&wire)));
            }
            return false;
        }
        let up = matches!(self.state, State::Up(_)) && !self.is_over;
        match self.grants.find(remote.key, up) {
            Ok(grant) => up && offset(&grant, remote, writes).is_some(),
            Err(question) => {
                if let Some(id) = question {
                    owed.push(Head { kind: Kind::Locate, data: remote.key, id, ..Head::default() }, &[]);
                }
                false
            }
        }
    }

    /// Bytes of one request at most.
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
    ) -> Result<(), Unposted> {
        let (State::Up(lane), Some(wire), false) = (&mut self.state, &self.wire, self.is_over) else {
            return Err(Unposted::Unreachable);
        };
        let grant = self.grants.find(remote.key, false).map_err(|_| Unposted::Unreachable)?;
        let offset = offset(&grant, remote, writes).ok_or(Unposted::Unreachable)?;
        // The grant's own range fits 64 bits, and this lies in it.
        let address = grant.address.wrapping_add(offset);
        let wanted = Wanted { writes, key: remote.key, grant: &grant, address, local, token };
        let posted = lane.post(self.next, &wanted, &mut self.local, &wire.adapter);
        self.is_dead |= posted == Err(Unposted::Broken);
        posted?;
        self.next += 1;
        if self.next - self.first == PROVEN {
            self.broken = 0;
        }
        Ok(())
    }

    /// The queue pair takes no more, for this one was not done.
    fn failed(&mut self, undone: Option<Undone>) {
        if let State::Up(lane) = std::mem::replace(&mut self.state, State::None(None)) {
            lane.fail();
            self.state = State::Broken(lane, undone.into_iter().collect());
        }
    }

    /// The peer's end of the queue pair is in error: nothing that is posted is done any more.
    pub(super) fn over(&mut self) {
        match self.state {
            State::Up(_) => self.is_over = true,
            State::Connecting(_) => self.state = self.again(),
            _ => {} // It is of one that is over for us, too.
        }
    }

    /// If the peer's end is in error, ends ours as soon as all that is under way can be made again. What cannot may have been acknowledged or
    /// refused before, which is soon known; else the device gives up.
    pub(super) fn retire(&mut self) {
        if let State::Up(lane) = &self.state
            && self.is_over
            && lane.flights.iter().all(|flight| flight.reads || self.is_gone(flight))
        {
            self.failed(None);
        }
    }

    /// Takes completions. Returns whether there were any.
    ///
    /// # Errors
    /// If the connection cannot go on, because it is unknown what was done.
    pub(super) fn completions(
        &mut self,
        me: Connection,
        wire: &mut Wire,
        sink: &mut impl Sink,
    ) -> Result<bool, Broken> {
        if self.is_dead {
            return Err(Broken::Died("its device takes no accesses".into()));
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
        me: Connection,
        sink: &mut impl Sink,
    ) -> Result<(), Broken> {
        let (State::Up(lane) | State::Broken(lane, _)) = &mut self.state else { return Ok(()) };
        match lane.flights.front() {
            Some(first) if first.number == number => {}
            // Of a queue pair that is gone.
            _ if number < self.first => return Ok(()),
            _ => return Err(Broken::Protocol("the device completed an access that was not under way".into())),
        }
        let Some(flight) = lane.over(status == 0, &self.local) else { return Ok(()) };
        if status == 0 {
            sink.assisted(me, flight.token, Ok(()));
            return Ok(());
        }
        // Behind one that was refused nothing is done.
        let lost = self.unsure && !flight.reads && !self.is_gone(&flight);
        if let State::Broken(_, back) = &mut self.state {
            back.push(Undone { token: flight.token, lost });
            return Ok(());
        }
        if is_refused(status) || is_unanswered(status) && self.may_repeat(&flight) {
            // What is refused will be asked about anew.
            self.grants.forget(flight.grant.0, flight.grant.1);
            self.failed(Some(Undone { token: flight.token, lost: false }));
            return Ok(());
        }
        if is_unanswered(status) && self.is_over {
            self.unsure = true;
            let lost = !flight.reads && !self.is_gone(&flight);
            self.failed(Some(Undone { token: flight.token, lost }));
            return Ok(());
        }
        let why = wire.explain(status);
        Err(match is_unanswered(status) {
            true => Broken::Timeout(format!("its device did not answer: {why}")),
            false => Broken::Died(format!("an access failed: {why}")),
        })
    }

    /// Returns whether an access that got no answer, and all accesses behind it, can be made again. The target has reported that the grant of the
    /// access is gone, so the access may have been refused. If it was not, it cannot be observed that they are made twice: all accesses behind it
    /// are reads, or by grants that are gone.
    fn may_repeat(&self, flight: &Flight) -> bool {
        let State::Up(lane) = &self.state else { return false };
        self.is_gone(flight) && lane.flights.iter().all(|flight| flight.reads || self.is_gone(flight))
    }

    /// Returns whether the target has reported that the grant of an access is gone.
    fn is_gone(&self, flight: &Flight) -> bool {
        self.gone.iter().any(|&(key, number, _)| (key, number) == flight.grant)
    }

    /// Gives back what was not done, the last posted first, if the queue pair broke and nothing is under way any more. Returns whether it did so.
    pub(super) fn give_back(&mut self, me: Connection, sink: &mut impl Sink) -> bool {
        if !matches!(&self.state, State::Broken(lane, _) if lane.flights.is_empty()) {
            return false;
        }
        let none = self.again();
        let State::Broken(lane, back) = std::mem::replace(&mut self.state, none) else { return false };
        match &self.wire {
            Some(wire) => makers::end(wire.adapter.makers(), lane),
            None => drop(lane),
        }
        // The parts of an access were posted one behind the other.
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

    /// Advances the queue pair that is being made, and reports which grants are forgotten. Returns whether anything happened.
    pub(super) fn go_on(&mut self, owed: &mut Owed) -> bool {
        let any = self.answer_gone(owed);
        let (State::Making(making) | State::Connecting(making)) = &self.state else { return any };
        let Some(result) = making.result() else { return any };
        let is_first = matches!(self.state, State::Making(_));
        self.state = match result {
            Ok(made) if is_first => {
                owed.offer(ASKS, &Ok(made.ours));
                State::Offered(made)
            }
            Ok(made) => {
                self.first = self.next;
                (self.is_over, self.unsure) = (false, false);
                State::Up(Lane::new(made.pair))
            }
            Err(error) => {
                crate::later::later!(warn: %error, "no queue pair for accesses: peers' processors execute them");
                match errno_of(&error) {
                    libc::EPERM => State::Off("this device allows too little for accesses".to_owned()),
                    _ => self.again(),
                }
            }
        };
        true
    }

    /// Returns the state without a queue pair, with the pause before another one is made.
    fn again(&mut self) -> State {
        let pause = PAUSE * (1 << self.broken.min(DOUBLED));
        self.broken += 1;
        State::None(Some(Instant::now() + pause))
    }

    /// The peer has its end, or none.
    pub(super) fn answered(&mut self, wire: &WireParts, offered: Offered) -> Result<(), &'static str> {
        match std::mem::replace(&mut self.state, State::None(None)) {
            State::Offered(made) => {
                self.state = match offered {
                    Ok(peer) => {
                        let makers = wire.adapter.makers().clone();
                        State::Connecting(Making::start(&makers, move || making::connect(made, &peer)))
                    }
                    Err(errno) => {
                        makers::end(wire.adapter.makers(), made);
                        let error = std::io::Error::from_raw_os_error(errno.cast_signed());
                        crate::later::later!(debug: %error, "the peer has no queue pair for accesses");
                        if errno == libc::EPERM.cast_unsigned() {
                            State::Off("the peer executes all accesses".to_owned())
                        } else {
                            self.again()
                        }
                    }
                };
                Ok(())
            }
            other => {
                self.state = other;
                Err("the other end of a queue pair that was not offered")
            }
        }
    }

    /// Handles the target's answer to the question where a region lies.
    pub(super) fn located(&mut self, question: u32, payload: View<'_>) -> Result<(), &'static str> {
        let mut bytes = [0; size_of::<LocatedBytes>()];
        let whole = payload.len() == bytes.len() && payload.read_into(&mut bytes) == bytes.len();
        let read = LocatedBytes::read_from_bytes(&bytes).ok().filter(|_| whole);
        let located = read.and_then(|read| read.parse()).ok_or("a region that lies nowhere")?;
        self.grants.learn(question, &located)
    }

    /// A grant is gone.
    pub(super) fn revoked(&mut self, number: u32, key: u64) -> Result<(), &'static str> {
        if self.gone.len() >= super::record::GRANTS {
            return Err("more grants are gone than there were");
        }
        self.grants.forget(key, number);
        self.gone.push((key, number, self.next));
        Ok(())
    }

    /// Reports to the target which of the grants that are gone are no longer named by anything under way. Returns whether there were any.
    fn answer_gone(&mut self, owed: &mut Owed) -> bool {
        if self.gone.is_empty() {
            return false;
        }
        let oldest = match &self.state {
            State::Up(lane) | State::Broken(lane, _) => lane.flights.front().map_or(u64::MAX, |flight| flight.number),
            _ => u64::MAX,
        };
        let before = self.gone.len();
        self.gone.retain(|&(key, id, posted)| {
            let over = posted <= oldest;
            if over {
                owed.push(Head { kind: Kind::Revoked, tag: FORGOTTEN, data: key, id, ..Head::default() }, &[]);
            }
            !over
        });
        self.gone.len() != before
    }

    /// Returns whether a queue pair is being made, or takes nothing any more.
    pub(super) const fn has_chores(&self) -> bool {
        self.is_dead || matches!(self.state, State::Making(_) | State::Connecting(_))
    }

    /// Returns whether nothing is under way.
    pub(super) fn is_calm(&self) -> bool {
        match &self.state {
            State::Up(lane) => lane.flights.is_empty(),
            State::Broken(..) => false,
            _ => true,
        }
    }

    pub(super) fn describe(&self) -> String {
        match &self.state {
            State::Up(_) => format!("RDMA to {} of its regions, {} accesses", self.grants.granted(), self.next),
            State::Off(why) => why.clone(),
            _ => format!("no queue pair for accesses now, {} accesses by RDMA", self.next),
        }
    }

    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn fail(&self) {
        let State::Up(lane) = &self.state else { panic!("no queue pair for accesses: {:?}", self.state) };
        lane.fail();
    }
}

impl Drop for Initiator {
    /// The queue pair goes first: then nothing of what was under way uses its memory.
    fn drop(&mut self) {
        if let State::Up(lane) | State::Broken(lane, _) = std::mem::replace(&mut self.state, State::None(None)) {
            let here = lane.is_here();
            let mut flights = lane.into_flights();
            if !here {
                return std::mem::forget(flights); // Its uses are the parent's.
            }
            flights.iter_mut().for_each(|flight| self.local.end(&mut flight.uses));
        }
    }
}

/// Returns whether the peer's device refused a request: then it did all before it and does nothing after it.
const fn is_refused(status: i32) -> bool {
    matches!(status, status::REM_ACCESS_ERR | status::REM_INV_REQ_ERR | status::REM_OP_ERR)
}

/// Returns whether no answer came. A refusal may have been lost, too.
const fn is_unanswered(status: i32) -> bool {
    matches!(status, status::RETRY_EXC_ERR | status::RNR_RETRY_EXC_ERR)
}

/// Returns the offset in a granted region at which an access begins, if it may be made.
fn offset(grant: &Grant, remote: &RemoteMemory, writes: bool) -> Option<u64> {
    let right = if writes { grant.writes } else { grant.reads };
    admit(right, (grant.base, grant.len), (remote.address, remote.len)).ok()
}
