//! percale's messages by the raw API, as a subject of rounds.
//!
//! Every message has a slot: a part of the source memory and a part of the destination memory. Ping-pongs use slot 0,
//! and streams use all slots of the window in turn. The slot after the last is for the answer to a stream. The memory
//! of a slot is accessed only while no operation uses it.

#![expect(
    unsafe_code,
    reason = "posts raw operations on memory that this object owns; each block states why it is sound"
)]

use percale::{Domain, Entry, OpFlags, PeerAddress, Segment};

use super::block::Block;
use super::node::Node;
use crate::channel::watch::{Spin, Watch};
use crate::failure::{Failure, Result};
use crate::pattern::Content;
use crate::round::{MessageShape, WINDOW};
use crate::row::{MeasuredOperation, MessageMemory, Pattern};
use crate::subject::Subject;

/// The tag of all measured messages, and the tag of answers to streams.
pub(super) const TAG: u64 = 0x7065_7263_616c_6500;
pub(super) const ANSWER: u64 = TAG + 1;

/// Messages of streams up to this length are injected.
pub(super) const INJECTED: usize = 64;

/// The slot of the answer.
const LAST: usize = WINDOW;

/// The bit that marks the context of a receive. The other bits are the slot.
const RECEIVE: u64 = 1 << 32;

/// The messages of one direction.
struct Slots {
    segments: Vec<Segment>,
    /// The offset of each slot in the block.
    starts: Vec<usize>,
    /// Whether an operation uses the slot.
    busy: [bool; LAST + 1],
    /// The number of busy slots.
    pending: usize,
    /// The memory of the slots.
    block: Block,
}

impl Slots {
    /// Makes `window` slots of the shape's size, followed by one of 8 bytes.
    fn new(domain: &Domain, shape: &MessageShape, window: usize) -> Result<Self> {
        let end = window * shape.stride();
        let block = Block::new(domain, shape.memory, end + 64)?;
        let start = |slot: usize| if slot == LAST { end } else { slot % window * shape.stride() };
        let starts: Vec<usize> = (0..=LAST).map(start).collect();
        let segment = |start: &usize| block.segment(*start, if *start == end { 8 } else { shape.bytes });
        let segments = starts.iter().map(segment).collect();
        Ok(Self { segments, starts, busy: [false; LAST + 1], pending: 0, block })
    }

    #[inline]
    fn post(&mut self, slot: usize) {
        self.busy[slot] = true;
        self.pending += 1;
    }

    #[inline]
    fn complete(&mut self, slot: usize) {
        self.busy[slot] = false;
        self.pending -= 1;
    }
}

/// The messages of both directions.
struct Messages {
    out: Slots,
    into: Slots,
}

impl Messages {
    fn new(domain: &Domain, shape: &MessageShape, window: usize) -> Result<Self> {
        Ok(Self { out: Slots::new(domain, shape, window)?, into: Slots::new(domain, shape, window)? })
    }

    /// Handles a completion.
    #[inline]
    fn take(&mut self, entry: &Entry) -> Result<()> {
        let slot = (entry.context & (RECEIVE - 1)) as usize;
        if entry.context & RECEIVE == 0 {
            self.out.complete(slot);
            return Ok(());
        }
        self.into.complete(slot);
        let wanted = self.into.segments[slot].len();
        if entry.len == wanted as u64 {
            Ok(())
        } else {
            Err(Failure::Data(format!("{} bytes arrived instead of {wanted}", entry.len)))
        }
    }
}

/// One side of the measurement.
// The order of the fields matters: the endpoint closes and ends all operations before the memory is freed.
pub(super) struct Percale {
    node: Node,
    messages: Messages,
    bytes: usize,
    window: usize,
    tagged: bool,
    /// The number of messages of the current stream.
    stream: u64,
}

impl Percale {
    /// Makes a side that uses this endpoint.
    pub(super) fn new(node: Node) -> Result<Self> {
        let shape = MessageShape { op: MeasuredOperation::TaggedLatency, bytes: 8, memory: MessageMemory::Ordinary };
        let messages = Messages::new(&node.domain, &shape, 1)?;
        Ok(Self { node, messages, bytes: 8, window: 1, tagged: true, stream: 0 })
    }

    /// Makes progress, and handles completions. Returns whether there were any.
    #[inline]
    fn poll(&mut self) -> Result<bool> {
        self.node.poll(|entry| self.messages.take(entry))
    }

    /// Polls until `done` returns true.
    #[inline]
    fn until(&mut self, watch: &mut Watch, done: impl Fn(&Self) -> bool) -> Result<()> {
        let mut spin = Spin::default();
        while !done(self) {
            if !self.poll()? {
                spin.polled(watch)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn post_send(&mut self, slot: usize, tag: Option<u64>, watch: &mut Watch) -> Result<()> {
        let (peer, segment, flags) = (self.node.peer, self.messages.out.segments[slot], OpFlags::COMPLETION);
        let post = |endpoint: &percale::Endpoint| {
            // SAFETY: the slot's memory exists and is not accessed until the completion (see `Block`).
            unsafe { endpoint.post_send_one(peer, segment, tag, None, slot as u64, flags) }
        };
        self.node.post("sending", watch, post, |entry| self.messages.take(entry))?;
        self.messages.out.post(slot);
        Ok(())
    }

    /// Injects a short message, so that its memory can be used again immediately. Applications with many short messages
    /// do the same.
    #[inline]
    fn inject(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        let (peer, segment, tag) = (self.node.peer, self.messages.out.segments[slot], self.tag());
        let post = |endpoint: &percale::Endpoint| {
            // SAFETY: the slot's memory exists for the duration of the call, and is not accessed otherwise.
            unsafe { endpoint.post_send_one(peer, segment, tag, None, 0, OpFlags::INJECT) }
        };
        self.node.post("sending", watch, post, |entry| self.messages.take(entry))
    }

    #[inline]
    fn post_receive(&mut self, slot: usize, tag: Option<u64>, watch: &mut Watch) -> Result<()> {
        let segment = self.messages.into.segments[slot];
        let (from, context) = (PeerAddress::UNSPECIFIED, RECEIVE | slot as u64);
        let (tag, flags) = (tag.map(|tag| (tag, 0)), OpFlags::COMPLETION);
        let post = |endpoint: &percale::Endpoint| {
            // The operation may complete while it is posted, but only `poll` reads completions. SAFETY: as in
            // `post_send`.
            unsafe { endpoint.post_recv_one(from, segment, tag, context, flags) }
        };
        self.node.post("receiving", watch, post, |entry| self.messages.take(entry))?;
        self.messages.into.post(slot);
        Ok(())
    }

    #[inline]
    fn tag(&self) -> Option<u64> {
        self.tagged.then_some(TAG)
    }

    #[inline]
    fn fill(&mut self, slot: usize, content: Content) {
        let out = &self.messages.out;
        let start = out.starts[slot];
        content.write_to(self.bytes, |at, bytes| out.block.write(start + at, bytes));
    }

    #[inline]
    fn compare(&self, slot: usize, content: Content) -> Result<()> {
        let into = &self.messages.into;
        let start = into.starts[slot];
        content.check_from(self.bytes, |at, to| into.block.read(start + at, to))
    }
}

impl Subject for Percale {
    fn prepare(&mut self, shape: &MessageShape) -> Result<()> {
        if self.messages.out.pending + self.messages.into.pending > 0 {
            return Err(Failure::Protocol("operations of the previous series are still in progress".into()));
        }
        self.bytes = shape.bytes;
        self.tagged = shape.op != MeasuredOperation::MessageLatency;
        self.window = if shape.op.pattern() == Pattern::Stream { shape.window() } else { 1 };
        self.messages = Messages::new(&self.node.domain, shape, self.window)?;
        Ok(())
    }

    #[inline]
    fn write(&mut self, content: Content, watch: &mut Watch) -> Result<()> {
        self.until(watch, |this| !this.messages.out.busy[0])?;
        self.fill(0, content);
        Ok(())
    }

    #[inline]
    fn expect(&mut self, watch: &mut Watch) -> Result<()> {
        self.post_receive(0, self.tag(), watch)
    }

    #[inline]
    fn send(&mut self, watch: &mut Watch) -> Result<()> {
        self.post_send(0, self.tag(), watch)
    }

    #[inline]
    fn receive(&mut self, watch: &mut Watch) -> Result<()> {
        self.until(watch, |this| !this.messages.into.busy[0])
    }

    #[inline]
    fn check(&mut self, content: Content) -> Result<()> {
        self.compare(0, content)
    }

    fn end(&mut self, watch: &mut Watch) -> Result<()> {
        self.until(watch, |this| this.messages.out.pending == 0)
    }

    #[inline]
    fn stream_out(&mut self, index: u64, content: Content, watch: &mut Watch) -> Result<()> {
        let slot = index as usize % self.window;
        if self.messages.out.busy[slot] {
            self.until(watch, |this| !this.messages.out.busy[slot])?;
        }
        self.fill(slot, content);
        if self.bytes <= INJECTED {
            return self.inject(slot, watch);
        }
        self.post_send(slot, self.tag(), watch)
    }

    fn flush(&mut self, watch: &mut Watch) -> Result<()> {
        self.end(watch)
    }

    fn expect_stream(&mut self, count: u64, watch: &mut Watch) -> Result<()> {
        self.stream = count;
        for slot in 0..self.window.min(count as usize) {
            self.post_receive(slot, self.tag(), watch)?;
        }
        Ok(())
    }

    #[inline]
    fn stream_in(&mut self, index: u64, content: Content, watch: &mut Watch) -> Result<()> {
        // Receives with one tag are matched in order, and messages of one peer arrive in order. Therefore message
        // `index` is in the slot that was posted as number `index`, regardless of the order of completions.
        let slot = index as usize % self.window;
        self.until(watch, |this| !this.messages.into.busy[slot])?;
        self.compare(slot, content)?;
        if index + (self.window as u64) < self.stream {
            self.post_receive(slot, self.tag(), watch)?;
        }
        Ok(())
    }

    fn answer(&mut self, watch: &mut Watch) -> Result<()> {
        self.post_send(LAST, Some(ANSWER), watch)?;
        self.end(watch)
    }

    fn await_answer(&mut self, watch: &mut Watch) -> Result<()> {
        self.post_receive(LAST, Some(ANSWER), watch)?;
        self.until(watch, |this| !this.messages.into.busy[LAST])
    }

    fn progress(&mut self) -> Result<()> {
        self.node.progress();
        Ok(())
    }
}
