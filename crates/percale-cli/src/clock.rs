//! A clock cheap enough to read twice for every message.
//!
//! On x86-64 with an invariant time stamp counter (10 ns a reading) that counter, its rate measured against the
//! monotonic clock; elsewhere the monotonic clock itself (about 20 ns). Readings compare only within one process.

#![expect(unsafe_code, reason = "reading the time stamp counter is an intrinsic; the blocks say why it is sound")]

use std::time::{Duration, Instant};

/// A calibrated clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// Nanoseconds a tick; `None` where ticks are nanoseconds of the monotonic clock.
    rate: Option<f64>,
}

impl Clock {
    /// Calibrates; takes about 20 ms.
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

    /// The time now, in ticks.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self.rate {
            Some(_) => counter(),
            None => self.start.elapsed().as_nanos() as u64,
        }
    }

    /// The time now, when all instructions before have been executed, and none behind has begun. (Stores may still be on their way.)
    #[inline]
    pub(crate) fn now_in_order(&self) -> u64 {
        match self.rate {
            Some(_) => counter_in_order(),
            None => self.now(),
        }
    }

    /// The nanoseconds that so many ticks are.
    pub(crate) fn nanoseconds(&self, ticks: u64) -> f64 {
        ticks as f64 * self.rate.unwrap_or(1.0)
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter_in_order() -> u64 {
    use std::arch::x86_64::_mm_lfence;
    // SAFETY: every x86-64 processor has this instruction; it touches no memory.
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

/// Whether the counter runs at one rate whatever the processor's frequency (CPUID 8000_0007H, EDX bit 8).
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
    fn it_agrees_with_the_monotonic_clock() {
        let clock = Clock::calibrate();
        let (ticks, start) = (clock.now(), Instant::now());
        std::thread::sleep(Duration::from_millis(30));
        let (measured, real) = (clock.nanoseconds(clock.now() - ticks), start.elapsed().as_nanos() as f64);
        // A thread may be interrupted between the two readings: what is tested is the unit, not the speed.
        assert!(measured > 0.5 * real && measured < 2.0 * real, "{measured} against {real}");
    }
}
