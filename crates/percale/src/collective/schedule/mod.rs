//! The program of a member in a collective: steps that depend only on the group's size, the member's rank and the
//! operation.
//!
//! Sends and receives run concurrently. [`ScheduleStep::Settle`] waits for all earlier ones, and in every program it
//! follows the last of them. Between two members, the sends of one and the receives of the other have the same order
//! and the same lengths in all programs.
//!
//! * `trees`: barrier, broadcast, scatter, gather
//! * `reduction`: reduction to one member, to all members, and with one part for each member
//! * `exchange`: all-gather, all-to-all

mod exchange;
mod reduction;
mod trees;

use super::{Collective, Plan};
use crate::local_memory::atomic::Datatype;

/// A part of a member's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryPart {
    /// This member's elements, which are only read.
    Source,
    /// The result. For a broadcast, also the elements that are sent.
    Result,
    /// Temporary memory of the operation.
    Scratch,
}

/// A position in memory: the part, and the offset in bytes.
pub(crate) type MemoryPosition = (MemoryPart, usize);

/// A step of a program. Members are identified by rank, and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScheduleStep {
    /// Sends bytes to a member.
    Send { to: usize, from: MemoryPosition, len: usize },
    /// Receives bytes from a member.
    Receive { from: usize, into: MemoryPosition, len: usize },
    /// Waits until all earlier steps have ended.
    Settle,
    /// Combines the elements at `ours` with those in scratch at `theirs`, which are the first operand if
    /// `theirs_first`.
    Fold { ours: MemoryPosition, theirs: usize, into: MemoryPosition, len: usize, theirs_first: bool },
    /// Copies bytes.
    Copy { from: MemoryPosition, into: MemoryPosition, len: usize },
}

/// The steps, and the memory that they need.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) steps: Vec<ScheduleStep>,
    /// The number of bytes of scratch.
    pub(crate) scratch: usize,
    /// The position of the combined elements. `None` before elements have been combined.
    combined: Option<MemoryPart>,
    /// The plan for which the program was created.
    pub(crate) plan: Option<Plan>,
    /// Whether the program combines elements that other members send.
    pub(crate) folds: bool,
}

impl Program {
    /// Creates the program of operations with this plan, for the member with this rank in a group of `members`.
    pub(crate) fn make(&mut self, plan: Plan, members: usize, rank: usize) {
        self.write(plan.what, members, rank, plan.count, plan.datatype, plan.in_place);
        self.folds = self.steps.iter().any(|step| matches!(step, ScheduleStep::Fold { .. }));
        self.plan = Some(plan);
    }

    /// Creates the program of this operation with `count` elements (in each block), for one of `members` members.
    /// `in_place` states whether the result of an all-to-all overlaps its elements.
    pub(crate) fn write(
        &mut self,
        what: Collective,
        members: usize,
        rank: usize,
        count: usize,
        datatype: Datatype,
        in_place: bool,
    ) {
        self.steps.clear();
        (self.scratch, self.combined) = (0, None);
        let size = datatype.size();
        let bytes = count * size;
        match what {
            Collective::Barrier => self.barrier(members, rank),
            _ if bytes == 0 => {}
            Collective::Broadcast { root } => self.broadcast(members, rank, root, bytes),
            _ if members == 1 => self.copy((MemoryPart::Source, 0), (MemoryPart::Result, 0), bytes),
            Collective::Reduce { root } => self.reduce(members, rank, root, bytes),
            Collective::Allreduce => self.allreduce(members, rank, count, size),
            Collective::ReduceScatter => self.reduce_scatter(members, rank, bytes, size),
            Collective::Allgather => self.allgather(members, rank, bytes),
            Collective::Alltoall => self.alltoall(members, rank, bytes, in_place),
            Collective::Scatter { root } => self.scatter(members, rank, root, bytes),
            Collective::Gather { root } => self.gather(members, rank, root, bytes),
        }
    }

    fn send(&mut self, to: usize, from: MemoryPosition, len: usize) {
        if len > 0 {
            self.uses(from, len);
            self.steps.push(ScheduleStep::Send { to, from, len });
        }
    }

    fn receive(&mut self, from: usize, into: MemoryPosition, len: usize) {
        if len > 0 {
            self.uses(into, len);
            self.steps.push(ScheduleStep::Receive { from, into, len });
        }
    }

    fn settle(&mut self) {
        self.steps.push(ScheduleStep::Settle);
    }

    fn copy(&mut self, from: MemoryPosition, into: MemoryPosition, len: usize) {
        self.uses(from, len);
        self.uses(into, len);
        self.steps.push(ScheduleStep::Copy { from, into, len });
    }

    /// Enlarges scratch to hold these bytes, if they are in scratch.
    fn uses(&mut self, (place, at): MemoryPosition, len: usize) {
        if place == MemoryPart::Scratch {
            self.scratch = self.scratch.max(at + len);
        }
    }
}

/// Returns the rank above a member and the ranks below it, in a tree of all members with rank 0 as the root. Barriers
/// use these connections too.
pub(crate) fn neighbours(members: usize, rank: usize) -> (Option<usize>, Vec<usize>) {
    let tree = trees::Tree::new(members, rank, 0);
    ((rank > 0).then(|| rank - tree.above()), tree.below().collect())
}

/// Divides `count` blocks, starting at number `first` and wrapping around after `blocks`, into at most two runs.
/// Returns the first block of each run and its length.
fn runs(first: usize, count: usize, blocks: usize) -> impl Iterator<Item = (usize, usize)> {
    let here = count.min(blocks - first);
    [(first, here), (0, count - here)].into_iter().filter(|(_, run)| *run > 0)
}

#[cfg(all(test, not(loom)))]
mod tests;
