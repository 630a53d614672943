//! Waiting without hanging: a thread that spins for a message turns a [`Spin`], which checks that the other process is
//! alive.

use std::time::{Duration, Instant};

use super::control::Control;
use crate::failure::{Failure, Result};

/// How many turns go by between two readings of the clock. Few, since a turn may be slow where there are too few
/// processors.
const GLANCE: u32 = 64;

/// The time between two checks of the other process.
const LOOK: Duration = Duration::from_millis(2);

/// How long nothing may arrive from a process that is alive.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a round may last in which the other process accesses this one's memory, which this process cannot notice.
const ROUND: Duration = Duration::from_secs(3600);

/// State that lets a wait end in every case: the control channel, which shows whether the other process is alive.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The channel to the other process.
    pub(crate) control: Control,
    yielding: bool,
}

impl Watch {
    /// Makes a watch over `control`. With `yielding`, waits yield the processor: the two processes share one.
    pub(crate) const fn new(control: Control, yielding: bool) -> Self {
        Self { control, yielding }
    }
}

/// One wait.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    turns: u32,
    /// When the clock was first read, and when the other process was last checked.
    times: Option<(Instant, Instant)>,
    /// Whether nothing needs to arrive for as long as a round may last.
    long: bool,
}

impl Spin {
    /// The wait of a process with memory that the other accesses: it may last as long as a round.
    pub(crate) const fn of_a_round() -> Self {
        Self { turns: 0, times: None, long: true }
    }

    /// Must be called after each poll that found nothing.
    ///
    /// # Errors
    /// If there will never be anything: the other process ended, failed, or sent nothing for 20 s (or for a round's longest time).
    #[inline]
    pub(crate) fn turn(&mut self, watch: &mut Watch) -> Result<()> {
        self.polled(watch)?;
        std::hint::spin_loop();
        Ok(())
    }

    /// Like [`turn`](Self::turn), after a poll of the library, which pauses by itself.
    ///
    /// # Errors
    /// As of `turn`.
    #[inline]
    pub(crate) fn polled(&mut self, watch: &mut Watch) -> Result<()> {
        self.turns = self.turns.wrapping_add(1);
        if watch.yielding {
            std::thread::yield_now();
        }
        if self.turns.is_multiple_of(GLANCE) {
            return self.glance(watch);
        }
        Ok(())
    }

    #[cold]
    fn glance(&mut self, watch: &mut Watch) -> Result<()> {
        let now = Instant::now();
        let (first, last) = self.times.get_or_insert((now, now));
        if now.duration_since(*last) < LOOK {
            return Ok(());
        }
        *last = now;
        watch.control.check()?;
        let patience = if self.long { ROUND } else { PATIENCE };
        if now.duration_since(*first) > patience {
            return Err(Failure::Stalled(patience.as_secs()));
        }
        Ok(())
    }
}
