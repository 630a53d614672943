//! Groups: posting their operations, and the steps of those (see [`collective`](crate::collective)).
//!
//! Only the first operation of a group runs. Its transfers end here ([`Core::collective_over`]); when the last that it waits for has, the group
//! is put in the list of those that can go on, and the outbox is asked to see to it when the links are done with. Nothing here is on the path
//! of any other message.

use super::Engine;
use super::core::Core;
use super::peers::State;
use super::send::transmit_collective;
use super::types::{Action, Notify, Pending, Place as Into, Receive, Side, Work};
use crate::address::PeerAddress;
use crate::collective::{Collective, CollectiveWork, Group, GroupId, MEMBER_LIMIT, Place, Running, Step, combines};
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::completion::event::Event;
use crate::endpoint::matching::{Pattern, Source};
use crate::endpoint::work::{OpFlags, PostError, SendWork};
use crate::memory::atomic::{AtomicOp, Datatype};
use crate::memory::buffer::Buffer;
use crate::memory::sealed;
use crate::memory::volatile::{Segment, Segments};
use crate::transport::Connection;
use crate::transport::any::AnyLink;
use crate::wire::head::{ABORT, Head, Kind};

/// Scratch from this size on is memory that peers can map.
const SEALED: usize = 16 << 10;

/// The context of messages that nobody waits for.
const NOBODY: u64 = u64::MAX;

impl Engine {
    /// Joins a group of these members, of which this endpoint is one. That has ended when all have joined.
    pub(crate) fn join_group(
        &mut self,
        members: &[PeerAddress],
        context: u64,
        notify: Notify,
    ) -> Result<GroupId, PostError> {
        if !self.process.is_here() {
            return Err(PostError::Forked);
        }
        if self.role.is_some() || self.core.peers.single {
            return Err(PostError::Collective("groups are of endpoints that exchange messages with anybody"));
        }
        if members.len() > MEMBER_LIMIT {
            return Err(PostError::Collective("a group of more members than groups have"));
        }
        let slots = members
            .iter()
            .map(|member| self.core.peers.resolve(*member).map_err(|error| super::receive::unresolved(error, *member)));
        let slots = slots.collect::<Result<Box<[Connection]>, _>>()?;
        let addresses: Vec<_> = slots.iter().map(|slot| self.core.peers.get(*slot).address).collect();
        let own = self.address;
        let rank = addresses.iter().position(|address| *address == own);
        let rank = rank.ok_or(PostError::Collective("the endpoint is no member of the group that it is to join"))?;
        if (1..slots.len()).any(|at| slots[..at].contains(&slots[at])) {
            return Err(PostError::Collective("a member is in the group twice"));
        }
        // From now on what ends may be a group's; other endpoints do not look.
        (self.core.transmit.counted, self.core.receive.counted) = (true, true);
        let index = self.core.collectives.open(&addresses, slots, rank);
        let id = self.core.collectives.groups[index].id;
        let work = CollectiveWork {
            group: id,
            what: Collective::Barrier,
            op: AtomicOp::Sum,
            datatype: Datatype::U8,
            count: 0,
            source: Segment::EMPTY,
            result: Segment::EMPTY,
            context,
            flags: OpFlags::empty(),
        };
        self.start_collective(index, &work, notify, true);
        Ok(id)
    }

    /// The application is done with a group. What it has posted still ends.
    pub(crate) fn leave_group(&mut self, id: GroupId) {
        if self.core.collectives.get(id).is_none() {
            return;
        }
        let group = &mut self.core.collectives.groups[id.index as usize];
        group.left = true;
        if group.queue.is_empty() {
            self.core.collectives.close(id.index as usize);
        }
    }

    /// Posts an operation of a group.
    pub(crate) fn post_collective(&mut self, work: &CollectiveWork, notify: Notify) -> Result<(), PostError> {
        if !self.process.is_here() {
            return Err(PostError::Forked);
        }
        let group = self.core.collectives.get(work.group).ok_or(PostError::NoGroup)?;
        check(work, group.members.len(), group.rank)?;
        self.core.reserve(Side::Transmit, notify).map_err(|_| PostError::Again)?;
        self.start_collective(work.group.index as usize, work, notify, false);
        Ok(())
    }

    fn start_collective(&mut self, index: usize, work: &CollectiveWork, notify: Notify, joins: bool) {
        let group = &mut self.core.collectives.groups[index];
        let bytes = work.bytes().unwrap_or(0);
        // Once all have joined, both know the same of the link between them.
        let near = match *group.members {
            [first, second] if !joins => {
                let other = if group.rank == 0 { second } else { first };
                matches!(self.links.get(other as usize), Some(Some(AnyLink::Shm(_))))
            }
            _ => false,
        };
        let mut program = std::mem::take(&mut group.spare);
        let kind = (work.what, work.count, work.datatype, work.op);
        if program.made_for.is_none_or(|(known, _)| known != kind) {
            program.near = near;
            program.write(work.what, group.members.len(), group.rank, work.count, work.datatype);
            program.made_for = Some((kind, Group::shape(work)));
        }
        let (mut result, mut own) = (work.result.slice(0, bytes), None);
        if work.what.combines() {
            // Who gets no result still combines what others send, unless nobody does.
            let combines = program.steps.iter().any(|step| matches!(step, Step::Fold { .. }));
            if result.len() < bytes && combines {
                let mut buffer = scratch(bytes);
                result = buffer.segment_for_receive().unwrap_or(Segment::EMPTY);
                own = Some(buffer);
            }
        }
        group.sequence = group.sequence.wrapping_add(1);
        let sequence = group.sequence;
        let data = program.made_for.map_or(0, |(_, shape)| shape) | u64::from(sequence);
        let CollectiveWork { op, datatype, context, .. } = *work;
        let running = Running {
            program,
            at: 0,
            outstanding: 0,
            waiting: false,
            source: work.source.slice(0, bytes),
            result,
            own,
            op,
            datatype,
            sequence,
            data,
            bytes,
            context,
            notify,
            joins,
        };
        group.queue.push_back(running);
        if group.queue.len() == 1 {
            self.core.collectives.ready.push_back(index);
            self.advance_groups();
        }
    }

    /// Lets groups go on that can.
    #[cold]
    pub(super) fn advance_groups(&mut self) {
        if std::mem::replace(&mut self.core.collectives.running, true) {
            return; // Somebody further up does.
        }
        while let Some(index) = self.core.collectives.ready.pop_front() {
            self.advance(index);
        }
        self.core.collectives.running = false;
    }

    fn advance(&mut self, index: usize) {
        loop {
            let Some(group) = self.core.collectives.groups.get_mut(index) else { return };
            if group.broken.is_some() {
                return self.wind_up(index);
            }
            let Some(running) = group.queue.front_mut() else {
                if group.left {
                    self.core.collectives.close(index);
                }
                return;
            };
            let Some(step) = running.program.steps.get(running.at).copied() else {
                self.core.collective_done(index);
                continue;
            };
            if step == Step::Settle && running.outstanding > 0 {
                running.waiting = true;
                return;
            }
            running.waiting = false;
            running.at += 1;
            match step {
                Step::Settle => {}
                Step::Send { to, place, at, len } => {
                    running.outstanding += 1;
                    let from = if place == Place::Source { running.source } else { running.result };
                    let segments = Segments::one(from.slice(at, len));
                    let context = context_of(index, running.sequence);
                    let (tag, data, slot) = (group.tag, running.data, group.members[to]);
                    self.send_to_member(slot, segments, (tag, data), context);
                }
                Step::Receive { from, place, at, len } => {
                    running.outstanding += 1;
                    let wanted = running.program.scratch;
                    let segment = match place {
                        Place::Result | Place::Source => running.result.slice(at, len),
                        Place::Scratch => {
                            if group.scratch.len() < wanted {
                                group.scratch = scratch(wanted);
                            }
                            group.scratch.segment_for_receive().map_or(Segment::EMPTY, |all| all.slice(at, len))
                        }
                    };
                    let context = context_of(index, running.sequence);
                    let (tag, slot) = (group.tag, group.members[from]);
                    self.receive_from_member(index, slot, segment, tag, context);
                }
                Step::Fold { place, at, from, len, theirs_first } => {
                    self.core.fold(index, place, (at, from, len), theirs_first);
                }
                Step::Copy { len } => {
                    let (from, to) = (running.source.slice(0, len), running.result.slice(0, len));
                    Segments::one(to).copy_from(&Segments::one(from));
                }
            }
        }
    }

    fn send_to_member(&mut self, slot: Connection, segments: Segments, (tag, data): (u64, u64), context: u64) {
        let (tag, data, flags) = (Some(tag), Some(data), OpFlags::empty());
        let work = SendWork { peer: PeerAddress::UNSPECIFIED, segments, tag, data, context, flags };
        let peer = self.core.peers.get(slot);
        if peer.state == State::Up
            && peer.pending.is_empty()
            && let Some(Some(link)) = self.links.get_mut(slot as usize)
            && transmit_collective(link, &mut self.core, slot, &work, Notify::Collective).is_ok()
        {
            return self.poller.sent(slot, link);
        }
        let pending = Pending { work: Work::Collective(work), notify: Notify::Collective, _copy: None };
        self.core.peers.get_mut(slot).pending.push_back(pending);
        if self.core.peers.get(slot).state == State::Idle {
            self.start_connecting(slot);
        }
        self.drain(slot);
    }

    fn receive_from_member(&mut self, index: usize, slot: Connection, segment: Segment, tag: u64, context: u64) {
        let pattern = Pattern { tag, ignore: 0, source: Source::From(slot.into()) };
        let receive = Receive { place: Into::One(segment), context, notify: Notify::Collective, multi: None };
        let messages = &mut self.core.collectives.messages;
        if let Some(message) = messages.find(&pattern).and_then(|held| messages.take(held)) {
            self.core.fill(message, receive);
            if !self.core.outbox.is_empty() {
                self.act();
            }
            return;
        }
        let group = &mut self.core.collectives.groups[index];
        if group.gone.contains(&slot) {
            group.queue.front_mut().into_iter().for_each(|running| running.outstanding -= 1);
            return group.breaks(ErrorCode::Closed, "a member of the group has closed its endpoint");
        }
        self.core.collectives.messages.post(pattern, receive);
        // Whoever waits for a member hears of its death, and that takes a connection.
        if self.core.peers.get(slot).state == State::Idle {
            self.start_connecting(slot);
        }
    }

    /// A broken group: tells the members, takes back what it can, and ends its operations when nothing uses their memory any more.
    #[cold]
    fn wind_up(&mut self, index: usize) {
        let group = &mut self.core.collectives.groups[index];
        let Some((code, why)) = group.broken.clone() else { return };
        let (tag, rank) = (group.tag, group.rank);
        if !std::mem::replace(&mut group.told, true) {
            let members = group.members.clone();
            self.core.collectives.remember_broken(tag);
            for (_, slot) in members.iter().enumerate().filter(|(member, _)| *member != rank) {
                let peer = self.core.peers.get(*slot);
                if peer.state == State::Idle && peer.lost {
                    continue; // It is the one that died, or has heard of that before.
                }
                self.send_to_member(*slot, Segments::EMPTY, (tag, ABORT | code.errno() as u64), NOBODY);
            }
        }
        self.core.withdraw(index);
        if !self.core.outbox.is_empty() {
            self.act();
        }
        let group = &mut self.core.collectives.groups[index];
        if group.queue.front().is_some_and(|running| running.outstanding > 0) {
            return;
        }
        let ended = std::mem::take(&mut group.queue);
        let left = group.left;
        for running in ended {
            self.core.collective_failed(index, &running, code, &why);
        }
        if left && self.core.collectives.groups[index].queue.is_empty() {
            self.core.collectives.close(index);
        }
    }
}

/// Whether an operation is one that the group can do.
fn check(work: &CollectiveWork, members: usize, rank: usize) -> Result<(), PostError> {
    let bytes = work.bytes().ok_or(PostError::TooLong(usize::MAX))?;
    let root = work.what.root();
    if root.is_some_and(|root| root >= members) {
        return Err(PostError::Collective("the root is a member's rank"));
    }
    let (source, result) = (work.source.len() >= bytes, work.result.len() >= bytes);
    let fits = match work.what {
        Collective::Barrier => work.count == 0,
        Collective::Broadcast { .. } => result,
        Collective::Allreduce => source && result,
        Collective::Reduce { root } => source && (result || root != rank),
    };
    if work.what.combines() && !combines(work.op, work.datatype) {
        return Err(PostError::NoSuchAtomic(work.op, work.datatype));
    }
    if fits { Ok(()) } else { Err(PostError::Collective("the memory of a collective holds all its elements")) }
}

/// Memory of the operation's own.
fn scratch(len: usize) -> Buffer {
    if len >= SEALED
        && let Ok(allocation) = sealed::allocate(len)
    {
        return Buffer::from(allocation);
    }
    Buffer::zeroed(len)
}

/// What the transfers of a group's operation carry.
const fn context_of(index: usize, sequence: u32) -> u64 {
    (index as u64) << 32 | sequence as u64
}

/// The completion of a collective.
pub(super) fn collective_entry(work: &CollectiveWork) -> Entry {
    let len = work.bytes().unwrap_or(0) as u64;
    Entry { context: work.context, flags: CompletionFlags::COLLECTIVE, len, ..Entry::default() }
}

impl Core {
    /// A group can go on: soon.
    fn collective_ready(&mut self, index: usize) {
        self.collectives.ready.push_back(index);
        self.outbox.push_back((0, Action::Advance));
    }

    /// A transfer of a group's operation has ended.
    #[inline(never)]
    pub(super) fn collective_over(&mut self, side: Side, result: Result<Entry, ErrorEntry>) {
        let context = match &result {
            Ok(entry) => entry.context,
            Err(error) => error.entry.context,
        };
        let (index, sequence) = ((context >> 32) as usize, context as u32);
        let Some(group) = self.collectives.groups.get_mut(index) else { return };
        let Some(running) = group.queue.front_mut().filter(|running| running.sequence == sequence) else { return };
        running.outstanding -= 1;
        let mut goes_on = running.waiting && running.outstanding == 0;
        match result {
            Ok(entry) if side == Side::Receive && entry.data != running.data => {
                group.breaks(ErrorCode::Protocol, "the members of the group do not do the same, in the same order");
                goes_on = true;
            }
            Ok(_) => goes_on |= group.broken.is_some(),
            Err(error) => {
                group.breaks(error.error, "a message between members of the group failed: a member is gone");
                goes_on = true;
            }
        }
        if goes_on && !self.goes_on_here(index) {
            self.collective_ready(index);
        }
    }

    /// Does what a group's operation has to do next, if that takes no link; says whether that was all.
    fn goes_on_here(&mut self, index: usize) -> bool {
        loop {
            let group = &mut self.collectives.groups[index];
            let Some(running) = group.queue.front_mut().filter(|_| group.broken.is_none()) else { return false };
            match running.program.steps.get(running.at).copied() {
                Some(Step::Settle) if running.outstanding == 0 => {}
                Some(Step::Fold { place, at, from, len, theirs_first }) => {
                    self.fold(index, place, (at, from, len), theirs_first);
                }
                Some(_) => return false,
                None => {
                    self.collective_done(index);
                    let group = &self.collectives.groups[index];
                    return group.queue.is_empty() && !group.left;
                }
            }
            if let Some(running) = self.collectives.groups[index].queue.front_mut() {
                (running.at, running.waiting) = (running.at + 1, false);
            }
        }
    }

    /// The group's first operation has ended.
    fn collective_done(&mut self, index: usize) {
        let group = &mut self.collectives.groups[index];
        let Some(running) = group.queue.pop_front() else { return };
        let Running { program, context, notify, bytes, joins, .. } = running;
        group.spare = program;
        let id = group.id;
        let flags = CompletionFlags::COLLECTIVE;
        if joins && notify != Notify::Operation {
            return self.event(|| Event::Joined { group: id, context });
        }
        self.complete(Side::Transmit, notify, Entry { context, flags, len: bytes as u64, ..Entry::default() });
    }

    fn collective_failed(&mut self, index: usize, running: &Running, code: ErrorCode, why: &str) {
        let (context, notify) = (running.context, running.notify);
        if running.joins && notify != Notify::Operation {
            let id = self.collectives.groups[index].id;
            let reason = why.to_owned();
            return self.event(|| Event::JoinFailed { group: id, context, error: code, reason });
        }
        let entry = Entry { context, flags: CompletionFlags::COLLECTIVE, ..Entry::default() };
        self.fail(Side::Transmit, notify, ErrorEntry::new(entry, code).with_text(why.to_owned()));
    }

    /// Combines what came with what was there.
    fn fold(&mut self, index: usize, place: Place, (at, from, len): (usize, usize, usize), theirs_first: bool) {
        let group = &mut self.collectives.groups[index];
        let Some(running) = group.queue.front() else { return };
        let (result, op, datatype) = (running.result.slice(at, len), running.op, running.datatype);
        let theirs = group.scratch.segment_for_receive().map_or(Segment::EMPTY, |all| all.slice(from, len));
        let ours = if place == Place::Source { running.source.slice(at, len) } else { result };
        crate::collective::fold(result, ours, theirs, theirs_first, op, datatype, &mut self.collectives.chunks);
    }

    /// A broken group takes back its receives, and throws away what came for it.
    fn withdraw(&mut self, index: usize) {
        let group = &mut self.collectives.groups[index];
        let tag = group.tag;
        if let Some(running) = group.queue.front_mut() {
            let context = context_of(index, running.sequence);
            while self.collectives.messages.cancel_where(|receive| receive.context == context).is_some() {
                running.outstanding -= 1;
            }
        }
        self.throw_away_group(tag);
    }

    fn throw_away_group(&mut self, tag: u64) {
        let held: Vec<_> = self.collectives.messages.extract_held(|envelope, _, _| envelope.tag == tag).collect();
        held.into_iter().for_each(|(_, message)| self.throw_away(message));
    }

    /// Whether a message is for a group that may yet want it. An abort is heeded here.
    pub(super) fn is_wanted(&mut self, from: Connection, head: &Head) -> bool {
        if head.kind == Kind::Collective && head.len == 0 && head.data >= ABORT {
            self.aborted(from, head.tag, head.data as u32);
            return false;
        }
        if !self.collectives.is_broken(head.tag) {
            return true;
        }
        if head.kind == Kind::CollectiveOffer {
            self.reply(from, Kind::Pulled, head.id, 0);
        }
        false
    }

    /// A member says that the group is broken.
    fn aborted(&mut self, from: Connection, tag: u64, code: u32) {
        self.collectives.remember_broken(tag);
        let Some(&index) = self.collectives.by_tag.get(&tag) else {
            return self.throw_away_group(tag);
        };
        let group = &mut self.collectives.groups[index];
        if !group.members.contains(&from) {
            return self.peers.accuse(from, "it breaks a group that it is no member of");
        }
        group.breaks(heard_code(code), "a member gave the group up");
        self.collective_ready(index);
    }

    /// A connection is over. One that did not end in good order breaks the peer's groups.
    pub(super) fn collectives_down(&mut self, from: Connection, error: ErrorCode, why: &str) {
        let receives: Vec<Receive> = self.collectives.messages.drain_posted(Source::From(from.into())).collect();
        for receive in receives {
            let head = Head { kind: Kind::Collective, ..Head::default() };
            self.receive_failed(from, &head, &receive, error, why);
        }
        let of: Vec<usize> = self
            .collectives
            .groups
            .iter()
            .filter(|(_, group)| group.members.contains(&from))
            .map(|(at, _)| at)
            .collect();
        for index in of {
            let group = &mut self.collectives.groups[index];
            if error == ErrorCode::Closed {
                group.gone.push(from);
            } else {
                group.breaks(error, &format!("a member of the group is gone: {why}"));
                self.collective_ready(index);
            }
        }
    }

    /// Gives up the memory of a group's operation: somebody may use it for ever.
    pub(super) fn leak_collective(&mut self, context: u64) {
        let Some(group) = self.collectives.groups.get_mut((context >> 32) as usize) else { return };
        std::mem::forget(std::mem::replace(&mut group.scratch, Buffer::from(Vec::new())));
        let Some(running) = group.queue.front_mut() else { return };
        std::mem::forget(running.own.take());
        let (notify, context) = (running.notify, running.context);
        self.leak(notify, context);
    }
}

/// The error that a member told.
fn heard_code(number: u32) -> ErrorCode {
    use ErrorCode::{Closed, NotConnected, PeerDied, Protocol, Refused, TimedOut, Truncated, Unreachable};
    let codes = [Closed, NotConnected, PeerDied, Protocol, Refused, TimedOut, Truncated, Unreachable];
    codes.into_iter().find(|code| code.errno() as u32 == number).unwrap_or(PeerDied)
}
