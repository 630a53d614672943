//! An operation of a group that runs, or waits for its turn, and its memory.

use crate::collective::{Chunks, Place, Program, Spot, Step, fold};
use crate::endpoint::engine::types::Notify;
use crate::memory::atomic::{AtomicOp, Datatype};
use crate::memory::buffer::Buffer;
use crate::memory::sealed;
use crate::memory::volatile::{Segment, Segments};

/// Memory of an operation's own is, from this size on, such that peers can map it.
const SEALED: usize = 16 << 10;

/// An operation of a group.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) program: Box<Program>,
    /// The next step.
    pub(crate) at: usize,
    /// Transfers that have yet to end.
    pub(crate) outstanding: u32,
    /// It can go on when they have.
    pub(crate) waiting: bool,
    /// This member's elements.
    pub(crate) source: Segment,
    /// Where the result is made.
    pub(crate) result: Segment,
    /// The memory of that, if it is the operation's own.
    pub(crate) own: Option<Buffer>,
    pub(crate) op: AtomicOp,
    pub(crate) datatype: Datatype,
    /// Its number in the group.
    pub(crate) sequence: u32,
    /// What its messages carry: number and digest of what it is.
    pub(crate) data: u64,
    pub(crate) bytes: usize,
    pub(crate) context: u64,
    pub(crate) notify: Notify,
    /// It is the group's making.
    pub(crate) joins: bool,
}

impl Running {
    /// A part of its memory.
    #[inline]
    pub(crate) fn memory(&self, scratch: &mut Scratch, (place, at): Spot, len: usize) -> Segment {
        let whole = match place {
            Place::Source => self.source,
            Place::Result => self.result,
            Place::Scratch => scratch.room(self.program.scratch),
        };
        whole.slice(at, len)
    }

    /// Does a step that is about this endpoint's memory alone: combines what came with what was there, copies.
    #[inline]
    pub(crate) fn step_here(&self, scratch: &mut Scratch, step: &Step, chunks: &mut Option<Box<Chunks>>) {
        match *step {
            Step::Copy { from, into, len } => {
                let (from, into) = (self.memory(scratch, from, len), self.memory(scratch, into, len));
                if from.as_ptr() != into.as_ptr() {
                    Segments::one(into).copy_from(&Segments::one(from));
                }
            }
            Step::Fold { ours, theirs, into, len, theirs_first } => {
                let mut of = |spot| self.memory(scratch, spot, len);
                let (ours, theirs, result) = (of(ours), of((Place::Scratch, theirs)), of(into));
                fold(result, ours, theirs, theirs_first, (self.op, self.datatype), chunks);
            }
            Step::Send { .. } | Step::Receive { .. } | Step::Settle => {}
        }
    }
}

/// Where what came waits for being combined: of a group, for whatever runs.
#[derive(Debug)]
pub(crate) struct Scratch {
    buffer: Buffer,
    /// All of it.
    all: Segment,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { buffer: Buffer::from(Vec::new()), all: Segment::EMPTY }
    }
}

impl Scratch {
    /// All of it, which has room for so many bytes from now on.
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

/// Memory of an operation's own.
pub(crate) fn own_memory(len: usize) -> Buffer {
    if len >= SEALED
        && let Ok(allocation) = sealed::allocate(len)
    {
        return Buffer::from(allocation);
    }
    Buffer::zeroed(len)
}
