//! A clock that is cheap enough to be read twice for every message.
//!
//! On x86-64 with an invariant time stamp counter, the clock is that counter (10 ns per reading), and its rate is
//! measured against the monotonic clock. Elsewhere it is the monotonic clock itself (about 20 ns). Readings are
//! comparable only within one process.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "reading the time stamp counter is an intrinsic; the blocks state why it is sound")
)]

use std::time::{Duration, Instant};

/// A calibrated clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// Nanoseconds per tick. `None` if a tick is a nanosecond of the monotonic clock.
    rate: Option<f64>,
}

impl Clock {
    /// Calibrates the clock. This takes about 20 ms.
    pub(crate) fn calibrate() -> Self {
        let start = Instant::now();
        if !has_steady_counter() {
            return Self { start, rate: None };
        }
        let first = (counter(), start);
        std::thread::sleep(Duration::from_millis(20));
        let last = (counter(), Instant::now());
        let nanoseconds = last.1.duration_since(first.1).as_nanos() as f64;
        let ticks = last.0.wrapping_sub(first.0);
        let rate = (ticks > 0).then(|| nanoseconds / ticks as f64);
        Self { start, rate }
    }

    /// Returns the current time in ticks.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self.rate {
            Some(_) => counter(),
            None => self.start.elapsed().as_nanos() as u64,
        }
    }

    /// Returns the current time in ticks. The clock is read after all earlier instructions have executed and before any
    /// later instruction begins. (Stores may still be in the store buffer.)
    #[inline]
    pub(crate) fn now_in_order(&self) -> u64 {
        match self.rate {
            Some(_) => counter_in_order(),
            None => self.now(),
        }
    }

    /// Converts ticks to nanoseconds.
    pub(crate) fn nanoseconds(&self, ticks: u64) -> f64 {
        ticks as f64 * self.rate.unwrap_or(1.0)
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has this instruction, and it accesses no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter_in_order() -> u64 {
    use std::arch::x86_64::_mm_lfence;
    // SAFETY: every x86-64 processor has this instruction, and it accesses no memory.
    unsafe { _mm_lfence() };
    let ticks = counter();
    // SAFETY: as above.
    unsafe { _mm_lfence() };
    ticks
}

#[cfg(not(target_arch = "x86_64"))]
const fn counter_in_order() -> u64 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
const fn counter() -> u64 {
    0
}

/// Returns whether the counter runs at a constant rate, regardless of the processor's frequency (CPUID 8000_0007H, EDX
/// bit 8).
#[cfg(target_arch = "x86_64")]
fn has_steady_counter() -> bool {
    use std::arch::x86_64::__cpuid;
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
}

#[cfg(not(target_arch = "x86_64"))]
const fn has_steady_counter() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_agrees_with_the_monotonic_clock() {
        let clock = Clock::calibrate();
        let (ticks, start) = (clock.now(), Instant::now());
        std::thread::sleep(Duration::from_millis(30));
        let (measured, real) = (clock.nanoseconds(clock.now() - ticks), start.elapsed().as_nanos() as f64);
        // The thread may be preempted between the two readings, so this tests only the unit and not the precision.
        assert!(measured > 0.5 * real && measured < 2.0 * real, "{measured} against {real}");
    }
}
