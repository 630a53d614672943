//! The limit of small messages through shared memory.
//!
//! There is one ring of 64 cache lines in each direction. Up to 8 bytes are transferred in the line itself, before its
//! mark. Longer payloads are copied to a shared buffer before the mark is set, and out of it after the mark is read.
//! The producer reads the consumer's count of consumed lines only after it has used all lines that were free at the
//! last reading.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::shared::{LINES, LimitSide, Shared};
use crate::channel::watch::{Spin, Watch};
use crate::failure::{Failure, Result};
use crate::pattern::Content;
use crate::round::MessageShape;
use crate::row::Pattern;
use crate::subject::Subject;

/// The maximum length of a message in the ring.
pub(crate) const LONGEST: usize = 8 << 10;

/// The size of the buffer for a full ring of the longest messages.
pub(crate) const BUFFER: usize = LINES as usize * LONGEST;

/// One side of the ring.
#[derive(Debug)]
pub(crate) struct LimitRing {
    shared: Shared,
    side: LimitSide,
    /// The numbers of lines sent, of lines received, and of sent lines that the other side is known to have consumed.
    sent: u64,
    received: u64,
    taken: u64,
    /// The number of positions in the shared buffer: one for ping-pongs, and one for each line for streams.
    places: u64,
    source: Vec<u8>,
    target: Vec<u8>,
}

impl LimitRing {
    pub(crate) const fn new(shared: Shared, side: LimitSide) -> Self {
        Self { shared, side, sent: 0, received: 0, taken: 0, places: 1, source: Vec::new(), target: Vec::new() }
    }

    /// Returns the position of the payload of message number `before`, counted from 0.
    #[inline]
    fn place(&self, before: u64) -> usize {
        (before % self.places) as usize * self.source.len().next_multiple_of(64)
    }
}

impl Subject for LimitRing {
    fn prepare(&mut self, shape: &MessageShape) -> Result<()> {
        if shape.bytes > LONGEST || self.shared.room() < BUFFER {
            return Err(Failure::Protocol(format!("a message of {} bytes is too long for the ring", shape.bytes)));
        }
        self.source = vec![0; shape.bytes];
        self.target = vec![0; shape.bytes];
        self.places = if shape.op.pattern() == Pattern::Stream { LINES } else { 1 };
        Ok(())
    }

    #[inline]
    fn write(&mut self, content: Content, _watch: &mut Watch) -> Result<()> {
        content.fill(&mut self.source);
        Ok(())
    }

    #[inline]
    fn send(&mut self, watch: &mut Watch) -> Result<()> {
        let ring = self.shared.ring(self.side);
        if self.sent - self.taken == LINES {
            let mut spin = Spin::default();
            while self.sent - self.taken == LINES {
                self.taken = ring.taken.mark.load(Acquire);
                spin.turn(watch)?;
            }
        }
        let line = ring.line(self.sent);
        match <[u8; 8]>::try_from(self.source.as_slice()) {
            Ok(bytes) => line.value.store(u64::from_ne_bytes(bytes), Relaxed),
            Err(_) => self.shared.put(self.side, self.place(self.sent), &self.source),
        }
        self.sent += 1;
        line.mark.store(self.sent, Release);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, watch: &mut Watch) -> Result<()> {
        let ring = self.shared.ring(self.side.other());
        let line = ring.line(self.received);
        let mut spin = Spin::default();
        while line.mark.load(Acquire) != self.received + 1 {
            spin.turn(watch)?;
        }
        match <&mut [u8; 8]>::try_from(self.target.as_mut_slice()) {
            Ok(bytes) => *bytes = line.value.load(Relaxed).to_ne_bytes(),
            Err(_) => {
                let place = self.place(self.received);
                self.shared.get(self.side.other(), place, &mut self.target);
            }
        }
        self.received += 1;
        if self.received.is_multiple_of(LINES / 2) {
            ring.taken.mark.store(self.received, Release);
        }
        Ok(())
    }

    #[inline]
    fn check(&mut self, content: Content) -> Result<()> {
        content.check(&self.target)
    }

    #[inline]
    fn stream_out(&mut self, _index: u64, content: Content, watch: &mut Watch) -> Result<()> {
        self.write(content, watch)?;
        self.send(watch)
    }

    fn flush(&mut self, _watch: &mut Watch) -> Result<()> {
        Ok(())
    }

    fn expect_stream(&mut self, _count: u64, _watch: &mut Watch) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn stream_in(&mut self, _index: u64, content: Content, watch: &mut Watch) -> Result<()> {
        self.receive(watch)?;
        self.check(content)
    }

    fn answer(&mut self, watch: &mut Watch) -> Result<()> {
        self.send(watch)
    }

    fn await_answer(&mut self, watch: &mut Watch) -> Result<()> {
        self.receive(watch)
    }
}
