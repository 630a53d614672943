//! The limit of large messages through shared memory: one core copies a buffer that the other has written.
//!
//! The other side writes the shared buffer and sets a mark. If the row is `dirty`, it writes the whole buffer before
//! every message. Otherwise it writes the whole buffer once and then only its ends, as in the measurement that is
//! compared with this one. This side times one copy of the buffer to its private memory, and then sets a mark. Only the
//! copy is timed.

use std::sync::atomic::Ordering::{Acquire, Release};

use super::shared::{LimitSide, Shared};
use crate::channel::watch::{Spin, Watch};
use crate::clock::Clock;
use crate::failure::{Failure, Result};
use crate::pattern::{CheckedPart, MessageDirection};
use crate::round::{MessageShape, Round};
use crate::statistics::Samples;
use crate::subject::DynSubject;

/// One side of the copy.
#[derive(Debug)]
pub(crate) struct CopyLimit {
    shared: Shared,
    side: LimitSide,
    /// The numbers of marks that were set and received.
    sent: u64,
    received: u64,
    private: Vec<u8>,
}

impl CopyLimit {
    pub(crate) const fn new(shared: Shared, side: LimitSide) -> Self {
        Self { shared, side, sent: 0, received: 0, private: Vec::new() }
    }

    /// Sets a mark. The lines of the rings are used as single words here, because the two sides alternate.
    fn signal(&mut self) {
        self.sent += 1;
        self.shared.ring(self.side).taken.value.store(self.sent, Release);
    }

    /// Waits for the mark of the other side.
    fn wait(&mut self, watch: &mut Watch) -> Result<()> {
        self.received += 1;
        let mut spin = Spin::default();
        while self.shared.ring(self.side.other()).taken.value.load(Acquire) != self.received {
            spin.turn(watch)?;
        }
        Ok(())
    }
}

impl DynSubject for CopyLimit {
    fn prepare(&mut self, shape: &MessageShape) -> Result<()> {
        shape.check()?;
        if shape.bytes > self.shared.room() {
            return Err(Failure::Protocol(format!("{} bytes are too long for the shared buffer", shape.bytes)));
        }
        self.private = vec![0; shape.bytes];
        Ok(())
    }

    fn settings(&self) -> Vec<String> {
        vec![String::new()]
    }

    fn near(&mut self, round: &Round, clock: &Clock, watch: &mut Watch) -> Result<Samples> {
        let mut samples = Samples::with_room(round.count as usize);
        for index in 0..round.warm + round.count {
            self.wait(watch)?;
            let start = clock.now();
            self.shared.get(LimitSide::Far, 0, &mut self.private);
            let end = clock.now();
            round.checked(index, MessageDirection::Back).check(&self.private)?;
            self.signal();
            if index >= round.warm {
                samples.push(clock.nanoseconds(end.wrapping_sub(start)));
            }
        }
        Ok(samples)
    }

    fn far(&mut self, round: &Round, watch: &mut Watch) -> Result<()> {
        let last = self.private.len().saturating_sub(1) / 8 * 8;
        for index in 0..round.warm + round.count {
            round.written(index, MessageDirection::Back).fill(&mut self.private);
            if index == 0 || round.write == CheckedPart::Whole {
                self.shared.put(LimitSide::Far, 0, &self.private);
            } else if round.write == CheckedPart::Ends {
                let first = self.private.len().min(8);
                self.shared.put(LimitSide::Far, 0, &self.private[..first]);
                self.shared.put(LimitSide::Far, last, &self.private[last..]);
            }
            self.signal();
            self.wait(watch)?;
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<()> {
        Ok(())
    }
}
