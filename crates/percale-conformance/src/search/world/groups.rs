//! Collectives: groups of all open places, with barriers and sums.
//!
//! The members join a group one after another. Each step posts the next operation of one member. All members post the
//! same operations in the same order. If a member leaves or is closed, the group ends for all members.

#![expect(unsafe_code, reason = "posts operations on memory that it keeps until they have ended")]

use percale::{AddressSet, AtomicOp, Collective, CollectiveWork, Datatype, Event, GroupId, OpFlags, PostError};

use super::{World, on};
use crate::search::ledger::{Fault, Life, Verdict};
use crate::search::step::{GroupStep, RunTransport};

/// The state of a member of a group.
#[derive(Debug)]
struct Member {
    place: usize,
    life: Life,
    id: Option<GroupId>,
    is_joined: bool,
    /// The number of operations that it has posted.
    posted: u64,
}

/// A group.
#[derive(Debug)]
struct Group {
    /// The number of the group, which is the context of its joins.
    number: u64,
    /// The places in order, each with the life that was open when the group was made.
    members: Vec<Member>,
    /// Whether operations may fail, because a member left or was closed, or because connections may break.
    is_broken: bool,
    /// Whether a member left. Operations of the other members may then wait for operations that this member will not
    /// post.
    is_left: bool,
}

/// The groups of a run.
#[derive(Debug, Default)]
pub(super) struct Groups {
    current: Option<Group>,
    past: Vec<Group>,
    made: u64,
}

impl Groups {
    /// Records that an endpoint is closed. Returns whether it was a member of a group.
    pub(super) fn forget(&mut self, life: Life) -> bool {
        let is_member = |group: &Group| group.members.iter().any(|member| member.life == life);
        // A group without this endpoint continues.
        if self.current.as_ref().is_some_and(is_member) {
            self.past.extend(self.current.take());
        }
        let mut any = false;
        for group in self.past.iter_mut().filter(|group| is_member(group)) {
            (group.is_broken, any) = (true, true);
        }
        any
    }

    fn numbered(&mut self, number: u64) -> Option<&mut Group> {
        self.past.iter_mut().chain(&mut self.current).find(|group| group.number == number)
    }

    /// Returns whether the current group has not been formed yet, and nothing has broken it.
    pub(super) fn is_forming(&self) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|group| !group.is_broken && !group.members.iter().all(|member| member.is_joined))
    }

    /// Returns the number of members of the group that have joined.
    pub(super) fn joined(&self) -> u64 {
        let joined = self.current.iter().flat_map(|group| &group.members).filter(|member| member.is_joined);
        joined.count() as u64
    }
}

impl World {
    pub(super) fn group(&mut self, at: usize, what: GroupStep) -> Verdict {
        if self.settings.transport == RunTransport::Loopback {
            return Ok(()); // The endpoints cannot reach each other.
        }
        let Some((life, port)) = self.port(at) else { return Ok(()) };
        match what {
            GroupStep::Join => {
                if self.groups.current.is_none() {
                    self.groups.made += 1;
                    let open = (0..self.seats.len()).filter(|place| self.seats[*place].open.is_some());
                    let members = open.filter_map(|place| {
                        let (life, _) = self.port(place)?;
                        Some(Member { place, life, id: None, is_joined: false, posted: 0 })
                    });
                    // If a member has not joined an earlier group, its next join of the same list is paired with the
                    // joins of the other members for that group.
                    let owes = |group: &Group| group.members.iter().any(|member| member.id.is_none());
                    let is_broken = self.settings.breaks
                        || self.seats.iter().any(|opened_endpoint| opened_endpoint.was_closed)
                        || self.groups.past.iter().any(owes);
                    let group =
                        Group { number: self.groups.made, members: members.collect(), is_broken, is_left: false };
                    self.groups.current = Some(group);
                }
                self.join(at, life)
            }
            GroupStep::Post => match self.groups.current.as_ref().map(|group| group.number) {
                Some(number) => self.post_of_group(number, at, life),
                None => Ok(()),
            },
            GroupStep::Leave => {
                self.look_at_events()?;
                let Some(group) = &mut self.groups.current else { return Ok(()) };
                let id = group.members.iter().find(|member| member.life == life).and_then(|member| member.id);
                let Some(id) = id else { return Ok(()) };
                (group.is_broken, group.is_left) = (true, true);
                self.groups.past.extend(self.groups.current.take());
                self.groups_may_fail();
                // Operations of the other members wait for operations that this member will not post.
                for (_, operation) in self.ledger.pending_mut() {
                    operation.is_closed |= operation.what == "collective";
                }
                on!(port, endpoint => endpoint.leave_group(id));
                Ok(())
            }
        }
    }

    fn join(&mut self, at: usize, life: Life) -> Verdict {
        let Some((_, port)) = self.port(at) else { return Ok(()) };
        let Some(group) = &self.groups.current else { return Ok(()) };
        let Some(index) = group.members.iter().position(|member| member.life == life) else { return Ok(()) };
        if group.members[index].id.is_some() {
            return Ok(());
        }
        let mut set = AddressSet::default();
        for member in &group.members {
            set.insert(self.name(member.place));
        }
        let number = group.number;
        match on!(port, endpoint => endpoint.join_group(&set, number)) {
            Ok(id) => {
                if let Some(group) = &mut self.groups.current {
                    group.members[index].id = Some(id);
                }
                Ok(())
            }
            Err(PostError::Again) => Ok(()),
            Err(error) => Err(Fault::new("refused without a cause", format!("joining group {number}: {error}"))),
        }
    }

    /// Reads the events of groups.
    pub(super) fn look_at_events(&mut self) -> Verdict {
        for place in 0..self.seats.len() {
            let events = self.seats[place].events.clone();
            while let Some(event) = events.read() {
                let (id, number, error) = match &event {
                    Event::Joined { group, context } => (*group, *context, None),
                    Event::JoinFailed { group, context, error, .. } => (*group, *context, Some(*error)),
                    _ => continue,
                };
                let group =
                    self.groups.past.iter_mut().chain(&mut self.groups.current).find(|one| one.number == number);
                let Some(group) = group else {
                    return Err(Fault::new("unknown context", format!("{event:?} belongs to no group")));
                };
                let is_broken = group.is_broken;
                if let Some(member) =
                    group.members.iter_mut().find(|member| member.place == place && member.id == Some(id))
                {
                    member.is_joined = error.is_none();
                }
                if let Some(error) = error
                    && !is_broken
                {
                    let text = format!("group {number} was not formed ({error:?}), although no event had broken it");
                    return Err(Fault::new("failed without a cause", text));
                }
            }
        }
        Ok(())
    }

    /// Records that operations of broken groups may fail.
    pub(super) fn groups_may_fail(&mut self) {
        for (_, operation) in self.ledger.pending_mut() {
            operation.may_fail |= operation.what == "collective";
        }
    }

    fn post_of_group(&mut self, number: u64, at: usize, life: Life) -> Verdict {
        self.look_at_events()?;
        let Some((_, port)) = self.port(at) else { return Ok(()) };
        let Some(group) = self.groups.numbered(number) else { return Ok(()) };
        let (count, is_broken) = (group.members.len() as u64, group.is_broken);
        let Some(rank) = group.members.iter().position(|member| member.life == life) else { return Ok(()) };
        let member = &mut group.members[rank];
        let (Some(id), true) = (member.id, member.is_joined) else { return Ok(()) };
        member.posted += 1;
        let sequence = member.posted;
        let context = self.ledger.number();
        // Every second operation is a barrier. The others are sums of the members' numbers, with a known result.
        let is_sum = sequence.is_multiple_of(2);
        let what = if is_sum { Collective::Allreduce } else { Collective::Barrier };
        let lent = self.lender.lend(if is_sum { 16 } else { 0 })?;
        if is_sum {
            let value = (sequence + rank as u64).to_le_bytes();
            lent.write(&[value, [0; 8]].concat());
        }
        self.enter(context, "collective", at, None, true);
        if let Some(operation) = self.ledger.operation_mut(context) {
            operation.may_fail |= is_broken;
        }
        let whole = lent.segment();
        let (source, result) = if is_sum { (whole.slice(0, 8), whole.slice(8, 8)) } else { (whole, whole) };
        let sum = (0..count).map(|rank| sequence + rank).sum();
        let work = CollectiveWork {
            group: id,
            what,
            op: AtomicOp::Sum,
            datatype: Datatype::U64,
            count: usize::from(is_sum),
            source,
            result,
            context,
            flags: OpFlags::COMPLETION,
        };
        self.lent.insert(context, vec![lent]);
        // SAFETY: the buffer is kept in `lent` until the operation has ended.
        match on!(port, endpoint => unsafe { endpoint.post_collective(&work) }) {
            Ok(()) => {
                if is_sum {
                    self.sums.insert(context, sum);
                }
                Ok(())
            }
            Err(error) => {
                if let Some(group) = self.groups.numbered(number) {
                    group.members[rank].posted -= 1;
                }
                match error {
                    PostError::NoGroup if is_broken => {
                        self.ledger.refuse(context);
                        self.give_back(context)
                    }
                    error => {
                        let fault = self.refused(context, &error);
                        fault.map_err(|fault| Fault { text: format!("group {number}: {}", fault.text), ..fault })
                    }
                }
            }
        }
    }

    /// Handles the end of a collective and checks its sum.
    pub(super) fn summed(&mut self, id: u64, is_good: bool) -> Verdict {
        let Some(sum) = self.sums.remove(&id) else { return Ok(()) };
        let Some(lent) = self.lent.get(&id).and_then(|lent| lent.first()) else { return Ok(()) };
        let found = lent.read(8, 8).try_into().map_or(0, u64::from_le_bytes);
        if is_good && found != sum {
            return Err(Fault::new(
                "wrong bytes",
                format!("collective {id} returned the sum {found} instead of {sum}"),
            ));
        }
        Ok(())
    }

    /// Makes the members of the current group join it. Makes the members of all groups, including groups with a closed
    /// member, post the operations that other members have already posted. After that, all posted operations must end.
    pub(super) fn complete_groups(&mut self) -> Verdict {
        self.look_at_events()?;
        let mut late = Vec::new();
        let closed = || self.groups.past.iter().filter(|group| !group.is_left).map(|group| (group, false));
        let groups = || closed().chain(self.groups.current.iter().map(|group| (group, true)));
        let most_of = |group: &Group| group.members.iter().map(|member| member.posted).max().unwrap_or(0);
        // The join of a member for a broken group may be paired with joins for groups with other numbers. Therefore the
        // members post the same number of operations in each group.
        let most_of_all = groups().map(|(group, _)| most_of(group)).max().unwrap_or(0);
        for (group, forms) in groups() {
            let most = if group.is_broken { most_of_all } else { most_of(group) };
            for member in &group.members {
                let joins = forms && member.id.is_none();
                if joins || (member.is_joined && member.posted < most) {
                    late.push((group.number, member.place, member.life, joins));
                }
            }
        }
        for (number, place, life, joins) in late {
            if self.port(place).is_some_and(|(now, _)| now == life) {
                if joins { self.join(place, life)? } else { self.post_of_group(number, place, life)? }
            }
        }
        Ok(())
    }

    /// Permits failures of groups with members that cannot post. Members that report to one queue may fill it with
    /// operations that wait for each other. The remaining operations cannot be posted then.
    pub(super) fn excuse_starved_groups(&mut self) {
        let groups = self.groups.past.iter().chain(&self.groups.current);
        let is_starved = |group: &Group| {
            let posted = || group.members.iter().map(|member| member.posted);
            posted().max() != posted().min()
        };
        if groups.into_iter().any(is_starved) {
            // Such a queue also has no room for the receive of a claimed message. Its sender waits for that receive,
            // and so do the operations after a later fence.
            let waits = self.waiting_for_claims();
            let behind: Vec<u64> = self
                .ledger
                .messages()
                .filter(|(id, message)| message.arrivals == 0 && waits(*id, message))
                .map(|(id, _)| id)
                .collect();
            drop(waits);
            for id in behind {
                if let Some(operation) = self.ledger.operation_mut(id) {
                    operation.is_closed = true;
                }
            }
            for (_, operation) in self.ledger.pending_mut().filter(|(_, operation)| operation.what == "collective") {
                operation.is_closed = true;
            }
        }
    }

    /// Checks that the current group was formed, if all of its members have joined and nothing has broken it.
    pub(super) fn look_at_groups(&self) -> Verdict {
        let Some(group) = self.groups.current.as_ref().filter(|_| self.groups.is_forming()) else { return Ok(()) };
        let text = format!(
            "all members joined group {} and no event broke it, but it was not formed: {group:?}",
            group.number
        );
        Err(Fault::new("group never formed", text))
    }
}
