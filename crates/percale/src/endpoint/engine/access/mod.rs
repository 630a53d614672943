//! One-sided operations, at the initiator.
//!
//! An access is made in one of three ways. *Directly*: over a shared-memory link the initiator reaches the peer's region by itself, and the
//! access is mostly over within the call. *By RDMA*: a device makes the access (`rdma`). *Executed*: the target makes the access at its
//! progress. Then the access is cut into parts, each of which is one request frame and ends with one answer ([`Kind::Done`] or
//! [`Kind::ReadData`]) or with the end of a pull. Short data is sent in its frame, over a stream also longer data. A long write is offered
//! by the initiator and pulled by the target. A long read is offered by the target and pulled by the initiator, or, over a stream, expected
//! by the initiator and sent at once.
//!
//! Order: one way at a time. While executed accesses to a peer are outstanding, later ones to it are executed as well, and frames are
//! handled in order. Only long parts are performed out of that order, at some time after their frames were handled: an access to the same
//! bytes waits for them (unless both read), and a message waits for all long writes. So accesses to the same bytes of a region, and messages
//! after writes, take effect in the order in which they were posted.
//!
//! Invariants:
//! 1. An access that was started is in `accesses` until its last part has ended; a part is in `parts` until it has been answered and no
//!    transport reads its memory any more.
//! 2. Parts that a peer names are checked to be its own.
//! 3. After the first refusal no further part of an access leaves; the access ends when the parts that had left are answered.

mod issue;
mod rdma;
mod what;

use std::borrow::Cow;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

pub(super) use self::issue::execute;
pub(super) use self::rdma::{Course, by_rdma};
use self::what::Tell;
pub(super) use self::what::Told;
pub(crate) use self::what::{Waiting, What};
pub(super) use self::what::{atomic_entry, atomic_kind, rma_entry, word_entry};
use super::arrive::Asked;
use super::core::Core;
use super::types::{Action, Notify, Side};
use crate::completion::entry::{Entry, ErrorCode, ErrorEntry};
use crate::endpoint::posted::Posted;
use crate::local_memory::access::RefusalExt as _;
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::region::{Refusal, RemoteMemory};
use crate::table::Id;
use crate::transport::any::AnyLink;
use crate::transport::{Connection, Link, PullError, Refused};
use crate::wire::head::{Counts, Flags, Head, Kind, Notice, Offer, RMA_EAGER, ReadHead};

/// The maximum length of a part, in bytes: the amount that a target may have to hold for it.
pub(crate) const PART_LIMIT: u64 = 32 << 20;

/// Bits in the numbers by which peers name operations other than sends. They select the table.
pub(crate) const PART: u32 = 1 << 31;
pub(crate) const SERVE: u32 = 1 << 30;

/// An access that is being executed.
#[derive(Debug)]
pub(crate) struct Execution {
    to: Connection,
    notify: Notify,
    /// The operation, with the memory that it uses: transports use that memory until the last part has ended.
    posted: Box<Posted<What>>,
    /// Parts that have not ended, and one more while not all have left.
    left: u32,
    error: Option<(ErrorCode, Cow<'static, str>)>,
    /// The notice that the target gets once all parts are there.
    tell: Option<Tell>,
    /// Whether messages wait for it: some part is a long write, or it is a write by RDMA.
    long: bool,
    /// Whether it is made by RDMA.
    direct: bool,
}

impl Execution {
    /// Creates an execution before any of its parts has left.
    const fn new(to: Connection, notify: Notify, posted: Box<Posted<What>>) -> Self {
        Self { to, notify, posted, left: 1, error: None, tell: None, long: false, direct: false }
    }

    pub(super) fn entry(&self) -> Entry {
        self.posted.work().entry()
    }

    pub(super) const fn notify(&self) -> Notify {
        self.notify
    }
}

/// A part that the target performs at some time after it handled the frame. Accesses that overlap it have to wait, unless both read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Long {
    peer: Connection,
    /// Its entry in `parts`.
    part: Id<Part>,
    remote: RemoteMemory,
    writes: bool,
}

impl Long {
    /// Returns whether an access to `other` must not overtake this one.
    fn meets(&self, other: &RemoteMemory, writes: bool) -> bool {
        let (ours, theirs) = (&self.remote, other);
        // Not the sums of address and length, which may wrap.
        let overlap = ours.address.wrapping_sub(theirs.address) < theirs.len
            || theirs.address.wrapping_sub(ours.address) < ours.len;
        ours.key == theirs.key && overlap && (writes || self.writes)
    }
}

/// One request to the target.
#[derive(Debug)]
pub(crate) struct Part {
    pub(super) access: Id<Execution>,
    pub(super) to: Connection,
    /// The local memory: the bytes that are written, or where results go.
    pub(super) local: Segments,
    /// The key of the region.
    key: u64,
    /// Whether a transport uses `local`: it reads from it to serve a pull, or fetches into it.
    pub(super) pushing: bool,
    /// Whether the target has asked for the bytes of a long write. It does so once.
    asked: bool,
    /// The answer of the target, if a transport still reads `local`.
    answered: Option<Result<(), Refusal>>,
    takes_data: bool,
}

/// The part of a local access that a peer names.
enum NamedPart {
    /// One of its parts.
    Here(Id<Part>),
    /// A part that has ended, or that is another peer's.
    Gone,
    /// No part at all.
    None,
}

/// Returns the refusal that the failure of a transfer from or to a region means.
const fn pull_refusal(error: PullError) -> Refusal {
    match error {
        PullError::Fault | PullError::Unknown => Refusal::Fault,
        PullError::Gone | PullError::Revoked => Refusal::Key,
        PullError::Refused(refusal) => refusal,
    }
}

/// Returns the error code of a refusal.
pub(super) fn refused_code(refusal: Refusal) -> ErrorCode {
    refusal.code()
}

impl Core {
    /// Returns the number of bytes of long parts that a peer has yet to transfer.
    fn long_bytes(&self, slot: Connection) -> u64 {
        self.long.iter().filter(|long| long.peer == slot).map(|long| long.remote.len).sum()
    }

    /// Returns whether an access must wait for a long part of an access that was posted before it.
    fn meets_long(&self, slot: Connection, what: &What) -> bool {
        let writes = what.changes();
        self.long.iter().any(|long| long.peer == slot && what.pieces().iter().any(|piece| long.meets(piece, writes)))
    }

    /// Sends the request of a read. Over a stream, the pull that takes the bytes of a long read begins at once.
    fn send_read(&mut self, link: &mut AnyLink, mut head: Head, local: &Segments) -> Result<(), Refused> {
        let expected = (local.len() > RMA_EAGER && link.is_stream()).then(|| self.pulls.next_id().to_wire());
        let payload = ReadHead {
            len: U64::new(local.len() as u64),
            expected: U64::new(expected.map_or(0, |token| u64::from(token) + 1)),
        };
        head.len = size_of::<ReadHead>() as u32;
        Segments::lend(payload.as_bytes(), |payload| link.send(&head, payload, false))?;
        if expected.is_some()
            && let Some(id) = self.parts.find_wire(head.id & !PART)
        {
            let part = &mut self.parts[id];
            part.pushing = true; // A transport uses its memory.
            let token = self.pulls.insert(super::types::Pull::Fetch { from: part.to, part: id }).to_wire();
            link.expect(&Lease::own(local), token);
        }
        Ok(())
    }

    /// Returns the access that a link names.
    fn access_of(&self, from: Connection, wire: u32) -> Option<Id<Execution>> {
        let id = self.accesses.find_wire(wire)?;
        (self.accesses[id].to == from).then_some(id)
    }

    /// Returns the part that a peer names.
    fn part_of(&self, from: Connection, wire: u32) -> NamedPart {
        if wire & PART == 0 {
            return NamedPart::None;
        }
        match self.parts.find_wire(wire & !PART) {
            Some(id) if self.parts[id].to == from => NamedPart::Here(id),
            _ => NamedPart::Gone,
        }
    }

    /// Records the generation of the region that the answer to a part carries, if the target is to get a notice of the access later.
    fn learn(&mut self, id: Id<Part>, answer: &Head) {
        let Part { access, key, .. } = self.parts[id];
        if answer.flags.contains(Flags::DATA)
            && let Some(tell) = self.accesses.get_mut(access).and_then(|access| access.tell.as_mut())
        {
            tell.learn(key, answer.data);
        }
    }

    /// Handles a [`Kind::Done`] frame.
    pub(super) fn done(&mut self, from: Connection, head: &Head) {
        let result = match (head.tag, Refusal::from_number(head.tag)) {
            (0, _) => Ok(()),
            (_, Some(refusal)) => Err(refusal),
            (_, None) => return self.peers.accuse(from, "a refusal that does not exist"),
        };
        let id = match self.part_of(from, head.id) {
            NamedPart::Here(id) => id,
            NamedPart::Gone => return,
            NamedPart::None => return self.peers.accuse(from, "an answer to an access that nobody asked for"),
        };
        self.learn(id, head);
        let part = &mut self.parts[id];
        if result.is_ok() && part.takes_data {
            return self.peers.accuse(from, "the end of a read without its bytes");
        }
        if part.takes_data && part.pushing {
            return self.peers.accuse(from, "an answer to a read that is being fetched");
        }
        if part.pushing {
            part.answered = Some(result);
        } else {
            self.part_over(id, result);
        }
    }

    /// Handles a [`Kind::ReadData`] frame.
    pub(super) fn read_data(&mut self, from: Connection, head: &Head, payload: View<'_>) {
        let id = match self.part_of(from, head.id) {
            NamedPart::Here(id) if self.parts[id].takes_data && !self.parts[id].pushing => id,
            NamedPart::Gone => return,
            _ => return self.peers.accuse(from, "bytes that nobody reads"),
        };
        let part = &self.parts[id];
        if payload.len() != part.local.len() {
            return self.peers.accuse(from, "more or fewer bytes than were to be read");
        }
        payload.copy_into(&part.local, 0);
        self.learn(id, head);
        self.part_over(id, Ok(()));
    }

    /// Handles a [`Kind::ReadOffer`] frame: the bytes are to be fetched.
    pub(super) fn read_offered(&mut self, from: Connection, head: &Head, payload: View<'_>) {
        let id = match self.part_of(from, head.id) {
            NamedPart::Here(id) if self.parts[id].takes_data && !self.parts[id].pushing => id,
            // What it offers is told by its pull.
            NamedPart::Gone => return,
            _ => return self.peers.accuse(from, "an offer of bytes that nobody reads"),
        };
        let part = &mut self.parts[id];
        let Some(offer) = payload.read::<Offer>(0).filter(|offer| offer.len.get() == part.local.len() as u64) else {
            return self.peers.accuse(from, "an offer of other bytes than were to be read");
        };
        part.pushing = true; // A transport uses its memory.
        let into = Lease::own(&part.local);
        let token = self.pulls.insert(super::types::Pull::Fetch { from, part: id }).to_wire();
        self.peers.push(from, Action::Pull { id: head.tag as u32, offer, into, token });
    }

    /// Ends the part of a long read that was fetched, or that could not be.
    pub(super) fn fetched(&mut self, part: Id<Part>, result: Result<u64, PullError>) {
        self.part_over(part, result.map(drop).map_err(pull_refusal));
    }

    /// Handles the target's request for the bytes of a long write.
    pub(super) fn write_asked(&mut self, from: Connection, wire: u32) -> Asked {
        let NamedPart::Here(id) = self.part_of(from, wire) else { return Asked::Gone };
        let part = &mut self.parts[id];
        if part.takes_data || part.asked {
            return Asked::Nothing;
        }
        (part.asked, part.pushing) = (true, true);
        Asked::Source(Lease::own(&part.local))
    }

    /// Handles the end of a push: no transport reads the bytes of this long write any more.
    pub(super) fn write_pushed(&mut self, from: Connection, wire: u32) {
        let NamedPart::Here(id) = self.part_of(from, wire) else { return };
        let part = &mut self.parts[id];
        part.pushing = false;
        if let Some(result) = part.answered {
            self.part_over(id, result);
        }
    }

    /// Ends a part.
    fn part_over(&mut self, id: Id<Part>, result: Result<(), Refusal>) {
        let Some(part) = self.parts.remove(id) else { return };
        self.long.retain(|long| long.part != id); // Not when its access ends: that may have parts that wait for this one.
        self.peers.get_mut(part.to).part_ended();
        self.access_step(part.access, result.map_err(|refusal| (refused_code(refusal), refusal.to_string().into())));
    }

    /// Counts one of the events for which an access waits. The last event completes the access.
    fn access_step(&mut self, id: Id<Execution>, result: Result<(), (ErrorCode, Cow<'static, str>)>) {
        let Some(access) = self.accesses.get_mut(id) else { return };
        access.left -= 1;
        if let Err(error) = result {
            access.error.get_or_insert(error);
        }
        if access.left > 0 {
            return;
        }
        let Some(Execution { to, notify, posted, error, tell, .. }) = self.access_ended(id) else { return };
        let entry = posted.work().entry();
        match error {
            None => {
                if let Some(tell) = tell {
                    self.tell(to, &tell);
                }
                self.complete(Side::Transmit, notify, entry);
            }
            Some((code, why)) => self.fail(Side::Transmit, notify, ErrorEntry::new(entry, code).with_text(why)),
        }
    }

    /// Removes an access that has ended, or that is to be restarted.
    fn access_ended(&mut self, id: Id<Execution>) -> Option<Execution> {
        let access = self.accesses.remove(id)?;
        let peer = self.peers.get_mut(access.to);
        if access.direct {
            peer.rdma_ended(access.long)
        } else {
            peer.execution_ended(access.long)
        }
        Some(access)
    }

    /// Notifies the target of what it cannot know by itself: one notice for each region, of which the last also carries what the endpoint
    /// counts, and the data.
    fn tell(&mut self, to: Connection, tell: &Tell) {
        let regions = tell.regions();
        let counted = self.peers.get(to).counts() & tell.counts;
        for (at, region) in regions.iter().enumerate() {
            let (told, counted) = if at + 1 == regions.len() { (tell.told, counted) } else { (None, Counts::empty()) };
            self.wrote(to, *region, tell.counts & Counts::REGION | counted, told);
        }
    }

    /// Notifies the target that its region with this key and this generation was accessed, if it counts or reports that.
    pub(super) fn wrote(&mut self, to: Connection, (key, generation): (u64, u64), counts: Counts, told: Option<Told>) {
        if counts.is_empty() && told.is_none() {
            return;
        }
        let mut flags = Flags::ID;
        flags.set(Flags::DATA, told.is_some());
        self.peers.get_mut(to).notice_queued();
        let Told { data, len } = told.unwrap_or(Told { data: 0, len: 0 });
        let head =
            Head { kind: Kind::Wrote, flags, len: size_of::<Notice>() as u32, tag: key, data, id: counts.bits() };
        let notice = Notice { generation: U64::new(generation), len: U64::new(len) };
        self.peers.push(to, Action::Notice(head, notice));
    }

    /// Begins a long access that this endpoint makes itself with the target's help. Returns its number, or `None` if it had begun already.
    pub(super) fn start_assisted(
        &mut self,
        slot: Connection,
        waiting: &mut Waiting,
        notify: Notify,
        (generation, counts): (u64, Counts),
    ) -> Option<Id<Execution>> {
        let posted = waiting.start(self.accesses.next_id())?;
        let what = posted.work();
        let tell = (!counts.is_empty() || what.data().is_some()).then(|| {
            let mut tell = what.tell(counts);
            what.pieces().iter().for_each(|piece| tell.learn(piece.key, generation));
            tell
        });
        self.peers.get_mut(slot).execution_started();
        Some(self.accesses.insert(Execution { tell, ..Execution::new(slot, notify, posted) }))
    }

    /// Removes such an access that ended in the call that began it, and is reported there, or of which nothing could leave.
    pub(super) fn withdraw_assisted(&mut self, slot: Connection, waiting: &mut Waiting, id: Id<Execution>) {
        if let Some(access) = self.accesses.remove(id) {
            waiting.begin_anew(access.posted);
        }
        self.peers.get_mut(slot).execution_ended(false);
    }

    /// Ends such an access.
    pub(super) fn assisted_end(&mut self, from: Connection, wire: u32, result: Result<(), PullError>) {
        if let Some(id) = self.access_of(from, wire) {
            let result = result.map_err(|error| match error {
                PullError::Unknown => {
                    (ErrorCode::TimedOut, "the peer's queue pair failed: whether it was written is not known".into())
                }
                other => {
                    let refusal = pull_refusal(other);
                    (refused_code(refusal), refusal.to_string().into())
                }
            });
            self.access_step(id, result);
        }
    }

    /// Fails the accesses that were being executed over a connection that is gone.
    pub(super) fn accesses_down(&mut self, from: Connection, error: ErrorCode, why: &str) {
        self.parts.retain(|_, part| part.to != from);
        self.long.retain(|long| long.peer != from);
        let gone: Vec<_> = self.accesses.iter().filter(|(_, a)| a.to == from).map(|(id, _)| id).collect();
        for id in gone {
            let Some(access) = self.accesses.remove(id) else { continue };
            let failure = ErrorEntry::new(access.entry(), error).with_text(why.to_owned());
            self.fail(Side::Transmit, access.notify, failure);
        }
    }
}
