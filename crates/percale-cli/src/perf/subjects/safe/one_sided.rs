//! percale's one-sided operations by the safe API.
//!
//! The two sides exchange the same messages as those by the raw API (`super::super::one_sided`).

use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use percale::endpoint::safe::{Element, OperationError, Received};
use percale::{Access, Buffer, Domain, Endpoint, Entry, PeerAddress, Region, RemoteMemory};

use super::super::exposed::ExposedMemory;
use super::super::node::Node;
use super::super::one_sided::{ARRIVAL, MARK, OVER, REGION};
use super::{OnEndpoint, Waits, buffer, fill, lost, make_room, post};
use crate::channel::watch::{Spin, Watch};
use crate::failure::{Failure, Result, percale};
use crate::pattern::{CheckedPart, Content, MessageDirection};
use crate::round::{MessageShape, Round};
use crate::row::{MeasuredOperation, MessageMemory};
use crate::subject::{Lender, Subject};

/// The number of additions of the owner between two looks for the end of the round. It polls after each addition, as
/// with the raw API, so that it adds as often.
const ADDITIONS: u64 = 64;

/// Memory that the other side may access.
enum Exposed {
    /// The memory of all operations but one.
    Region(Region),
    /// Memory in which this side also adds to a word, which a region has no operation for.
    Word(ExposedMemory),
}

impl Exposed {
    fn new(domain: &Domain, shape: &MessageShape) -> Result<Self> {
        let len = (shape.slots() - 1) * shape.stride() + shape.bytes;
        if shape.op == MeasuredOperation::FetchAdd {
            return Ok(Self::Word(ExposedMemory::new(domain, shape.memory, len)?));
        }
        let memory = buffer(domain, shape.memory, len)?;
        let registration = domain.registration(Access::REMOTE_READ | Access::REMOTE_WRITE);
        Ok(Self::Region(registration.own(memory).map_err(percale("registering memory"))?))
    }

    fn remote(&self) -> RemoteMemory {
        match self {
            Self::Region(region) => region.remote(),
            Self::Word(memory) => memory.remote(),
        }
    }

    #[inline]
    fn read(&self, at: usize, to: &mut [u8]) {
        match self {
            Self::Region(region) => region.read(at, to),
            Self::Word(memory) => memory.block().read(at, to),
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Self::Region(region) => region.write(at, bytes),
            Self::Word(memory) => memory.block().write(at, bytes),
        }
    }

    #[inline]
    fn read_word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.read(at, &mut word);
        u64::from_ne_bytes(word)
    }
}

/// The state of a side that lasts longer than a round.
struct State {
    exposed: Exposed,
    shape: MessageShape,
    local: Option<Buffer>,
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

impl State {
    fn new(domain: &Domain, shape: &MessageShape) -> Result<Self> {
        let (exposed, local) = (Exposed::new(domain, shape)?, Some(buffer(domain, shape.memory, shape.bytes)?));
        Ok(Self { exposed, shape: *shape, local, theirs: None, sent: 0, received: 0, next: 0, in_order: true })
    }
}

/// One side of the measurement.
pub(in super::super) struct SafeOneSided {
    state: State,
    node: Node,
}

impl SafeOneSided {
    /// Makes a side that uses this endpoint.
    pub(in super::super) fn new(node: Node) -> Result<Self> {
        let shape = MessageShape { op: MeasuredOperation::Put, bytes: 8, memory: MessageMemory::Ordinary };
        Ok(Self { state: State::new(&node.domain, &shape)?, node })
    }
}

impl Lender for SafeOneSided {
    type Side<'a> = Side<'a>;

    fn prepare(&mut self, shape: &MessageShape) -> Result<()> {
        self.state = State::new(&self.node.domain, shape)?;
        Ok(())
    }

    fn side(&mut self) -> Side<'_> {
        let (endpoint, peer) = (&self.node.endpoint, self.node.peer);
        Side { endpoint, peer, state: &mut self.state, writing: None, waits: Waits::new() }
    }

    fn progress(&mut self) -> Result<()> {
        self.node.progress();
        Ok(())
    }
}

/// One side of a round.
pub(in super::super) struct Side<'a> {
    endpoint: &'a Endpoint,
    peer: PeerAddress,
    state: &'a mut State,
    /// For put-latency: the last write, which owns the local buffer.
    writing: Option<OnEndpoint<'a, Buffer>>,
    waits: Waits,
}

impl<'a> Side<'a> {
    /// Sends the description of this side's memory to the other side, or announces the end of the round.
    fn send_description(&mut self, tag: u64, watch: &mut Watch) -> Result<()> {
        let (endpoint, peer) = (self.endpoint, self.peer);
        let description = Buffer::from(self.state.exposed.remote().to_bytes().to_vec());
        let start = |buffer| endpoint.tagged_send(peer, tag, buffer).start();
        let mut sending = post("sending", endpoint, description, watch, start)?;
        self.waits.result(&mut sending, watch).map(drop)
    }

    /// Posts the receive for the description of the other side's memory, or for the message that ends the round.
    fn expect_description(&self, tag: u64, watch: &mut Watch) -> Result<OnEndpoint<'a, Received>> {
        let endpoint = self.endpoint;
        let start = |buffer| endpoint.tagged_recv(tag, 0, buffer).start();
        post("receiving", endpoint, Buffer::zeroed(RemoteMemory::BYTES), watch, start)
    }

    /// Waits for the description of the other side's memory.
    fn wait_description(&mut self, mut receiving: OnEndpoint<'a, Received>, watch: &mut Watch) -> Result<()> {
        let bytes = self.waits.result(&mut receiving, watch)?.to_vec();
        let least = self.state.shape.bytes as u64;
        let theirs = RemoteMemory::from_bytes(&bytes).ok().filter(|theirs| theirs.len >= least);
        self.state.theirs = theirs;
        theirs.map(drop).ok_or_else(|| Failure::Protocol("too little remote memory".into()))
    }

    /// Returns a slot of the other side's memory.
    #[inline(always)]
    fn remote(&self, slot: usize) -> Result<RemoteMemory> {
        self.state.shape.slot_of(self.state.theirs, slot)
    }

    /// Returns the offset of a slot in this side's memory.
    #[inline]
    const fn start(&self, slot: usize) -> usize {
        slot * self.state.shape.stride()
    }

    #[inline]
    fn start_write(&mut self, slot: usize, watch: &mut Watch) -> Result<OnEndpoint<'a, Buffer>> {
        let (endpoint, peer, remote) = (self.endpoint, self.peer, self.remote(slot)?);
        let local = self.state.local.take().ok_or_else(lost)?;
        let start = |buffer| endpoint.write(peer, buffer, remote).start();
        post("writing the other side's memory", endpoint, local, watch, start)
    }

    #[inline]
    fn get(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        let (endpoint, peer, remote) = (self.endpoint, self.peer, self.remote(slot)?);
        let local = self.state.local.take().ok_or_else(lost)?;
        let start = |buffer| endpoint.read(peer, remote, buffer).start();
        let mut reading = post("reading the other side's memory", endpoint, local, watch, start)?;
        self.state.local = Some(self.waits.result(&mut reading, watch)?);
        Ok(())
    }

    #[inline]
    fn put(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        let mut writing = self.start_write(slot, watch)?;
        self.state.local = Some(self.waits.result(&mut writing, watch)?);
        Ok(())
    }

    /// Makes an atomic operation. All of them change one word. Returns the value that it found.
    #[inline]
    fn atomic<T: Element>(
        &mut self,
        watch: &mut Watch,
        start: impl Fn(RemoteMemory) -> Result<OnEndpoint<'a, T>, OperationError>,
    ) -> Result<T> {
        let remote = self.remote(0)?;
        let mut spin = Spin::default();
        loop {
            match start(remote) {
                Ok(mut operation) => return self.waits.result(&mut operation, watch),
                Err(error) => {
                    make_room("changing the other side's memory", error, self.endpoint, &mut spin, watch)?;
                }
            }
        }
    }

    /// Waits until the last write has returned the local buffer.
    #[inline]
    fn written(&mut self, watch: &mut Watch) -> Result<()> {
        if let Some(writing) = &mut self.writing {
            self.state.local = Some(self.waits.result(writing, watch)?);
            self.writing = None;
        }
        Ok(())
    }

    /// Checks the data that the other side has written to this side's memory. `own` is the number of additions by this
    /// side.
    fn verify(&self, slots: usize, round: &Round, own: u64) -> Result<()> {
        let exposed = &self.state.exposed;
        match self.state.shape.op {
            MeasuredOperation::Put => round.last_of_slots(slots).try_for_each(|index| {
                let start = self.start(round.slot(index, slots));
                let checked = round.checked(index, MessageDirection::There);
                checked.check_from(self.state.shape.bytes, |at, to| exposed.read(start + at, to))
            }),
            op if op.is_atomic() && round.check != CheckedPart::Nothing => {
                let (sum, wanted) = (exposed.read_word(0), round.accesses().wrapping_add(own));
                if sum == wanted {
                    Ok(())
                } else {
                    Err(Failure::Data(format!("the word is {sum} after {wanted} operations")))
                }
            }
            _ => Ok(()),
        }
    }

    /// Writes the content that the other side reads.
    fn fill(&mut self, slots: usize, round: &Round) {
        for index in round.last_of_slots(slots) {
            let slot = round.slot(index, slots);
            let start = self.start(slot);
            let written = round.written(slot as u64, MessageDirection::Back);
            written.write_to(self.state.shape.bytes, |at, bytes| self.state.exposed.write(start + at, bytes));
        }
    }
}

impl Subject for Side<'_> {
    fn prepare(&mut self, _shape: &MessageShape) -> Result<()> {
        Err(Failure::Protocol("a round is in progress".into()))
    }

    #[inline]
    fn write(&mut self, content: Content, watch: &mut Watch) -> Result<()> {
        let bytes = self.state.shape.bytes;
        match self.state.shape.op {
            op if op.is_atomic() => return Ok(()),
            MeasuredOperation::PutLatency => {
                if self.state.theirs.is_none() {
                    let receiving = self.expect_description(REGION, watch)?;
                    self.send_description(REGION, watch)?;
                    self.wait_description(receiving, watch)?;
                }
                self.written(watch)?;
                self.state.sent += 1;
                let buffer = self.state.local.as_mut().ok_or_else(lost)?;
                fill(buffer, content, bytes - MARK);
                let _copied: usize = buffer.copy_from(bytes - MARK, &self.state.sent.to_ne_bytes());
            }
            _ => fill(self.state.local.as_mut().ok_or_else(lost)?, content, bytes),
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self, watch: &mut Watch) -> Result<()> {
        self.writing = Some(self.start_write(0, watch)?);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, watch: &mut Watch) -> Result<()> {
        self.state.received += 1;
        let mut spin = Spin::default();
        while self.state.exposed.read_word(self.state.shape.bytes - MARK) != self.state.received {
            if !self.endpoint.progress() {
                spin.polled(watch)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn check(&mut self, content: Content) -> Result<()> {
        let state = &*self.state;
        match state.shape.op {
            MeasuredOperation::Get => {
                let local = state.local.as_ref().ok_or_else(lost)?;
                content.check_from(state.shape.bytes, |at, to| {
                    local.copy_to(at, to);
                })
            }
            MeasuredOperation::PutLatency if state.shape.bytes > MARK => {
                let mut start = None;
                loop {
                    // The bytes of one write arrive in any order, so the mark may arrive before the rest.
                    match content.check_from(state.shape.bytes - MARK, |at, to| state.exposed.read(at, to)) {
                        Err(error) if start.get_or_insert_with(Instant::now).elapsed() > ARRIVAL => return Err(error),
                        Err(_) => std::hint::spin_loop(),
                        Ok(()) => return Ok(()),
                    }
                }
            }
            op if op.is_atomic() && !state.in_order => {
                Err(Failure::Data(format!("{} returned a wrong value", op.name())))
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, watch: &mut Watch) -> Result<()> {
        self.written(watch)
    }

    fn reach(&mut self, _round: &Round, watch: &mut Watch) -> Result<()> {
        (self.state.next, self.state.in_order) = (0, true);
        let receiving = self.expect_description(REGION, watch)?;
        self.wait_description(receiving, watch)
    }

    #[inline]
    fn access(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        let (endpoint, peer, next) = (self.endpoint, self.peer, self.state.next);
        let found = match self.state.shape.op {
            MeasuredOperation::Get => return self.get(slot, watch),
            op if !op.is_atomic() => return self.put(slot, watch),
            MeasuredOperation::CompareSwap => {
                self.atomic(watch, |remote| endpoint.compare_swap(peer, remote, next, next + 1).start())?
            }
            _ => self.atomic(watch, |remote| endpoint.fetch_add(peer, remote, 1_u64).start())?,
        };
        // In fetch-add, the other side adds to the same word as this side.
        self.state.in_order &= found == next || self.state.shape.op == MeasuredOperation::FetchAdd && found > next;
        self.state.next = found.wrapping_add(1);
        Ok(())
    }

    fn leave(&mut self, _round: &Round, watch: &mut Watch) -> Result<()> {
        self.send_description(OVER, watch)
    }

    fn serve(&mut self, slots: usize, round: &Round, watch: &mut Watch) -> Result<()> {
        match self.state.shape.op {
            MeasuredOperation::Get => self.fill(slots, round),
            op if op.is_atomic() => self.state.exposed.write(0, &[0; 8]),
            _ => {}
        }
        let mut over = self.expect_description(OVER, watch)?;
        self.send_description(REGION, watch)?;
        let mut own = 0_u64;
        let mut spin = Spin::of_a_round();
        while !(own.is_multiple_of(ADDITIONS) && over.is_ready()) {
            if let Exposed::Word(memory) = &self.state.exposed {
                memory.block().word(0).fetch_add(1, SeqCst);
                own += 1;
                self.endpoint.poll(&mut [Entry::default(); 32]).map_err(percale("carrying messages"))?;
            }
            spin.polled(watch)?;
        }
        self.waits.result(&mut over, watch)?;
        self.verify(slots, round, own)
    }

    fn progress(&mut self) -> Result<()> {
        let _happened: bool = self.endpoint.progress();
        Ok(())
    }
}
