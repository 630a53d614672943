//! Waits with a time limit. A thread that polls for a message calls [`Spin::turn`] after each poll, which checks that
//! the other process is alive.

use std::time::{Duration, Instant};

use super::control::Control;
use crate::failure::{Failure, Result};

/// The number of turns between two readings of the clock. It is small, because a turn may be slow if there are too few
/// processors.
const CLOCK_INTERVAL: u32 = 64;

/// The interval between two checks of the other process.
const LOOK: Duration = Duration::from_millis(2);

/// How long to wait for a message from a process that is alive.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(20);

/// The time limit of a round in which the other process accesses this process's memory. This process cannot detect such
/// accesses.
const ROUND: Duration = Duration::from_secs(3600);

/// Detects through the control channel that the other process has ended, and then ends the wait.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The channel to the other process.
    pub(crate) control: Control,
    yielding: bool,
}

impl Watch {
    /// Makes a watch over `control`. If `yielding` is set, waits yield the processor, because the two processes share
    /// one.
    pub(crate) const fn new(control: Control, yielding: bool) -> Self {
        Self { control, yielding }
    }
}

/// A wait in progress.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    turns: u32,
    /// The time of the first reading of the clock, and the time of the last check of the other process.
    times: Option<(Instant, Instant)>,
    /// Whether the time limit is that of a round.
    long: bool,
}

impl Spin {
    /// Makes a wait for use in the process that owns the accessed memory. The wait may last as long as a round.
    pub(crate) const fn of_a_round() -> Self {
        Self { turns: 0, times: None, long: true }
    }

    /// Records a poll without a result. Must be called after each such poll.
    ///
    /// # Errors
    /// Fails if the other process has ended or failed, or has sent nothing for 20 s. For a wait of a round, the time
    /// limit is that of a round.
    #[inline]
    pub(crate) fn turn(&mut self, watch: &mut Watch) -> Result<()> {
        self.polled(watch)?;
        std::hint::spin_loop();
        Ok(())
    }

    /// Like [`turn`](Self::turn), but without a pause. For use after a poll of the library, which already contains a
    /// pause.
    ///
    /// # Errors
    /// Fails in the same cases as `turn`.
    #[inline]
    pub(crate) fn polled(&mut self, watch: &mut Watch) -> Result<()> {
        self.turns = self.turns.wrapping_add(1);
        if watch.yielding {
            std::thread::yield_now();
        }
        if self.turns.is_multiple_of(CLOCK_INTERVAL) {
            return self.check_time(watch);
        }
        Ok(())
    }

    #[cold]
    fn check_time(&mut self, watch: &mut Watch) -> Result<()> {
        let now = Instant::now();
        let (first, last) = self.times.get_or_insert((now, now));
        if now.duration_since(*last) < LOOK {
            return Ok(());
        }
        *last = now;
        watch.control.check()?;
        let timeout = if self.long { ROUND } else { SILENCE_TIMEOUT };
        if now.duration_since(*first) > timeout {
            return Err(Failure::Stalled(timeout.as_secs()));
        }
        Ok(())
    }
}
