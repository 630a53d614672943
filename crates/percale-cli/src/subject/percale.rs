//! percale, as the rounds see it: one endpoint in each process, on one transport, driven by the raw posting layer, as
//! a provider or a benchmark of another library would be.
//!
//! Every message has a slot: a place in the memory to send from and one in that to receive into. To and fro use slot 0,
//! streams all of the window in turn; the slot after the last is for the answer to a stream. A slot's memory is touched
//! only while no operation has it.

#![expect(unsafe_code, reason = "posts raw operations on memory that this object owns; each block says why")]

use std::net::SocketAddr;

use percale::memory::volatile::{Segment, Segments, View};
use percale::{
    AddressVector, Allocation, Domain, Endpoint, Entry, Info, OpFlags, PeerAddress, PostError, Progress, ReceiveWork,
    SendWork,
};

use super::{Place, Subject};
use crate::failure::{Failure, Result, percale};
use crate::pattern::Content;
use crate::perf::round::{Shape, WINDOW};
use crate::perf::watch::{Spin, Watch};
use crate::row::{Memory, Transport};

/// The tag of all measured messages, and that of answers to streams.
const TAG: u64 = 0x7065_7263_616c_6500;
const ANSWER: u64 = TAG + 1;

/// Messages of streams up to this length are injected.
const INJECTED: usize = 64;

/// The slot of the answer.
const LAST: usize = WINDOW;

/// In the context of a receive; the rest is the slot.
const RECEIVE: u64 = 1 << 32;

/// The distance of slots: every message starts a page or, if short, a cache line.
const fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(if bytes < 4096 { 64 } else { 4096 })
}

/// Memory of messages: kept, and reached by the segments only.
enum Store {
    Ordinary { _bytes: Vec<u8> },
    Percale { _allocation: Allocation },
}

impl Store {
    /// The segments of all slots: `window` of `bytes` each, then one of 8 bytes.
    fn new(domain: &Domain, memory: Memory, window: usize, bytes: usize) -> Result<(Self, Vec<Segments>)> {
        let (stride, len) = (stride(bytes), window * stride(bytes) + 64);
        let (store, base) = match memory {
            Memory::Ordinary => {
                // Aligned like what percale allocates, so that only the kind of memory differs.
                let mut bytes = vec![0_u8; len + 4096];
                let skip = bytes.as_ptr().align_offset(4096);
                let base = bytes.as_mut_ptr().wrapping_add(skip);
                (Self::Ordinary { _bytes: bytes }, base)
            }
            Memory::Percale => {
                let allocation = domain.allocate(len).map_err(percale("allocating memory"))?;
                let base = allocation.as_ptr();
                (Self::Percale { _allocation: allocation }, base)
            }
        };
        let slot = |slot: usize| {
            let (at, bytes) = if slot == LAST { (window * stride, 8) } else { (slot % window * stride, bytes) };
            // SAFETY: within the memory just made, which `Percale` keeps until its endpoint is gone; it is touched only
            // while no operation has the slot (`busy`, `awaited`).
            Segments::one(unsafe { Segment::new(base.wrapping_add(at), bytes) })
        };
        Ok((store, (0..=LAST).map(slot).collect()))
    }
}

/// The messages one way.
struct Slots {
    segments: Vec<Segments>,
    /// Whether an operation has the slot.
    busy: [bool; LAST + 1],
    /// How many do.
    pending: usize,
    /// Whose memory it is.
    _store: Store,
}

impl Slots {
    fn new(domain: &Domain, memory: Memory, window: usize, bytes: usize) -> Result<Self> {
        let (store, segments) = Store::new(domain, memory, window, bytes)?;
        Ok(Self { segments, busy: [false; LAST + 1], pending: 0, _store: store })
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

/// One side.
// The order of the fields matters: the endpoint closes, and ends all operations, before the memory goes.
pub(super) struct Percale {
    endpoint: Endpoint,
    vector: AddressVector,
    domain: Domain,
    peer: PeerAddress,
    out: Slots,
    into: Slots,
    bytes: usize,
    window: usize,
    tagged: bool,
    /// How many messages the stream under way has.
    stream: u64,
    entries: [Entry; 32],
}

impl Percale {
    /// Opens an endpoint on `transport`; its peer is not known yet.
    pub(super) fn open(transport: Transport, place: &Place) -> Result<Self> {
        let here = match place {
            Place::Local(_) => "127.0.0.1:0".into(),
            Place::Remote(address) => address.to_string(),
        };
        let info = Info::discover().map_err(percale("looking what is here"))?;
        let domain = info.domain().transport(transport.kind()).progress(Progress::Manual).open();
        let domain = domain.map_err(percale("opening a domain"))?;
        let vector = domain.address_vector().build().map_err(percale("making an address vector"))?;
        let endpoint = domain.endpoint().vector(&vector).bind(here.as_str()).map_err(percale("opening an endpoint"))?;
        let out = Slots::new(&domain, Memory::Ordinary, 1, 8)?;
        let into = Slots::new(&domain, Memory::Ordinary, 1, 8)?;
        Ok(Self {
            endpoint,
            vector,
            domain,
            peer: PeerAddress::UNSPECIFIED,
            out,
            into,
            bytes: 8,
            window: 1,
            tagged: true,
            stream: 0,
            entries: [Entry::default(); 32],
        })
    }

    /// Where this side is reached.
    pub(super) fn address(&self) -> SocketAddr {
        self.endpoint.address()
    }

    /// Tells this side where the other is reached.
    pub(super) fn meet(&mut self, address: Option<&str>) -> Result<()> {
        let address = address.ok_or_else(|| Failure::Protocol("no address".into()))?;
        self.peer = self.vector.insert(address).map_err(percale("inserting the other side's address"))?;
        Ok(())
    }

    /// Progress; takes completions in. Whether there were any.
    #[inline]
    fn poll(&mut self) -> Result<bool> {
        let count = match self.endpoint.poll(&mut self.entries) {
            Ok(count) => count,
            Err(error) => return Err(self.broken(&error)),
        };
        for entry in &self.entries[..count] {
            let slot = (entry.context & (RECEIVE - 1)) as usize;
            if entry.context & RECEIVE == 0 {
                self.out.complete(slot);
                continue;
            }
            self.into.complete(slot);
            let wanted = self.into.segments[slot].len();
            if entry.len != wanted as u64 {
                return Err(Failure::Data(format!("{} bytes arrived instead of {wanted}", entry.len)));
            }
        }
        Ok(count > 0)
    }

    #[cold]
    fn broken(&mut self, error: &impl std::fmt::Display) -> Failure {
        let why = match self.endpoint.read_error() {
            Some(entry) => format!("{error}: {entry:?}"),
            None => error.to_string(),
        };
        Failure::Percale { what: "carrying messages", why }
    }

    /// Polls until `done`.
    #[inline]
    fn until(&mut self, watch: &mut Watch, done: impl Fn(&Self) -> bool) -> Result<()> {
        let mut spin = Spin::default();
        while !done(self) {
            if !self.poll()? {
                spin.turn(watch)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn post_send(&mut self, slot: usize, tag: Option<u64>, watch: &mut Watch) -> Result<()> {
        let segments = self.out.segments[slot];
        let work =
            SendWork { peer: self.peer, segments, tag, data: None, context: slot as u64, flags: OpFlags::COMPLETION };
        let mut spin = Spin::default();
        loop {
            // SAFETY: the slot's memory stays and is left alone until the completion (see `Store`).
            match unsafe { self.endpoint.post_send(&work) } {
                Ok(()) => break,
                Err(PostError::Again) => {
                    self.poll()?;
                    spin.turn(watch)?;
                }
                Err(error) => return Err(percale("sending")(error)),
            }
        }
        self.out.post(slot);
        Ok(())
    }

    /// Sends a short message whose memory is free again at once, as programs with many of them do.
    #[inline]
    fn inject(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        let segments = self.out.segments[slot];
        let work =
            SendWork { peer: self.peer, segments, tag: self.tag(), data: None, context: 0, flags: OpFlags::INJECT };
        let mut spin = Spin::default();
        loop {
            // SAFETY: the slot's memory stays for the length of the call, and nobody else touches it.
            match unsafe { self.endpoint.post_send(&work) } {
                Ok(()) => return Ok(()),
                Err(PostError::Again) => {
                    self.poll()?;
                    spin.turn(watch)?;
                }
                Err(error) => return Err(percale("sending")(error)),
            }
        }
    }

    #[inline]
    fn post_receive(&mut self, slot: usize, tag: Option<u64>, watch: &mut Watch) -> Result<()> {
        let segments = self.into.segments[slot];
        let (from, context) = (PeerAddress::UNSPECIFIED, RECEIVE | slot as u64);
        let tag = tag.map(|tag| (tag, 0));
        let work = ReceiveWork { from, segments, tag, context, flags: OpFlags::COMPLETION };
        let mut spin = Spin::default();
        // The operation may complete while it is posted, but completions are read by `poll` only.
        loop {
            // SAFETY: as in `post_send`.
            match unsafe { self.endpoint.post_recv(&work) } {
                Ok(()) => break,
                Err(PostError::Again) => {
                    self.poll()?;
                    spin.turn(watch)?;
                }
                Err(error) => return Err(percale("receiving")(error)),
            }
        }
        self.into.post(slot);
        Ok(())
    }

    #[inline]
    fn tag(&self) -> Option<u64> {
        self.tagged.then_some(TAG)
    }

    #[inline]
    fn fill(&mut self, slot: usize, content: Content) {
        let segments = self.out.segments[slot];
        content.write_to(self.bytes, |at, bytes| {
            View::of(bytes).copy_into(&segments, at);
        });
    }

    #[inline]
    fn compare(&self, slot: usize, content: Content) -> Result<()> {
        let segments = &self.into.segments[slot];
        content.check_from(self.bytes, |at, to| {
            segments.copy_to(at, to);
        })
    }
}

impl Subject for Percale {
    fn prepare(&mut self, shape: &Shape) -> Result<()> {
        if self.out.pending + self.into.pending > 0 {
            return Err(Failure::Protocol("operations of the last row are still under way".into()));
        }
        self.bytes = shape.bytes;
        self.tagged = shape.tagged;
        self.window = if shape.stream { shape.window() } else { 1 };
        self.out = Slots::new(&self.domain, shape.memory, self.window, shape.bytes)?;
        self.into = Slots::new(&self.domain, shape.memory, self.window, shape.bytes)?;
        Ok(())
    }

    #[inline]
    fn write(&mut self, content: Content, watch: &mut Watch) -> Result<()> {
        self.until(watch, |this| !this.out.busy[0])?;
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
        self.until(watch, |this| !this.into.busy[0])
    }

    #[inline]
    fn check(&mut self, content: Content) -> Result<()> {
        self.compare(0, content)
    }

    fn end(&mut self, watch: &mut Watch) -> Result<()> {
        self.until(watch, |this| this.out.pending == 0)
    }

    #[inline]
    fn stream_out(&mut self, index: u64, content: Content, watch: &mut Watch) -> Result<()> {
        let slot = index as usize % self.window;
        if self.out.busy[slot] {
            self.until(watch, |this| !this.out.busy[slot])?;
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
        // Receives of one tag are matched in order, and messages of one peer arrive in order: message `index` is in
        // the slot that was posted as number `index`, whatever the order of the completions.
        let slot = index as usize % self.window;
        self.until(watch, |this| !this.into.busy[slot])?;
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
        self.until(watch, |this| !this.into.busy[LAST])
    }

    fn progress(&mut self) -> Result<()> {
        self.endpoint.progress();
        Ok(())
    }
}
