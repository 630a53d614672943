//! Waiting without hanging: whoever spins for a message turns a [`Spin`], which looks after the other process.

use std::time::{Duration, Instant};

use super::control::Control;
use crate::failure::{Failure, Result};

/// How many turns go by between two looks (a millisecond or so).
const LOOK: u32 = 1 << 16;

/// How long nothing may arrive from a process that lives.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a wait needs to end in every case: the control channel, which tells whether the other process is well.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The channel to the other process.
    pub(crate) control: Control,
    yielding: bool,
}

impl Watch {
    /// Watches over `control`. With `yielding`, waits give up the processor: the two processes share one.
    pub(crate) const fn new(control: Control, yielding: bool) -> Self {
        Self { control, yielding }
    }
}

/// One wait.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    turns: u32,
    since: Option<Instant>,
}

impl Spin {
    /// Call this each time that there was nothing.
    ///
    /// # Errors
    /// If there will never be anything: the other process ended, failed, or sent nothing for 20 s.
    #[inline]
    pub(crate) fn turn(&mut self, watch: &mut Watch) -> Result<()> {
        self.turns = self.turns.wrapping_add(1);
        if watch.yielding || self.turns.is_multiple_of(LOOK) {
            return self.look(watch);
        }
        std::hint::spin_loop();
        Ok(())
    }

    #[cold]
    fn look(&mut self, watch: &mut Watch) -> Result<()> {
        if watch.yielding {
            std::thread::yield_now();
            if !self.turns.is_multiple_of(1 << 10) {
                return Ok(());
            }
        }
        watch.control.check()?;
        if self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(Failure::Stalled(PATIENCE.as_secs()));
        }
        Ok(())
    }
}
