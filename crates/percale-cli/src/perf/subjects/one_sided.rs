//! percale's one-sided operations by the raw API, as a subject of rounds.
//!
//! Each side has memory that the other may access, and sends its description to the other side at the start of a round.
//! For accesses, the near side makes them one at a time. The far side makes progress until a message announces the end
//! of the round, and then checks the contents. For put-latency, each side writes the other's memory and polls the last
//! 8 bytes of its own, which count the messages.

#![expect(
    unsafe_code,
    reason = "posts raw operations on memory that this object owns; each block states why it is sound"
)]

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use percale::{Endpoint, Entry, OpFlags, PeerAddress, PostError, ReceiveWork, RemoteMemory, SendWork};

use super::block::Block;
use super::exposed::ExposedMemory;
use super::node::Node;
use crate::channel::watch::{Spin, Watch};
use crate::failure::{Failure, Result};
use crate::pattern::{CheckedPart, Content, MessageDirection};
use crate::round::{MessageShape, Round};
use crate::row::{MeasuredOperation, MessageMemory};
use crate::subject::Subject;

/// The tag of messages that describe a region, and the tag of messages that end a round.
pub(super) const REGION: u64 = 0x7065_7263_616c_6510;
pub(super) const OVER: u64 = REGION + 1;

/// Contexts of operations. Each is a bit that is set in `pending` while the operation is outstanding.
const ACCESS: u64 = 1;
const SEND: u64 = 2;
const RECEIVE: u64 = 4;

/// The offsets of words and messages in the local memory. They follow the data that is written or read. Each has its
/// own cache line.
const OPERAND: usize = 0;
const COMPARE: usize = 64;
const RESULT: usize = 128;
const TELL: usize = 192;
const TOLD: usize = 256;
const PLACES: usize = 320;

/// The length of the polled mark at the end of a message.
pub(super) const MARK: usize = 8;

/// The time limit for the rest of a write to arrive after its last bytes.
pub(super) const ARRIVAL: Duration = Duration::from_millis(500);

/// One side of the measurement.
// The order of the fields matters: the memory that the other side may access is deregistered first. The endpoint closes
// and ends all operations before the local memory is freed.
pub(super) struct OneSided {
    exposed: ExposedMemory,
    node: Node,
    local: Block,
    shape: MessageShape,
    /// The bits of the outstanding operations.
    pending: u64,
    /// The other side's memory, once its description has arrived.
    theirs: Option<RemoteMemory>,
    /// For put-latency: the numbers of marks that were written and received.
    sent: u64,
    received: u64,
    /// The minimum value that the next atomic operation may return, and whether all operations so far have returned an
    /// allowed value.
    next: u64,
    in_order: bool,
}

impl OneSided {
    /// Makes a side that uses this endpoint.
    pub(super) fn new(node: Node) -> Result<Self> {
        let shape = MessageShape { op: MeasuredOperation::Put, bytes: 8, memory: MessageMemory::Ordinary };
        let exposed = ExposedMemory::new(&node.domain, shape.memory, shape.stride())?;
        let local = Block::new(&node.domain, shape.memory, shape.stride() + PLACES)?;
        let (pending, sent, received, next) = (0, 0, 0, 0);
        Ok(Self { exposed, node, local, shape, pending, theirs: None, sent, received, next, in_order: true })
    }

    #[inline]
    fn poll(&mut self) -> Result<bool> {
        let pending = &mut self.pending;
        self.node.poll(|entry| take(pending, entry))
    }

    /// Polls until no operation in `what` is outstanding.
    #[inline]
    fn until(&mut self, what: u64, watch: &mut Watch) -> Result<()> {
        let mut spin = Spin::default();
        while self.pending & what != 0 {
            if !self.poll()? {
                spin.polled(watch)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn post(
        &mut self,
        bit: u64,
        what: &'static str,
        watch: &mut Watch,
        post: impl Fn(&Endpoint) -> Result<(), PostError>,
    ) -> Result<()> {
        let pending = &mut self.pending;
        self.node.post(what, watch, post, |entry| take(pending, entry))?;
        // Only `poll` reports whether the operation has completed.
        self.pending |= bit;
        Ok(())
    }

    /// Returns the offset of `place` after the local data.
    #[inline]
    const fn place(&self, place: usize) -> usize {
        self.shape.stride() + place
    }

    /// Sends the description of this side's memory to the other side, or announces the end of the round.
    fn send_description(&mut self, tag: u64, watch: &mut Watch) -> Result<()> {
        self.local.write(self.place(TELL), &self.exposed.remote().to_bytes());
        let segments = self.local.segments(self.place(TELL), RemoteMemory::BYTES);
        let work = SendWork {
            peer: self.node.peer,
            segments,
            tag: Some(tag),
            data: None,
            context: SEND,
            flags: OpFlags::COMPLETION,
        };
        // SAFETY: the memory exists and is not accessed until the completion.
        self.post(SEND, "sending", watch, |endpoint| unsafe { endpoint.post_send(&work) })?;
        self.until(SEND, watch)
    }

    /// Posts the receive for the description of the other side's memory, or for the message that ends the round.
    fn expect_description(&mut self, tag: u64, watch: &mut Watch) -> Result<()> {
        let segments = self.local.segments(self.place(TOLD), RemoteMemory::BYTES);
        let (from, tag) = (PeerAddress::UNSPECIFIED, Some((tag, 0)));
        let work = ReceiveWork { from, segments, tag, context: RECEIVE, flags: OpFlags::COMPLETION };
        // SAFETY: as in `send_description`.
        self.post(RECEIVE, "receiving", watch, |endpoint| unsafe { endpoint.post_recv(&work) })
    }

    /// Waits for the description of the other side's memory.
    fn wait_description(&mut self, watch: &mut Watch) -> Result<()> {
        self.until(RECEIVE, watch)?;
        let mut bytes = [0; RemoteMemory::BYTES];
        self.local.read(self.place(TOLD), &mut bytes);
        self.theirs = RemoteMemory::from_bytes(&bytes).ok().filter(|theirs| theirs.len >= self.shape.bytes as u64);
        self.theirs.map(drop).ok_or_else(|| Failure::Protocol("too little remote memory".into()))
    }

    #[inline]
    fn post_rma(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        let (peer, remote, flags) = (self.node.peer, self.shape.slot_of(self.theirs, slot)?, OpFlags::COMPLETION);
        let local = self.local.segment(0, self.shape.bytes);
        if self.shape.op == MeasuredOperation::Get {
            // SAFETY: the memory exists and is not accessed until the completion.
            self.post(ACCESS, "reading the other side's memory", watch, |endpoint| unsafe {
                endpoint.post_read_one(peer, local, remote, ACCESS, flags)
            })
        } else {
            // SAFETY: as above.
            self.post(ACCESS, "writing the other side's memory", watch, |endpoint| unsafe {
                endpoint.post_write_one(peer, local, remote, ACCESS, flags)
            })
        }
    }

    #[inline]
    fn post_atomic(&mut self, watch: &mut Watch) -> Result<()> {
        let swaps = self.shape.op == MeasuredOperation::CompareSwap;
        if swaps {
            self.local.word(self.place(OPERAND)).store(self.next + 1, Relaxed);
            self.local.word(self.place(COMPARE)).store(self.next, Relaxed);
        }
        let word = |place| self.local.segment(self.place(place), 8);
        let (operand, compare, result) = (word(OPERAND), word(COMPARE), word(RESULT));
        // All operations change one word.
        let (peer, remote, flags) = (self.node.peer, self.shape.slot_of(self.theirs, 0)?, OpFlags::COMPLETION);
        self.post(ACCESS, "changing the other side's memory", watch, |endpoint| {
            if swaps {
                let operands = [compare, operand];
                // SAFETY: as in `post_rma`. The words are not accessed before the completion.
                unsafe { endpoint.post_compare_swap(peer, operands, result, remote, ACCESS, flags) }
            } else {
                // SAFETY: as above.
                unsafe { endpoint.post_fetch_add(peer, operand, result, remote, ACCESS, flags) }
            }
        })
    }

    /// Checks the value that an atomic operation returned.
    #[inline]
    fn found(&mut self) {
        let found = self.local.word(self.place(RESULT)).load(Relaxed);
        // The other side adds to the same word as this side.
        let is_expected =
            if self.shape.op == MeasuredOperation::FetchAdd { found >= self.next } else { found == self.next };
        self.in_order &= is_expected;
        self.next = found.wrapping_add(1);
    }

    /// Writes the content that the other side reads.
    fn fill(&self, slots: usize, round: &Round) {
        for index in round.last_of_slots(slots) {
            let slot = round.slot(index, slots);
            let start = self.start(slot);
            let written = round.written(slot as u64, MessageDirection::Back);
            written.write_to(self.shape.bytes, |at, bytes| self.exposed.block().write(start + at, bytes));
        }
    }

    /// Returns the offset of a slot in this side's memory.
    const fn start(&self, slot: usize) -> usize {
        slot * self.shape.stride()
    }

    /// Checks the data that the other side has written to this side's memory. `own` is the number of additions by this
    /// side.
    fn verify(&self, slots: usize, round: &Round, own: u64) -> Result<()> {
        match self.shape.op {
            MeasuredOperation::Put => round.last_of_slots(slots).try_for_each(|index| {
                let start = self.start(round.slot(index, slots));
                let checked = round.checked(index, MessageDirection::There);
                checked.check_from(self.shape.bytes, |at, to| self.exposed.block().read(start + at, to))
            }),
            op if op.is_atomic() && round.check != CheckedPart::Nothing => {
                let (sum, wanted) = (self.exposed.block().word(0).load(SeqCst), round.accesses().wrapping_add(own));
                if sum == wanted {
                    Ok(())
                } else {
                    Err(Failure::Data(format!("the word is {sum} after {wanted} operations")))
                }
            }
            _ => Ok(()),
        }
    }
}

/// Handles a completion.
#[inline]
fn take(pending: &mut u64, entry: &Entry) -> Result<()> {
    *pending &= !entry.context;
    Ok(())
}

impl Subject for OneSided {
    fn prepare(&mut self, shape: &MessageShape) -> Result<()> {
        if self.pending != 0 {
            return Err(Failure::Protocol("operations of the previous series are still in progress".into()));
        }
        self.shape = *shape;
        let len = (shape.slots() - 1) * shape.stride() + shape.bytes;
        self.exposed = ExposedMemory::new(&self.node.domain, shape.memory, len)?;
        self.local = Block::new(&self.node.domain, shape.memory, shape.stride() + PLACES)?;
        self.local.word(self.place(OPERAND)).store(1, Relaxed);
        (self.theirs, self.sent, self.received) = (None, 0, 0);
        Ok(())
    }

    #[inline]
    fn write(&mut self, content: Content, watch: &mut Watch) -> Result<()> {
        let mut len = self.shape.bytes;
        match self.shape.op {
            op if op.is_atomic() => return Ok(()),
            MeasuredOperation::PutLatency => {
                if self.theirs.is_none() {
                    self.expect_description(REGION, watch)?;
                    self.send_description(REGION, watch)?;
                    self.wait_description(watch)?;
                }
                self.until(ACCESS, watch)?;
                len -= MARK;
                self.sent += 1;
                self.local.word(len).store(self.sent, Relaxed);
            }
            _ => {}
        }
        content.write_to(len, |at, bytes| self.local.write(at, bytes));
        Ok(())
    }

    #[inline]
    fn send(&mut self, watch: &mut Watch) -> Result<()> {
        self.post_rma(0, watch)
    }

    #[inline]
    fn receive(&mut self, watch: &mut Watch) -> Result<()> {
        self.received += 1;
        let mut spin = Spin::default();
        while self.exposed.block().word(self.shape.bytes - MARK).load(Acquire) != self.received {
            if !self.poll()? {
                spin.polled(watch)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn check(&mut self, content: Content) -> Result<()> {
        let get = |from: &Block, len: usize| content.check_from(len, |at, to| from.read(at, to));
        match self.shape.op {
            MeasuredOperation::Get => get(&self.local, self.shape.bytes),
            MeasuredOperation::PutLatency if self.shape.bytes > MARK => {
                let len = self.shape.bytes - MARK;
                let mut start = None;
                loop {
                    // The bytes of one write arrive in any order, so the mark may arrive before the rest.
                    match get(self.exposed.block(), len) {
                        Err(error) if start.get_or_insert_with(Instant::now).elapsed() > ARRIVAL => return Err(error),
                        Err(_) => std::hint::spin_loop(),
                        Ok(()) => return Ok(()),
                    }
                }
            }
            op if op.is_atomic() && !self.in_order => {
                Err(Failure::Data(format!("{} returned a wrong value", op.name())))
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, watch: &mut Watch) -> Result<()> {
        self.until(ACCESS | SEND, watch)
    }

    fn reach(&mut self, _round: &Round, watch: &mut Watch) -> Result<()> {
        (self.next, self.in_order) = (0, true);
        self.expect_description(REGION, watch)?;
        self.wait_description(watch)
    }

    #[inline]
    fn access(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        if self.shape.op.is_atomic() {
            self.post_atomic(watch)?;
            self.until(ACCESS, watch)?;
            self.found();
            return Ok(());
        }
        self.post_rma(slot, watch)?;
        self.until(ACCESS, watch)
    }

    fn leave(&mut self, _round: &Round, watch: &mut Watch) -> Result<()> {
        self.send_description(OVER, watch)
    }

    fn serve(&mut self, slots: usize, round: &Round, watch: &mut Watch) -> Result<()> {
        let adds = self.shape.op == MeasuredOperation::FetchAdd;
        match self.shape.op {
            MeasuredOperation::Get => self.fill(slots, round),
            op if op.is_atomic() => self.exposed.block().word(0).store(0, SeqCst),
            _ => {}
        }
        self.expect_description(OVER, watch)?;
        self.send_description(REGION, watch)?;
        let mut own = 0;
        let mut spin = Spin::of_a_round();
        while self.pending & RECEIVE != 0 {
            if adds {
                self.exposed.block().word(0).fetch_add(1, SeqCst);
                own += 1;
            }
            if !self.poll()? {
                spin.polled(watch)?;
            }
        }
        self.verify(slots, round, own)
    }

    fn progress(&mut self) -> Result<()> {
        self.node.progress();
        Ok(())
    }
}
