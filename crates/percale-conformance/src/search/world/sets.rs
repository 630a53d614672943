//! Several operations at once: sets of operations, and waits for any or all of a few.
//!
//! A set holds operations of one kind at one endpoint. The key of a member is the run's record of its operation, so a
//! result that is returned with the key of another member is found as a foreign buffer or as wrong contents.

use percale::endpoint::safe::PushCause;

use super::World;
use super::handles::{Ended, HandleSet, HeldHandle, Member, Next, Several, again, is_timeout};
use crate::search::ledger::{Fault, Life, Verdict};
use crate::search::step::{NextBy, SLOTS, SetStep};

/// A set that the run holds.
pub(super) struct HeldSet {
    life: Life,
    set: Box<dyn HandleSet>,
    members: Vec<Member>,
}

impl World {
    /// Returns the number of members of sets that have not ended.
    pub(super) fn in_sets(&self) -> usize {
        self.sets.iter().flatten().map(|held| held.members.len()).sum()
    }

    /// Returns whether a set of this endpoint is open.
    pub(super) fn has_set(&self, life: Life) -> bool {
        self.sets.iter().flatten().any(|held| held.life == life)
    }

    /// Waits for any or all of up to `count` operations of one kind, beginning with the one in this slot.
    pub(super) fn wait_several(&mut self, slot: usize, count: usize, all: bool) -> Verdict {
        let Some(kind) = self.held[slot].as_ref().map(|first| first.handle.as_any().type_id()) else { return Ok(()) };
        let again_too = self.settings.again;
        let slots = (0..SLOTS).map(|step| (slot + step) % SLOTS).filter(|slot| {
            let held = self.held[*slot].as_ref();
            held.is_some_and(|held| held.handle.as_any().type_id() == kind && (again_too || !held.is_finished))
        });
        let slots: Vec<usize> = slots.take(count.max(1)).collect();
        let (mut rest, mut handles) = (Vec::new(), Vec::new());
        for slot in &slots {
            let Some(HeldHandle { id, life, handle, buffer, is_finished }) = self.held[*slot].take() else { continue };
            rest.push((id, life, buffer, is_finished));
            handles.push(handle);
        }
        if handles.is_empty() {
            return Ok(());
        }
        let first = handles.remove(0);
        let Several { handles, ended } = first.wait_several(handles, all);
        let records: Vec<_> = rest.clone();
        for ((slot, handle), (id, life, buffer, is_finished)) in slots.iter().zip(handles).zip(rest) {
            self.held[*slot] = Some(HeldHandle { id, life, handle, buffer, is_finished });
        }
        let results = match ended {
            Ended::TimedOut => Vec::new(),
            Ended::Nothing if records.iter().any(|(.., is_finished)| !is_finished) => {
                let text = format!("a wait for any of {records:x?} returned that all results were taken");
                return Err(Fault::new("result missed", text));
            }
            Ended::Nothing => Vec::new(),
            Ended::One(index, outcome) => vec![(index, outcome)],
            Ended::All(outcomes) if outcomes.len() != records.len() => {
                let text = format!("a wait for {} operations returned {} results", records.len(), outcomes.len());
                return Err(Fault::new("result missed", text));
            }
            Ended::All(outcomes) => outcomes.into_iter().enumerate().collect(),
        };
        for (index, outcome) in results {
            let (Some((id, _, buffer, was_finished)), Some(slot)) = (records.get(index), slots.get(index)) else {
                let text = format!("a wait for {} operations returned the index {index}", records.len());
                return Err(Fault::new("result missed", text));
            };
            if *was_finished {
                again(*id, &outcome)?;
            } else if !is_timeout(&outcome) {
                if let Some(held) = &mut self.held[*slot] {
                    held.is_finished = true;
                }
                self.ended(*id, *buffer, outcome)?;
            }
        }
        Ok(())
    }

    /// Executes an operation on a set.
    pub(super) fn set(&mut self, number: usize, what: SetStep) -> Verdict {
        let number = number % self.sets.len();
        match what {
            SetStep::Push { slot, capacity } => self.push(number, usize::from(slot), usize::from(capacity)),
            SetStep::Next(by) => self.next_of(number, by).map(|_| ()),
            SetStep::Cancel => {
                self.cancel_set(number);
                Ok(())
            }
            SetStep::Drop | SetStep::Forget => {
                self.let_go_of_set(number, what == SetStep::Forget);
                Ok(())
            }
        }
    }

    /// Adds the operation in a slot to a set. If there is no set, opens one for operations of this kind.
    fn push(&mut self, number: usize, slot: usize, capacity: usize) -> Verdict {
        let Some(held) = &self.held[slot] else { return Ok(()) };
        if held.is_finished && !self.settings.again {
            return Ok(());
        }
        if self.sets[number].is_none() {
            let Some(life) = held.life else { return Ok(()) };
            let port = self.seats.iter().filter_map(|seat| seat.open.as_ref()).find(|open| open.life == life);
            let Some(port) = port.map(|open| open.port) else { return Ok(()) };
            let set = held.handle.open_set(port, capacity);
            self.sets[number] = set.map(|set| HeldSet { life, set, members: Vec::new() });
        }
        let Some(into) = &mut self.sets[number] else { return Ok(()) };
        if !into.set.is_of_kind(&*held.handle) {
            return Ok(());
        }
        let Some(HeldHandle { id, life, handle, buffer, is_finished }) = self.held[slot].take() else { return Ok(()) };
        let member = Member { id, buffer, was_finished: is_finished };
        let (len, capacity) = (into.set.len(), into.set.capacity());
        let pushed = into.set.push(handle, member);
        if pushed.is_ok() {
            into.members.push(member);
        }
        let is_here = life == Some(into.life);
        let what = match pushed {
            Ok(()) if len >= capacity => "accepted by a full set",
            // An operation that ended when it was posted belongs to no endpoint.
            Ok(()) => return Ok(()),
            Err((handle, key, cause)) => {
                self.held[slot] = Some(HeldHandle { id, life, handle, buffer, is_finished });
                match cause {
                    _ if key.id != id => "rejected with the key of another operation",
                    PushCause::Full(room) if room == capacity && len >= capacity => return Ok(()),
                    PushCause::OtherEndpoint if !is_here => return Ok(()),
                    _ => "rejected without a cause",
                }
            }
        };
        let text = format!("safe operation {id} was {what}; the set has {len} of {capacity} operations");
        Err(Fault::new("wrong set", text))
    }

    /// Takes the next result of a set. Returns whether there was one.
    fn next_of(&mut self, number: usize, by: NextBy) -> Verdict<bool> {
        let Some(held) = &mut self.sets[number] else { return Ok(false) };
        let next = held.set.next(by);
        let (len, known) = (held.set.len(), held.members.len());
        match next {
            Next::Ended(member, outcome) => {
                let Some(index) = held.members.iter().position(|one| one.id == member.id) else {
                    let text = format!("a set returned safe operation {}, which is not a member", member.id);
                    return Err(Fault::new("wrong set", text));
                };
                held.members.swap_remove(index);
                if len + 1 != known {
                    let text = format!("a set with {known} members has {len} after it returned one");
                    return Err(Fault::new("wrong set", text));
                }
                match member.was_finished {
                    true => again(member.id, &outcome)?,
                    false => self.ended(member.id, member.buffer, outcome)?,
                }
                Ok(true)
            }
            Next::Empty if known > 0 => {
                Err(Fault::new("wrong set", format!("a set with {known} members returned that it is empty")))
            }
            Next::Empty | Next::Nothing => Ok(false),
        }
    }

    fn cancel_set(&mut self, number: usize) {
        let Some(held) = &self.sets[number] else { return };
        if held.set.cancel_all() == 0 {
            return;
        }
        // The call returns the number of the cancelled operations, not which they are.
        for member in held.members.iter().filter(|member| !member.was_finished) {
            if let Some(operation) = self.ledger.operation_mut(member.id) {
                operation.is_cancelled = true;
            }
        }
    }

    fn let_go_of_set(&mut self, number: usize, forget: bool) {
        let Some(HeldSet { set, members, life }) = self.sets[number].take() else { return };
        for member in members {
            self.let_go(member.id, member.was_finished);
        }
        if forget {
            self.forget(Some(life), set);
        }
    }

    /// Drops or forgets the sets of an endpoint.
    pub(super) fn let_go_of_sets(&mut self, life: Life, forget: bool) {
        for number in 0..self.sets.len() {
            if self.sets[number].as_ref().is_some_and(|held| held.life == life) {
                let forget = forget && self.random.below(2) == 0;
                self.let_go_of_set(number, forget);
            }
        }
    }

    /// Takes the results of the members of all sets. If `cancel` is set, first cancels the operations. Returns the
    /// number of members that have not ended.
    pub(super) fn settle_sets(&mut self, cancel: bool) -> Verdict<usize> {
        for number in 0..self.sets.len() {
            if cancel {
                self.cancel_set(number);
            }
            while self.next_of(number, NextBy::Try)? {}
        }
        Ok(self.in_sets())
    }
}
