//! An operation of a group that runs or waits for its turn, and its memory.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use crate::collective::{Chunks, MemoryPart, MemoryPosition, Program, ScheduleStep, fold};
use crate::endpoint::engine::types::Notify;
use crate::local_memory::atomic::{AtomicOp, Datatype};
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::sealed;
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _};

/// Memory of an operation that has at least this size is allocated so that peers can map it.
const SEALED: usize = 16 << 10;

/// An operation of a group.
#[derive(Debug)]
pub(super) struct RunningOperation {
    pub(super) program: Box<Program>,
    /// The next step.
    pub(super) at: usize,
    /// Transfers that have yet to end.
    pub(super) outstanding: u32,
    /// Whether the operation continues when all of these transfers have ended.
    pub(super) waiting: bool,
    /// This member's elements.
    pub(super) source: Segment,
    /// The memory of the result.
    pub(super) result: Segment,
    /// The memory of the result, if the operation allocated that memory.
    pub(super) own: Option<Box<Buffer>>,
    pub(super) op: AtomicOp,
    pub(super) datatype: Datatype,
    /// The operation's number in the group.
    pub(super) sequence: u32,
    /// The data that its messages carry: its number, and a digest of its kind and shape.
    pub(super) data: u64,
    pub(super) bytes: usize,
    pub(super) context: u64,
    pub(super) notify: Notify,
    /// Whether this is the operation that joins the group.
    pub(super) joins: bool,
}

impl RunningOperation {
    /// Returns a part of the operation's memory.
    #[inline]
    pub(super) fn memory(&self, scratch: &mut Scratch, (place, at): MemoryPosition, len: usize) -> Segment {
        let whole = match place {
            MemoryPart::Source => self.source,
            MemoryPart::Result => self.result,
            MemoryPart::Scratch => scratch.room(self.program.scratch),
        };
        whole.slice(at, len)
    }

    /// Performs a step on local memory only: combines received values with local ones, or copies.
    #[inline]
    pub(super) fn step_here(&self, scratch: &mut Scratch, step: &ScheduleStep, chunks: &mut Option<Box<Chunks>>) {
        match *step {
            ScheduleStep::Copy { from, into, len } => {
                let (from, into) = (self.memory(scratch, from, len), self.memory(scratch, into, len));
                if from.as_ptr() != into.as_ptr() {
                    Segments::one(into).copy_from(&Segments::one(from));
                }
            }
            ScheduleStep::Fold { ours, theirs, into, len, theirs_first } => {
                let mut of = |spot| self.memory(scratch, spot, len);
                let (ours, theirs, result) = (of(ours), of((MemoryPart::Scratch, theirs)), of(into));
                fold(result, ours, theirs, theirs_first, (self.op, self.datatype), chunks);
            }
            ScheduleStep::Send { .. } | ScheduleStep::Receive { .. } | ScheduleStep::Settle => {}
        }
    }
}

/// The memory of a group in which received values wait until they are combined. The running operation uses it.
#[derive(Debug)]
pub(in super::super) struct Scratch {
    buffer: Buffer,
    /// The whole buffer.
    all: Segment,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { buffer: Buffer::from(Vec::new()), all: Segment::EMPTY }
    }
}

impl Scratch {
    /// Returns the whole buffer, after growing it to at least `wanted` bytes.
    #[inline]
    fn room(&mut self, wanted: usize) -> Segment {
        if self.all.len() < wanted {
            self.grow(wanted);
        }
        self.all
    }

    #[cold]
    fn grow(&mut self, wanted: usize) {
        self.buffer = own_memory(wanted);
        self.all = self.buffer.segment_for_receive().unwrap_or(Segment::EMPTY);
    }
}

/// Allocates memory for an operation.
pub(super) fn own_memory(len: usize) -> Buffer {
    if len >= SEALED
        && let Ok(allocation) = sealed::allocate(len)
    {
        return Buffer::from(allocation);
    }
    Buffer::zeroed(len)
}
