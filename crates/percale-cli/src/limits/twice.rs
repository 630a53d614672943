//! The limit of accesses to memory that can neither be mapped nor be copied by the kernel: two overlapping copies. One
//! core copies chunks into a shared buffer, and the other core copies them out.

use std::sync::atomic::Ordering::{Acquire, Release};

use super::ring;
use super::shared::{LimitSide, Shared};
use crate::channel::watch::{Spin, Watch};
use crate::failure::{Failure, Result};
use crate::pattern::{Content, MessageDirection};
use crate::round::{MessageShape, Round, SLOTS_MEMORY};
use crate::row::{MeasuredOperation, MessageMemory};
use crate::subject::Subject;

/// The size of a chunk in bytes.
const CHUNK: usize = 16 << 10;
const CHUNKS: u64 = 4;

/// One side of the two copies.
#[derive(Debug)]
pub(crate) struct Twice {
    shared: Shared,
    side: LimitSide,
    shape: MessageShape,
    private: Vec<u8>,
    /// The number of requested accesses.
    requested: u64,
    sent: u64,
    received: u64,
}

impl Twice {
    pub(crate) fn new(shared: Shared, side: LimitSide) -> Self {
        let shape = MessageShape { op: MeasuredOperation::Put, bytes: 8, memory: MessageMemory::Bounced };
        Self { shared, side, shape, private: Vec::new(), requested: 0, sent: 0, received: 0 }
    }

    /// Copies a slot into the shared buffer, chunk by chunk as room becomes free.
    fn send(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        const { assert!(CHUNK * CHUNKS as usize <= ring::BUFFER, "the buffers hold all chunks") };
        let (ours, theirs) = (&self.shared.ring(self.side).taken, &self.shared.ring(self.side.other()).taken);
        let start = slot * self.shape.stride();
        for chunk in self.private[start..start + self.shape.bytes].chunks(CHUNK) {
            let mut spin = Spin::default();
            while theirs.mark.load(Acquire) + CHUNKS <= self.sent {
                spin.turn(watch)?;
            }
            self.shared.put(self.side, (self.sent % CHUNKS) as usize * CHUNK, chunk);
            self.sent += 1;
            ours.value.store(self.sent, Release);
        }
        Ok(())
    }

    /// Copies a slot out of the shared buffer as its chunks arrive.
    fn receive(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        let (ours, theirs) = (&self.shared.ring(self.side).taken, &self.shared.ring(self.side.other()).taken);
        let start = slot * self.shape.stride();
        for chunk in self.private[start..start + self.shape.bytes].chunks_mut(CHUNK) {
            let mut spin = Spin::default();
            while theirs.value.load(Acquire) <= self.received {
                spin.turn(watch)?;
            }
            self.shared.get(self.side.other(), (self.received % CHUNKS) as usize * CHUNK, chunk);
            self.received += 1;
            ours.mark.store(self.received, Release);
        }
        Ok(())
    }
}

impl Subject for Twice {
    fn prepare(&mut self, shape: &MessageShape) -> Result<()> {
        if !matches!(shape.op, MeasuredOperation::Put | MeasuredOperation::Get) {
            return Err(Failure::Protocol(format!("cannot measure {}", shape.op.name())));
        }
        self.shape = *shape;
        self.private = vec![0; SLOTS_MEMORY.max(shape.stride())];
        Ok(())
    }

    fn write(&mut self, content: Content, _watch: &mut Watch) -> Result<()> {
        content.fill(&mut self.private[..self.shape.bytes]);
        Ok(())
    }

    fn check(&mut self, content: Content) -> Result<()> {
        if self.shape.op == MeasuredOperation::Get { content.check(&self.private[..self.shape.bytes]) } else { Ok(()) }
    }

    fn reach(&mut self, round: &Round, watch: &mut Watch) -> Result<()> {
        let mut spin = Spin::default();
        while self.shared.words().ready.value.load(Acquire) != round.number {
            spin.turn(watch)?;
        }
        Ok(())
    }

    fn access(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        self.requested += 1;
        let request = &self.shared.words().word;
        request.value.store(slot as u64, Release);
        request.mark.store(self.requested, Release);
        if self.shape.op == MeasuredOperation::Get {
            return self.receive(0, watch);
        }
        self.send(0, watch)?;
        let mut spin = Spin::default();
        while self.shared.ring(self.side.other()).taken.mark.load(Acquire) != self.sent {
            spin.turn(watch)?;
        }
        Ok(())
    }

    fn leave(&mut self, round: &Round, _watch: &mut Watch) -> Result<()> {
        self.shared.words().over.value.store(round.number, Release);
        Ok(())
    }

    fn serve(&mut self, slots: usize, round: &Round, watch: &mut Watch) -> Result<()> {
        let (bytes, stride) = (self.shape.bytes, self.shape.stride());
        let reads = self.shape.op == MeasuredOperation::Get;
        for index in round.last_of_slots(slots).filter(|_| reads) {
            let slot = round.slot(index, slots);
            round.written(slot as u64, MessageDirection::Back).fill(&mut self.private[slot * stride..][..bytes]);
        }
        self.shared.words().ready.value.store(round.number, Release);
        let mut spin = Spin::of_a_round();
        while self.shared.words().over.value.load(Acquire) != round.number {
            let request = &self.shared.words().word;
            if request.mark.load(Acquire) == self.requested {
                spin.turn(watch)?;
                continue;
            }
            let slot = request.value.load(Acquire) as usize;
            self.requested += 1;
            if reads {
                self.send(slot, watch)?;
            } else {
                self.receive(slot, watch)?;
            }
        }
        let written = round.last_of_slots(slots).filter(|_| !reads);
        written.into_iter().try_for_each(|index| {
            let slot = round.slot(index, slots);
            round.checked(index, MessageDirection::There).check(&self.private[slot * stride..][..bytes])
        })
    }
}
