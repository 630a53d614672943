//! The limits of one-sided operations through shared memory. One core accesses a buffer of the other process, or
//! changes a word there. The access is a copy if the buffer is mapped, a system call if it is not, and one locked
//! instruction for a word.
//!
//! The far side only waits until the round is over, and then checks the contents. If the near side adds to a word, the
//! far side also adds to it, as in percale's rows that are compared with this limit.

use std::hint::black_box;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use super::kernel::Foreign;
use super::ring;
use super::shared::{LimitSide, Shared};
use crate::channel::watch::{Spin, Watch};
use crate::failure::{Failure, Result};
use crate::pattern::{CheckedPart, Content, MessageDirection};
use crate::round::{MessageShape, Round, SLOTS_MEMORY};
use crate::row::{MeasuredOperation, MessageMemory};
use crate::subject::{AccessMeans, Subject};

/// One side of the access.
#[derive(Debug)]
pub(crate) struct Access {
    shared: Shared,
    means: AccessMeans,
    shape: MessageShape,
    /// The source or destination of the near side.
    private: Vec<u8>,
    /// The buffer of the far side, for the kernel.
    foreign: Foreign,
    /// The minimum value that the word may have before the next change.
    next: u64,
    in_order: bool,
}

impl Access {
    fn new(means: AccessMeans, shared: Shared) -> Self {
        let shape = MessageShape { op: MeasuredOperation::Put, bytes: 8, memory: MessageMemory::Ordinary };
        let foreign = Foreign { process: 0, address: 0 };
        Self { shared, means, shape, private: Vec::new(), foreign, next: 0, in_order: true }
    }

    /// Makes the side that owns the memory.
    pub(crate) fn far(means: AccessMeans, shared: Shared) -> Self {
        let place = &shared.words().place;
        place.value.store(shared.address(LimitSide::Far), Release);
        place.mark.store(std::process::id().into(), Release);
        Self::new(means, shared)
    }

    /// Makes the side that accesses the memory, after the other side is ready.
    ///
    /// # Errors
    /// [`Failure::Forbidden`] if the system does not permit the accesses.
    pub(crate) fn near(means: AccessMeans, shared: Shared) -> Result<Self> {
        let mut this = Self::new(means, shared);
        let place = &this.shared.words().place;
        let process = i32::try_from(place.mark.load(Acquire)).ok().filter(|&process| process > 0);
        let process = process.ok_or_else(|| Failure::Protocol("no process".into()))?;
        this.foreign = Foreign { process, address: place.value.load(Acquire) };
        if means == AccessMeans::Kernel {
            this.foreign.read(0, &mut [0; 8]).map_err(Failure::Forbidden)?;
        }
        Ok(this)
    }

    /// Returns the position of a slot in the far side's buffer.
    #[inline]
    const fn at(&self, slot: usize) -> usize {
        slot * self.shape.stride()
    }

    /// Changes the word, and checks its previous value.
    #[inline]
    fn change(&mut self) {
        let word = &self.shared.words().word.value;
        let (found, is_expected) = if self.shape.op != MeasuredOperation::CompareSwap {
            let found = word.fetch_add(1, SeqCst);
            let alone = self.shape.op == MeasuredOperation::FetchAddAlone;
            (found, if alone { found == self.next } else { found >= self.next })
        } else {
            match word.compare_exchange(self.next, self.next + 1, SeqCst, SeqCst) {
                Ok(found) => (found, true),
                Err(found) => (found, false),
            }
        };
        self.in_order &= is_expected;
        self.next = found.wrapping_add(1);
    }

    /// Checks the data that the near side has written here. `own` is the number of additions by this side.
    fn verify(&self, slots: usize, round: &Round, own: u64) -> Result<()> {
        match self.means {
            AccessMeans::Word => {
                let sum = self.shared.words().word.value.load(SeqCst);
                let wanted = round.accesses().wrapping_add(own);
                if sum == wanted || round.check == CheckedPart::Nothing {
                    Ok(())
                } else {
                    Err(Failure::Data(format!("the word is {sum} after {wanted} operations")))
                }
            }
            _ if self.shape.op != MeasuredOperation::Put => Ok(()),
            AccessMeans::Copy | AccessMeans::Kernel => round.last_of_slots(slots).try_for_each(|index| {
                let slot = self.at(round.slot(index, slots));
                let get = |at: usize, to: &mut [u8]| self.shared.get(LimitSide::Far, slot + at, to);
                round.checked(index, MessageDirection::There).check_from(self.shape.bytes, get)
            }),
        }
    }
}

impl Subject for Access {
    fn prepare(&mut self, shape: &MessageShape) -> Result<()> {
        const { assert!(SLOTS_MEMORY <= ring::BUFFER, "the buffers hold all slots") };
        if shape.bytes > self.shared.room() || shape.op.is_atomic() != (self.means == AccessMeans::Word) {
            return Err(Failure::Protocol(format!("cannot measure {} of {} bytes", shape.op.name(), shape.bytes)));
        }
        self.shape = *shape;
        self.private = vec![0; shape.bytes];
        Ok(())
    }

    #[inline]
    fn write(&mut self, content: Content, _watch: &mut Watch) -> Result<()> {
        content.fill(&mut self.private);
        Ok(())
    }

    #[inline]
    fn check(&mut self, content: Content) -> Result<()> {
        match self.shape.op {
            MeasuredOperation::Get => content.check(&self.private),
            _ if self.in_order => Ok(()),
            op => Err(Failure::Data(format!("{} returned a wrong value", op.name()))),
        }
    }

    fn reach(&mut self, round: &Round, watch: &mut Watch) -> Result<()> {
        (self.next, self.in_order) = (0, true);
        let mut spin = Spin::default();
        while self.shared.words().ready.value.load(Acquire) != round.number {
            spin.turn(watch)?;
        }
        Ok(())
    }

    #[inline]
    fn access(&mut self, slot: usize, _watch: &mut Watch) -> Result<()> {
        let at = self.at(slot);
        let refused = || Failure::system("copying the memory of another process");
        match (self.means, self.shape.op) {
            (AccessMeans::Word, _) => self.change(),
            (AccessMeans::Copy, MeasuredOperation::Get) => {
                self.shared.get(LimitSide::Far, at, black_box(&mut self.private))
            }
            (AccessMeans::Copy, _) => self.shared.put(LimitSide::Far, at, black_box(&self.private)),
            (AccessMeans::Kernel, MeasuredOperation::Get) => {
                self.foreign.read(at, &mut self.private).map_err(refused())?
            }
            (AccessMeans::Kernel, _) => self.foreign.write(at, &self.private).map_err(refused())?,
        }
        Ok(())
    }

    fn leave(&mut self, round: &Round, _watch: &mut Watch) -> Result<()> {
        self.shared.words().over.value.store(round.number, Release);
        Ok(())
    }

    fn serve(&mut self, slots: usize, round: &Round, watch: &mut Watch) -> Result<()> {
        if self.shape.op == MeasuredOperation::Get {
            for index in round.last_of_slots(slots) {
                let slot = round.slot(index, slots);
                let put = |at: usize, bytes: &[u8]| self.shared.put(LimitSide::Far, self.at(slot) + at, bytes);
                round.written(slot as u64, MessageDirection::Back).write_to(self.shape.bytes, put);
            }
        }
        let words = self.shared.words();
        words.word.value.store(0, SeqCst);
        words.ready.value.store(round.number, Release);
        let adds = self.shape.op == MeasuredOperation::FetchAdd;
        let mut own = 0;
        let mut spin = Spin::of_a_round();
        while words.over.value.load(Acquire) != round.number {
            if adds {
                words.word.value.fetch_add(1, SeqCst);
                own += 1;
            }
            spin.turn(watch)?;
        }
        self.verify(slots, round, own)
    }
}
